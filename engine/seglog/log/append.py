"""Appending to a log: records, columns or encoded batches, and the checks before they are written.

    encode, or check, the batch ── write ── share a sync (fsync="batch")
                                     ├── quiet: LogTail.write, one call of a kernel (_kernels.quiet_tail)
                                     └── else, with the lock: LogAppender._write ── LogTail.write_locked

A refused append changes nothing. A batch that was made or checked outside the lock is made or checked again if the
configuration changed meanwhile (log.configuring).
"""
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptRecordError, InvalidArgumentError, RecordTooLargeError
from seglog.format.batch import BatchEncoder
from seglog.format.batch_layout import CONTROL_BIT, LOW_ATTRIBUTES_POS, MAGIC_POS
from seglog.format.old_format import MessageEncoder
from seglog.format.validate import Assigned
from seglog.late_import import late
from seglog.log.tail import LogTail
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import check_leader_epoch, hint_of_record, hint_of_records
from seglog.reading.format_counters import FormatCounters
from seglog.reading.times import to_timestamp_ms
from seglog.state.producer_state import Duplicate, Origin
from seglog.threads.maintenance import MaintenanceThread

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.reading.times import Time


class AppendResult(NamedTuple):
    """The offsets that an encoded batch got; for a duplicate (`is_duplicate`), the offsets that it already had.

    first_offset, last_offset       both included
    """

    first_offset: int
    last_offset: int
    is_duplicate: bool = False


class CheckedBatch(NamedTuple):
    """An encoded batch that was checked and not yet appended: what `Log.check_batch` returns."""

    given: bytes | memoryview | BatchTable
    keeps_offsets: bool             # as a replica's
    leader_epoch: int | None        # the epoch that it begins, or None for the log's
    now_ms: int
    place: tuple[int, int]          # the offset and the leader epoch that it has
    encoder: BatchEncoder
    assigned: Assigned
    origin: Origin


Result = TypeVar("Result", int, AppendResult)


class PendingAppend(NamedTuple, Generic[Result]):
    """What an append with wait=False returns: `result`, which it returns otherwise, and the append's `number` since the
    log was opened.

    Pass it to `Log.when_durable`.
    """

    result: Result
    number: int


# What an append with wait=None returns if it would have to wait: nothing was done.
NOT_AT_ONCE: PendingAppend[int] = PendingAppend(-1, -1)


