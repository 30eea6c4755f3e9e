"""One segment of a log, as readers see it: the .log file and the indexes beside it.

The log is the truth and an index is a hint. Each answer that started at an index entry was checked against the batch
that the entry points to; a misleading entry costs a scan from the start of the segment, but never gives a wrong answer.
Nothing here writes or locks.

A Segment keeps its files mapped from the first use to `close()`, or until too many segments are open
(open_files.OpenSegments); batches, records and views taken from it stay valid after that, since they keep the map
alive. Of a growing segment, readers see what its PublishedEnd says, in the same map.
"""
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.mapping import file_size
from seglog._kernels.point_read import LastOpened, PointReader
from seglog._kernels.quick_read import QuickSegment
from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchFinder, BatchTable, scan
from seglog._kernels.status import Status
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    LogClosedError,
    SeglogError,
    StorageError,
)
from seglog.format import names
from seglog.format.compression import Decompress, decompressor
from seglog.format.dialect import Dialect, beside, dialect_of
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.late_import import late
from seglog.segment.batches import (
    SCAN_BATCHES,
    SCAN_BYTES,
    UNREADABLE,
    begins_at,
    within_int64,
)
from seglog.segment.damage import NO_END, lost_range, what_is_wrong
from seglog.segment.index_file import OffsetIndex, TimeIndex
from seglog.segment.lazy_attribute import lazy_attribute
from seglog.segment.open_files import OPEN_SEGMENTS, SegmentFiles, replaced
from seglog.segment.open_settings import SegmentOpenSettings
from seglog.segment.positions import BatchPosition, LostRange, TimestampOffset
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.small_log import largest_in_headers
from seglog.segment.transaction_index import HeldTransactionIndex, TransactionIndex

if TYPE_CHECKING:
    from seglog.segment.tag_defaults import TagDefaults
    from seglog.segment.time_ranges import TimeRanges
    from seglog.segment.time_search import TimeSearch

# A PointReader's answer if it needs the time index.
ASK_THE_TIME_INDEX = -3


