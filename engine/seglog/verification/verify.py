"""Check a partition directory against its checksums, its indexes, its checkpoints and itself. Reads only.

What a broker's clean start trusts blindly and its unclean start repairs is found here, with the file, the
byte and the offset, and without changing anything. Memory does not grow with the log.
"""
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from seglog._kernels import batch_survey as survey
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.config import LogConfig
from seglog.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptSnapshotError,
    InvalidArgumentError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.fs.lock import is_locked
from seglog.log.partition import Partition
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.verification.findings import Finding, Report
from seglog.verification.index_check import IndexCheck
from seglog.verification.log_check import Level, LogWalk

LEVELS = ("headers", "crc", "deep")
ABORT_MARKER = struct.pack(">hh", 0, 0)     # a control record's key: version 0, type ABORT

Progress = Callable[[int, int], None]


def verify(
    path: str | Path,
    *,
    level: Level = "crc",
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look at a partition directory; `report.ok` says whether it is clean, `report.findings` what is not.

    level: "headers" reads batch headers only; "crc" every checksum, too; "deep" decodes every record.
    config: as the broker's (`segment.index.bytes`, `index.interval.bytes`, …); a directory does not tell it.
    progress: called with (bytes done, bytes in all).
    Raises NotALogError, StorageError, InvalidConfigError; damage is a finding, never an exception.
    """
    with Partition(path, config=config) as partition:
        return verify_partition(partition, level=level, progress=progress)


def verify_partition(partition: Partition, *, level: Level = "crc", progress: Progress | None = None) -> Report:
    """The same for an open partition, narrowed to the segments that it holds."""
    if level not in LEVELS:
        raise InvalidArgumentError(f"no level: {level!r}", hint=f"one of {', '.join(LEVELS)}")
    report = Report(str(partition.path), level)
    live = is_locked(partition.path.resolve().parent)
    epochs = _read_epochs(partition, report.findings)
    walk = LogWalk(level, partition.config, epochs, report.findings)
    transactions = _TransactionCheck(report.findings)
    total = sum(segment.size_bytes for segment in partition.segments)
    for segment in partition.segments:
        indexes = IndexCheck(segment, partition.config, report.findings, live=live)
        transactions.begin(segment)
        for table in walk.tables(segment):
            indexes.see(table)
            transactions.see(table)
            if progress is not None:
                progress(report.size_bytes + table.end, total)
        indexes.finish(walk.lost)
        transactions.finish()
        report.segments += 1
        report.size_bytes += segment.size_bytes
    report.batches, report.records = walk.batches, walk.records
    report.log_start_offset, report.log_end_offset = partition.log_start_offset, walk.next_offset
    if walk.seen_epoch and not (partition.path / names.LEADER_EPOCH_CHECKPOINT).exists():
        report.findings.append(Finding("epochs_missing", str(partition.path / names.LEADER_EPOCH_CHECKPOINT)))
    _check_other_files(partition, report.findings)
    return report


# --- checkpoints and other files -------------------------------------------------------------


def _read_epochs(partition: Partition, findings: list[Finding]) -> LeaderEpochs | None:
    try:
        epochs = partition.leader_epochs
    except (CorruptCheckpointError, UnsupportedVersionError) as e:
        findings.append(Finding("epochs_corrupt", str(partition.path / names.LEADER_EPOCH_CHECKPOINT), found=e.what))
        return None
    return epochs


def _check_other_files(partition: Partition, findings: list[Finding]) -> None:
    logs = {segment.base_offset for segment in partition.segments}
    for path in sorted(partition.path.iterdir()):
        file = names.parse_file_name(path.name)
        if path.name == names.PARTITION_METADATA:
            try:
                PartitionMetadata.read(path)
            except (CorruptCheckpointError, UnsupportedVersionError) as e:
                findings.append(Finding("metadata_corrupt", str(path), found=e.what))
        if file is None or file.state in (names.BACKUP_SUFFIX, names.TMP_SUFFIX):
            continue
        if file.state:
            findings.append(Finding("leftover", str(path)))
        elif file.suffix == names.SNAPSHOT_SUFFIX:
            try:
                ProducerSnapshot.read(path)
            except (CorruptSnapshotError, UnsupportedVersionError) as e:
                findings.append(Finding("snapshot_corrupt", str(path), e.position, found=e.what))
        elif file.suffix != names.LOG_SUFFIX and file.offset not in logs and not _has_log(path):
            findings.append(Finding("orphan_index", str(path)))


def _has_log(index: Path) -> bool:
    return index.with_name(index.name[:20] + names.LOG_SUFFIX).exists()


# --- transactions ----------------------------------------------------------------------------


class _TransactionCheck:
    """Does each .txnindex list the transactions that were aborted in its segment, and no other?"""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._open: dict[int, int] = {}     # producer id -> first offset of its data since its last marker

    def begin(self, segment: Segment) -> None:
        self._file = str(segment.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX))
        self._listed: dict[int, AbortedTransaction] = {}
        self._markers: set[int] = set()
        self._readable = True
        try:
            index = segment.transaction_index
        except (CorruptIndexError, UnsupportedVersionError) as e:
            self._findings.append(Finding("txnindex_corrupt", self._file, e.position, found=e.what))
            self._readable = False
            return
        if index is not None:
            self._listed = {aborted.last_offset: aborted for aborted in index}

    def see(self, table: BatchTable) -> None:
        slot = survey.first_transactional(table)
        while slot >= 0:
            self._see_batch(table[slot])
            slot = survey.first_transactional(table, slot + 1)

    def _see_batch(self, batch: RecordBatch) -> None:
        if not batch.is_control:
            self._open.setdefault(batch.producer_id, batch.base_offset)
            return
        first = self._open.pop(batch.producer_id, None)
        try:
            aborted = any(record.key == ABORT_MARKER for record in batch)
        except UNREADABLE:      # the walk tells
            return
        if not aborted:
            return
        self._markers.add(batch.last_offset)
        if first is not None and self._readable and batch.last_offset not in self._listed:
            self._findings.append(Finding(
                "txnindex_incomplete", self._file, offset=batch.last_offset,
                found="not listed", expected=f"producer {batch.producer_id}, offsets {first} to {batch.last_offset}"))

    def finish(self) -> None:
        for offset, aborted in self._listed.items():
            if offset not in self._markers:
                self._findings.append(Finding(
                    "txnindex_misleads", self._file, offset=offset,
                    found=f"producer {aborted.producer_id}, offsets {aborted.first_offset} to {offset}",
                    expected=f"an abort marker at offset {offset}"))
