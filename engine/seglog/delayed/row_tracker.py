"""What all trackers of delayed messages do with rows in memory: adding, delivering, decisions, queries.

A row is (deliver_at, ledger_id, entry_id) and has an owner; the owner's PendingSet says which of its rows are still
valid. The two trackers built on this base define where the sets are, what exists besides rows in memory, and where
decisions are stored.
"""
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeGuard, TypeVar

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog._kernels.intake import Intake
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog.clock import Clock, SystemClock, checked_clock
from seglog.counters import Metric, Sample
from seglog.delayed.amendments import Amendments
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.metrics import METRICS
from seglog.delayed.storage import DAMAGE
from seglog.delayed.tracker import Counts, DelayedDeliveryTracker, DelayedMessage, Messages, Scheduled
from seglog.errors import InvalidArgumentError, TooManyDelayedError
from seglog.late_import import late

# Owners of rows, for DueRuns: rows that came in order; rows that no bucket will ever contain (of ledgers whose bucket
# is sealed, rescheduled ones, due ones); rows of relocated messages. Buckets are numbered after these.
PUSHED, LATE, RELOCATED, FIRST_BUCKET = 0, 1, 2, 3

MAX_TIME = 2**63 - 1
# Formats of a memoryview with items of 8 bytes: long is as long as long long here, and NumPy uses it.
INT64_FORMATS = ("q", "l", "<q", "<l", "=q", "=l")

T = TypeVar("T")

Column = memoryview
# `list` is a method below.
Samples = list[Sample]


class TrackerStore(Protocol):
    """What a tracker has besides the rows in memory. Guarded by its lock.

    `unstored`: properties that should be stored, but may not be.
    """

    unstored: dict[str, str | None]

    def store(self, changes: Mapping[str, str | None]) -> None:
        """Store properties: durably, if at all."""

    def forget_properties(self, gone: Mapping[str, None]) -> None:
        """Forget properties that are no longer needed."""

    def rows_between(self, first_at: int, end_at: int) -> Iterable[DueRows]:
        """Yield the pending rows with these times that are not in memory, in parts; no row twice."""


