"""What a KRaft cluster knows, as far as it is on a node's disk: the newest snapshot of __cluster_metadata, and the log
behind it. docs/formats/cluster_metadata.md.

A disk does not tell which records are committed. A node writes a snapshot of committed ones only; the last records of
the log may never have taken effect.
"""
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seglog._kernels.record_batch import RecordBatch
from seglog.errors import CorruptRecordError, NotALogError, ProtocolError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.format.java_properties import parse_properties
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.reading.metadata_snapshot import snapshot_batches
from seglog.reading.partition import Partition
from seglog.wire.internal_records import decode_metadata
from seglog.wire.json_text import uuid_text
from seglog.wire.stored_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from seglog.wire.structs import KafkaMessage

METADATA_PARTITION = names.partition_dir(names.METADATA_TOPIC, 0)
# ConfigResource.Type
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
# PartitionChangeRecord: the leader stays; so does the recovery state.
_SAME_LEADER = -2
_SAME_STATE = -1
# LeaderRecoveryState
_RECOVERING = 1


@dataclass(slots=True)
class PartitionReplicas:
    """The replicas of a partition; `leader` is -1 if there is none. `directories`: the ids of the replicas' log dirs
    (KIP-858); empty if the cluster does not keep them.

    `eligible_leaders`: replicas outside the ISR that have every committed record; `last_known_leaders`: that may lack
    some since they crashed (KIP-966). `is_unclean`: the leader was elected though it may lack committed records, and
    no other replica has caught up with it yet (LeaderRecoveryState.RECOVERING).
    """

    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    directories: list[bytes] = field(default_factory=list)
    eligible_leaders: list[int] = field(default_factory=list)
    last_known_leaders: list[int] = field(default_factory=list)
    is_unclean: bool = False


@dataclass(slots=True)
class TopicState:
    """A topic. `topic_id`: as Kafka prints it."""

    name: str
    topic_id: str
    partitions: dict[int, PartitionReplicas] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterMetadata:
    """The topics of a cluster, and the settings of its topics and brokers.

    `settings`: by resource type and name; the broker "" stands for all of them. `directory`: of the metadata log.
    `end_offset`: of what was read. `unknown`: records of types or versions that this release does not know.
    """

    directory: Path
    topics: dict[str, TopicState] = field(default_factory=dict)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    end_offset: int = 0
    unknown: int = 0
    _by_id: dict[bytes, TopicState] = field(default_factory=dict)

    def apply(self, record: KafkaMessage) -> None:
        """Apply a record; types that say nothing of topics or settings change nothing."""
        match record:
            case TopicRecord():
                self.topics[record.name] = self._by_id[record.topic_id] = TopicState(
                    record.name, uuid_text(record.topic_id)
                )
            case RemoveTopicRecord():
                topic = self._by_id.pop(record.topic_id, None)
                if topic is not None:
                    self.topics.pop(topic.name, None)
                    self.settings.pop((TOPIC_RESOURCE, topic.name), None)
            case PartitionRecord():
                topic = self._by_id.get(record.topic_id)
                if topic is not None:
                    topic.partitions[record.partition_id] = PartitionReplicas(
                        record.replicas, record.isr, record.leader, record.leader_epoch, record.directories,
                        record.eligible_leader_replicas or [], record.last_known_elr or [],
                        record.leader_recovery_state == _RECOVERING,
                    )
            case PartitionChangeRecord():
                topic = self._by_id.get(record.topic_id)
                if topic is not None and record.partition_id in topic.partitions:
                    _change(topic.partitions[record.partition_id], record)
            case ConfigRecord():
                settings = self.settings.setdefault((record.resource_type, record.resource_name), {})
                if record.value is None:
                    settings.pop(record.name, None)
                else:
                    settings[record.name] = record.value

    def topic_of(self, topic_id: str) -> TopicState | None:
        """The topic with this id, as Kafka prints it."""
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)


def _change(state: PartitionReplicas, record: PartitionChangeRecord) -> None:
    if record.isr is not None:
        state.isr = record.isr
    if record.replicas is not None:
        state.replicas = record.replicas
    if record.directories is not None:
        state.directories = record.directories
    if record.eligible_leader_replicas is not None:
        state.eligible_leaders = record.eligible_leader_replicas
    if record.last_known_elr is not None:
        state.last_known_leaders = record.last_known_elr
    if record.leader_recovery_state != _SAME_STATE:
        state.is_unclean = record.leader_recovery_state == _RECOVERING
    if record.leader != _SAME_LEADER:
        state.leader = record.leader
        state.leader_epoch += 1


# --- finding and reading -----------------------------------------------------------------


def metadata_directory(log_dir: Path) -> Path | None:
    """The metadata log of the node that has this log dir: in it, or in another log dir of the same node beside it.
    None if there is none, as of a broker with ZooKeeper. Raises StorageError."""
    here = log_dir / METADATA_PARTITION
    if here.is_dir():
        return here
    beside = (path / METADATA_PARTITION for path in log_dirs_of_node(log_dir))
    return next((path for path in beside if path.is_dir()), None)


