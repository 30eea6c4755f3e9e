"""Merging: which neighbours become one bucket, and their rows in order without holding them."""
from collections.abc import Callable, Iterator, Sequence

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog.delayed.bucket import Bucket

MAX_TIME = 2**63 - 1
# A group with so many times the messages of the smallest group is much larger.
MUCH_LARGER = 2
# What is not merged any more, be there more buckets than there should be: a snapshot has to fit a ledger of 2 GiB.
MAX_SNAPSHOT_BYTES = 3 << 29


def merged_rows(group: Sequence[Bucket], read: Callable[[Bucket, int], tuple[DueRows, int]]) -> Iterator[DueRows]:
    """The rows of stored buckets, sorted, in chunks. One segment of each bucket is held at a time, or a few small ones:
    `read(bucket, slot)` gives the rows of a segment when they are needed, and perhaps of some that follow, and which
    segment is the next."""
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
        rows, slots[source] = read(group[source], slots[source])
        runs.add_run(source, rows)


def select_for_merge(buckets: Sequence[Bucket], fan_in: int, delivered_to: int) -> Sequence[Bucket]:
    """`fan_in` neighbours to be merged, else one less, down to two; empty where there is nothing to merge.

    All before `delivered_to`, ms since 1970, and at it, was delivered. The choice is Pulsar's where Pulsar makes one
    (`pulsars_choice`), and else `our_choice`: Pulsar's code fails on fewer than five buckets and on one that has a
    single segment to load, and would then let the buckets become more and more.

    Two groups are left out that Pulsar would take. One does not fit a ledger. The other holds a bucket that came of a
    merge, and is much larger than the smallest group: such a bucket is due first, and Pulsar merges it again and again,
    at a cost that grows with the square of the messages.
    """
    smallest = min((_remaining(group) for group in _groups(buckets, fan_in)), default=0)

    def is_left_out(group: Sequence[Bucket]) -> bool:
        if sum(bucket.size_bytes for bucket in group) > MAX_SNAPSHOT_BYTES:
            return True
        return any(bucket.is_merged for bucket in group) and _remaining(group) > MUCH_LARGER * smallest

    try:
        preferred = pulsars_choice(buckets, fan_in, delivered_to, is_left_out)
    except LookupError:
        preferred = ()
    return preferred or our_choice(buckets, fan_in, is_left_out)


def pulsars_choice(
    buckets: Sequence[Bucket],
    fan_in: int,
    delivered_to: int,
    is_left_out: Callable[[Sequence[Bucket]], bool] = lambda group: False,
) -> Sequence[Bucket]:
    """What BucketDelayedDeliveryTracker.selectMergedBuckets of Pulsar 4.2.4 chooses, as its bytecode runs.

    Neighbours are looked at from the oldest on. Those count of which each has a segment to load. A later group is
    preferred when it has no more messages than any group before it, and is due before the preferred one. The time of a
    bucket is that of the segment behind the next one (firstScheduleTimestamps.get(current + 1), #26241).

    Raises LookupError where Pulsar's code fails: where there are no more than `fan_in` buckets, and where a bucket of
    such a group has no second segment to load.
    """
    if len(buckets) <= fan_in:
        raise LookupError(f"{len(buckets)} buckets, of which {fan_in} are to be merged")
    current = {bucket.number: bucket.segments.passed(delivered_to) for bucket in buckets}
    for width in range(fan_in, 1, -1):
        preferred: Sequence[Bucket] = ()
        fewest = earliest = MAX_TIME
        for group in _groups(buckets, width):
            if any(current[bucket.number] >= len(bucket.segments) - 1 for bucket in group) or is_left_out(group):
                continue
            if (remaining := _remaining(group)) > fewest:
                continue
            fewest = remaining
            next_at = min(bucket.segments[current[bucket.number] + 2][0] for bucket in group)
            if next_at < earliest:
                earliest = next_at
                preferred = group
        if preferred:
            return preferred
    return ()


def our_choice(
    buckets: Sequence[Bucket], fan_in: int, is_left_out: Callable[[Sequence[Bucket]], bool]
) -> Sequence[Bucket]:
    """The group with the fewest messages, of several such groups the first; those come before the rest of which each
    bucket has a segment to load. Pulsar merges no others, because it loses what they have loaded (#26251)."""
    for only_unloaded in (True, False):
        for width in range(min(fan_in, len(buckets)), 1, -1):
            groups = [
                group
                for group in _groups(buckets, width)
                if not is_left_out(group) and not (only_unloaded and any(b.next_at is None for b in group))
            ]
            if groups:
                return min(groups, key=_remaining)
    return ()


def _groups(buckets: Sequence[Bucket], width: int) -> Iterator[Sequence[Bucket]]:
    width = min(width, len(buckets))
    return (buckets[slot : slot + width] for slot in range(len(buckets) - width + 1))


def _remaining(group: Sequence[Bucket]) -> int:
    return sum(bucket.remaining for bucket in group)
