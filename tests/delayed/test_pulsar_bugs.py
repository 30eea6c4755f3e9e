"""Bugs of Pulsar's trackers that could occur here, one test each, named after where they were found."""
import threading
import time
from array import array
from itertools import pairwise

import pytest
from pyroaring import BitMap

from seglog._kernels.due_rows import DueRows
from seglog.clock import ManualClock
from seglog.delayed.bucket import BUCKET_PROPERTY, RETRY_NS
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.snapshot import decode_metadata, decode_rows, encode_snapshot
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import BackgroundWorker, InlineWorker

NOW = 1_700_000_000_000
FOREVER = NOW + 10**9


class FailingStorage(InMemoryBucketSnapshotStorage):
    """Refuses the methods named in `refuses`."""

    def __init__(self):
        super().__init__()
        self.refuses = set()
        self.calls = []

    def _check(self, method):
        self.calls.append(method)
        if method in self.refuses:
            raise OSError(f"{method} refused")

    def create_snapshot(self, metadata, segments):
        self._check("create")
        return super().create_snapshot(metadata, segments)

    def get_metadata(self, snapshot_id):
        self._check("metadata")
        return super().get_metadata(snapshot_id)

    def get_segments(self, snapshot_id, start, stop):
        self._check("segments")
        return super().get_segments(snapshot_id, start, stop)

    def delete_snapshot(self, snapshot_id):
        self._check("delete")
        super().delete_snapshot(snapshot_id)

    def update_properties(self, changes):
        self._check("properties")
        super().update_properties(changes)


class Topic:
    """A bucket tracker over a storage that can fail; buckets of one ledger each, segments of `most` messages."""

    def __init__(self, *, max_buckets=-1, most=3, count=1, storage=None, now=NOW, **others):
        self.clock = ManualClock(now)
        self.storage = storage or FailingStorage()
        self.config = DelayedDeliveryConfig(
            ledger_step=0, min_index_count=count, max_indexes_per_segment=most, max_buckets=max_buckets, **others
        )
        self.tracker = self.open()

    def open(self):
        return BucketDelayedDeliveryTracker(self.storage, self.config, clock=self.clock, worker=InlineWorker())

    def reopen(self):
        self.tracker = self.open()
        return self

    def fill(self, ledgers, entries=10, delay=1000):
        """`entries` messages in each ledger, a second apart."""
        for ledger in ledgers:
            for entry in range(entries):
                assert self.tracker.add_message(ledger, entry, NOW + delay + 1000 * entry)
        return self

    def drain(self):
        self.clock.set(FOREVER)
        got = []
        while batch := self.tracker.get_scheduled_messages(4):
            got += batch
        return got

    def listed(self):
        return {int(v) for k, v in self.storage.properties().items() if k.startswith(BUCKET_PROPERTY)}


def every(ledgers, entries=10):
    return {(ledger, entry) for ledger in ledgers for entry in range(entries)}


# --- merging -----------------------------------------------------------------------------------


def test_26251_a_merge_keeps_the_messages_of_loaded_segments():
    topic = Topic(max_buckets=2).fill(range(1, 6))
    assert topic.tracker.stats.merged.value
    topic.reopen().tracker.trim(0)
    got = topic.drain()
    assert every(range(1, 5)) <= set(got)
    assert len(got) == len(set(got))


def test_26251_a_merged_snapshot_holds_every_pending_message_of_its_sources():
    topic = Topic(max_buckets=-1, most=2).fill(range(1, 4))
    topic.clock.set(NOW + 3500)
    delivered = set(topic.tracker.get_scheduled_messages(100))
    assert len(delivered) == 9
    topic.tracker.reconfigure(DelayedDeliveryConfig(ledger_step=0, min_index_count=1, max_buckets=1))
    topic.tracker.get_scheduled_messages(1)
    (merged,) = topic.tracker.buckets
    described = decode_metadata(topic.storage.get_metadata(merged.snapshot_id))
    held = {(ledger, e) for s in described for ledger, bitmap in s.bitmaps.items() for e in BitMap.deserialize(bitmap)}
    assert held == every(range(1, 3)) - delivered


