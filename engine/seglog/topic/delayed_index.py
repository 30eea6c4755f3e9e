"""A tracker of delayed messages and its readers: one dispatcher, or all dispatchers of a topic.

Reading, adding and polling all hold one lock, the tracker's. So whenever a reader looks, a message is either known to
the tracker, or was handed to the replay queues.

The index also reads the log for its tracker, independently of the readers: `read_up` reads to the log's end, so that
questions about single messages are answered from the whole log. If a tracker loses messages because a snapshot is
damaged, they are found there again.
"""
import enum
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.shield import unheard
from seglog.delayed.storage import FAILURES
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.errors import CorruptManifestError, CorruptRecordError, InvalidArgumentError, LogClosedError, SeglogError
from seglog.late_import import late
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.managed.relocated_entries import WORTH_BYTES, WORTH_SHARE, RelocatedHome
from seglog.ledger.position import EARLIEST, Position, checked_position
from seglog.ledger.stored_entry import StoredEntry, columns_of
from seglog.logger import Logger

if TYPE_CHECKING:
    from pyroaring import BitMap

logger = Logger("seglog")

# The name of the cursor that builds a shared index. It does not prevent a ledger from being trimmed.
BUILDING_CURSOR = "__delayed_index"
# That of the last sequence id of each producer. (MessageDeduplication, of Pulsar)
DEDUPLICATION_CURSOR = "pulsar.dedup"
# An entry, or all of its ledger, is damaged on the disk: reading it again does not help.
DAMAGED = (CorruptRecordError, CorruptManifestError)
# No consumer reads with these cursors.
INNER_CURSORS = (BUILDING_CURSOR, COMPACTION_CURSOR, DEDUPLICATION_CURSOR)
# Entries that the index reads at once.
READ_UP = 1000
# Limits of `seglog.delayed.relocate`: how often it runs at most; the share of a ledger's entries that may be left (one
# in this many, or a single one); how soon a message may be due that is not relocated.
RELOCATE_EVERY_NS, RELOCATE_ONE_OF, RELOCATE_AHEAD_MS = 1_000_000_000, 10, 60_000
# For a reader that bounds the disk: once something was copied, consumers get on for so many times as long as copying
# took, or as looking in vain took.
BOUNDED_PAUSES, BOUNDED_VAIN_PAUSES = 4, 20


def weakly(method: Callable[[Sequence[Position], Position], None]) -> Callable[[Sequence[Position], Position], None]:
    """The method as a callback for a cursor, without keeping the method's object alive."""
    # Not a WeakMethod: it runs Python code when the object is collected, in which ^C would be lost.
    found, function = weakref.ref(method.__self__), method.__func__     # type: ignore[attr-defined]

    def call(positions: Sequence[Position], passed: Position) -> None:
        there = found()
        if there is not None:
            function(there, positions, passed)

    return call


def published_due_ms(entry: StoredEntry) -> int:
    """The due time that the producer set, in ms since 1970; 0: at once."""
    return entry.entry.fields().deliver_at_time or 0


class Fate(enum.Enum):
    """What happens to an entry that was read."""

    DUE = "due"
    DELAYED = "delayed"
    CANCELLED = "cancelled"


class Reader(Protocol):
    """A reader of scheduled messages: a Dispatcher. All methods but `close` are called with the index's lock held."""

    @property
    def cursor(self) -> ManagedCursor: ...

    def _take_scheduled(self, positions: Sequence[Position]) -> None:
        """Take messages that are due."""

    def _taken_in(self, ledger_id: int) -> "BitMap | None":
        """The entries of a ledger that this reader has already been given. The bitmap is borrowed."""

    def _read_again(self) -> None:
        """Read skipped entries again: the tracker no longer knows them."""

    def _keeps(self, entry: StoredEntry) -> bool:
        """Whether the message was given to this reader, which keeps it for long, unacknowledged."""
        ...

    @property
    def _bounds_disk(self) -> bool:
        """Whether ledgers are relocated as soon as that saves a part of them, not only their last messages."""
        ...

    def _passes_over(self, position: Position, error: SeglogError) -> bool:
        """Whether this reader does without an entry that is damaged: then it counts as given."""
        ...

    def close(self) -> None: ...


