"""Assembles a partition on an executor, once its segments are converted.

It checks that every segment of the plan has a matching marker and is proven, that the offsets are in order, and that
the source is still the one in the plan. State that no single segment knows (producer snapshots, transactions, leader
epochs) is combined from the markers in offset order. Afterwards the directory has exactly the contents that the target
will have.
"""
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from seglog._version import __version__
from seglog.conversion.plan import larger_batches_warning
from seglog.conversion.proof import PROOF_FILE, Proof, SegmentProof
from seglog.conversion.report import PartitionRow
from seglog.conversion.state_fold import StateFold
from seglog.errors import CorruptCheckpointError, SeglogError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.spark.plan import Shard
from seglog.spark.segment_task import of_the_partition
from seglog.spark.target import target_of
from seglog.spark.workplace import Outcome, Workplace, changed
from seglog.state.reader_cursor import is_cursor_file
from seglog.stores.side_by_side import side_by_side

# A partition waits longer for the disk, or the server, than it works. Of those with a long plan (about 1 000 segments)
# one at a time is in memory.
AT_A_TIME, LONG_PLAN_BYTES = 8, 64 << 10


def assemble(workplace: Workplace, partition: str) -> PartitionRow:
    """Complete the partition in `staged`, and write its outcome. Raises SeglogError if it cannot be completed."""
    with workplace.store.attempt(workplace.path) as attempt:
        return _Assembly(workplace, partition, attempt).run()


