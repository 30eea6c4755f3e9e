"""A dispatcher: the entries of one subscription, each when it is due.

    dispatcher = Dispatcher(managed_ledger, cursor, tracker)
    for entry in dispatcher.read(timeout_s=5):
        ...
        cursor.acknowledge(entry.position)

    cursor ── known to the tracker: passed over, not read from the disk
       └── read ── delayed, and not due: the tracker is told
                └─ else: dispatched
    tracker ── due ── replay queue ── not acknowledged meanwhile: read, dispatched

There is no timer that could be lost: whoever waits computes when the next message is due, and looks at the clock so
often that one that is set forward does not make it late.
"""
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, cast

from seglog._kernels.pending_set import PendingSet
from seglog.clock import Clock, SystemClock
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.errors import LogClosedError, OffsetOutOfRangeError, TooManyDelayedError
from seglog.ledger.cursor import DEFAULT_READ, Cursor
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.topic.delayed_index import DelayedIndex, Fate

# How long a reader sleeps while a message is delayed, at most and at least. It sleeps by a clock that cannot be set,
# and messages are due by one that can.
LOOK_AGAIN_S, AT_LEAST_S = 0.01, 0.001
# A queue that nobody reads is dropped when it is longer: the cursor, rewound, finds what was in it.
MAX_REPLAY = 100_000


