"""Topics that are restored into a cluster that goes on.

A cluster knows a topic by its id, and the replicas of a partition agree on their logs by the leader epochs of the
batches. Neither is covered by a checksum. So a broker creates the topic first; its empty partitions are filled, keep
the id that the cluster gave them, and every batch gets epoch 0, the first one of a new topic.

A broker of a KRaft cluster renames a partition to `-stray` if its cluster does not know the id of its topic
(LogManager.isStrayReplica, Kafka 3.7): a restore refuses to write one.
"""
import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from seglog.backups.manifest import BackedFile, PartitionBackup
from seglog.errors import InvalidArgumentError
from seglog.format import names
from seglog.format.batch_layout import LEADER_EPOCH_POS
from seglog.format.java_properties import parse_properties
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.staging import Staging, refuse_other_owner
from seglog.reading.cluster_metadata import metadata_directory, read_cluster_metadata
from seglog.reading.partition import Partition
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import EpochStart, LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata, format_topic_id

_FIRST_EPOCH = 0
_EPOCH = struct.Struct(">i")
_V2 = 2


def has_records(partition: Path) -> bool:
    """Whether the partition has, or had, records."""
    if not names.has_segments(partition):
        return False
    with Partition(partition) as log:
        return log.log_end_offset > 0


def check_created(target: Path, parts: Iterable[str]) -> None:
    """Raise InvalidArgumentError unless each of these partitions is there, without a record, and is ours."""
    for name in parts:
        path = target / name
        if not path.is_dir() or path.is_symlink():
            raise InvalidArgumentError(
                "there is no such partition that could be filled; nothing was changed", file=path,
                hint="create the topic in the cluster with as many partitions and one replica each, stop the broker,"
                " and run this again",
            )
        refuse_other_owner(path, "; nothing was changed")
        if has_records(path):
            raise InvalidArgumentError(
                "the partition has records, or had some; nothing was changed", file=path,
                hint="fill only partitions of a topic that was just created; give it another name with --rename",
            )


def refuse_strays(target: Path, parts: Collection[str], topic_id: Callable[[str], str | None]) -> None:
    """Raise InvalidArgumentError if a KRaft broker would take one of these partitions in its log dir for a stray.
    `topic_id`: of a partition as it would be restored, as Kafka prints it."""
    try:
        properties = parse_properties(read_file(target / names.META_PROPERTIES).decode("latin-1"))
    except (FileNotFoundError, ValueError):
        return
    if properties.get("version") == "0":
        return      # with ZooKeeper
    directory = metadata_directory(target)
    topics = {} if directory is None else read_cluster_metadata(directory).topics
    for name in parts:
        topic, _, number = name.rpartition("-")
        known = topics.get(topic)
        if known is None or known.topic_id != topic_id(name) or int(number) not in known.partitions:
            what = "has no such topic" if known is None else "knows the topic by another id"
            raise InvalidArgumentError(
                f"the cluster of this log dir {what}: its broker would rename {name} to -stray; nothing was changed",
                file=target,
                hint="create the topic in the cluster, stop the broker, and fill its partitions with --adopt; or"
                " restore into an empty directory",
            )


def topic_id_of(backed: PartitionBackup, content: Callable[[BackedFile], bytes]) -> str | None:
    """The id of its topic in a backup, as Kafka prints it; None if it has none."""
    for file in backed.files:
        if file.name == names.PARTITION_METADATA:
            return format_topic_id(PartitionMetadata.parse(content(file), file=file.name).topic_id)
    return None


def as_created(backed: PartitionBackup, created: Path) -> PartitionBackup:
    """The partition with the topic id of the one that the broker has created, and a single leader epoch."""
    files = {file.name: file for file in backed.files}
    files.pop(names.PARTITION_METADATA, None)
    like = next(file for name, file in files.items() if names.is_log_file(name))
    changed: Mapping[str, bytes | None] = {
        names.PARTITION_METADATA: _raw_or_none(created / names.PARTITION_METADATA),
        names.LEADER_EPOCH_CHECKPOINT: LeaderEpochs([EpochStart(_FIRST_EPOCH, backed.log_start_offset)]).to_bytes(),
    }
    for name, raw in changed.items():
        if raw is not None:
            files[name] = replace(like, name=name, size_bytes=len(raw), pieces=(), inline=raw)
    return replace(backed, files=tuple(sorted(files.values(), key=lambda file: file.name)))


def _raw_or_none(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None     # of a broker before 2.8


def adapt(fs: FileSystem, staging: Staging, restored: PartitionBackup) -> None:
    """Make staged files those of a partition in another cluster.

    Its producer ids may be given out again there, to others, whose batches a broker would then take for repeated ones.
    So producer snapshots go: after a clean stop a broker without any begins without producers
    (UnifiedLog.rebuildProducerState). They stay if a transaction is open: without them it would count as committed.
    """
    for file in restored.files:
        if names.is_log_file(file.name):
            _set_first_epoch(fs, staging.path / file.name)
    with Partition(staging.path) as log:
        has_open_transaction = log.last_stable_offset < log.log_end_offset
    if not has_open_transaction:
        for file in restored.files:
            if file.name.endswith(names.SNAPSHOT_SUFFIX):
                fs.unlink(staging.path / file.name)


def _set_first_epoch(fs: FileSystem, log: Path) -> None:
    """Give every batch of a .log that nobody else has seen the first leader epoch. Its time stays.

    Raises CorruptRecordError, StorageError.
    """
    mtime_ns = os.stat(log).st_mtime_ns
    segment = Segment(log, is_last=False)
    try:
        positions = [
            batch.position for table in segment.tables(check_crc=False) for batch in table
            if batch.magic == _V2 and batch.leader_epoch != _FIRST_EPOCH
        ]
    finally:
        segment.close()
    if positions:
        with fs.open_write(log) as file:
            for position in positions:
                file.write_at(position + LEADER_EPOCH_POS, _EPOCH.pack(_FIRST_EPOCH))
            fs.set_mtime(log, mtime_ns)
            file.sync()