class DelayedIndex:
    """The tracker of one subscription, and its reader. `cursor`: the subscription's.

    Raises InvalidArgumentError if another index uses the tracker.
    """

    def __init__(
        self, tracker: DelayedDeliveryTracker, managed_ledger: OpenManagedLedger, cursor: ManagedCursor
    ) -> None:
        self.tracker = tracker
        # Guards the readers and their state.
        self.lock = tracker.lock
        self.readers: list[Reader] = []
        self._managed_ledger = managed_ledger
        self._cursor = cursor
        # Up to here the tracker knows every message, except those that were due when they were read.
        self._read_to = EARLIEST
        self._is_reading = False
        self._own = [cursor]
        # The cursors that notify this index, and the list of subscriptions at the last check.
        self._told: set[ManagedCursor] = set()
        self._told_of: list[ManagedCursor] = []
        # The list of subscriptions, the slowest of them, and its position then.
        self._least: tuple[list[ManagedCursor], ManagedCursor, Position] | None = None
        # Entries that the index need not read, although its cursor has not passed them.
        self._skip: Callable[[Position], bool] | None = None
        self._forgotten_to = EARLIEST
        # How often the tracker has lost messages that had been read.
        self._losses = 0
        self._first_ledger_id = -1
        with self.lock:
            if tracker.source is not None:
                raise InvalidArgumentError(
                    "another index uses this tracker", hint="make one dispatcher for each subscription, and share it"
                )
            tracker.source = self
        self._home = managed_ledger._shared(RelocatedHome)
        self._relocated = self._home.join(managed_ledger)
        self._is_closed = False
        # The first relocation waits for a while after opening: most topics are soon closed again.
        self._relocate_ns = managed_ledger._clock.monotonic_ns() + RELOCATE_EVERY_NS
        self._heard = weakly(self._acknowledged)
        self._hear()
        self._forget_acknowledged()
        self.offer_relocated()

    def detach(self) -> None:
        """Release the tracker, so that another index may use it."""
        with self.lock:
            for cursor in self._told:
                cursor.unlisten(self._heard)
            self._told.clear()
            if self.tracker.source is self:
                self.tracker.source = None
        self.close()

    def close(self) -> None:
        """Release everything that is open except the tracker. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._home.leave()

    def _hear(self) -> None:
        """Listen to the acknowledgements of all cursors, new ones included."""
        subscriptions = self.subscriptions()
        if subscriptions is self._told_of:
            return
        for cursor in subscriptions:
            if cursor not in self._told:
                self._told.add(cursor)
                cursor.listen(self._heard)
        self._told &= set(subscriptions)        # deleted cursors notify nothing
        self._told_of = subscriptions

    def _least_passed(self) -> Position | None:
        """The position that all subscriptions have reached. The slowest one is searched again only after it moved."""
        subscriptions = self.subscriptions()
        if not subscriptions:
            return None
        least = self._least
        if least is None or least[0] is not subscriptions or least[1].mark_delete_position != least[2]:
            position, slot = min((one.mark_delete_position, n) for n, one in enumerate(subscriptions))
            least = self._least = subscriptions, subscriptions[slot], position
        return least[2]

    def _acknowledged(self, positions: Sequence[Position], passed: Position) -> None:
        """Called when a cursor acknowledges messages, which may still be delayed: these, or if none are named, all up
        to some position, copied ones among them (`trim` leaves those)."""
        if not self.tracker.number_of_delayed_messages:
            return
        with self.lock:
            for position in positions or [position for position, _ in self._relocated.times()]:
                if self._is_over(position):
                    self.tracker.forget(*position)
            least = self._least_passed()
            passed = passed if least is None else least
            if passed > self._forgotten_to:
                self._forgotten_to = passed
                self.tracker.trim(passed.ledger_id, passed.entry_id + 1)

    def _forget_acknowledged(self) -> None:
        """Forget acknowledged messages: the snapshots and decisions that the tracker was loaded from may be older."""
        with self.lock:
            passed = self._least_passed()
            if passed is None or self._least is None:
                return
            self.tracker.trim(max(passed.ledger_id, 0), passed.entry_id + 1)
            for ledger_id, ids in self._least[1].acknowledged_entries.items():
                pending = self.tracker._pending_in(ledger_id)
                for entry_id in pending & ids if pending else ():
                    if self._is_over(Position(ledger_id, entry_id)):
                        self.tracker.forget(ledger_id, entry_id)

    def cursor_moved(self) -> None:
        """A cursor was moved, back or ahead, which is no acknowledgement: forget what all of them have passed now."""
        with self.lock:
            self._least, self._forgotten_to = None, EARLIEST
            self._forget_acknowledged()

    # --- readers -----------------------------------------------------------------------------

    def join(self, reader: Reader) -> None:
        """Add a reader for due messages. Raises InvalidArgumentError if its subscription already has one."""
        with self.lock:
            if any(other.cursor is reader.cursor for other in self.readers):
                raise InvalidArgumentError(
                    f"the subscription {reader.cursor.name!r} already has a dispatcher",
                    hint="share that one among the threads, or close it first",
                )
            self.readers.append(reader)
            self.offer_relocated()

    def leave(self, reader: Reader) -> None:
        with self.lock:
            if reader in self.readers:
                self.readers.remove(reader)

    def is_of(self, cursor: ManagedCursor) -> bool:
        """Whether the tracker has the messages of this subscription, not of a deleted one with the same name."""
        return cursor is self._cursor

    def subscriptions(self) -> list[ManagedCursor]:
        """The cursors whose messages the tracker has; it forgets what all of them have passed. Returns the same list
        object until the cursors change."""
        return self._own

    # --- reading the log ---------------------------------------------------------------------

    def place_all(self, entries: Sequence[StoredEntry]) -> list[Fate]:
        """Add entries that the tracker does not know, in order, and return what happens to each. Raises
        CorruptRecordError."""
        data, ledgers, ids = columns_of(entries)
        columns = metadata_columns(data)
        answers = self.tracker.add_messages(ledgers, ids, columns.deliver_at_time, within_limit=False)
        if not self.tracker._has_cancelled:
            if 0 not in answers:
                return [Fate.DELAYED] * len(answers)
            return [Fate.DELAYED if answer else Fate.DUE for answer in answers]
        known = self.tracker.contains_message
        return [
            (Fate.DELAYED if known(*entry.position) else Fate.CANCELLED) if answer else Fate.DUE
            for entry, answer in zip(entries, answers, strict=True)
        ]

    def build(self) -> None:
        """Read ahead of the readers; only a shared index does."""

    def read_up(self) -> None:
        """Add every message in the log that the tracker does not know. Due ones are left to the readers."""
        if self._is_reading:
            return
        with self.lock:
            self._is_reading = True
            try:
                while True:
                    losses = self._losses
                    try:
                        entries, read_to = self._cursor.read_after(
                            self._read_to, READ_UP, None, self._skip, self._known_in
                        )
                    except DAMAGED as error:
                        position = self._cursor._next_after(self._read_to, self._known_in)
                        if position is None or not self._pass_over(position, error):
                            raise
                        continue
                    self._place(entries)
                    if losses == self._losses:
                        self._read_to = read_to
                        if not entries:
                            return
            finally:
                self._is_reading = False

    def _place(self, entries: Sequence[StoredEntry]) -> None:
        """Add entries to the tracker, without those that cannot be parsed if all readers do without them."""
        try:
            if entries:
                self.place_all(entries)
        except CorruptRecordError as error:
            if len(entries) > 1:
                for entry in entries:
                    self._place([entry])
            elif not self._pass_over(entries[0].position, error):
                raise

    def _pass_over(self, position: Position, error: SeglogError) -> bool:
        """Whether all readers do without a damaged entry."""
        return bool(self.readers) and all(reader._passes_over(position, error) for reader in self.readers)

    def _known_in(self, ledger_id: int) -> "BitMap | None":
        """The entries of a ledger that are pending, or were given to a reader."""
        known = [self.tracker._pending_in(ledger_id), *(reader._taken_in(ledger_id) for reader in self.readers)]
        found = [bitmap for bitmap in known if bitmap]
        return found[0].union(*found) if len(found) > 1 else found[0] if found else None

    def _is_over(self, position: Position) -> bool:
        """Whether no subscription needs the message any more."""
        return self._cursor.is_acknowledged(position)

    def passed_over(self) -> set[int]:
        """Ledgers that the cursors passed although they have unacknowledged messages."""
        return {ledger_id for cursor in self.subscriptions() for ledger_id in cursor.aside_ledgers}

    def _read_again(self) -> None:
        """The tracker has lost messages: read the log again, and let the readers read what they skipped."""
        with self.lock:
            self._losses += 1
            self._read_to = EARLIEST
            self.offer_relocated()
            for reader in self.readers:
                reader._read_again()

    def poll(self, wanted: int) -> None:
        """Hand at most `wanted` due messages to every reader."""
        due = self.tracker.get_scheduled_messages(wanted)
        positions = [Position(*position) for position in due] if due else []
        for reader in self.readers if due else ():
            reader._take_scheduled(positions)

    # --- trimming ----------------------------------------------------------------------------

    def trim(self) -> None:
        """Forget ledgers that every cursor has passed."""
        self._hear()
        self._relocate_now_and_then()
        passed = self._least_passed()
        if passed is not None and passed.ledger_id > self._first_ledger_id:
            self._first_ledger_id = passed.ledger_id
            self._passed(passed)

    def _passed(self, position: Position) -> None:
        """Called when every cursor has reached `position`, the first one known in its ledger."""
        self.tracker.trim(position.ledger_id)

    # --- relocation --------------------------------------------------------------------------

    def relocated_entry(self, position: Position) -> StoredEntry | None:
        """The entry that was at this position, if it was relocated."""
        return self._relocated.read(position)

    @property
    def copies_count(self) -> int:
        """How many entries were relocated and still have their copy."""
        return self._relocated.count

    def offer_relocated(self) -> None:
        """Add relocated messages that some subscription still needs: reading the log does not find them."""
        with self.lock:
            readers = {reader.cursor: reader for reader in self.readers}

            def wants(cursor: ManagedCursor, position: Position) -> bool:
                if not cursor.is_aside(position):
                    return False
                reader = readers.get(cursor)
                return reader is None or position.entry_id not in (reader._taken_in(position.ledger_id) or ())

            messages = [
                (deliver_at, *position)
                for position, deliver_at in self._relocated.times()
                if any(wants(cursor, position) for cursor in self.subscriptions())
            ]
            if not messages:
                return
            self.tracker.relocate(messages)
            for _, *position in messages if self.tracker._has_cancelled else ():
                if not self.tracker.contains_message(*position):
                    self._acknowledge(Position(*position))

    def _relocate_now_and_then(self) -> None:
        now_ns = self._managed_ledger._clock.monotonic_ns()
        if now_ns < self._relocate_ns:
            return
        self._relocate_ns = now_ns + RELOCATE_EVERY_NS
        try:
            with unheard():
                self._relocated.tidy()
                is_copied = self.tracker.config.relocate and self.relocate() > 0
                if self._bounds_disk():
                    took_ns = self._managed_ledger._clock.monotonic_ns() - now_ns
                    if is_copied:       # only the first ones
                        self._relocate_ns = now_ns + BOUNDED_PAUSES * took_ns
                    else:
                        self._relocate_ns = now_ns + max(BOUNDED_VAIN_PAUSES * took_ns, RELOCATE_EVERY_NS)
        except FAILURES as error:       # a consumer cannot mend it, and loses nothing
            logger.warning("%s: could not relocate messages of %s: %s", self._managed_ledger.path, self._cursor, error)

    def relocate(self) -> int:
        """Copy the last delayed messages out of ledgers, so that the cursors can pass these. Returns how many.

        Each cursor sets aside what it has not acknowledged. After a crash, each subscription has them either at the old
        place or relocated: its cursor decides.
        """
        with self.lock, self._relocated.lock:
            if self._bounds_disk():
                found = self._first_of_worth()
            else:
                found = [entry for entries in self._pinning_ledgers() for entry in entries]
            if not found:
                return 0
            copies = [(entry.position, published_due_ms(entry), entry.data) for entry in found]
            self._relocated.add(self._cursor.name, copies)
            # First the tracker, then the cursors: once they pass the messages, it is trimmed.
            pending = self.tracker.contains_message
            self.tracker.relocate([(at, *position) for position, at, _ in copies if pending(*position)])
            sizes = [(entry.position, entry.message_count) for entry in found]
            for cursor in self.subscriptions():
                try:
                    cursor.set_aside(sizes)
                except LogClosedError:
                    if not cursor.closed:       # closed: it was deleted meanwhile
                        raise
            return len(found)

    def _pinning_ledgers(self) -> Iterator[list[StoredEntry]]:
        """For each sealed ledger from the mark-delete positions on, its unacknowledged entries, if these are only a few
        messages that are delayed, or that a reader keeps. Ends at the first ledger in which more is left, or a message
        is due soon."""
        extent, passed = self._managed_ledger.extent, self._least_passed()
        first = None if passed is None else extent.position(extent.up_to(passed))
        for slot in range(extent.slot_of(first.ledger_id), len(extent.infos)) if first is not None else ():
            info = extent.infos[slot]
            if info.end is None:
                return
            left = self._left_in(info.ledger_id)
            if not left:
                continue
            pending = self.tracker._pending_in(info.ledger_id)
            if len(left) > max(info.end.entries // RELOCATE_ONE_OF, 1):
                return
            try:
                entries = [self._managed_ledger.read(Position(info.ledger_id, entry_id)) for entry_id in left]
            except DAMAGED:     # it cannot be copied, so its ledger stays
                return
            for entry in entries:
                is_pending = pending is not None and entry.position.entry_id in pending
                if not (self._is_for_long(entry) if is_pending else self._is_kept(entry)):
                    return
            yield entries

    def _bounds_disk(self) -> bool:
        return bool(self.readers) and all(reader._bounds_disk for reader in self.readers)

    def _first_of_worth(self) -> list[StoredEntry]:
        """The unacknowledged entries of the first sealed ledgers, if their copies are enough smaller than the ledgers;
        those of a few ledgers at a time. Ends where a message is not for long."""
        size_bytes, copied_bytes, worth = 0, 0.0, 0
        extent, passed = self._managed_ledger.extent, self._least_passed()
        first = None if passed is None else extent.position(extent.up_to(passed))
        lefts: list[tuple[int, BitMap]] = []
        for slot in range(extent.slot_of(first.ledger_id), len(extent.infos)) if first is not None else ():
            info = extent.infos[slot]
            if info.end is None:
                break
            left = self._left_in(info.ledger_id)
            # (Not those that no reader has come to: they are next.)
            if left and left - (self._known_in(info.ledger_id) or type(left)()):
                break
            size_bytes += info.end.length_bytes
            if left:
                copied_bytes += info.end.length_bytes * len(left) / info.end.entries
                lefts.append((info.ledger_id, left))
            if copied_bytes <= WORTH_SHARE * size_bytes:
                worth = len(lefts)
        found: list[StoredEntry] = []
        found_bytes = 0
        for ledger_id, left in lefts[:worth]:
            if found_bytes >= WORTH_BYTES:
                break
            pending, entries = self.tracker._pending_in(ledger_id), []
            for entry_id in left:
                try:
                    entry = self._managed_ledger.read(Position(ledger_id, entry_id))
                except DAMAGED:     # it cannot be copied, so its ledger stays
                    return found
                is_pending = pending is not None and entry_id in pending
                if not (self._is_for_long(entry) if is_pending else self._is_kept(entry)):
                    return found
                entries.append(entry)
                found_bytes += len(entry)
            found += entries
        return found

    def _is_kept(self, entry: StoredEntry) -> bool:
        """Whether each subscription's reader has the message, and keeps it for long."""
        is_read = len(self.readers) == len(self.subscriptions())
        return is_read and all(reader._keeps(entry) for reader in self.readers)

    def _left_in(self, ledger_id: int) -> "BitMap":
        """The entries of a ledger that some subscription has neither acknowledged nor set aside."""
        late("pyroaring")
        from pyroaring import BitMap

        left = [
            cursor.unacknowledged_in(ledger_id)
            for cursor in self.subscriptions()
            if cursor.mark_delete_position.ledger_id <= ledger_id and not cursor.closed
        ]
        return BitMap.union(*left) if left else BitMap()

    def _is_for_long(self, entry: StoredEntry) -> bool:
        """Whether a message is not due soon."""
        soon = self._managed_ledger._clock.now_ms() + RELOCATE_AHEAD_MS
        return self.tracker.deliver_at(*entry.position, published_due_ms(entry)) > soon

    # --- decisions ---------------------------------------------------------------------------

    def clear(self, *, acknowledge: bool = False) -> int:
        """Remove the snapshots and the decisions about single messages. Returns how many messages were pending.

        These are indexed again when the log is next read, or, with `acknowledge`, acknowledged instead.
        """
        with self.lock:
            self.read_up()
            pending = self.tracker.number_of_delayed_messages
            for message in self.tracker.list(0, 2**63) if acknowledge else ():
                self._acknowledge(Position(message.ledger_id, message.entry_id))
            for cursor in self.subscriptions() if acknowledge else ():
                cursor.flush()
            self.tracker.clear()
            self._first_ledger_id = -1
            return pending

    def cancel(self, position: Position) -> bool:
        """Cancel a pending message: it is acknowledged and never delivered. Durable at return. False: not pending."""
        position = checked_position(position)
        with self.lock:
            cancelled = self.tracker.cancel(*position)
            if cancelled:
                self._acknowledge(position)
                for cursor in self.subscriptions():
                    # A tracker in memory forgets the decision at a crash, and so does a change of the kind of tracker.
                    cursor.flush()
            return cancelled

    def _acknowledge(self, position: Position) -> None:
        """Acknowledge for all subscriptions that have the message: one made after the ledger was trimmed has not."""
        for cursor in self.subscriptions():
            if cursor.is_aside(position) or self._managed_ledger.is_valid(position):
                cursor.acknowledge(position)


