"""A tracker of delayed messages among those that read by it: one dispatcher, or all of a topic.

Whoever reads, adds and polls, does so under one lock, the tracker's own. So at each moment that a reader looks, a
message is either known to the tracker, or was handed to the replay queues.

The index reads the log for its tracker, apart from the readers: `read_up` goes to the log's end, so that what is asked
about single messages is answered from the whole log. What a tracker forgets, since a snapshot is damaged, is found
there again.
"""
import enum
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.shield import unheard
from seglog.delayed.storage import FAILURES
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.ledger.compacted_home import COMPACTION_CURSOR
from seglog.ledger.cursor import Cursor
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.ledger.position import EARLIEST, Position, checked_position
from seglog.ledger.relocated_entries import RelocatedHome
from seglog.ledger.stored_entry import StoredEntry, columns_of

if TYPE_CHECKING:
    from pyroaring import BitMap

logger = logging.getLogger("seglog")

# The name of the cursor that builds a shared index. It keeps no ledger from being trimmed that no other cursor keeps.
BUILDING_CURSOR = "__delayed_index"
# Nobody reads by these.
INNER_CURSORS = (BUILDING_CURSOR, COMPACTION_CURSOR)
# Entries that the index reads at once.
READ_UP = 1000
# What `delayed.relocate` does: so often at most; where no more than one in so many entries of a ledger is left, or one;
# not with messages that are due so soon.
RELOCATE_EVERY_NS, RELOCATE_ONE_OF, RELOCATE_AHEAD_MS = 1_000_000_000, 10, 60_000


def weakly(method: Callable[[Sequence[Position], Position], None]) -> Callable[[Sequence[Position], Position], None]:
    """The same for a cursor to call, as long as somebody else holds the method's object."""
    # No WeakMethod: it runs Python code when the object is collected, in which ^C is lost.
    found, function = weakref.ref(method.__self__), method.__func__     # type: ignore[attr-defined]

    def call(positions: Sequence[Position], passed: Position) -> None:
        there = found()
        if there is not None:
            function(there, positions, passed)

    return call


def published_due_ms(entry: StoredEntry) -> int:
    """When it is due, ms since 1970, by its producer; 0: at once."""
    return entry.entry.fields().deliver_at_time or 0


class Fate(enum.Enum):
    """What becomes of an entry that was read."""

    DUE = "due"
    DELAYED = "delayed"
    CANCELLED = "cancelled"


class Reader(Protocol):
    """Who wants scheduled messages: a Dispatcher. All but `close` is called with the index's lock held."""

    @property
    def cursor(self) -> Cursor: ...

    def take_scheduled(self, positions: Sequence[Position]) -> None:
        """These are due."""

    def taken_in(self, ledger_id: int) -> "BitMap | None":
        """The entries of a ledger that were given to this reader already. Borrowed."""

    def read_again(self) -> None:
        """What was passed over is not known any more: read it."""

    def close(self) -> None: ...


