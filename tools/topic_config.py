"""Settings for a command: --config, and below it what the cluster's metadata says of each topic."""
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import CompactedTopicError, UnknownPolicyError
from seglog.format import names
from seglog.reading.arguments import key_name
from seglog.reading.cluster_metadata import metadata_directory
from seglog.reading.gaps import is_told_compacted
from seglog.reading.topic_settings import DirectorySettings, ToldSetting, told_settings
from seglog.state.kept_settings import read_settings

from . import report

POLICY = "cleanup.policy"
# What each kind of command takes from there.
RETENTION = (POLICY, "retention.ms", "retention.bytes", "file.delete.delay.ms")
COMPACTION = (
    POLICY, "delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio",
    "segment.bytes", "segment.index.bytes", "max.message.bytes",
)
_WORDS = {"topic": "", "broker": " (of this broker)", "brokers": " (of all brokers)"}


class TopicConfig:
    """The settings of partition directories: as typed, then kept with the log, then as the cluster has them."""

    def __init__(self, typed: Iterable[tuple[str, str]], wanted: Iterable[str]) -> None:
        """`wanted`: the settings that are taken from the cluster. Raises InvalidConfigError."""
        self.typed: dict[str, object] = dict(typed)
        LogConfig.of(self.typed)
        self._wanted = frozenset(wanted).difference(map(key_name, self.typed))
        self._directories = DirectorySettings()
        self._said: set[str] = set()
        self._problems = 0

    def of(self, directory: Path) -> dict[str, object]:
        """The settings to open this directory with. Says once for each topic what the cluster told."""
        told = self._told(directory)
        parsed = names.parse_partition_dir(Path(os.path.realpath(directory)).name)
        if told and parsed is not None and parsed.topic not in self._said:
            self._said.add(parsed.topic)
            report.note(f"{parsed.topic}: {_words(told)}")
        return {**{key: one.value for key, one in told.items()}, **self.typed}

    def of_page(self, directory: Path) -> tuple[dict[str, object], str]:
        """The same for a page that says it itself, in these words; empty if the cluster told nothing."""
        told = self._told(directory)
        return {**{key: one.value for key, one in told.items()}, **self.typed}, _words(told) if told else ""

    def _told(self, directory: Path) -> dict[str, ToldSetting]:
        told = {key: one for key, one in self._directories.told(directory).items() if key in self._wanted}
        for error in self._directories.problems[self._problems:]:
            report.note(f"the cluster's metadata cannot be read, so settings are unknown: {error}")
        self._problems = len(self._directories.problems)
        return told

    def known_policy(self, directory: Path) -> str | None:
        """The cleanup.policy of a partition's topic, whatever was typed: as kept with the log, or as the cluster has
        it, or "compact" if traces say so, or "delete" if the log keeps limits of retention and no cluster may know
        better: an opening then deletes by them. None if nothing says it."""
        kept = read_settings(directory)
        if POLICY in kept:
            return kept[POLICY]
        told = self._directories.told(directory).get(POLICY)
        if told is not None:
            return told.value
        where = Path(os.path.realpath(directory))
        if is_told_compacted(where, LogConfig()):
            return "compact"
        if kept.keys() & {"retention.ms", "retention.bytes"} and metadata_directory(where.parent) is None:
            return LogConfig().cleanup_policy
        return None

    def with_policy(
        self, directory: Path, *, always: bool = False, may_delete_compacted: bool = False
    ) -> dict[str, object]:
        """The same, if retention would delete nothing, or its policy is known. Raises UnknownPolicyError, and
        CompactedTopicError if the typed policy deletes what the known one compacts, unless `may_delete_compacted`.

        `always`: retention deletes whatever these settings say.
        """
        settings = self.of(directory)
        known = self.known_policy(directory)
        typed = next((str(value) for key, value in self.typed.items() if key_name(key) == POLICY), None)
        if typed is not None:
            if "delete" in typed and known == "compact" and not may_delete_compacted:
                raise CompactedTopicError(
                    f"the topic is compacted, and --config {POLICY}={typed} would delete its old segments",
                    file=directory,
                )
            return settings
        if known is not None:
            return {**settings, POLICY: known}
        kept = read_settings(directory)
        spoken = {key_name(key) for key in settings} | kept.keys()
        if not always and not spoken & {"retention.ms", "retention.bytes"}:
            return settings
        raise UnknownPolicyError(
            f"nothing here says whether the topic is deleted by age and size, or compacted: {POLICY} is unknown",
            file=directory,
        )

    def of_topic(self, log_dir: Path, topic: str) -> dict[str, str]:
        """The cluster's settings of a topic, for a plan of a log dir that may not have its first partition."""
        metadata, node_id = self._directories.metadata(log_dir)
        if metadata is None or topic not in metadata.topics:
            return {}
        told = told_settings(metadata, topic, node_id)
        return {key: one.value for key, one in told.items() if key in self._wanted}


def _words(told: Mapping[str, ToldSetting]) -> str:
    shown = ", ".join(f"{key}={one.value}{_WORDS[one.source]}" for key, one in told.items())
    return f"from the cluster's metadata: {report.printable(shown)}"
