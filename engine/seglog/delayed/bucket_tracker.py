"""The tracker that keeps delayed messages in buckets with snapshots (PIP-195).

Memory holds the last mutable bucket, those segments of sealed buckets that are delivered next, and a bitmap of pending
messages. Everything else is in storage, and all of it is also in the log: if storage loses messages, the reader adds
them again when it reads the log after a restart.

Order: a segment that is not loaded is in the queue with the time of its first message, and nothing later is delivered
before it is loaded. So it never matters which message was the last of its segment (Pulsar relied on that, and lost the
rest of a bucket when that message was trimmed).
"""
from typing import Any

from seglog._kernels.pending_set import PendingSet
from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.counters import Sample
from seglog.delayed.bucket import Bucket
from seglog.delayed.bucket_work import BucketWork
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.metrics import BucketStats
from seglog.delayed.recovery import BucketRecovery
from seglog.delayed.row_tracker import FIRST_BUCKET, LATE, PUSHED, RowTracker, Samples, check_int64
from seglog.delayed.sealed import SealedBuckets
from seglog.delayed.storage import BucketSnapshotStorage
from seglog.delayed.tracker import Scheduled
from seglog.delayed.worker import BackgroundWorker, Worker

# At most this many buckets wait to be stored: beyond that, the last mutable one grows, and adding never waits.
MAX_SEALING = 4
# A bucket sealed by delayedDeliveryLedgerStepPerBucket has at least this many messages. Ledgers of 20 messages would
# make a bucket of every hundred, and merging those cost 15 us a message.
STEP_MIN_MESSAGES = 10_000