class Segment(QuickSegment):
    """The .log at `path` and its indexes.

    `base_offset`: that of its name. `end_offset`: every batch ends below it, since the next segment begins there.

    `is_last`: it is the last segment of its partition, so an incomplete batch at its end, or zero bytes after its last
    batch, are the tail of an unfinished write, and end the data. Anywhere else the same bytes are corruption.
    `published`: the segment grows; it ends where this says, each time it is asked.
    `inode`: that of the file when it was listed: another file of the same name, from a compaction, is not opened.
    `by_minute`: lookups by time start with the minute index, as long as that leads near enough to the target.
    `owned`, `reserve_bytes`: see SegmentFiles. `last_opened`: shared by the segments of a log.

    Thread-safe.
    """

    # Every hot read uses it. A slot is found at once; any other attribute costs twice as much as soon as
    # `lazy_attribute` has given the segment a dict.
    __slots__ = ("__dict__", "__weakref__", "_access")
    published: PublishedEnd | None
    _files: SegmentFiles | None
    # The initial values: a long log has many segments that are never opened.
    is_last = False
    # Every batch ends below this: the next segment of the log begins here (Extent).
    end_offset = NO_END
    _directory: Path        # if the path is made at its first use
    _inode: int | None = None
    _is_swap = False        # a compaction has yet to give it its name (log.listing)
    _closed = False
    _retired = False
    _kept = False
    _kept_transactions: TransactionIndex | None = None
    _next_offset: int | None = None
    _end_position: int | None = None
    _transactions: HeldTransactionIndex | None = None
    _checked_transactions: object | None = None      # what state.checked_aborts found out about its .txnindex
    _walked_whole = False
    _largest_read: int | None = None        # the result for a small file that is not open (_largest_passed)

    path = lazy_attribute[Path](lambda self: Path(self._text_path()))
    # What was learned from the headers: for the slow path to a time, and for the fast path, beside the indexes. Both
    # outlive the open files.
    _time_search = lazy_attribute["TimeSearch"](lambda self: _new_time_search())
    # For tagged messages: as far as `tables` has read.
    _tag_defaults = lazy_attribute["TagDefaults"](lambda self: _new_tag_defaults())
    _walk = lazy_attribute[HeaderWalk](lambda self: HeaderWalk(self.base_offset, self._access.by_minute))

    def __init__(
        self,
        path: Path,
        *,
        is_last: bool = True,
        decompress: Decompress | None = None,
        published: PublishedEnd | None = None,
        owned: bool = False,
        reserve_bytes: int = 0,
        by_minute: bool = False,
        last_opened: LastOpened | None = None,
        inode: int | None = None,
    ) -> None:
        self.path = path
        self.base_offset = names.parse_base_offset(path.name)
        self.is_last = is_last and published is None
        self.published, self._files, self._recently_used = published, None, False
        self._inode = inode
        if path.name.endswith(names.SWAP_SUFFIX):
            self._is_swap = True
        self._access = SegmentOpenSettings(
            decompress or decompressor(), last_opened or LastOpened(), owned=owned, by_minute=by_minute,
            reserve_bytes=reserve_bytes, dialect=dialect_of(path),
        )

    def __repr__(self) -> str:
        return f"<Segment {self.path.name}>"

    @classmethod
    def sealed(cls, directory: Path, base_offset: int, access: SegmentOpenSettings, inode: int | None = None) -> Self:
        """Make a segment that is not the last one. Costs next to nothing before its first use."""
        self = cls.__new__(cls)
        self.published, self._files, self._recently_used = None, None, False
        self._directory, self.base_offset, self._access = directory, base_offset, access
        if inode is not None:
            self._inode = inode
        return self

    def _text_path(self) -> str:
        # Like Dialect.log_name, without its calls: a log has many segments that are otherwise never used.
        return f"{self._directory}{os.sep}{self.base_offset:020d}{self._access.dialect.log}"

    @property
    def dialect(self) -> Dialect:
        """The dialect of its records."""
        return self._access.dialect

    @property
    def decompress(self) -> Decompress:
        """The function that decompresses its batches."""
        return self._access.decompress

    @property
    def inode(self) -> int | None:
        """The inode of the file, or None if unknown: another file of that name is not opened."""
        return _inode_of(self.path) if self._inode is None else self._inode

    # --- files -------------------------------------------------------------------------------

    def files(self) -> SegmentFiles:
        """Return the files as of now, opened if necessary: what one operation works with.

        Raises StorageError, LogClosedError, and OffsetOutOfRangeError if they are gone.
        """
        files = self._files
        if files is not None and (self.published is None or files.end is self.published.at):
            self._recently_used = True
            return files
        return self._open(files)

    def _open(self, files: SegmentFiles | None) -> SegmentFiles:
        end = None if self.published is None else self.published.at
        later = files.up_to(end) if files is not None and end is not None else None
        if later is None:
            try:
                self._refuse_if_gone()
                later = self._map_files(end)
                if later is None:
                    OPEN_SEGMENTS.let_all_go()
                    later = self._new_files(end)
                self._refuse_if_gone()      # what was opened may be a file that took over its name
            except SeglogError:
                kept = self._files
                if self._kept and kept is not None:     # superseded in this moment
                    return kept
                self._refuse_if_gone()
                raise
        self._files = later
        self._recently_used = True
        if self._closed:
            self._files = None
            self._refuse_if_gone()
        if files is None:
            OPEN_SEGMENTS.opened(self)
        return later

    def _map_files(self, end: End | None) -> SegmentFiles | None:
        """The files; None if the process can map nothing more, because of `ulimit -v` or vm.max_map_count."""
        try:
            return self._new_files(end)
        except StorageError as error:
            if error.errno != errno.ENOMEM:
                raise
            return None

    def _new_files(self, end: End | None) -> SegmentFiles:
        return SegmentFiles(
            self.path, self.base_offset, self._access.dialect, end=end, owned=self._access.owned,
            reserve_bytes=self._access.reserve_bytes, walk=self._walk,
        )

    def _refuse_if_gone(self) -> None:
        if self._closed:
            raise LogClosedError("the log was closed", file=self.path)
        if self._retired:
            raise replaced(self.path)
        if self._is_swap:
            self._follow_swap()
        if self._inode is not None and _inode_of(self.path) not in (None, self._inode):
            raise replaced(self.path)

    def _follow_swap(self) -> None:
        """Take the file's new name: a writer may have swapped it in since it was listed."""
        if not os.path.lexists(self.path):
            swapped_in = self.path.with_name(self.path.name.removesuffix(names.SWAP_SUFFIX))
            if self._inode is not None and _inode_of(swapped_in) == self._inode:
                self.path, self._is_swap, self._transactions = swapped_in, False, None

    @property
    def window(self) -> Window:
        """The whole .log, mapped; if it grows, its published part."""
        return self.files().window

    @property
    def size_bytes(self) -> int:
        """Size of the .log: what is published, or its size at opening, including a torn tail."""
        if self.published is not None:
            return self.published.at.position
        if self._files is not None or self.is_last:
            return len(self.window)
        if self._is_swap:
            self._follow_swap()
        try:
            with refusals("read", self.path):
                size_bytes = file_size(self.path)       # of most segments nothing else is needed
        except SeglogError:         # (not of an interrupt: it would be hidden)
            self._refuse_if_gone()
            raise
        self._refuse_if_gone()
        return size_bytes

    @property
    def offset_index(self) -> OffsetIndex | None:
        """The .index beside the log; None if there is none. Raises CorruptIndexError."""
        return self.files().offset_index

    @property
    def time_index(self) -> TimeIndex | None:
        """The .timeindex beside the log; None if there is none. Raises CorruptIndexError."""
        return self.files().time_index

    @property
    def minute_index(self) -> TimeIndex | None:
        """The .time.index beside the log; None if there is none. Raises CorruptIndexError."""
        return self.files().minute_index

    @property
    def time_ranges(self) -> "TimeRanges | None":
        """The .ranges.index beside the log; None if there is none. Raises what `read_time_ranges` raises.

        Read again each time, and not compared with the log.
        """
        late("seglog.segment.time_ranges")
        from seglog.segment.time_ranges import read_time_ranges

        try:
            return read_time_ranges(self.path)
        except FileNotFoundError:
            return None

    @property
    def transaction_index(self) -> TransactionIndex | None:
        """The .txnindex beside the log; None if no transaction was aborted. Raises CorruptIndexError."""
        if self._kept:
            return self._kept_transactions
        held = self._transactions
        if held is None:    # two threads may make one each: the later one is kept
            held = self._transactions = HeldTransactionIndex(beside(self.path, names.TRANSACTION_INDEX_SUFFIX))
        index = held.now()
        if index is None and not self._access.owned:
            index = self._half_swapped_transactions()
        if self._kept:              # superseded in this moment
            return self._kept_transactions
        self._refuse_if_gone()      # without its entries, aborted records would look committed
        return index

    @property
    def producer_snapshot(self) -> bytes | None:
        """The bytes of the .snapshot at the segment's start; None if there is none. Raises StorageError."""
        try:
            return read_file(self.path.with_name(names.file_name(self.base_offset, names.SNAPSHOT_SUFFIX)))
        except FileNotFoundError:
            return None

    def _half_swapped_transactions(self) -> TransactionIndex | None:
        """The .txnindex if it lacks its final name although the log has it, or the other way round: a compaction
        renames one file after the other. Its entries are true of the log before the compaction and after it.
        """
        plain = self.path.with_name(names.file_name(self.base_offset, names.TRANSACTION_INDEX_SUFFIX))
        for path in (plain.with_name(plain.name + names.SWAP_SUFFIX), plain):
            held = HeldTransactionIndex(path)
            if (index := held.now()) is not None:
                return index
        return None

    def close(self) -> None:
        """Release the files; they are not opened again. Idempotent. Batches and records already read stay readable."""
        self._closed = True
        self._files = None

    def _let_go(self) -> None:
        """Let go of the files until they are needed again."""
        if not self._kept:
            self._files = None

    def _retire(self) -> None:
        """Never open the file again: it is about to be truncated, renamed or removed, and its name may be reused.

        A reader inside it continues as long as the files stay open. Call this before touching the file.
        """
        self._retired = True

    def _supersede(self) -> None:
        """Like `_retire`, for a segment that others replace: a reader that began before continues in the old files.

        They stay open, in addition to those that OPEN_SEGMENTS counts, as long as the segment is referenced.
        """
        try:
            self._kept_transactions = self.transaction_index
            self._kept = True           # from here on, opened files are not let go
            files = self.files()
            files.open_reader(self._access, self.end_offset)
            files.open_times()
        except SeglogError:             # if it cannot be read now, it is as if it were retired
            self._kept = False
        self._retire()

    # --- batches -----------------------------------------------------------------------------

    def tables(
        self,
        position: int = 0,
        *,
        check_crc: bool = True,
        max_batches: int = SCAN_BATCHES,
        max_bytes: int = 0,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[BatchTable]:
        """Yield batch headers from `position`, the start of a batch, to the data's end: thousands, or `max_bytes`, a
        time.

        Offsets increase from the segment's base and stay below `end_offset`: no checksum covers them. With `check_crc`,
        each batch's checksum is checked before it is given. A damaged batch, or one at a wrong offset, raises
        CorruptRecordError; if `on_lost` is given, it is reported there and skipped up to the next intact batch with a
        later offset.
        """
        files = self.files()
        window = files.window
        size = len(window)
        end_offset = self.end_offset if files.end is None else files.end.next_offset
        finder = BatchFinder(window)
        next_offset = self.base_offset
        lost: LostRange | None = None
        is_tagged = window.is_tagged
        while position < size:
            table = scan(
                window, position, check_crc=check_crc, max_batches=max_batches,
                max_bytes=max_bytes or (SCAN_BYTES if check_crc else -1), min_offset=next_offset, end_offset=end_offset,
                decompress=self._access.decompress,
            )
            if len(table):
                if lost is not None and on_lost is not None:
                    on_lost(lost)
                    lost = None
                next_offset = table[-1].last_offset + 1
                if is_tagged:
                    self._tag_defaults.add(table, self.path)
                yield table
            position = table.end
            if table.stop in (Status.OK, Status.LIMIT):
                continue
            if table.stop == Status.OFFSET_AHEAD and begins_at(
                window, position, next_offset, self._access.decompress
            ):
                table = scan(window, position, check_crc=check_crc, max_batches=1, decompress=self._access.decompress)
                yield table     # this wrapper is right: the one after it is not
                next_offset, position = table[0].last_offset + 1, table.end
                continue
            resume = finder.behind(table, next_offset)
            if resume < 0 and self.is_last and table.stop in (Status.SHORT, Status.ZEROS):
                break       # the unfinished write
            reason = what_is_wrong(table, next_offset, end_offset)
            if on_lost is None:
                raise CorruptRecordError(reason, file=self.path, position=position, offset=next_offset)
            start = position
            if lost is not None:        # one range with what was lost just before
                start = lost.position
                reason = lost.reason
            position = size if resume < 0 else resume
            lost = lost_range(self.path, window, start, position, next_offset, reason, self._access.decompress)
        if lost is not None and on_lost is not None:
            on_lost(self._lost_to_the_end(lost, end_offset))

    def _lost_to_the_end(self, lost: LostRange, end_offset: int) -> LostRange:
        """The range with its last offset, as far as that is known: no batch follows it in the segment, but the headers
        in it may be whole, as the log end offset counts them; else the next segment says where this one ended."""
        stop = self.base_offset
        try:
            if self.published is not None:
                stop = self.published.at.next_offset
            else:
                for table in self.tables(self.position_near(2**63 - 1), check_crc=False):
                    stop = table[-1].last_offset + 1
        except CorruptRecordError:
            stop = -1
        if not lost.first_offset < stop <= end_offset:
            stop = -1 if end_offset == NO_END else end_offset
        return lost._replace(last_offset=stop - 1) if stop > lost.first_offset else lost

    def batches(
        self,
        position: int = 0,
        *,
        check_crc: bool = True,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[RecordBatch]:
        """Yield the batches of `tables`, one by one."""
        for table in self.tables(position, check_crc=check_crc, on_lost=on_lost):
            yield from table

    # --- the end -----------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """One past the last offset in the segment; its base offset if it has no batch.

        Kafka's LogSegment.readNextOffset: from the last index entry to the end, headers only.
        """
        if self.published is not None:
            return self.published.at.next_offset
        if self._next_offset is None:
            self._next_offset, _ = self._walk_to_end()
        return self._next_offset

    def _walk_to_end(self) -> tuple[int, int]:
        """The offset and the position behind the last batch, by headers. Damage that whole batches follow hides
        neither."""
        next_offset, position = self.base_offset, self.position_near(2**63 - 1)
        lost: list[LostRange] = []
        passed = 0
        for table in self.tables(position, check_crc=False, on_lost=lost.append):
            next_offset, position, passed = table[-1].last_offset + 1, table.end, len(lost)
        if len(lost) > passed:
            raise _is_lost(lost[-1])
        return next_offset, position

    # --- one record --------------------------------------------------------------------------

    def _get_all(self, offsets: Iterable[int]) -> list[Record | None]:
        """Return what `get` returns for each of the offsets, in one call."""
        files = self.files()
        reader = files.reader or files.open_reader(self._access, self.end_offset)
        return list(map(reader.get, offsets))

    # --- search by offset --------------------------------------------------------------------

    def find_offset(self, target: int) -> BatchPosition | None:
        """Find the first batch whose last offset is at or above `target`; None past the end.

        Kafka's LogSegment.translateOffset. The batch may begin above the target (a gap left by compaction). Damage
        below the target is passed over, as Kafka's does, which looks at no checksum there; CorruptRecordError if the
        target may be in damage.
        """
        target = within_int64(target)
        lost: list[LostRange] = []
        for table in self.tables(self.position_near(target), on_lost=lost.append):
            if lost and target <= lost[-1].last_offset:
                break
            found = table.find_offset(target)
            if found >= 0:
                batch = table[found]
                return BatchPosition(batch.last_offset, batch.position, batch.size_bytes)
        if lost and (lost[-1].last_offset < 0 or target <= lost[-1].last_offset):
            raise _is_lost(lost[-1])
        return None

    def locate(self, target: int) -> tuple[SegmentFiles, BatchPosition | None]:
        """Return the answer of `find_offset`, and the files in which it is. The fast path: reads no records."""
        files = self.files()
        reader = files.reader or files.open_reader(self._access, self.end_offset)
        found = reader.find_batch(target)
        if found is not None:
            return files, BatchPosition(*found)
        slowly = self.find_offset(target)
        return self.files(), slowly

    @property
    def end_position(self) -> int:
        """The end of the data in the .log: the published end if it grows; without a torn tail."""
        if self.published is not None:
            return self.published.at.position
        if not self.is_last:
            return self.size_bytes
        if self._end_position is None:
            _, self._end_position = self._walk_to_end()
        return self._end_position

    def position_near(self, target: int) -> int:
        """Return the start of a batch at or before the one with `target`: from the index, if that is correct."""
        try:
            index = self.offset_index
            if index is None:
                return 0
            offset, position = index.lookup(target)
            before = index.lookup(offset - 1)[1] if position else 0
        except CorruptIndexError:
            return 0
        return position if self._leads_to(offset, position, before) else 0

    def _leads_to(self, offset: int, position: int, before: int) -> bool:
        """Whether the index entry (offset, position) points to an intact batch that begins at or before the offset.

        The entry's offset may be the first or the last of its batch, or the last of an append of several batches
        (Kafka <= 1.1, >= 2.0, 2.8's appends): in each case the batch begins no later. No checksum covers the batch's
        first offset: if the entry does not equal it, the headers from `before` on must lead there.
        """
        if position == 0:
            return True
        if not 0 < position < self.size_bytes:
            return False
        table = scan(self.window, position, max_batches=1, check_crc=True, min_offset=self.base_offset,
                     decompress=self._access.decompress)
        try:
            if len(table) != 1 or not self.base_offset <= table[0].base_offset <= offset:
                return False
            first, last = table[0].base_offset, table[0].last_offset
        except UNREADABLE:      # a wrapper that does not decompress
            return False
        if offset in (first, last):
            return True
        way = scan(self.window, before, table.end, min_offset=self.base_offset)
        return way.end == table.end and len(way) > 1 and way[-1].position == position

    # --- search by time ----------------------------------------------------------------------

    def find_timestamp(self, target: int, start_offset: int = 0) -> TimestampOffset | None:
        """Find the first record, in log order, with timestamp >= `target` (ms) and offset >= `start_offset`.

        Kafka's LogSegment.findOffsetByTimestamp. The time index, if it is correct, says where to start.
        """
        if 0 <= target < 2**63:
            timestamp, offset, epoch = self.seek(target, start_offset)
            return None if offset < 0 else TimestampOffset(timestamp, offset, None if epoch < 0 else epoch)
        return self._time_search.find(self, target, start_offset)

    def _seek_slowly(self, target: int, start_offset: int, asked: int, files: SegmentFiles) -> tuple[int, int, int]:
        """Do the rest of `seek`, if the reader of these files `asked` for the time index or for the log."""
        if asked == ASK_THE_TIME_INDEX:
            self._search_by_time_index(files)
            return self.seek(target, start_offset)
        slowly = self._time_search.find(self, target, start_offset)
        if slowly is None:
            return -1, -1, -1
        return slowly.timestamp, slowly.offset, -1 if slowly.leader_epoch is None else slowly.leader_epoch

    def _search_by_time_index(self, files: SegmentFiles) -> None:
        """Use the time index from now on: a minute of this segment has too many batches to walk through."""
        other = files.by_time_index()
        self._walk_on(other)
        self._walk = other.walk
        if self._files is files:    # unless another thread let go of them, or reached a later end
            self._files = other

    @property
    def _largest_passed(self) -> int | None:
        """The largest timestamp by the segment's time ranges, or else by its batch headers; -1 for none.

        None if damage hides it, or a wrapper has a later message than its header says.
        """
        walk = self._walk
        whole = self._walked_whole if self.published is None else walk.position == self.published.at.position
        # (Another thread may have walked all of it and still be opening wrappers.)
        if not whole or (self.published is not None and walk.has_wrappers):
            if self._files is None and self.published is None and (read := self._largest_of_small()) is not None:
                return read
            files = self.files()
            ranges = self._walk_on(files).ranges
            if ranges is not None:
                return max(ranges.bounds[1], -1)
            walk = files.walk
        return None if walk.damaged or walk.misled else walk.largest_timestamp

    def _largest_of_small(self) -> int | None:
        """Return `_largest_passed` of a small file without keeping it open, or None to ask its files."""
        if self._largest_read is None:
            # (Making a Path would cost as much as the read.)
            path = os.fspath(self.__dict__.get("path") or self._text_path())
            self._refuse_if_gone()
            try:
                self._largest_read = largest_in_headers(path, self._access.dialect, self.base_offset, self.end_offset)
            except SeglogError:
                self._refuse_if_gone()
                raise
            self._refuse_if_gone()
        return self._largest_read

    def _walk_on(self, files: SegmentFiles) -> PointReader:
        """Load what a search by time starts with: time ranges, or all headers of these files. Return their reader."""
        reader = files.open_reader(self._access, self.end_offset)
        walk = files.walk
        if files.open_ranges(reader, self.end_offset) is not None:
            files.walked_reader = reader
            return reader
        files.open_times()
        if walk.position < len(files.window):
            walk.advance(files.window, files.offset_entries, files.time_entries, self.end_offset)
        if walk.has_wrappers and not walk.misled and not self._time_search.proves_wrappers(self):
            walk.distrust()
        files.walked_reader = reader
        self._walked_whole = self.published is None
        return reader

    @property
    def largest_timestamp(self) -> TimestampOffset | None:
        """The largest timestamp in the segment and the first offset that has it.

        None if the format has no timestamps (v0), and in an empty segment. Records of v1 and v2 without a timestamp
        have -1, which may then be the largest, as in Kafka (LogSegment.readMaxTimestampSoFar).
        """
        files = self.files()
        ranges = (files.walked_reader or self._walk_on(files)).ranges
        if ranges is not None and ranges.bounds[1] >= 0:
            found = self.find_timestamp(ranges.bounds[1])
            if found is not None:
                return found
        return self._time_search.largest(self)


# Opening a log needs neither.
def _new_time_search() -> "TimeSearch":
    late("seglog.segment.time_search")
    from seglog.segment.time_search import TimeSearch

    return TimeSearch()


def _new_tag_defaults() -> "TagDefaults":
    late("seglog.segment.tag_defaults")
    from seglog.segment.tag_defaults import TagDefaults

    return TagDefaults()


def _is_lost(lost: LostRange) -> CorruptRecordError:
    return CorruptRecordError(lost.reason, file=lost.file, position=lost.position, offset=lost.first_offset)


def _inode_of(path: Path) -> int | None:
    """Return the file's inode; None if it does not exist: opening it reports that."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
