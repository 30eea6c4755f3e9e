"""The runs of real trackers, replayed: reference semantics at every step, and Pulsar's bytes until the first merge.

Where Pulsar 4.2.4 is wrong (MANIFEST.md in the archive) the expectation is that of the reference semantics, and a test
of its own names the difference.
"""
import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.snapshot import decode_rows
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from support.delayed import WORKLOADS, operations, stream, workload


class RecordingStorage(InMemoryBucketSnapshotStorage):
    """Remembers what was written under which property, and in which order."""

    def __init__(self):
        super().__init__(first_id=1000)
        self.written = []
        self.listed_as = {}  # id -> property

    def update_properties(self, changes):
        self.listed_as |= {int(value): name for name, value in changes.items() if value is not None}
        super().update_properties(changes)

    def create_snapshot(self, metadata, segments):
        segments = list(segments)
        metadata = list(metadata)
        self.written.append([*metadata, *segments])
        return super().create_snapshot(metadata, segments)


def config_of(op, **others):
    return DelayedDeliveryConfig.of({
        "delayedDeliveryLedgerStepPerBucket": 0,
        "delayedDeliveryMinIndexCountPerBucket": op["min_index_count_per_bucket"],
        "delayedDeliveryTimeStepPerBucketSnapshotSeconds": op["time_step_per_segment_ms"] // 1000,
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": op["max_indexes_per_segment"],
        "delayedDeliveryMaxNumBuckets": op["max_num_buckets"],
        "delayedDeliveryTickTimeMillis": op["tick_ms"],
        "isDelayedDeliveryDeliverAtTimeStrict": op["strict"],
    } | others)


class Replay:
    """A run, step by step, beside the set-and-sort model. A position that is known is not read again, as a dispatcher
    does it; what is not, and is due, is dispatched at once."""

    def __init__(self, name, kind="bucket", **others):
        self.steps = operations(name)
        self.clock = ManualClock(self.steps[0]["now"])
        self.storage = RecordingStorage()
        self.config = config_of(self.steps[0], **others)
        self.kind = kind
        self.pending = {}
        self.dispatched = []
        self.at_merge = None  # how many snapshots were written when the first merge came
        self.tracker = self.open()

    def open(self):
        if self.kind == "memory":
            return InMemoryDelayedDeliveryTracker(self.config, clock=self.clock)
        return BucketDelayedDeliveryTracker(self.storage, self.config, clock=self.clock, worker=InlineWorker())

    @property
    def cutoff(self):
        return self.clock.now_ms() + (0 if self.config.strict else self.config.tick_time_ms)

    def run(self):
        for step in self.steps[1:]:
            getattr(self, f"on_{step['op']}", lambda step: None)(step)
            assert self.tracker.number_of_delayed_messages == len(self.pending), step
        return self

    def on_clock(self, step):
        self.clock.set(step["now"])

    def on_add(self, step):
        ledger, entry, at = step["m"]
        delayed = at > self.cutoff and at >= 0
        assert step["ret"] == delayed, "the reference says what Pulsar said"
        known = (ledger, entry) in self.pending
        assert self.tracker.contains_message(ledger, entry) == known
        if known and not delayed:
            return  # the run's author only asked; nobody dispatched it, so the tracker still owes it
        assert self.tracker.add_message(ledger, entry, at) == delayed, step
        if delayed:
            self.pending.setdefault((ledger, entry), at)
        if self.kind == "bucket" and self.at_merge is None and self.tracker.stats.merged.value:
            self.at_merge = len(self.storage.written) - 1

    def on_replay(self, step):
        ledger, entry, at = step["m"]
        delayed = at > self.cutoff
        assert self.tracker.add_message(ledger, entry, at) == delayed, step
        if delayed:
            self.pending.setdefault((ledger, entry), at)
        else:
            self.pending.pop((ledger, entry), None)
            self.dispatched.append((ledger, entry))

    def on_sched(self, step):
        due = sorted((at, *position) for position, at in self.pending.items() if at <= self.cutoff)
        assert self.tracker.has_message_available() == bool(due), step
        got = self.tracker.get_scheduled_messages(step["n"])
        assert got == [row[1:] for row in due[: step["n"]]], step
        for position in got:
            del self.pending[position]
        self.dispatched += got

    def on_contains(self, step):
        assert self.tracker.contains_message(*step["m"]) == (tuple(step["m"]) in self.pending)

    def on_mark_delete(self, step):
        self.tracker.trim(step["m"][0])
        self.pending = {position: at for position, at in self.pending.items() if position[0] >= step["m"][0]}

    def on_clear(self, step):
        self.tracker.clear()
        self.pending.clear()

    def on_restart(self, step):
        self.tracker.close()
        self.tracker = self.open()
        # What was in no snapshot is in the log only, until `replay` reads it again.
        self.pending = {p: at for p, at in self.pending.items() if self.tracker.contains_message(*p)}



@pytest.mark.parametrize("name", WORKLOADS)
def test_a_run_of_pulsar_gives_the_answers_of_the_reference(name):
    replay = Replay(name).run()
    assert not replay.pending
    assert replay.tracker.next_delivery_time() is None
    assert len(replay.dispatched) == len(set(replay.dispatched))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_tracker_in_memory_gives_the_same_answers(name):
    replay = Replay(name, kind="memory").run()
    assert not replay.pending
    assert len(replay.dispatched) == len(set(replay.dispatched))


def golden_snapshots(name):
    return [stream(path) for path in sorted(workload(name).glob("bucket_*.bin"))]


@pytest.mark.parametrize("name", WORKLOADS)
def test_snapshots_are_pulsars_until_the_first_merge(name):
    replay = Replay(name).run()
    real = golden_snapshots(name)
    same = len(real) if replay.at_merge is None else replay.at_merge
    assert same >= 3 or name == "unlimited-seg"
    for number in range(same):
        assert replay.storage.written[number] == real[number], f"snapshot {number} of {same}"


@pytest.mark.parametrize("name", ["clear", "merge", "restart-merge", "trim"])
def test_the_first_merge_takes_the_buckets_that_pulsar_took(name):
    replay = Replay(name).run()
    first = 1000 + replay.at_merge
    (real,) = (step["key"] for step in replay.steps if step["op"] == "snapshot_create" and step["id"] == first)
    assert replay.storage.listed_as[first] == real
    # Pulsar left out the loaded segments of its sources (#26251); ours holds what Pulsar's does, and those.
    ours, pulsars = (
        {row for entry in entries[1:] for row in decode_rows(entry)}
        for entries in (replay.storage.written[replay.at_merge], golden_snapshots(name)[replay.at_merge])
    )
    assert ours > pulsars
