"""One segment of a log, as readers see it: the .log file and the indexes beside it.

The log is the truth and an index is a hint. Each answer that began at an index entry was
checked against the batch that the entry leads to; an entry that misleads costs a scan from the
start of the segment, never a wrong answer. Nothing here writes or locks.

A Segment keeps its files mapped from the first use to `close()`, or until too many segments are open
(open_files.OpenSegments); batches, records and views taken from it stay valid after that, for they
hold the map themselves. Of a segment that grows, readers see what its PublishedEnd says, in the same map.
"""
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.point_read import LastOpened
from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchFinder, BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    LogClosedError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format import names
from seglog.format.compression import Decompress, decompressor
from seglog.fs.mapping import read_file
from seglog.segment.offset_index import OffsetIndex
from seglog.segment.open_files import OPEN_SEGMENTS, SegmentFiles, replaced
from seglog.segment.published import PublishedEnd
from seglog.segment.time_index import TimeIndex
from seglog.segment.transaction_index import TransactionIndex

# What one scan looks at before it returns to Python: enough to make the call free, little enough that
# what it brought into the cache is still there when records are read. Of headers alone, more.
SCAN_BYTES = 1 << 20
SCAN_BATCHES = 8192
# How far apart the places are at which a walk over headers keeps what it saw: what a later walk may repeat.
WALK_BATCHES = 4096

# What a PointReader answers where it takes more than the short way.
ASK_THE_LOG = -2

# So many record objects are kept while a batch is checked; one of more is read twice. Seven bytes of a payload can
# be a record, and an object takes a hundred.
KEPT_RECORDS = 1 << 16

