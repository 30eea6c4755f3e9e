"""Reads a managed ledger: by position, in order, by time, by index.

A read takes the extent (ledger.managed.extent) once and never waits. A reader that has a ledger open when it is trimmed
can read it to its end; later readers get OffsetOutOfRangeError.
"""
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

from seglog._kernels.record_batch import Record
from seglog.clock import Clock
from seglog.errors import (
    CorruptManifestError,
    LogClosedError,
    NotALogError,
    OffsetOutOfRangeError,
    SeglogError,
)
from seglog.fs.files import FileSystem
from seglog.fs.handles import OpenHandle
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.ledger import Ledger
from seglog.ledger.ledger_metadata import MAX_ID
from seglog.ledger.managed.extent import LedgerExtent, ShownLedgers
from seglog.ledger.managed.manifest import LedgerInfo, ledger_directory
from seglog.ledger.position import EARLIEST, Position, checked_int, checked_position
from seglog.ledger.stored_entry import StoredEntry

Predicate = Callable[[StoredEntry], bool]


class ManagedReader(OpenHandle):
    """The reading methods of a ManagedLedger. Thread-safe.

    Every method raises LogClosedError after `close()`, CorruptRecordError for damage, and StorageError if a file cannot
    be read. What was read stays readable after closing.
    """

    def __init__(
        self, path: Path, config: ManagedLedgerConfig, fs: FileSystem, clock: Clock, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.config = config
        self._fs = fs
        self._clock = clock
        self._looks_only = read_only
        self._shown = ShownLedgers()
        self._opened = self._shown.opened
        # Guards the opening of ledgers. Lookups take no lock.
        self._opening = threading.Lock()

    def _current(self) -> LedgerExtent:
        extent = self._shown.extent
        if extent is None:
            raise LogClosedError("the managed ledger was closed", file=self.path)
        return extent

    # --- extent ------------------------------------------------------------------------------

    @property
    def extent(self) -> LedgerExtent:
        """The ledgers as of now, with the counts of their entries."""
        return self._shown.extent or self._current()

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """The ledgers, in order. The last one may grow: then its `end` is None."""
        return self._current().infos

    @property
    def entry_count(self) -> int:
        """The number of entries that readers see, in all ledgers."""
        return self._current().count

    @property
    def size_bytes(self) -> int:
        """The size of the files of entries."""
        return self._current().size_bytes

    @property
    def first_position(self) -> Position | None:
        """The position of the first entry; None if there is none."""
        return self._current().position(0)

    @property
    def last_position(self) -> Position | None:
        """The position of the last entry; None if there is none."""
        extent = self._current()
        return extent.position(extent.count - 1)

    def next_valid(self, position: Position) -> Position | None:
        """Return the position of the first entry after a position, in any ledger; None if there is none yet."""
        extent = self._current()
        return extent.position(extent.up_to(checked_position(position)))

    def previous_valid(self, position: Position) -> Position | None:
        """Return the position of the last entry before a position; None if there is none."""
        extent = self._current()
        return extent.position(extent.before(checked_position(position)) - 1)

    def is_valid(self, position: Position) -> bool:
        """Whether there is an entry at the position."""
        return self._current().holds(checked_position(position))

    def entries_between(self, after: Position, to: Position) -> int:
        """Count the entries after `after`, up to and including `to`."""
        extent = self._current()
        return max(extent.up_to(checked_position(to)) - extent.up_to(checked_position(after)), 0)

    # --- reading -----------------------------------------------------------------------------

    def read(self, position: Position) -> StoredEntry:
        """Read one entry. Raises OffsetOutOfRangeError if there is none."""
        # Fast path: the record exists, and every type is correct. Otherwise the code below says what is wrong.
        try:
            ledger_id, entry_id = position
            get = self._opened[ledger_id]._get       # a method call would first search the type
            record = get(entry_id)
            if record is not None and type(position) is Position and type(ledger_id) is type(entry_id) is int:
                return StoredEntry(position, record)
        except (KeyError, OverflowError, TypeError, ValueError):
            pass
        ledger_id, entry_id = position = checked_position(position)
        ledger = self._opened.get(ledger_id)
        return StoredEntry(position, (ledger or self._open_ledger(ledger_id)).record(entry_id))

    def _read_run(self, ledger_id: int, entry_ids: Sequence[int]) -> list[StoredEntry]:
        """Read entries of one ledger, as far as possible. Raises what `read` raises if the first one cannot be read."""
        ledger = self._opened.get(ledger_id) or self._open_ledger(ledger_id)
        found: list[StoredEntry] = []
        try:
            records: Iterable[Record | None] = ledger._get_all(entry_ids)
        except SeglogError:
            records = repeat(None)      # one of them is damaged: those before it are read one by one
        for entry_id, record in zip(entry_ids, records, strict=False):
            # One step in C: the class's own __new__ is Python code.
            position = tuple.__new__(Position, (ledger_id, entry_id))
            if record is not None:
                found.append(StoredEntry(position, record))
                continue
            try:
                found.append(self.read(position))
            except SeglogError:
                if not found:
                    raise
                break
        return found

    def read_entries(self, first: Position, count: int) -> list[StoredEntry]:
        """Read at most `count` entries, from the first one at or after `first`."""
        extent = self._current()
        begin = extent.before(checked_position(first))
        checked_int("a number of entries", count)
        return [self._at(extent, ordinal) for ordinal in range(begin, min(begin + max(count, 0), extent.count))]

    def __iter__(self) -> Iterator[StoredEntry]:
        """Iterate over all entries as of now."""
        extent = self._current()
        return (self._at(extent, ordinal) for ordinal in range(extent.count))

    def _at(self, extent: LedgerExtent, ordinal: int) -> StoredEntry:
        position = extent.position(ordinal)
        assert position is not None
        return self.read(position)

    def _open_ledger(self, ledger_id: int) -> Ledger:
        extent = self._current()
        slot = extent.slot_of(ledger_id)
        if slot < 0:
            first, last = extent.position(0), extent.position(extent.count - 1)
            raise OffsetOutOfRangeError(
                f"there is no ledger {ledger_id}: the entries are " + (f"from {first} to {last}" if first else "none"),
                file=self.path,
            )
        with self._opening:
            ledger = self._opened.get(ledger_id)
            if ledger is None:
                directory = ledger_directory(self.path, ledger_id)
                try:
                    ledger = Ledger.open(
                        directory, fs=self._fs, clock=self._clock, held=True, read_only=self._looks_only
                    )
                except NotALogError as gone:
                    if self._is_trimmed(ledger_id):
                        raise self._trimmed(ledger_id) from gone
                    raise CorruptManifestError(f"ledger {ledger_id} is missing", file=directory) from gone
                self._opened[ledger_id] = ledger
                shown = self._shown.extent
                if shown is None:       # closed meanwhile
                    ledger.close()
                elif shown.slot_of(ledger_id) < 0:      # whoever trimmed it may have looked for it before
                    self._opened.pop(ledger_id, None)
                    ledger.close()
                    raise self._trimmed(ledger_id)
            return ledger

    def _is_trimmed(self, ledger_id: int) -> bool:
        """Whether a ledger that was there has been trimmed."""
        return self._current().slot_of(ledger_id) < 0

    def _trimmed(self, ledger_id: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(f"ledger {ledger_id} was trimmed", file=self.path)

    # --- searching ---------------------------------------------------------------------------

    def find_newest_matching(
        self, predicate: Predicate, first: Position | None = None, last: Position | None = None
    ) -> Position | None:
        """Find the last entry in [first, last] for which `predicate` is true, by binary search; None if not for the
        first.

        The predicate should be true up to some entry and false after it. Otherwise the result is some entry where it
        changes from true to false, or the last one. (OpFindNewest)
        """
        extent = self._current()
        start = 0 if first is None else extent.before(checked_position(first))
        stop = extent.count if last is None else min(extent.up_to(checked_position(last)), extent.count)
        found = _newest(lambda ordinal: predicate(self._at(extent, ordinal)), start, stop)
        return extent.position(found)

    def position_at_time(self, timestamp_ms: int, after: Position = EARLIEST) -> Position | None:
        """Find the first entry after `after`, in order, whose time is `timestamp_ms` or later; None if there is none.

        An entry's time is the broker's, or else the publish time. The ledgers' time indexes find it, whether or not the
        times rise. With useBrokerTimestampsForMessageSeek=false only the publish time counts, by binary search: correct
        if publish times rise, as before PIP-70.
        """
        checked_int("a time in ms", timestamp_ms)
        extent = self._current()
        begin = extent.up_to(checked_position(after))
        if not self.config.use_broker_timestamps:
            found = _newest(
                lambda ordinal: self._at(extent, ordinal).publish_time < timestamp_ms, begin, extent.count
            )
            return extent.position(begin if found < 0 else found + 1)
        target = min(max(timestamp_ms, 0), MAX_ID)
        start = extent.position(begin)
        while start is not None:
            slot = extent.slot_of(start.ledger_id)
            end = extent.infos[slot].end
            if end is None or end.max_timestamp >= target:
                ledger = self._opened.get(start.ledger_id) or self._open_ledger(start.ledger_id)
                entry_id = ledger.segment.seek(target, start.entry_id)[1]
                if entry_id >= 0:
                    return Position(start.ledger_id, entry_id)
            start = extent.position(extent.up_to(Position(start.ledger_id, MAX_ID)))
        return None

    def position_at_index(self, index: int) -> Position | None:
        """Find the entry with the message that has this index or, if that is gone, the first entry after it.

        None if there is none yet. Skips entries without an index.
        """
        checked_int("an index", index)
        extent = self._current()
        low, high = 0, extent.count         # the answer is in [low, high]
        while low < high:
            middle = (low + high) // 2
            ordinal, found = middle, self._at(extent, middle).index
            while found is None and ordinal + 1 < high:
                ordinal += 1
                found = self._at(extent, ordinal).index
            if found is None or found >= index:
                high = middle
            else:
                low = ordinal + 1
        for ordinal in range(low, extent.count):
            if self._at(extent, ordinal).index is not None:
                return extent.position(ordinal)
        return None


def _newest(is_before: Callable[[int], bool], start: int, stop: int) -> int:
    """Find the last ordinal in [start, stop) for which `is_before` is true, by binary search; -1 if not for `start`."""
    if start >= stop or not is_before(start):
        return -1
    low, high = start, stop - 1         # it is true for `low`
    if is_before(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if is_before(middle):
            low = middle
        else:
            high = middle
    return low
