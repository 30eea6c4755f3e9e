"""What retention deletes: a function of the segments, the configuration and the clock. Nothing here touches a file.

Kafka's three breaches in the order of 3.9 and 4.1 (UnifiedLog.deleteOldSegments), each on what the one before has left:

    log start offset    the next segment begins at or below it; also with cleanup.policy=compact
    size                the log is at least retention.bytes large without the segment
    time                now - its largest timestamp > retention.ms; its file's time if no record has a timestamp

Segments are deleted from the start of the log, up to the first one that stays, and none at or above the high watermark.
An empty last segment stays; if all others are deleted, and the last one too, an empty one follows at the log end. The
order matters if a timestamp is in the future: Kafka 2.8 checks time first, and keeps more.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seglog.config import LogConfig
from seglog.log.expiry import AgingSegment, Expired, LogAge, Reason, Verdict

Name = TypeVar("Name")
AnyAge = TypeVar("AnyAge", bound=AgingSegment)
Breach = Callable[[AgingSegment, int], bool]
"""Whether a segment is deleted, given the start of the next one."""


def expired(log: LogAge, config: LogConfig, now_ms: int) -> Verdict:
    """Return what is deleted now."""
    gone: list[Expired] = []
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end_offset]

    def delete(breach: Breach, reason: Reason) -> None:
        while (slot := len(gone)) < len(log.segments):
            segment, end, is_last = log.segments[slot], ends[slot], slot == len(log.segments) - 1
            if end > log.high_watermark or (is_last and segment.size_bytes == 0) or not breach(segment, end):
                return
            gone.append(Expired(segment.base_offset, end, segment.size_bytes, reason))

    last = log.segments[-1]
    delete(lambda segment, end: segment is not last and end <= log.log_start_offset, "start")
    if config.deletes:
        if config.retention_bytes >= 0:
            left = sum(segment.size_bytes for segment in log.segments[len(gone):]) - config.retention_bytes
            delete(_larger_by(left), "size")
        if config.retention_ms >= 0:
            delete(lambda segment, _: now_ms - time_of(segment, config, now_ms) > config.retention_ms, "time")
    start = max(log.log_start_offset, gone[-1].next_offset if gone else 0)
    verdict = Verdict(tuple(gone), start, rolls=len(gone) == len(log.segments))
    if config.deletes and config.retention_ms >= 0 and config.retention_granularity == "batch" and not verdict.rolls:
        return _up_to_a_young_batch(log, log.segments[len(gone)], verdict, config, now_ms)
    return verdict


def _larger_by(left: int) -> Breach:
    """Make the rule that deletes a segment if the log, without those deleted before, is too large by its size."""

    def breach(segment: AgingSegment, _: int) -> bool:
        nonlocal left
        if left - segment.size_bytes < 0:
            return False
        left -= segment.size_bytes
        return True

    return breach


def time_of(segment: AgingSegment, config: LogConfig, now_ms: int) -> int:
    """Return the time that counts as the segment's age: LogSegment.largestTimestamp."""
    largest = segment.largest_timestamp
    if largest < 0 or (config.retention_ignore_future_timestamps and largest > now_ms):
        return segment.file_time_ms
    return largest


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """When retention.ms deletes a segment, and what it waits for.

    `time_ms`: the time that counts; `offset`: of the record with that time, None if its file's time counts. `goes_ms`:
    when it is deleted, or None for never. `waits_for`: the base offset of the segment whose time decides that: its own,
    or an earlier one, since segments are deleted in order.
    """

    base_offset: int
    size_bytes: int
    time_ms: int
    offset: int | None
    goes_ms: int | None
    waits_for: int
    is_future: bool


def held_segments(
    segments: Sequence[AnyAge], offset_of_largest: Callable[[AnyAge], int | None], config: LogConfig, now_ms: int
) -> Iterator[HeldSegment]:
    """Return when time deletes each segment. `offset_of_largest`: the first record with its largest timestamp."""
    until: int | None = None
    waits_for = 0
    for segment in segments:
        time_ms = time_of(segment, config, now_ms)
        offset = offset_of_largest(segment) if time_ms == segment.largest_timestamp else None
        if until is None or time_ms > until:
            until, waits_for = time_ms, segment.base_offset
        is_last_and_empty = segment is segments[-1] and not segment.size_bytes
        goes = config.deletes and config.retention_ms >= 0 and not is_last_and_empty
        yield HeldSegment(
            segment.base_offset, segment.size_bytes, time_ms, offset,
            until + config.retention_ms + 1 if goes else None, waits_for, time_ms > now_ms,
        )


def _up_to_a_young_batch(log: LogAge, head: AgingSegment, verdict: Verdict, config: LogConfig, now_ms: int) -> Verdict:
    """Extend the verdict: in the first segment that stays, delete the batches before the first one young enough."""
    if head.size_bytes == 0 or head.largest_timestamp < 0:
        return verdict
    young = head.first_batch_since(now_ms - config.retention_ms)
    if young is None:
        return verdict      # kept for another reason than its time, such as the high watermark
    return replace(verdict, log_start_offset=max(verdict.log_start_offset, min(young, log.high_watermark)))


def over_total(
    logs: Mapping[Name, tuple[Sequence[AgingSegment], LogConfig]], total_bytes: int, now_ms: int,
    kept_from: Mapping[Name, int] | None = None,
) -> dict[Name, int]:
    """Return how many segments each log must delete so that all together have at most `seglog.retention.total.bytes`.

    The next one is always the oldest among the first segments of the logs. Never the last segment of a log, nothing
    after the offset that `kept_from` has for it, and nothing of a log that is only compacted.
    """

    def may_go(name: Name, slot: int) -> bool:
        segments, _ = logs[name]
        if slot >= len(segments) - 1:
            return False
        return kept_from is None or segments[slot + 1].base_offset <= kept_from[name]

    left = sum(segment.size_bytes for segments, _ in logs.values() for segment in segments) - total_bytes
    gone = dict.fromkeys(logs, 0)
    heads = {
        name: time_of(segments[0], config, now_ms)
        for name, (segments, config) in logs.items() if config.deletes and may_go(name, 0)
    } if left > 0 else {}
    while left > 0 and heads:
        name = min(heads, key=lambda name: heads[name])
        segments, config = logs[name]
        left -= segments[gone[name]].size_bytes
        gone[name] += 1
        if may_go(name, gone[name]):
            heads[name] = time_of(segments[gone[name]], config, now_ms)
        else:
            del heads[name]
    return {name: count for name, count in gone.items() if count}
