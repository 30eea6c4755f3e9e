"""A dispatcher: the entries of one subscription, each when it is due.

    dispatcher = Dispatcher(managed_ledger, cursor, tracker)
    for entry in dispatcher.read(timeout=5):
        ...
        cursor.acknowledge(entry.position)

    cursor ── known to the tracker: skipped, not read from the disk
       └── read ── delayed, and not due: added to the tracker
                └─ else: dispatched
    tracker ── due ── replay queue ── not acknowledged meanwhile: read, dispatched

There is no timer that could be lost. A waiting reader sleeps until the next message is due, and is woken when an entry
is added, a message is rescheduled, or the clock is set (seglog.clock); if the clock cannot report that it was set, the
reader checks it every 10 ms.
"""
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quiet_dispatcher import QuietDispatcher
from seglog._kernels.shield import unheard
from seglog.clock import Clock, checked_clock, listen, unlisten
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.errors import CorruptRecordError, InvalidArgumentError, LogClosedError, OffsetOutOfRangeError, SeglogError
from seglog.late_import import late
from seglog.ledger.managed.cursor import DEFAULT_READ, ManagedCursor
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.position import Position, checked_int, checked_position
from seglog.ledger.stored_entry import StoredEntry, as_consumers_get_them
from seglog.topic.delayed_index import DAMAGED, DelayedIndex, Fate

if TYPE_CHECKING:
    from pyroaring import BitMap

# The longest sleep of a reader while a message is delayed. Sleeping uses a clock that cannot be set, due times one that
# can: if its changes are not reported, check it often. Slewing is never reported, but is at most 500 ppm: 5 ms in this
# time, and less in the last sleep.
LOOK_AGAIN_S, LONGEST_S = 0.01, 10.0
# A segment that could not be loaded is already late. Loading is retried after this time (bucket.RETRY_NS).
RETRY_S = 0.1
# A longer queue, which no thread reads, is dropped: the rewound cursor finds its messages again.
MAX_REPLAY = 100_000


