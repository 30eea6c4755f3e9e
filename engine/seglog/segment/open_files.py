"""The open files of a segment: its .log and its indexes, mapped; and how many segments may have some.

A SegmentFiles never changes what it shows: a growing segment gets a new one for each published end, over the same maps.
So a reader takes one and works with it; if the segment lets go of its files meanwhile, because too many are open or
because it is closed, the reader's own stay open.
"""
import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import ref

from seglog._kernels.checked_batches import CheckedBatches
from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.point_read import PointReader
from seglog._kernels.quick_read import QuickFiles
from seglog._kernels.time_ranges import TimeRangesSearch
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, OffsetOutOfRangeError, StorageError
from seglog.format import names
from seglog.format.dialect import Dialect, text_beside
from seglog.fs.mapping import Mapping
from seglog.fs.refusals import storage_error
from seglog.late_import import late
from seglog.segment.index_file import OFFSET_INDEXES, TIME_INDEXES, MinuteIndex, OffsetIndex, TimeIndex
from seglog.segment.open_settings import SegmentOpenSettings
from seglog.segment.published_end import End

Index = TypeVar("Index", OffsetIndex, TimeIndex)

# Address space for a growing index: the default of segment.index.bytes. A larger index is mapped again.
INDEX_RESERVE_BYTES = 10 << 20


