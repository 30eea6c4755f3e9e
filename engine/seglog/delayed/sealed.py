"""The sealed buckets of a tracker: their pending messages, and which segment is loaded next."""
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.position_union import PositionUnion
from seglog._kernels.quick_lock import QuickLock
from seglog.clock import Clock
from seglog.delayed.amendments import CANCELLED, MOVED, Amendments
from seglog.delayed.bucket import BUCKET_PROPERTY, START, Bucket, bucket_of
from seglog.delayed.metrics import BucketStats
from seglog.delayed.snapshot import decode_rows
from seglog.delayed.storage import DAMAGE, FAILURES, BucketSnapshotStorage
from seglog.errors import CorruptDelayedIndexError
from seglog.logger import Logger

logger = Logger("seglog")

# Segments are read one after the other until there are this many rows, and at most this many at once: later ones may be
# larger than those before.
AHEAD_ROWS, AHEAD_SEGMENTS = 500, 32
# The prefix of a tracker's properties in a cursor, which also has others of its subscription.
PROPERTIES = (BUCKET_PROPERTY, CANCELLED, MOVED)


class SealedBuckets:
    """Buckets that are stored or being stored, sorted by ledger, with disjoint ranges.

    `when_lost` is called with the number of messages pending in a bucket that was given up because its snapshot is
    damaged. Guarded by the tracker's lock, except for `publish`.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        runs: DueRuns,
        promises: dict[int, PendingSet],
        amendments: Amendments,
        clock: Clock,
        first_number: int,
        when_lost: Callable[[int], None],
    ) -> None:
        self.storage = storage
        self.runs = runs
        self.promises = promises
        self.amendments = amendments
        self.clock = clock
        self._when_lost = when_lost
        self.stats = BucketStats()
        self.buckets: list[Bucket] = []
        self.end = -1
        """the last ledger of any bucket there ever was: only later ones may be sealed"""
        self.snapshot_bytes = 0
        self.doomed: list[int] = []
        """snapshots that no property lists any longer"""
        self.unstored: dict[str, str | None] = {}
        """properties that storage should have, but may not"""
        self.generation = 0
        """background work that began in an earlier generation is void"""
        self._next_number = first_number
        # (time of its next segment, first ledger, number, bucket): segments that are not loaded. Outdated entries are
        # skipped.
        self._unloaded: list[tuple[int, int, int, Bucket]] = []
        # Held while the list of buckets is stored, so that none is listed after `clear`. Taken last.
        self._listing = QuickLock()

    # --- the buckets -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.buckets)

    def __len__(self) -> int:
        return len(self.buckets)

    @property
    def stored(self) -> list[Bucket]:
        return [bucket for bucket in self.buckets if bucket.snapshot_id is not None]

    @property
    def sealing(self) -> int:
        """Return how many are not stored yet."""
        return sum(bucket.snapshot_id is None for bucket in self.buckets)

    def new_bucket(self, start: int, end: int) -> Bucket:
        """Make a bucket, which is not among these yet."""
        bucket = Bucket(self._next_number, start, end)
        self._next_number += 1
        return bucket

    def add(self, bucket: Bucket) -> None:
        insort(self.buckets, bucket, key=START)
        self.end = max(self.end, bucket.end)

    def adopt(self, bucket: Bucket, pending: PendingSet, size_bytes: int) -> None:
        """Let the bucket have its pending messages itself from now on."""
        bucket.pending = pending
        bucket.size_bytes = size_bytes
        bucket.retry.reset()
        self.snapshot_bytes += size_bytes
        self.promises[bucket.number] = pending
        self._expect(bucket)

    def forget(self, bucket: Bucket) -> None:
        """Drop a bucket from memory."""
        self.runs.drop_owner(bucket.number)
        self.promises.pop(bucket.number, None)
        self.buckets.remove(bucket)
        self.snapshot_bytes -= bucket.size_bytes

    def clear(self) -> None:
        """Forget every bucket and every decision, in storage first. Snapshots are deleted later."""
        with self._listing:
            self.generation += 1
            ours = [name for name in self.storage.properties() if name.startswith(PROPERTIES)]
            self.storage.update_properties(dict.fromkeys(ours))
        self.unstored.clear()
        for bucket in list(self.buckets):
            if bucket.snapshot_id is not None:
                self.doomed.append(bucket.snapshot_id)
            self.forget(bucket)
        self._unloaded.clear()
        self.end = -1

    def store(self, changes: Mapping[str, str | None]) -> None:
        """Store properties, durably."""
        self.storage.update_properties(changes)

    def forget_properties(self, gone: Mapping[str, None]) -> None:
        """Remove properties that are no longer needed, in the background."""
        self.unstored.update(gone)

    def publish(self, changes: Mapping[str, str | None], generation: int) -> bool:
        """Store properties, unless everything was cleared since `generation`; return whether they were stored."""
        with self._listing:
            if generation != self.generation:
                return False
            self.storage.update_properties(changes)
            return True

    # --- what is pending ---------------------------------------------------------------------------

    def promised(self, ledger_id: int) -> PendingSet | None:
        """Return the pending messages of the stored bucket that contains this ledger."""
        if ledger_id > self.end:
            return None
        bucket = bucket_of(self.buckets, ledger_id)
        return None if bucket is None else bucket.pending

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        promised = self.promised(ledger_id)
        return promised is not None and promised.contains(ledger_id, entry_id)

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Make a position in a stored bucket no longer pending. Return whether it was."""
        promised = self.promised(ledger_id)
        return promised is not None and promised.remove(ledger_id, entry_id)

    # --- segments ----------------------------------------------------------------------------------

    def _expect(self, bucket: Bucket) -> None:
        if bucket.next_at is not None:
            heappush(self._unloaded, (bucket.next_at, bucket.start, bucket.number, bucket))

    def first_unloaded(self) -> Bucket | None:
        """Return the bucket whose next segment must be loaded first: of several with the same time, that with the first
        ledgers. Leaves out those that have just failed."""
        now_ns = self.clock.monotonic_ns()
        failed = []
        found = None
        while self._unloaded:
            at, _, number, bucket = self._unloaded[0]
            if bucket.next_at != at or self.promises.get(number) is not bucket.pending or bucket.remaining == 0:
                heappop(self._unloaded)
            elif bucket.retry.at_ns > now_ns:
                failed.append(heappop(self._unloaded))
            else:
                found = bucket
                break
        for entry in failed:
            heappush(self._unloaded, entry)
        return found

    def next_unloaded_at(self) -> int | None:
        """Return when the first segment that is not loaded begins, whether or not loading it failed."""
        return min((entry[0] for entry in self._unloaded), default=None)

    def read_rows(self, bucket: Bucket, slot: int, stop: int | None = None) -> DueRows:
        """Read all rows of a segment, or of those up to `stop`, pending or not. Needs no lock."""
        assert bucket.snapshot_id is not None
        found = DueRows()
        stop = slot + 1 if stop is None else stop
        for entry in self.storage.get_segments(bucket.snapshot_id, slot, stop):
            rows = decode_rows(entry, bucket.property_name)
            if not len(rows) or (rows[0][0], rows[len(rows) - 1][0]) != bucket.segments[slot]:
                raise CorruptDelayedIndexError(
                    f"segment {slot} of snapshot {bucket.snapshot_id} does not have the times that its metadata says"
                )
            found.extend(rows)
            slot += 1
        if slot != stop:
            raise CorruptDelayedIndexError(f"snapshot {bucket.snapshot_id} has no segment {slot}")
        return found

    def read_ahead(self, bucket: Bucket, slot: int) -> tuple[DueRows, int]:
        """Read the rows of a segment and, while these are few, of those after it; return them and the next segment's
        slot. With delays over years, segments have one message each: one by one, they cost a poll 12 us a message."""
        rows, stop = self.read_rows(bucket, slot), slot + 1
        while (missing := AHEAD_ROWS - len(rows)) > 0 and stop < len(bucket.segments):
            # As many as are needed for the rest, if they are like those before.
            more = min(max(missing * (stop - slot) // len(rows), 1), AHEAD_SEGMENTS, len(bucket.segments) - stop)
            rows.extend(self.read_rows(bucket, stop, stop + more))
            stop += more
        return rows, stop

    def read_pending_rows(self, bucket: Bucket, slot: int) -> DueRows:
        """Read the rows of a segment that are still pending, whether it was loaded or not."""
        try:
            rows = self.read_rows(bucket, slot)
        except DAMAGE as e:
            self.load_failed(bucket, e)
            raise
        assert bucket.pending is not None
        bucket.pending.keep_pending(rows, self.amendments.moved)
        return rows

    def load_next(self, bucket: Bucket) -> int:
        """Load the bucket's next segment, and more if they are small; return how many messages are due when it begins.
        If this fails, other buckets continue, and this one is retried, or given up."""
        began = self.stats.begin("load")
        try:
            rows, stop = self.read_ahead(bucket, bucket.loaded)
        except FAILURES as e:
            self.load_failed(bucket, e)
            return 0
        begins_at = bucket.segments[bucket.loaded][0]
        assert bucket.pending is not None
        bucket.pending.keep_pending(rows, self.amendments.moved)
        at_once = bisect_right(range(len(rows)), begins_at, key=lambda slot: rows[slot][0])
        if not self.take_over(bucket, rows, stop):
            return 0
        self.stats.succeeded("load", began)
        return at_once

    def load_failed(self, bucket: Bucket, failure: BaseException) -> None:
        self.stats.failed("load", failure)
        if isinstance(failure, DAMAGE):
            self.give_up(bucket, failure)
        else:
            bucket.retry.put_off(self.clock.monotonic_ns())

    def give_up(self, bucket: Bucket, failure: BaseException) -> None:
        """Forget a bucket whose snapshot is damaged. Its messages are in the log, which will be read again."""
        if bucket not in self.buckets:
            return
        lost = bucket.remaining
        logger.warning("%s: its %d messages are indexed again from the log: %s", bucket.property_name, lost, failure)
        self.stats.lost.add()
        if bucket.snapshot_id is not None:
            self.doomed.append(bucket.snapshot_id)
        self.unstored[bucket.property_name] = None
        self.forget(bucket)
        self._when_lost(lost)

    def take_over(self, bucket: Bucket, rows: DueRows, stop: int) -> bool:
        """Let the rows of the bucket's next segments, up to `stop`, be delivered. False: those were the last segments,
        but some messages that the metadata names were in none, so the bucket was given up."""
        self.runs.add_run(bucket.number, rows)
        bucket.loaded = stop
        bucket.retry.reset()
        self._expect(bucket)
        if bucket.next_at is None and not self._has_all_rows(bucket):
            damage = CorruptDelayedIndexError(f"snapshot {bucket.snapshot_id} lacks messages that its metadata names")
            self.load_failed(bucket, damage)
            return False
        return True

    def _has_all_rows(self, bucket: Bucket) -> bool:
        """Whether every pending message of the bucket has a row, now that all its segments are loaded."""
        assert bucket.pending is not None
        return holds_all(self.runs.rows_of(bucket.number), bucket.pending)

    def rows_between(self, first_at: int, end_at: int) -> Iterator[DueRows]:
        """Yield pending rows with first_at <= deliver_at < end_at in segments that are not loaded, by segment."""
        for bucket in self.buckets:
            if bucket.remaining == 0:
                continue
            for slot in range(bucket.loaded, len(bucket.segments)):
                first, last = bucket.segments[slot]
                if first < end_at and last >= first_at:
                    rows = self.read_pending_rows(bucket, slot)
                    rows.keep_after(first_at - 1)
                    rows.keep_before(end_at)
                    yield rows


def holds_all(rows: DueRows, pending: PendingSet) -> bool:
    """Whether each position of `pending` has a row."""
    pending.keep_pending(rows, {})
    positions = PositionUnion()
    positions.add_rows(rows)
    return pending.is_within(positions)
