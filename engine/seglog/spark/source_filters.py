"""Derives from filters, before records are read, which partitions, offsets and times can have rows at all."""
import datetime as dt
from dataclasses import dataclass, field, replace
from typing import Any

from seglog.frames.bounds import both
from seglog.frames.options import OFFSET_MAX, TIME_MAX_MS, TIME_MIN_MS
from seglog.spark.offset_ranges import OffsetRange


@dataclass(slots=True)
class Interval:
    """Integers from `low` to `high`, inclusive."""

    low: int
    high: int

    def meet(self, kind: str, value: int, slack: int = 0) -> None:
        """Narrow the interval by one filter. `slack`: how far a value may be from the integer that represents it."""
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual"):
            self.low = max(self.low, value)
        if kind == "GreaterThan":
            self.low = max(self.low, value + 1 - slack)
        if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual"):
            self.high = min(self.high, value)
        if kind == "LessThan":
            self.high = min(self.high, value - 1 + slack)


@dataclass(slots=True)
class Pruning:
    """All filters together. A filter of another kind, or on another column, changes nothing."""

    offsets: Interval = field(default_factory=lambda: Interval(0, OFFSET_MAX))
    partitions: Interval = field(default_factory=lambda: Interval(0, 2**31 - 1))
    times: Interval = field(default_factory=lambda: Interval(TIME_MIN_MS, TIME_MAX_MS))
    chosen_topics: frozenset[str] | None = None
    chosen_partitions: frozenset[int] | None = None

    def add(self, given: Any) -> None:
        """Add a filter of pyspark.sql.datasource."""
        kind: str = type(given).__name__
        attribute: Any = getattr(given, "attribute", ())
        if len(attribute) != 1 or not hasattr(given, "value"):
            return
        column, value = attribute[0], given.value
        if kind == "In":
            values = [one for one in value if one is not None]
            if column == "topic":
                self._choose_topics(values)
            elif column == "partition":
                self._choose_partitions(values)
            elif column == "offset" and values:
                self.offsets.meet("GreaterThanOrEqual", min(values))
                self.offsets.meet("LessThanOrEqual", max(values))
        elif value is None:
            return
        elif column == "topic" and kind in ("EqualTo", "EqualNullSafe"):
            self._choose_topics([value])
        elif column in ("offset", "partition") and isinstance(value, int):
            (self.offsets if column == "offset" else self.partitions).meet(kind, value)
        elif column == "timestamp" and isinstance(value, dt.datetime):
            # A time between two ms is represented by the lower one.
            self.times.meet(kind, _ms(value), slack=1)

    def of(self, one: OffsetRange) -> OffsetRange | None:
        """The part of a range that may have rows; None if none can."""
        source = one.source
        if not self.partitions.low <= source.partition <= self.partitions.high:
            return None
        if self.chosen_partitions is not None and source.partition not in self.chosen_partitions:
            return None
        if self.chosen_topics is not None and source.topic not in self.chosen_topics:
            return None
        start = max(one.start, self.offsets.low)
        end = min(one.end, self.offsets.high + 1)
        return replace(one, start=start, end=end) if start < end else None

    @property
    def times_ms(self) -> tuple[int, int]:
        """(since, until): only records with since <= timestamp < until can be rows."""
        return self.times.low, self.times.high if self.times.high == TIME_MAX_MS else self.times.high + 1

    def _choose_topics(self, topics: list[str]) -> None:
        self.chosen_topics = both(self.chosen_topics, frozenset(topics))

    def _choose_partitions(self, partitions: list[int]) -> None:
        self.chosen_partitions = both(self.chosen_partitions, frozenset(partitions))


def _ms(when: dt.datetime) -> int:
    """The millisecond that contains a time. A time without a zone is in this machine's, as Spark passes it."""
    since = when.astimezone(dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(milliseconds=1)
