"""What each of two copies of a partition has that the other has not: records by offset, in whatever batches.

Two replicas of a topic have the same records at the same offsets, up to where the shorter one ends. They may differ in
batch boundaries, codecs and indexes, after a conversion or a compaction, and where each begins, after retention.

Damage does not end a comparison: its bytes are compared, and the walk goes on behind it. Records that only the other
copy has there are a difference.
"""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from seglog._kernels.record_batch import Record, RecordBatch
from seglog.errors import CorruptRecordError
from seglog.fs.mapping import Mapping
from seglog.named_tuple import NamedTuple
from seglog.reading.damage import lost_batch
from seglog.reading.reader import LogReader
from seglog.segment.batches import UNREADABLE, checked_records
from seglog.segment.positions import LostRange

Kind = Literal["different", "only in A", "only in B"]


@dataclass(slots=True)
class DifferingRange:
    """Offsets that follow each other with the same kind of difference; between them may be offsets that neither has."""

    kind: Kind
    first_offset: int
    last_offset: int
    records: int


@dataclass(slots=True)
class Difference:
    """The result of a comparison.

    `ranges`: the first RANGES_MAX of them; `records`: how many records of each kind, in all ranges. `epoch_offset`: the
    first offset that A and B have in different leader epochs, or None; `epochs`: the two epochs. There a replica that
    follows the other is cut (ReplicaFetcherThread): `cut_records` A and B would lose.
    `compared`: records that are equal. `same_bytes`: of those, in batches that are the same byte for byte.
    `damaged`: the ranges of A and of B that cannot be read. `same_damage`: both have them at the same offsets, byte for
    byte.
    """

    starts: tuple[int, int]
    ends: tuple[int, int]
    ranges: list[DifferingRange]
    records: dict[Kind, int]
    compared: int = 0
    same_bytes: int = 0
    epoch_offset: int | None = None
    epochs: tuple[int, int] | None = None
    cut_records: tuple[int, int] = (0, 0)
    damaged: tuple[list[LostRange], list[LostRange]] = field(default_factory=lambda: ([], []))
    same_damage: bool = False

    @property
    def is_same(self) -> bool:
        """Whether all records that both can be read for are the same."""
        return not any(self.records.values())

    @property
    def is_damaged(self) -> bool:
        """Whether a part of A or B cannot be read."""
        return any(self.damaged)

    @property
    def first_offset(self) -> int | None:
        """The first offset at which they differ."""
        return self.ranges[0].first_offset if self.ranges else None


RANGES_MAX = 100
_PIECE_BYTES = 1 << 20


class _Placed(NamedTuple):
    """A record with what its batch says of it."""

    record: Record
    batch: RecordBatch

    def says(self) -> tuple[object, ...]:
        """Everything but its place. A timestamp of -1 and none are the same: v0 has none."""
        record, batch = self.record, self.batch
        return (
            record.timestamp, record.key, record.value, record.headers, batch.is_control,
            batch.is_transactional and (batch.producer_id, batch.producer_epoch),
        )


def compare(a: LogReader, b: LogReader) -> Difference:
    """Compare the records of two logs, from each one's log start on. Raises StorageError."""
    found = Difference(
        (a.log_start_offset, b.log_start_offset), (_end_of(a), _end_of(b)), [],
        {"different": 0, "only in A": 0, "only in B": 0},
    )
    ours, theirs = _Walk(a), _Walk(b)
    while True:
        if _pass_same_batch(ours, theirs, found):
            continue
        left, right = ours.peek(), theirs.peek()
        if _pass_same_batch(ours, theirs, found):
            continue        # one of the two came to its next batch only now
        if left is None and right is None:
            found.damaged[0].extend(ours.lost())
            found.damaged[1].extend(theirs.lost())
            found.same_damage = found.is_damaged and _have_same_bytes(*found.damaged)
            return found
        if right is None or (left is not None and left.record.offset < right.record.offset):
            assert left is not None
            _add(found, "only in A", left.record.offset)
            _count_cut(found, 1, 0)
            ours.step()
        elif left is None or right.record.offset < left.record.offset:
            _add(found, "only in B", right.record.offset)
            _count_cut(found, 0, 1)
            theirs.step()
        else:
            _see_epochs(found, left.batch, right.batch, left.record.offset)
            _count_cut(found, 1, 1)
            if left.says() == right.says():
                found.compared += 1
            else:
                _add(found, "different", left.record.offset)
            ours.step()
            theirs.step()


def _end_of(log: LogReader) -> int:
    try:
        return log.log_end_offset
    except CorruptRecordError:      # damage hides where the last segment ends
        return max((batch.last_offset + 1 for batch in log.batches(on_corrupt="skip")), default=log.log_start_offset)