# What a batch answers that does not give its records. (A codec that is not installed is no fault of the batch.)
UNREADABLE = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError)


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Where a batch lies in its segment's .log: Kafka's LogOffsetPosition."""

    last_offset: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """The answer to a search by time: Kafka's TimestampAndOffset. timestamp in ms, -1 where it is not known."""

    timestamp: int
    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes that a reader skipped, and the offsets that may have been in them (inclusive; last -1: unknown)."""

    file: str
    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    reason: str


class Segment:
    """The .log at `path` and its indexes.

    `is_last`: it is the last segment of its partition, so that a batch cut short at its end, or
    zero bytes behind its last batch, are the tail of a write that did not finish, and end the data.
    Anywhere else the same bytes are corruption.
    `published`: somebody appends to the segment; it ends where that says, now and each time it is asked.
    `owned`, `reserve_bytes`: see SegmentFiles. `last_opened`: shared by the segments of a log.

    Threads may share it.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_last: bool = True,
        decompress: Decompress | None = None,
        published: PublishedEnd | None = None,
        owned: bool = False,
        reserve_bytes: int = 0,
        last_opened: LastOpened | None = None,
    ) -> None:
        self.path = path
        self.base_offset = names.parse_base_offset(path.name)
        self.is_last = is_last and published is None
        self.decompress = decompress or decompressor()
        self.published = published
        self.recently_used = False
        self._owned = owned
        self._reserve_bytes = reserve_bytes
        self._last_opened = last_opened or LastOpened()
        self._files: SegmentFiles | None = None
        self._closed = False
        self._retired = False
        self._next_offset: int | None = None
        # (position, largest timestamp before it) at batches that a walk from the start passed. Replaced by
        # a longer list and never changed: threads share a segment.
        self._walked = [(0, -1)]
        # The same for the short way, beside the indexes. It outlives the open files.
        self._walk = HeaderWalk(self.base_offset)
        self._walked_whole = False

    # --- files -------------------------------------------------------------------------------

    def files(self) -> SegmentFiles:
        """The files as of now, opened where they are not: what one operation works with.

        Raises StorageError, LogClosedError, and OffsetOutOfRangeError where they are gone.
        """
        files = self._files
        if files is not None and (self.published is None or files.end is self.published.at):
            self.recently_used = True
            return files
        return self._open(files)

    def _open(self, files: SegmentFiles | None) -> SegmentFiles:
        end = None if self.published is None else self.published.at
        later = files.up_to(end) if files is not None and end is not None else None
        if later is None:
            self._refuse_if_gone()
            later = SegmentFiles(
                self.path, self.base_offset, end=end, owned=self._owned, reserve_bytes=self._reserve_bytes
            )
            self._refuse_if_gone()      # what was opened may be the file that took its name
        self._files = later
        self.recently_used = True
        if self._closed:
            self._files = None
            self._refuse_if_gone()
        if files is None:
            OPEN_SEGMENTS.opened(self)
        return later

    def _refuse_if_gone(self) -> None:
        if self._closed:
            raise LogClosedError("the log was closed", file=self.path)
        if self._retired:
            raise replaced(self.path)

    @property
    def window(self) -> Window:
        """The whole .log, mapped; of one that grows, what is published."""
        return self.files().window

    @property
    def size_bytes(self) -> int:
        """Size of the .log: what is published, or as it was when it was opened, a torn tail included."""
        return len(self.window) if self.published is None else self.published.at.position

    @property
    def offset_index(self) -> OffsetIndex | None:
        """The .index beside the log; None where there is none. Raises CorruptIndexError."""
        return self.files().offset_index

    @property
    def time_index(self) -> TimeIndex | None:
        """The .timeindex beside the log; None where there is none. Raises CorruptIndexError."""
        return self.files().time_index

    @property
    def transaction_index(self) -> TransactionIndex | None:
        """The .txnindex beside the log; None where no transaction was aborted. Raises CorruptIndexError."""
        path = self.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
        if not path.exists():
            return None
        return TransactionIndex(read_file(path), path=path)

    def close(self) -> None:
        """Let go of the files for good. Twice is fine; what was taken from the segment stays readable."""
        self._closed = True
        self._files = None

    def let_go(self) -> None:
        """Let go of the files until they are needed again."""
        self._files = None

    def retire(self) -> None:
        """The file is about to be cut, renamed or removed: never open it again, by its name another may be found.

        Who reads in it goes on as long as the files stay open. To be called before the file is touched.
        """
        self._retired = True

    # --- batches -----------------------------------------------------------------------------

    def tables(
        self,
        position: int = 0,
        *,
        check_crc: bool = True,
        max_batches: int = SCAN_BATCHES,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[BatchTable]:
        """Batch headers from `position` (the start of a batch) to the end of the data, some thousand at a time.

        With `check_crc` each batch's checksum was found good before it is given. A damaged batch
        raises CorruptRecordError, or, where `on_lost` is given, is reported to it and skipped up to the
        next whole batch with a good checksum and a later offset.
        """
        window = self.files().window
        size = len(window)
        finder = BatchFinder(window)
        last_offset = self.base_offset - 1
        while position < size:
            table = scan(
                window, position, check_crc=check_crc, max_batches=max_batches,
                max_bytes=SCAN_BYTES if check_crc else -1, decompress=self.decompress,
            )
            if len(table):
                last_offset = table[-1].last_offset
                yield table
            position = table.end
            if table.stop in (Status.OK, Status.LIMIT):
                continue
            resume = finder.behind(table, last_offset + 1)
            if resume < 0 and self.is_last and table.stop in (Status.SHORT, Status.ZEROS):
                return      # the write that did not finish
            if on_lost is None:
                raise CorruptRecordError(
                    words(table.stop), file=self.path, position=position, offset=last_offset + 1
                )
            end = size if resume < 0 else resume
            on_lost(self._lost(window, position, end, last_offset, words(table.stop)))
            position = end

    def batches(
        self,
        position: int = 0,
        *,
        check_crc: bool = True,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[RecordBatch]:
        """The batches of `tables`, one by one."""
        for table in self.tables(position, check_crc=check_crc, on_lost=on_lost):
            yield from table

    def _lost(self, window: Window, position: int, end: int, last_offset: int, reason: str) -> LostRange:
        following = next(iter(scan(window, end, max_batches=1, decompress=self.decompress)), None)
        return LostRange(
            file=str(self.path),
            position=position,
            size_bytes=end - position,
            first_offset=last_offset + 1,
            last_offset=-1 if following is None else first_offset_of(following) - 1,
            reason=reason,
        )

    # --- the end -----------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """One past the last offset in the segment; its base offset where it holds no batch.

        Kafka's LogSegment.readNextOffset: from the last index entry to the end, headers only.
        """
        if self.published is not None:
            return self.published.at.next_offset
        if self._next_offset is None:
            self._next_offset = self.base_offset
            for table in self.tables(self._position_near(2**63 - 1), check_crc=False):
                self._next_offset = table[-1].last_offset + 1
        return self._next_offset

    # --- one record --------------------------------------------------------------------------

    def get(self, offset: int) -> Record | None:
        """The data record with this offset (an int64); None where there is none, or where damage stands before it."""
        # `files` written out, as in `seek`: a call takes as long as half the search.
        files = self._files
        if files is None or (self.published is not None and files.end is not self.published.at):
            files = self._open(files)
        self.recently_used = True
        return (files.reader or files.open_reader(self._last_opened, self.decompress)).get(offset)

    # --- search by offset --------------------------------------------------------------------

    def find_offset(self, target: int) -> BatchPosition | None:
        """The first batch whose last offset is at or above `target`; None past the end.

        Kafka's LogSegment.translateOffset. The batch may begin above the target (a hole left by compaction).
        """
        target = within_int64(target)
        for table in self.tables(self._position_near(target)):
            found = table.find_offset(target)
            if found >= 0:
                batch = table[found]
                return BatchPosition(batch.last_offset, batch.position, batch.size_bytes)
        return None

    def _position_near(self, target: int) -> int:
        """The start of a batch at or before the one that holds `target`: from the index, where that holds true."""
        try:
            index = self.offset_index
            if index is None:
                return 0
            offset, position = index.lookup(target)
        except CorruptIndexError:
            return 0
        return position if self._leads_to(offset, position) else 0

    def _leads_to(self, offset: int, position: int) -> bool:
        """Does the index entry (offset, position) lead to a whole batch that begins at or before the offset?

        The entry's offset may be the first or the last of its batch, or the last of an append of
        several batches (Kafka <= 1.1, >= 2.0, 2.8's appends): in each case the batch begins no later.
        """
        if position == 0:
            return True
        if not 0 < position < self.size_bytes:
            return False
        table = scan(self.window, position, max_batches=1, check_crc=True, decompress=self.decompress)
        try:
            return len(table) == 1 and self.base_offset <= table[0].base_offset <= offset
        except UNREADABLE:      # a wrapper that does not open
            return False

    # --- search by time ----------------------------------------------------------------------

    def find_timestamp(self, target: int, start_offset: int = 0) -> TimestampOffset | None:
        """The first record, in log order, with timestamp >= `target` (ms) and offset >= `start_offset`.

        Kafka's LogSegment.findOffsetByTimestamp. The time index, where it holds true, says where to begin.
        """
        if 0 <= target < 2**63:
            timestamp, offset, epoch = self.seek(target, start_offset)
            return None if offset < 0 else TimestampOffset(timestamp, offset, None if epoch < 0 else epoch)
        return self._find_timestamp(target, start_offset)

    def seek(self, target: int, start_offset: int) -> tuple[int, int, int]:
        """As find_timestamp for 0 <= target < 2**63: (timestamp, offset, leader epoch or -1); offset -1 where none."""
        files = self._files
        if files is None or (self.published is not None and files.end is not self.published.at):
            files = self._open(files)
        self.recently_used = True
        reader = files.reader or files.open_reader(self._last_opened, self.decompress)
        if not self._walked_whole:
            self._walk_on(files)
        found = reader.find_timestamp(target, start_offset, self._walk, files.time_entries)
        if found[1] != ASK_THE_LOG:
            return found
        slowly = self._find_timestamp(target, start_offset)
        if slowly is None:
            return -1, -1, -1
        return slowly.timestamp, slowly.offset, -1 if slowly.leader_epoch is None else slowly.leader_epoch

    @property
    def largest_passed(self) -> int | None:
        """The largest timestamp that a batch header of the segment tells, -1 for none; None where damage hides it."""
        whole = self._walked_whole if self.published is None else self._walk.position == self.published.at.position
        if not whole:
            files = self.files()
            files.open_reader(self._last_opened, self.decompress)
            self._walk_on(files)
        return None if self._walk.damaged else self._walk.largest_timestamp

    def _walk_on(self, files: SegmentFiles) -> None:
        if self._walk.position < len(files.window):
            self._walk.advance(files.window, files.offset_entries, files.time_entries)
        self._walked_whole = self.published is None

    def _find_timestamp(self, target: int, start_offset: int) -> TimestampOffset | None:
        """The long way, which knows what to do about damage and about indexes that mislead."""
        if target != within_int64(target):
            return None if target > 0 else self._find_timestamp(within_int64(target), start_offset)
        for table in self.tables(self._position_before_time(target)):
            found = table.find_timestamp(target)
            while found >= 0:
                batch = table[found]
                if batch.last_offset >= start_offset:
                    for record in batch:
                        if record.timestamp >= target and record.offset >= start_offset:
                            return TimestampOffset(record.timestamp, record.offset, _known_epoch(batch))
                found = table.find_timestamp(target, found + 1)
        return None

    @property
    def largest_timestamp(self) -> TimestampOffset | None:
        """The largest timestamp in the segment and the first offset that carries it.

        None where the format has no time (v0) and in an empty segment. Records of v1 and v2 that were given
        none carry -1, which is then the largest, as for Kafka (LogSegment.readMaxTimestampSoFar).
        """
        entry = self._trusted_time_entry(2**63 - 1)
        largest, position = (-1, 0) if entry is None else (entry[0], entry[2])
        for table in self.tables(position):
            largest = max(largest, table.max_timestamp)
        if largest >= 0:
            return self.find_timestamp(largest)
        first = next(self.batches(), None)
        if first is None or first.magic == 0:
            return None
        return TimestampOffset(-1, first.base_offset, _known_epoch(first))

    def _position_before_time(self, target: int) -> int:
        entry = self._trusted_time_entry(within_int64(target - 1))
        return 0 if entry is None else entry[2]

    def _trusted_time_entry(self, target: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, position of its batch) of the last time-index entry with timestamp <= target.

        None where there is none, or where the entry does not lead to a batch with that largest timestamp, or
        a batch before has a later one: then the index is not believed. After compaction the entry's offset may be
        a hole; a rewritten index leads to the batch that covers it.
        """
        try:
            index = self.time_index
            if index is None or len(index) == 0:
                return None
            timestamp, offset = index.lookup(target)
        except CorruptIndexError:
            return None
        if timestamp < 0:
            return None
        position = self._position_near(offset)
        table = scan(self.window, position, max_bytes=SCAN_BYTES, decompress=self.decompress)
        found = table.find_offset(offset)
        if found < 0 or not table[found].crc_is_valid() or table[found].max_timestamp != timestamp:
            return None
        position = table[found].position
        return (timestamp, offset, position) if self._nothing_later_before(position, timestamp) else None

    def _nothing_later_before(self, position: int, timestamp: int) -> bool:
        """Does a batch begin at `position`, and none before it hold a timestamp above `timestamp`?

        No entry proves that by itself, only the headers of all batches before. They are walked once (warm and of
        16 KiB batches about 0.2 s a GiB) and what was seen is kept. Damage on the way is passed over.
        """
        walked = self._walked
        if walked[-1][0] < position:
            walked = walked.copy()
            for table in self.tables(
                walked[-1][0], check_crc=False, max_batches=WALK_BATCHES, on_lost=lambda _: None
            ):
                walked.append((table.end, max(walked[-1][1], table.max_timestamp)))
                if table.end >= position:
                    break
            if len(walked) > len(self._walked):
                self._walked = walked
        start, largest = walked[bisect_right(walked, position, key=lambda place: place[0]) - 1]
        rest = scan(self.window, start, position, decompress=self.decompress)
        return rest.end == position and max(largest, rest.max_timestamp) <= timestamp


def first_offset_of(batch: RecordBatch) -> int:
    """Where the batch begins; for a wrapper that does not open, where it ends: that, its header tells."""
    try:
        return batch.base_offset
    except UNREADABLE:
        return batch.last_offset


def checked_records(batch: RecordBatch) -> Iterable[Record]:
    """The records of a batch, all of them read before the first is given: a damaged batch gives none, not a part.

    Iterate over it as often as you like. Raises what reading the batch raises.
    """
    reader = iter(batch)
    records = list(islice(reader, KEPT_RECORDS))
    if len(records) < KEPT_RECORDS:
        return records
    for _ in reader:
        pass
    return batch


def within_int64(n: int) -> int:
    """The number nearest to `n` that an offset or a timestamp can be compared with: no batch ends at the last one."""
    return min(max(n, -(2**63)), 2**63 - 1)


def _known_epoch(batch: RecordBatch) -> int | None:
    return None if batch.leader_epoch < 0 else batch.leader_epoch
