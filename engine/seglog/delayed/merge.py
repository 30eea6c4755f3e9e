"""Merging: chooses the neighbours to merge into one bucket, and streams their rows in order."""
from collections.abc import Callable, Iterator, Sequence

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog.delayed.bucket import Bucket

MAX_TIME = 2**63 - 1
# A group with this many times the messages of the smallest group counts as much larger.
MUCH_LARGER = 2
# Larger groups are not merged, even if there are too many buckets: a snapshot must fit into a ledger of 2 GiB.
MAX_SNAPSHOT_BYTES = 3 << 29


def merged_rows(group: Sequence[Bucket], read: Callable[[Bucket, int], tuple[DueRows, int]]) -> Iterator[DueRows]:
    """Yield the rows of stored buckets, sorted, in chunks. Holds one segment of each bucket at a time, or a few small
    ones: `read(bucket, slot)` returns the rows of a segment when they are needed, perhaps with those of some that
    follow, and the slot of the next segment."""
    runs = DueRuns()
    slots = [0] * len(group)
    while True:
        ahead = [
            (bucket.segments[slot][0], source)
            for source, (bucket, slot) in enumerate(zip(group, slots, strict=True))
            if slot < len(bucket.segments)
        ]
        # Messages due when the next segment begins may have to follow rows of that segment.
        next_at, source = min(ahead, default=(MAX_TIME, -1))
        rows = runs.take(next_at - 1 if ahead else MAX_TIME)
        if len(rows):
            yield rows
        if not ahead:
            return
        rows, slots[source] = read(group[source], slots[source])
        runs.add_run(source, rows)


def select_for_merge(buckets: Sequence[Bucket], fan_in: int, delivered_to: int) -> Sequence[Bucket]:
    """Return `fan_in` neighbours to merge, or fewer, down to two; empty if there is nothing to merge.

    All messages due up to `delivered_to`, in ms since 1970, were delivered. The choice is Pulsar's if Pulsar makes one
    (`pulsars_choice`), otherwise `our_choice`: Pulsar's code fails with fewer than five buckets and with one that has a
    single segment to load, and would then let the buckets become more and more.

    Two groups are excluded that Pulsar would take. One does not fit into a ledger. The other contains a merged bucket,
    and is much larger than the smallest group: such a bucket is due first, so Pulsar merges it again and again, at a
    cost that grows with the square of the messages.
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
    """Return what BucketDelayedDeliveryTracker.selectMergedBuckets of Pulsar 4.2.4 chooses, as its bytecode runs.

    It checks neighbours from the oldest on. A group counts if each of its buckets has a segment to load. A later group
    is preferred if it has no more messages than any group before it, and is due before the preferred one. The time of a
    bucket is that of the segment after the next one (firstScheduleTimestamps.get(current + 1), #26241).

    Raises LookupError if Pulsar's code fails: if there are no more than `fan_in` buckets, or if a bucket of such a
    group has no second segment to load.
    """
    if len(buckets) <= fan_in:
        raise LookupError(f"{len(buckets)} buckets are too few to merge {fan_in}")
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
    """Return the group with the fewest messages, the first of several; preferably one whose buckets all have a segment
    to load. Pulsar merges no others, because it loses what they have loaded (#26251)."""
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
