"""Checks a .txnindex against its log before a reader of committed records believes it.

A .txnindex has no checksum: with one changed byte, records of an aborted transaction look committed, or committed ones
aborted. The log says the same under checksums. So the headers of a segment that has such a file are walked once, and
where the file says something else, the log is believed. Later, only what was appended since is walked.
"""
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from seglog._kernels.batch_survey import first_transactional
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptIndexError, CorruptSnapshotError, UnsupportedVersionError
from seglog.segment.aborted_transactions import HasTransactions, IndexedAborts
from seglog.segment.batches import UNREADABLE
from seglog.segment.transaction_index import AbortedTransaction, TransactionIndex, encode
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_state import read_marker


class WalkableSegment(HasTransactions, Protocol):
    """A segment whose batches can be walked."""

    _checked_transactions: object | None     # what was found out about it, for the next reader

    @property
    def base_offset(self) -> int: ...

    @property
    def producer_snapshot(self) -> bytes | None: ...

    def tables(self, position: int = 0, *, check_crc: bool = True) -> Iterator[BatchTable]: ...


def checked_aborts(segments: Iterable[WalkableSegment], stop: int) -> IndexedAborts:
    """As IndexedAborts, by indexes that agree with the log. Raises what reading the segments raises.

    CorruptIndexError or UnsupportedVersionError is only raised for an index that cannot be read beside a log that
    cannot be read.
    """
    return IndexedAborts(_checked(segments), stop)


def agrees_with_log(segment: WalkableSegment) -> bool:
    """Whether the segment's index, which can be read, leaves out what its log says. Raises StorageError.

    Without a snapshot at its start, what began in an earlier segment is not checked.
    """
    return _believed(segment, []) is segment.transaction_index


def aborts_of_log(segment: WalkableSegment, before: Iterable[WalkableSegment]) -> TransactionIndex:
    """The transactions that are aborted in a segment, as its batches say. `before`: the segments before it.

    Raises CorruptRecordError, StorageError.
    """
    found = _begun(segment, list(before)).believed(segment, None)
    assert found is not None        # nothing was walked before
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction that a marker ended, as the batches show it. `first_offset`: None if it has no batch.

    `floor`: its first batch was after this offset. Compaction may have removed it.
    """

    is_aborted: bool
    producer_id: int
    first_offset: int | None
    marker_offset: int
    stable_offset: int
    floor: int

    @property
    def first_batch_offset(self) -> int:
        """Where it begins; at its marker if it has no batch."""
        return self.marker_offset if self.first_offset is None else self.first_offset

    def is_entry(self, listed: AbortedTransaction) -> bool:
        """Whether an entry of a .txnindex may be that of this transaction.

        Compaction keeps the entry of a transaction whose first batches, or all, it removed; what was open beside it may
        be gone, too.
        """
        return (
            self.is_aborted and listed.producer_id == self.producer_id and listed.last_offset == self.marker_offset
            and self.floor < listed.first_offset <= self.first_batch_offset
            and 0 <= listed.last_stable_offset <= self.stable_offset
        )


class TransactionWalk:
    """The transactions of a log, from its batches in order."""

    def __init__(self, begun: Iterable[tuple[int, int]] = (), floor: int = -1) -> None:
        """`begun`: producer and first offset of the transactions that are open, in the order of their offsets. Any
        other begins after `floor`."""
        self.first_offsets = dict(begun)    # of the open transactions, by producer, the oldest first
        self._floors = {producer_id: first - 1 for producer_id, first in self.first_offsets.items()}
        self._floor = floor

    def copy(self) -> Self:
        """Return a walk that goes on from here by itself."""
        copy = type(self)(self.first_offsets.items(), self._floor)
        copy._floors = dict(self._floors)
        return copy

    def see(self, batch: RecordBatch) -> Ended | None:
        """Take the next transactional batch. Returns the transaction that it ends.

        Raises what reading a record raises, for a control batch; CorruptRecordError without a readable marker.
        """
        producer_id = batch.producer_id
        if not batch.is_control:
            self.first_offsets.setdefault(producer_id, batch.base_offset)
            return None
        first, offset = self.first_offsets.pop(producer_id, None), batch.last_offset
        floor = self._floors.get(producer_id, self._floor)
        self._floors[producer_id] = offset
        marker = read_marker(batch)
        if marker is None:      # compaction emptied it
            return None
        stable = next(iter(self.first_offsets.values()), offset + 1)
        return Ended(marker.is_abort, producer_id, first, offset, stable, floor)


class _CheckedTransactions:
    """What the batches of a segment abort, as far as they have been walked."""

    def __init__(self, walk: TransactionWalk, begun_at: int) -> None:
        """`begun_at`: where the walk of the log began that led here; -1 if it knows all that came before."""
        self.begun_at = begun_at
        self._walk = walk
        self._aborted: list[AbortedTransaction] = []
        self._markers: dict[int, Ended] = {}                # all aborted ones, even without a batch, by their markers
        self._last: tuple[int, int, int] | None = None      # position, checksum and last offset of the last batch
        self._verdict: tuple[TransactionIndex, int, TransactionIndex] | None = None
        self._is_broken = False     # a part of a table may have been seen
        self._lock = threading.Lock()       # one thread goes on at a time

    def known(self, listed: TransactionIndex) -> TransactionIndex | None:
        """What `believed` returned for this index as it is now; None if it has to be asked."""
        verdict = self._verdict
        return verdict[2] if verdict is not None and verdict[:2] == (listed, len(listed)) else None

    def believe(self, listed: TransactionIndex) -> None:
        """The log is damaged: nothing contradicts the index."""
        self._verdict, self._is_broken = (listed, len(listed), listed), True

    def believed(self, segment: WalkableSegment, listed: TransactionIndex | None) -> TransactionIndex | None:
        """Return `listed` if it is what the log says, otherwise what the log says; None if the segment is not the one
        that was walked. Raises CorruptRecordError, and StorageError if the log cannot be read."""
        with self._lock:
            count = 0 if listed is None else len(listed)
            if not self._go_on(segment):
                return None
            verdict = listed if listed is not None and self._agrees(listed) else TransactionIndex(encode(self._aborted))
            if listed is not None:
                self._verdict = listed, count, verdict
            return verdict

    def at_end(self, segment: WalkableSegment) -> TransactionWalk | None:
        """The open transactions at the end of the segment; None as for `believed`."""
        with self._lock:
            return self._walk.copy() if self._go_on(segment) else None

    def _agrees(self, listed: TransactionIndex) -> bool:
        """Whether the index leaves out the same batches as the log says."""
        with_batches = 0
        for entry in listed:
            ended = self._markers.get(entry.last_offset)
            if ended is None or not ended.is_entry(entry):
                return False
            with_batches += ended.first_offset is not None
        return with_batches == len(self._aborted)

    def _go_on(self, segment: WalkableSegment) -> bool:
        """Walk the batches that have not been walked yet."""
        if self._is_broken:
            return False
        self._is_broken = True      # unless this succeeds
        last = self._last
        is_known = last is None
        for table in segment.tables(last[0] if last is not None else 0, check_crc=False):
            if not len(table):
                continue
            slot = 0
            if not is_known:
                if _mark_of(table[0]) != last:
                    return False
                is_known, slot = True, 1
            slot = first_transactional(table, slot)
            while slot >= 0:
                self._see(table[slot])
                slot = first_transactional(table, slot + 1)
            last = _mark_of(table[-1])
        self._last, self._is_broken = last, not is_known
        return is_known

    def _see(self, batch: RecordBatch) -> None:
        ended = self._walk.see(batch)
        if ended is None or not ended.is_aborted:
            return
        self._markers[ended.marker_offset] = ended
        if ended.first_offset is not None:
            self._aborted.append(AbortedTransaction(
                ended.producer_id, ended.first_offset, ended.marker_offset, ended.stable_offset
            ))


def _mark_of(batch: RecordBatch) -> tuple[int, int, int]:
    return batch.position, batch.crc, batch.last_offset


class _Believed:
    """A segment's index that was checked."""

    def __init__(self, index: TransactionIndex | None) -> None:
        self._index = index

    @property
    def transaction_index(self) -> TransactionIndex | None:
        return self._index


