"""A cursor: one subscription's place in a managed ledger. Made by ManagedLedger.open_cursor.

What is acknowledged (seglog.ledger.acknowledgements) is durable; up to where was read is not. Acknowledgements are
written to the disk at most so often as managedLedgerDefaultMarkDeleteRateLimit says, and by `flush` and `close`. So a
crash brings entries again that were acknowledged, and never takes one that was not. What moves backwards, or is no
acknowledgement, is written at once.
"""
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from seglog.errors import InvalidArgumentError, LogClosedError, OffsetOutOfRangeError, SeglogError
from seglog.ledger.acknowledgements import PartOfBatch, bitmap
from seglog.ledger.cursor_file import CursorState
from seglog.ledger.ledger_metadata import changed_properties
from seglog.ledger.managed_reader import ManagedReader, Predicate
from seglog.ledger.position import EARLIEST, LATEST, Position, checked_int, checked_position
from seglog.ledger.stored_entry import StoredEntry, as_consumers_get_them

if TYPE_CHECKING:
    from pyroaring import BitMap

    from seglog.ledger.extent import LedgerExtent

DEFAULT_READ = 100


Listener = Callable[[Sequence[Position], Position], None]


class Home(Protocol):
    """What a cursor asks of its managed ledger beside reading."""

    def write_cursor(self, state: CursorState) -> None:
        """Durably. Raises LogFailedError, LogClosedError."""

    def cursor_passed(self, before: Position, now: Position) -> None:
        """A cursor's mark-delete position went forward: ledgers may be trimmed."""


class _Repairing:
    """Puts things in order when an exception from outside came in the middle of a change."""

    def __init__(self, repair: Callable[[], None]) -> None:
        self._repair = repair

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._repair()


