"""Writes one whole segment from existing batches: the result of a conversion or a compaction.

Uses a SegmentAppender, and decides how many batches of a table fit into one segment, batch by batch, by Kafka's rule of
size, offsets and full indexes; times do not count, since the batches were in one segment before.

Nothing is durable before `finish` has returned, and the names of the files only after the caller has synced the
directory. Errors are StorageError; after one, close the writer and remove the files.
"""
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog._kernels.batch_survey import cut
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format import names
from seglog.format.compression import Decompress, decompressor
from seglog.fs.files import FileSystem
from seglog.segment.appender import SegmentAppender
from seglog.segment.batches import UNREADABLE
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.roll import RELATIVE_OFFSET_MAX
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path
from seglog.segment.transaction_index import AbortedTransaction


class SegmentWriter:
    """A new segment at `base_offset` in `directory`. A context manager: leaving it closes, finished or not.

    `state`: what is appended to its file names, such as names.CLEANED_SUFFIX for a segment that is to replace others.
    `makes_ranges`: it gets time ranges, if the configuration has them.
    """

    def __init__(
        self, fs: FileSystem, directory: Path, base_offset: int, config: LogConfig, *, state: str = "",
        makes_ranges: bool = False,
    ) -> None:
        self._appender = SegmentAppender.create(
            fs, directory, base_offset, config, created_ms=0, sync_names=False, state=state
        )
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._fs = fs
        self._decompress = decompressor(config.max_decompressed_message_bytes)
        self._makes_ranges = makes_ranges and config.time_index_ranges_enabled
        self.path = self._appender.path
        self.base_offset = base_offset

    @property
    def next_offset(self) -> int:
        """One past the last offset so far."""
        return self._appender.next_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of batches so far."""
        return self._appender.size_bytes

    def fits(self, table: BatchTable, first: int) -> int:
        """Return the slot before which to stop: [first, stop) may be appended to this segment; `first` if none may.

        The first batch of a segment always fits, however large.
        """
        entries_left = self._appender.index_entries_left
        # Index entries are more than index.interval.bytes apart, so these bytes leave at least one of them free. Nearer
        # to the end of an index, batches go one by one: the one that fills it is the last.
        room = min(self._segment_bytes - self.size_bytes, (entries_left - 1) * self._index_interval_bytes)
        stop = cut(table, first, room, min(self.base_offset + RELATIVE_OFFSET_MAX, names.MAX_OFFSET))
        if stop == first < len(table) and self._takes(table, first):
            return first + 1
        return stop

    def _takes(self, table: BatchTable, slot: int) -> bool:
        """Whether one more batch may be appended, beyond the estimate."""
        if self.size_bytes == 0:
            return True
        batch = table[slot]
        # Without a timestamp and at the starting time: no time has passed.
        return not self._appender.should_roll(batch.size_bytes, -1, batch.last_offset, now_ms=0)

    def append(self, window: Window, table: BatchTable, first: int, stop: int) -> None:
        """Write the batches [first, stop) of `table`, which was scanned from `window`, and their index entries.

        Raises CorruptRecordError if an offset is not above those before it, or no index entry can express it.
        """
        self._appender.append(window, table, first, stop)

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Write an entry of the .txnindex, for a transaction whose abort marker is in this segment."""
        self._appender.add_aborted(transaction)

    def finish(self, *, mtime_ns: int | None = None) -> None:
        """Write the closing time entry, set the files' time if one is given, sync and close them.

        A segment without timestamps is as old as its file (Kafka's retention), so a copy needs its time.
        """
        self._appender.seal(mtime_ns=mtime_ns)
        self.close()
        if self._makes_ranges:
            write_time_ranges(self._fs, self.path, self._decompress, mtime_ns)

    def close(self) -> None:
        """Close the descriptors. Idempotent; without `finish` before it the segment is incomplete."""
        self._appender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_time_ranges(fs: FileSystem, log: Path, decompress: Decompress, mtime_ns: int | None) -> None:
    """Write durable time ranges for a segment that was written aside, by its .log; the caller syncs the names.

    Writes none if a batch does not open: a segment can do without. Raises StorageError.
    """
    path = time_ranges_path(log)
    with closing(Segment(log, is_last=False, decompress=decompress)) as segment:
        try:
            raw = time_ranges_bytes(segment)
        except UNREADABLE:
            return
    with fs.create(path) as file:
        file.append(raw)
        if mtime_ns is not None:
            fs.set_mtime(path, mtime_ns)
        file.sync()
