"""Recovers the buckets that a storage lists."""
from collections.abc import Callable
from typing import Any, TypeVar

from seglog._kernels.pending_set import PendingSet
from seglog._kernels.position_union import PositionUnion
from seglog.delayed.amendments import ledger_id_of
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.sealed import SealedBuckets, holds_all
from seglog.delayed.snapshot import unite_metadata
from seglog.delayed.storage import FAILURES
from seglog.errors import CorruptDelayedIndexError, SnapshotMissingError

ATTEMPTS = 3

T = TypeVar("T")


class BucketRecovery:
    """Fills `sealed` from its storage. Raises what the storage raises if it cannot be read after some attempts.

    Reads metadata, and at most one segment of each bucket, the one that is partly due.

    Messages that are already due are left out: they may have been delivered before; if not, the reader finds them in
    the log and dispatches them. So nothing is delivered twice, unless the clock was set back meanwhile.
    """

    def __init__(self, sealed: SealedBuckets, cutoff: int, new_bitmap: Callable[[], Any]) -> None:
        self._sealed = sealed
        self._storage = sealed.storage
        self._cutoff = cutoff
        self._new_bitmap = new_bitmap

    def run(self) -> int:
        """Recover the buckets. Return how many messages are pending in them."""
        properties = self._attempt(self._storage.properties)
        self._sealed.amendments.read(properties)
        delayed = 0
        listed: list[tuple[int, int, str, int]] = []
        unreadable: dict[str, str | None] = {}
        for name, value in properties.items():
            if name.startswith(BUCKET_PROPERTY):
                bounds = name.removeprefix(BUCKET_PROPERTY).split("_")
                try:
                    start, end = map(ledger_id_of, bounds)
                    listed.append((start, end, name, ledger_id_of(value)))
                except ValueError:
                    unreadable[name] = None
        for start, end, name, snapshot_id in sorted(listed):
            try:
                if start > end or start <= self._sealed.end:
                    # Pulsar's own map dropped overlapped buckets silently; their messages are in the log.
                    raise CorruptDelayedIndexError(f"bucket {start} to {end} overlaps the one before it")
                delayed += self._recover(start, end, snapshot_id)
            except (CorruptDelayedIndexError, SnapshotMissingError) as e:
                self._sealed.stats.failed("load", e)
                unreadable[name] = None
        if unreadable:
            self._attempt(lambda: self._storage.update_properties(unreadable))
        known = {bucket.snapshot_id for bucket in self._sealed}
        self._sealed.doomed += [found for found in self._attempt(self._storage.snapshot_ids) if found not in known]
        return delayed

    def _recover(self, start: int, end: int, snapshot_id: int) -> int:
        metadata = self._attempt(lambda: self._storage.get_metadata(snapshot_id))
        size_bytes = self._attempt(lambda: self._storage.get_length(snapshot_id))
        bucket = self._sealed.new_bucket(start, end)
        bucket.snapshot_id = snapshot_id
        positions = PositionUnion()
        bucket.segments = unite_metadata(metadata, positions, self._cutoff)
        bucket.loaded = bucket.segments.passed(self._cutoff)
        pending = PendingSet(self._new_bitmap)
        pending.adopt_all(positions)
        amendments = self._sealed.amendments
        if amendments:
            for ledger_id in pending.ledger_ids():
                for entry_id in amendments.cancelled_among(ledger_id, pending.bitmap(ledger_id)):
                    pending.remove(ledger_id, entry_id)
            for position in amendments.moved:
                if start <= position[0] <= end:
                    pending.remove(*position)
        rows = None
        if bucket.next_at is not None and bucket.next_at <= self._cutoff:
            rows = self._attempt(lambda: self._sealed.read_rows(bucket, bucket.loaded))
            pending.remove_due(rows, self._cutoff)
            bucket.loaded += 1
            if bucket.next_at is None and not holds_all(rows, pending):
                raise CorruptDelayedIndexError(f"snapshot {snapshot_id} lacks messages that its metadata names")
        self._sealed.adopt(bucket, pending, size_bytes)
        if rows is not None:
            self._sealed.runs.add_run(bucket.number, rows)
        self._sealed.add(bucket)
        return pending.count

    def _attempt(self, operation: Callable[[], T]) -> T:
        for left in reversed(range(ATTEMPTS)):
            try:
                return operation()
            except (CorruptDelayedIndexError, SnapshotMissingError):
                raise
            except FAILURES as e:
                self._sealed.stats.failed("load", e)
                if left == 0:
                    raise
        raise AssertionError("unreachable")
