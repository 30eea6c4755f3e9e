"""The times that an axis shows: all, without the few that are so far away that the others would be a line at its edge.

A broken clock, or seconds taken for milliseconds, puts a batch into 2099 or 1970. One such time on an axis over an hour
leaves nothing of that hour to see.
"""
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .. import report

# Left out: at most this part, and of fewer than so many none, ...
_PART, _LEAST = 100, 4
# ... at a distance of more than so many times what the others span, and of more than so long.
_TIMES, _FAR_MS = 10, 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The axis shows `first_ms` to `last_ms`, of times from `earliest_ms` to `latest_ms`; `outside` of them are out."""

    first_ms: int
    last_ms: int
    earliest_ms: int
    latest_ms: int
    outside: int

    @classmethod
    def of(cls, times: Mapping[int, int], *, together: int = 1) -> "TimeLimits":
        """`times`: how many there are of each, in ms; 0 for one that counts only if it is near the others. At least
        one. `together`: how many belong to one thing, which may be left out as a whole."""
        order = sorted(times)
        counts = [times[ms] for ms in order]
        total = sum(counts)
        whole = together if total >= _LEAST * together else 1
        spare = max(total // _PART, whole) if total >= _LEAST else 0
        below = list(accumulate(counts))
        above = list(accumulate(reversed(counts)))[::-1]
        # The core, without as many as may be left out on either side; then what is not far from it.
        low = next((n for n, count in enumerate(below) if count > spare), 0)
        high = next((n for n in reversed(range(len(order))) if above[n] > spare), len(order) - 1)
        if total == 0 or low > high:
            low, high = 0, len(order) - 1
        grows = True
        while grows:
            grows = False
            far = max(_TIMES * (order[high] - order[low]), _FAR_MS)
            while low > 0 and order[low] - order[low - 1] <= far:
                low, grows = low - 1, True
            while high < len(order) - 1 and order[high + 1] - order[high] <= far:
                high, grows = high + 1, True
        return cls(order[low], order[high], order[0], order[-1], sum(counts[:low]) + sum(counts[high + 1 :]))

    def words(self, noun: str, plural: str) -> str:
        """What the axis leaves out, as a sentence; empty if it shows all."""
        parts = [
            *([f"before {report.moment(self.first_ms)}, from {report.moment(self.earliest_ms)} on"]
              if self.earliest_ms < self.first_ms else []),
            *([f"after {report.moment(self.last_ms)}, up to {report.moment(self.latest_ms)}"]
              if self.latest_ms > self.last_ms else []),
        ]
        if not parts:
            return ""
        count = f" ({report.count_of(self.outside, noun, plural)})" if self.outside else ""
        return f"The time axis leaves out what is far from all the rest: times {' and '.join(parts)}{count}."
