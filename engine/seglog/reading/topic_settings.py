"""Settings of a broker's topics, from the cluster's metadata: what a topic was given, then what its broker was.

    topic    ── kafka-configs on the topic
    broker   ── kafka-configs on this broker
    brokers  ── kafka-configs on the default of all brokers

What none of them says is unknown here: `server.properties` may say it, which is in no log dir.
"""
import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from seglog.config import OTHER_TOPIC_SETTINGS, LogConfig
from seglog.errors import CorruptSettingsError, SeglogError
from seglog.format import names
from seglog.fs.refusals import refusals
from seglog.named_tuple import NamedTuple
from seglog.reading.cluster_metadata import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
    metadata_directory,
    node_of,
    read_cluster_metadata,
)
from seglog.state.kept_settings import read_settings
from seglog.state.partition_metadata import id_of_topic
from seglog.wire.json_text import uuid_text

Source = Literal["topic", "broker", "brokers", "log"]

# ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS of Kafka 4.4.0: the broker's name of each setting of a topic.
BROKER_NAMES = {
    "segment.bytes": "log.segment.bytes", "segment.ms": "log.roll.ms", "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.index.bytes": "log.index.size.max.bytes", "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms", "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms", "max.message.bytes": "message.max.bytes",
    "index.interval.bytes": "log.index.interval.bytes", "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio", "cleanup.policy": "log.cleanup.policy",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "min.insync.replicas": "min.insync.replicas", "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level", "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level", "preallocate": "log.preallocate",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "local.retention.ms": "log.local.retention.ms", "local.retention.bytes": "log.local.retention.bytes",
}
_OURS = {key.name for key in LogConfig.keys.values()}
# Those that logs here are opened with. Not message.format.version: brokers with KRaft ignore it, a log would keep it.
OF_LOGS = BROKER_NAMES.keys() & _OURS
_KNOWN = _OURS | set(OTHER_TOPIC_SETTINGS)


class ToldSetting(NamedTuple):
    """The value of a setting as the cluster has it, and who was given it."""

    value: str
    source: Source


def told_settings(metadata: ClusterMetadata, topic: str, node_id: str) -> dict[str, ToldSetting]:
    """The settings of a topic on the broker with this id, by their names as a topic's."""
    found: dict[str, ToldSetting] = {}
    sources: tuple[tuple[Source, str], ...] = (("brokers", ""), ("broker", node_id))
    for source, name in sources:
        of_broker = metadata.settings.get((BROKER_RESOURCE, name), {})
        for key, broker_name in BROKER_NAMES.items():
            if broker_name in of_broker:
                found[key] = ToldSetting(of_broker[broker_name], source)
    for key, value in metadata.settings.get((TOPIC_RESOURCE, topic), {}).items():
        found[key] = ToldSetting(value, "topic")
    return dict(sorted(found.items()))


def settings_of_topic(
    metadata: ClusterMetadata, topic: str, topic_id: bytes, node_id: str
) -> dict[str, ToldSetting] | None:
    """The same; None if the cluster has no such topic, or one of that name with another id. `topic_id`: zeros if it is
    unknown."""
    state = metadata.topics.get(topic)
    if state is None or (any(topic_id) and state.topic_id != uuid_text(topic_id)):
        return None
    return told_settings(metadata, topic, node_id)


class DirectorySettings:
    """The settings of partition directories, from the metadata log of the log dir that each is in. One object for a
    command: it reads each metadata log once."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[ClusterMetadata | None, str]] = {}
        self.problems: list[SeglogError] = []

    def metadata(self, log_dir: Path) -> tuple[ClusterMetadata | None, str]:
        """What the metadata log of a log dir says, None if it has none or it cannot be read (see `problems`); and the
        id of the node."""
        where = Path(os.path.realpath(log_dir))
        if where not in self._read:
            found = None
            try:
                directory = metadata_directory(where)
                found = None if directory is None else _read_unchanged(directory, _signature(directory))
            except SeglogError as error:
                self.problems.append(error)
            self._read[where] = found, (node_of(where) or ("", ""))[1]
        return self._read[where]

    def told(self, directory: Path) -> dict[str, ToldSetting]:
        """What the cluster says of the topic of a partition directory, without settings that nothing here knows; empty
        if it says nothing, or if it has no such topic. Settings that seglog keeps with the log come first: they are
        left out."""
        directory = Path(os.path.realpath(directory))
        parsed = names.parse_partition_dir(directory.name)
        metadata, node_id = self.metadata(directory.parent)
        if parsed is None or metadata is None:
            return {}
        told = settings_of_topic(metadata, parsed.topic, id_of_topic(directory), node_id)
        try:
            kept = read_settings(directory)
        except CorruptSettingsError:
            kept = {}       # opening the log says so
        return {key: setting for key, setting in (told or {}).items() if key in _KNOWN and key not in kept}


@lru_cache(1)
def _read_unchanged(directory: Path, signature: tuple[tuple[str, int, int], ...]) -> ClusterMetadata:
    """The metadata of a log dir whose partitions are opened one by one is read once."""
    return read_cluster_metadata(directory)


def _signature(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes if a file of the metadata log does."""
    with refusals("list", directory), os.scandir(directory) as entries:
        return tuple(sorted((entry.name, (status := entry.stat()).st_size, status.st_mtime_ns) for entry in entries))
