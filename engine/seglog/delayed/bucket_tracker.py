"""The tracker that keeps delayed messages in buckets with snapshots (PIP-195).

Memory holds the last mutable bucket, the segments of sealed buckets that are next to be delivered, and a bitmap of
what is pending. Everything else is in storage, and all of it is also in the log: what storage loses, the reader that
goes over the log again after a restart adds again.

Order. A segment that is not loaded stands in the queue's way with the time of its first message: nothing later is
delivered before it is loaded. So no message is found out to be the last of its segment (which Pulsar did, and lost
the rest of a bucket when that message was trimmed).

Background work (sealing, merging, deleting) is derived from the state: whatever is not as it should be, is the next
thing to do. What failed is still not as it should be, and so it is tried again, after a pause.
"""
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from seglog._kernels.due_rows import DueRows
from seglog._kernels.pending_set import PendingSet
from seglog.clock import Clock
from seglog.counters import Sample
from seglog.delayed.bucket import BUCKET_PROPERTY, Bucket, bucket_of, select_for_merge
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import FIRST_BUCKET, LATE, PUSHED, InMemoryDelayedDeliveryTracker
from seglog.delayed.metrics import OPERATIONS, STATES, BucketStats
from seglog.delayed.snapshot import EncodedSnapshot, bitmaps_of, decode_metadata, decode_rows, encode_snapshot
from seglog.delayed.storage import BucketSnapshotStorage
from seglog.delayed.tracker import Positions
from seglog.delayed.worker import BackgroundWorker, Worker
from seglog.errors import CorruptDelayedIndexError, SeglogError, SnapshotMissingError

# More buckets than these do not wait to be stored: the last mutable one grows instead, and adding never waits.
MAX_SEALING = 4
# A failed operation is tried again after so long, twice as long each time up to the second.
RETRY_NS = 100_000_000
MAX_RETRY_NS = 10_000_000_000
RECOVERY_ATTEMPTS = 3
# Segments that will be due within this time are loaded in the background.
PREFETCH_MS = 2_000
# Between two of its pauses background work keeps the interpreter for about as long.
PAUSE_EVERY_NS = 500_000

FAILURES = (SeglogError, OSError, MemoryError)


