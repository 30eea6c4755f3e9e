"""Writes one segment: finished batches into a new .log, and the indexes that belong to them.

The caller brings batches as they shall stand in the file, scanned; here nothing is encoded,
decompressed or checked beyond what keeps the segment addressable. The indexes are functions of
the log: every batch goes through the IndexBuilder, by the rule of Kafka 3.9.1 and 4.1.1, and the
files hold entries only, no preallocated zeros, for a broker that was shut down cleanly trusts them.

Nothing is durable before `finish` has returned, and the names of the files only after the caller has
synced the directory. Errors are StorageError; after one, close the writer and remove what is there.
"""
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog._kernels.batch_survey import cut
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.format import names
from seglog.fs.files import FileSystem, WritableFile
from seglog.segment.offset_index import OffsetIndex
from seglog.segment.time_index import TimeIndex
from seglog.segment.transaction_index import AbortedTransaction

# An index entry holds the offset as a signed int32 above the segment's base
# (LogSegment.canConvertToRelativeOffset).
RELATIVE_OFFSET_MAX = 2**31 - 1


class SegmentWriter:
    """A new segment at `base_offset` in `directory`. A context manager: leaving it closes, finished or not."""

    def __init__(self, fs: FileSystem, directory: Path, base_offset: int, config: LogConfig) -> None:
        self.path = directory / names.file_name(base_offset, names.LOG_SUFFIX)
        self.base_offset = base_offset
        self.next_offset = base_offset
        self._fs = fs
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._offset_entries_max = config.segment_index_bytes // OffsetIndex.ENTRY_SIZE
        # The last slot of a time index is kept for its closing entry (TimeIndex.isFull).
        self._time_entries_max = config.segment_index_bytes // TimeIndex.ENTRY_SIZE - 1
        self._builder = IndexBuilder(
            base_offset, config.index_interval_bytes, max_index_bytes=config.segment_index_bytes
        )
        self._files: list[WritableFile] = []
        self._log = self._create(self.path)
        self._offset_index = self._create(self.path.with_suffix(names.OFFSET_INDEX_SUFFIX))
        self._time_index = self._create(self.path.with_suffix(names.TIME_INDEX_SUFFIX))
        self._transaction_index: WritableFile | None = None

    def _create(self, path: Path) -> WritableFile:
        try:
            file = self._fs.create(path)
        except BaseException:
            self.close()
            raise
        self._files.append(file)
        return file

    @property
    def size_bytes(self) -> int:
        """Bytes of batches so far."""
        return self._log.position

    def fits(self, table: BatchTable, first: int) -> int:
        """The slot before which to stop: [first, stop) may be appended to this segment; `first` where none may.

        Kafka's LogSegment.shouldRoll, batch for batch: segment.bytes, 31 bits of relative offset, full
        indexes. The first batch of a segment always fits, however large.
        """
        entries_left = min(
            self._offset_entries_max - self._builder.offset_entries,
            self._time_entries_max - self._builder.time_entries,
        )
        # Index entries lie more than index.interval.bytes apart, so that these bytes leave one of them free at
        # least. Nearer to the end of an index, batches go one by one: the one that fills it is the last.
        room = min(self._segment_bytes - self.size_bytes, (entries_left - 1) * self._index_interval_bytes)
        stop = cut(table, first, room, min(self.base_offset + RELATIVE_OFFSET_MAX, names.MAX_OFFSET))
        if stop == first < len(table) and self._takes(table, first, entries_left):
            return first + 1
        return stop

    def _takes(self, table: BatchTable, slot: int, entries_left: int) -> bool:
        """Whether one batch may be appended that the estimate left out."""
        if self.size_bytes == 0:
            return True
        batch = table[slot]
        return (
            entries_left > 0
            and batch.size_bytes <= self._segment_bytes - self.size_bytes
            and batch.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def append(self, window: Window, table: BatchTable, first: int, stop: int) -> None:
        """Write the batches [first, stop) of `table`, which was scanned from `window`, and their index entries.

        Raises CorruptRecordError where an offset is not above those before it, or no index entry can name it.
        """
        if first == stop:
            return
        begin, last = table[first], table[stop - 1]
        # Where a wrapper begins is inside of it.
        begin_offset = begin.base_offset if begin.magic == 2 else begin.last_offset
        if begin_offset < self.next_offset:
            raise CorruptRecordError(
                f"a batch from offset {begin_offset} on, expected {self.next_offset} or above",
                file=self.path, position=self.size_bytes, offset=begin_offset,
            )
        # Checks the offsets; before the write, so that a refused batch leaves the file as it was.
        self._builder.add(table, first, stop, self.size_bytes)
        self._log.append(memoryview(window)[begin.position : last.position + last.size_bytes])
        self._take_entries()
        self.next_offset = last.last_offset + 1

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Write a line of the .txnindex: of a transaction whose abort marker stands in this segment."""
        if self._transaction_index is None:
            self._transaction_index = self._create(self.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX))
        self._transaction_index.append(transaction.to_bytes())

    def _take_entries(self) -> None:
        self._offset_index.append(self._builder.take_offset_entries())
        self._time_index.append(self._builder.take_time_entries())

    def finish(self, *, mtime_ns: int | None = None) -> None:
        """Write the closing time entry, set the files' time where one is given, sync and close them.

        A segment without timestamps is as old as its file (Kafka's retention), so that a copy needs its time.
        """
        self._builder.finish()
        self._take_entries()
        for file in self._files:
            if mtime_ns is not None:
                self._fs.set_mtime(file.path, mtime_ns)
            file.sync()
        self.close()

    def close(self) -> None:
        """Give the descriptors back. Twice is fine; without `finish` before it the segment is not whole."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