class RowTracker(DelayedDeliveryTracker):
    """The base of both trackers, as Pulsar has an abstract one.

    `is_sealed`: messages that come in order are kept separately, since they are sealed into buckets.
    """

    _stored: TrackerStore

    def __init__(self, config: DelayedDeliveryConfig | None, clock: Clock | None, *, is_sealed: bool) -> None:
        late("pyroaring")
        from pyroaring import BitMap

        self._config = config or DelayedDeliveryConfig()
        self._clock = checked_clock(clock)
        self._now_ms = self._clock.now_ms
        # Guards everything below. Re-entered where background work runs in the caller's thread.
        self._lock = QuickLock()
        self._changed = LockCondition(self._lock)
        self._runs = DueRuns(PUSHED, LATE)
        self._new_bitmap: Any = BitMap
        # The pending positions: of rows that came in order, and of the others.
        self._unsealed = PendingSet(BitMap)
        self._pushed = PendingSet(BitMap) if is_sealed else self._unsealed
        # Pending positions that the cursor passes: they are not trimmed.
        self._relocated = PendingSet(BitMap)
        # Owner of rows -> the set that says which of them are still pending.
        self._promises: dict[int, PendingSet] = {
            PUSHED: self._pushed, LATE: self._unsealed, RELOCATED: self._relocated
        }
        self._amendments = Amendments()
        told = None if isinstance(self._clock, SystemClock) else self._clock.now_ms
        decided = self._amendments.cancelled_in, self._amendments.moved
        other = self._unsealed if is_sealed else None       # may also know a message of the ledger being written
        self._intake = Intake(self._lock, self._runs, self._pushed, *decided, told, other)
        self._closed = False
        self._apply_config()

    # --- differences between the trackers ---------------------------------------------------------

    @abstractmethod
    def _track(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Make the position pending. Return whether it was not."""

    @abstractmethod
    def _takes_in_bulk(self, ledger_id: int) -> bool:
        """Whether a message of this ledger needs nothing but `DueRuns.push_new`."""

    @abstractmethod
    def _pop(self, cutoff: int, limit: int) -> Scheduled:
        """Take at most `limit` messages that are due at `cutoff`, in order; they are no longer pending."""

    @abstractmethod
    def _is_pending(self, ledger_id: int, entry_id: int) -> bool: ...

    @abstractmethod
    def _take(self, ledger_id: int, entry_id: int) -> bool:
        """Make the position no longer pending. Return whether it was."""

    @abstractmethod
    def _clear_stored(self) -> None:
        """Remove everything that this tracker has stored."""

    # --- configuration -----------------------------------------------------------------------

    def _apply_config(self) -> None:
        self._intake.early_ms = 0 if self._config.strict else self._config.tick_time_ms
        self._intake.most = MAX_TIME if self._config.max_delayed < 0 else self._config.max_delayed

    @property
    def config(self) -> DelayedDeliveryConfig:
        """The settings that the tracker uses now."""
        return self._config

    @property
    def lock(self) -> QuickLock:
        return self._lock

    @property
    def changed(self) -> LockCondition:
        return self._changed

    def reconfigure(self, config: DelayedDeliveryConfig) -> None:
        if not isinstance(config, DelayedDeliveryConfig):
            raise InvalidArgumentError(f"a configuration must be a DelayedDeliveryConfig, not {_short(config)}")
        with self._lock:
            self._config = config
            self._apply_config()
            self._changed.notify()

    # --- adding ------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        try:
            return self._intake.add(ledger_id, entry_id, deliver_at) or self._add(ledger_id, entry_id, deliver_at)
        except (OverflowError, TypeError, ValueError):
            check_position(ledger_id, entry_id)
            check_int64("a time", deliver_at)
            raise

    def _add(self, ledger_id: int, entry_id: int, deliver_at: int, *, within_limit: bool = True) -> bool:
        """Add any message, including those that the intake does not handle."""
        with self._lock:
            if self._amendments:
                if self._amendments.is_cancelled(ledger_id, entry_id):
                    return True
                deliver_at = self._amendments.moved.get((ledger_id, entry_id), deliver_at)
            if deliver_at <= self._cutoff() or deliver_at < 0:
                # The reader dispatches it: if it is pending here, it must not be delivered twice.
                if self._intake.delayed and self._take(ledger_id, entry_id):
                    self._intake.delayed -= 1
                return False
            is_full = within_limit and self._intake.delayed >= self._intake.most
            if is_full and not self._is_pending(ledger_id, entry_id):
                raise TooManyDelayedError(
                    f"{self._intake.delayed} messages are delayed, the limit is {self._intake.most}"
                )
            if self._track(ledger_id, entry_id, deliver_at):
                self._intake.delayed += 1
            return True

    def add_messages(
        self, ledger_ids: Any, entry_ids: Any, deliver_ats: Any, *, within_limit: bool = True
    ) -> bytes:
        ledgers, entries, ats = _int64_columns(ledger_ids, entry_ids, deliver_ats)
        if not len(ledgers) == len(entries) == len(ats):
            raise InvalidArgumentError(f"columns of {len(ledgers)}, {len(entries)} and {len(ats)} rows")
        answers = bytearray(len(ats))
        first = 0
        while first < len(ats):
            first = self._add_neighbours(ledgers, entries, ats, first, answers, within_limit)
        return bytes(answers)

    def _add_neighbours(
        self, ledgers: Column, entries: Column, ats: Column, first: int, answers: bytearray, within_limit: bool
    ) -> int:
        """Add messages from `first` on, at once if they are new neighbours in one ledger; return where it stopped."""
        with self._lock:
            ledger_id = ledgers[first]
            if not self._amendments and self._takes_in_bulk(ledger_id):
                cutoff = max(self._now_ms() + self._intake.early_ms, -1)
                room = self._intake.most - self._intake.delayed if within_limit else len(ats)
                end, added = self._runs.push_neighbours(ats, ledgers, entries, first, cutoff, room, self._pushed)
                if end > first:
                    self._intake.delayed += added
                    answers[first:end] = b"\1" * (end - first)
                    return end
            answers[first] = self._add(ledger_id, entries[first], ats[first], within_limit=within_limit)
            return first + 1

    # --- delivering ----------------------------------------------------------------------------

    def _cutoff(self) -> int:
        return self._now_ms() + self._intake.early_ms

    def get_scheduled_messages(self, max_messages: int) -> Scheduled:
        check_int64("a number of messages", max_messages)
        with self._lock:
            popped = self._pop(self._cutoff(), max_messages)
            self._intake.delayed -= len(popped)
            return popped

    def has_message_available(self) -> bool:
        with self._lock:
            return self._runs.has_due(self._cutoff(), self._promises, self._amendments.moved)

    def next_delivery_time(self) -> int | None:
        with self._lock:
            if self._intake.delayed == 0:
                return None
            self._runs.drop_stale_heads(self._promises, self._amendments.moved)
            next_at = self._runs.next_at()
            return None if next_at < 0 else next_at

    # --- what is pending ---------------------------------------------------------------------

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        check_position(ledger_id, entry_id)
        with self._lock:
            return self._is_pending(ledger_id, entry_id)

    @property
    def number_of_delayed_messages(self) -> int:
        return self._intake.delayed

    @property
    def memory_usage(self) -> int:
        """Return the bytes that the rows take, without bitmaps."""
        return self._runs.memory_bytes

    # --- numbers ---------------------------------------------------------------------------

    @property
    def metrics(self) -> Sequence[Metric]:
        """Return what `samples` may yield: name, type and labels."""
        return METRICS

    def samples(self) -> Samples:
        """Return the present values of METRICS, without a lock. If all subscriptions share this tracker, there are none
        for a subscription."""
        found = [Sample("pulsar_delayed_delivery_tracker_memory_usage", (), self.memory_usage)]
        if not self._config.shared_index:
            found += (
                Sample("pulsar_subscription_delayed", (), self._intake.delayed),
                Sample("pulsar_subscription_delayed_in_memory", (), self._in_memory),
            )
        return found

    @property
    def _in_memory(self) -> int:
        """Return the number of messages with a row in memory; may include some stale rows."""
        return min(len(self._runs), self._intake.delayed)

    # --- decisions about single messages -----------------------------------------------------

    @property
    def _has_cancelled(self) -> bool:
        return bool(self._amendments.cancelled_in)

    def forget(self, ledger_id: int, entry_id: int) -> bool:
        check_position(ledger_id, entry_id)
        with self._lock:
            taken = self._take(ledger_id, entry_id)
            self._intake.delayed -= taken
            return taken

    def _read_up(self) -> None:
        """Read the log up to its end, so that every message in it is known."""
        if self.source is not None:
            self.source.read_up()

    def cancel(self, ledger_id: int, entry_id: int) -> bool:
        check_position(ledger_id, entry_id)
        with self._lock:
            self._read_up()
            if not self._is_pending(ledger_id, entry_id):
                return False
            moved_to = self._amendments.moved.get((ledger_id, entry_id))
            self._amendments.cancel(ledger_id, entry_id)
            try:
                self._store_amendments(ledger_id)
            except BaseException:
                # It is unknown whether it was stored; in this process, the message does not change.
                self._amendments.take_back_cancel(ledger_id, entry_id)
                if moved_to is not None:
                    self._amendments.moved[ledger_id, entry_id] = moved_to
                self._amendments_in_doubt(ledger_id)
                raise
            self._take(ledger_id, entry_id)
            self._intake.delayed -= 1
            return True

    def reschedule(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        check_position(ledger_id, entry_id)
        if type(deliver_at) is not int or not 0 <= deliver_at <= MAX_TIME:
            raise InvalidArgumentError(
                f"deliver_at must be a whole number of ms since 1970, at most 2**63 - 1, not {deliver_at!r}"
            )
        with self._lock:
            self._read_up()
            if not self._is_pending(ledger_id, entry_id):
                return False
            _check_delay(deliver_at - self._now_ms(), self._config)
            moved = self._amendments.moved
            moved_to = moved.get((ledger_id, entry_id))
            moved[ledger_id, entry_id] = deliver_at
            try:
                self._store_amendments(ledger_id)
            except BaseException:
                if moved_to is None:
                    del moved[ledger_id, entry_id]
                else:
                    moved[ledger_id, entry_id] = moved_to
                self._amendments_in_doubt(ledger_id)
                raise
            # It becomes pending where its new row is; rows with another time are stale from now on.
            was_relocated = self._relocated.contains(ledger_id, entry_id)
            self._take(ledger_id, entry_id)
            if was_relocated:
                self._add_relocated([(deliver_at, ledger_id, entry_id)])
            else:
                self._runs.push_new(deliver_at, ledger_id, entry_id, self._unsealed, late=True)
            self._changed.notify()
            return True

    def deliver_now(self, ledger_id: int, entry_id: int) -> bool:
        return self.reschedule(ledger_id, entry_id, max(self._now_ms(), 0))

    def deliver_at(self, ledger_id: int, entry_id: int, published: int) -> int:
        check_position(ledger_id, entry_id)
        check_int64("a time", published)
        with self._lock:
            return self._amendments.moved.get((ledger_id, entry_id), published)

    def relocate(self, messages: Iterable[tuple[int, int, int]]) -> None:
        with self._lock:
            rows = []
            for deliver_at, ledger_id, entry_id in messages:
                check_position(ledger_id, entry_id)
                check_int64("a time", deliver_at)
                if self._amendments.is_cancelled(ledger_id, entry_id):
                    continue
                at = self._amendments.moved.get((ledger_id, entry_id), deliver_at)
                self._intake.delayed += not self._take(ledger_id, entry_id)
                rows.append((at, ledger_id, entry_id))
            self._add_relocated(rows)
            self._changed.notify()

    def _add_relocated(self, rows: Iterable[tuple[int, int, int]]) -> None:
        added = DueRows()
        for row in sorted(rows):
            self._relocated.add(row[1], row[2])
            added.append(*row)
        self._runs.add_run(RELOCATED, added)

    def _store_amendments(self, ledger_id: int) -> None:
        """Store the decisions about messages of a ledger durably, if there are any."""
        stored = self._stored
        stored.store(stored.unstored | self._amendments.properties_of(ledger_id))
        stored.unstored.clear()

    def _amendments_in_doubt(self, ledger_id: int) -> None:
        """Note that `_store_amendments` failed: storage may differ from what is valid here."""
        self._stored.unstored.update(self._amendments.properties_of(ledger_id))

    # --- queries --------------------------------------------------------------------------------

    def _rows_between(self, first_at: int, end_at: int) -> DueRows:
        """Return the pending rows with these times that are in memory; unsorted, and possibly with duplicates: after
        the clock stepped back, a message may have been added again beside its old row."""
        return self._runs.rows_between(first_at, end_at, self._promises, self._amendments.moved)

    def list(self, first_at: int, end_at: int) -> Messages:
        rows: set[tuple[int, int, int]] = set()

        def collect() -> None:
            rows.clear()
            rows.update(self._rows_between(first_at, end_at))
            for part in self._stored.rows_between(first_at, end_at):
                rows.update(part)

        first_at, end_at = bound(first_at, MAX_TIME), bound(end_at)
        self._look(collect)
        return [DelayedMessage(*row) for row in sorted(rows)]

    def count(self, first_at: int, end_at: int) -> int:
        first_at, end_at = bound(first_at, MAX_TIME), bound(end_at)
        return self._look(lambda: self._count(first_at, end_at))

    def _count(self, first_at: int, end_at: int) -> int:
        in_memory = len(set(self._rows_between(first_at, end_at)))
        return in_memory + sum(map(len, self._stored.rows_between(first_at, end_at)))

    def histogram(self, edges: Sequence[int]) -> Counts:
        if not isinstance(edges, Iterable):
            raise InvalidArgumentError(f"the edges of a histogram must be times, not {_short(edges)}")
        bounds = [bound(edge) for edge in edges]
        return self._look(lambda: [self._count(min(first, MAX_TIME), end) for first, end in pairwise(bounds)])

    def _look(self, answer: Callable[[], T]) -> T:
        """Answer a query about all messages that are in the log now."""
        with self._lock:
            while True:
                self._read_up()
                try:
                    return answer()
                except DAMAGE:
                    # The bucket is forgotten, but its messages are in the log.
                    if self.source is None:
                        raise

    # --- forgetting -----------------------------------------------------------------------------

    def trim(self, ledger_id: int, entry_id: int = 0) -> int:
        check_position(ledger_id, entry_id)
        with self._lock:
            dropped = self._trim(ledger_id, entry_id)
            self._intake.delayed -= dropped
            return dropped

    def _trim(self, ledger_id: int, entry_id: int) -> int:
        dropped, kept = 0, set(self._relocated.ledger_ids())
        if self.source is not None and (kept or self._amendments):
            passed_over = set(self.source.passed_over())
            gone = {ledger for ledger in kept - passed_over if ledger < ledger_id}
            dropped = sum(map(self._relocated.drop, gone))
            kept = kept - gone | passed_over
        self._stored.forget_properties(self._amendments.trim(ledger_id, kept))
        passed = set(self._promises.values()) - {self._relocated}
        return dropped + sum(drop_before(promised, ledger_id, entry_id) for promised in passed)

    def clear(self) -> None:
        with self._lock:
            self._clear_stored()
            self._stored.unstored.clear()
            self._runs.clear()
            self._pushed.clear()
            self._unsealed.clear()
            self._relocated.clear()
            self._amendments.clear()
            self._intake.delayed = 0
            self._forgotten()

    def _forgotten(self, messages: int = 0) -> None:
        """Note that messages still in the log are no longer known: this many were pending."""
        self._intake.delayed -= messages
        if self.source is not None:
            self.source._read_again()
        self._changed.notify()

    def close(self) -> None:
        with self._lock:
            self._runs.clear()
            self._pushed.clear()
            self._unsealed.clear()
            self._relocated.clear()
            self._intake.delayed = 0
            self.source = None
            self._closed = True


def _check_delay(delay_ms: int, config: DelayedDeliveryConfig) -> None:
    longest = config.max_delay_ms
    if longest and delay_ms > longest:
        raise InvalidArgumentError(f"a delay of {delay_ms} ms is above delayedDeliveryMaxDelayInMillis = {longest}")


def drop_before(pending: PendingSet, ledger_id: int, entry_id: int) -> int:
    """Forget everything before this position; return how many messages were pending there."""
    dropped = sum(pending.drop(ledger) for ledger in pending.ledger_ids() if ledger < ledger_id)
    bitmap = pending.bitmap(ledger_id)
    if bitmap and bitmap.min() < entry_id:
        passed = [entry for entry in bitmap if entry < entry_id]
        dropped += sum(pending.remove(ledger_id, entry) for entry in passed)
    return dropped


def check_int64(what: str, value: object) -> None:
    """Raise InvalidArgumentError if `value` is not an int64."""
    if not is_int(value) or not -MAX_TIME - 1 <= value <= MAX_TIME:
        raise InvalidArgumentError(f"{what} must be an int from -2**63 to 2**63 - 1, not {_short(value)}")


def check_position(ledger_id: object, entry_id: object) -> None:
    """Raise InvalidArgumentError if this cannot be a position; a message need not exist there."""
    for what, value in (("a ledger's id", ledger_id), ("an entry's id", entry_id)):
        if not is_int(value) or not -1 <= value <= MAX_TIME:
            raise InvalidArgumentError(f"{what} must be an int from 0 to 2**63 - 1, not {_short(value)}")


def bound(at: int, latest: int = MAX_TIME + 1) -> int:
    """Clip a bound of a time range to the times that messages can have. Raises InvalidArgumentError if it is not an
    int.
    """
    if not is_int(at):
        raise InvalidArgumentError(f"a time must be whole ms since 1970, not {_short(at)}")
    return min(max(at, 0), latest)


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is an int, but not a bool, which is an int only in Python."""
    return type(value) is int or (isinstance(value, int) and not isinstance(value, bool))


def _short(value: object) -> str:
    return f"an int of {value.bit_length()} bits" if is_int(value) else repr(value)[:80]


def _int64_columns(*columns: Any) -> list[Column]:
    found: list[Column] = []
    for column in columns:
        try:
            view = memoryview(column)
        except TypeError:
            raise InvalidArgumentError(f"a column must be a buffer of int64, not {_short(column)}") from None
        if view.itemsize != 8 or view.format not in INT64_FORMATS or view.ndim != 1 or not view.contiguous:
            raise InvalidArgumentError(
                f"a column must be a contiguous buffer of int64, not of {view.format!r} in {view.ndim} dimensions"
            )
        found.append(view.cast("B").cast("q"))
    return found
