"""A cursor: the position of one subscription in a managed ledger. Made by ManagedLedger.open_cursor.

Acknowledgements (ledger.managed.acknowledgements) are durable; the read position is not. Acknowledgements are written
to the disk at most as often as managedLedgerDefaultMarkDeleteRateLimit says, and by `flush` and `close`. So after a
crash, acknowledged entries may be delivered again, but unacknowledged ones are never lost. A change that moves
backwards, or is not an acknowledgement, is written at once.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.quiet_cursor import QuietCursor
from seglog.errors import InvalidArgumentError, LogClosedError, OffsetOutOfRangeError, SeglogError
from seglog.ledger.ledger_metadata import changed_properties
from seglog.ledger.managed.acknowledgements import Acknowledgements, PartOfBatch, bitmap
from seglog.ledger.managed.cursor_file import CursorState
from seglog.ledger.managed.reader import ManagedReader, Predicate
from seglog.ledger.position import EARLIEST, LATEST, Position, checked_int, checked_position
from seglog.ledger.stored_entry import StoredEntry, as_consumers_get_them

if TYPE_CHECKING:
    from pyroaring import BitMap

    from seglog.ledger.managed.extent import LedgerExtent

DEFAULT_READ = 100


Listener = Callable[[Sequence[Position], Position], None]


class CursorOwner(Protocol):
    """What a cursor needs of its managed ledger besides reading."""

    def write_cursor(self, state: CursorState) -> None:
        """Write the state durably. Raises LogFailedError, LogClosedError."""

    def cursor_passed(self, before: Position, now: Position) -> None:
        """Note that a cursor's mark-delete position moved forward: ledgers may be trimmed."""


class _Repairing:
    """Restores order if an asynchronous exception came in the middle of a change."""

    def __init__(self, repair: Callable[[], None]) -> None:
        self._repair = repair

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._repair()


