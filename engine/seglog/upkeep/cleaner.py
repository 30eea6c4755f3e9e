"""Compaction: keeps the last record of each key, in the log's own directory, as Kafka's cleaner does.

    plan ── map of the dirty part: key -> last offset ── groups of segments ── filter ── exchange ── checkpoint

A round reads the dirty part once to build the map, then all segments from the start of the log to the end of the map:
what remains of a group of segments is written to one new segment, aside, which replaces the group in one exchange.
Offsets do not change. If the map is full, the round ends there, and the next one continues. (Cleaner.java;
LogCleaner.scala of 3.9)

Appends and reads continue meanwhile. The exchange checks whether what the round has read still exists: if the log was
truncated meanwhile, the round stops, because a record that superseded others may be gone.
"""
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from seglog.config import LogConfig
from seglog.errors import LogClosedError, OffsetOutOfRangeError
from seglog.log.log import Log
from seglog.reading.partition import Partition
from seglog.upkeep.cleaning_plan import CleaningPlan, plan
from seglog.upkeep.cleaning_round import Changed, CleanedGroup, CleaningLimits, CleaningRound, Stopped
from seglog.upkeep.cleaning_source import CleaningSource, source_of, source_of_closed

# Only one round at a time works on a log: two would write the same files.
_AT_WORK: "WeakKeyDictionary[Log, threading.Lock]" = WeakKeyDictionary()
_AT_WORK_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of `clean`. `outcome`: "cleaned": up to the end of the plan; "nothing": there was nothing to do;
    "stopped": on request; "changed": the log was truncated meanwhile, and must be planned again.
    """

    outcome: str
    first_dirty_offset: int
    end_offset: int
    rounds: int
    keys: int
    groups: tuple[CleanedGroup, ...]

    @property
    def bytes_before(self) -> int:
        """The bytes of the cleaned segments, counted once for each round."""
        return sum(group.bytes_before for group in self.groups)

    @property
    def bytes_after(self) -> int:
        """The bytes of the segments that replaced them."""
        return sum(group.bytes_after for group in self.groups)


def plan_for(log: Log, config: LogConfig | None = None, now_ms: int | None = None) -> CleaningPlan:
    """Plan which part of an open log can be cleaned now, and whether that is due or why not."""
    return plan(source_of(log).as_planned(), config or log.config, log._clock.now_ms() if now_ms is None else now_ms)


def clean(
    log: Log,
    config: LogConfig | None = None,
    now_ms: int | None = None,
    throttle: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    limits: CleaningLimits | None = None,
    high_watermark: int | None = None,
) -> Cleaned:
    """Compact an open log as far as possible, due or not, in as many rounds as the map needs.

    `throttle`: called with all bytes read and written; returns when the work may continue. `should_stop`: called at
    least every MiB; if true, the round stops, and what it wrote aside is removed. A call waits for another one on the
    same log.

    Raises CorruptRecordError (nothing is dropped because of a damaged record), StorageError, LogFailedError, codec
    errors.
    """
    given = limits or CleaningLimits()
    limits = replace(given, throttle=throttle or given.throttle, should_stop=should_stop or given.should_stop)
    now_ms = log._clock.now_ms() if now_ms is None else now_ms
    with _AT_WORK_LOCK:
        alone = _AT_WORK.setdefault(log, threading.Lock())
    with alone:
        return _clean(
            lambda: source_of(log, high_watermark), config or log.config, now_ms, limits, log._put_cleaner_offset
        )


def what_would_go(
    partition: Partition, config: LogConfig, now_ms: int, limits: CleaningLimits | None = None
) -> Cleaned:
    """Return what the first round of `clean` would do to a closed directory. Writes nothing, takes no lock."""
    return _clean(lambda: source_of_closed(partition), config, now_ms, limits or CleaningLimits(), None)


def _clean(
    look: Callable[[], CleaningSource], config: LogConfig, now_ms: int, limits: CleaningLimits,
    done: Callable[[int], None] | None,
) -> Cleaned:
    groups: list[CleanedGroup] = []
    rounds = keys = 0
    first = end = -1
    while True:
        source = look()
        found = plan(source.as_planned(), config, now_ms)
        first = found.first_dirty_offset if first < 0 else first
        end = max(end, found.first_dirty_offset)
        if not found.has_work:
            return Cleaned("cleaned" if rounds else "nothing", first, end, rounds, keys, tuple(groups))
        one = CleaningRound(source, config, now_ms, found, limits)
        try:
            one.run()
        except Stopped:
            return Cleaned("stopped", first, end, rounds, keys, (*groups, *one.groups))
        except Changed:
            return Cleaned("changed", first, end, rounds, keys, (*groups, *one.groups))
        except (OffsetOutOfRangeError, LogClosedError):
            # A segment was removed while it was read.
            if look().segments[: len(source.segments) - 1] == source.segments[:-1]:
                raise
            return Cleaned("changed", first, end, rounds, keys, (*groups, *one.groups))
        rounds += 1
        keys = max(keys, one.keys)
        groups += one.groups
        end = one.end_offset
        if done is None:
            return Cleaned("cleaned", first, end, rounds, keys, tuple(groups))
        done(end)
