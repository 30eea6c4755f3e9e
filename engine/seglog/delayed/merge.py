"""Merging: which neighbours become one bucket, and their rows in order without holding them."""
from collections.abc import Callable, Iterator, Sequence

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog.delayed.bucket import Bucket

MAX_TIME = 2**63 - 1


def merged_rows(group: Sequence[Bucket], read: Callable[[Bucket, int], DueRows]) -> Iterator[DueRows]:
    """The rows of stored buckets, sorted, in chunks. One segment of each bucket is held at a time: `read(bucket, slot)`
    gives the rows of a segment when they are needed."""
    runs = DueRuns()
    slots = [0] * len(group)
    while True:
        ahead = [
            (bucket.segments[slot][0], source)
            for source, (bucket, slot) in enumerate(zip(group, slots, strict=True))
            if slot < len(bucket.segments)
        ]
        # What is due when the next segment begins may have to stand behind rows of that segment.
        next_at, source = min(ahead, default=(MAX_TIME, -1))
        rows = runs.take(next_at - 1 if ahead else MAX_TIME)
        if len(rows):
            yield rows
        if not ahead:
            return
        runs.add_run(source, read(group[source], slots[source]))
        slots[source] += 1


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
                if any(b.snapshot_id is None or (only_unloaded and b.next_at is None) for b in group):
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
