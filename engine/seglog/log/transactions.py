"""A log as the coordinator of its transactions: it gives epochs out, ends transactions, and aborts those left open.

    producer(id) ── a new epoch, which fences all earlier ones; a transaction that one of them left open is aborted
    append       ── a transactional batch with the next sequence, appended like any encoded batch (log.append); written
                    when it returns, durable with the marker
    end          ── a marker, as Kafka's coordinator writes it (docs/formats/control_records.md)

The state of a producer is what the log says about it (state.producer_state), so that later calls see the effect of an
interrupt, a recovery or a truncation. Only epochs that have written nothing yet are known here alone: `LogTail.fences`.
"""
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seglog.errors import (
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    SeglogError,
    StorageError,
)
from seglog.format.batch import build_batch, end_marker
from seglog.log.append import LogAppender, PendingAppend
from seglog.log.tail import LogTail
from seglog.log.transaction_watch import WATCH
from seglog.logger import Logger
from seglog.reading.arguments import hint_of_records
from seglog.state.producer_snapshot import ProducerEntry
from seglog.state.producer_state import Origin

if TYPE_CHECKING:
    from seglog._kernels.batch_encode import Record

_LOG = Logger(__name__)

_EPOCH_MAX = 2**15 - 1


class CoordinatorFencedError(InvalidTxnStateError):
    """A coordinator of a later epoch has written the producer's last marker."""