def log_dirs_of_node(log_dir: Path) -> Iterator[Path]:
    """This log dir, and the others of the same node beside it; copies of it are none. Raises StorageError."""
    yield log_dir
    meta = _meta_of(log_dir)
    node = _node_in(meta)
    if node is None:
        return
    here = os.path.realpath(log_dir)
    with refusals("list", log_dir.parent):
        beside = sorted(path for path in Path(here).parent.iterdir() if path.is_dir())
    ours: set[str] | None = None
    for path in beside:
        if os.path.realpath(path) == here or _node_in(theirs := _meta_of(path)) != node:
            continue
        # A broker refuses to start on two log dirs with one id (MetaPropertiesEnsemble), or with one partition in both
        # (LogManager.loadLog): only a copy has them. Before 3.7, log dirs had no ids.
        if "directory.id" in meta and "directory.id" in theirs:
            is_copy = meta["directory.id"] == theirs["directory.id"]
        else:
            ours = _partitions_in(log_dir) if ours is None else ours
            is_copy = not ours.isdisjoint(_partitions_in(path))
        if not is_copy:
            yield path


def node_of(log_dir: Path) -> tuple[str, str] | None:
    """Cluster id and node id in a log dir's meta.properties; None if it has none, or one that does not parse."""
    return _node_in(_meta_of(log_dir))


def _meta_of(log_dir: Path) -> dict[str, str]:
    try:
        return parse_properties(read_file(log_dir / names.META_PROPERTIES).decode("latin-1"))
    except (FileNotFoundError, StorageError, ValueError):
        return {}


def _node_in(meta: dict[str, str]) -> tuple[str, str] | None:
    node_id = meta.get("node.id", meta.get("broker.id", ""))
    return (meta["cluster.id"], node_id) if node_id and "cluster.id" in meta else None


def _partitions_in(log_dir: Path) -> set[str]:
    """The names of its partitions, but for marked ones: a replica on its way to another log dir is in both."""
    try:
        listed = os.listdir(log_dir)
    except OSError:
        return set()        # who needs its partitions says so
    return {name for name in listed if (parsed := names.parse_partition_dir(name)) is not None and not parsed.mark}


def read_cluster_metadata(directory: Path) -> ClusterMetadata:
    """Read a metadata log, `__cluster_metadata-0`, from its newest snapshot on. Raises CorruptRecordError if neither
    the log nor a snapshot has the whole state, NotALogError, StorageError."""
    metadata = ClusterMetadata(directory)
    snapshot = _newest_snapshot(directory)
    if snapshot is not None:
        path, end_offset = snapshot
        _apply_all(metadata, snapshot_batches(path))
        metadata.end_offset = end_offset
    if not names.has_segments(directory):
        if snapshot is None:
            raise NotALogError("no segment and no snapshot in the directory of the metadata log", file=directory)
        return metadata
    with Partition(directory) as log:
        if log.segments[0].base_offset > metadata.end_offset:
            raise CorruptRecordError(
                f"the metadata log begins at offset {log.segments[0].base_offset}, and no snapshot reaches so far",
                file=directory, offset=metadata.end_offset,
                hint="copy the metadata log of another node, or pass what it would tell with --config",
            )
        start = metadata.end_offset
        end = log.log_end_offset
        if start < end:
            _apply_all(metadata, log.batches(start), start)
            metadata.end_offset = end
    return metadata


def _newest_snapshot(directory: Path) -> tuple[Path, int] | None:
    found = []
    with refusals("list", directory):
        for path in directory.iterdir():
            parsed = names.parse_metadata_snapshot(path.name)
            if parsed is not None:
                found.append((parsed, path))
    if not found:
        return None
    (end_offset, _), path = max(found)
    return path, end_offset


def _apply_all(metadata: ClusterMetadata, batches: Iterable[RecordBatch], start: int = 0) -> None:
    """Apply records from offset `start` on. Those of a transaction take effect at its end, if there is one."""
    pending: list[KafkaMessage] | None = None
    for record in _records(metadata, batches, start):
        match record:
            case BeginTransactionRecord():
                pending = []
            case EndTransactionRecord():
                for one in pending or ():
                    metadata.apply(one)
                pending = None
            case AbortTransactionRecord():
                pending = None
            case _ if pending is None:
                metadata.apply(record)
            case _:
                pending.append(record)


def _records(metadata: ClusterMetadata, batches: Iterable[RecordBatch], start: int) -> Iterator[KafkaMessage]:
    for batch in batches:
        if batch.is_control:
            continue
        for record in batch:
            if record.offset < start:
                continue
            try:
                yield decode_metadata(names.METADATA_TOPIC, record.value or b"").message
            except (ProtocolError, UnsupportedVersionError):
                metadata.unknown += 1