class SharedDelayedIndex(DelayedIndex):
    """One index for all subscriptions, built by a separate cursor (PIP-195; not in any release of Pulsar).

    Any dispatcher's poll puts scheduled messages into the replay queues of all. A subscription without a dispatcher at
    that time, or whose process dies, finds them by its own cursor: they are after its mark-delete position, due, and no
    longer known here.
    """

    def __init__(self, tracker: DelayedDeliveryTracker, managed_ledger: OpenManagedLedger) -> None:
        # The list of subscriptions, and the number of changes that it reflects.
        self._subscribed: tuple[int, list[ManagedCursor]] = -1, []
        super().__init__(tracker, managed_ledger, managed_ledger.open_cursor(BUILDING_CURSOR, "earliest"))
        self._skip = self._is_over

    def is_of(self, cursor: ManagedCursor) -> bool:
        return True

    def subscriptions(self) -> list[ManagedCursor]:
        changes = self._managed_ledger.cursor_changes
        if changes != self._subscribed[0]:
            cursors = self._managed_ledger.cursors.items()
            self._subscribed = changes, [cursor for name, cursor in cursors if name not in INNER_CURSORS]
        return self._subscribed[1]

    def _is_over(self, position: Position) -> bool:
        # The building cursor acknowledges nothing by itself; after `clear` it meets cancelled messages again.
        cursors = self.subscriptions()
        return bool(cursors) and all(cursor.is_acknowledged(position) for cursor in cursors)

    def build(self) -> None:
        """Read on, and add delayed messages. The subscriptions find due ones by their own cursors."""
        self.read_up()

    def _known_in(self, ledger_id: int) -> "BitMap | None":
        # What one reader has taken may be delayed for another, after a rewind or if the clock was set back.
        found: BitMap | None = self.tracker._pending_in(ledger_id)
        return found

    def _passed(self, position: Position) -> None:
        super()._passed(position)
        # A new cursor may be positioned before entries that were trimmed before it was opened.
        last = self._managed_ledger.last_position
        if last is not None:
            self._cursor.mark_delete(min(position, last))
