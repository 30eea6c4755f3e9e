"""Deleting what retention no longer keeps: judged without a lock, done with it, if the log is still the same.

    judge       the rule that was passed in (log.aging) is applied to the current extent
    delete      the log start offset moves, durably; segments get the suffix .deleted, and are removed after
                file.delete.delay.ms
    make room   if the disk is full (so the log may be read-only), segments are removed at once, the first one first
    rewrite     with seglog.retention.granularity=batch, the first segment without the batches before the log start
                offset

Readers that hold a segment's files finish reading it.
"""
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import CallLock
from seglog.config import LogConfig
from seglog.errors import StorageError
from seglog.format.dialect import segment_files
from seglog.fs.files import FileSystem
from seglog.fs.refusals import is_out_of_space, refusals
from seglog.late_import import late
from seglog.loading.loader import LoadPlan
from seglog.log.tail import LogTail
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.reading.extent import Extent
from seglog.segment.batches import first_offset_of
from seglog.segment.segment import Segment

if TYPE_CHECKING:
    from seglog.log.expiry import Expired, LogAge, Retention, Verdict
    from seglog.log.truncation import LogTruncator

_LOG = Logger(__name__)

# With room for fewer segments than this, .deleted files do not wait for file.delete.delay.ms.
_SPARE_SEGMENTS = 4


class Retained(NamedTuple):
    """What one run of retention did, or would do.

    `linked_bytes`: the size of the removed .log files that have other hard links, such as a hot backup's: their space
    is not freed. `rewritten_bytes`: how much smaller the first segment became. `waits_ms`: the ms until the next
    .deleted file may be removed, or None if there is none.
    """

    expired: "tuple[Expired, ...]" = ()
    log_start_offset: int = 0
    linked_bytes: int = 0
    rewritten_bytes: int = 0
    waits_ms: int | None = None

    @property
    def deleted_bytes(self) -> int:
        return sum(expired.size_bytes for expired in self.expired)


class _Deleted(NamedTuple):
    """Segments that are no longer in the log, and their .deleted files, which are removed from `due_ms` on."""

    due_ms: int
    segments: tuple[Segment, ...]
    files: tuple[str, ...]