class SegmentFiles(QuickFiles):
    """The files of the segment whose .log is `path`, up to their ends or up to a published `end`.

    `owned`: no other process changes the directory, so index files may be mapped; otherwise they are copied, since a
    broker truncates them. `reserve_bytes`: the size that a growing .log may reach, so that it is mapped only once.
    `walk`: over the headers, beside `time_entries`; if it says so, those are the minute index's, and the time index is
    not opened. Raises StorageError, and OffsetOutOfRangeError if the file is shorter than published: it was replaced.
    """

    __slots__ = (
        "_base_offset", "_dialect", "_index_maps", "_offset_index", "_owned", "_path", "_time_index", "checked", "log",
        "offset_entries", "window",
    )
    end: End | None

    def __init__(
        self, path: Path, base_offset: int, dialect: Dialect, *, end: End | None, owned: bool, reserve_bytes: int,
        walk: HeaderWalk,
    ) -> None:
        self._path = path
        self._dialect = dialect
        self._base_offset = base_offset
        self._owned = owned
        self.walk = walk
        self._index_maps: dict[str, Mapping] = {}
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        if end is None:
            self.log = Mapping(path)
        else:
            self.log = Mapping(path, reserve=max(reserve_bytes, 2 * end.position))
            if len(self.log) < end.position:
                raise replaced(path)
        try:
            self.checked = CheckedBatches(self.log.room)
        except MemoryError as error:    # as if there were no room for the map itself
            raise storage_error(OSError(errno.ENOMEM, ""), "map", path) from error
        self._show(end)

    def _show(self, end: End | None) -> None:
        self.end = end
        size_bytes = -1 if end is None else end.position
        self.window = Window(self.log, self.log.path, size_bytes, is_tagged=self._dialect.is_tagged)
        self.reader = self.walked_reader = None
        self.offset_entries: Window | None = None
        self.time_entries = None

    def up_to(self, end: End) -> "SegmentFiles | None":
        """Return the same files up to a later end; None if the map has no room for it."""
        if end.position > self.log.room:
            return None
        later = self._over_the_same_maps(self.walk)
        # The older view of an index leads to the same batches; it is replaced only after new entries.
        offset_index, time_index = self._offset_index, self._time_index
        keeps = offset_index is not None and len(offset_index) == end.offset_entries
        later._offset_index = offset_index if keeps else None
        keeps = time_index is not None and len(time_index) == end.time_entries
        later._time_index = time_index if keeps else None
        self.log.grow_to(end.position)
        later._show(end)
        return later

    def by_time_index(self) -> "SegmentFiles":
        """Return the same with the time index instead of the minute index, and with a new walk."""
        other = self._over_the_same_maps(HeaderWalk(self._base_offset))
        other._offset_index, other._time_index = self._offset_index, self._time_index
        other._show(self.end)
        return other

    def _over_the_same_maps(self, walk: HeaderWalk) -> "SegmentFiles":
        other = SegmentFiles.__new__(SegmentFiles)
        other._path, other._base_offset, other._owned = self._path, self._base_offset, self._owned
        other._dialect = self._dialect
        other.log, other.checked, other._index_maps = self.log, self.checked, self._index_maps
        other.walk = walk
        return other

    def open_reader(self, access: SegmentOpenSettings, end_offset: int) -> PointReader:
        """Open `reader`, and `offset_entries` for it: None if the index is missing or unusable.

        `end_offset`: every batch of the segment ends below it.
        """
        if self.reader is None:
            if self.end is None or self.end.offset_entries:
                self.offset_entries = _entries(lambda: self.offset_index)
            self.reader = PointReader(
                self.window, self._base_offset, self.offset_entries, self.checked, access.last_opened,
                access.decompress, end_offset if self.end is None else self.end.next_offset,
            )
        return self.reader

    def open_ranges(self, reader: PointReader, end_offset: int) -> TimeRangesSearch | None:
        """Open the time ranges, which `reader` uses from now on; None if there are none of this log.

        `reader`: the result of `open_reader`. If two threads called that at once, `self.reader` may be another one.
        `end_offset`: names.MAX_OFFSET means that the segment is the last one and may grow.
        """
        if reader.ranges is None and (self.end is None or end_offset < names.MAX_OFFSET):
            late("seglog.segment.time_ranges")
            from seglog.segment.time_ranges import time_ranges_of

            reader.ranges = time_ranges_of(self._path, self.window)
        return reader.ranges

    def open_times(self) -> None:
        """Open `time_entries`, the index that lookups by time start with.

        For a growing segment it stays the same object: what a HeaderWalk has found out about its entries is counted.
        """
        entries = _entries(lambda: self.minute_index) if self.walk.by_minute else None
        if entries is None and not (self.walk.by_minute and self.end is not None):
            entries = _entries(lambda: self.time_index)
        self.time_entries = entries

    @property
    def minute_index(self) -> TimeIndex | None:
        """The .time.index; None if there is none. Raises CorruptIndexError."""
        return self._index(
            MinuteIndex, names.MINUTE_INDEX_SUFFIX, None if self.end is None else self.end.minute_entries
        )

    @property
    def offset_index(self) -> OffsetIndex | None:
        """The .index; None if there is none. Raises CorruptIndexError."""
        if self._offset_index is None:
            entries = None if self.end is None else self.end.offset_entries
            self._offset_index = self._index(
                OFFSET_INDEXES[self._dialect.name], self._dialect.offset_index, entries
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex | None:
        """The .timeindex; None if there is none. Raises CorruptIndexError."""
        if self._time_index is None:
            entries = None if self.end is None else self.end.time_entries
            self._time_index = self._index(TIME_INDEXES[self._dialect.name], self._dialect.time_index, entries)
        return self._time_index

    def _index(self, kind: type[Index], suffix: str, entries: int | None) -> Index | None:
        if entries == 0 or suffix not in self._dialect.indexes:
            return None
        path = text_beside(self._path, suffix)
        if entries is None:
            whole = _mapping_or_none(path, copy=not self._owned)
            return None if whole is None else kind(whole, self._base_offset, path=path)
        size = entries * kind.ENTRY_SIZE
        mapping = self._index_maps.get(suffix)
        if mapping is None or mapping.room < size:
            # (For a broker's log the number of entries at opening: the copy does not grow.)
            mapping = _mapping_or_none(path, copy=not self._owned, reserve=max(INDEX_RESERVE_BYTES, 2 * size))
            if mapping is None:
                return None
            if len(mapping) < size:
                raise CorruptIndexError(f"{len(mapping)} bytes, but {entries} entries were published", file=path)
            self._index_maps[suffix] = mapping
        mapping.grow_to(size)
        return kind(mapping, self._base_offset, path=path, entries=entries)


def replaced(path: Path) -> OffsetOutOfRangeError:
    """Make the error for a reader whose segment was truncated or removed."""
    return OffsetOutOfRangeError("the segment was removed or truncated while it was being read", file=path)


def _mapping_or_none(path: str, *, copy: bool = False, reserve: int = 0) -> Mapping | None:
    """Map an index; None if it does not exist, as when the segment was removed while its .log is still being read.

    Raises CorruptIndexError if it is larger than any index.
    """
    try:
        return Mapping(path, copy=copy, reserve=reserve)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        if error.errno == errno.EFBIG:
            raise CorruptIndexError(error.what, file=path) from error
        raise


def _entries(index: Callable[[], OffsetIndex | TimeIndex | None]) -> Window | None:
    try:
        found = index()
    except CorruptIndexError:
        return None
    return None if found is None else found.entries


class Closable(Protocol):
    """What OpenSegments needs of a segment."""

    _recently_used: bool

    def _let_go(self) -> None:
        """Drop the open files; they are opened again when needed."""


class OpenSegments:
    """Lets at most `limit` segments have their files open; beyond that, (about) the least recently used one lets go.

    Second chance, like page caches: a segment used since the hand last passed stays for another round. No lock, so that
    a fork at any moment does no harm: each step is one operation of a deque, and all that two threads can do to each
    other is to close files a round too early.
    It does not keep segments alive: one that left its log frees its space as soon as no reader has it any more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ring: deque[ref[Closable]] = deque()

    def opened(self, segment: Closable) -> None:
        """Note that `segment` has just opened its files."""
        self._ring.append(ref(segment))
        chances = len(self._ring)
        while len(self._ring) > self.limit:
            try:
                slot = self._ring.popleft()
            except IndexError:      # other threads took them
                return
            oldest = slot()
            if oldest is None:
                continue
            if oldest._recently_used and chances > 0:
                chances -= 1
                oldest._recently_used = False
                self._ring.append(slot)
            else:
                oldest._let_go()


    def let_all_go(self) -> None:
        """Have every segment let go of its files, for the next one that needs address space."""
        while True:
            try:
                segment = self._ring.popleft()()
            except IndexError:
                return
            if segment is not None:
                segment._let_go()


# One for the process: three maps for each segment, of the 65 530 that Linux allows a process.
OPEN_SEGMENTS = OpenSegments(limit=256)