class DelayedIndex:
    """The tracker of one subscription, and its reader. `cursor`: the subscription's.

    Raises InvalidArgumentError if another index has the tracker.
    """

    def __init__(self, tracker: DelayedDeliveryTracker, managed_ledger: ManagedLedger, cursor: Cursor) -> None:
        self.tracker = tracker
        # Guards the readers, and what they keep.
        self.lock = tracker.lock
        self.readers: list[Reader] = []
        self._managed_ledger = managed_ledger
        self._cursor = cursor
        # Up to here the tracker knows every message, but those that were due when they were met.
        self._read_to = EARLIEST
        self._is_reading = False
        self._own = [cursor]
        # The cursors that tell us, and the list of them that was looked at last.
        self._told: set[Cursor] = set()
        self._told_of: list[Cursor] = []
        # The list of subscriptions, the slowest of them, and where that one was.
        self._least: tuple[list[Cursor], Cursor, Position] | None = None
        # What the index has no use for, although its cursor has not passed it.
        self._skip: Callable[[Position], bool] | None = None
        self._forgotten_to = EARLIEST
        # How often what had been read was not known any more.
        self._losses = 0
        self._first_ledger_id = -1
        with self.lock:
            if tracker.source is not None:
                raise InvalidArgumentError(
                    "this tracker is read by another index", hint="make one dispatcher of a subscription, and share it"
                )
            tracker.source = self
        self._home = managed_ledger.shared(RelocatedHome)
        self._relocated = self._home.join(managed_ledger)
        self._is_closed = False
        # Not before a moment after opening: most topics that are opened are closed soon.
        self._relocated_ns = managed_ledger.clock.monotonic_ns()
        self._heard = weakly(self._acknowledged)
        self._hear()
        self._forget_acknowledged()
        self.offer_relocated()

    def detach(self) -> None:
        """Let the tracker go: another index may have it."""
        with self.lock:
            for cursor in self._told:
                cursor.unlisten(self._heard)
            self._told.clear()
            if self.tracker.source is self:
                self.tracker.source = None
        self.close()

    def close(self) -> None:
        """Let go of what is open beside the tracker. Twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._home.leave()

    def _hear(self) -> None:
        """Be told of what is acknowledged, by the cursors that are new too."""
        subscriptions = self.subscriptions()
        if subscriptions is self._told_of:
            return
        for cursor in subscriptions:
            if cursor not in self._told:
                self._told.add(cursor)
                cursor.listen(self._heard)
        self._told &= set(subscriptions)        # a deleted one tells nothing
        self._told_of = subscriptions

    def _least_passed(self) -> Position | None:
        """Up to where all subscriptions have come. The slowest one is looked for again only after it moved."""
        subscriptions = self.subscriptions()
        if not subscriptions:
            return None
        least = self._least
        if least is None or least[0] is not subscriptions or least[1].mark_delete_position != least[2]:
            position, slot = min((one.mark_delete_position, n) for n, one in enumerate(subscriptions))
            least = self._least = subscriptions, subscriptions[slot], position
        return least[2]

    def _acknowledged(self, positions: Sequence[Position], passed: Position) -> None:
        """A cursor acknowledged these, which may have been delayed still."""
        if not self.tracker.number_of_delayed_messages:
            return
        with self.lock:
            for position in positions:
                if self._is_over(position):
                    self.tracker.forget(*position)
            least = self._least_passed()
            passed = passed if least is None else least
            if passed > self._forgotten_to:
                self._forgotten_to = passed
                self.tracker.trim(passed.ledger_id, passed.entry_id + 1)

    def _forget_acknowledged(self) -> None:
        """Snapshots and decisions, which the tracker was made of, know nothing of what was acknowledged since."""
        with self.lock:
            passed = self._least_passed()
            if passed is None or self._least is None:
                return
            self.tracker.trim(max(passed.ledger_id, 0), passed.entry_id + 1)
            for ledger_id, ids in self._least[1].acknowledged_entries.items():
                pending = self.tracker.pending_in(ledger_id)
                for entry_id in pending & ids if pending else ():
                    if self._is_over(Position(ledger_id, entry_id)):
                        self.tracker.forget(ledger_id, entry_id)

    # --- readers -----------------------------------------------------------------------------

    def join(self, reader: Reader) -> None:
        """Let `reader` have what is due. Raises InvalidArgumentError if its subscription has a reader."""
        with self.lock:
            if any(other.cursor is reader.cursor for other in self.readers):
                raise InvalidArgumentError(
                    f"the subscription {reader.cursor.name!r} has a dispatcher already",
                    hint="share that one among the threads, or close it first",
                )
            self.readers.append(reader)
            self.offer_relocated()

    def leave(self, reader: Reader) -> None:
        with self.lock:
            if reader in self.readers:
                self.readers.remove(reader)

    def is_of(self, cursor: Cursor) -> bool:
        """Whether the tracker has the messages of this subscription, not of one of its name that was deleted."""
        return cursor is self._cursor

    def subscriptions(self) -> list[Cursor]:
        """The cursors whose messages the tracker has: what all of them have passed, it forgets. The same list until
        they are others."""
        return self._own

    # --- what was read -----------------------------------------------------------------------

    def place_all(self, entries: Sequence[StoredEntry]) -> list[Fate]:
        """Tell the tracker of entries that it does not know, in order; what becomes of each. Raises CorruptRecordError.
        """
        data, ledgers, ids = columns_of(entries)
        columns = metadata_columns(data)
        answers = self.tracker.add_messages(ledgers, ids, columns.deliver_at_time, within_limit=False)
        if not self.tracker.has_cancelled:
            if 0 not in answers:
                return [Fate.DELAYED] * len(answers)
            return [Fate.DELAYED if answer else Fate.DUE for answer in answers]
        known = self.tracker.contains_message
        return [
            (Fate.DELAYED if known(*entry.position) else Fate.CANCELLED) if answer else Fate.DUE
            for entry, answer in zip(entries, answers, strict=True)
        ]

    def build(self) -> None:
        """Read ahead of the readers, where somebody does that."""

    def read_up(self) -> None:
        """Tell the tracker of every message in the log that it does not know. What is due is left to the readers."""
        if self._is_reading:
            return
        with self.lock:
            self._is_reading = True
            try:
                while True:
                    losses = self._losses
                    entries, read_to = self._cursor.read_after(self._read_to, READ_UP, None, self._skip, self._known_in)
                    if entries:
                        self.place_all(entries)
                    if losses == self._losses:
                        self._read_to = read_to
                        if not entries:
                            return
            finally:
                self._is_reading = False

    def _known_in(self, ledger_id: int) -> "BitMap | None":
        """What is pending, or was given to the reader already."""
        known = [self.tracker.pending_in(ledger_id), *(reader.taken_in(ledger_id) for reader in self.readers)]
        found = [bitmap for bitmap in known if bitmap]
        return found[0].union(*found) if len(found) > 1 else found[0] if found else None

    def _is_over(self, position: Position) -> bool:
        """Whether nobody wants the message any more."""
        return self._cursor.is_acknowledged(position)

    def passed_over(self) -> set[int]:
        """Ledgers that the cursors passed, of which messages are not acknowledged."""
        return {ledger_id for cursor in self.subscriptions() for ledger_id in cursor.aside_ledgers}

    def read_again(self) -> None:
        """The tracker knows less than it did: so does everybody who passed over what it knew."""
        with self.lock:
            self._losses += 1
            self._read_to = EARLIEST
            self.offer_relocated()
            for reader in self.readers:
                reader.read_again()

    def poll(self, wanted: int) -> None:
        """Hand at most so many messages that are due to every reader."""
        due = self.tracker.get_scheduled_messages(wanted)
        positions = [Position(*position) for position in due] if due else []
        for reader in self.readers if due else ():
            reader.take_scheduled(positions)

    # --- what was passed ---------------------------------------------------------------------

    def trim(self) -> None:
        """Forget ledgers that every cursor has passed."""
        self._hear()
        self._relocate_now_and_then()
        passed = self._least_passed()
        if passed is not None and passed.ledger_id > self._first_ledger_id:
            self._first_ledger_id = passed.ledger_id
            self._passed(passed)

    def _passed(self, position: Position) -> None:
        """Every cursor has come to `position`, the first one known in its ledger."""
        self.tracker.trim(position.ledger_id)

    # --- what was relocated ------------------------------------------------------------------

    def relocated_entry(self, position: Position) -> StoredEntry | None:
        """The entry that was at this position, if it was relocated."""
        return self._relocated.read(position)

    def offer_relocated(self) -> None:
        """Tell the tracker of what was relocated and some subscription wants: no reading of the log comes to it."""
        with self.lock:
            readers = {reader.cursor: reader for reader in self.readers}

            def wants(cursor: Cursor, position: Position) -> bool:
                if not cursor.is_aside(position):
                    return False
                reader = readers.get(cursor)
                return reader is None or position.entry_id not in (reader.taken_in(position.ledger_id) or ())

            messages = [
                (deliver_at, *position)
                for position, deliver_at in self._relocated.times()
                if any(wants(cursor, position) for cursor in self.subscriptions())
            ]
            if not messages:
                return
            self.tracker.relocate(messages)
            for _, *position in messages if self.tracker.has_cancelled else ():
                if not self.tracker.contains_message(*position):
                    self._acknowledge(Position(*position))

    def _relocate_now_and_then(self) -> None:
        now_ns = self._managed_ledger.clock.monotonic_ns()
        if now_ns - self._relocated_ns < RELOCATE_EVERY_NS:
            return
        self._relocated_ns = now_ns
        try:
            with unheard():
                self._relocated.tidy()
                if self.tracker.config.relocate:
                    self.relocate()
        except FAILURES as error:       # a consumer can do nothing about it, and loses nothing by it
            logger.warning("%s: messages of %s are not relocated: %s", self._managed_ledger.path, self._cursor, error)

    def relocate(self) -> int:
        """Copy what is still delayed out of the ledgers that the cursors could otherwise pass; how many that were.

        Each cursor sets aside what it has not acknowledged. A crash leaves them where they were, or relocated, for each
        subscription by itself: what counts is what its cursor says.
        """
        with self.lock, self._relocated.lock:
            found = [entry for entries in self._pinning_ledgers() for entry in entries]
            if not found:
                return 0
            copies = [(entry.position, published_due_ms(entry), entry.data) for entry in found]
            self._relocated.add(self._cursor.name, copies)
            # Known to the tracker before the cursors pass them, which trims what it knows.
            self.tracker.relocate((at, *position) for position, at, _ in copies)
            sizes = [(entry.position, entry.message_count) for entry in found]
            for cursor in self.subscriptions():
                try:
                    cursor.set_aside(sizes)
                except LogClosedError:
                    if not cursor.closed:       # one that was deleted meanwhile
                        raise
            return len(found)

    def _pinning_ledgers(self) -> Iterator[list[StoredEntry]]:
        """Of each sealed ledger behind the mark-delete positions the entries that are not acknowledged: a few delayed
        messages. It ends at the first ledger in which more is left, or a message that is due soon."""
        extent, passed = self._managed_ledger.extent, self._least_passed()
        first = None if passed is None else extent.position(extent.up_to(passed))
        for slot in range(extent.slot_of(first.ledger_id), len(extent.infos)) if first is not None else ():
            info = extent.infos[slot]
            if info.end is None:
                return
            left = self._left_in(info.ledger_id)
            if not left:
                continue
            pending = self.tracker.pending_in(info.ledger_id)
            if len(left) > max(info.end.entries // RELOCATE_ONE_OF, 1) or not pending or left - pending:
                return
            entries = [self._managed_ledger.read(Position(info.ledger_id, entry_id)) for entry_id in left]
            if not all(map(self._is_for_long, entries)):
                return
            yield entries

    def _left_in(self, ledger_id: int) -> "BitMap":
        """The entries of a ledger that some subscription has neither acknowledged nor set aside."""
        from pyroaring import BitMap

        left = [
            cursor.unacknowledged_in(ledger_id)
            for cursor in self.subscriptions()
            if cursor.mark_delete_position.ledger_id <= ledger_id and not cursor.closed
        ]
        return BitMap.union(*left) if left else BitMap()

    def _is_for_long(self, entry: StoredEntry) -> bool:
        """Whether a message is not due soon."""
        soon = self._managed_ledger.clock.now_ms() + RELOCATE_AHEAD_MS
        return self.tracker.deliver_at(*entry.position, published_due_ms(entry)) > soon

    # --- decisions ---------------------------------------------------------------------------

    def clear(self, *, drop: bool = False) -> int:
        """Remove the snapshots, and forget what was decided about single messages; how many were pending.

        They are indexed again when the log is read the next time, or, with `drop`, are acknowledged instead.
        """
        with self.lock:
            self.read_up()
            pending = self.tracker.number_of_delayed_messages
            for message in self.tracker.list(0, 2**63) if drop else ():
                self._acknowledge(Position(message.ledger_id, message.entry_id))
            for cursor in self.subscriptions() if drop else ():
                cursor.flush()
            self.tracker.clear()
            self._first_ledger_id = -1
            return pending

    def cancel(self, position: Position) -> bool:
        """Whether the message was pending: it will never be delivered, and is acknowledged. Durable at return."""
        position = checked_position(position)
        with self.lock:
            cancelled = self.tracker.cancel(*position)
            if cancelled:
                self._acknowledge(position)
                for cursor in self.subscriptions():
                    # A tracker in memory forgets at a crash, and so would who changes to another kind.
                    cursor.flush()
            return cancelled

    def _acknowledge(self, position: Position) -> None:
        """For all, but a subscription that never had the message: it came when the ledger had been trimmed."""
        for cursor in self.subscriptions():
            if cursor.is_aside(position) or self._managed_ledger.is_valid(position):
                cursor.acknowledge(position)


class SharedDelayedIndex(DelayedIndex):
    """One index for all subscriptions, built by a cursor of its own (PIP-195; in no release of Pulsar).

    Any dispatcher's poll puts scheduled messages into the replay queues of all. A subscription that has no dispatcher
    then, or whose process dies, finds them by its own cursor: they are behind its mark-delete position, due, and not
    known here.
    """

    def __init__(self, tracker: DelayedDeliveryTracker, managed_ledger: ManagedLedger) -> None:
        # The subscriptions as of so many changes.
        self._subscribed: tuple[int, list[Cursor]] = -1, []
        super().__init__(tracker, managed_ledger, managed_ledger.open_cursor(BUILDING_CURSOR, "earliest"))
        self._skip = self._is_over

    def is_of(self, cursor: Cursor) -> bool:
        return True

    def subscriptions(self) -> list[Cursor]:
        changes = self._managed_ledger.cursor_changes
        if changes != self._subscribed[0]:
            cursors = self._managed_ledger.cursors.items()
            self._subscribed = changes, [cursor for name, cursor in cursors if name not in INNER_CURSORS]
        return self._subscribed[1]

    def _is_over(self, position: Position) -> bool:
        # The building cursor acknowledges nothing by itself; after `clear` it comes to what was cancelled.
        cursors = self.subscriptions()
        return bool(cursors) and all(cursor.is_acknowledged(position) for cursor in cursors)

    def build(self) -> None:
        """Read on, and add what is delayed. What is due, the subscriptions find by their own cursors."""
        self.read_up()

    def _known_in(self, ledger_id: int) -> "BitMap | None":
        # What one reader has taken may be delayed for another: after a rewind, or a clock that was set back.
        found: BitMap | None = self.tracker.pending_in(ledger_id)
        return found

    def _passed(self, position: Position) -> None:
        super()._passed(position)
        # A cursor that is new may stand in front of entries that were trimmed before it came.
        last = self._managed_ledger.last_position
        if last is not None:
            self._cursor.mark_delete(min(position, last))
