"""Compaction: of each key the last record, in the log's own directory, as Kafka's cleaner leaves it.

    plan ── map of the dirty part: key -> last offset ── groups of segments ── filter ── exchange ── checkpoint

A round reads the dirty part once to make the map, then all segments from the start of the log to the end of the map:
what stays of a group of them is one new segment, aside, and takes their place in one exchange. Offsets stay. If the
map is full, the round ends where it was, and the next one begins there. (Cleaner.java; LogCleaner.scala of 3.9)

Appends and reads go on. The exchange looks again whether what the round has read is still there: if the log was cut
meanwhile, the round ends with what it has done, for the record may be gone that stood for those that would go.
"""
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from seglog.config import LogConfig
from seglog.errors import LogClosedError, OffsetOutOfRangeError
from seglog.log.log import Log
from seglog.log.partition import Partition
from seglog.upkeep.cleaning_plan import CleaningPlan, plan
from seglog.upkeep.cleaning_round import Changed, CleanedGroup, CleaningLimits, CleaningRound, Stopped
from seglog.upkeep.cleaning_source import CleaningSource, source_of, source_of_closed

# One round at a time works on a log: both would write the same files aside.
_AT_WORK: "WeakKeyDictionary[Log, threading.Lock]" = WeakKeyDictionary()
_AT_WORK_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a call of `clean` did. `outcome`: "cleaned" up to the end of the plan; "nothing" was to be done; "stopped"
    when it was asked to; "changed": the log was cut meanwhile, and is to be planned again.
    """

    outcome: str
    first_dirty_offset: int
    end_offset: int
    rounds: int
    keys: int
    groups: tuple[CleanedGroup, ...]

    @property
    def bytes_before(self) -> int:
        """Of the segments that were cleaned, each as often as a round did."""
        return sum(group.bytes_before for group in self.groups)

    @property
    def bytes_after(self) -> int:
        """Of what took their place."""
        return sum(group.bytes_after for group in self.groups)


def plan_for(log: Log, config: LogConfig | None = None, now_ms: int | None = None) -> CleaningPlan:
    """From where to where an open log can be cleaned now, whether that is due, and why not."""
    return plan(source_of(log).as_planned(), config or log.config, log.clock.now_ms() if now_ms is None else now_ms)


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
    """Compact an open log as far as it can be, due or not, in as many rounds as the map asks for.

    `throttle`: told of all bytes read and written, and returns when it may go on. `should_stop`: asked every MiB at
    least; the round is then left, and what it wrote aside removed. A call waits for one that works on the same log.

    Raises CorruptRecordError (nothing is dropped for a damaged record), StorageError, LogFailedError, codec errors.
    """
    given = limits or CleaningLimits()
    limits = replace(given, throttle=throttle or given.throttle, should_stop=should_stop or given.should_stop)
    now_ms = log.clock.now_ms() if now_ms is None else now_ms
    with _AT_WORK_LOCK:
        alone = _AT_WORK.setdefault(log, threading.Lock())
    with alone:
        return _clean(
            lambda: source_of(log, high_watermark), config or log.config, now_ms, limits, log.put_cleaner_offset
        )


def what_would_go(
    partition: Partition, config: LogConfig, now_ms: int, limits: CleaningLimits | None = None
) -> Cleaned:
    """What the first round of `clean` would do to a closed directory. Writes nothing, takes no lock."""
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
            # A segment went while it was read.
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