class Dispatcher(QuietDispatcher):
    """Delivers each entry once, unless `rewind` or `redeliver` is called. Threads may share it.

    `tracker`: the subscription's own, or the DelayedIndex that it shares with others; closing the dispatcher does not
    close it. If you seek the cursor, call `rewind` afterwards. `keeper`: whether an entry that was dispatched will not
    be acknowledged soon, so that it may be copied out of its ledger (seglog.delayed.relocate). `unreadable`: called,
    while reading, with the position of an entry that is damaged, and the error; the entry then counts as dispatched.
    Without it, reading raises the error.
    """

    _cursor: ManagedCursor

    def __init__(
        self,
        managed_ledger: OpenManagedLedger,
        cursor: ManagedCursor,
        tracker: DelayedDeliveryTracker | DelayedIndex,
        *,
        clock: Clock | None = None,
        keeper: Callable[[StoredEntry], bool] | None = None,
        unreadable: Callable[[Position, SeglogError], None] | None = None,
    ) -> None:
        late("pyroaring")
        from pyroaring import BitMap

        self._managed_ledger = managed_ledger
        self._cursor = cursor
        self._has_own_index = not isinstance(tracker, DelayedIndex)
        self._index = tracker if isinstance(tracker, DelayedIndex) else DelayedIndex(tracker, managed_ledger, cursor)
        self._tracker = self._index.tracker
        self._clock = checked_clock(clock)
        self._keeper = keeper
        self._unreadable = unreadable
        # Guards the fields below; readers wait on it.
        self._lock = self._index.lock
        self._changed = self._tracker.changed
        # Messages that are due, in the order in which they became due.
        self._replay: deque[Position] = deque()
        # Messages that were dispatched or are in the replay queue: if the cursor comes to them later, it skips them.
        self._taken = PendingSet(BitMap)
        # Entries that were read, but not placed yet.
        self._read: list[StoredEntry] = []
        self._first_ledger_id = -1
        self._is_closed = False
        # Distinct for each reader, and does not keep this dispatcher alive.
        self._wake = partial(self._changed.notify)
        self._index.join(self)      # from now on, closing the index closes this
        managed_ledger.listen(self._wake)

    def __repr__(self) -> str:
        return f"<Dispatcher {self._cursor.name}: {len(self._replay)} to replay>"

    @property
    def cursor(self) -> ManagedCursor:
        """The cursor whose entries are dispatched."""
        return self._cursor

    # --- reading -----------------------------------------------------------------------------

    def read(
        self, max_entries: int = DEFAULT_READ, timeout: float | None = 0, *,
        supports_broker_metadata: bool | None = None,
    ) -> list[StoredEntry]:
        """Read at most `max_entries` entries that are due now. Wait up to `timeout` for the first, or forever if None.

        Entries that were delayed come first, in the order in which they became due. None is early. The list is empty
        after the timeout. `supports_broker_metadata`: as for Cursor.read. Raises LogClosedError if this is closed, and
        what Cursor.read raises.
        """
        checked_int("a number of entries", max_entries)
        if timeout is not None and (not isinstance(timeout, Real) or timeout != timeout):
            raise InvalidArgumentError(f"timeout must be seconds, or None to wait forever, not {timeout!r}")
        entries = self._read_due(max_entries, timeout)
        if supports_broker_metadata is None:
            return entries
        exposes = self._managed_ledger.config.exposes_broker_metadata
        return as_consumers_get_them(entries, exposes, supports_broker_metadata)

    def _read_due(self, max_entries: int, timeout: float | None) -> list[StoredEntry]:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while True:
                # Noted before the first look, so that anything added after it wakes this thread.
                seen = self._changed.number
                entries = self._take(max_entries)
                left_s = None if deadline is None else deadline - time.monotonic()
                if entries or (left_s is not None and left_s <= 0):
                    return entries
                self._sleep(seen, left_s)

    def _take_due(self, max_entries: int) -> list[StoredEntry]:
        """Read at most `max_entries` entries that were delayed and are due now, and no others."""
        with self._lock:
            return self._take(max_entries, reads_on=False)

    def _sleep(self, seen: int, left_s: float | None) -> None:
        """Sleep until something may have changed."""
        next_at = self._tracker.next_delivery_time()
        if next_at is None:
            self._changed.wait(seen, left_s)
            return
        is_told = listen(self._clock, self._wake)
        try:
            # Read the clock only now: from here on, setting it is reported.
            due_s = (next_at - self._clock.now_ms()) / 1000
            sleep_s = min(due_s if due_s > 0 else RETRY_S, LONGEST_S if is_told else LOOK_AGAIN_S)
            self._changed.wait(seen, sleep_s if left_s is None else min(sleep_s, left_s))
        finally:
            if is_told:
                unlisten(self._clock, self._wake)

    def _take(self, max_entries: int, *, reads_on: bool = True) -> list[StoredEntry]:
        if self._is_closed:
            raise LogClosedError("the dispatcher is closed", file=self._managed_ledger.path)
        entries: list[StoredEntry] = []
        try:
            with unheard():
                self._forget_passed()
                self._index.trim()
                self._index.build()
                self._take_replayed(entries, max_entries)
                if reads_on:
                    self._take_read(entries, max_entries)
        except SeglogError:
            if not entries:
                self._managed_ledger._heard()
                raise
            # Return the entries found before the error; the next read meets it again.
        except BaseException:
            # Interrupted at some point: entries that would have been returned are delivered again.
            waiting = set(self._replay)
            given = [entry.position for entry in entries if entry.position not in waiting]
            self._replay.extendleft(reversed(given))
            self._read_again()
            raise
        return entries

    def _take_replayed(self, entries: list[StoredEntry], max_entries: int) -> None:
        while len(entries) < max_entries:
            if not self._replay:
                self._index.poll(max_entries - len(entries))
                if not self._replay:
                    return
            try:
                entry = self._entry_at(self._replay[0])
            except DAMAGED as error:
                if not self._passes_over(self._replay[0], error):
                    raise
                entry = None
            if entry is not None:
                entries.append(entry)
            self._replay.popleft()

    def _take_read(self, entries: list[StoredEntry], max_entries: int) -> None:
        while (wanted := max_entries - len(entries)) > 0:
            at_end = False
            if not self._read:
                try:
                    self._read = self._cursor.read(wanted, skip_in=self._known_in)
                except DAMAGED as error:
                    position = self._cursor._next_after(None, self._known_in)
                    if position is None or not self._passes_over(position, error):
                        raise
                    continue
                at_end = len(self._read) < wanted
                if not self._read:
                    return
            read = self._read[:wanted]
            try:
                fates = self._index.place_all(read)
            except CorruptRecordError:
                # One entry is corrupt: place those before it first, one by one.
                try:
                    fates = self._index.place_all(read[:1])
                except CorruptRecordError as error:
                    if not self._passes_over(read[0].position, error):
                        raise
                    self._read = self._read[1:]
                    continue
            done = 0
            try:
                for entry, fate in zip(read, fates, strict=False):
                    if fate is Fate.DUE:
                        self._taken.add(*entry.position)
                        entries.append(entry)
                    elif fate is Fate.CANCELLED:
                        self._cursor.acknowledge(entry.position)
                    done += 1
            finally:
                self._read = self._read[done:]
            if at_end and not self._read:
                return

    def _known_in(self, ledger_id: int) -> "BitMap | None":
        pending, taken = self._tracker._pending_in(ledger_id), self._taken.bitmap(ledger_id)
        found: BitMap | None = pending | taken if pending and taken else pending or taken
        return found

    def next_due_ms(self) -> int | None:
        """When the next delayed message is due, in ms since 1970; None if none of those read so far is delayed."""
        return self._tracker.next_delivery_time()

    def _entry_at(self, position: Position) -> StoredEntry | None:
        """The entry of a position, wherever it is; None if it was acknowledged or trimmed meanwhile."""
        if self._cursor.is_acknowledged(position):
            return None
        try:
            return self._managed_ledger.read(position)
        except OffsetOutOfRangeError:
            # An entry that others have set aside may have been trimmed before this subscription was made.
            return self._index.relocated_entry(position) if self._cursor.is_aside(position) else None

    @property
    def _copies_count(self) -> int:
        """How many entries of the topic have a copy beside its ledgers."""
        return self._index.copies_count

    def _forget_passed(self) -> None:
        first = self._cursor.mark_delete_position.ledger_id
        if first > self._first_ledger_id:
            self._first_ledger_id = first
            aside = self._cursor.aside
            for ledger_id in self._taken.ledger_ids():
                if ledger_id < first and ledger_id not in aside:
                    self._taken.drop(ledger_id)

    # --- due messages ------------------------------------------------------------------------

    def _take_scheduled(self, positions: Sequence[Position]) -> None:
        """Put due messages into the replay queue, except those already dispatched. For the index."""
        new = [position for position in positions if not self._taken.contains(*position)]
        self._replay.extend(new)
        for position in new:
            self._taken.add(*position)
        if len(self._replay) > MAX_REPLAY:
            for position in self._replay:
                self._taken.remove(*position)
            self._replay.clear()
            self._read_again()
        self._changed.notify()

    def _taken_in(self, ledger_id: int) -> "BitMap | None":
        """The entries of a ledger that were dispatched, or are about to be. For the index."""
        found: BitMap | None = self._taken.bitmap(ledger_id)
        return found

    def _read_again(self) -> None:
        """Read again from the mark-delete position, skipping what was dispatched. For the index."""
        self._cursor.rewind()
        self._read = []
        self._index.offer_relocated()

    def _keeps(self, entry: StoredEntry) -> bool:
        """Whether the entry was dispatched, and will not be acknowledged soon, as `keeper` says. For the index."""
        return self._keeper is not None and self._taken.contains(*entry.position) and self._keeper(entry)

    @property
    def _bounds_disk(self) -> bool:
        """Whether its ledgers are relocated as soon as that saves a part of them: with a `keeper`. For the index."""
        return self._keeper is not None

    def _passes_over(self, position: Position, error: SeglogError) -> bool:
        """Report an entry that is damaged, and count it as dispatched; False if nobody wants to know. For the index."""
        if self._unreadable is None:
            return False
        self._unreadable(position, error)
        self._taken.add(*position)
        return True

    def redeliver(self, positions: Iterable[Position]) -> None:
        """Deliver these entries again, if they were dispatched and are not acknowledged."""
        wanted = dict.fromkeys(map(checked_position, positions))
        with self._lock:
            waiting = set(self._replay)
            self._replay.extend(
                position
                for position in wanted
                if position not in waiting and max(position) < 2**63 and self._taken.contains(*position)
            )
            self._changed.notify()

    def rewind(self) -> None:
        """Deliver everything again that is due and not acknowledged."""
        with self._lock:
            self._read_again()
            self._replay.clear()
            self._taken.clear()
            self._index.cursor_moved()
            self._index.offer_relocated()
            self._changed.notify()

    def cancel(self, position: Position) -> bool:
        """Cancel a delayed message: it is acknowledged and never delivered to its tracker's subscriptions.

        Returns whether it was delayed. Durable if the tracker is. Raises what the tracker and Cursor.acknowledge raise.
        """
        return self._index.cancel(position)

    def close(self) -> None:
        """Stop delivering. Tracker and cursor stay open. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._index.leave(self)
                if self._has_own_index:
                    self._index.detach()
                self._managed_ledger.unlisten(self._wake)
                self._is_closed = True
                self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
