"""Buckets: the delayed messages of a range of ledgers, and which of them are merged."""
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from seglog._kernels.pending_set import PendingSet

BUCKET_PROPERTY = "#pulsar.internal.delayed.bucket_"


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
    segments: list[tuple[int, int]] = field(default_factory=list)
    """(first, last) schedule timestamp of every segment"""
    loaded: int = 0
    """segments before this one were loaded, or skipped when they were due at recovery"""
    retry_at_ns: int = 0
    """no further attempt at storing or loading before this time"""
    failures: int = 0
    merging: bool = False

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


def bucket_of(buckets: Sequence[Bucket], ledger_id: int) -> Bucket | None:
    """The bucket whose range holds the ledger; `buckets` are sorted, their ranges disjoint."""
    slot = bisect_right(buckets, ledger_id, key=lambda bucket: bucket.start) - 1
    if slot >= 0 and buckets[slot].end >= ledger_id:
        return buckets[slot]
    return None


def select_for_merge(buckets: Sequence[Bucket], fan_in: int) -> Sequence[Bucket]:
    """`fan_in` neighbours to be merged, else one less, down to two; empty where there is nothing to merge.

    Neighbours are looked at from the oldest on, and a later group is preferred when it has no more messages than any
    group before it and its next segment is due before that of the preferred one. So says the code of Pulsar 4.2.4
    (BucketDelayedDeliveryTracker.selectMergedBuckets) and so say its golden runs; its comment says "the fewest
    messages". Pulsar takes only buckets that have a segment to load, because it loses the messages of the others
    (#26251); here such buckets come first, and where there are none, any.
    """
    for only_unloaded in (True, False):
        for width in range(min(fan_in, len(buckets)), 1, -1):
            preferred: Sequence[Bucket] = ()
            fewest = earliest = 2**63
            for slot in range(len(buckets) - width + 1):
                group = buckets[slot : slot + width]
                if any(b.merging or b.snapshot_id is None or (only_unloaded and b.next_at is None) for b in group):
                    continue
                remaining = sum(b.remaining for b in group)
                if remaining > fewest:
                    continue
                fewest = remaining
                next_at = min((at for b in group if (at := b.next_at) is not None), default=2**63 - 1)
                if next_at < earliest:
                    earliest = next_at
                    preferred = group
            if preferred:
                return preferred
    return ()