class AgedSegment:
    """One segment of a log, as retention sees it (aging.AgingSegment). Values of a sealed one are read only once."""

    __slots__ = ("_file_time_ms", "_largest", "_size_bytes", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._size_bytes: int | None = None
        self._largest: int | None = None
        self._file_time_ms: int | None = None

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def size_bytes(self) -> int:
        if self.segment.published is not None:
            return self.segment.published.at.position
        if self._size_bytes is None:
            self._stat()
        assert self._size_bytes is not None
        return self._size_bytes

    @property
    def file_time_ms(self) -> int:
        if self._file_time_ms is None or self.segment.published is not None:
            self._stat()
        assert self._file_time_ms is not None
        return self._file_time_ms

    def read(self) -> None:
        """Read all values now, while the segment is open."""
        self._stat()
        assert self.largest_timestamp is not None

    def _stat(self) -> None:
        with refusals("stat", self.segment.path):
            status = os.stat(self.segment.path)
        self._size_bytes, self._file_time_ms = status.st_size, status.st_mtime_ns // 1_000_000

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp in the batch headers, as Kafka's time index has it."""
        if self._largest is None or self.segment.published is not None:
            passed = self.segment._largest_passed
            if passed is None:
                tables = self.segment.tables(check_crc=False, on_lost=lambda _: None)
                passed = max((table.max_timestamp for table in tables), default=-1)
            self._largest = passed
        return self._largest

    def first_batch_since(self, timestamp: int) -> int | None:
        offset = self.segment.seek(max(timestamp, 0), self.base_offset)[1]
        found = self.segment.find_offset(offset) if offset >= 0 else None
        return None if found is None else first_offset_of(next(self.segment.tables(found.position))[0])


def truncator_of(tail: LogTail) -> "LogTruncator":
    """What truncates the log. (Imported when there is something to truncate: most processes never do that.)"""
    late("seglog.log.truncation")
    from seglog.log.truncation import LogTruncator

    return LogTruncator(tail)


class LogRetainer:
    """Implements `Log.delete_old_segments`. Code that writes .cleaned files holds `cleaning`."""

    def __init__(self, tail: LogTail, retention: "Retention") -> None:
        self._tail = tail
        self._retention = retention
        self.cleaning = CallLock()
        self._running = CallLock()
        self._ages: dict[Segment, AgedSegment] = {}
        self._deleted: list[_Deleted] = []      # changed with the lock

    def on_growth(self, wake: Callable[[], None]) -> None:
        """From now on call `wake` after each roll, and when no space is left."""

        def rolled() -> None:
            # Here, not in the woken thread: quick appends could fill the disk before it runs.
            if self._deleted and _is_nearly_full(self._tail.path, self._tail.config):
                with contextlib.suppress(StorageError):     # the thread meets it, too, and reports it
                    self._remove(self._deleted)
                    self._deleted = []
            wake()

        self._tail.on_roll, self._tail.on_full = rolled, wake

    def now_ms(self) -> int:
        """The time, by the log's clock."""
        return self._tail.now_ms()

    # --- judging, without a lock ---------------------------------------------------------------

    def ages(self) -> list[AgedSegment]:
        """The current segments."""
        known = self._ages
        ages = [known.get(segment) or AgedSegment(segment) for segment in self._tail.current().segments]
        self._ages = {age.segment: age for age in ages}
        return ages

    def judge(self, ages: Sequence[AgedSegment]) -> "Verdict":
        """What to delete now."""
        late("seglog.log.expiry")
        from seglog.log.expiry import LogAge

        tail = self._tail
        extent = tail.current()
        end = extent.log_end_offset
        start = extent.log_start_offset
        return self._retention(LogAge(ages, start, self.kept_from(), end), tail.config, tail.now_ms())

    def kept_from(self) -> int:
        """The offset from which on nothing may be deleted. Raises CorruptCheckpointError if a cursor file is damaged.
        """
        tail = self._tail
        extent = tail.current()
        return kept_from(tail.path, tail.config, extent.log_start_offset, extent.log_end_offset)

    def run(self, throttle: Callable[[int], None] | None = None) -> Retained:
        """Delete what is due now. `throttle` is called with the number of bytes of a rewrite, piece by piece."""
        return self._running.run(self._run, throttle)       # a second caller finds it done

    def _run(self, throttle: Callable[[int], None] | None) -> Retained:
        done = self._delete_judged()
        rewritten = self.cleaning.run(self._rewrite_head, throttle) if self._tail.failure is None else 0
        self.remove_deleted()
        waits_ms = min((deleted.due_ms for deleted in self._deleted), default=None)
        return Retained(
            done.expired, done.log_start_offset, done.linked_bytes, rewritten,
            None if waits_ms is None else max(waits_ms - self._tail.now_ms(), 0),
        )

    def _judged(self) -> "tuple[list[AgedSegment], Verdict]":
        """`judge` of all segments; again if a compaction removed the files of some meanwhile."""
        while True:
            before = self._tail.current().segments
            ages = self.ages()
            try:
                return ages, self.judge(ages)
            except StorageError as error:
                if error.errno != errno.ENOENT or self._tail.current().segments is before:
                    raise

    # --- deleting ------------------------------------------------------------------------------

    def _delete_judged(self) -> Retained:
        """`delete` what `judge` says; again if a compaction exchanged the first segment to delete meanwhile."""
        before: tuple[Expired, ...] = ()
        linked = 0
        while True:
            ages, verdict = self._judged()
            done = self.delete(verdict, ages)
            before, linked = before + done.expired, linked + done.linked_bytes
            is_left = len(done.expired) < len(verdict.expired)
            if not is_left or self._tail.current().segments[0] is ages[len(done.expired)].segment:
                return done._replace(expired=before, linked_bytes=linked)

    def delete(self, verdict: "Verdict", ages: Sequence[AgedSegment]) -> Retained:
        """Carry out a verdict, as far as the log is still what was judged."""
        tail = self._tail
        start = tail.current().log_start_offset
        if not verdict.expired and verdict.log_start_offset <= start:
            return Retained((), start)
        judged = [age.segment for age in ages[: len(verdict.expired)]]
        late("seglog.log.snapshot_barrier")
        from seglog.log.snapshot_barrier import change_settled

        if not is_out_of_space(tail.failure):
            tail.check()
            try:
                done = None
                while done is None:
                    done = shielded(tail.files_lock.run, change_settled, tail, self._delete, verdict, judged)
                return done
            except StorageError as error:
                if not is_out_of_space(error):
                    raise
        return shielded(tail.files_lock.run, tail.with_lock, self._make_room, verdict, judged)

    def _delete(self, verdict: "Verdict", judged: Sequence[Segment]) -> Retained | None:
        """Returns None if the log has rolled: the snapshot of that must be written first."""
        tail = self._tail
        tail.write_lingering()
        extent = tail.current()
        expired = _still(extent, verdict.expired, judged)
        if len(expired) == len(extent.segments):
            if expired[-1].next_offset == tail.next_offset:
                tail.roll_at(tail.next_offset)
                if tail.snapshots.is_busy:
                    return None
                extent = tail.current()
            else:
                expired = expired[:-1]      # records were appended to it meanwhile
        start = expired[-1].next_offset if expired else extent.log_start_offset
        if len(expired) == len(verdict.expired):
            start = max(start, verdict.log_start_offset)
        start = min(max(start, extent.log_start_offset), extent.log_end_offset)
        linked = _linked_bytes(extent.segments[: len(expired)])
        if expired or start > extent.log_start_offset:
            gone = extent.segments[: extent.slot_of(start)]
            files = truncator_of(tail).delete_before(extent, start)
            self._deleted.append(_Deleted(tail.now_ms() + tail.config.file_delete_delay_ms, gone, tuple(files)))
        return Retained(expired, start, linked)

    def _make_room(self, verdict: "Verdict", judged: Sequence[Segment]) -> Retained:
        """With the lock, if no space is left: nothing can be written before something is removed.

        Segment by segment, each removed durably before the next one: a crash leaves a log that begins at a segment, so
        no checkpoint file need be written first.
        """
        tail = self._tail
        extent = tail.current()
        tail.snapshots.wait()       # a snapshot that can still be written is worth more than the old segments
        self._remove(self._deleted)
        self._deleted = []
        expired = _still(extent, verdict.expired, judged)[: len(extent.segments) - 1]
        linked = _linked_bytes(extent.segments[: len(expired)])
        tail.live.begin()
        try:
            for _ in expired:
                gone = extent.segments[0]
                gone._retire()
                # The .log first: without it the other files are orphans.
                for path in segment_files(gone.path):
                    tail.fs.unlink(path)
                tail.fs.sync_directory(tail.path)
                gone._let_go()
                start = max(extent.log_start_offset, extent.segments[1].base_offset)
                extent = tail.shown.extent = extent.behind(1, start)
        finally:
            tail.live.end(tail.shown, tail.last_stable_offset)
        start = extent.log_start_offset
        if expired:
            _LOG.warning(
                "%s: the disk is full: removed %d old segments at once, up to offset %d%s", tail.path, len(expired),
                start, f"; hot backups still hold {linked} bytes of them" if linked else "",
            )
            with contextlib.suppress(StorageError):     # the next opening does it
                tail.partition.put(log_start_offset=start, first_base_offset=extent.segments[0].base_offset)
                tail.epoch_cache.truncate_from_start(start)
                tail.snapshots.delete_before(extent.segments[0].base_offset)
        return Retained(expired, start, linked)

    # --- .deleted files ------------------------------------------------------------------------

    def remove_deleted(self, *, all_of_them: bool = False) -> None:
        """Remove the .deleted files that are due. Closing removes all of them, and so does the next opening."""
        if self._deleted:
            self._tail.files_lock.run(self._tail.with_lock, self._remove_due, all_of_them)

    def _remove_due(self, all_of_them: bool) -> None:
        tail = self._tail
        everything = all_of_them or is_out_of_space(tail.failure) or _is_nearly_full(tail.path, tail.config)
        now_ms = tail.now_ms()
        due = [entry for entry in self._deleted if everything or entry.due_ms <= now_ms]
        if tail.shown.extent is not None:
            self._remove(due)
            self._deleted = [entry for entry in self._deleted if entry not in due]

    def _remove(self, deleted: Sequence[_Deleted]) -> None:
        for entry in deleted:
            for path in entry.files:
                if os.path.exists(path):       # it may have been removed by hand
                    self._tail.fs.unlink(path)
            for segment in entry.segments:
                segment._let_go()        # otherwise its map keeps the space; readers have their own hold on it

    # --- the first segment ---------------------------------------------------------------------

    def _rewrite_head(self, throttle: Callable[[int], None] | None) -> int:
        """Exchange the first segment for one without the batches before the log start offset. Returns the bytes saved.
        """
        tail = self._tail
        config = tail.config
        extent = tail.current()
        head, start = extent.segments[0], extent.log_start_offset
        if config.retention_granularity != "batch" or not config.deletes or start <= head.base_offset:
            return 0
        found = head.find_offset(start)
        size_bytes = AgedSegment(head).size_bytes
        if found is None or found.position <= size_bytes * config.retention_head_rewrite_ratio or not found.position:
            return 0
        if len(extent.segments) == 1:
            tail.change(self._roll_after, head)
            extent = tail.current()
            if extent.segments[0].path != head.path or len(extent.segments) == 1:
                return 0
            head = extent.segments[0]
        late("seglog.log.removal")
        from seglog.log.removal import remove_cleaned
        late("seglog.log.head_rewrite")
        from seglog.log.head_rewrite import rewritten_from

        new = rewritten_from(tail.fs, head, found.position, start, config, throttle)
        # (After an error, the .cleaned file makes the next opening undo the rewrite.)
        if truncator_of(tail).replace_head(head, new):
            return found.position
        remove_cleaned(tail.fs, new)
        return 0

    def _roll_after(self, head: Segment) -> None:
        if self._tail.current().segments == (head,):
            self._tail.roll()


def kept_from(directory: Path, config: LogConfig, log_start_offset: int, log_end_offset: int) -> int:
    """The offset from which on retention deletes nothing: the log end, or the first that a cursor has not read.
    """
    if not config.retention_respect_cursors:
        return log_end_offset
    late("seglog.state.reader_cursor")
    from seglog.state.reader_cursor import committed_cursors

    unread = min((cursor.offset for cursor in committed_cursors(directory)), default=log_end_offset)
    return min(max(unread, log_start_offset), log_end_offset)


def _still(extent: Extent, expired: "Sequence[Expired]", judged: Sequence[Segment]) -> "tuple[Expired, ...]":
    """Those of `expired` with which the log still begins: a truncation replaces segments."""
    count = 0
    for before, now in zip(judged, extent.segments, strict=False):
        if before is not now:
            break
        count += 1
    return tuple(expired[:count])


def _is_nearly_full(directory: Path, config: LogConfig) -> bool:
    """Whether there is little room for more segments: a quick writer may fill some before the thread runs."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _SPARE_SEGMENTS * config.segment_bytes


def _linked_bytes(segments: Sequence[Segment]) -> int:
    """The total size of the .log files that have other hard links."""
    linked = 0
    for segment in segments:
        with contextlib.suppress(OSError):
            status = os.stat(segment.path)
            linked += status.st_size if status.st_nlink > 1 else 0
    return linked


def keep_all(log: "LogAge", config: LogConfig, now_ms: int) -> "Verdict":
    """The rule of a log that deletes nothing by itself."""
    late("seglog.log.expiry")
    from seglog.log.expiry import Verdict

    return Verdict((), log.log_start_offset)


def make_room_to_open(plan: LoadPlan, fs: FileSystem, retention: "Retention", now_ms: int) -> bool:
    """Remove what retention no longer keeps from a log that cannot be opened because the disk is full. Returns whether
    anything was removed.

    Whole segments only, each removed durably before the next one; the last one stays.
    """
    late("seglog.log.expiry")
    from seglog.log.expiry import LogAge

    segments = [Segment(planned.files.log.path) for planned in plan.segments]
    if len(segments) < 2:
        return False
    ages = [AgedSegment(segment) for segment in Extent(segments, plan.log_start_offset).segments]
    end = plan.next_offset
    limit = kept_from(plan.directory, plan.config, plan.log_start_offset, end)
    verdict = retention(LogAge(ages, plan.log_start_offset, limit, end), plan.config, now_ms)
    gone = plan.segments[: min(len(verdict.expired), len(segments) - 1)]
    for segment in segments:
        segment.close()
    for planned in gone:
        for file in (planned.files.log, *planned.files.indexes.values()):
            fs.unlink(file.path)
        fs.sync_directory(plan.directory)
    if gone:
        _LOG.warning("%s: the disk is too full to open it: removed %d old segments", plan.directory, len(gone))
    return bool(gone)
