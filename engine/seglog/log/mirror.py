"""Copying batches from one log to another unchanged: what the two proposals call mirroring without opening batches.

    for a run of batches: check the CRCs ── copy ── other offsets, epoch, time in the headers ── a replica's append

Nothing is decompressed and no record is parsed; only v0 wrappers, whose offsets are in compressed bytes, are opened and
rebuilt if they get other offsets. Two options cost more (log.mirror_routes): closing gaps, and several targets. Format
and codec stay as they are, whatever the target's message.format.version says, as for any replica; so do producer ids
and transactions.
"""
import os
from collections.abc import Sequence
from typing import SupportsIndex

from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError, SeglogError
from seglog.log.log import Log
from seglog.log.mirror_routes import BatchRouter
from seglog.log.mirror_run import Mirrored, MirrorRun
from seglog.logger import Logger
from seglog.reading.arguments import checked_offset
from seglog.reading.gaps import GapFinder, missing_offsets
from seglog.reading.reader import LogReader

_LOG = Logger(__name__)

__all__ = ["Mirrored", "check_begin", "mirror"]


def mirror(
    src: LogReader, dst: Log | Sequence[Log], *, from_offset: SupportsIndex | None = None,
    preserve_offsets: bool | None = None, close_gaps: bool = False,
) -> Mirrored:
    """Append the batches of `src` to `dst` without opening them, up to the end of `src` as of this call.

    preserve_offsets: batches keep their offsets and leader epochs, and `dst` must end at or before the first one.
        False: they are appended at the end of `dst` with new offsets and its leader epoch; gaps inside batches stay.
        By default offsets are kept, unless another argument rules that out.
    close_gaps: records get consecutive offsets. A batch that has gaps is rebuilt, one that may have gaps is opened,
        one without records is left out.
    dst, several logs: the partitions of a topic. A batch without keys goes whole to one of them, round robin, beginning
        with the shortest; one with keys is opened and split as Kafka's producers would have (murmur2 of the key), and
        its records without a key stay together; the marker of a transaction goes to all of them.
    from_offset: where to begin, with the batch that holds it; by default where `dst` ends, or, with new offsets, at the
        start of `src`. The next call continues at `Mirrored.next_offset`.

    A set of tagged messages with new offsets gets consecutive ones: tag 64 is cleared, tag 32 gives their number. A set
    without these tags is opened, and keeps its gaps unless they are to be closed. With several targets, a set whose
    tag 65 says that it has no keys is not opened.

    Times stay as they are; if `dst` has message.timestamp.type=LogAppendTime, headers get the time of the clock.

    Raises CorruptRecordError if a checksum of the source is wrong, with everything before it mirrored;
    InvalidArgumentError if two of the logs are the same directory, or `from_offset` is before the end of a `dst` that
    keeps offsets; OffsetOutOfRangeError if it is past the end of `src`, for example because `dst` has records that
    `src` lacks; RecordTooLargeError if a rebuilt batch is larger than max.message.bytes; and what Log.append_batch
    raises. If offsets are not kept, the hint of an error says where to continue.
    """
    targets = _checked_targets(dst)
    _check_logs(src, targets)
    is_plain = not isinstance(dst, Sequence) and not close_gaps
    if preserve_offsets and not is_plain:
        raise InvalidArgumentError(
            "offsets cannot be preserved " + ("if gaps are closed" if close_gaps else "in several targets"),
            hint="leave preserve_offsets out",
        )
    preserves = is_plain if preserve_offsets is None else preserve_offsets
    start = _start(src, targets[0], from_offset, preserves)
    is_steady = isinstance(src, Log)    # seglog never changes bytes that were written; a broker may
    run: MirrorRun | BatchRouter
    if isinstance(dst, Sequence):
        run = BatchRouter(targets, start, close_gaps, is_steady)
    else:
        run = MirrorRun(targets[0], start, preserves, close_gaps, is_steady)
    try:
        for _, table in src.tables(start, src.log_end_offset):
            run.add(table)
        gaps = list(GapFinder(src.path, src.config, src._current()).gaps(start, run.done.next_offset))
        for gap in gaps:
            _LOG.warning("%s: %s; the mirror lacks them", gap.file, gap.reason)
    except SeglogError as error:
        if not preserves:
            error.hint = f"{error.hint}; everything before offset {run.done.next_offset} of the source is mirrored"
        raise
    return run.done.counting(missing_offsets=missing_offsets(gaps)) if gaps else run.done


def _checked_targets(dst: Log | Sequence[Log]) -> list[Log]:
    if not isinstance(dst, Sequence):
        return [dst]
    if not dst:
        raise InvalidArgumentError("no target to mirror to", hint="pass one open log, or several")
    return list(dst)


def _check_logs(src: LogReader, targets: Sequence[Log]) -> None:
    for name, log, kind, maker in (
        ("src", src, LogReader, "open_partition"), *(("dst", log, Log, "open") for log in targets)
    ):
        if not isinstance(log, kind):
            raise InvalidArgumentError(
                f"{name} must be an open log, not {type(log).__name__}", hint=f"open it: seglog.{maker}(path)")
    seen, dialect = {os.path.realpath(src.path)}, src.segments[0].dialect
    for log in targets:
        real = os.path.realpath(log.path)
        if real in seen:
            raise InvalidArgumentError(
                "source and target are the same directory" if real == os.path.realpath(src.path)
                else "two targets are the same directory",
                file=log.path, hint="use a separate directory for each target",
            )
        seen.add(real)
        if log._dialect is not dialect:
            raise InvalidArgumentError(
                f"the source is in the {dialect.name} dialect and the target in the {log._dialect.name} dialect",
                file=log.path, hint="`seglog convert` writes a log in the other dialect",
            )


def _start(src: LogReader, dst: Log, from_offset: SupportsIndex | None, preserve_offsets: bool) -> int:
    end = src.log_end_offset
    if from_offset is None:
        start = max(dst.log_end_offset, src.log_start_offset) if preserve_offsets else src.log_start_offset
        if start > end:
            raise OffsetOutOfRangeError(
                f"the target ends at offset {start}, and the source already at {end}: the target has records that the "
                "source lacks", file=src.path, offset=start,
                hint=f"mirror to another directory, or truncate the target: log.truncate_to({end})",
            )
        return start
    start = check_begin(src, from_offset)
    if preserve_offsets and start < dst.log_end_offset:
        raise InvalidArgumentError(
            f"the mirror cannot start at offset {start}: offsets stay the same, and the target already ends at "
            f"{dst.log_end_offset}", file=dst.path, offset=start,
            hint="leave out from_offset to start at the target's end, or pass preserve_offsets=False",
        )
    return start


def check_begin(src: LogReader, from_offset: SupportsIndex) -> int:
    """Where a mirror of `src` begins. Raises OffsetOutOfRangeError; call it before a target is created."""
    start, end = checked_offset(from_offset), src.log_end_offset
    if not 0 <= start <= end:
        raise OffsetOutOfRangeError(
            f"the mirror cannot start at offset {start}: the source has offsets [{src.log_start_offset}, {end})",
            file=src.path, offset=start, hint="start within that range",
        )
    return start
