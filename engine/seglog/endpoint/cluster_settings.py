"""Settings of the topics of a KRaft broker's log dir, from the cluster's metadata in it, for a server of that log dir.

    kept with the log (.seglog.config)  >  the topic's in the metadata  >  the server's

Only what a topic itself was given counts, since the server has the place of the broker; but if nobody else says whether
a topic is compacted, the broker's settings there do.

Nothing is deleted on a guess: where the metadata does not tell a topic's policy, or cannot be read, the server's
retention does not count. Nor does a topic's own retention begin to delete on a server that has none: whoever serves
the disk of a dead broker may want the records that the broker would have deleted.
"""
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from seglog.config import LogConfig, keys
from seglog.errors import InvalidConfigError
from seglog.logger import Logger
from seglog.reading.cluster_metadata import ClusterMetadata
from seglog.reading.topic_settings import BROKER_NAMES, DirectorySettings, told_settings
from seglog.wire.json_form import uuid_text

POLICY = "cleanup.policy"
_RETENTION = ("retention.ms", "retention.bytes")
_KEEPS_ALL = dict.fromkeys(_RETENTION, "-1")
# Not message.format.version: brokers with KRaft ignore it, and a log would keep it.
_USED = BROKER_NAMES.keys() & {key.name for _, key in keys(LogConfig)}
_LOG = Logger(__name__)


class ClusterSettings:
    """The settings of one log dir's topics. Threads may share it. The metadata is read once, when first needed."""

    def __init__(self, log_dir: Path, log_config: Mapping[str, object]) -> None:
        """`log_config`: the server's settings for every log."""
        self._log_dir = log_dir
        self._has_policy = POLICY in log_config
        config = LogConfig.of({name: log_config[name] for name in _RETENTION if name in log_config})
        self._has_retention = config.retention_ms >= 0 or config.retention_bytes >= 0
        self._lock = threading.Lock()
        self._directories = DirectorySettings()
        self._is_read = False
        self._said: set[str] = set()

    @property
    def is_there(self) -> bool:
        """Whether the log dir has a cluster's metadata, even if it cannot be read."""
        return self._metadata()[0] is not None or bool(self._directories.problems)

    def of(self, topic: str, topic_id: bytes | None, kept: Collection[str]) -> dict[str, str]:
        """Settings that come before the server's. `topic_id`: zeros if the directory has none, None for a topic that is
        being created. `kept`: the names of settings that the log keeps, which are left out."""
        metadata, node_id = self._metadata()
        if not self.is_there:
            return {}
        found = None if metadata is None or topic_id is None else self._told(metadata, node_id, topic, topic_id)
        settings = found or {}
        if not self._has_retention or (found is None and POLICY not in kept):
            settings = {**settings, **_KEEPS_ALL}
        return {name: value for name, value in settings.items() if name not in kept}

    def _told(self, metadata: ClusterMetadata, node_id: str, topic: str, topic_id: bytes) -> dict[str, str] | None:
        """None: the cluster does not know the topic, or what it says cannot be used."""
        state = metadata.topics.get(topic)
        if state is None or (any(topic_id) and state.topic_id != uuid_text(topic_id)):
            return None
        settings = {
            name: told.value for name, told in told_settings(metadata, topic, node_id).items()
            if name in _USED and (told.source == "topic" or (name == POLICY and not self._has_policy))
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

    def _metadata(self) -> tuple[ClusterMetadata | None, str]:
        with self._lock:
            found = self._directories.metadata(self._log_dir)
            if not self._is_read:
                self._is_read = True
                for error in self._directories.problems:
                    _LOG.warning(
                        "the cluster's metadata cannot be read, so retention deletes nothing of topics that have no "
                        "cleanup.policy here: %s", error)
            return found