def _have_same_bytes(a: Sequence[LostRange], b: Sequence[LostRange]) -> bool:
    """Whether damage of A is damage of B: at the same offsets, with the same bytes."""
    return len(a) == len(b) and all(
        (left.first_offset, left.last_offset, left.size_bytes) == (right.first_offset, right.last_offset,
                                                                   right.size_bytes)
        and _bytes_are_same(left, right) for left, right in zip(a, b, strict=True)
    )


def _bytes_are_same(left: LostRange, right: LostRange) -> bool:
    if not left.size_bytes:
        return True         # a segment that is missing in both
    with Mapping(left.file) as ours, Mapping(right.file) as theirs:
        mine, other = memoryview(ours)[left.position :], memoryview(theirs)[right.position :]
        return all(
            bytes(mine[at : min(at + _PIECE_BYTES, left.size_bytes)])
            == bytes(other[at : min(at + _PIECE_BYTES, left.size_bytes)])
            for at in range(0, left.size_bytes, _PIECE_BYTES)
        )


def _pass_same_batch(ours: "_Walk", theirs: "_Walk", found: Difference) -> bool:
    """Pass over a batch that both have byte for byte: no record of it needs decoding."""
    left, right = ours.whole(), theirs.whole()
    if left is None or right is None or left.magic != 2 or left.count < 0 or left.raw() != right.raw():
        return False
    _see_epochs(found, left, right, left.base_offset)
    found.compared += left.count
    found.same_bytes += left.count
    _count_cut(found, left.count, left.count)
    ours.drop()
    theirs.drop()
    return True


def _see_epochs(found: Difference, left: RecordBatch, right: RecordBatch, offset: int) -> None:
    epochs = left.leader_epoch, right.leader_epoch
    if found.epoch_offset is None and epochs[0] != epochs[1] and min(epochs) >= 0:
        found.epoch_offset, found.epochs = offset, epochs


def _count_cut(found: Difference, of_a: int, of_b: int) -> None:
    if found.epoch_offset is not None:
        found.cut_records = found.cut_records[0] + of_a, found.cut_records[1] + of_b


def _add(found: Difference, kind: Kind, offset: int) -> None:
    found.records[kind] += 1
    last = found.ranges[-1] if found.ranges else None
    # Whatever equal records come between: a range ends there, since its kind is of every record in it.
    if last is not None and last.kind == kind and offset == last.last_offset + 1:
        last.last_offset, last.records = offset, last.records + 1
    elif len(found.ranges) < RANGES_MAX:
        found.ranges.append(DifferingRange(kind, offset, offset, 1))


class _Walk:
    """The records of a log, one by one, or a batch at a time."""

    def __init__(self, log: LogReader) -> None:
        self._start = log.log_start_offset
        self._log = log
        self._read = log.batches(on_corrupt="skip")
        self._batches: Iterator[RecordBatch] = iter(self._read)
        self._unreadable: list[LostRange] = []
        self._batch: RecordBatch | None = None
        self._records: Iterator[Record] | None = None
        self._next: _Placed | None = None
        self._is_begun = False

    def whole(self) -> RecordBatch | None:
        """The next batch, if none of its records was taken and all of it is in the log."""
        self._fill()
        batch = self._batch
        return batch if not self._is_begun and batch is not None and batch.base_offset >= self._start else None

    def drop(self) -> None:
        """Pass over the batch that `whole` gave."""
        self._batch = self._records = self._next = None

    def peek(self) -> _Placed | None:
        """The next record; None at the end."""
        while self._next is None:
            self._fill()
            if self._batch is None:
                return None
            if self._records is None:
                try:
                    self._records = iter(checked_records(self._batch))
                except UNREADABLE as e:
                    batch = self._batch
                    segment = next(iter(self._log._current().segments_from(batch.last_offset)))
                    self._unreadable.append(lost_batch(segment, batch, e))
                    self._batch = None
                    continue
            record = next(self._records, None)
            if record is None:
                self._batch = self._records = None
            elif record.offset >= self._start:
                self._next = _Placed(record, self._batch)
        return self._next

    def lost(self) -> list[LostRange]:
        """What could not be read, in order; complete at the end. (A batch whose records cannot be decoded is not equal
        to any: those that are the same byte for byte were passed over.)"""
        return sorted([*self._read.lost, *self._unreadable], key=lambda lost: lost.first_offset)

    def step(self) -> None:
        self._next = None
        self._is_begun = True

    def _fill(self) -> None:
        if self._batch is None:
            self._batch = next(self._batches, None)
            self._records = None
            self._is_begun = False