def _checked(segments: Iterable[WalkableSegment]) -> Iterator[_Believed]:
    before: list[WalkableSegment] = []
    for segment in segments:
        yield _Believed(_believed(segment, before))
        before.append(segment)


def _believed(segment: WalkableSegment, before: list[WalkableSegment]) -> TransactionIndex | None:
    index, refusal = None, None
    try:
        index = segment.transaction_index
    except (CorruptIndexError, UnsupportedVersionError) as error:
        refusal = error
    if refusal is None and not index:
        return index
    begin = before[0].base_offset if before else segment.base_offset
    checked = _of(segment, begin)
    if checked is not None and index is not None:
        known = checked.known(index)
        if known is not None:
            return known
    try:
        believed = None if checked is None else checked.believed(segment, index)
        if believed is None:
            segment._checked_transactions = checked = _begun(segment, before)
            believed = checked.believed(segment, index)
        return believed
    except UNREADABLE:
        if refusal is not None:
            raise refusal from None
        assert index is not None
        segment._checked_transactions = checked = _CheckedTransactions(TransactionWalk(), -1)
        checked.believe(index)      # the read itself tells of the damage, or skips it
        return index


def _of(segment: WalkableSegment, begin: int) -> _CheckedTransactions | None:
    """What is known of a segment to a reader that begins at `begin`."""
    checked = segment._checked_transactions
    if not isinstance(checked, _CheckedTransactions) or checked.begun_at > begin:
        return None
    return checked


def _begun(segment: WalkableSegment, before: list[WalkableSegment]) -> _CheckedTransactions:
    """Begin with the transactions that are open before the segment: by its snapshot, else by the segments that the
    reader reads before it, whose data is all that matters to it."""
    path = [segment]
    walk = _walk_at(segment)
    for earlier in reversed(before):
        if walk is not None:
            break
        path.append(earlier)
        walk = _walk_at(earlier)
    begun_at = -1 if walk is not None else path[-1].base_offset
    walk = walk or TransactionWalk()
    while len(path) > 1:
        earlier = path.pop()
        earlier._checked_transactions = checked = _CheckedTransactions(walk, begun_at)
        walk = checked.at_end(earlier) or TransactionWalk()
    return _CheckedTransactions(walk, begun_at)


def _walk_at(segment: WalkableSegment) -> TransactionWalk | None:
    """The transactions that are open before the segment, by its snapshot; None if it has none that can be read."""
    if segment.base_offset == 0:
        return TransactionWalk()
    raw = segment.producer_snapshot
    if raw is None:
        return None
    try:
        producers = ProducerSnapshot.parse(raw).producers
    except (CorruptSnapshotError, UnsupportedVersionError):
        return None
    begun = ((p.current_txn_first_offset, p.producer_id) for p in producers if p.current_txn_first_offset >= 0)
    return TransactionWalk(((producer_id, first) for first, producer_id in sorted(begun)), segment.base_offset - 1)