class LogAppender:
    """The appends of a `Log`; its methods of the same names document them.

    `wait=None`, for log.at_once: as False if there is nothing to wait for, not even a roll or a mark; otherwise nothing
    is done, and the result is NOT_AT_ONCE.
    """

    def __init__(self, tail: LogTail, counters: FormatCounters) -> None:
        self._tail = tail
        self._counters = counters
        self._in_place = counters.append_in_place_batches
        self._now_ms = tail.now_ms
        self._maintenance: MaintenanceThread | None = None      # the log's, if records linger
        self.use_config()

    def use_config(self) -> None:
        """Use the tail's current configuration from now on. With the lock, or before the first append."""
        tail = self._tail
        self._encoder = tail.encoder
        self._linger = tail.linger
        self._flushes = tail.flush_messages > 0

    def use_thread(self, thread: MaintenanceThread | None) -> None:
        """Set what writes lingering records when their time is over."""
        self._maintenance = thread

    # --- doors -----------------------------------------------------------------------------------

    def append(
        self, value: "Buffer | None", key: "Buffer | str | None", headers: "Headers | None", timestamp: "Time | None",
        wait: bool | None,
    ) -> int | PendingAppend[int]:
        if type(headers) is not tuple:
            headers = listed_headers(headers)
        lingers = self._linger is not None
        tail, now_ms = self._tail, self._now_ms()
        try:
            # Fast path.
            offset = tail.append_plain(now_ms, key, value, headers, timestamp, lingers, wait)
            if offset >= 0:
                if self._flushes and not lingers:
                    tail.flush_if_due(wait)
                return offset if wait else PendingAppend(offset, tail.number + 1 if lingers else tail.number)
            if wait is None and tail.is_plain and not lingers:
                return NOT_AT_ONCE
            tail.check()
            if timestamp is not None and type(timestamp) is not int:
                timestamp = to_timestamp_ms(timestamp, now_ms=now_ms)
            if lingers:
                offset, number = tail.change(self._let_linger, key, value, headers, timestamp, now_ms)
                if offset < 0:
                    return self.append(value, key, headers, timestamp, wait)
                return offset if wait else PendingAppend(offset, number)
            encoder = self._encoder
            made = encoder.one(now_ms, key, value, headers, timestamp)
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint=hint_of_record(key, value, headers)) from None
        appended = self._append_made(encoder, (made,), now_ms, True, wait)
        return self.append(value, key, headers, timestamp, wait) if appended is None else appended

    def append_many(self, records: "Iterable[Record]", atomic: bool, wait: bool | None) -> int | PendingAppend[int]:
        now_ms = self._now_ms()
        encoder = self._encoder
        made: Sequence[EncodedBatch]
        try:
            listed: Sequence[Record] = ()
            listed = records if isinstance(records, list | tuple) else list(records)
            # Outside of the lock: it may compress.
            if atomic:
                try:
                    made = (encoder.many(listed, now_ms),)
                except RecordTooLargeError as error:
                    late("seglog.log.batch_split")
                    from seglog.log.batch_split import refusal

                    raise refusal(error, listed, encoder, self._tail.config, now_ms) from None
            else:
                late("seglog.log.batch_split")
                from seglog.log.batch_split import split

                made = split(listed, encoder, self._tail.config, now_ms)
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint=hint_of_records(listed)) from None
        appended = self._append_made(encoder, made, now_ms, atomic, wait)
        return self.append_many(listed, atomic, wait) if appended is None else appended

    def append_columns(self, columns: object, named: dict[str, object], wait: bool | None) -> int | PendingAppend[int]:
        given = {name: column for name, column in named.items() if column is not None}
        if (columns is None) == (not given):
            raise InvalidArgumentError("pass either columns, or timestamps=, keys=, values=, headers=")
        now_ms = self._now_ms()
        encoder = self._encoder
        try:
            made = encoder.columns(given if columns is None else columns, now_ms)
        except TypeError as error:
            raise InvalidArgumentError(
                str(error), hint="help(seglog.Log.append_columns) describes what a column may be"
            ) from error
        appended = self._append_made(encoder, made, now_ms, False, wait)
        return self.append_columns(columns, named, wait) if appended is None else appended

    def append_batch(
        self, raw: "Buffer", assign_offsets: bool, leader_epoch: int | None, wait: bool,
        from_coordinator: bool = False,
    ) -> AppendResult | PendingAppend[AppendResult]:
        if leader_epoch is not None:
            check_leader_epoch(leader_epoch)
        checked = self._check(raw if type(raw) is bytes else _viewed(raw), not assign_offsets, leader_epoch)
        return self.append_checked(checked, wait, from_coordinator)

    def append_table(self, table: BatchTable) -> None:
        """Append batches that keep their offsets, as a replica does. Their checksums were checked, and their bytes do
        not change: they are written without a copy."""
        self.append_checked(self._check(table, True, None), True)

    def check_batch(self, raw: "Buffer") -> CheckedBatch:
        return self._check(raw if type(raw) is bytes else _viewed(raw), False, None)

    def append_checked(
        self, checked: CheckedBatch, wait: bool, from_coordinator: bool = False
    ) -> AppendResult | PendingAppend[AppendResult]:
        tail, assigned = self._tail, checked.assigned
        if from_coordinator:
            checked = checked._replace(origin=Origin.COORDINATOR)
        elif (      # Fast path.
            self._linger is None and checked.leader_epoch is None
            and tail.write(assigned, checked.encoder, wait, checked.keeps_offsets) >= 0
        ):
            if assigned.rebuilt:
                self._count(checked.given, assigned)
            else:
                self._in_place[assigned.magic].add(len(assigned.table))
            if self._flushes:
                tail.flush_if_due(wait)
            # (`tuple.__new__` takes a third of the time of a NamedTuple's own.)
            result = tuple.__new__(AppendResult, (assigned.first_offset, assigned.last_offset, False))
            return result if wait else tuple.__new__(PendingAppend, (result, tail.number))
        written = tail.change(self._write, checked, checked.encoder, checked.now_ms, True)
        assert written is not None
        tail.acknowledge(written.number, wait)
        return written.result if wait else written

    def _check(
        self, given: bytes | memoryview | BatchTable, keeps_offsets: bool, leader_epoch: int | None
    ) -> CheckedBatch:
        """Check an encoded batch without the lock, because that may take long. It is placed again if another append
        comes in between."""
        tail, encoder = self._tail, self._encoder
        now_ms = self._now_ms()
        tail.check()
        place = tail.next_offset, tail.leader_epoch if leader_epoch is None else leader_epoch
        return tuple.__new__(CheckedBatch, (        # quicker, as above
            given, keeps_offsets, leader_epoch, now_ms, place, encoder,
            *self._assigned(given, keeps_offsets, *place, now_ms, encoder)))

    def _assigned(
        self, given: bytes | memoryview | BatchTable, keeps_offsets: bool, next_offset: int, epoch: int, now_ms: int,
        encoder: BatchEncoder,
    ) -> tuple[Assigned, Origin]:
        """An encoded batch with its offsets, and its origin."""
        try:
            if keeps_offsets or isinstance(given, BatchTable):
                return encoder.followed(given, next_offset), Origin.REPLICATION
            from_coordinator = _is_control(given)
            assigned = encoder.assigned(
                given, next_offset, now_ms=now_ms, leader_epoch=epoch, allow_control=from_coordinator
            )
            return assigned, Origin.COORDINATOR if from_coordinator else Origin.CLIENT
        except CorruptRecordError as error:
            error.hint = "nothing was written: these bytes are not a whole batch; seglog.build_batch makes valid ones"
            raise

    def _append_made(
        self, encoder: BatchEncoder, batches: Sequence[EncodedBatch], now_ms: int, atomic: bool, wait: bool | None
    ) -> int | PendingAppend[int] | None:
        """The offset of the last record, or None if the configuration has changed since the batches were encoded."""
        tail = self._tail
        if self._linger is None and len(batches) == 1:
            # Fast path.
            last = tail.write(batches[0], encoder, wait)
            if last >= 0:
                if self._flushes:
                    tail.flush_if_due(wait)
                # (Takes a third of the time of `PendingAppend(...)`.)
                return last if wait else tuple.__new__(PendingAppend, (last, tail.number))
        if wait is None:
            return NOT_AT_ONCE
        written = tail.change(self._write, batches, encoder, now_ms, atomic)
        if written is None:
            return None
        tail.acknowledge(written.number, wait)
        last = written.result.last_offset
        return last if wait else PendingAppend(last, written.number)

    # --- with the lock ---------------------------------------------------------------------------

    def _write(
        self, given: Sequence[EncodedBatch] | CheckedBatch, encoder: BatchEncoder, now_ms: int, atomic: bool
    ) -> PendingAppend[AppendResult] | None:
        """Write batches that were encoded here, or an encoded one that was passed in. Returns None, and writes nothing,
        if they were made for a configuration that has since changed."""
        tail = self._tail
        tail.write_lingering()
        batches: Sequence[EncodedBatch | Assigned]
        origin, update = Origin.CLIENT, None
        if isinstance(given, CheckedBatch):
            assigned, origin = self._placed(given), given.origin
            if assigned.has_producer:
                found = tail.producers.prepare(assigned.table, origin)
                if isinstance(found, Duplicate):
                    return PendingAppend(AppendResult(found.first_offset, found.last_offset, True), tail.number)
                update = found
            if given.leader_epoch is not None and given.leader_epoch > tail.leader_epoch:
                tail.set_epoch(given.leader_epoch)
            first, batches = assigned.first_offset, (assigned,)
        elif encoder is not self._encoder:
            return None
        else:
            first, batches = tail.next_offset, given
            if isinstance(encoder, MessageEncoder):
                batches = self._in_old_format(given, encoder, now_ms, atomic)
        for batch in batches:
            tail.write_locked(batch, now_ms, origin, update)
        if isinstance(given, CheckedBatch):
            self._count(given.given, assigned)
        return PendingAppend(AppendResult(first, tail.next_offset - 1), tail.number)

    def _placed(self, checked: CheckedBatch) -> Assigned:
        """An encoded batch at the log's end; checked again if that is necessary."""
        tail, assigned = self._tail, checked.assigned
        epoch = tail.leader_epoch if checked.leader_epoch is None else checked.leader_epoch
        if epoch < tail.leader_epoch:
            raise InvalidArgumentError(
                f"leader epoch {epoch} is below the log's epoch {tail.leader_epoch}", file=tail.path,
                hint="leader epochs only increase: pass this epoch or a later one, or none",
            )
        is_good = checked.encoder is self._encoder      # else the configuration was changed meanwhile
        if is_good and checked.place != (tail.next_offset, epoch):
            try:
                assigned.place(tail.next_offset, epoch)
            except InvalidArgumentError:    # it keeps its own offsets, or they are in compressed bytes
                is_good = False
        if not is_good:
            assigned, _ = self._assigned(
                checked.given, checked.keeps_offsets, tail.next_offset, epoch, checked.now_ms, self._encoder)
        return assigned

    def _in_old_format(
        self, batches: Sequence[EncodedBatch], encoder: MessageEncoder, now_ms: int, atomic: bool
    ) -> list[Assigned]:
        """Our batches as messages of v0 or v1: all are made before the first one is written."""
        tail = self._tail
        stored: list[Assigned] = []
        for made in batches:
            first = stored[-1].last_offset + 1 if stored else tail.next_offset
            if atomic:
                stored.append(encoder.stored(made, first, now_ms, tail.leader_epoch))
            else:
                stored += encoder.stored_in_pieces(made, first, now_ms, tail.leader_epoch)
        return stored

    def _let_linger(
        self, key: "Buffer | str | None", value: "Buffer | None", headers: "Headers | None", timestamp: int | None,
        now_ms: int,
    ) -> tuple[int, int]:
        """Returns the record's offset, and the number to wait for; -1: the configuration was changed meanwhile."""
        tail, linger = self._tail, self._linger
        if linger is None:
            return -1, tail.number
        batch = linger.batch
        if not batch and self._maintenance is not None:
            self._maintenance.linger()     # first: no record may wait unless a thread will write it
        if not linger.add(key, value, headers, timestamp, now_ms):
            tail.write_lingering()
            if self._maintenance is not None:
                self._maintenance.linger()
            linger.add(key, value, headers, timestamp, now_ms)
        offset = tail.next_offset + len(batch) - 1
        if batch.size_bytes < tail.lingering_bytes:
            return offset, tail.number + 1
        tail.write_lingering()
        return offset, tail.number

    def _count(self, given: bytes | memoryview | BatchTable, assigned: Assigned) -> None:
        stored = assigned.table[0]
        if stored.magic >= 0:       # (tagged messages have no format that a client could ask for)
            self._counters.appended(
                came=stored.magic if isinstance(given, BatchTable) else given[MAGIC_POS], stored=stored.magic,
                count=len(assigned.table), rebuilt=assigned.rebuilt, is_compressed=stored.codec != 0,
            )


def listed_headers(headers: "Headers | None") -> "Headers | None":
    """Headers that can be read twice. Call before taking the lock: iterating over them may run a caller's code."""
    return tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, list | str | dict) else headers


def _viewed(raw: "Buffer") -> memoryview:
    try:
        return memoryview(raw).cast("B")
    except TypeError as error:
        raise InvalidArgumentError(
            f"a batch must be bytes-like and contiguous, not {type(raw).__name__}",
            hint="seglog.build_batch makes one from records",
        ) from error


def _is_control(batch: bytes | memoryview) -> bool:
    """Whether these are the bytes of a transaction marker; the check that follows tells whether they are whole."""
    return (
        len(batch) > LOW_ATTRIBUTES_POS
        and batch[MAGIC_POS] == 2
        and bool(batch[LOW_ATTRIBUTES_POS] & CONTROL_BIT)
    )
