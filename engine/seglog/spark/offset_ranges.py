"""The offsets of each partition to read: from options, a stream's offsets, and the limit of a trigger."""
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError
from seglog.frames.plan import opened
from seglog.frames.stored import StoredPartition, stored_ends
from seglog.logger import Logger
from seglog.reading.arguments import is_read_committed
from seglog.spark.losses import Loss
from seglog.spark.source_options import EARLIEST, LATEST, Bound, Source, SourceOptions, TopicPartition

_LOG = Logger(__name__)

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of a partition with start <= offset < end. `gone`: what was asked for around them, but is lost."""

    source: Source
    start: int
    end: int
    gone: tuple[Loss, ...] = ()


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """{"topic": {"0": 23}}: the form in a checkpoint of Spark's Kafka source."""
    body: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        body.setdefault(topic, {})[str(partition)] = offset
    return body


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a partition starts and ends now: at its log start offset, and at `last`, which with read_committed is the
    last stable offset, not the `end_offset` of the log. `at_time`: the offset of the first record at or after a time,
    None if there is none; it may be called while the partition is open.
    """

    first: int
    end_offset: int
    last: int
    at_time: Callable[[int], int | None]


@contextmanager
def open_ends(options: SourceOptions, source: Source) -> Iterator[Ends]:
    """Open a partition to see where it ends: a growing log is read up to its published end."""
    if isinstance(source, StoredPartition):
        yield Ends(*stored_ends(source, options.isolation), partial(_no_time, source))
        return
    with opened(source.path) as log:
        end_offset = log.log_end_offset
        last = log.last_stable_offset if is_read_committed(options.isolation) else end_offset

        def at_time(time_ms: int) -> int | None:
            found = log.offset_for_time(time_ms)
            return None if found is None else found.offset

        yield Ends(log.log_start_offset, end_offset, last, at_time)


def _no_time(source: StoredPartition, time_ms: int) -> int | None:
    raise InvalidArgumentError(
        f"the time {time_ms} cannot be looked up on a store", file=source.path,
        hint="filter the column timestamp instead",
    )


def ranges(options: SourceOptions) -> list[OffsetRange]:
    """The ranges that a batch reads, as of now. Raises InvalidArgumentError, OffsetOutOfRangeError for lost data."""
    sources = options.partitions()
    check_named(options.start, "startingOffsets", sources)
    check_named(options.end, "endingOffsets", sources)
    found = []
    for source in sources:
        with open_ends(options, source) as ends:
            start, end = start_of(options, source, ends), _end_of(options, source, ends)
            found.append(not_lost(options, source, ends, start, end))
    return found


def start_of(options: SourceOptions, source: Source, ends: Ends) -> int:
    """The offset that startingOffsets or a similar option means. Raises InvalidArgumentError if no record is at or
    after the time."""
    bound, where = options.start, (source.topic, source.partition)
    time_ms = bound.time_of(where)
    if time_ms is not None:
        found = ends.at_time(time_ms)
        if found is None and options.strategy == "error":
            raise InvalidArgumentError(
                f"no record at or after the time {time_ms}", file=source.path,
                hint='with startingOffsetsByTimestampStrategy "latest", the read starts at the end then',
            )
        return ends.last if found is None else found
    return _named(bound, where, ends, ends.first)


def _end_of(options: SourceOptions, source: Source, ends: Ends) -> int:
    bound, where = options.end, (source.topic, source.partition)
    time_ms = bound.time_of(where)
    if time_ms is not None:
        found = ends.at_time(time_ms)
        return ends.last if found is None else min(found, ends.last)
    return _named(bound, where, ends, ends.last)


def _named(bound: Bound, where: TopicPartition, ends: Ends, default: int) -> int:
    offset = bound.offset if bound.offsets is None else bound.offsets[where]
    if offset is None:
        return default
    return {EARLIEST: ends.first, LATEST: ends.last}.get(offset, offset)


def check_named(bound: Bound, name: str, sources: Iterable[Source]) -> None:
    """Check that offsets are given for all partitions or for none, as in Spark's Kafka source."""
    if bound.offsets is None:
        return
    there = {(source.topic, source.partition) for source in sources}
    if bound.offsets.keys() != there:
        differing = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(bound.offsets.keys() ^ there))
        raise InvalidArgumentError(
            f"{name} must name exactly the partitions that are read; it differs in {differing}",
            hint="name each of them; -2 means earliest, -1 latest",
        )


def not_lost(options: SourceOptions, source: Source, ends: Ends, start: int, end: int) -> OffsetRange:
    """The part of the range that the log has. Raises OffsetOutOfRangeError if it has less and failOnDataLoss is set."""
    if ends.first <= start <= ends.last and end <= ends.last:
        return OffsetRange(source, start, max(start, end))
    words = _what_is_lost(ends, start, end)
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            words, file=source.path,
            hint="records were removed, or the log was recreated; failOnDataLoss=false reads what is still there",
        )
    _LOG.warning("%s: %s", source.path, words)
    first = min(max(start, ends.first), ends.last)
    stop = max(first, min(end, ends.last))
    gone = tuple(
        Loss(source.topic, source.partition, low, high, str(source.path), 0, 0, words)
        for low, high in ((start, min(first, end)), (max(start, stop), end)) if low < high
    )
    return OffsetRange(source, first, stop, gone)


def _what_is_lost(ends: Ends, start: int, end: int) -> str:
    if start < ends.first:
        return f"offsets {start} to {ends.first - 1} are gone: the log begins at offset {ends.first} now"
    if start > ends.end_offset:
        return (
            f"the log ends at offset {ends.end_offset}, before offset {start}, where this read begins: it was "
            "truncated, or the topic was created again"
        )
    what = "the log ends" if ends.last == ends.end_offset else "its committed records end"
    side = f"{start}, where this read begins" if start > ends.last else f"{end}, where this read ends"
    return f"{what} at offset {ends.last}, before offset {side}"


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """The end offsets of a trigger that takes about `most` records in all, from each partition in proportion to its
    backlog.

    As in Spark's Kafka source, a partition with a backlog gives at least one record.
    """
    waiting = {where: max(0, offset - start.get(where, offset)) for where, offset in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    limited: Offsets = {}
    for where, offset in end.items():
        share = most * waiting[where] / total
        begin = start.get(where, offset)
        limited[where] = min(offset, begin + (math.ceil(share) if share < 1 else math.floor(share)))
    return limited
