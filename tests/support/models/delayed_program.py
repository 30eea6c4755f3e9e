"""Random lives of a bucket tracker beside a set-and-sort model: never lost, never twice, never early."""
import random
from itertools import pairwise

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker

START_MS = 1_700_000_000_000
FOREVER = 2**62


class Crash(BaseException):
    """The machine stopped. Nothing in the engine may catch this."""


class UnreliableStorage(InMemoryBucketSnapshotStorage):
    """Fails or crashes now and then, before it did its work or after."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance
        self.fail_once_in = 0  # 0: never
        self.crash_in = 0  # calls from now; 0: never

    def _call(self, method, *args, changes=False):
        before, after = (self._trouble(), changes and self._trouble()) if self.fail_once_in or self.crash_in else (0, 0)
        if before:
            raise before
        result = method(*args)
        if after:
            raise after
        return result

    def _trouble(self):
        if self.crash_in:
            self.crash_in -= 1
            if self.crash_in == 0:
                return Crash()
        if self.fail_once_in and self.chance.randrange(self.fail_once_in) == 0:
            return OSError("the disk refused")
        return None

    def create_snapshot(self, metadata, segments):
        return self._call(super().create_snapshot, metadata, segments, changes=True)

    def get_segments(self, snapshot_id, start, stop):
        return self._call(super().get_segments, snapshot_id, start, stop)

    def delete_snapshot(self, snapshot_id):
        return self._call(super().delete_snapshot, snapshot_id, changes=True)

    def update_properties(self, changes):
        return self._call(super().update_properties, changes, changes=True)


class Program:
    """A topic, its reader and its tracker. The log holds every message; `acked` are those that were delivered."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.clock = ManualClock(START_MS)
        self.storage = UnreliableStorage(self.chance)
        self.strict = self.chance.random() < 0.6
        self.log = {}  # position -> deliver_at as published
        self.at = {}  # position -> deliver_at now
        self.acked = set()
        self.cancelled = set()
        self.ghosts = set()  # delivered, and known to the tracker again: the cursor filters them out
        self.ledger, self.entry = 10, 0
        self.first_ledger = 0
        self.doubtful = None
        self.in_doubt = set()  # decisions whose answer was lost, at any time
        self.tracker = self.open()

    def open(self):
        chance = self.chance
        config = DelayedDeliveryConfig.of({
            "delayedDeliveryLedgerStepPerBucket": chance.choice([0, 0, 2, 5]),
            "delayedDeliveryMinIndexCountPerBucket": chance.choice([5, 20, 60]),
            "delayedDeliveryTimeStepPerBucketSnapshotSeconds": chance.choice([1, 10, 60]),
            "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": chance.choice([-1, 1, 7, 30]),
            "delayedDeliveryMaxNumBuckets": chance.choice([-1, 1, 2, 3, 6]),
            "delayedDeliveryTickTimeMillis": 1000,
            "isDelayedDeliveryDeliverAtTimeStrict": self.strict,
        })
        return BucketDelayedDeliveryTracker(self.storage, config, clock=self.clock, worker=InlineWorker())

    @property
    def cutoff(self):
        return self.clock.now_ms() + (0 if self.strict else 1000)

    @property
    def pending(self):
        """What the tracker owes, cancelled and delivered messages apart."""
        return {p for p in self.log if p not in self.acked and p not in self.cancelled}

    # --- what happens ----------------------------------------------------------------------------

    def run(self, steps):
        acts = [self.publish] * 6 + [self.poll] * 5 + [self.step_clock] * 3 + [
            self.cancel, self.reschedule, self.deliver_now, self.trim, self.restart, self.ask, self.look,
            self._read_again,
        ]
        for _ in range(steps):
            self.storage.fail_once_in = self.chance.choice([0, 0, 0, 6])
            self.storage.crash_in = self.chance.choice([0, 0, 0, 0, 1, 2, 3, 5])
            try:
                self.chance.choice(acts)()
            except Crash:
                self.recover()
            except OSError:
                self.settle_doubt()
            self.storage.crash_in = 0
            self.check()
        self.storage.fail_once_in = 0
        self.drain()

    def publish(self):
        for _ in range(self.chance.randrange(1, 30)):
            delay = self.chance.choice([-5, 0, 1, 500, self.chance.randrange(90_000), 30_000])
            position = (self.ledger, self.entry)
            self.log[position] = self.at[position] = self.clock.now_ms() + delay
            self.entry += self.chance.choice([1, 1, 1, 5000])
            if self.chance.random() < 0.07:
                self.ledger, self.entry = self.ledger + self.chance.choice([1, 1, 3]), 0
            self.read(position)

    def read(self, position):
        """The reader comes to a message: it skips what the tracker holds."""
        if position in self.acked or self.tracker.contains_message(*position):
            return
        held_back = self.tracker.add_message(*position, self.log[position])
        if position in self.cancelled:
            assert held_back, "a cancelled message is not for dispatching"
        elif held_back:
            assert self.at[position] > self.cutoff
        else:
            assert self.at[position] <= self.cutoff, "dispatched early"
            self.deliver(position)

    def _read_again(self):
        """A consumer came back and the cursor was rewound; a reader that does not ask what is known."""
        for position in self.chance.sample(sorted(self.pending), min(5, len(self.pending))):
            if not self.tracker.add_message(*position, self.log[position]):
                assert self.at[position] <= self.cutoff, "dispatched early"
                self.deliver(position)

    def deliver(self, position):
        if position in self.ghosts:
            self.ghosts.discard(position)
            return
        assert position not in self.acked, f"delivered twice: {position}"
        assert position not in self.cancelled, f"delivered although cancelled: {position}"
        self.acked.add(position)

    def poll(self):
        limit = self.chance.choice([1, 3, 20, 1000])
        troubled = self.storage.fail_once_in or any(b.retry.at_ns for b in self.tracker.buckets)
        due = sorted((self.at[p], *p) for p in self.pending | self.ghosts if self.at[p] <= self.cutoff)
        got = self.tracker.get_scheduled_messages(limit)
        for position in got:
            assert self.at[position] <= self.cutoff, "delivered early"
            self.deliver(position)
        if not troubled:
            assert got == [row[1:] for row in due[:limit]]

    def step_clock(self):
        self.clock.advance(self.chance.choice([1, 100, 2000, 2000, 20_000, -1500, -10_000]))
        self.clock.advance_monotonic(self.chance.choice([0, 20_000]))

    def some_position(self):
        return self.chance.choice(sorted(self.log)) if self.log else (1, 1)

    def cancel(self):
        position = self.some_position()
        owed = position in self.pending | self.ghosts
        self.doubtful = position
        assert self.tracker.cancel(*position) == owed
        self.doubtful = None
        if owed:
            self.cancelled.add(position)
            self.ghosts.discard(position)

    def reschedule(self):
        position = self.some_position()
        to = self.clock.now_ms() + self.chance.randrange(-1000, 60_000)
        owed = position in self.pending | self.ghosts
        self.doubtful = position
        assert self.tracker.reschedule(*position, to) == owed
        self.doubtful = None
        if owed:
            self.at[position] = to

    def deliver_now(self):
        position = self.some_position()
        owed = position in self.pending | self.ghosts
        self.doubtful = position
        assert self.tracker.deliver_now(*position) == owed
        self.doubtful = None
        if owed:
            self.at[position] = self.clock.now_ms()

    def trim(self):
        first = self.chance.randrange(self.first_ledger, self.ledger + 1)
        self.forget_below(first)
        self.tracker.trim(first)

    def forget_below(self, first):
        self.first_ledger = max(first, self.first_ledger)
        for held in (self.log, self.at):
            for position in [p for p in held if p[0] < first]:
                del held[position]
        self.ghosts = {p for p in self.ghosts if p[0] >= first}

    def restart(self):
        self.tracker.close()
        self.recover()

    def recover(self):
        """A new process: what the tracker holds is what storage held, and the reader begins at the first ledger."""
        self.storage.crash_in = 0
        fails, self.storage.fail_once_in = self.storage.fail_once_in, 0
        self.tracker = self.open()
        self.tracker.trim(self.first_ledger)
        self.settle_doubt()
        for position in sorted(self.log):
            if position in self.acked and self.tracker.contains_message(*position):
                self.ghosts.add(position)
        self.ghosts = {p for p in self.ghosts if self.tracker.contains_message(*p)}
        for position in sorted(self.log):
            self.read(position)
        self.storage.fail_once_in = fails

    def settle_doubt(self):
        """An answer was lost with a crash or a failure: the tracker knows what was decided."""
        self.in_doubt.add(self.doubtful)
        self.doubtful = None
        for position in self.in_doubt & self.log.keys():
            if self.tracker._amendments.is_cancelled(*position):
                self.cancelled.add(position)
                self.ghosts.discard(position)
            self.at[position] = self.tracker._amendments.moved.get(position, self.log[position])

    def ask(self):
        for _ in range(10):
            position = self.some_position()
            assert self.tracker.contains_message(*position) == (position in self.pending | self.ghosts)

    def look(self):
        first = self.clock.now_ms() + self.chance.randrange(-5000, 60_000)
        end = first + self.chance.randrange(60_000)
        owed = sorted((self.at[p], *p) for p in self.pending | self.ghosts if first <= self.at[p] < end)
        assert [tuple(m) for m in self.tracker.list(first, end)] == owed
        assert self.tracker.histogram([first, end]) == [len(owed)]

    # --- what must hold --------------------------------------------------------------------------

    def check(self):
        owed = self.pending | self.ghosts
        assert self.tracker.number_of_delayed_messages == len(owed)
        next_at = self.tracker.next_delivery_time()
        if owed:
            assert next_at is not None
            assert next_at <= max(min(self.at[p] for p in owed), 0) or any(b.retry.at_ns for b in self.tracker.buckets)
        else:
            assert next_at is None
        ranges = [(b.start, b.end) for b in self.tracker.buckets]
        assert ranges == sorted(ranges)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))

    def drain(self):
        self.clock.advance(10**9)
        while self.tracker.get_scheduled_messages(0) == [] and (got := self.tracker.get_scheduled_messages(7)):
            for position in got:
                self.deliver(position)
        assert not self.pending, f"lost: {sorted(self.pending)[:5]}"
        assert not self.ghosts
        assert self.tracker.number_of_delayed_messages == 0
        self.clock.advance_monotonic(10**6)
        self.tracker.get_scheduled_messages(1)
        # What a failure left without a name goes when the storage is opened again.
        self.tracker.close()
        self.tracker = self.open()
        assert self.storage.snapshot_ids() == []
        assert not [name for name in self.storage.properties() if name.startswith("#pulsar.internal")]
