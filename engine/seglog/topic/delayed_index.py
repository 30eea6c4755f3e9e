"""A tracker of delayed messages among those that read by it: one dispatcher, or all of a topic.

Whoever reads, adds and polls, does so under one lock, the tracker's own. So at each moment that a reader looks, a
message is either known to the tracker, or was handed to the replay queues.
"""
import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.errors import TooManyDelayedError
from seglog.ledger.cursor import Cursor
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry

# The name of the cursor that builds a shared index. It keeps no ledger from being trimmed that no other cursor keeps.
BUILDING_CURSOR = "__delayed_index"
# Entries that are read at once to build the index.
BUILD = 1000


class Fate(enum.Enum):
    """What becomes of an entry that was read."""

    DUE = "due"
    DELAYED = "delayed"
    CANCELLED = "cancelled"


class Reader(Protocol):
    """Who wants scheduled messages: a Dispatcher."""

    def take_scheduled(self, positions: Sequence[Position]) -> None:
        """Called with the index's lock held."""

    def read_again(self) -> None:
        """What was passed over is not known any more: read it. Called with the index's lock held."""

    def close(self) -> None: ...


class DelayedIndex:
    """`cursors` gives those whose messages the tracker has: what all of them have passed, it forgets."""

    def __init__(self, tracker: DelayedDeliveryTracker, cursors: Callable[[], Iterable[Cursor]]) -> None:
        self.tracker = tracker
        # Guards the readers, and what they keep.
        self.lock = tracker.lock
        self.readers: list[Reader] = []
        self._cursors = cursors
        self._first_ledger_id = -1

    def place(self, entry: StoredEntry) -> Fate:
        """Tell the tracker of an entry that it does not know. Raises TooManyDelayedError, CorruptRecordError."""
        deliver_at = entry.entry.fields().deliver_at_time
        if deliver_at is None or not self.tracker.add_message(*entry.position, deliver_at):
            return Fate.DUE
        return Fate.DELAYED if self.tracker.contains_message(*entry.position) else Fate.CANCELLED

    def poll(self, wanted: int) -> None:
        """Hand at most so many messages that are due to every reader."""
        positions = [Position(*position) for position in self.tracker.get_scheduled_messages(wanted)]
        for reader in self.readers if positions else ():
            reader.take_scheduled(positions)

    def trim(self) -> None:
        """Forget ledgers that every cursor has passed."""
        passed = min((cursor.mark_delete_position for cursor in self._cursors()), default=None)
        if passed is not None and passed.ledger_id > self._first_ledger_id:
            self._first_ledger_id = passed.ledger_id
            self._passed(passed)

    def _passed(self, position: Position) -> None:
        """Every cursor has come to `position`, the first one known in its ledger."""
        self.tracker.trim(position.ledger_id)

    def build(self) -> None:
        """Read ahead of the readers, where somebody does that."""

    def read_log(self, cursor: Cursor) -> None:
        """Tell the tracker at once of everything that the cursor has ahead. For who asks it, and dispatches nothing."""
        with self.lock:
            while entries := cursor.read(BUILD, skip=self._is_known):
                for entry in entries:
                    if not self._is_over(entry.position):
                        self.place(entry)

    def _is_known(self, position: Position) -> bool:
        return self.tracker.contains_message(*position)

    def _is_over(self, position: Position) -> bool:
        """Whether nobody wants the message any more, although whoever reads for the index comes to it."""
        return False

    def clear(self, *, drop: bool = False) -> int:
        """Remove the snapshots, and forget what was decided about single messages; how many were pending.

        They are indexed again when the log is read the next time, or, with `drop`, are acknowledged instead.
        """
        with self.lock:
            pending = self.tracker.number_of_delayed_messages
            for cursor in self._cursors() if drop else ():
                for message in self.tracker.list(0, 2**63 - 1):
                    cursor.acknowledge(Position(message.ledger_id, message.entry_id))
                cursor.flush()
            self.tracker.clear()
            self._first_ledger_id = -1
            for reader in self.readers:
                reader.read_again()
            return pending

    def cancel(self, position: Position) -> bool:
        """Whether the message was pending: it will never be delivered, and is acknowledged. Durable at return."""
        with self.lock:
            cancelled = self.tracker.cancel(*position)
            if cancelled:
                for cursor in self._cursors():
                    cursor.acknowledge(position)
                    # A tracker in memory forgets at a crash, and so would who changes to another kind.
                    cursor.flush()
            return cancelled


class SharedDelayedIndex(DelayedIndex):
    """One index for all subscriptions, built by a cursor of its own (PIP-195; in no release of Pulsar).

    Any dispatcher's poll puts scheduled messages into the replay queues of all. A subscription that has no dispatcher
    then, or whose process dies, finds them by its own cursor: they are behind its mark-delete position, due, and not
    known here.
    """

    def __init__(self, tracker: DelayedDeliveryTracker, managed_ledger: ManagedLedger) -> None:
        super().__init__(tracker, self._subscriptions)
        self._managed_ledger = managed_ledger
        self._building = managed_ledger.open_cursor(BUILDING_CURSOR, "earliest")
        # Read, and not placed yet: the tracker had as many messages as it may have.
        self._read: deque[StoredEntry] = deque()

    def _subscriptions(self) -> list[Cursor]:
        return [cursor for name, cursor in self._managed_ledger.cursors.items() if name != BUILDING_CURSOR]

    def _is_over(self, position: Position) -> bool:
        # The building cursor acknowledges nothing by itself; after `clear` it comes to what was cancelled.
        cursors = self._subscriptions()
        return bool(cursors) and all(cursor.is_acknowledged(position) for cursor in cursors)

    def clear(self, *, drop: bool = False) -> int:
        with self.lock:
            self._building.rewind()
            self._read.clear()
            return super().clear(drop=drop)

    def build(self) -> None:
        """Read on, and add what is delayed. What is due, the subscriptions find by their own cursors."""
        if not self._read:
            self._read.extend(self._building.read(BUILD, skip=self._is_known))
        try:
            while self._read:
                if not self._is_over(self._read[0].position):
                    self.place(self._read[0])
                self._read.popleft()
        except TooManyDelayedError:
            pass        # later, when there is room; nothing is lost, since the subscriptions do not know them either

    def _passed(self, position: Position) -> None:
        super()._passed(position)
        # A cursor that is new may stand in front of entries that were trimmed before it came.
        last = self._managed_ledger.last_position
        if last is not None:
            self._building.mark_delete(min(position, last))
