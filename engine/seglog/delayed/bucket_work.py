"""Background work on buckets: sealing, merging, deleting, loading ahead.

The work is derived from the state: whatever differs from the desired state is done next. Failed work still differs, so
it is retried, after a pause. Storage is changed without the tracker's lock; buckets that were cleared meanwhile are
left alone.
"""
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from seglog._kernels.due_rows import DueRows
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.position_union import PositionUnion
from seglog.delayed.bucket import Bucket, Retry
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.merge import merged_rows, select_for_merge
from seglog.delayed.sealed import SealedBuckets
from seglog.delayed.snapshot import SnapshotEncoder, decode_rows, encode_snapshot
from seglog.delayed.storage import DAMAGE, FAILURES

# Segments due within this time are loaded in the background, as long as no more rows than this are in memory.
PREFETCH_MS, PREFETCH_ROWS = 2_000, 200_000
# How many neighbours are merged at once, at most: MAX_MERGE_NUM of Pulsar's tracker; 2 in the proposal.
MERGE_FAN_IN = 4
# Background work keeps the interpreter for about this long between two pauses.
PAUSE_EVERY_NS = 500_000

Task = Callable[[], None]


class BucketWork:
    """The background work of one tracker. `run` and `due` may be called by any thread, `run` by one at a time.

    `unsealed` has the messages of buckets that are not stored; `config`, `cutoff` and `delivered_to` are called each
    time.
    """

    def __init__(
        self,
        sealed: SealedBuckets,
        unsealed: PendingSet,
        lock: AbstractContextManager[bool],
        new_pending: Callable[[], PendingSet],
        config: Callable[[], DelayedDeliveryConfig],
        cutoff: Callable[[], int],
        delivered_to: Callable[[], int],
    ) -> None:
        self._sealed = sealed
        self._storage = sealed.storage
        self._stats = sealed.stats
        self._unsealed = unsealed
        self._lock = lock
        self._new_pending = new_pending
        self._config = config
        self._cutoff = cutoff
        self._delivered_to = delivered_to
        self._closed = False
        self._doomed_retry, self._unstored_retry, self._merge_retry = Retry(), Retry(), Retry()
        self._paused_ns = 0

    def close(self) -> None:
        """Start no further task."""
        self._closed = True

    def due(self) -> bool:
        """Whether there is something to do. Called with the lock held."""
        return self._next_task() is not None

    def run(self) -> None:
        """Do all that is due."""
        while True:
            with self._lock:
                task = None if self._closed else self._next_task()
            if task is None:
                return
            task()

    def _next_task(self) -> Task | None:
        """Return the most urgent task, if any. Called with the lock held."""
        now_ns = self._sealed.clock.monotonic_ns()
        for bucket in self._sealed:
            if bucket.snapshot_id is None:
                if bucket.retry.at_ns <= now_ns:
                    return lambda bucket=bucket: self._seal(bucket)  # type: ignore[misc]
                break  # in order: once a later bucket is stored, an earlier one no longer can be
        for bucket in self._sealed:
            if bucket.snapshot_id is not None and bucket.remaining == 0 and bucket.retry.at_ns <= now_ns:
                return lambda bucket=bucket: self._delete(bucket)  # type: ignore[misc]
        if self._sealed.doomed and self._doomed_retry.at_ns <= now_ns:
            return self._delete_doomed
        if self._sealed.unstored and self._unstored_retry.at_ns <= now_ns:
            return self._store_properties
        most = self._config().max_buckets
        if most > 0 and self._merge_retry.at_ns <= now_ns and len(stored := self._sealed.stored) > most:
            group = select_for_merge(stored, MERGE_FAN_IN, self._delivered_to())
            if group:
                return lambda: self._merge(group)
        soon = self._sealed.first_unloaded() if len(self._sealed.runs) < PREFETCH_ROWS else None
        if soon is not None and soon.next_at is not None and soon.next_at <= self._cutoff() + PREFETCH_MS:
            return lambda: self._prefetch(soon)
        return None

    def _pause(self) -> None:
        """Let waiting threads have the interpreter."""
        now_ns = time.monotonic_ns()
        if now_ns - self._paused_ns > PAUSE_EVERY_NS:
            time.sleep(0)
            self._paused_ns = time.monotonic_ns()

    def _prefetch(self, bucket: Bucket) -> None:
        slot = bucket.loaded
        began = self._stats.begin("load")
        try:
            rows, stop = self._sealed.read_ahead(bucket, slot)
        except FAILURES as e:
            with self._lock:
                self._sealed.load_failed(bucket, e)
            return
        with self._lock:
            # A poll may have loaded it, or the bucket may be gone.
            is_wanted = self._sealed.promises.get(bucket.number) is bucket.pending and bucket.loaded == slot
            if not is_wanted or self._sealed.take_over(bucket, rows, stop):
                self._stats.succeeded("load", began)

    def _failed(self, work: str, failure: BaseException, retry: Retry, snapshot_id: int | None = None) -> None:
        """Try again later; a snapshot that was created is deleted. Called with the lock held."""
        self._stats.failed(work, failure)
        retry.put_off(self._sealed.clock.monotonic_ns())
        self._doom(snapshot_id)

    # --- sealing -----------------------------------------------------------------------------------

    def _seal(self, bucket: Bucket) -> None:
        began = self._stats.begin("create")
        with self._lock:
            generation = self._sealed.generation
            rows = self._sealed.runs.rows_of(bucket.number)
        config = self._config()
        snapshot_id = None
        try:
            rows.sort()
            encoded = encode_snapshot(
                rows,
                time_step_ms=config.time_step_ms,
                max_indexes=config.max_indexes_per_segment,
                pause=self._pause,
            )
            snapshot_id = self._storage.create_snapshot(encoded.metadata, encoded.segments)
            listed = self._sealed.publish({bucket.property_name: str(snapshot_id)}, generation)
            first_rows = decode_rows(encoded.segments[0]) if encoded.segments else DueRows()
            positions = PositionUnion()
            positions.add_rows(rows)
            stored = self._new_pending()
            stored.adopt_all(positions)
        except FAILURES as e:
            with self._lock:
                self._failed("create", e, bucket.retry, snapshot_id)
            return
        with self._lock:
            if not listed or generation != self._sealed.generation:
                self._doom(snapshot_id)
                return
            pending = self._new_pending()
            for ledger_id in stored.ledger_ids():
                self._unsealed.hand_over(pending, ledger_id, stored.bitmap(ledger_id))
            for position in self._sealed.amendments.moved:
                # It is due at another time, in a row that the bucket does not own.
                if pending.remove(*position):
                    self._unsealed.add(*position)
            bucket.snapshot_id = snapshot_id
            self._sealed.runs.drop_owner(bucket.number)
            bucket.segments = encoded.times
            bucket.loaded = min(1, len(bucket.segments))
            self._sealed.adopt(bucket, pending, encoded.size_bytes)
            self._sealed.runs.add_run(bucket.number, first_rows)
            self._stats.succeeded("create", began)

    # --- merging -----------------------------------------------------------------------------------

    def _merge(self, group: Sequence[Bucket]) -> None:
        """Merge neighbours into one bucket: store the new snapshot, list it in place of the old ones, delete those."""
        began = self._stats.begin("merge")
        with self._lock:
            generation = self._sealed.generation
            merged = self._sealed.new_bucket(group[0].start, group[-1].end)
        config = self._config()
        encoder = SnapshotEncoder(
            time_step_ms=config.time_step_ms, max_indexes=config.max_indexes_per_segment, pause=self._pause
        )
        merged.segments = encoder.times
        size_bytes = 0

        def counted(entries: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal size_bytes
            for entry in entries:
                size_bytes += len(entry)
                yield entry

        def metadata() -> Iterator[bytes]:
            yield from encoder.metadata.entries()       # called when all segments are encoded

        segments = encoder.segments(merged_rows(group, self._read_for_merge))
        snapshot_id = None
        try:
            snapshot_id = self._storage.create_snapshot(counted(metadata()), counted(segments))
            changes: dict[str, str | None] = {bucket.property_name: None for bucket in group}
            changes[merged.property_name] = str(snapshot_id)
            listed = self._sealed.publish(changes, generation)
        except FAILURES as e:
            with self._lock:
                self._failed("merge", e, self._merge_retry, snapshot_id)
            return
        with self._lock:
            if not listed or generation != self._sealed.generation:
                self._doom(snapshot_id)
                return
            pending = self._new_pending()
            for bucket in group:
                assert bucket.pending is not None
                for ledger_id in bucket.pending.ledger_ids():
                    bucket.pending.hand_over(pending, ledger_id)
                self._sealed.forget(bucket)
                self._doom(bucket.snapshot_id)
            merged.snapshot_id, merged.is_merged = snapshot_id, True
            self._sealed.adopt(merged, pending, size_bytes)
            self._sealed.add(merged)
            self._merge_retry.reset()
            self._stats.merged.add()
            self._stats.succeeded("merge", began)

    def _read_for_merge(self, bucket: Bucket, slot: int) -> tuple[DueRows, int]:
        try:
            rows, stop = self._sealed.read_ahead(bucket, slot)
        except DAMAGE as e:
            with self._lock:
                self._sealed.give_up(bucket, e)
            raise
        with self._lock:
            if bucket.pending is not None:
                bucket.pending.keep_pending(rows, self._sealed.amendments.moved)
        self._pause()
        return rows, stop

    # --- deleting ----------------------------------------------------------------------------------

    def _doom(self, snapshot_id: int | None) -> None:
        """Delete a snapshot later: when there is time, or when the next opening finds it as an orphan."""
        if snapshot_id is not None:
            self._sealed.doomed.append(snapshot_id)

    def _delete(self, bucket: Bucket) -> None:
        """Delete a bucket whose messages are all delivered: first its snapshot, then its pointer. After a crash the
        pointer may point to nothing; a snapshot without a pointer would be hard to find (#22802)."""
        began = self._stats.begin("delete")
        generation = self._sealed.generation
        assert bucket.snapshot_id is not None
        try:
            self._storage.delete_snapshot(bucket.snapshot_id)
            self._sealed.publish({bucket.property_name: None}, generation)
        except FAILURES as e:
            with self._lock:
                self._failed("delete", e, bucket.retry)
            return
        with self._lock:
            if bucket in self._sealed.buckets:
                self._sealed.forget(bucket)
            self._stats.deleted.add()
            self._stats.succeeded("delete", began)

    def _delete_doomed(self) -> None:
        began = self._stats.begin("delete")
        with self._lock:
            snapshot_id = self._sealed.doomed[0]
        try:
            self._storage.delete_snapshot(snapshot_id)
        except FAILURES as e:
            with self._lock:
                self._failed("delete", e, self._doomed_retry)
            return
        with self._lock:
            self._sealed.doomed.remove(snapshot_id)
            self._doomed_retry.reset()
            self._stats.deleted.add()
            self._stats.succeeded("delete", began)

    def _store_properties(self) -> None:
        with self._lock:
            try:
                self._storage.update_properties(self._sealed.unstored)
            except FAILURES as e:
                self._failed("delete", e, self._unstored_retry)
                return
            self._sealed.unstored.clear()
            self._unstored_retry.reset()