class Dispatcher:
    """Gives out each entry once, until `rewind` or `redeliver`. Threads may share it.

    `tracker`: the subscription's own, or the DelayedIndex that it shares with others; it is not closed with this.
    Who moves the cursor himself, by seeking, calls `rewind` after it.
    """

    def __init__(
        self,
        managed_ledger: ManagedLedger,
        cursor: Cursor,
        tracker: DelayedDeliveryTracker | DelayedIndex,
        *,
        clock: Clock | None = None,
    ) -> None:
        from pyroaring import BitMap

        self._managed_ledger = managed_ledger
        self._cursor = cursor
        self._index = tracker if isinstance(tracker, DelayedIndex) else DelayedIndex(tracker, lambda: [cursor])
        self._tracker = self._index.tracker
        self._clock = clock or SystemClock()
        # The index's lock, which guards what follows, and where readers wait.
        self._changed = threading.Condition(cast("threading.RLock", self._index.lock))      # it has all that one has
        self._waiting = 0
        # What is due, in the order in which it became it.
        self._replay: deque[Position] = deque()
        # What was dispatched or is in the replay queue: the cursor comes to some of it later, and passes over it.
        self._taken = PendingSet(BitMap)
        # Read, and not placed yet: the tracker had as many messages as it may have.
        self._read: deque[StoredEntry] = deque()
        self._first_ledger_id = -1
        self._is_closed = False
        with self._index.lock:
            self._index.readers.append(self)
        managed_ledger.listen(self._wake)

    def __repr__(self) -> str:
        return f"<Dispatcher {self._cursor.name}: {len(self._replay)} to replay>"

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    # --- reading -----------------------------------------------------------------------------

    def read(self, max_entries: int = DEFAULT_READ, timeout_s: float | None = 0) -> list[StoredEntry]:
        """Entries that are due now, at most so many; waits up to `timeout_s` for the first one, None: for ever.

        Those that were delayed come first, in the order in which they became due. None is early. Empty when the time
        is over. Raises LogClosedError once this was closed, and what Cursor.read raises.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            # From before the first look on: whoever adds an entry after it must wake us.
            self._waiting += 1
            try:
                while True:
                    entries = self._take(max_entries)
                    left_s = None if deadline is None else deadline - time.monotonic()
                    if entries or (left_s is not None and left_s <= 0):
                        return entries
                    self._changed.wait(self._sleep_s(left_s))
            finally:
                self._waiting -= 1

    def _sleep_s(self, left_s: float | None) -> float | None:
        """How long nothing will happen by itself; None: for ever."""
        next_at = self._tracker.next_delivery_time()
        if next_at is None:
            return left_s
        # What is due and was not given is late already: its segment could not be loaded.
        due_s = max((next_at - self._clock.now_ms()) / 1000, AT_LEAST_S)
        return min(due_s, LOOK_AGAIN_S) if left_s is None else min(due_s, LOOK_AGAIN_S, left_s)

    def _take(self, max_entries: int) -> list[StoredEntry]:
        if self._is_closed:
            raise LogClosedError("the dispatcher was closed", file=self._managed_ledger.path)
        self._forget_passed()
        self._index.trim()
        self._index.build()
        entries: list[StoredEntry] = []
        while len(entries) < max_entries:
            if not self._replay:
                self._index.poll(max_entries - len(entries))
                if not self._replay:
                    break
            entry = self._replayed(self._replay[0])
            self._replay.popleft()
            if entry is not None:
                entries.append(entry)
        try:
            while len(entries) < max_entries and self._read_on(max_entries - len(entries)):
                entry = self._read[0]
                fate = self._index.place(entry)
                self._read.popleft()
                if fate is Fate.DUE:
                    self._taken.add(*entry.position)
                    entries.append(entry)
                elif fate is Fate.CANCELLED:
                    self._cursor.acknowledge(entry.position)
        except TooManyDelayedError:
            pass        # read on later
        return entries

    def _read_on(self, wanted: int) -> bool:
        """Whether there is an entry to be placed."""
        if not self._read:
            self._read.extend(self._cursor.read(wanted, skip=self._is_known))
        return bool(self._read)

    def _is_known(self, position: Position) -> bool:
        return self._tracker.contains_message(*position) or self._taken.contains(*position)

    def _replayed(self, position: Position) -> StoredEntry | None:
        """None where it was acknowledged meanwhile, or trimmed."""
        if self._cursor.is_acknowledged(position):
            return None
        try:
            return self._managed_ledger.read(position)
        except OffsetOutOfRangeError:
            return None

    def _forget_passed(self) -> None:
        first = self._cursor.mark_delete_position.ledger_id
        if first > self._first_ledger_id:
            self._first_ledger_id = first
            for ledger_id in self._taken.ledger_ids():
                if ledger_id < first:
                    self._taken.drop(ledger_id)

    # --- what becomes due --------------------------------------------------------------------

    def take_scheduled(self, positions: Sequence[Position]) -> None:
        """Put messages that are due into the replay queue, but those that were dispatched. For the index."""
        self._replay.extend(position for position in positions if self._taken.add(*position))
        if len(self._replay) > MAX_REPLAY:
            for position in self._replay:
                self._taken.remove(*position)
            self._replay.clear()
            self.read_again()
        self._changed.notify_all()

    def read_again(self) -> None:
        """Begin at the mark-delete position once more, and pass over what was dispatched. For the index."""
        self._cursor.rewind()
        self._read.clear()

    def redeliver(self, positions: Iterable[Position]) -> None:
        """Give these entries, which were dispatched and are not acknowledged, once more."""
        with self._changed:
            waiting = set(self._replay)
            self._replay.extend(
                position
                for position in dict.fromkeys(positions)
                if position not in waiting and self._taken.contains(*position)
            )
            self._changed.notify_all()

    def rewind(self) -> None:
        """Give everything that is due and not acknowledged once more."""
        with self._changed:
            self._cursor.rewind()
            self._replay.clear()
            self._taken.clear()
            self._read.clear()
            self._changed.notify_all()

    def cancel(self, position: Position) -> bool:
        """Whether the message was delayed: it will never be delivered, to whom its tracker serves, and is acknowledged.

        Durable where the tracker is. Raises what the tracker and Cursor.acknowledge raise.
        """
        return self._index.cancel(position)

    def _wake(self) -> None:
        """An entry was added."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        """Give out nothing any more. Tracker and cursor stay open. Twice is fine."""
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._index.readers.remove(self)
                self._managed_ledger.unlisten(self._wake)
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
