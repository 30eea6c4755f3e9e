"""Amounts by time, in steps as fine as the span of the times allows."""
from collections import Counter

from .time_limits import TimeLimits

# The most different steps that are kept. Beyond, steps become longer.
STEPS_MAX = 100_000
# Lengths of a step and of a bar, each a multiple of the one before; then doubled.
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_LENGTHS = (
    1, 2, 10, 20, 100, 200, _SECOND, 5 * _SECOND, 15 * _SECOND, 30 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE,
    30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY,
)


def _length_from(least_ms: float) -> int:
    """The shortest length of at least so many ms."""
    found = next((length for length in _LENGTHS if length >= least_ms), _DAY)
    while found < least_ms:
        found *= 2
    return found


class TimeHistogram:
    """Adds up what belongs to each step of time, and counts how often something was added to it."""

    def __init__(self) -> None:
        self.step_ms = 1
        self._sums = Counter[int]()
        self._counts = Counter[int]()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, ms: int, amount: int, count: int = 1) -> None:
        step = ms // self.step_ms
        self._sums[step] += amount
        self._counts[step] += count
        if len(self._counts) > STEPS_MAX:
            self._lengthen()

    def _lengthen(self) -> None:
        longer_ms = _length_from(self.step_ms + 1)
        for counter in (self._sums, self._counts):
            merged = Counter[int]()
            for step, amount in counter.items():
                merged[step * self.step_ms // longer_ms] += amount
            counter.clear()
            counter.update(merged)
        self.step_ms = longer_ms

    def sums(self) -> Counter[int]:
        """What was added, by the beginning of each step in ms."""
        return Counter({step * self.step_ms: amount for step, amount in self._sums.items()})

    def counts(self) -> Counter[int]:
        """How often something was added, by the beginning of each step in ms."""
        return Counter({step * self.step_ms: count for step, count in self._counts.items()})

    def bars(self, limits: TimeLimits, most: int) -> tuple[int, list[tuple[int, int]]]:
        """Return (ms per bar, [(start in ms, amount)]): at most `most` bars, without gaps, of what is within the
        limits."""
        shown = {
            step * self.step_ms: amount for step, amount in self._sums.items()
            if limits.first_ms // self.step_ms <= step <= limits.last_ms // self.step_ms
        }
        if not shown:
            return self.step_ms, []
        first_ms, last_ms = min(shown), max(shown)
        width_ms = max(_length_from((last_ms - first_ms + 1) / most), self.step_ms)
        while last_ms // width_ms - first_ms // width_ms >= most:       # the first one begins before the first time
            width_ms = _length_from(width_ms + 1)
        sums = Counter[int]()
        for ms, amount in shown.items():
            sums[ms // width_ms] += amount
        return width_ms, [(n * width_ms, sums[n]) for n in range(first_ms // width_ms, last_ms // width_ms + 1)]
