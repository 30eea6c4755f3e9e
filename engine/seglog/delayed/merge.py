"""Merging: which neighbours become one bucket, and their rows in order without holding them."""
from collections.abc import Callable, Iterator, Sequence

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog.delayed.bucket import Bucket

MAX_TIME = 2**63 - 1
# A group of neighbours with so many times the messages of the smallest group is not merged before that one.
MUCH_LARGER = 2
# What is not merged any more, be there more buckets than there should be: a snapshot has to fit a ledger of 2 GiB.
MAX_SNAPSHOT_BYTES = 3 << 29


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
    group before it and its next segment is due before that of the preferred one. That is modelled on Pulsar 4.2.4
    (BucketDelayedDeliveryTracker.selectMergedBuckets, whose comment says "the fewest messages"), and chooses as its
    golden runs do. On other workloads the choice is ours: Pulsar's code looks at the time of a segment one slot further
    on (firstScheduleTimestamps.get(current + 1), #26241), and where one of the two merged ledgers 12 to 22 the other
    merged 15 to 24. Two more things are ours. Pulsar takes only buckets that have a segment to load, because it loses
    the messages of the others (#26251); here such buckets come first, and where there are none, any. And a group that
    is much larger than the smallest one is left alone: Pulsar's rule would merge the largest buckets again and again,
    since they are due first, at a cost that grows with the square of the messages.
    """
    for only_unloaded in (True, False):
        for width in range(min(fan_in, len(buckets)), 1, -1):
            groups = [
                (sum(bucket.remaining for bucket in group), group)
                for group in (buckets[slot : slot + width] for slot in range(len(buckets) - width + 1))
                if sum(bucket.size_bytes for bucket in group) <= MAX_SNAPSHOT_BYTES
                and not any(b.snapshot_id is None or (only_unloaded and b.next_at is None) for b in group)
            ]
            preferred: Sequence[Bucket] = ()
            enough = MUCH_LARGER * min((remaining for remaining, _ in groups), default=0)
            fewest = earliest = 2**63
            for remaining, group in groups:
                if remaining > min(fewest, enough):
                    continue
                fewest = remaining
                next_at = min((at for b in group if (at := b.next_at) is not None), default=2**63 - 1)
                if next_at < earliest:
                    earliest = next_at
                    preferred = group
            if preferred:
                return preferred
    return ()