class LogTransactions:
    """The transactions of a `Log`: `Log.producer`, `Log.end_transaction`, and what a `Producer` needs."""

    def __init__(self, tail: LogTail, appender: LogAppender) -> None:
        self._tail = tail
        self._appender = appender
        # When each was opened, by (producer id, first offset). Guarded by the lock.
        now_ms = tail.now_ms()
        self._since_ms = {
            (entry.producer_id, entry.current_txn_first_offset): min(max(entry.timestamp, 0), now_ms)
            for entry in tail.producers.open_transactions()
        }
        self._opened_at = tail.next_offset
        # The number of the last append that is the marker of an overdue transaction. Written with the lock.
        self._aborted_number = 0
        tail.on_transaction = self._watch
        if self._since_ms:
            WATCH.add(self)

    def _watch(self, begun: list[tuple[int, int]]) -> None:
        now_ms = self._tail.now_ms()
        self._since_ms.update((key, now_ms) for key in begun)
        WATCH.add(self)

    # --- what a Producer calls -------------------------------------------------------------------

    def begin_epoch(self, producer_id: int) -> int:
        """The epoch of a new producer with this id; earlier ones are fenced, and their transaction is aborted."""
        if not isinstance(producer_id, int) or isinstance(producer_id, bool) or not 0 <= producer_id < 2**63:
            raise InvalidArgumentError(f"a producer id must be an int from 0 to 2**63 - 1, not {producer_id!r}")
        tail = self._tail
        epoch, number = tail.change(self._begin_epoch, producer_id)
        tail.acknowledge(number)
        return epoch

    def append(
        self, producer_id: int, epoch: int, records: "Sequence[Record]", first_offset: int | None
    ) -> tuple[int, int]:
        """Append records to the transaction that began at `first_offset`, or begin one if it is None. Returns their
        first and last offset."""
        tail = self._tail
        now_ms = tail.now_ms()
        sequence = tail.change(self._next_sequence, producer_id, epoch, first_offset)
        try:
            made = tail.encoder.of_producer(records, now_ms, producer_id, epoch, sequence)
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint=hint_of_records(records)) from None
        try:
            # The marker's sync covers it: until then, readers of committed data do not see it.
            written = self._appender.append_batch(made, True, None, False)
        except InvalidProducerEpochError as error:
            raise _fenced(error) from error
        assert isinstance(written, PendingAppend)
        result = written.result
        if result.is_duplicate:
            raise OutOfOrderSequenceError(
                f"sequence {sequence} of producer {producer_id}, epoch {epoch}, was already written with append_batch",
                hint="use a producer id with log.producer or with append_batch, not with both",
            )
        return result.first_offset, result.last_offset

    def end_own(self, producer_id: int, epoch: int, commit: bool, first_offset: int | None) -> int | None:
        """End the transaction of a Producer, which began at `first_offset` if that is known. Returns the offset of the
        marker, or None if no transaction is open; nothing is written then."""
        tail = self._tail
        offset, number = tail.change(self._end_own, producer_id, epoch, commit, first_offset)
        tail.acknowledge(number)
        return offset

    def end(
        self, producer_id: int, epoch: int, commit: bool, must_be_open: bool, wait: bool
    ) -> int | PendingAppend[int]:
        """Write the marker that ends a transaction of encoded batches. Returns its offset."""
        tail = self._tail
        marker, number = tail.change(self._end_own, producer_id, epoch, commit, None, must_be_open)
        if marker is None:
            raise InvalidTxnStateError(
                f"producer {producer_id} has no transaction open", file=self._tail.path,
                hint="it was ended before, or none of its batches was transactional",
            )
        tail.acknowledge(number, wait)
        return marker if wait else PendingAppend(marker, number)

    def mark(
        self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, must_be_newer: bool
    ) -> PendingAppend[int]:
        """Write a marker as somebody else's coordinator says, whether a transaction is open or not. `must_be_newer`:
        than the epoch of an open transaction, as the markers of transaction.version 2 are."""
        offset, number = self._tail.change(self._mark, producer_id, epoch, commit, coordinator_epoch, must_be_newer)
        return PendingAppend(offset, number)

    # --- by itself -------------------------------------------------------------------------------

    def abort_overdue(self) -> int | None:
        """Abort transactions that are open for transaction.max.timeout.ms. See `Watched`."""
        tail = self._tail
        left_ms = None if tail.producers.first_undecided_offset is None else tail.change(self._abort_overdue)
        # Also of a marker that another thread has written, and that readers do not see before its sync.
        if self._aborted_number:
            tail.acknowledge(self._aborted_number)
        return left_ms

    # --- with the lock ---------------------------------------------------------------------------

    def _begin_epoch(self, producer_id: int) -> tuple[int, int]:
        tail = self._tail
        tail.write_lingering()
        entry = tail.producers.entry(producer_id)
        epoch = 1 + max(tail.fences.get(producer_id, -1), -1 if entry is None else entry.producer_epoch)
        if epoch > _EPOCH_MAX:
            raise InvalidProducerEpochError(
                f"producer {producer_id} has used the last epoch, {_EPOCH_MAX}", file=tail.path,
                hint="use another producer id",
            )
        if entry is not None and entry.current_txn_first_offset >= 0:
            self._write_marker(producer_id, _coordinator_epoch(entry), epoch, commit=False)
        tail.fences[producer_id] = epoch
        return epoch, tail.number

    def _next_sequence(self, producer_id: int, epoch: int, first_offset: int | None) -> int:
        entry = self._checked(producer_id, epoch, first_offset)
        if entry is None or entry.producer_epoch != epoch:
            return 0
        return (entry.last_sequence + 1) % (1 << 31)

    def _end_own(
        self, producer_id: int, epoch: int, commit: bool, first_offset: int | None, must_be_open: bool = True
    ) -> tuple[int | None, int]:
        tail = self._tail
        tail.write_lingering()
        entry = self._checked(producer_id, epoch, first_offset)
        if must_be_open and (entry is None or entry.current_txn_first_offset < 0):
            return None, tail.number
        return self._write_marker(producer_id, _coordinator_epoch(entry), epoch, commit=commit), tail.number

    def _mark(
        self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, must_be_newer: bool
    ) -> tuple[int, int]:
        tail = self._tail
        tail.write_lingering()
        entry = self._checked(producer_id, epoch, None)
        if entry is not None:
            if must_be_newer and epoch == entry.producer_epoch and entry.current_txn_first_offset >= 0:
                raise InvalidProducerEpochError(
                    f"the marker for producer {producer_id} has the epoch of its open transaction, {epoch}; the next "
                    "one ends it", file=tail.path, offset=tail.next_offset)
            if coordinator_epoch < entry.coordinator_epoch:
                raise CoordinatorFencedError(
                    f"the marker for producer {producer_id} has coordinator epoch {coordinator_epoch}, below the last "
                    f"one, {entry.coordinator_epoch}", file=tail.path, offset=tail.next_offset)
        return self._write_marker(producer_id, coordinator_epoch, epoch, commit=commit), tail.number

    def _checked(self, producer_id: int, epoch: int, first_offset: int | None) -> ProducerEntry | None:
        """The log's entry of the producer, after checking that the epoch is its last one and the transaction is still
        the same."""
        producers = self._tail.producers
        try:
            producers.check_epoch(producer_id, epoch, self._tail.next_offset)
        except InvalidProducerEpochError as error:
            raise _fenced(error) from error
        entry = producers.entry(producer_id)
        if first_offset is not None and (entry is None or entry.current_txn_first_offset != first_offset):
            raise InvalidTxnStateError(
                f"the transaction of producer {producer_id} that started at offset {first_offset} was ended by "
                "another caller, or removed by truncate_to", file=self._tail.path, offset=first_offset,
                hint="abort it and start again: its records are not committed",
            )
        return entry

    def _write_marker(self, producer_id: int, coordinator_epoch: int, epoch: int, *, commit: bool) -> int:
        """Write a marker. Returns its offset."""
        tail, now_ms = self._tail, self._tail.now_ms()
        marker = build_batch(
            [end_marker(commit, coordinator_epoch)], control=True, transactional=True,
            producer_id=producer_id, producer_epoch=epoch, timestamp=now_ms,
        )
        assigned = tail.encoder.assigned(
            marker, tail.next_offset, now_ms=now_ms, leader_epoch=tail.leader_epoch,
            allow_control=True,
        )
        update = tail.producers.prepare(assigned.table, Origin.COORDINATOR)
        assert not isinstance(update, tuple)
        tail.write_locked(assigned, now_ms, Origin.COORDINATOR, update)
        return assigned.first_offset

    def _abort_overdue(self) -> int | None:
        """Returns the ms until the next look, or None if no transaction is open."""
        tail = self._tail
        now_ms, timeout_ms = tail.now_ms(), tail.config.transaction_max_timeout_ms
        still_open: dict[tuple[int, int], int] = {}
        left_ms = None
        for entry in tail.producers.open_transactions():
            key = entry.producer_id, entry.current_txn_first_offset
            since_ms = self._since_ms.get(key, now_ms)
            left = since_ms + timeout_ms - now_ms
            if left <= 0 and self._is_led and self._abort(entry, now_ms - since_ms):
                self._aborted_number = tail.number
                continue
            still_open[key] = since_ms
            left_ms = left if left_ms is None else min(left, left_ms)
        self._since_ms = still_open
        return left_ms if left_ms is None or left_ms > 0 else timeout_ms

    def _abort(self, entry: ProducerEntry, age_ms: int) -> bool:
        """Abort with the next epoch, as Kafka's coordinator does: the producer is fenced. Returns whether it could."""
        self._tail.write_lingering()
        try:
            self._write_marker(
                entry.producer_id, _coordinator_epoch(entry), min(entry.producer_epoch + 1, _EPOCH_MAX), commit=False)
        except StorageError:
            raise
        except SeglogError as error:        # a format without markers, since `configure`
            _LOG.warning("%s: the transaction of producer %d cannot be aborted: %s",
                         self._tail.path, entry.producer_id, error)
            return False
        _LOG.warning(
            "%s: aborted the transaction of producer %d at offset %d, open for %d ms: transaction.max.timeout.ms = %d",
            self._tail.path, entry.producer_id, entry.current_txn_first_offset, age_ms,
            self._tail.config.transaction_max_timeout_ms,
        )
        return True

    @property
    def _is_led(self) -> bool:
        """Whether offsets are assigned here. A mirror has its source's: a marker of seglog's would take one of them."""
        return not self._tail.follows and self._tail.next_offset != self._opened_at


def _coordinator_epoch(entry: ProducerEntry | None) -> int:
    """That of our own markers: of the producer's last one."""
    return 0 if entry is None else max(entry.coordinator_epoch, 0)


def _fenced(error: InvalidProducerEpochError) -> ProducerFencedError:
    return ProducerFencedError(error.what, file=error.file, offset=error.offset)
