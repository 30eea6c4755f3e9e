"""Truncating a log, at its end back to an offset or at its start up to one, and exchanging sealed segments.

The durable steps are ordered so that a crash after any of them leaves a directory that Kafka and seglog can open. No
exception from outside reaches a truncation (_kernels.shield).
"""
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.shield import shielded
from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError
from seglog.format import names
from seglog.format.dialect import dialect_of, dialect_of_config
from seglog.fs.files import FileSystem
from seglog.late_import import late
from seglog.log.removal import mark_deleted, remove_segments, truncate_segment
from seglog.log.snapshot_barrier import change_settled
from seglog.log.tail import LogTail
from seglog.reading.arguments import checked_offset
from seglog.reading.extent import Extent
from seglog.segment.segment import Segment
from seglog.state.producer_snapshots import rebuild


class LogTruncator:
    """`truncate_to`, `delete_records` and `replace_segments` of a `Log`, which documents them."""

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail

    def truncate_to(self, offset: int) -> int:
        offset, tail = checked_offset(offset), self._tail
        tail.check()
        return shielded(tail.files_lock.run, change_settled, tail, self._truncate_to, offset)

    def _truncate_to(self, offset: int) -> int:
        tail = self._tail
        tail.write_lingering()
        extent = tail.current()
        if offset < extent.log_start_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is below the log start offset, {extent.log_start_offset}",
                file=tail.path, offset=offset,
            )
        if offset < tail.next_offset:
            tail.recovery_point.before_change()
            late("seglog.state.reader_cursor")
            from seglog.state.reader_cursor import lower_cursors

            # Before the truncation: after a crash in the middle of it, no reader may skip records that are appended
            # later.
            lower_cursors(tail.fs, tail.path, offset)
            with tail.changing():
                tail.alone_within(self._truncate, extent, offset)
        return tail.next_offset

    def _truncate(self, extent: Extent, offset: int) -> None:
        """Alone with the files. Each step is durable before the next one begins."""
        tail = self._tail
        tail.snapshots.settle()
        tail.sync_all()         # readers see all records, so that the truncation can be found
        tail.live.begin()
        slot = extent.slot_of(offset)
        truncated = extent.segments[slot]
        found = truncated.find_offset(offset)
        position = truncated.size_bytes if found is None else found.position
        # First the recovery point: recovery must not take the truncation for damage below what was checked before.
        tail.recovery_point.put(min(tail.recovery_point.offset, offset))
        if offset < (tail.partition.cleaner_offset or 0):
            tail.partition.put(cleaner_offset=offset)       # LogCleaner.maybeTruncateCheckpoint
        tail.active.sync_indexes()      # they may stay unchanged, and nothing else syncs them
        tail.active.close()
        for segment in reversed(extent.segments[slot:]):
            segment._retire()
        # From the end, one by one: a crash in between leaves no hole in the middle.
        for segment in reversed(extent.segments[slot + 1 :]):
            remove_segments(tail.fs, tail.path, [segment.path])
        truncate_segment(tail.fs, truncated.path, position, offset)
        end = tail.sealed(truncated.base_offset).next_offset
        tail.next_offset = tail.durable_offset = max(end, extent.log_start_offset)
        tail.recovery_point.put(min(tail.recovery_point.offset, tail.next_offset))
        tail.epoch_cache.truncate_from_end(tail.next_offset)
        tail.is_epoch_due = True
        if end < extent.log_start_offset:
            self._restart_empty(extent.segments[: slot + 1], extent.log_start_offset)
        else:
            tail.take_up(list(extent.segments[:slot]), truncated.base_offset, position, extent.log_start_offset)
        tail.producers = rebuild(
            tail.snapshots, [s.base_offset for s in tail.current().segments[-2:]], self._tables_from,
            log_start_offset=extent.log_start_offset, log_end_offset=tail.next_offset,
            now_ms=tail.now_ms(), expiration_ms=tail.config.producer_id_expiration_ms,
        )
        tail.producers.fences = tail.fences
        # Again, for commits made meanwhile.
        tail.announce_truncation()

    def _restart_empty(self, hidden: Sequence[Segment], log_start_offset: int) -> None:
        """All remaining records are below the log start offset: remove all segments, and create an empty one there.

        After a crash the loader does the same (LogLoader.deleteSegmentsIfLogStartGreaterThanLogEnd).
        """
        tail = self._tail
        for segment in reversed(hidden):
            segment._retire()
            remove_segments(tail.fs, tail.path, [segment.path])
        tail.use(tail.created_at(log_start_offset), [], log_start_offset)

    def _tables_from(self, offset: int) -> Iterator[BatchTable]:
        """The headers of the batch that holds `offset`, and of all later ones."""
        extent = self._tail.current()
        for segment in extent.segments_from(offset):
            found = segment.find_offset(offset) if offset > segment.base_offset else None
            for table in segment.tables(found.position if found else 0, check_crc=False):
                if len(table) and table[-1].last_offset >= offset:
                    yield table

    def delete_records(self, before: int) -> int:
        before, tail = checked_offset(before), self._tail
        tail.check()
        return shielded(tail.files_lock.run, change_settled, tail, self._delete_records, before)

    def _delete_records(self, before: int) -> int:
        tail = self._tail
        tail.write_lingering()
        extent = tail.current()
        if not 0 <= before <= extent.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {before} is not within [{extent.log_start_offset}, {extent.log_end_offset}]",
                file=tail.path, offset=before,
            )
        if before > extent.log_start_offset:
            for path in self.delete_before(extent, before):
                tail.fs.unlink(path)
        return tail.current().log_start_offset

    def replace_segments(self, old: Sequence[int], new: Sequence[Path]) -> None:
        tail = self._tail
        tail.check()
        shielded(tail.files_lock.run, change_settled, tail, self._replace_segments, tuple(old), tuple(new))

    def replace_head(self, head: Segment, new: Path) -> bool:
        """The same for the first segment; False if the first segment has changed: a truncation or a deletion came
        first."""
        tail = self._tail
        tail.check()
        return shielded(tail.files_lock.run, change_settled, tail, self._replace_head, head, new)

    def _replace_head(self, head: Segment, new: Path) -> bool:
        segments = self._tail.current().segments
        if segments[0] is not head or len(segments) == 1:
            return False
        self._replace_segments((head.base_offset,), (new,))
        return True

    def _replace_segments(self, old: tuple[int, ...], new: tuple[Path, ...]) -> None:
        tail = self._tail
        extent = tail.current()
        begin = extent.slot_of(old[0]) if old else 0
        stop = begin + len(old)
        found = tuple(segment.base_offset for segment in extent.segments[begin:stop])
        if not old or found != old or stop >= len(extent.segments):
            raise InvalidArgumentError(
                f"{list(old)} are not the base offsets of adjacent sealed segments", file=tail.path
            )
        targets = [_swapped_in(log, tail.path) for log in new]
        bases = [_base_offset_of(target) for target in targets]
        following = extent.segments[stop].base_offset
        if bases != sorted(set(bases)) or any(not old[0] <= base < following for base in bases):
            raise InvalidArgumentError(
                f"segments at {bases} do not fit in the place of {list(old)}, below {following}",
                file=tail.path,
            )
        tail.recovery_point.before_change()
        with tail.changing():
            tail.snapshots.settle()     # only the snapshots keep the producers whose records go
            tail.live.begin()
            self._swap(extent.segments[begin:stop], targets)
            tail.shown.extent = extent.exchanged(begin, stop, [tail.sealed(base) for base in bases])
            tail.live.end(tail.shown, tail.last_stable_offset)
            for gone in set(old).difference(bases):
                tail.snapshots.delete(gone)

    def exchange(
        self, seen: Sequence[Segment], old: Sequence[Segment], new: Sequence[Path]
    ) -> tuple[Segment, ...] | None:
        tail = self._tail
        tail.check()
        return shielded(tail.files_lock.run, change_settled, tail, self._exchange, tuple(seen), tuple(old), tuple(new))

    def _exchange(
        self, seen: tuple[Segment, ...], old: tuple[Segment, ...], new: tuple[Path, ...]
    ) -> tuple[Segment, ...] | None:
        tail = self._tail
        # Compares objects: a segment that was truncated, or created again at the same offset, is a different one.
        now = tail.current().segments
        still = tuple(segment for segment in seen if segment.base_offset >= now[0].base_offset)
        if still != now[: len(still)] or any(segment not in still for segment in old):
            return None
        self._replace_segments(tuple(segment.base_offset for segment in old), new)
        begin = still.index(old[0])
        return tail.current().segments[begin : begin + len(new)]

    def _swap(self, old: Sequence[Segment], targets: Sequence[Path]) -> None:
        """Swap files by Kafka's protocol, which state.leftovers completes. Each step is durable before the next begins.
        """
        tail = self._tail
        # The last one first: a .swap at or above a .cleaned goes when the log is opened (KAFKA-6264).
        for target in reversed(targets):
            _rename_all(tail.fs, target, names.CLEANED_SUFFIX, names.SWAP_SUFFIX)
        tail.fs.sync_directory(tail.path)
        for segment in old:
            segment._supersede()
        remove_segments(tail.fs, tail.path, [segment.path for segment in old])
        for target in targets:
            _rename_all(tail.fs, target, names.SWAP_SUFFIX, "")
        tail.fs.sync_directory(tail.path)

    def delete_before(self, extent: Extent, before: int) -> list[str]:
        """With both locks: let the log begin at `before`. Returns the .deleted files, which the caller must remove."""
        tail = self._tail
        tail.recovery_point.before_change()
        tail.snapshots.settle()     # only the snapshots keep the producers of the segments that go
        # First the new start offset, then the files: otherwise a crash after some of the segments are gone would leave
        # a log that begins at a wrong offset.
        tail.partition.put(log_start_offset=before, first_base_offset=extent.segments[0].base_offset)
        tail.live.begin()
        try:
            slot = extent.slot_of(before)
            gone, begins_at = extent.segments[:slot], extent.segments[slot].base_offset
            for segment in gone:
                segment._retire()
            tail.shown.extent = extent.behind(slot, before)
            tail.epoch_cache.truncate_from_start(before)
            directory = f"{tail.path}{os.sep}"
            suffix = dialect_of_config(tail.config).log
            logs = (directory + names.file_name(segment.base_offset, suffix) for segment in gone)
            deleted = mark_deleted(tail.fs, tail.path, logs)
        finally:        # what cannot be renamed is below the log's start: retention finds it after the next opening
            tail.live.end(tail.shown, tail.last_stable_offset)
        if gone:
            tail.snapshots.delete_before(begins_at)
        return deleted


def _swapped_in(cleaned: Path, directory: Path) -> Path:
    """The name that a .log.cleaned will have."""
    parsed = names.parse_file_name(cleaned.name)
    if cleaned.parent != directory or parsed is None or parsed.state != names.CLEANED_SUFFIX:
        raise InvalidArgumentError("not a .log.cleaned file in the directory of the log", file=cleaned)
    return directory / cleaned.name.removesuffix(names.CLEANED_SUFFIX)


def _base_offset_of(log: Path) -> int:
    """The base offset of a segment, from the name of its .log."""
    return names.parse_base_offset(log.name)


def _rename_all(fs: FileSystem, log: Path, state: str, new_state: str) -> None:
    """Rename all files of a segment from `state` to `new_state`; the .log last, because it makes the segment count."""
    dialect = dialect_of(log)
    for suffix in (*dialect.indexes, dialect.log):
        source = log.with_name(log.name.removesuffix(dialect.log) + suffix + state)
        if source.exists():
            fs.rename(source, source.with_name(source.name.removesuffix(state) + new_state))
