"""A bucket: the delayed messages of a range of ledgers."""
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from seglog._kernels.pending_set import PendingSet

BUCKET_PROPERTY = "#pulsar.internal.delayed.bucket_"
# The delay before a failed operation is retried, and the maximum: it doubles each time.
RETRY_NS = 100_000_000
MAX_RETRY_NS = 10_000_000_000


@dataclass(slots=True)
class Retry:
    """When a failed operation may be retried."""

    at_ns: int = 0
    failures: int = 0

    def put_off(self, now_ns: int) -> None:
        """Note a failure: delay the next attempt."""
        self.at_ns = now_ns + min(RETRY_NS << min(self.failures, 30), MAX_RETRY_NS)
        self.failures += 1

    def reset(self) -> None:
        """Note a success."""
        self.at_ns = self.failures = 0


class SegmentTimes:
    """The due times of the first and the last message of each segment of a snapshot, in ms since 1970."""

    __slots__ = ("_times",)

    def __init__(self, times: Iterable[int] = ()) -> None:
        """Make it from `times`: first, last, first, last, …"""
        self._times = array("q", times)

    def append(self, first: int, last: int) -> None:
        self._times.extend((first, last))

    def __len__(self) -> int:
        return len(self._times) // 2

    def __getitem__(self, slot: int) -> tuple[int, int]:
        return self._times[2 * slot], self._times[2 * slot + 1]

    def passed(self, cutoff: int) -> int:
        """Count the segments that end at or before `cutoff`."""
        return bisect_right(range(len(self)), cutoff, key=lambda slot: self._times[2 * slot + 1])


@dataclass(slots=True, eq=False)
class Bucket:
    """A range of ledgers whose delayed messages are to be sealed, or are sealed.

    Until its snapshot is stored (`snapshot_id` None), all its rows are in memory, and the tracker's unsealed set says
    which of its messages are pending. After that it has its own set, and only rows of loaded segments in memory.
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
    """it was merged since the tracker was opened"""
    retry: Retry = field(default_factory=Retry)
    """for storing, loading and deleting"""

    @property
    def property_name(self) -> str:
        return f"{BUCKET_PROPERTY}{self.start}_{self.end}"

    @property
    def next_at(self) -> int | None:
        """Return when the first message in segments not loaded yet is due; None if all are loaded."""
        return self.segments[self.loaded][0] if self.loaded < len(self.segments) else None

    @property
    def remaining(self) -> int:
        """Return the number of messages still pending in a stored bucket."""
        return 0 if self.pending is None else self.pending.count


# The sort key of buckets. There are about ten of them: searching a list by a key in C takes 250 ns; sortedcontainers
# takes 430, and a key in Python 330.
START = attrgetter("start")


def bucket_of(buckets: Sequence[Bucket], ledger_id: int) -> Bucket | None:
    """Return the bucket whose range contains the ledger; `buckets` are sorted, their ranges disjoint."""
    slot = bisect_right(buckets, ledger_id, key=START) - 1
    if slot >= 0 and buckets[slot].end >= ledger_id:
        return buckets[slot]
    return None