class _Assembly:
    """One attempt to assemble a partition. It has its own directory, `attempt`, since two may run at the same time."""

    def __init__(self, workplace: Workplace, partition: str, attempt: Path) -> None:
        self._workplace = workplace
        self._store = workplace.store
        self._partition = partition
        self._staged = workplace.staged(partition)
        self._shard = workplace.shard(partition)
        self._expected: dict[str, int] = {}         # name: bytes, of all files of the result
        self._written: list[str] = []               # the files that this attempt wrote
        self._sums = _Sums()
        self._survey = workplace.survey(partition)
        self._fold = StateFold(self._read_source, self._write, to=workplace.options.to)
        self._fs = OsFileSystem()
        self._attempt = attempt
        self._made_from = workplace.made_from(partition)

    def run(self) -> PartitionRow:
        sums = self._sums
        _check_source(self._workplace, self._shard)
        proof = self._proof(self._add_segments())
        self._copy_metadata()
        self._write(PROOF_FILE, proof.to_json())
        if self._workplace.made_from(self._partition) != self._made_from:
            raise changed(self._workplace.source_of(self._partition))
        self._store.take(self._attempt, self._written, self._staged)
        self._clear()
        target_of(self._workplace).seal(self._partition, self._expected)
        logs = {name: size for name, size in self._expected.items() if name.endswith(names.LOG_SUFFIXES)}
        row = PartitionRow(
            self._partition, "converted", segments=len(logs), records=proof.records,
            bytes_in=sums.bytes_in, bytes_out=sum(logs.values()), seconds=round(sums.seconds, 3), digest=proof.sha256,
            skipped=sums.skipped, retried=sums.retried,
            losses=None if self._survey is None else self._survey.losses, warnings=self._warnings(),
        )
        outcome = Outcome(self._shard.identity, self._workplace.options.digest, logs, sums.end_offset, asdict(row))
        self._store.write(self._workplace.within("outcome", self._partition), outcome.to_bytes())
        return row

    def _add_segments(self) -> list[SegmentProof]:
        """Add up the markers in offset order. Raises CorruptCheckpointError."""
        sums, proofs = self._sums, []
        expected_offset, recipe = 0, self._workplace.recipe(self._survey)
        for segment in self._shard.segments:
            marker = self._workplace.marker(self._partition, segment, recipe)
            if marker is None or not marker.is_proven:
                raise CorruptCheckpointError(
                    "the segment has no marker of this conversion" if marker is None else "the segment is not proven",
                    file=f"{self._partition}/{segment.file}", hint="run again: it repeats only what is missing",
                )
            converted = marker.segment
            if converted.base_offset < expected_offset or converted.next_offset > segment.end_offset:
                raise CorruptCheckpointError(
                    f"the segment has offsets {converted.base_offset} to {converted.next_offset}; expected offsets from"
                    f" {expected_offset} to {segment.end_offset}", file=f"{self._partition}/{segment.file}",
                )
            expected_offset = converted.next_offset
            self._fold.add(converted)
            proofs.append(converted.proof)
            self._expected.update(marker.files)
            is_new = marker.run == self._workplace.run
            sums.larger_batches += converted.larger_batches
            sums.bytes_in += converted.size_bytes
            sums.skipped += not is_new
            sums.retried += is_new and marker.attempt > 0
            sums.seconds += marker.seconds if is_new else 0
        self._fold.finish(expected_offset)
        survey = self._survey
        sums.end_offset = expected_offset if survey is None else survey.end_offset
        return proofs

    def _warnings(self) -> tuple[str, ...]:
        limit = self._workplace.options.log_config.max_message_bytes
        larger = self._sums.larger_batches
        return (*((larger_batches_warning(larger, limit),) if larger else ()), *self._fold.notes)

    def _copy_metadata(self) -> None:
        """Copy the topic id, and the positions of cursors: offsets do not change."""
        there = self._workplace.source_store.files(self._workplace.source_of(self._partition))
        for name in (names.PARTITION_METADATA, *(file.name for file in there if is_cursor_file(file.name))):
            raw = self._read_source(name)
            if raw is not None:
                self._write(name, raw)

    def _proof(self, segments: list[SegmentProof]) -> Proof:
        options, survey = self._workplace.options, self._survey
        return Proof(
            source=self._workplace.source_of(self._partition),
            target=f"{self._workplace.target}/{self._partition}",
            seglog=__version__,
            to=options.to,
            repack_bytes=options.repack_bytes,
            codec=options.codec,
            left_out=() if survey is None else survey.losses.left_out(options.profile),
            segments=tuple(segments),
            made_from=self._made_from,
        )

    def _clear(self) -> None:
        """Remove everything but the result from `staged`: a segment that changed may have left an extra part."""
        there = {file.name: file.size_bytes for file in self._store.files(self._staged)}
        too_many = there.keys() - self._expected.keys()
        for name in too_many:
            self._store.remove_file(f"{self._staged}/{name}")
        if too_many:
            self._store.sync(self._staged)
        for name, size_bytes in self._expected.items():
            if there.get(name) != size_bytes:
                raise CorruptCheckpointError(
                    f"found {there.get(name, 'no')} bytes; {size_bytes} were written", file=f"{self._staged}/{name}",
                    hint="run again: it repeats only what is missing",
                )

    def _read_source(self, name: str) -> bytes | None:
        return self._workplace.source_store.read(self._workplace.source_of(self._partition, name))

    def _write(self, name: str, data: bytes) -> None:
        with self._fs.create(self._attempt / name) as file:
            file.append(data)
            file.sync()
        self._written.append(name)
        self._expected[name] = len(data)


@dataclass(slots=True)
class _Sums:
    """Totals over the markers of a partition."""

    end_offset: int = 0
    bytes_in: int = 0
    larger_batches: int = 0
    skipped: int = 0
    retried: int = 0
    seconds: float = 0.0


def _check_source(workplace: Workplace, shard: Shard) -> None:
    """Check that the source still has exactly the segments of the plan. Raises InvalidArgumentError."""
    path = workplace.source_of(shard.partition)
    now = {file.name: (file.size_bytes, file.stamp) for file in workplace.source_store.files(path)}
    for segment in shard.segments:
        if now.get(segment.file) != (segment.size_bytes, segment.stamp):
            raise changed(f"{path}/{segment.file}")


def assemble_all(workplace: Workplace, partitions: list[str]) -> list[dict[str, Any]]:
    """Assemble these partitions. Returns their rows as dictionaries; for a failure, a row with the reason."""
    alone = Lock()

    def row_of(partition: str) -> dict[str, Any]:
        try:
            plan = workplace.store.file(workplace.within("plan", partition))
            with alone if plan is not None and plan.size_bytes > LONG_PLAN_BYTES else nullcontext():
                row = assemble(workplace, partition)
        except (SeglogError, OSError) as error:
            row = PartitionRow.of_error(partition, of_the_partition(workplace, error), 0.0)
        return asdict(row)

    return list(side_by_side(row_of, partitions, AT_A_TIME))
