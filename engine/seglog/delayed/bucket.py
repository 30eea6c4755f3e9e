"""A bucket: the delayed messages of a range of ledgers."""
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from seglog._kernels.pending_set import PendingSet

BUCKET_PROPERTY = "#pulsar.internal.delayed.bucket_"
# A failed operation is tried again after so long, twice as long each time up to the second.
RETRY_NS = 100_000_000
MAX_RETRY_NS = 10_000_000_000


@dataclass(slots=True)
class Retry:
    """When something that failed may be tried again."""

    at_ns: int = 0
    failures: int = 0

    def put_off(self, now_ns: int) -> None:
        """It failed: leave it alone for a while."""
        self.at_ns = now_ns + min(RETRY_NS << min(self.failures, 30), MAX_RETRY_NS)
        self.failures += 1

    def reset(self) -> None:
        """It went well."""
        self.at_ns = self.failures = 0


class SegmentTimes:
    """When the first and the last message of each segment of a snapshot is due, ms since 1970."""

    __slots__ = ("_times",)

    def __init__(self, times: Iterable[int] = ()) -> None:
        """`times`: first, last, first, last, …"""
        self._times = array("q", times)

    def append(self, first: int, last: int) -> None:
        self._times.extend((first, last))

    def __len__(self) -> int:
        return len(self._times) // 2

    def __getitem__(self, slot: int) -> tuple[int, int]:
        return self._times[2 * slot], self._times[2 * slot + 1]

    def passed(self, cutoff: int) -> int:
        """How many segments end at `cutoff` or before it."""
        return bisect_right(range(len(self)), cutoff, key=lambda slot: self._times[2 * slot + 1])


@dataclass(slots=True, eq=False)
class Bucket:
    """A range of ledgers whose delayed messages were handed over to be sealed.

    Until its snapshot is stored (`snapshot_id` None), its rows are all in memory and its messages are promised by the
    tracker's unsealed set. Then it has a set of its own, and rows in memory of those segments only that were loaded.
    """

    number: int
    """owner of its rows"""
    start: int
    end: int
    """ledger ids, both inclusive"""
    snapshot_id: int | None = None
    size_bytes: int = 0
    pending: PendingSet | None = None
    segments: SegmentTimes = field(default_factory=SegmentTimes)
    loaded: int = 0
    """segments before this one were loaded, or skipped when they were due at recovery"""
    is_merged: bool = False
    """it came of a merge since this was opened"""
    retry: Retry = field(default_factory=Retry)
    """of storing, loading and deleting"""

    @property
    def property_name(self) -> str:
        return f"{BUCKET_PROPERTY}{self.start}_{self.end}"

    @property
    def next_at(self) -> int | None:
        """When the first message of the segments not loaded yet is due; None where all are loaded."""
        return self.segments[self.loaded][0] if self.loaded < len(self.segments) else None

    @property
    def remaining(self) -> int:
        """Messages still pending of a stored bucket."""
        return 0 if self.pending is None else self.pending.count


# What buckets are sorted by. There are some ten of them: a list with a key in C is searched in 250 ns, sortedcontainers
# take 430, a key in Python 330.
START = attrgetter("start")


def bucket_of(buckets: Sequence[Bucket], ledger_id: int) -> Bucket | None:
    """The bucket whose range holds the ledger; `buckets` are sorted, their ranges disjoint."""
    slot = bisect_right(buckets, ledger_id, key=START) - 1
    if slot >= 0 and buckets[slot].end >= ledger_id:
        return buckets[slot]
    return None