class BucketDelayedDeliveryTracker(InMemoryDelayedDeliveryTracker):
    """Delayed messages in buckets over a BucketSnapshotStorage, which it owns from now on.

    Raises what the storage raises where it cannot be read after some attempts.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        worker: Worker | None = None,
    ) -> None:
        super().__init__(config, clock=clock)
        # The last mutable bucket's messages; `_unsealed` then has those that are in no bucket, or in one being stored.
        self._pushed = PendingSet(self._new_bitmap)
        self._promises[PUSHED] = self._pushed
        self._storage = storage
        self._worker: Worker = worker or BackgroundWorker()
        self.stats = BucketStats()
        self.last_failure: BaseException | None = None
        # Stored and being stored; sorted by ledger, ranges disjoint.
        self._buckets: list[Bucket] = []
        self._next_number = FIRST_BUCKET
        # (time of its next segment, number, bucket): what is not loaded. Entries that no longer hold are skipped.
        self._unloaded: list[tuple[int, int, Bucket]] = []
        self._doomed: list[int] = []  # snapshots that no property lists any more
        self._doomed_retry_ns = 0
        self._unstored: dict[str, str | None] = {}  # properties that storage should have, and may have not
        self._unstored_retry_ns = 0
        self._merge_retry_ns = 0
        self._mutable_start = self._mutable_end = -1
        self._sealed_end = -1
        self._snapshot_bytes = 0
        self._cleared = 0  # how often; background work that began before is void
        self._paused_ns = 0
        storage.initialize()
        self._recover()
        self._worker.start(self._work)
        self._wake()

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """Take over the buckets that storage lists. Reads metadata, and of a bucket's messages at most the one segment
        that is due in part.

        What is due already is left out: it may have been delivered before, and if it was not, the reader finds it in
        the log and dispatches it. So nothing is delivered twice, unless the clock was set back meanwhile.
        """
        properties = self._attempt(self._storage.properties)
        self._amendments.read(properties)
        cutoff = self._cutoff()
        listed: list[tuple[int, int, str, int]] = []
        unreadable: dict[str, str | None] = {}
        for name, value in properties.items():
            if name.startswith(BUCKET_PROPERTY):
                bounds = name.removeprefix(BUCKET_PROPERTY).split("_")
                if len(bounds) == 2 and all(b.isdecimal() for b in bounds) and value.isdecimal():
                    listed.append((int(bounds[0]), int(bounds[1]), name, int(value)))
                else:
                    unreadable[name] = None
        for start, end, name, snapshot_id in sorted(listed):
            try:
                if start > end or start <= self._sealed_end:
                    # Pulsar's own map dropped overlapped buckets without a word; their messages are in the log.
                    raise CorruptDelayedIndexError(f"bucket {start} to {end} overlaps the one before it")
                self._recover_bucket(start, end, snapshot_id, cutoff)
            except (CorruptDelayedIndexError, SnapshotMissingError) as e:
                self._note_failure("load", e)
                unreadable[name] = None
        if unreadable:
            self._attempt(lambda: self._storage.update_properties(unreadable))
        known = {bucket.snapshot_id for bucket in self._buckets}
        self._doomed = [found for found in self._attempt(self._storage.snapshot_ids) if found not in known]
        for (ledger_id, entry_id), deliver_at in list(self._amendments.moved.items()):
            if self._runs.push_new(deliver_at, ledger_id, entry_id, self._unsealed, late=True):
                self._delayed += 1

    def _recover_bucket(self, start: int, end: int, snapshot_id: int, cutoff: int) -> None:
        described = decode_metadata(self._attempt(lambda: self._storage.get_metadata(snapshot_id)))
        size = self._attempt(lambda: self._storage.get_length(snapshot_id))
        bucket = self._new_bucket(start, end)
        bucket.snapshot_id = snapshot_id
        bucket.segments = [(s.min_schedule_timestamp, s.max_schedule_timestamp) for s in described]
        while bucket.loaded < len(described) and described[bucket.loaded].max_schedule_timestamp <= cutoff:
            bucket.loaded += 1
        pending = PendingSet(self._new_bitmap)
        for ledger_id, bitmap in bitmaps_of(described[bucket.loaded :]).items():
            cancelled = self._amendments.cancelled_in(ledger_id)
            pending.merge(ledger_id, bitmap - cancelled if cancelled else bitmap)
        for position in self._amendments.moved:
            pending.remove(*position)
        if bucket.next_at is not None and bucket.next_at <= cutoff:
            slot = bucket.loaded
            (entry,) = self._attempt(lambda: self._storage.get_segments(snapshot_id, slot, slot + 1))
            rows = decode_rows(entry, bucket.property_name)
            pending.remove_due(rows, cutoff)
            self._runs.add_run(bucket.number, rows)
            bucket.loaded += 1
        self._adopt(bucket, pending, size)
        self._delayed += pending.count
        self._buckets.append(bucket)
        self._sealed_end = end

    def _attempt(self, operation: Callable[[], Any]) -> Any:
        for left in reversed(range(RECOVERY_ATTEMPTS)):
            try:
                return operation()
            except (CorruptDelayedIndexError, SnapshotMissingError):
                raise
            except FAILURES as e:
                self._note_failure("load", e)
                if left == 0:
                    raise
        raise AssertionError("unreachable")

    def _new_bucket(self, start: int, end: int) -> Bucket:
        bucket = Bucket(self._next_number, start, end)
        self._next_number += 1
        return bucket

    def _adopt(self, bucket: Bucket, pending: PendingSet, size_bytes: int) -> None:
        """From now on the bucket promises its messages itself."""
        bucket.pending = pending
        bucket.size_bytes = size_bytes
        bucket.failures = bucket.retry_at_ns = 0
        self._snapshot_bytes += size_bytes
        self._promises[bucket.number] = pending
        self._expect(bucket)

    def _expect(self, bucket: Bucket) -> None:
        if bucket.next_at is not None:
            heappush(self._unloaded, (bucket.next_at, bucket.number, bucket))

    # --- adding --------------------------------------------------------------------------------

    def _track(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if ledger_id < self._mutable_end or ledger_id <= self._sealed_end:
            # Of a ledger before the last one: the message stays in memory and will be in no snapshot, as in Pulsar.
            if self._is_pending(ledger_id, entry_id):
                return False
            return self._runs.push_new(deliver_at, ledger_id, entry_id, self._unsealed, late=True)
        if self._unsealed.contains(ledger_id, entry_id):
            return False
        if ledger_id > self._mutable_end:
            if self._mutable_end >= 0:
                self._seal_if_full(ledger_id)
            if self._mutable_start < 0:
                self._mutable_start = ledger_id
            self._mutable_end = ledger_id
        return self._runs.push_new(deliver_at, ledger_id, entry_id, self._pushed)

    def _takes_in_bulk(self, ledger_id: int) -> bool:
        return ledger_id == self._mutable_end and self._unsealed.bitmap(ledger_id) is None

    @property
    def mutable_size(self) -> int:
        """Messages in the last mutable bucket."""
        return self._pushed.count

    def _seal_if_full(self, ledger_id: int) -> None:
        size, config = self.mutable_size, self._config
        by_step = config.ledger_step and ledger_id - self._mutable_start >= config.ledger_step
        if size == 0 or not (size >= config.min_index_count or by_step):
            return
        if sum(bucket.snapshot_id is None for bucket in self._buckets) >= MAX_SEALING:
            return
        bucket = self._new_bucket(self._mutable_start, self._mutable_end)
        self._runs.hand_over(PUSHED, bucket.number)
        for ledger in self._pushed.ledger_ids():
            self._unsealed.merge(ledger, self._pushed.bitmap(ledger))
        self._pushed.clear()
        self._promises[bucket.number] = self._unsealed
        self._buckets.append(bucket)
        self._sealed_end = bucket.end
        self._mutable_start = self._mutable_end = -1
        self._wake()

    # --- delivering ----------------------------------------------------------------------------

    def get_scheduled_messages(self, max_messages: int) -> Positions:
        with self._lock:
            popped = super().get_scheduled_messages(max_messages)
            if self._something_to_do():
                self._wake()
            return popped

    def _pop(self, cutoff: int, limit: int) -> Positions:
        popped: Positions = []
        while True:
            bucket = self._first_unloaded()
            bound = cutoff if bucket is None or bucket.next_at is None else min(cutoff, bucket.next_at - 1)
            popped += self._runs.pop(bound, limit - len(popped), self._promises, self._amendments.moved)
            if len(popped) >= limit or bucket is None or bound == cutoff:
                break
            self._load_next(bucket)
        # What is due and was not asked for yet will not be in a snapshot any more (moveScheduledMessageToSharedQueue).
        self._runs.hand_over_due(PUSHED, LATE, cutoff, self._promises)
        return popped

    def _first_unloaded(self) -> Bucket | None:
        """The bucket whose next segment is the first to be loaded; those that failed just now are left out."""
        now_ns = self._clock.monotonic_ns()
        failed = []
        found = None
        while self._unloaded:
            at, number, bucket = self._unloaded[0]
            if bucket.next_at != at or self._promises.get(number) is not bucket.pending or bucket.remaining == 0:
                heappop(self._unloaded)
            elif bucket.retry_at_ns > now_ns:
                failed.append(heappop(self._unloaded))
            else:
                found = bucket
                break
        for entry in failed:
            heappush(self._unloaded, entry)
        return found

    def _load_next(self, bucket: Bucket) -> None:
        """Load the bucket's next segment. Where that fails, other buckets go on and this one is tried again."""
        assert bucket.snapshot_id is not None
        began = self._begin("load")
        try:
            (entry,) = self._storage.get_segments(bucket.snapshot_id, bucket.loaded, bucket.loaded + 1)
            self._runs.add_run(bucket.number, decode_rows(entry, bucket.property_name))
        except (*FAILURES, ValueError) as e:
            self._failed("load", bucket, e)
            return
        bucket.loaded += 1
        bucket.failures = 0
        self._expect(bucket)
        self._succeeded("load", began)

    def has_message_available(self) -> bool:
        with self._lock:
            # A segment that begins with messages trimmed or cancelled seems due before one of its messages is.
            while (next_at := self.next_delivery_time()) is not None and next_at <= self._cutoff():
                bucket = self._first_unloaded()
                if bucket is None or bucket.next_at != next_at:
                    return True
                self._load_next(bucket)
            return False

    def next_delivery_time(self) -> int | None:
        with self._lock:
            next_at = super().next_delivery_time()
            bucket = self._first_unloaded()
            if bucket is not None and bucket.next_at is not None:
                return bucket.next_at if next_at is None else min(next_at, bucket.next_at)
            if next_at is None and self._delayed:
                # All that is left waits for a segment that could not be loaded.
                return min((at for at, _, _ in self._unloaded), default=None)
            return next_at

    # --- what is pending -----------------------------------------------------------------------

    def _is_pending(self, ledger_id: int, entry_id: int) -> bool:
        if self._pushed.contains(ledger_id, entry_id) or self._unsealed.contains(ledger_id, entry_id):
            return True
        if ledger_id > self._sealed_end:
            return False
        bucket = bucket_of(self._buckets, ledger_id)
        return bucket is not None and bucket.pending is not None and bucket.pending.contains(ledger_id, entry_id)

    def _take(self, ledger_id: int, entry_id: int) -> bool:
        if self._pushed.remove(ledger_id, entry_id) or self._unsealed.remove(ledger_id, entry_id):
            return True
        bucket = bucket_of(self._buckets, ledger_id)
        return bucket is not None and bucket.pending is not None and bucket.pending.remove(ledger_id, entry_id)

    def _store_amendments(self, ledger_id: int) -> None:
        self._storage.update_properties(self._unstored | self._amendments.properties_of(ledger_id))
        self._unstored.clear()

    def _amendments_in_doubt(self, ledger_id: int) -> None:
        self._unstored.update(self._amendments.properties_of(ledger_id))

    def _rows_between(self, first_at: int, end_at: int) -> DueRows:
        with self._lock:
            found = super()._rows_between(first_at, end_at)
            for bucket in self._buckets:
                if bucket.snapshot_id is None or bucket.pending is None or bucket.remaining == 0:
                    continue
                for slot in range(bucket.loaded, len(bucket.segments)):
                    first, last = bucket.segments[slot]
                    if first < end_at and last >= first_at:
                        (entry,) = self._storage.get_segments(bucket.snapshot_id, slot, slot + 1)
                        rows = decode_rows(entry, bucket.property_name)
                        rows.keep_after(first_at - 1)
                        rows.keep_before(end_at)
                        bucket.pending.keep_pending(rows, self._amendments.moved)
                        found.extend(rows)
            return found

    # --- forgetting ------------------------------------------------------------------------------

    def _trim(self, ledger_id: int) -> int:
        self._unstored.update(self._amendments.trim(ledger_id))
        dropped = super()._trim(ledger_id)
        self._wake()
        return dropped

    def clear(self) -> None:
        with self._lock:
            self._cleared += 1
            self._amendments.clear()
            self._unstored.clear()
            # First nothing is listed any more, at once; then the snapshots go, now or when the next open finds orphans.
            self._storage.update_properties(dict.fromkeys(self._storage.properties()))
            self._doomed += [bucket.snapshot_id for bucket in self._buckets if bucket.snapshot_id is not None]
            self._promises = {PUSHED: self._pushed, LATE: self._unsealed}
            self._buckets.clear()
            self._unloaded.clear()
            self._mutable_start = self._mutable_end = self._sealed_end = -1
            self._snapshot_bytes = 0
            super().clear()
            self._wake()

    def close(self) -> None:
        if not self._closed:
            self._worker.close()
            super().close()
            self._storage.close()

    # --- background work ----------------------------------------------------------------------

    def wait_idle(self) -> None:
        """Return when background work that can be done now is done."""
        self._worker.wait_idle()

    def _wake(self) -> None:
        self._worker.wake()

    def _something_to_do(self) -> bool:
        return self._next_task(look_only=True) is not None

    def _work(self) -> None:
        while True:
            with self._lock:
                task = None if self._closed else self._next_task()
            if task is None:
                return
            task()

    def _next_task(self, *, look_only: bool = False) -> Callable[[], None] | None:
        """The most urgent thing that is not as it should be. Called with the lock held."""
        now_ns = self._clock.monotonic_ns()
        for bucket in self._buckets:
            if bucket.snapshot_id is None:
                if bucket.retry_at_ns <= now_ns:
                    return lambda bucket=bucket: self._seal(bucket)  # type: ignore[misc]
                break  # in order: a later bucket without an earlier one would keep the earlier from being stored
        for bucket in self._buckets:
            if bucket.snapshot_id is not None and bucket.remaining == 0 and bucket.retry_at_ns <= now_ns:
                return lambda bucket=bucket: self._delete(bucket)  # type: ignore[misc]
        if self._doomed and self._doomed_retry_ns <= now_ns:
            return self._delete_doomed
        if self._unstored and self._unstored_retry_ns <= now_ns:
            return self._store_properties
        stored = [bucket for bucket in self._buckets if bucket.snapshot_id is not None]
        if 0 < self._config.max_buckets < len(stored) and self._merge_retry_ns <= now_ns:
            group = list(select_for_merge(stored, self._config.merge_fan_in))
            if group:
                if not look_only:
                    for bucket in group:
                        bucket.merging = True
                return lambda: self._merge(group)
        soon = self._first_unloaded()
        if soon is not None and soon.next_at is not None and soon.next_at <= self._cutoff() + PREFETCH_MS:
            return lambda: self._prefetch(soon)
        return None

    def _pause(self) -> None:
        """Let threads that wait for the interpreter have it."""
        now_ns = time.monotonic_ns()
        if now_ns - self._paused_ns > PAUSE_EVERY_NS:
            time.sleep(0)
            self._paused_ns = time.monotonic_ns()

    def _encode(self, rows: DueRows) -> EncodedSnapshot:
        return encode_snapshot(
            rows,
            time_step_ms=self._config.time_step_ms,
            max_indexes=self._config.max_indexes_per_segment,
            pause=self._pause,
        )

    def _prefetch(self, bucket: Bucket) -> None:
        with self._lock:
            if self._promises.get(bucket.number) is bucket.pending and bucket.next_at is not None:
                self._load_next(bucket)

    def _seal(self, bucket: Bucket) -> None:
        began = self._begin("create")
        with self._lock:
            cleared = self._cleared
            rows = self._runs.rows_of(bucket.number)
        snapshot_id = None
        try:
            rows.sort()
            encoded = self._encode(rows)
            snapshot_id = self._storage.create_snapshot(encoded.metadata, encoded.segments)
            self._storage.update_properties({bucket.property_name: str(snapshot_id)})
            first_rows = decode_rows(encoded.segments[0]) if encoded.segments else DueRows()
            bitmaps = bitmaps_of(encoded.described, self._pause)
        except FAILURES as e:
            self._failed("create", bucket, e)
            if snapshot_id is not None:
                self._doom([snapshot_id])
            return
        with self._lock:
            if cleared != self._cleared:
                self._undo_listing(bucket, snapshot_id)
                return
            pending = PendingSet(self._new_bitmap)
            for ledger_id, bitmap in bitmaps.items():
                self._unsealed.hand_over(ledger_id, bitmap, pending)
            for position in self._amendments.moved:
                # It is due at another time, in a row that the bucket does not own.
                if pending.remove(*position):
                    self._unsealed.add(*position)
            bucket.snapshot_id = snapshot_id
            self._runs.drop_owner(bucket.number)
            bucket.segments = [(s.min_schedule_timestamp, s.max_schedule_timestamp) for s in encoded.described]
            bucket.loaded = min(1, len(bucket.segments))
            self._adopt(bucket, pending, encoded.size_bytes)
            self._runs.add_run(bucket.number, first_rows)
            self._succeeded("create", began)

    def _undo_listing(self, bucket: Bucket, snapshot_id: int) -> None:
        """The tracker was cleared while the bucket was stored."""
        try:
            self._storage.update_properties({bucket.property_name: None})
        except FAILURES as e:
            self._note_failure("delete", e)
        self._doom([snapshot_id])

    def _merge(self, group: list[Bucket]) -> None:
        """One bucket of neighbours. The new snapshot is stored, then listed in place of the old ones, then those go."""
        began = self._begin("merge")
        snapshot_id = None
        with self._lock:
            cleared = self._cleared
            merged = self._new_bucket(group[0].start, group[-1].end)
        try:
            rows = DueRows()
            for bucket in group:
                self._read_pending(bucket, rows)
            rows.sort()
            encoded = self._encode(rows)
            snapshot_id = self._storage.create_snapshot(encoded.metadata, encoded.segments)
            changes: dict[str, str | None] = {bucket.property_name: None for bucket in group}
            changes[merged.property_name] = str(snapshot_id)
            with self._lock:
                if cleared == self._cleared:
                    self._storage.update_properties(changes)
        except FAILURES as e:
            with self._lock:
                for bucket in group:
                    bucket.merging = False
                self._merge_retry_ns = self._clock.monotonic_ns() + RETRY_NS
            self._failed("merge", None, e)
            if snapshot_id is not None:
                self._doom([snapshot_id])
            return
        with self._lock:
            if cleared != self._cleared:
                self._doom([snapshot_id])
                return
            pending = PendingSet(self._new_bitmap)
            for bucket in group:
                assert bucket.pending is not None
                for ledger_id in bucket.pending.ledger_ids():
                    pending.merge(ledger_id, bucket.pending.bitmap(ledger_id))
                self._forget(bucket)
            merged.snapshot_id = snapshot_id
            merged.segments = [(s.min_schedule_timestamp, s.max_schedule_timestamp) for s in encoded.described]
            self._buckets.append(merged)
            self._buckets.sort(key=lambda bucket: bucket.start)
            self._adopt(merged, pending, encoded.size_bytes)
            self.stats.merged.add()
            self._succeeded("merge", began)

    def _read_pending(self, bucket: Bucket, into: DueRows) -> None:
        """Every message of a stored bucket that is still pending, whether its segment was loaded or not."""
        assert bucket.snapshot_id is not None
        if bucket.remaining == 0:
            return  # its snapshot may be deleted already
        for slot in range(len(bucket.segments)):
            (entry,) = self._storage.get_segments(bucket.snapshot_id, slot, slot + 1)
            rows = decode_rows(entry, bucket.property_name)
            with self._lock:
                assert bucket.pending is not None
                bucket.pending.keep_pending(rows, self._amendments.moved)
            into.extend(rows)
            self._pause()

    def _forget(self, bucket: Bucket) -> None:
        """Drop a bucket from memory; its snapshot is doomed."""
        assert bucket.snapshot_id is not None
        self._runs.drop_owner(bucket.number)
        self._promises.pop(bucket.number, None)
        self._buckets.remove(bucket)
        self._snapshot_bytes -= bucket.size_bytes
        self._doomed.append(bucket.snapshot_id)

    def _delete(self, bucket: Bucket) -> None:
        """Delete a bucket whose messages are all delivered: its snapshot, then its pointer, which may then point to
        nothing after a crash, while a snapshot without a pointer would be hard to find (#22802)."""
        began = self._begin("delete")
        assert bucket.snapshot_id is not None
        try:
            self._storage.delete_snapshot(bucket.snapshot_id)
            self._storage.update_properties({bucket.property_name: None})
        except FAILURES as e:
            self._failed("delete", bucket, e)
            return
        with self._lock:
            if bucket in self._buckets:
                self._forget(bucket)
                self._doomed.remove(bucket.snapshot_id)
            self.stats.deleted.add()
            self._succeeded("delete", began)

    def _doom(self, snapshot_ids: list[int]) -> None:
        with self._lock:
            self._doomed += snapshot_ids

    def _delete_doomed(self) -> None:
        began = self._begin("delete")
        with self._lock:
            snapshot_id = self._doomed[0]
        try:
            self._storage.delete_snapshot(snapshot_id)
        except FAILURES as e:
            self._failed("delete", None, e)
            self._doomed_retry_ns = self._clock.monotonic_ns() + RETRY_NS
            return
        with self._lock:
            self._doomed.remove(snapshot_id)
            self.stats.deleted.add()
            self._succeeded("delete", began)

    def _store_properties(self) -> None:
        with self._lock:
            try:
                self._storage.update_properties(self._unstored)
            except FAILURES as e:
                self._note_failure("delete", e)
                self._unstored_retry_ns = self._clock.monotonic_ns() + RETRY_NS
                return
            self._unstored.clear()

    # --- numbers -------------------------------------------------------------------------------

    def _begin(self, kind: str) -> int:
        self.stats.counts[kind, "all"].add()
        return time.monotonic_ns()

    def _succeeded(self, kind: str, began_ns: int) -> None:
        self.stats.counts[kind, "succeed"].add()
        self.stats.latency_ms[kind].observe((time.monotonic_ns() - began_ns) / 1e6)

    def _failed(self, kind: str, bucket: Bucket | None, failure: BaseException) -> None:
        self._note_failure(kind, failure)
        if bucket is not None:
            pause = min(RETRY_NS << min(bucket.failures, 30), MAX_RETRY_NS)
            bucket.failures += 1
            bucket.retry_at_ns = self._clock.monotonic_ns() + pause

    def _note_failure(self, kind: str, failure: BaseException) -> None:
        self.stats.counts[kind, "failed"].add()
        self.last_failure = failure

    @property
    def buckets(self) -> list[Bucket]:
        """Sealed buckets, by ledger. Borrowed: for looking."""
        return list(self._buckets)

    def samples(self) -> list[Sample]:
        """The values of seglog.delayed.metrics.METRICS, without a lock."""
        stats = self.stats
        in_memory = min(len(self._runs), self._delayed)
        values: list[Sample] = [
            Sample("pulsar_delayed_message_index_bucket_total", (), len(self._buckets) + 1),
            Sample("pulsar_delayed_message_index_loaded", (), max(in_memory - self.mutable_size, 0)),
            Sample("pulsar_delayed_message_index_bucket_snapshot_size_bytes", (), self._snapshot_bytes),
            Sample("pulsar_delayed_delivery_tracker_memory_usage", (), self.memory_usage),
            Sample("pulsar_delayed_delivery_tracker_bucket_merge_count", (), stats.merged.value),
            Sample("pulsar_delayed_delivery_tracker_bucket_delete_count", (), stats.deleted.value),
            Sample("pulsar_subscription_delayed", (), self._delayed),
            Sample("pulsar_subscription_delayed_in_memory", (), in_memory),
            Sample("pulsar_subscription_delayed_in_last_mutable_queue", (), self.mutable_size),
        ]
        for kind in OPERATIONS:
            of_kind = (("type", kind),)
            values += (
                Sample(
                    "pulsar_delayed_message_index_bucket_op_count",
                    (("state", state), *of_kind),
                    stats.counts[kind, state].value,
                )
                for state in STATES
            )
            values.append(
                Sample(
                    "pulsar_delayed_message_index_bucket_op_failed_count", of_kind, stats.counts[kind, "failed"].value
                )
            )
            values.append(
                Sample("pulsar_delayed_message_index_bucket_op_latency_ms", of_kind, stats.latency_ms[kind])
            )
        return values