class BucketDelayedDeliveryTracker(RowTracker):
    """Delayed messages in buckets over a BucketSnapshotStorage, which it owns from now on.

    Raises what the storage raises if it cannot be read after some attempts.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        worker: Worker | None = None,
    ) -> None:
        # `_pushed`: the last mutable bucket's messages; `_unsealed`: those in no bucket, or in one being stored.
        super().__init__(config, clock, is_sealed=True)
        # The ledgers of the last mutable bucket, both inclusive; -1 if it has none.
        self._mutable_start = self._mutable_end = self._intake.ledger_id = -1
        # All messages due up to here were delivered, ms since 1970.
        self._delivered_to = self._cutoff()
        # (time, n): of the messages due at this time, n in memory come before all in segments that are not loaded.
        self._known_first = -1, 0
        # The time of the last poll, until its remaining messages are handed over; then -1.
        self._polled_to = -1
        self._storage = storage
        self._sealed = SealedBuckets(
            storage, self._runs, self._promises, self._amendments, self._clock, FIRST_BUCKET, self._forgotten
        )
        self._stored = self._sealed
        self._background = BucketWork(
            self._sealed,
            self._unsealed,
            self._lock,
            lambda: PendingSet(self._new_bitmap),
            lambda: self._config,
            self._cutoff,
            lambda: self._delivered_to,
        )
        storage.initialize()
        self._intake.delayed = BucketRecovery(self._sealed, self._cutoff(), self._new_bitmap).run()
        for (ledger_id, entry_id), deliver_at in list(self._amendments.moved.items()):
            if self._runs.push_new(deliver_at, ledger_id, entry_id, self._unsealed, late=True):
                self._intake.delayed += 1
        self._worker: Worker = worker or BackgroundWorker()
        self._worker.start(self._background.run)
        self._worker.wake()

    def reconfigure(self, config: DelayedDeliveryConfig) -> None:
        super().reconfigure(config)
        self._worker.wake()

    # --- adding --------------------------------------------------------------------------------

    def _track(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if ledger_id < self._mutable_end or ledger_id <= self._sealed.end:
            # From a ledger before the last one: the message stays in memory and gets into no snapshot, as in Pulsar.
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
            self._mutable_end = self._intake.ledger_id = ledger_id
        return self._runs.push_new(deliver_at, ledger_id, entry_id, self._pushed)

    def _takes_in_bulk(self, ledger_id: int) -> bool:
        return ledger_id == self._mutable_end and self._unsealed.bitmap(ledger_id) is None

    @property
    def mutable_size(self) -> int:
        """Return the number of messages in the last mutable bucket."""
        return self._pushed.count

    def _seal_if_full(self, ledger_id: int) -> None:
        self._hand_over_due()
        size, config = self.mutable_size, self._config
        is_worth_it = size >= min(config.min_index_count, STEP_MIN_MESSAGES)
        by_step = config.ledger_step and is_worth_it and ledger_id - self._mutable_start >= config.ledger_step
        if size == 0 or not (size >= config.min_index_count or by_step) or self._sealed.sealing >= MAX_SEALING:
            return
        shielded(self._seal)
        self._worker.wake()

    def _seal(self) -> None:
        """Seal the last mutable bucket, as a whole: rows that are not pending would be dropped."""
        bucket = self._sealed.new_bucket(self._mutable_start, self._mutable_end)
        self._promises[bucket.number] = self._unsealed
        self._runs.hand_over(PUSHED, bucket.number)
        for ledger in self._pushed.ledger_ids():
            self._pushed.hand_over(self._unsealed, ledger)
        self._sealed.add(bucket)
        self._mutable_start = self._mutable_end = self._intake.ledger_id = -1

    # --- delivering ----------------------------------------------------------------------------

    def get_scheduled_messages(self, max_messages: int) -> Scheduled:
        check_int64("a number of messages", max_messages)
        with self._lock:
            popped = super().get_scheduled_messages(max_messages)
            if self._background.due():
                self._worker.wake()
            return popped

    def _pop(self, cutoff: int, limit: int) -> Scheduled:
        popped: Scheduled = []
        while True:
            bucket = self._sealed.first_unloaded()
            bound = cutoff if bucket is None or bucket.next_at is None else min(cutoff, bucket.next_at - 1)
            popped += self._runs.pop(bound, limit - len(popped), self._promises, self._amendments.moved)
            if len(popped) >= limit or bucket is None or bucket.next_at is None or bound == cutoff:
                break
            # The messages due in one millisecond may fill many segments. Load only as many as were asked for: the
            # loaded messages of the first bucket that has some come before all that are not loaded.
            if self._known_first[0] == bucket.next_at and self._known_first[1]:
                at, known = self._known_first
                wanted = min(limit - len(popped), known)
                some = self._runs.pop(at, wanted, self._promises, self._amendments.moved)
                self._known_first = at, known - wanted if len(some) == wanted else 0
                popped += some
            else:
                self._known_first = bucket.next_at, self._sealed.load_next(bucket)
        left_at = self._runs.next_at() if len(popped) == limit else -1
        self._delivered_to = max(self._delivered_to, bound if left_at < 0 else min(bound, left_at - 1))
        self._polled_to = cutoff
        return popped

    def _hand_over_due(self) -> None:
        """Hand over messages that were due at the last poll but not asked for: they get into no snapshot. In Pulsar a
        poll does this (moveScheduledMessageToSharedQueue); here a poll costs only what it returns."""
        if self._polled_to >= 0:
            self._runs.hand_over_due(PUSHED, LATE, self._polled_to, self._promises)
            self._polled_to = -1

    def has_message_available(self) -> bool:
        with self._lock:
            # A segment that begins with trimmed or cancelled messages seems due before one of its messages is.
            while not super().has_message_available():
                bucket = self._sealed.first_unloaded()
                if bucket is None or bucket.next_at is None or bucket.next_at > self._cutoff():
                    return False
                self._sealed.load_next(bucket)
            return True

    def next_delivery_time(self) -> int | None:
        with self._lock:
            next_at = super().next_delivery_time()
            bucket = self._sealed.first_unloaded()
            if bucket is not None and bucket.next_at is not None:
                return bucket.next_at if next_at is None else min(next_at, bucket.next_at)
            if next_at is None and self._intake.delayed:
                # The rest waits for a segment that could not be loaded.
                return self._sealed.next_unloaded_at()
            return next_at

    # --- what is pending -----------------------------------------------------------------------

    def _is_pending(self, ledger_id: int, entry_id: int) -> bool:
        return (
            self._pushed.contains(ledger_id, entry_id)
            or self._unsealed.contains(ledger_id, entry_id)
            or self._sealed.contains(ledger_id, entry_id)
            or self._relocated.contains(ledger_id, entry_id)
        )

    def _pending_in(self, ledger_id: int) -> Any:
        check_int64("a ledger's id", ledger_id)
        sets = (self._pushed, self._unsealed, self._sealed.promised(ledger_id), self._relocated)
        bitmaps = [found for promised in sets if promised and (found := promised.bitmap(ledger_id))]
        if len(bitmaps) > 1:
            return self._new_bitmap.union(*bitmaps)
        return bitmaps[0] if bitmaps else None

    def _take(self, ledger_id: int, entry_id: int) -> bool:
        self._known_first = -1, 0       # it may be one of them
        return (
            self._pushed.remove(ledger_id, entry_id)
            or self._unsealed.remove(ledger_id, entry_id)
            or self._sealed.remove(ledger_id, entry_id)
            or self._relocated.remove(ledger_id, entry_id)
        )

    # --- forgetting ------------------------------------------------------------------------------

    def _clear_stored(self) -> None:
        self._sealed.clear()
        self._mutable_start = self._mutable_end = self._intake.ledger_id = -1

    def _trim(self, ledger_id: int, entry_id: int) -> int:
        self._known_first = -1, 0
        dropped = super()._trim(ledger_id, entry_id)
        self._worker.wake()
        return dropped

    def clear(self) -> None:
        with self._lock:
            super().clear()
            self._worker.wake()

    def close(self) -> None:
        if not self._closed:
            self._background.close()
            self._worker.close()
            self._storage.close()
            super().close()

    def wait_idle(self) -> None:
        """Return when background work that can be done now is done."""
        self._worker.wait_idle()

    # --- numbers -------------------------------------------------------------------------------

    @property
    def stats(self) -> BucketStats:
        """Counters of what was done with buckets."""
        return self._sealed.stats

    @property
    def last_failure(self) -> BaseException | None:
        """The error of the last operation on a bucket that failed."""
        return self.stats.last_failure

    @property
    def buckets(self) -> list[Bucket]:
        """Return sealed buckets, by ledger. Borrowed: do not change it."""
        return list(self._sealed)

    def samples(self) -> Samples:
        index = "pulsar_delayed_message_index"
        found = [
            *super().samples(),
            Sample(f"{index}_bucket_total", (), len(self._sealed) + 1),
            Sample("pulsar_delayed_delivery_tracker_bucket_count", (), len(self._sealed) + 1),
            Sample(f"{index}_loaded", (), max(self._in_memory - self.mutable_size, 0)),
            Sample(f"{index}_bucket_snapshot_size_bytes", (), self._sealed.snapshot_bytes),
            *self.stats.samples(),
        ]
        if not self._config.shared_index:
            found.append(Sample("pulsar_subscription_delayed_in_last_mutable_queue", (), self.mutable_size))
        return found
