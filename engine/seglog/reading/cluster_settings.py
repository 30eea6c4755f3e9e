"""Settings of the topics of a broker's log dir, from the cluster's metadata in it, for whoever opens their logs.

    given for this log  >  kept with it (.seglog.config)  >  the topic's in the metadata  >  given for all logs

`seglog.open_dir` and a server give settings for all logs. (Those of `seglog.open_dir` come before kept ones, too.) Only
what a topic itself was given counts, since whoever opens it has the place of the broker; but if nobody else says
whether a topic is compacted, the broker's settings there do.

Nothing is deleted on a guess. Retention does not count if the metadata does not tell the topic's policy or cannot be
read, or if there is no metadata, but a compaction left traces. Nor does a topic's own retention begin to delete if
nobody here gave one: whoever opens the disk of a dead broker may want the records that the broker would have deleted.
"""
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.config import LogConfig
from seglog.errors import InvalidConfigError
from seglog.format import names
from seglog.late_import import late
from seglog.logger import Logger
from seglog.reading.settings import Given, given_settings, without_settings
from seglog.state.checkpoints import offsets_or_none
from seglog.state.kept_settings import read_settings

if TYPE_CHECKING:
    from seglog.reading.cluster_metadata import ClusterMetadata

POLICY = "cleanup.policy"
_RETENTION = ("retention.ms", "retention.bytes")
_METADATA_LOG = names.partition_dir(names.METADATA_TOPIC, 0)
_KEEPS_ALL = dict.fromkeys(_RETENTION, "-1")
_LOG = Logger(__name__)


def settings_beside(directory: Path, given: Given) -> tuple[Given, dict[str, str]]:
    """`ClusterSettings.of_log` for a partition directory that is opened alone: of the log dir in which it has this
    name, or else of the one in which it lies."""
    if not has_metadata(directory.parent):
        if os.path.islink(directory):
            directory = Path(os.path.realpath(directory))
        elif not _has_retention(given_settings(given)):
            return given, {}        # the usual case
    return ClusterSettings(directory.parent).of_log(directory, given, is_for_all=False)


def has_metadata(log_dir: Path) -> bool:
    """Whether a log dir may have a cluster's metadata, in it or beside it."""
    return os.path.lexists(f"{log_dir}/{_METADATA_LOG}") or os.path.lexists(f"{log_dir}/{names.META_PROPERTIES}")


class ClusterSettings:
    """The settings of one log dir's topics. Threads may share it. The metadata is read when it is first needed."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._lock = threading.Lock()
        self._is_read = False
        self._metadata: ClusterMetadata | None = None
        self._node_id = ""
        self._is_unreadable = False
        self._compacted: frozenset[str] | None = None
        self._said: set[str] = set()

    @property
    def is_there(self) -> bool:
        """Whether the log dir has a cluster's metadata, even if it cannot be read."""
        self._read()
        return self._metadata is not None or self._is_unreadable

    def of(
        self, topic: str, topic_id: bytes | None, kept: Collection[str], for_all: Mapping[str, object]
    ) -> dict[str, str]:
        """Settings that come before those `for_all` logs. `topic_id`: zeros if the directory has none, None for a topic
        that is being created. `kept`: the names of settings that the log keeps, which are left out."""
        found = self._told(topic, topic_id, for_all)
        settings = found or {}
        if self.is_there and not _has_retention(for_all):
            settings = {**settings, **_KEEPS_ALL}
        elif found is None and POLICY not in kept and self._is_unknown(topic, topic_id, for_all):
            settings = _KEEPS_ALL
        return {name: value for name, value in settings.items() if name not in kept}

    def of_log(self, directory: Path, given: Given, *, is_for_all: bool) -> tuple[Given, dict[str, str]]:
        """For a log in this directory: what remains of the settings that are `given` for it or for all logs, and those
        that come below what it keeps. Raises what `read_settings` raises."""
        explicit = given_settings(given)
        topic = names.parse_partition_dir(directory.name)
        if topic is None or not (self.is_there or _has_retention(explicit)):
            return given, {}
        late("seglog.state.partition_metadata")
        from seglog.state.partition_metadata import id_of_topic

        kept = read_settings(directory)
        name, topic_id = topic.topic, id_of_topic(directory)
        if is_for_all:
            told = self.of(name, topic_id, kept, explicit)
            return without_settings(given, told), told
        here = {**kept, **explicit}
        found = self._told(name, topic_id, here)
        told = {name: value for name, value in (found or {}).items() if name not in here}
        if self.is_there and not _has_retention(here):
            told |= _KEEPS_ALL
        elif found is None and POLICY not in here and self._is_unknown(name, topic_id, explicit):
            given = without_settings(given, _RETENTION)
        return given, told

    def _is_unknown(self, topic: str, topic_id: bytes | None, settings: Mapping[str, object]) -> bool:
        """Whether retention would delete on a guess, with these settings of a topic that the cluster does not know."""
        if not _has_retention(settings) or topic_id is None:
            return False
        if not self.is_there and (POLICY in settings or not self._was_compacted(topic)):
            return False
        if topic not in self._said and not self._is_unreadable:
            self._said.add(topic)
            _LOG.warning(
                "%s: retention deletes nothing of it, because nothing says whether the topic is compacted: give it a "
                "cleanup.policy", topic)
        return True

    def _told(self, topic: str, topic_id: bytes | None, here: Mapping[str, object]) -> dict[str, str] | None:
        """The topic's settings, or None if the cluster does not know the topic or its settings are unusable. `here`:
        settings that decide whether the broker's policy applies."""
        self._read()
        if self._metadata is None or topic_id is None:
            return None
        late("seglog.reading.topic_settings")
        from seglog.reading.topic_settings import OF_LOGS, settings_of_topic

        found = settings_of_topic(self._metadata, topic, topic_id, self._node_id)
        if found is None:
            return None
        settings = {
            name: told.value for name, told in found.items()
            if name in OF_LOGS and (told.source == "topic" or (name == POLICY and POLICY not in here))
        }
        try:
            LogConfig.of(settings)
        except InvalidConfigError as error:
            if topic not in self._said:
                self._said.add(topic)
                _LOG.warning(
                    "%s: its settings in the cluster's metadata are not used, and retention deletes nothing of it "
                    "unless it gets a cleanup.policy here: %s", topic, error)
            return None
        return settings

    def _was_compacted(self, topic: str) -> bool:
        """Whether a cleaner was at work in this topic, of a broker or ours, or a broker always compacts it."""
        if self._compacted is None:
            cleaned = offsets_or_none(self._log_dir / names.CLEANER_CHECKPOINT)
            self._compacted = frozenset(name for name, _ in cleaned or ()) | set(names.BROKER_TOPICS)
        return topic in self._compacted

    def _read(self) -> None:
        with self._lock:
            if self._is_read:
                return
            if has_metadata(self._log_dir):
                late("seglog.reading.topic_settings")
                from seglog.reading.topic_settings import DirectorySettings

                directories = DirectorySettings()
                self._metadata, self._node_id = directories.metadata(self._log_dir)
                for error in directories.problems:
                    self._is_unreadable = True
                    _LOG.warning(
                        "the cluster's metadata cannot be read, so retention deletes nothing of topics that have no "
                        "cleanup.policy here: %s", error)
            self._is_read = True


def _has_retention(settings: Mapping[str, object]) -> bool:
    given = {name: settings[name] for name in _RETENTION if name in settings}
    if not given:
        return False
    config = LogConfig.of(given)
    return config.retention_ms >= 0 or config.retention_bytes >= 0
