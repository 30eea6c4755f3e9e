"""How a log is cut: at its end back to an offset, or at its start up to one.

In an order of durable steps such that a crash after any of them leaves a directory which Kafka and we open.
"""
from collections.abc import Iterator, Sequence
from pathlib import Path

from seglog._kernels.segment_scan import BatchTable
from seglog.errors import OffsetOutOfRangeError
from seglog.log.append import LogAppender
from seglog.log.arguments import checked_offset
from seglog.log.extent import Extent
from seglog.log.removal import cut_segment, remove_segments
from seglog.segment.appender import SegmentAppender
from seglog.segment.segment import Segment
from seglog.state.producer_snapshots import rebuild


class LogCutter(LogAppender):
    """`truncate_to` and `delete_records` of a `Log`."""

    def truncate_to(self, offset: int) -> int:
        """Take back every record from `offset` on. Returns the new log end offset.

        A batch goes as a whole: where `offset` lies inside of one, its first offset is the new end; never less than the
        log start offset, where an empty log begins anew. Readers that are in the removed part go on to its end, new
        ones get OffsetOutOfRangeError. (UnifiedLog.truncateTo)

        Raises OffsetOutOfRangeError below the log start offset, LogClosedError, LogFailedError.
        """
        offset = checked_offset(offset)
        with self._files_lock, self._lock:
            self._check_writable()
            extent = self._current()
            if offset < extent.log_start_offset:
                raise OffsetOutOfRangeError(
                    f"offset {offset} is below the log start offset, {extent.log_start_offset}",
                    file=self.path, offset=offset,
                )
            if offset < self._next_offset:
                self._before_change()
                try:
                    with self._commit.exclusive():
                        self._truncate(extent, offset)
                except BaseException as error:
                    self._fail(error)
                    raise
            return self._next_offset

    def _truncate(self, extent: Extent, offset: int) -> None:
        """Alone with the files. Each step is durable before the next one begins."""
        self._write_entries()
        self._sync_all()        # readers see all there is, so that the cut can be found
        slot = extent.slot_of(offset)
        cut = extent.segments[slot]
        found = cut.find_offset(offset)
        position = cut.size_bytes if found is None else found.position
        # First what recovery starts from: it must not take the cut for damage below what was once checked.
        self._put_recovery_point(min(self._recovery_point, offset))
        self._active.sync_indexes()     # they may stay as they are, and nobody else syncs them
        self._active.close()
        for segment in reversed(extent.segments[slot:]):
            segment.retire()
        # From the end on and one by one: a crash in between leaves no hole in the middle.
        for segment in reversed(extent.segments[slot + 1 :]):
            remove_segments(self.fs, self.path, [segment.path])
        cut_segment(self.fs, cut.path, position, offset)
        end = self._sealed(cut.path).next_offset
        self._next_offset = self._durable_offset = max(end, extent.log_start_offset)
        self._put_recovery_point(min(self._recovery_point, self._next_offset))
        self._epoch_cache.truncate_from_end(self._next_offset)
        self._is_epoch_due = True
        if end < extent.log_start_offset:
            self._begin_anew(extent.segments[: slot + 1], extent.log_start_offset)
        else:
            self._take_up(list(extent.segments[:slot]), cut.base_offset, position, extent.log_start_offset)
        self._producers = rebuild(
            self._snapshots, [segment.base_offset for segment in self.segments], self._tables_from,
            log_start_offset=extent.log_start_offset, log_end_offset=self._next_offset,
            now_ms=self._now_ms(), expiration_ms=self.config.producer_id_expiration_ms,
        )

    def _begin_anew(self, hidden: Sequence[Segment], log_start_offset: int) -> None:
        """All that is left lies below the log start offset: no segment is, but for an empty one there.

        Also what the loader makes of it, whatever a crash leaves. (LogLoader.deleteSegmentsIfLogStartGreaterThanLogEnd)
        """
        for segment in reversed(hidden):
            segment.retire()
            remove_segments(self.fs, self.path, [segment.path])
        active = SegmentAppender.create(
            self.fs, self.path, log_start_offset, self.config, self._now_ms(), jitter_ms=self._jitter_ms()
        )
        self._use(active, [], log_start_offset)

    def _tables_from(self, offset: int) -> Iterator[BatchTable]:
        return (table for _, table in self.tables(offset, check_crc=False))

    def delete_records(self, before: int) -> int:
        """Let the log begin at `before`: records below it are gone for readers, segments wholly below it from the disk.

        Returns the log start offset; nothing changes where that is past `before` already. A negative offset means
        nothing here, also not Kafka's -1. (UnifiedLog.maybeIncrementLogStartOffset, KIP-107)

        Raises OffsetOutOfRangeError above the log end offset and below 0, StorageError, LogClosedError, LogFailedError.
        """
        before = checked_offset(before)
        with self._files_lock, self._lock:
            self._check_writable()
            extent = self._current()
            if not 0 <= before <= extent.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"offset {before} is not within [{extent.log_start_offset}, {extent.log_end_offset}]",
                    file=self.path, offset=before,
                )
            if before > extent.log_start_offset:
                self._delete_before(extent, before)
            return self.log_start_offset

    def _delete_before(self, extent: Extent, before: int) -> None:
        self._before_change()
        # First the promise, then the files: were a segment gone without it, the log would begin there after a crash,
        # and with one of several segments gone, in the middle.
        self._hold.put(log_start_offset=before, first_base_offset=extent.segments[0].base_offset)
        slot = extent.slot_of(before)
        gone, kept = extent.segments[:slot], extent.segments[slot:]
        for segment in gone:
            segment.retire()
        self._extent = Extent(kept, before)
        self._epoch_cache.truncate_from_start(before)
        if gone:
            remove_segments(self.fs, self.path, [segment.path for segment in gone])
            self._snapshots.delete_before(kept[0].base_offset)

    def _take_up(self, before: list[Segment], base_offset: int, size_bytes: int, log_start_offset: int) -> None:
        """Append to the segment at `base_offset`, whose .log has so many bytes, from the next offset on."""
        active = SegmentAppender.open(
            self.fs, self.path, base_offset, self.config, size_bytes, self._next_offset, self._now_ms(),
            jitter_ms=self._jitter_ms(),
        )
        self._use(active, before, log_start_offset)

    def _sealed(self, path: Path) -> Segment:
        return Segment(
            path, is_last=False, decompress=self.decompress, owned=True,
            by_minute=bool(self.config.time_index_minute_enabled), last_opened=self.last_opened,
        )