class Cursor:
    """Threads may share it. Every method raises LogClosedError once it, or the managed ledger, is closed."""

    def __init__(self, name: str, topic: ManagedReader, home: Home, state: CursorState) -> None:
        self.name = name
        self._topic = topic
        self._home = home
        # Guards all below. The managed ledger's lock may be taken with it held, never the other way round.
        self._lock = threading.RLock()
        self._acknowledged = state.acknowledged
        self._properties = dict(state.properties)
        # The last entry that was read, or passed over.
        self._read = self._acknowledged.mark_delete
        self._repairing = _Repairing(lambda: self._acknowledged.repair())
        self._listeners: tuple[Listener, ...] = ()
        # What the listeners are to hear: entries, and up to where all are acknowledged.
        self._news: list[tuple[Sequence[Position], Position]] = []
        self._is_dirty = False
        # The next write is not to be put off.
        self._is_due = False
        self._written_ns = topic.clock.monotonic_ns()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Cursor {self.name}: up to {self.mark_delete_position}>"

    # --- where it is -------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """All up to here is acknowledged; (-1, -1) where nothing is."""
        return self._acknowledged.mark_delete

    @property
    def read_position(self) -> Position:
        """Where `read` goes on: an entry, or the place of the next one."""
        with self._lock:
            extent = self._extent()
            begin = extent.up_to(max(self._read, self.mark_delete_position))
            found = next(self._acknowledged.unacknowledged(extent, begin, extent.count), None)
            if found is not None:
                return found
            last = max(extent.position(extent.count - 1) or EARLIEST, self._read, self.mark_delete_position)
            return Position(last.ledger_id, last.entry_id + 1)

    @property
    def properties(self) -> dict[str, str]:
        """A copy."""
        with self._lock:
            return dict(self._properties)

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, remove those that are None: all of it, durably. Raises LogFailedError."""
        with self._lock:
            self._extent()
            changed = changed_properties(self._properties, changes)
            self._is_dirty = True       # first: whatever an interrupt leaves is written by the next flush
            self._properties = changed
            self._write()

    def backlog(self) -> int:
        """How many entries are not wholly acknowledged."""
        with self._lock:
            return self._acknowledged.backlog(self._extent())

    def has_more(self) -> bool:
        """Whether `read` would give an entry now."""
        with self._lock:
            extent = self._extent()
            begin = extent.up_to(max(self._read, self.mark_delete_position))
            return next(self._acknowledged.unacknowledged(extent, begin, extent.count), None) is not None

    def is_acknowledged(self, position: Position) -> bool:
        """Whether all of an entry is acknowledged."""
        position = checked_position(position)
        with self._lock:
            return self._acknowledged.holds(position)

    @property
    def acknowledged_entries(self) -> "dict[int, BitMap]":
        """Of those behind the mark-delete position the ones that are acknowledged or set aside, by ledger: a copy."""
        with self._lock:
            return {ledger_id: bitmap(ids) for ledger_id, ids in self._acknowledged.entries.items()}

    def acknowledged_batch_indexes(self, position: Position) -> frozenset[int]:
        """Of an entry that is acknowledged in part, the numbers of the messages that are; else none."""
        position = checked_position(position)
        with self._lock:
            part = self._acknowledged.part_of(position)
            return frozenset() if part is None else frozenset(part.indexes)

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        max_entries: int = DEFAULT_READ,
        max_bytes: int | None = None,
        skip: Callable[[Position], bool] | None = None,
        skip_in: Callable[[int], "BitMap | None"] | None = None,
        *,
        supports_broker_metadata: bool | None = None,
    ) -> list[StoredEntry]:
        """The next entries that are not wholly acknowledged, none if there is none yet; goes on behind them.

        `max_bytes`: no further entry once these have so many bytes. `skip`: entries that it is true of are passed over
        and not read from the disk. (ManagedCursor.asyncReadEntriesWithSkip) `skip_in`: the same, for all entries of a
        ledger at a time. `supports_broker_metadata`: whether a client reads that asks for the broker's part; it gets it
        where exposingBrokerEntryMetadataToClientEnabled is set, too. None: no client reads, and gets what is stored.
        """
        with self._lock:
            # In one step, and last: of what an exception or a signal interrupts, nothing was read.
            found, self._read = self.read_after(self._read, max_entries, max_bytes, skip, skip_in)
        if supports_broker_metadata is None:
            return found
        return as_consumers_get_them(found, self._topic.config.exposes_broker_metadata, supports_broker_metadata)

    def read_after(
        self,
        after: Position,
        max_entries: int = DEFAULT_READ,
        max_bytes: int | None = None,
        skip: Callable[[Position], bool] | None = None,
        skip_in: Callable[[int], "BitMap | None"] | None = None,
    ) -> tuple[list[StoredEntry], Position]:
        """What `read` would give if it had come to `after`, and how far that is. The cursor stays where it is."""
        after = checked_position(after)
        checked_int("a number of entries", max_entries)
        if max_bytes is not None:
            checked_int("a number of bytes", max_bytes)
        with self._lock:
            extent = self._extent()
            found: list[StoredEntry] = []
            size_bytes = 0
            begin = extent.up_to(max(after, self.mark_delete_position))
            for ledger_id, ids in self._acknowledged.unacknowledged_runs(extent, begin, extent.count):
                skipped = skip_in(ledger_id) if skip_in is not None else None
                wanted: Iterable[int] = bitmap(ids) - skipped if skipped else ids
                if skip is None and max_bytes is None:
                    asked = list(islice(wanted, max(max_entries - len(found), 0) + 1))
                    is_last = len(found) + len(asked) > max_entries
                    read = self._read_run(ledger_id, asked[:-1] if is_last else asked, found)
                    after = found[-1].position if read else after
                    if is_last or read < len(asked):
                        return found, after
                    after = Position(ledger_id, ids[-1])
                    continue
                for entry_id in wanted:
                    if len(found) >= max_entries or (max_bytes is not None and size_bytes >= max_bytes and found):
                        return found, after
                    # A step in C: the class's own __new__ is one in Python.
                    position = tuple.__new__(Position, (ledger_id, entry_id))
                    if skip is None or not skip(position):
                        try:
                            entry = self._topic.read(position)
                        except SeglogError:
                            if not found:
                                raise
                            return found, after     # the next reading meets it again
                        found.append(entry)
                        size_bytes += len(entry) if max_bytes is not None else 0
                    after = position
                after = Position(ledger_id, ids[-1])
            return found, after

    def _read_run(self, ledger_id: int, entry_ids: list[int], found: list[StoredEntry]) -> int:
        """Put these entries of a ledger behind those that were found, as far as they can be read; how many were."""
        if not entry_ids:
            return 0
        try:
            entries = self._topic.read_run(ledger_id, entry_ids)
        except SeglogError:
            if not found:
                raise
            return 0        # the next reading meets it again
        found += entries
        return len(entries)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        with self._lock:
            self._read = self.mark_delete_position

    def skip(self, count: int) -> int:
        """Acknowledge the next `count` entries that are not, from the first one; how many there were."""
        if checked_int("a number of entries", count) < 0:
            raise InvalidArgumentError(f"{count} entries cannot be skipped")
        with self._lock:
            extent = self._extent()
            last, skipped = None, 0
            begin = extent.up_to(self.mark_delete_position)
            for position in self._acknowledged.unacknowledged(extent, begin, extent.count):
                if skipped == count:
                    break
                last, skipped = position, skipped + 1
            if last is not None:
                self._mark_delete(last)
        self._tell()
        return skipped

    # --- setting aside -----------------------------------------------------------------------

    @property
    def aside(self) -> "dict[int, BitMap]":
        """The entries that were set aside and are not acknowledged, by ledger: a copy."""
        with self._lock:
            return {ledger_id: bitmap(ids) for ledger_id, ids in self._acknowledged.aside.items()}

    @property
    def aside_ledgers(self) -> list[int]:
        """The ledgers that they are of."""
        return list(self._acknowledged.aside)

    def is_aside(self, position: Position) -> bool:
        """Whether an entry was set aside, and is not wholly acknowledged."""
        position = checked_position(position)
        with self._lock:
            return self._acknowledged.is_aside(position)

    def unacknowledged_in(self, ledger_id: int) -> "BitMap":
        """The entries of a ledger that are neither acknowledged nor set aside."""
        checked_int("a ledger's id", ledger_id)
        with self._lock:
            extent = self._extent()
            slot = extent.slot_of(ledger_id)
            if slot < 0:
                return bitmap()
            begin = extent.before(Position(ledger_id, 0))
            runs = self._acknowledged.unacknowledged_runs(extent, begin, begin + extent.entries_of(slot))
            return bitmap(entry_id for _, ids in runs for entry_id in ids)

    def set_aside(self, entries: Sequence[tuple[Position, int]]) -> None:
        """Let the mark-delete position go over entries that are kept elsewhere, each with the number of its messages.
        Those that are acknowledged stay so. Durable at return. Raises OffsetOutOfRangeError, and then nothing has
        changed."""
        entries = [
            (checked_position(position), checked_int("a number of messages", size)) for position, size in entries
        ]
        with self._lock, self._repairing:
            extent = self._extent()
            before = self.mark_delete_position
            for position, _ in entries:
                self._refuse_missing(extent, position)
            wanted = [one for one in entries if not self._acknowledged.covers(one[0])]
            if not wanted:
                return
            changed = self._acknowledged.copy()
            changed.set_aside(wanted)
            changed.advance(extent)
            # On the disk first: from the moment that it counts, their ledger may be trimmed.
            self._home.write_cursor(CursorState(self.name, changed, self._properties))
            self._acknowledged = changed
            self._changed(before)
        self._tell()

    # --- acknowledging -----------------------------------------------------------------------

    def mark_delete(self, position: Position, properties: Mapping[str, str | None] | None = None) -> None:
        """Acknowledge all up to a position; nothing where that is acknowledged already.

        `properties`: changed in the same step, as `update_properties` does; both are on the disk at return. Raises
        OffsetOutOfRangeError for a position behind the last entry.
        """
        position = checked_position(position)
        with self._lock, self._repairing:
            if properties is not None:
                self._refuse_beyond(self._extent(), position)
                changed = changed_properties(self._properties, properties)
                self._is_dirty = self._is_due = True        # first: as in update_properties
                self._properties = changed
            self._mark_delete(position)
            if self._is_due:
                self._write()
        self._tell()

    def _mark_delete(self, position: Position) -> None:
        extent = self._extent()
        self._refuse_beyond(extent, position)
        before = self.mark_delete_position
        took_back = self._acknowledged.take_back_up_to(position)
        if position > before:
            self._acknowledged.mark(position)
            self._acknowledged.advance(extent)
        if position > before or took_back:
            self._changed(before)

    def acknowledge(
        self,
        position: Position,
        batch_indexes: Iterable[int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Acknowledge one entry, or of its messages those with the numbers `batch_indexes`, counted from 0.

        `batch_size`: how many messages the entry holds; read from it where it is not given. Raises
        OffsetOutOfRangeError if there is no such entry, InvalidArgumentError for a number that it does not have.
        """
        position = checked_position(position)
        if batch_indexes is not None:
            batch_indexes = [checked_int("the number of a message", index) for index in batch_indexes]
        if batch_size is not None:
            checked_int("a number of messages", batch_size)
        with self._lock, self._repairing:
            extent = self._extent()
            before = self.mark_delete_position
            if self._acknowledge(extent, position, batch_indexes, batch_size):
                whole = self._acknowledged.holds(position)
                self._acknowledged.advance(extent)
                self._changed(before, (position,) if whole else ())
        self._tell()

    def acknowledge_many(self, positions: Iterable[Position]) -> None:
        """Acknowledge entries. Raises OffsetOutOfRangeError, and then none is."""
        with self._lock, self._repairing:
            extent = self._extent()
            listed = [checked_position(position) for position in positions]
            before = self.mark_delete_position
            for position in listed:
                self._refuse_missing(extent, position)
            for position in listed:
                self._acknowledge(extent, position, None, None)
            self._acknowledged.advance(extent)
            self._changed(before, listed)
        self._tell()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with the entries that were acknowledged, each time, and with the mark-delete position; in the
        thread that acknowledges, without the cursor's lock. It must never raise."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Listener) -> None:
        """Call it no more; nothing where it is not called."""
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

    def _tell(self) -> None:
        while self._news:
            try:
                news = self._news.pop(0)
            except IndexError:      # another thread tells it
                return
            for listener in self._listeners:
                listener(*news)

    def _acknowledge(
        self, extent: "LedgerExtent", position: Position, batch_indexes: Iterable[int] | None, batch_size: int | None
    ) -> bool:
        """Whether it changed anything."""
        if self._acknowledged.holds(position):
            return False
        is_aside = self._acknowledged.is_aside(position)
        if not is_aside:
            self._refuse_missing(extent, position)
        if batch_indexes is None:
            if not self._acknowledged.take_back(position):
                self._acknowledged.add(position)
            return True
        indexes = list(batch_indexes)
        part = self._acknowledged.part_of(position)
        if part is None and is_aside:
            part = PartOfBatch(1, bitmap())
        if batch_size is None:
            batch_size = part.size if part is not None else self._topic.read(position).message_count
        if part is not None and part.size != batch_size:
            raise InvalidArgumentError(f"entry {position} has {part.size} messages, not {batch_size}")
        if not indexes or not all(0 <= index < batch_size for index in indexes):
            raise InvalidArgumentError(f"messages of entry {position} are numbered from 0 to {batch_size - 1}")
        self._acknowledged.add_part(position, batch_size, indexes)
        return True

    def clear_backlog(self) -> None:
        """Acknowledge everything that is there now."""
        with self._lock:
            last = self._topic.last_position
            if last is not None:
                self._mark_delete(last)
        self._tell()

    # --- seeking -----------------------------------------------------------------------------

    def seek(self, position: Position) -> None:
        """All before the position is acknowledged, nothing from it on; read on from there. Durable at return.

        EARLIEST, LATEST, or any other: the first entry at or behind it comes next.
        """
        position = checked_position(position)
        with self._lock:
            extent = self._extent()
            self._reset(extent.position(extent.before(position) - 1) or EARLIEST)

    def _reset(self, mark_delete: Position) -> None:
        before = self.mark_delete_position
        self._acknowledged = self._acknowledged.after_seek(mark_delete, self._topic.extent)
        self._read = mark_delete
        self._write()
        if mark_delete > before:
            self._home.cursor_passed(before, mark_delete)

    def seek_by_time(self, timestamp_ms: int) -> None:
        """Seek to the first entry whose time is `timestamp_ms` or later; to the end if there is none yet.

        Which time that is: ManagedLedger.position_at_time.
        """
        with self._lock:
            end = self._topic.last_position
            self._seek_or_end(self._topic.position_at_time(timestamp_ms), end)

    def seek_by_index(self, index: int) -> None:
        """Seek to the entry that holds the message with this index, or the first one behind it; else to the end."""
        with self._lock:
            end = self._topic.last_position
            self._seek_or_end(self._topic.position_at_index(index), end)

    def _seek_or_end(self, found: Position | None, end: Position | None) -> None:
        """`end`: as of before the search, so that what came during it is not passed over."""
        if found is not None:
            self.seek(found)
        else:
            self._reset(end or EARLIEST)

    def find_newest_matching(self, predicate: Predicate) -> Position | None:
        """Of the entries behind the mark-delete position: ManagedLedger.find_newest_matching."""
        first = self._topic.next_valid(self.mark_delete_position)
        return None if first is None else self._topic.find_newest_matching(predicate, first, LATEST)

    # --- expiry ------------------------------------------------------------------------------

    def is_oldest_message_expired(self) -> bool:
        """Whether the first entry that is not acknowledged is older than message.ttl. (isOldestMessageExpired)"""
        with self._lock:
            oldest = self._topic.next_valid(self.mark_delete_position)
            horizon_ms = self._horizon_ms()
            return oldest is not None and horizon_ms is not None and self._time_of(oldest) < horizon_ms

    def expire(self) -> int:
        """Acknowledge all up to the first entry that is younger than message.ttl; how many entries that were.

        By the broker's time, where an entry has one: its client's clock may be wrong (Pulsar's #21347). Metadata is
        not parsed then. (PersistentMessageExpiryMonitor)
        """
        with self._lock:
            horizon_ms = self._horizon_ms()
            if horizon_ms is None:
                return 0
            extent = self._extent()
            begin = extent.up_to(self.mark_delete_position)
            live = self._first_live(extent, begin, horizon_ms)
            end = extent.count if live is None else extent.before(live)
            last = extent.position(end - 1)
            if last is None or end <= begin:
                return 0
            backlog = self.backlog()
            self._mark_delete(last)
            expired = backlog - self.backlog()
        self._tell()
        return expired

    def _first_live(self, extent: "LedgerExtent", begin: int, horizon_ms: int) -> Position | None:
        """The first entry that is neither acknowledged nor expired."""
        if self._topic.config.use_broker_timestamps:
            after = self.mark_delete_position
            while (found := self._topic.position_at_time(horizon_ms, after)) is not None:
                if not self._acknowledged.holds(found):
                    return found
                after = Position(found.ledger_id, self._acknowledged.run_from(found))
            return None
        for position in self._acknowledged.unacknowledged(extent, begin, extent.count):
            if self._time_of(position) >= horizon_ms:
                return position
        return None

    def _horizon_ms(self) -> int | None:
        """What is older is expired; None where nothing ever is."""
        ttl_s = self._topic.config.message_ttl_s
        return self._topic.clock.now_ms() - ttl_s * 1000 if ttl_s else None

    def _time_of(self, position: Position) -> int:
        entry = self._topic.read(position)
        return entry.timestamp if self._topic.config.use_broker_timestamps else entry.publish_time

    # --- the disk ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all acknowledgements are on the disk. Raises LogFailedError."""
        with self._lock:
            if self._is_dirty:
                self._write()

    def close(self) -> None:
        """Flush, and refuse everything from then on. The managed ledger's close does it, too. Twice is fine."""
        with self._lock:
            if not self._is_closed:
                try:
                    self.flush()
                finally:
                    self._is_closed = True

    def abandon(self) -> None:
        """Refuse everything from now on; what was not flushed is lost."""
        self._is_closed = True

    @property
    def closed(self) -> bool:
        return self._is_closed

    def _changed(self, before: Position, acknowledged: Sequence[Position] = ()) -> None:
        now = self.mark_delete_position
        if self._listeners:
            self._news.append((acknowledged, now))
        self._is_dirty = True
        rate = self._topic.config.mark_delete_per_s
        if self._is_due or not rate or self._topic.clock.monotonic_ns() - self._written_ns >= 1_000_000_000 // rate:
            self._write()
        if now > before:
            self._home.cursor_passed(before, now)

    def _write(self) -> None:
        self._home.write_cursor(CursorState(self.name, self._acknowledged, self._properties))
        self._is_dirty = self._is_due = False
        self._written_ns = self._topic.clock.monotonic_ns()

    # --- refusals ----------------------------------------------------------------------------

    def _extent(self) -> "LedgerExtent":
        if self._is_closed:
            raise LogClosedError(f"the cursor {self.name} was closed", file=self._topic.path)
        return self._topic.extent

    def _refuse_beyond(self, extent: "LedgerExtent", position: Position) -> None:
        if position > (extent.position(extent.count - 1) or EARLIEST) and position > self.mark_delete_position:
            raise OffsetOutOfRangeError(f"position {position} is after the last entry", file=self._topic.path)

    def _refuse_missing(self, extent: "LedgerExtent", position: Position) -> None:
        if not extent.holds(position) and position > self.mark_delete_position:
            raise OffsetOutOfRangeError(f"no entry has position {position}", file=self._topic.path)
