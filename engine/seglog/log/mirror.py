"""Batches of one log into another as they are: what the two proposals call mirroring without opening batches.

    for a run of batches: check the CRCs ── copy ── other offsets, epoch, time in the headers ── a follower's append

Nothing is decompressed and no record is looked at; only v0 wrappers, whose offsets lie in compressed bytes, are opened
and built again where they get other offsets. Format and codec stay as they are, whatever the target's
message.format.version says, as for any follower; so do producer ids and transactions.
"""
import os
from dataclasses import dataclass, replace
from typing import SupportsIndex

from seglog._kernels.batch_mover import first_to_open, moved
from seglog._kernels.batch_survey import cut
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError, RecordTooLargeError
from seglog.format.names import MAX_OFFSET
from seglog.format.validate import AppendRules, assign
from seglog.log.arguments import checked_offset
from seglog.log.log import Log
from seglog.log.reader import LogReader
from seglog.segment.batches import first_offset_of

# So much is appended at a time: one lock, one write and, with fsync="batch", one sync.
_RUN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What `mirror` did. `next_offset`: where it goes on in the source. `opened_batches`: v0 wrappers, of necessity."""

    next_offset: int
    batches: int = 0
    size_bytes: int = 0
    opened_batches: int = 0


def mirror(
    src: LogReader, dst: Log, *, from_offset: SupportsIndex | None = None, preserve_offsets: bool = True
) -> Mirrored:
    """Append the batches of `src` to `dst` without opening them, up to the end of `src` as of this call.

    preserve_offsets: they keep offsets and leader epochs, and `dst` must end at or before the first one. False: they go
        behind the end of `dst`, holes inside of batches stay, and leader epochs are the target's.
    from_offset: where to begin, with the batch that holds it; by default where `dst` ends, or, with other offsets, at
        the start of `src`. `Mirrored.next_offset` is where the next call goes on.

    Times stay as they are; where `dst` has message.timestamp.type=LogAppendTime, it is the clock's, in headers alone.

    Raises CorruptRecordError where a checksum of the source does not fit, with all before it mirrored;
    InvalidArgumentError where both are one directory, or `from_offset` lies before the end of a `dst` whose offsets
    stay; OffsetOutOfRangeError where it lies behind the end of `src`, as where `dst` has records that `src` has not;
    and what Log.append_batch raises.
    """
    _check_logs(src, dst)
    start, end = _start(src, dst, from_offset, preserve_offsets), src.log_end_offset
    run = _Mirror(dst, start, preserve_offsets)
    for _, table in src.tables(start, end):
        run.add(table)
    return run.done


def _check_logs(src: LogReader, dst: Log) -> None:
    for name, log, kind, maker in (("src", src, LogReader, "open_partition"), ("dst", dst, Log, "open")):
        if not isinstance(log, kind):
            raise InvalidArgumentError(
                f"{name} is an open log, not {type(log).__name__}", hint=f"open it: seglog.{maker}(path)")
    if os.path.realpath(src.path) == os.path.realpath(dst.path):
        raise InvalidArgumentError(
            "source and target are one directory", file=dst.path, hint="give the target a directory of its own")


def _start(src: LogReader, dst: Log, from_offset: SupportsIndex | None, preserve_offsets: bool) -> int:
    end = src.log_end_offset
    if from_offset is None:
        start = max(dst.log_end_offset, src.log_start_offset) if preserve_offsets else src.log_start_offset
        if start > end:
            raise OffsetOutOfRangeError(
                f"the target ends at offset {start}, and the source already at {end}: the target has records that the "
                "source has not", file=src.path, offset=start,
                hint=f"mirror to another directory, or let the target go back: log.truncate_to({end})",
            )
        return start
    start = check_begin(src, from_offset)
    if preserve_offsets and start < dst.log_end_offset:
        raise InvalidArgumentError(
            f"the mirror cannot begin at offset {start}: its offsets stay, and the target already ends at "
            f"{dst.log_end_offset}", file=dst.path, offset=start,
            hint="begin at the target's end, as without from_offset, or give the batches new offsets",
        )
    return start


def check_begin(src: LogReader, from_offset: SupportsIndex) -> int:
    """Where a mirror of `src` is to begin. Raises OffsetOutOfRangeError: for whoever makes the target next."""
    start, end = checked_offset(from_offset), src.log_end_offset
    if not 0 <= start <= end:
        raise OffsetOutOfRangeError(
            f"the mirror cannot begin at offset {start}: the source holds [{src.log_start_offset}, {end})",
            file=src.path, offset=start, hint="begin within that range",
        )
    return start


class _Mirror:
    def __init__(self, dst: Log, from_offset: int, preserve_offsets: bool) -> None:
        self.done = Mirrored(next_offset=from_offset)
        self._previous = from_offset - 1        # the last offset that was mirrored, or is passed over
        self._dst = dst
        self._preserves = preserve_offsets
        self._rules = AppendRules.of(replace(dst.config, message_format_version=None, compression_type="producer"))
        self._run_bytes = min(_RUN_BYTES, dst.config.segment_bytes)

    def add(self, table: BatchTable) -> None:
        first = max(table.find_offset(self.done.next_offset), 0)
        if self.done.batches == 0 and not self._preserves:
            self._previous = first_offset_of(table[first]) - 1      # opens it, where it is a wrapper
        while first < len(table):
            stop = len(table) if self._preserves else first_to_open(table, first)
            if stop == first:
                self._open(table, first)
                stop = first + 1
            else:
                stop = min(stop, max(cut(table, first, self._run_bytes, MAX_OFFSET), first + 1))
                self._move(table, first, stop)
            size_bytes = table[stop - 1].position + table[stop - 1].size_bytes - table[first].position
            self._previous = table[stop - 1].last_offset
            self.done = replace(
                self.done, next_offset=self._previous + 1, batches=self.done.batches + stop - first,
                size_bytes=self.done.size_bytes + size_bytes,
            )
            first = stop

    def _move(self, table: BatchTable, first: int, stop: int) -> None:
        dst = self._dst
        raw, _ = moved(
            table, first, stop, next_offset=-1 if self._preserves else dst.log_end_offset,
            previous=self._previous, leader_epoch=dst.leader_epoch,
            log_append_time=dst.clock.now_ms() if self._rules.is_log_append_time else None,
        )
        dst.append_batch(raw, assign_offsets=False)

    def _open(self, table: BatchTable, slot: int) -> None:
        """A v0 wrapper: its records one after the other in a new one."""
        dst = self._dst
        try:
            made = assign(table[slot].raw(), dst.log_end_offset, self._rules, now_ms=dst.clock.now_ms())
        except RecordTooLargeError as error:
            error.what = f"a v0 wrapper that had to be opened for its offsets: {error.what}"
            raise
        dst.append_batch(made.raw, assign_offsets=False)
        self.done = replace(self.done, opened_batches=self.done.opened_batches + 1)
