"""When to clean a compacted log, and which part of it: a function of segments, configuration and clock.

    log start ── clean: compacted before ── first dirty ── cleanable ── first uncleanable ── active segment ── end

Kafka's LogCleanerManager: cleanableOffsets, calculateCleanableBytes, maxCompactionDelay, grabFilthiestCompactedLog.
Nothing here reads files, except for the times of segments.
"""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from seglog.config import LogConfig

Name = TypeVar("Name")


class DirtySegment(Protocol):
    """What the plan needs of a segment. Its times may cost a walk over its headers: they are read only if needed."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """The size of its .log."""

    @property
    def largest_timestamp(self) -> int:
        """Its largest timestamp; the time of its file if no record has one."""

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of its first batch; 0 or less if it has none."""


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """A log at one moment. Its last segment is the active one; `checkpoint`: up to where it was cleaned."""

    segments: Sequence[DirtySegment]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What a round would clean: [first_dirty_offset, first_uncleanable_offset).

    `clean_bytes` and `cleanable_bytes` count whole segments; the one with the first dirty offset counts in both.
    `overdue_ms`: by how much its oldest dirty record has exceeded max.compaction.lag.ms. `held_by`: what determines the
    first uncleanable offset. `checkpoint_is_void`: the checkpoint is outside the log.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    min_ratio: float
    held_by: str
    checkpoint_is_void: bool = False

    @property
    def ratio(self) -> float:
        """The dirty share of what can be cleaned."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def has_work(self) -> bool:
        """Whether a round would read anything for the first time."""
        return self.first_uncleanable_offset > self.first_dirty_offset and self.cleanable_bytes > 0

    @property
    def is_due(self) -> bool:
        """Whether Kafka's cleaner would take the log."""
        return self.cleanable_bytes > 0 and (self.overdue_ms > 0 or self.ratio > self.min_ratio)

    @property
    def why_not(self) -> str:
        """Describe why the log is not due for cleaning; empty if it is."""
        if not self.has_work:
            return f"nothing after offset {self.first_dirty_offset} can be cleaned: {self.held_by}"
        if not self.is_due:
            return (
                f"the dirty ratio is {self.ratio:.3f}, but min.cleanable.dirty.ratio is {self.min_ratio:g}: "
                f"{self.cleanable_bytes} of {self.clean_bytes + self.cleanable_bytes} bytes"
            )
        return ""


def plan(log: CleanableLog, config: LogConfig, now_ms: int) -> CleaningPlan:
    """Plan which part of the log can be cleaned now, and whether that is due."""
    start = log.log_start_offset
    is_void = log.checkpoint is not None and not start <= log.checkpoint <= log.log_end_offset
    first_dirty = start if log.checkpoint is None or is_void else log.checkpoint
    active = log.segments[-1]
    dirty = _sealed_from(log, first_dirty)
    limit, held_by = min(
        # First: in an empty active segment the last stable offset is the same, without any transaction.
        (active.base_offset, f"the active segment begins at {active.base_offset}"),
        (log.last_stable_offset, f"a transaction is open from offset {log.last_stable_offset} on"),
        _first_too_young(dirty, config, now_ms) or (active.base_offset, ""),
        key=lambda bound: bound[0],
    )
    # Whole segments only.
    limit = max(limit, first_dirty)
    end = next((s.base_offset for s in _sealed_from(log, limit)), active.base_offset)
    cleanable = sum(s.size_bytes for s in _sealed_from(log, min(first_dirty, end)) if s.base_offset < end)
    return CleaningPlan(
        first_dirty, max(end, first_dirty), sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty),
        cleanable, _overdue_ms(dirty, config, now_ms), config.min_cleanable_dirty_ratio,
        held_by, is_void,
    )


def filthiest(plans: Mapping[Name, CleaningPlan]) -> Name | None:
    """Choose the log to clean next: the due one with the largest dirty ratio; None if none is due."""
    due = {name: found for name, found in plans.items() if found.is_due}
    return max(due, key=lambda name: due[name].ratio, default=None)


def _sealed_from(log: CleanableLog, offset: int) -> Sequence[DirtySegment]:
    """Return the segments from the one with the offset on, without the active one (nonActiveLogSegmentsFrom)."""
    *sealed, active = log.segments
    if offset >= active.base_offset:
        return ()
    first = max((slot for slot, segment in enumerate(sealed) if segment.base_offset <= offset), default=0)
    return sealed[first:]


def _first_too_young(segments: Sequence[DirtySegment], config: LogConfig, now_ms: int) -> tuple[int, str] | None:
    if config.min_compaction_lag_ms > 0:
        for segment in segments:
            if segment.largest_timestamp > now_ms - config.min_compaction_lag_ms:
                return segment.base_offset, (
                    f"the segment at {segment.base_offset} has a record younger than min.compaction.lag.ms"
                )
    return None


def _overdue_ms(segments: Sequence[DirtySegment], config: LogConfig, now_ms: int) -> int:
    until = now_ms - config.max_compaction_lag_ms
    if until <= 0:
        return 0        # no record is old enough
    oldest = min((time for s in segments if (time := s.first_timestamp) > 0), default=until)
    return max(until - oldest, 0)
