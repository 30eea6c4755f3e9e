"""Plain numbers that rooms keep about themselves: read at any time without a lock, formatted elsewhere.

A name is Prometheus's and Pulsar's own, a label set is a tuple of (name, value) pairs. A gauge has no object: the owner
of the number reports it when asked.
"""
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Counter:
    """A number that only rises. One thread at a time adds; any may read `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        self.value += n


class Histogram:
    """How many observations were at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: in rising order; one more bucket counts the values above the last."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Metric(NamedTuple):
    """One row of a room's table of metrics."""

    name: str
    kind: str
    """gauge, counter or histogram"""
    labels: tuple[str, ...]
    meaning: str


class Sample(NamedTuple):
    """A value of a metric for one set of labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: "float | Histogram"