class ManagedCursor(QuietCursor):
    """A subscription's cursor, called `name`. Thread-safe. Methods raise LogClosedError once it or the managed ledger
    is closed."""

    _acknowledged: Acknowledgements
    _read: Position

    def __init__(self, name: str, topic: ManagedReader, home: CursorOwner, state: CursorState) -> None:
        self.name = name
        self._topic, self._shown = topic, topic._shown
        self._home = home
        # Guards everything below. While holding it, the managed ledger's lock may be taken, never the other way round.
        self._lock = QuickLock()
        self._acknowledged = state.acknowledged
        self._properties = dict(state.properties)
        # The last entry that was read or skipped.
        self._read = self._acknowledged.mark_delete
        self._repairing = _Repairing(lambda: self._acknowledged.repair())
        self._listeners: tuple[Listener, ...] = ()
        # What to tell the listeners: entries, and up to where all are acknowledged.
        self._news: list[tuple[Sequence[Position], Position]] = []
        self._is_dirty = False
        # The next write must not be delayed.
        self._is_due = False
        self._written_ns = topic._clock.monotonic_ns()
        # Calls returned whose acknowledgements are not on the disk, and no caller has got an error since.
        self._has_unstored = False
        self._is_closed = False
        # The journal that has its acknowledgements, and up to where this has them, too.
        self._covers: Callable[[], tuple[int, int] | None] = lambda: state.journal
        self._is_journaled = False

    def __repr__(self) -> str:
        return f"<ManagedCursor {self.name}: up to {self.mark_delete_position}>"

    # --- position -------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged; (-1, -1) if nothing is."""
        return self._acknowledged.mark_delete

    @property
    def read_position(self) -> Position:
        """Where `read` continues: an entry, or the place of the next one."""
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
        """Set properties, and remove those that are None, in one durable step. Raises LogFailedError."""
        with self._lock:
            self._extent()
            changed = changed_properties(self._properties, changes)
            self._is_dirty = True       # first, so that after an interrupt the next flush writes what is left
            self._properties = changed
            self._write()

    @property
    def backlog(self) -> int:
        """The number of entries that are not fully acknowledged."""
        with self._lock:
            return self._acknowledged.backlog(self._extent())

    def has_more(self) -> bool:
        """Whether `read` would return an entry now."""
        with self._lock:
            extent = self._extent()
            begin = extent.up_to(max(self._read, self.mark_delete_position))
            return next(self._acknowledged.unacknowledged(extent, begin, extent.count), None) is not None

    def is_acknowledged(self, position: Position) -> bool:
        """Whether an entry is fully acknowledged."""
        position = checked_position(position)
        with self._lock:
            return self._acknowledged.holds(position)

    @property
    def acknowledged_entries(self) -> "dict[int, BitMap]":
        """Return a copy of the entries after the mark-delete position that are acknowledged or set aside, by ledger."""
        with self._lock:
            return {ledger_id: bitmap(ids) for ledger_id, ids in self._acknowledged.entries.items()}

    def acknowledged_batch_indexes(self, position: Position) -> frozenset[int]:
        """Return the numbers of the acknowledged messages of a partly acknowledged entry; otherwise none."""
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
        """Read the next entries that are not fully acknowledged, if there are any, and move on behind them.

        `max_bytes`: read no further entry once these have this many bytes. `skip`: entries for which it returns True
        are skipped and not read from the disk. (ManagedCursor.asyncReadEntriesWithSkip) `skip_in`: the same, for all
        entries of a ledger at a time. `supports_broker_metadata`: whether the reading client asked for broker metadata;
        it gets it if exposingBrokerEntryMetadataToClientEnabled is also set. With None, the reader is not a
        client and gets entries as stored.
        """
        with self._lock:
            # In one step, and last: after an exception or a signal, nothing counts as read.
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
        """Return what `read` would return after position `after`, and its new position. The cursor does not move."""
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
                wanted: Iterable[int] = ids
                if skipped:
                    # (A bitmap costs more than the one entry that there often is.)
                    wanted = bitmap(ids) - skipped if len(ids) > 1 else [one for one in ids if one not in skipped]
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
                    # One step in C: the class's own __new__ is Python code.
                    position = tuple.__new__(Position, (ledger_id, entry_id))
                    if skip is None or not skip(position):
                        try:
                            entry = self._topic.read(position)
                        except SeglogError:
                            if not found:
                                raise
                            return found, after     # the next read meets it again
                        found.append(entry)
                        size_bytes += len(entry) if max_bytes is not None else 0
                    after = position
                after = Position(ledger_id, ids[-1])
            return found, after

    def _pass_slowly(self, ledger_id: int, entry_id: int) -> bool:
        """Count an entry that was just added as read if it is the one that `read` would return next; return whether it
        is. With the lock, where a kernel did not find out."""
        extent, acknowledged = self._shown.extent, self._acknowledged
        if extent is None or not extent.ids:
            return False
        position = Position(ledger_id, entry_id)
        last = max(self._read, acknowledged.mark_delete)
        # (Nothing can be between two neighbours of a ledger.)
        if last != (ledger_id, entry_id - 1) and extent.before(position) != extent.up_to(last):
            return False
        if acknowledged.entries and acknowledged.covers(position):
            return False
        # (An entry that was just added is in the ledger that grows, unless that was sealed meanwhile.)
        if extent.growing_id != ledger_id and not extent.holds(position):
            return False
        self._read = position
        return True

    def _next_after(self, after: Position | None, skip_in: Callable[[int], "BitMap | None"] | None) -> Position | None:
        """Where `read_after` begins after this position, or `read` if it is None: the entry that it could not read."""
        with self._lock:
            extent = self._extent()
            begin = extent.up_to(max(self._read if after is None else after, self.mark_delete_position))
            for ledger_id, ids in self._acknowledged.unacknowledged_runs(extent, begin, extent.count):
                skipped = skip_in(ledger_id) if skip_in is not None else None
                wanted: Iterable[int] = bitmap(ids) - skipped if skipped else ids
                for entry_id in wanted:
                    return Position(ledger_id, entry_id)
            return None

    def _read_run(self, ledger_id: int, entry_ids: list[int], found: list[StoredEntry]) -> int:
        """Append these entries of a ledger to those found, as far as they can be read; return how many."""
        if not entry_ids:
            return 0
        try:
            entries = self._topic._read_run(ledger_id, entry_ids)
        except SeglogError:
            if not found:
                raise
            return 0        # the next read meets it again
        found += entries
        return len(entries)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        with self._lock:
            self._read = self.mark_delete_position

    def skip(self, count: int) -> int:
        """Acknowledge the first `count` entries that are not acknowledged yet; return how many there were."""
        if checked_int("a number of entries", count) < 0:
            raise InvalidArgumentError(f"a number of entries must be 0 or more, not {count}")
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
        """A copy of the entries that were set aside and are not acknowledged, by ledger."""
        with self._lock:
            return {ledger_id: bitmap(ids) for ledger_id, ids in self._acknowledged.aside.items()}

    @property
    def aside_count(self) -> int:
        """How many entries were set aside and are not acknowledged."""
        with self._lock:
            return self._acknowledged.aside_count

    @property
    def aside_ledgers(self) -> list[int]:
        """Return the ids of the ledgers that have entries set aside."""
        return list(self._acknowledged.aside)

    def is_aside(self, position: Position) -> bool:
        """Whether an entry was set aside and is not fully acknowledged."""
        position = checked_position(position)
        with self._lock:
            return self._acknowledged.is_aside(position)

    def unacknowledged_in(self, ledger_id: int) -> "BitMap":
        """Return the entries of a ledger that are neither acknowledged nor set aside."""
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
        """Let the mark-delete position pass entries that are kept elsewhere, each given with its number of messages.
        Acknowledged ones stay acknowledged. Durable at return. Raises OffsetOutOfRangeError; then nothing has
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
            # On the disk first: as soon as this is in effect, their ledger may be trimmed.
            self._home.write_cursor(CursorState(self.name, changed, self._properties, self._covers()))
            self._acknowledged = changed
            self._changed(before)
        self._tell()

    # --- acknowledging -----------------------------------------------------------------------

    def mark_delete(self, position: Position, properties: Mapping[str, str | None] | None = None) -> None:
        """Acknowledge all entries up to a position; has no effect if they already are.

        `properties`: changed in the same step, as by `update_properties`; both are on the disk at return. Raises
        OffsetOutOfRangeError for a position after the last entry.
        """
        position = checked_position(position)
        with self._lock, self._repairing:
            if properties is not None:
                self._refuse_beyond(self._extent(), position)
                changed = changed_properties(self._properties, properties)
                self._is_dirty = self._is_due = True        # first, as in update_properties
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
        """Acknowledge one entry, or only its messages with the numbers `batch_indexes`, counted from 0.

        `batch_size`: the entry's number of messages; read from the entry if not given. Raises OffsetOutOfRangeError if
        there is no such entry, InvalidArgumentError for a number that it does not have.
        """
        position = checked_position(position)
        if batch_indexes is not None:
            batch_indexes = [checked_int("the number of a message", index) for index in batch_indexes]
        if batch_size is not None:
            checked_int("a number of messages", batch_size)
        with self._lock, self._repairing:
            extent = self._extent()
            before = self.mark_delete_position
            if batch_indexes is None and extent.holds(position) and self._acknowledged.add_next(position):
                self._changed(before, (position,))
            elif self._acknowledge(extent, position, batch_indexes, batch_size):
                whole = self._acknowledged.holds(position)
                self._acknowledged.advance(extent)
                self._changed(before, (position,) if whole else ())
        self._tell()

    def acknowledge_many(self, positions: Iterable[Position]) -> None:
        """Acknowledge entries. Raises OffsetOutOfRangeError; then none has been acknowledged."""
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
        """Call `listener` each time with the entries that were acknowledged, and the mark-delete position. It runs in
        the acknowledging thread, without the cursor's lock, and must never raise."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling `listener`; has no effect if it is not registered."""
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

    def _tell(self) -> None:
        while self._news:
            try:
                news = self._news.pop(0)
            except IndexError:      # another thread tells them
                return
            for listener in self._listeners:
                listener(*news)

    def _acknowledge(
        self, extent: "LedgerExtent", position: Position, batch_indexes: Iterable[int] | None, batch_size: int | None
    ) -> bool:
        """Acknowledge; return whether this changed anything."""
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
            raise InvalidArgumentError(f"the message numbers of entry {position} must be from 0 to {batch_size - 1}")
        self._acknowledged.add_part(position, batch_size, indexes)
        return True

    def clear_backlog(self) -> None:
        """Acknowledge all present entries, and those that were set aside."""
        with self._lock:
            self._extent()
            last = self._topic.last_position
            if last is not None:
                self._mark_delete(last)
            before = self.mark_delete_position
            if self._acknowledged.take_back_up_to(LATEST):      # their ledgers may be gone
                self._changed(before)
        self._tell()

    # --- seeking -----------------------------------------------------------------------------

    def seek(self, position: Position) -> None:
        """Acknowledge everything before the position and nothing from it on, and continue reading there. Durable.

        EARLIEST, LATEST, or any other: the next entry read is the first one at or after it.
        """
        position = checked_position(position)
        with self._lock:
            extent = self._extent()
            self._reset(extent.position(extent.before(position) - 1) or EARLIEST)

    def _reset(self, mark_delete: Position) -> None:
        self._extent()      # refuses one that was deleted: it must not come back
        before = self.mark_delete_position
        self._acknowledged = self._acknowledged.after_seek(mark_delete, self._topic.extent)
        self._read = mark_delete
        self._write()
        if mark_delete > before:
            self._home.cursor_passed(before, mark_delete)

    def seek_by_time(self, timestamp_ms: int) -> None:
        """Seek to the first entry whose time is `timestamp_ms` or later; to the end if there is none yet.

        For which time counts, see ManagedLedger.position_at_time.
        """
        with self._lock:
            end = self._topic.last_position
            self._seek_or_end(self._topic.position_at_time(timestamp_ms), end)

    def seek_by_index(self, index: int) -> None:
        """Seek to the entry that has the message with this index, or the first one after it; otherwise to the end."""
        with self._lock:
            end = self._topic.last_position
            self._seek_or_end(self._topic.position_at_index(index), end)

    def _seek_or_end(self, found: Position | None, end: Position | None) -> None:
        """Seek. `end`: as of before the search, so that entries added during it are not skipped."""
        if found is not None:
            self.seek(found)
        else:
            self._reset(end or EARLIEST)

    def find_newest_matching(self, predicate: Predicate) -> Position | None:
        """Do ManagedLedger.find_newest_matching among the entries after the mark-delete position."""
        first = self._topic.next_valid(self.mark_delete_position)
        return None if first is None else self._topic.find_newest_matching(predicate, first, LATEST)

    # --- expiry ------------------------------------------------------------------------------

    def is_oldest_message_expired(self) -> bool:
        """Whether the first unacknowledged entry is older than the TTL. (isOldestMessageExpired)"""
        with self._lock:
            oldest = self._topic.next_valid(self.mark_delete_position)
            horizon_ms = self._horizon_ms()
            return oldest is not None and horizon_ms is not None and self._time_of(oldest) < horizon_ms

    def expire(self) -> int:
        """Acknowledge all entries before the first one that is younger than the TTL; return how many these were.

        By the broker's time, if an entry has one: its client's clock may be wrong (Pulsar's #21347). Metadata is not
        parsed then. (PersistentMessageExpiryMonitor)
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
            backlog = self.backlog
            self._mark_delete(last)
            expired = backlog - self.backlog
        self._tell()
        return expired

    def _first_live(self, extent: "LedgerExtent", begin: int, horizon_ms: int) -> Position | None:
        """Find the first entry that is neither acknowledged nor expired."""
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
        """Return the time before which entries are expired; None if none ever is."""
        ttl_s = self._topic.config.message_ttl_s
        return self._topic._clock.now_ms() - ttl_s * 1000 if ttl_s else None

    def _time_of(self, position: Position) -> int:
        entry = self._topic.read(position)
        return entry.timestamp if self._topic.config.use_broker_timestamps else entry.publish_time

    # --- the disk ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all acknowledgements are on the disk. Raises LogFailedError."""
        with self._lock:
            if self._is_dirty and not self._is_closed:      # a deleted one has no file
                self._write()

    def close(self) -> None:
        """Flush, and refuse all further calls. Closing the managed ledger does this, too. Idempotent."""
        with self._lock:
            if not self._is_closed:
                try:
                    self.flush()
                finally:
                    self._is_closed = True

    def _abandon(self) -> None:
        """Refuse all further calls; what was not flushed is lost."""
        self._is_closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def _journal(self) -> tuple[int, int] | None:
        """The id of the journal that has its acknowledgements, and the position up to which the cursor has them, too;
        or None if there is no journal."""
        return self._covers()

    def _keep_in_journal(self, covers: Callable[[], tuple[int, int]]) -> None:
        """From now on, acknowledgements are made durable in a journal first: this is written when it is flushed
        or closed, not after acknowledgements. `covers`: the id of the journal, and up to where its acknowledgements are
        in this. The file refers to a journal at return."""
        with self._lock:
            self._extent()
            is_first = self._covers() is None
            self._covers, self._is_journaled = covers, True
            if is_first:
                self._is_dirty = True
                self._write()

    def _changed(self, before: Position, acknowledged: Sequence[Position] = ()) -> None:
        now = self.mark_delete_position
        if self._listeners:
            self._news.append((acknowledged, now))
        self._is_dirty = True
        if self._is_due or not (self._is_journaled or self._waits_to_write()):
            self._write()
        elif not self._is_journaled:
            self._has_unstored = True
        if now > before:
            self._home.cursor_passed(before, now)

    def _waits_to_write(self) -> bool:
        """Whether its file was written less than managedLedgerDefaultMarkDeleteRateLimit ago."""
        rate, topic = self._topic.config.mark_delete_per_s, self._topic
        return rate > 0 and topic._clock.monotonic_ns() - self._written_ns < 1_000_000_000 // rate

    def _write(self) -> None:
        try:
            self._home.write_cursor(CursorState(self.name, self._acknowledged, self._properties, self._covers()))
        except SeglogError:
            self._has_unstored = False       # the caller gets it
            raise
        self._is_dirty = self._is_due = self._has_unstored = False
        self._written_ns = self._topic._clock.monotonic_ns()

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