def test_26251_the_count_is_that_of_pending_messages_after_double_adds_and_pops():
    topic = Topic(max_buckets=1).fill(range(1, 5)).fill(range(1, 5))
    assert topic.tracker.number_of_delayed_messages == 40
    assert len(topic.drain()) == 40
    assert topic.tracker.number_of_delayed_messages == 0


@pytest.mark.parametrize("refused", ["create", "properties", "segments"])
def test_26239_26401_a_failed_merge_deletes_nothing_and_is_tried_again(refused):
    topic = Topic().fill(range(1, 5))
    before = topic.listed()
    topic.storage.refuses = {refused}
    topic.tracker.reconfigure(DelayedDeliveryConfig(ledger_step=0, min_index_count=1, max_buckets=1))
    topic.tracker.get_scheduled_messages(1)
    assert topic.listed() == before
    assert before <= set(topic.storage.snapshot_ids())
    assert topic.tracker.stats.counts["merge", "failed"].value == 1
    topic.storage.refuses = set()
    topic.clock.advance_monotonic(RETRY_NS // 10**6 + 1)
    topic.tracker.get_scheduled_messages(1)
    assert len(topic.tracker.buckets) == 1
    assert set(topic.drain()) == every(range(1, 5))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_26241_26242_small_limits_hold(most):
    topic = Topic(max_buckets=most, most=-1).fill(range(1, 12))
    assert len(topic.tracker.buckets) <= most
    assert set(topic.drain()) == every(range(1, 12))


def test_19615_a_merge_does_not_load_into_memory_what_it_reads():
    topic = Topic(max_buckets=1, most=2).fill(range(1, 9), delay=60_000)
    in_memory = {s.name: s.value for s in topic.tracker.samples()}["pulsar_subscription_delayed_in_memory"]
    assert in_memory <= 10 + 2 * 2


def test_19615_the_time_step_is_in_seconds_and_times_are_in_ms():
    topic = Topic(most=-1, time_step_s=5).fill([1, 2])
    (entry, _) = topic.storage.get_segments(*topic.listed(), 0, 2)
    assert [row[0] - NOW for row in decode_rows(entry)] == [1000, 2000, 3000, 4000, 5000]


# --- loading -----------------------------------------------------------------------------------


def test_live_trim_the_next_segment_is_loaded_although_the_last_message_of_one_was_trimmed():
    topic = Topic(count=20)
    for n in range(30):
        assert topic.tracker.add_message(1 + n % 3, n, NOW + 1000 + n) or n % 3
    for ledger in (1, 2, 3, 4):
        topic.tracker.add_message(ledger, 100, NOW + 5000)
    topic.tracker.trim(3)
    left = topic.tracker.number_of_delayed_messages
    assert len(topic.drain()) == left
    assert topic.tracker.number_of_delayed_messages == 0


def test_live_restart_a_message_dispatched_when_it_was_read_again_does_not_come_from_its_segment_too():
    topic = Topic().fill([1, 2])
    topic.clock.set(NOW + 2500)
    topic.reopen()
    _read_again = [(1, entry) for entry in range(10)]
    direct = [p for p in _read_again if not topic.tracker.add_message(*p, NOW + 1000 + 1000 * p[1])]
    assert direct == [(1, 0), (1, 1)]
    assert set(topic.drain()) == set(_read_again) - set(direct)


def test_live_restart_a_message_delivered_before_the_restart_does_not_come_again():
    topic = Topic().fill([1, 2])
    topic.clock.set(NOW + 2500)
    delivered = set(topic.tracker.get_scheduled_messages(100))
    got = topic.reopen().drain()
    assert not delivered & set(got)


def test_live_overlap_a_ledger_inside_a_recovered_bucket_does_not_widen_the_mutable_bucket():
    topic = Topic(count=15)
    for ledger in (10, 12, 20):
        topic.fill([ledger])
    topic.reopen()
    assert [(b.start, b.end) for b in topic.tracker.buckets] == [(10, 12)]
    topic.fill([5, 11, 13, 30])
    ranges = [(b.start, b.end) for b in topic.tracker.buckets]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert set(topic.drain()) == every([5, 10, 11, 12, 13, 30])


def test_live_overlap_of_stored_ranges_drops_the_later_bucket_and_says_so():
    topic = Topic().fill([1, 2, 3])
    wrong = topic.storage.create_snapshot([b""], [])
    topic.storage.update_properties({"#pulsar.internal.delayed.bucket_2_9": str(wrong)})
    topic.reopen()
    assert [(b.start, b.end) for b in topic.tracker.buckets] == [(1, 1), (2, 2)]
    assert "overlaps" in str(topic.tracker.last_failure)
    assert wrong not in topic.storage.snapshot_ids()


def test_19577_a_failed_load_is_counted_and_tried_again_and_others_go_on():
    topic = Topic().fill([1, 2, 3])
    topic.storage.refuses = {"segments"}
    topic.clock.set(NOW + 20_000)
    got = topic.tracker.get_scheduled_messages(1000)
    assert {p for p in got if p[0] == 3} == every([3])
    assert topic.tracker.stats.counts["load", "failed"].value >= 2
    assert topic.tracker.next_delivery_time() is not None
    topic.storage.refuses = set()
    topic.clock.advance_monotonic(60_000)
    assert set(got) | set(topic.drain()) == every([1, 2, 3])


def test_22735_recovery_tries_again_and_then_raises():
    topic = Topic().fill([1, 2])
    topic.storage.refuses = {"metadata"}
    with pytest.raises(OSError, match="metadata refused"):
        topic.open()
    assert topic.storage.calls.count("metadata") == 3


# --- sealing and deleting ------------------------------------------------------------------------


@pytest.mark.parametrize("refused", ["create", "properties"])
def test_a_failed_seal_keeps_its_messages_in_memory_and_is_tried_again(refused):
    topic = Topic()
    topic.storage.refuses = {refused}
    topic.fill([1, 2])
    assert topic.tracker.stats.counts["create", "failed"].value == 1
    assert topic.listed() == set()
    assert topic.tracker.contains_message(1, 5)
    topic.storage.refuses = set()
    topic.clock.advance_monotonic(1000)
    topic.tracker.get_scheduled_messages(1)
    assert len(topic.listed()) == 1
    assert topic.listed() == set(topic.storage.snapshot_ids())
    assert set(topic.drain()) == every([1, 2])


def test_seals_that_fail_for_long_do_not_stop_adding():
    topic = Topic()
    topic.storage.refuses = {"create"}
    topic.fill(range(1, 40))
    assert sum(b.snapshot_id is None for b in topic.tracker.buckets) == 4
    assert set(topic.drain()) == every(range(1, 40))


def test_22802_a_bucket_is_deleted_before_its_pointer():
    topic = Topic().fill([1, 2])
    topic.storage.refuses = {"properties"}
    topic.drain()
    assert topic.storage.snapshot_ids() == []
    assert len(topic.listed()) == 1
    topic.storage.refuses = set()
    topic.reopen()
    assert topic.listed() == set()
    assert "no snapshot" in str(topic.tracker.last_failure)


def test_25984_a_snapshot_without_a_pointer_goes_when_the_tracker_is_opened():
    topic = Topic().fill([1, 2])
    orphan = topic.storage.create_snapshot([b""], [])
    topic.reopen()
    assert orphan not in topic.storage.snapshot_ids()
    assert len(topic.storage.snapshot_ids()) == 1


def test_26260_buckets_of_trimmed_ledgers_are_deleted():
    topic = Topic().fill(range(1, 6))
    topic.tracker.trim(4)
    assert len(topic.storage.snapshot_ids()) == 1
    assert topic.tracker.number_of_delayed_messages == 20


def test_20075_8714_clearing_leaves_no_snapshot_and_no_pointer():
    topic = Topic().fill(range(1, 6))
    topic.tracker.cancel(1, 1)
    topic.tracker.clear()
    assert (topic.storage.snapshot_ids(), topic.storage.properties()) == ([], {})
    assert topic.tracker.next_delivery_time() is None
    assert set(topic.fill([1]).drain()) == every([1])


# --- answers ----------------------------------------------------------------------------------


def test_26230_what_is_known_and_due_is_delivered_by_the_reader_or_by_the_tracker_but_by_one():
    topic = Topic().fill([1, 2])
    topic.clock.set(NOW + 5500)
    assert not topic.tracker.add_message(1, 3, NOW + 4000)
    assert not topic.tracker.contains_message(1, 3)
    assert set(topic.drain()) == every([1, 2]) - {(1, 3)}


def test_26080_the_next_time_is_known_while_only_unloaded_segments_are_left():
    topic = Topic().fill([1, 2])
    topic.tracker.trim(1)
    topic.reopen()
    assert topic.tracker.next_delivery_time() == NOW + 1000
    topic.drain()
    assert topic.tracker.next_delivery_time() is None


def test_20823_an_add_that_fails_leaves_nothing_behind():
    topic = Topic()
    with pytest.raises(ValueError, match="entry ids"):
        topic.tracker.add_message(1, 2**32, NOW + 5000)
    assert topic.tracker.number_of_delayed_messages == 0
    assert topic.drain() == []


@pytest.mark.parametrize("kind", ["memory", "bucket"])
def test_16068_10169_14721_14787_strict_delivery_is_never_early_and_in_order(kind):
    clock = ManualClock(NOW)
    if kind == "memory":
        tracker = InMemoryDelayedDeliveryTracker(clock=clock)
    else:
        tracker = BucketDelayedDeliveryTracker(InMemoryBucketSnapshotStorage(), clock=clock, worker=InlineWorker())
    for entry in range(20):
        tracker.add_message(1, 19 - entry, NOW + 100 + entry // 4)
    for now in range(99, 106):
        clock.set(NOW + now)
        got = tracker.get_scheduled_messages(100)
        assert got == sorted(got)
        assert all(NOW + 100 + (19 - entry) // 4 == NOW + now for _, entry in got)


def test_25996_the_next_time_is_exact_in_strict_mode():
    topic = Topic()
    topic.tracker.add_message(1, 0, NOW + 1234)
    assert topic.tracker.next_delivery_time() == NOW + 1234
    topic.clock.set(NOW + 1233)
    assert not topic.tracker.has_message_available()
    topic.clock.set(NOW + 1234)
    assert topic.tracker.has_message_available()


# --- speed that is correctness ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "bucket"])
def test_24429_counting_does_not_look_at_the_messages(kind, monkeypatch):
    tracker = InMemoryDelayedDeliveryTracker() if kind == "memory" else Topic().tracker
    for entry in range(100):
        tracker.add_message(1, entry, 2**60)
    monkeypatch.setattr(tracker, "_runs", None)
    assert tracker.number_of_delayed_messages == 100


class HeldStorage(InMemoryBucketSnapshotStorage):
    """A snapshot is written once `go` is set."""

    def __init__(self):
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def create_snapshot(self, metadata, segments):
        self.begun.set()
        assert self.go.wait(20)
        return super().create_snapshot(metadata, segments)


def test_24603_25990_neither_adding_nor_counting_waits_for_a_seal():
    config = DelayedDeliveryConfig(ledger_step=0, min_index_count=5000, max_buckets=-1)
    storage = HeldStorage()
    tracker = BucketDelayedDeliveryTracker(storage, config, worker=BackgroundWorker())
    later = time.time_ns() // 10**6 + 3_600_000
    for entry in range(5000):
        tracker.add_message(1, entry, later + entry)
    tracker.add_message(2, 0, later)
    assert storage.begun.wait(20)
    tracker.add_message(2, 1, later)
    tracker.samples()
    assert tracker.number_of_delayed_messages == 5002
    storage.go.set()        # what waits for the seal above has no end
    tracker.wait_idle()
    assert [b.remaining for b in tracker.buckets] == [5000]
    tracker.close()


def test_23190_24014_threads_that_add_poll_and_look_lose_nothing():
    config = DelayedDeliveryConfig(ledger_step=0, min_index_count=500, max_indexes_per_segment=50, max_buckets=3)
    clock = ManualClock(NOW)
    tracker = BucketDelayedDeliveryTracker(InMemoryBucketSnapshotStorage(), config, clock=clock)
    got, stop = [], threading.Event()

    def poll():
        while not stop.is_set() or tracker.has_message_available():
            got.extend(tracker.get_scheduled_messages(100))

    def look():
        while not stop.is_set():
            tracker.samples()
            tracker.count(NOW, NOW + 500)

    threads = [threading.Thread(target=poll), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    for n in range(10_000):
        assert tracker.add_message(n // 400, n % 400, NOW + 10**6 + n * 7919 % 1000)
        if n == 5000:
            clock.set(NOW + 10**6 - 1)
    clock.set(FOREVER)
    stop.set()
    for thread in threads:
        thread.join()
    tracker.close()
    assert len(got) == 10_000
    assert len(set(got)) == 10_000


def test_26117_live_bitmaps_are_not_run_optimised():
    topic = Topic(most=-1, count=1000).fill([1], entries=1000).fill([2], entries=1)
    column = array("q", range(1000))
    topic.tracker.add_messages(array("q", [2] * 1000), column, array("q", [NOW + 5000] * 1000))
    assert topic.tracker._pending_in(2).get_statistics()["n_run_containers"] == 0
    (bucket,) = topic.tracker.buckets
    assert bucket.pending.bitmap(1).get_statistics()["n_run_containers"] == 0


def test_limit_of_entry_0_metadata_of_many_segments_is_split():
    rows = DueRows()
    for n in range(2000):
        rows.append(NOW + n * 1000, n, 0)
    snapshot = encode_snapshot(rows, time_step_ms=1000, max_indexes=1, max_entry_bytes=10_000)
    assert len(snapshot.metadata) > 1
    assert max(map(len, snapshot.metadata)) <= 10_000
    assert len(decode_metadata(snapshot.metadata)) == 2000


# --- damage that checksums do not show -----------------------------------------------------------


class Log:
    """The log of a tracker that stands alone: all its messages."""

    def __init__(self, topic, messages):
        self.topic, self.messages, self.losses, self.done = topic, messages, 0, set()
        topic.tracker.source = self

    def read_up(self):
        for (ledger, entry), at in self.messages.items():
            known = self.topic.tracker.contains_message(ledger, entry)
            if (ledger, entry) not in self.done and not known:
                self.topic.tracker.add_message(ledger, entry, at)

    def _read_again(self):
        self.losses += 1


@pytest.mark.parametrize("slot", [0, 1, 2, 3])
@pytest.mark.parametrize("held", ["nothing", "another", "one less", "missing"])
def test_a_segment_that_holds_other_messages_than_its_metadata_says_is_given_up(slot, held):
    topic = Topic(most=3).fill(range(1, 3))
    log = Log(topic, {(ledger, e): NOW + 1000 + 1000 * e for ledger in (1, 2) for e in range(10)})
    (bucket,) = topic.tracker.buckets
    _, segments = topic.storage._snapshots[bucket.snapshot_id]
    if held == "missing":
        del segments[slot]
    elif held == "nothing":
        segments[slot] = b""
    elif held == "another":
        segments[slot] = segments[(slot + 1) % 4]
    else:
        rows = decode_rows(segments[slot])
        if len(rows) < 3:
            return      # its times would differ: the case "nothing"
        kept = DueRows()
        for row in (rows[0], rows[2]):
            kept.append(*row)
        segments[slot] = kept.encode(0, 2)
    got = []
    for second in range(12):
        topic.clock.set(NOW + 1000 * second)
        popped = topic.tracker.get_scheduled_messages(100)
        got += popped
        log.done.update(popped)
        if log.losses:
            # As a reader does: what is due and not known is dispatched at once.
            due = {p for p, at in log.messages.items() if at <= topic.clock.now_ms() and p not in log.done}
            got += sorted(due - {p for p in due if topic.tracker.contains_message(*p)})
            log.done.update(got)
            log.read_up()
    if slot == 0:
        # It was in memory already when it was harmed.
        assert log.losses == 0 or held == "missing"
    else:
        assert log.losses == 1
        assert topic.tracker.stats.lost.value == 1
    assert sorted(got) == sorted(every((1, 2)))


def test_a_segment_that_cannot_be_read_just_now_is_tried_again():
    topic = Topic(most=3).fill(range(1, 3))
    topic.storage.refuses = {"segments"}
    topic.clock.set(NOW + 9000)
    got = topic.tracker.get_scheduled_messages(100)
    assert len(got) < 15
    topic.storage.refuses.clear()
    topic.clock.advance_monotonic(RETRY_NS // 10**6)
    assert sorted(got + topic.drain()) == sorted(every((1, 2)))
    assert topic.tracker.stats.lost.value == 0
