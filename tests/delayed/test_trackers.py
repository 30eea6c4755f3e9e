"""Both trackers: what they are asked, what they answer."""
import weakref
from array import array

import pytest

from seglog.clock import ManualClock
from seglog.counters import Histogram
from seglog.delayed import bucket_tracker, bucket_work
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.metrics import METRICS
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.errors import CorruptDelayedIndexError, InvalidArgumentError, TooManyDelayedError

NOW = 1_700_000_000_000


# The storage that each tracker was given.
STORAGES = weakref.WeakKeyDictionary()


def make(kind, storage=None, **config):
    clock = ManualClock(NOW)
    settings = DelayedDeliveryConfig(**{"ledger_step": 0, "min_index_count": 4, "max_indexes_per_segment": 2} | config)
    if kind == "memory":
        return InMemoryDelayedDeliveryTracker(settings, clock=clock), clock
    storage = storage or InMemoryBucketSnapshotStorage()
    tracker = BucketDelayedDeliveryTracker(storage, settings, clock=clock, worker=InlineWorker())
    STORAGES[tracker] = storage
    return tracker, clock


@pytest.fixture(params=["memory", "bucket"])
def kind(request):
    return request.param


def filled(kind, **config):
    """Ledgers 1 to 5 with entries 0 to 3, all of an entry due at one second."""
    tracker, clock = make(kind, **config)
    for ledger in range(1, 6):
        for entry in range(4):
            assert tracker.add_message(ledger, entry, NOW + 1000 * (entry + 1))
    return tracker, clock


def drain(tracker, clock):
    clock.set(NOW + 10**9)
    return tracker.get_scheduled_messages(10**6)


def test_a_message_that_is_due_or_not_delayed_is_not_tracked(kind):
    tracker, clock = make(kind)
    assert not tracker.add_message(1, 0, NOW)
    assert not tracker.add_message(1, 1, -1)
    assert not tracker.add_message(1, 2, NOW - 5)
    assert tracker.add_message(1, 3, NOW + 1)
    assert tracker.number_of_delayed_messages == 1
    assert drain(tracker, clock) == [(1, 3)]


def test_a_tick_early_counts_as_due_where_delivery_is_not_strict(kind):
    tracker, clock = make(kind, strict=False, tick_time_ms=1000)
    assert not tracker.add_message(1, 0, NOW + 1000)
    assert tracker.add_message(1, 1, NOW + 1001)
    clock.set(NOW + 1)
    assert tracker.get_scheduled_messages(5) == [(1, 1)]


def test_equal_times_come_in_the_order_of_positions(kind):
    tracker, clock = filled(kind)
    clock.set(NOW + 1500)
    assert tracker.get_scheduled_messages(3) == [(1, 0), (2, 0), (3, 0)]
    assert tracker.get_scheduled_messages(9) == [(4, 0), (5, 0)]
    assert tracker.next_delivery_time() == NOW + 2000


def test_columns_are_added_as_single_messages_are(kind):
    one, _ = make(kind)
    other, _ = make(kind)
    rows = [
        (1, 0, NOW + 5), (1, 1, NOW + 6), (1, 3, NOW), (1, 5, NOW + 2), (1, 4, NOW + 9), (1, 1, NOW + 6),
        (2, 0, NOW + 1), (2, 2, NOW + 3), (9, 2, NOW + 3), (1, 0, NOW + 5), (1, 7, NOW + 5), (9, 3, -1),
        (9, 4, NOW + 8),
    ]
    answers = bytes(one.add_message(*row) for row in rows)
    assert other.add_messages(*(array("q", column) for column in zip(*rows, strict=True))) == answers
    assert other.list(0, 2**62) == one.list(0, 2**62)
    assert other.number_of_delayed_messages == one.number_of_delayed_messages
    if kind == "bucket":
        assert [(b.start, b.end) for b in one.buckets] == [(b.start, b.end) for b in other.buckets] != []


def test_columns_of_different_lengths_are_refused(kind):
    with pytest.raises(InvalidArgumentError, match="columns of 1, 1 and 2"):
        make(kind)[0].add_messages(array("q", [1]), array("q", [1]), array("q", [1, 2]))


@pytest.mark.parametrize(
    "column", [array("i", [1, 2]), array("d", [1]), array("Q", [1]), memoryview(array("q", [1, 2, 3]))[::2]]
)
def test_columns_of_anything_but_int64_are_refused(kind, column):
    columns = [array("q", [1])] * 2
    for slot in range(3):
        with pytest.raises(InvalidArgumentError, match=r"a column must be a.* buffer of int64"):
            make(kind)[0].add_messages(*columns[:slot], column, *columns[slot:])


def test_a_cancelled_message_is_never_delivered(kind):
    tracker, clock = filled(kind)
    assert tracker.cancel(1, 2)
    assert tracker.cancel(5, 2)
    assert not tracker.cancel(1, 2)
    assert not tracker.cancel(7, 7)
    assert not tracker.contains_message(1, 2)
    assert tracker.add_message(1, 2, NOW + 3000)
    assert tracker.number_of_delayed_messages == 18
    got = drain(tracker, clock)
    assert len(got) == 18
    assert not {(1, 2), (5, 2)} & set(got)
    assert not tracker.cancel(1, 1)


def test_a_rescheduled_message_is_delivered_at_its_new_time(kind):
    tracker, clock = filled(kind)
    assert tracker.reschedule(1, 0, NOW + 9000)
    assert tracker.reschedule(1, 3, NOW + 500)
    assert not tracker.reschedule(8, 0, NOW + 500)
    assert tracker.next_delivery_time() == NOW + 500
    clock.set(NOW + 1000)
    assert tracker.get_scheduled_messages(100) == [(1, 3), (2, 0), (3, 0), (4, 0), (5, 0)]
    assert tracker.reschedule(1, 0, NOW + 5000)
    assert drain(tracker, clock)[-1] == (1, 0)


def test_a_message_is_delivered_now_when_that_is_asked(kind):
    tracker, _ = filled(kind)
    assert tracker.deliver_now(2, 3)
    assert not tracker.deliver_now(2, 9)
    assert tracker.get_scheduled_messages(10) == [(2, 3)]


def test_messages_are_listed_and_counted_by_time(kind):
    tracker, clock = filled(kind)
    tracker.cancel(3, 1)
    tracker.reschedule(4, 1, NOW + 2500)
    found = tracker.list(NOW + 2000, NOW + 3000)
    assert [(m.deliver_at - NOW, m.ledger_id, m.entry_id) for m in found] == [
        (2000, 1, 1), (2000, 2, 1), (2000, 5, 1), (2500, 4, 1),
    ]
    assert tracker.count(NOW + 2000, NOW + 3000) == 4
    assert tracker.histogram([NOW, NOW + 2000, NOW + 3000, NOW + 4000, NOW + 9000]) == [5, 4, 5, 5]
    assert tracker.count(-5, NOW) == 0
    clock.set(NOW + 2000)
    tracker.get_scheduled_messages(100)
    assert tracker.count(0, NOW + 10**6) == 11


def test_what_is_below_a_trimmed_ledger_is_forgotten(kind):
    tracker, clock = filled(kind)
    tracker.cancel(1, 0)
    assert tracker.trim(4) == 11
    assert tracker.number_of_delayed_messages == 8
    assert {ledger for ledger, _ in drain(tracker, clock)} == {4, 5}


def test_there_is_a_cap_on_the_number_of_delayed_messages(kind):
    tracker, clock = make(kind, max_delayed=2)
    assert tracker.add_message(1, 0, NOW + 1)
    assert tracker.add_messages(array("q", [1]), array("q", [1]), array("q", [NOW + 1])) == b"\1"
    assert tracker.add_message(1, 1, NOW + 1)
    with pytest.raises(TooManyDelayedError, match="the limit is 2"):
        tracker.add_message(1, 2, NOW + 1)
    assert not tracker.add_message(1, 3, NOW)
    assert len(drain(tracker, clock)) == 2


def test_a_delay_is_limited_where_it_is_chosen(kind):
    tracker, _ = make(kind, max_delay_ms=5000)
    tracker.add_message(1, 0, NOW + 1000)
    with pytest.raises(InvalidArgumentError, match="delayedDeliveryMaxDelayInMillis = 5000"):
        tracker.reschedule(1, 0, NOW + 5001)
    with pytest.raises(InvalidArgumentError):
        tracker.reschedule(1, 0, -1)


def test_a_closed_tracker_is_closed_again_without_a_word(kind):
    tracker, _ = filled(kind)
    tracker.close()
    tracker.close()


def test_the_clock_may_step_back(kind):
    tracker, clock = filled(kind)
    clock.set(NOW + 1000)
    got = tracker.get_scheduled_messages(2)
    clock.set(NOW - 5000)
    assert not tracker.has_message_available()
    assert tracker.add_message(6, 0, NOW - 4000)
    got += drain(tracker, clock)
    assert (len(got), len(set(got))) == (21, 21)


# --- what only buckets have ------------------------------------------------------------------


def reopened(tracker, clock, **config):
    storage = STORAGES[tracker]
    tracker.close()
    settings = DelayedDeliveryConfig(**{"ledger_step": 0, "min_index_count": 4, "max_indexes_per_segment": 2} | config)
    return BucketDelayedDeliveryTracker(storage, settings, clock=clock, worker=InlineWorker())


def test_decisions_survive_a_restart_and_the_log_being_read_again():
    tracker, clock = filled("bucket")
    for ledger in (1, 5):  # sealed, and still mutable
        assert tracker.cancel(ledger, 0)
        assert tracker.reschedule(ledger, 1, NOW + 50_000)
    tracker = reopened(tracker, clock)
    for ledger in range(1, 6):
        for entry in range(4):
            assert tracker.add_message(ledger, entry, NOW + 1000 * (entry + 1))
    assert tracker.number_of_delayed_messages == 18
    clock.set(NOW + 49_999)
    assert not {(1, 0), (5, 0), (1, 1), (5, 1)} & set(tracker.get_scheduled_messages(100))
    clock.set(NOW + 50_000)
    assert tracker.get_scheduled_messages(100) == [(1, 1), (5, 1)]


class Unwilling:
    """Properties that refuse to change now and then."""

    def __init__(self):
        self.properties, self.refuses = {"of others": "stays"}, False

    def update_properties(self, changes):
        if self.refuses:
            raise OSError("no space")
        self.properties = {n: v for n, v in {**self.properties, **changes}.items() if v is not None}


def test_decisions_of_a_tracker_in_memory_are_kept_by_whom_it_is_given():
    kept = Unwilling()

    def opened():
        return InMemoryDelayedDeliveryTracker(clock=ManualClock(NOW), decisions=kept)

    tracker = opened()
    for entry in range(4):
        tracker.add_message(1, entry, NOW + 1000)
    kept.refuses = True
    with pytest.raises(OSError, match="no space"):
        tracker.cancel(1, 0)
    with pytest.raises(OSError, match="no space"):
        tracker.reschedule(1, 0, NOW + 5)
    kept.refuses = False
    assert tracker.cancel(1, 1)
    assert tracker.reschedule(1, 2, NOW + 3000)
    tracker.close()
    again = opened()
    assert [again.add_message(1, entry, NOW + 1000) for entry in range(4)] == [True] * 4
    assert again.list(0, 2**62) == [(NOW + 1000, 1, 0), (NOW + 1000, 1, 3), (NOW + 3000, 1, 2)]
    kept.refuses = True
    again.trim(2)       # harmless: what could not be removed now goes later
    kept.refuses = False
    assert again.add_message(3, 0, NOW + 10)
    assert again.cancel(3, 0)
    assert sorted(kept.properties) == ["#seglog.delayed.cancelled_3", "of others"]
    again.clear()
    assert kept.properties == {"of others": "stays"}


def test_decisions_are_forgotten_when_the_cursor_has_passed():
    tracker, _ = filled("bucket")
    tracker.cancel(1, 0)
    tracker.reschedule(2, 0, NOW + 50_000)
    tracker.trim(3)
    assert not [name for name in STORAGES[tracker].properties() if name.startswith("#seglog")]


@pytest.mark.parametrize("name", ["#seglog.delayed.cancelled_1", "#seglog.delayed.moved_1", "#seglog.delayed.moved_x"])
@pytest.mark.parametrize("value", ["AAAA", "A", "é"])
def test_decisions_that_cannot_be_read_are_refused(name, value):
    storage = InMemoryBucketSnapshotStorage()
    storage.update_properties({name: value})
    with pytest.raises(CorruptDelayedIndexError, match=name):
        make("bucket", storage)


def test_only_the_next_segments_are_in_memory():
    tracker, _ = make("bucket", min_index_count=1000, max_indexes_per_segment=10)
    for n in range(10_000):
        tracker.add_message(n // 1000, n % 1000, NOW + 10**6 + n * 7919 % 10**6)
    assert len(tracker.buckets) == 9
    rows = {sample.name: sample.value for sample in tracker.samples()}
    assert rows["pulsar_subscription_delayed_in_memory"] == 1000 + 9 * 10


@pytest.mark.parametrize(("step", "ranges"), [(0, []), (2, [(1, 2), (3, 4)]), (5, [])])
def test_a_bucket_is_sealed_by_the_ledger_step_as_well(step, ranges, monkeypatch):
    monkeypatch.setattr(bucket_tracker, "STEP_MIN_MESSAGES", 4)
    tracker, _ = filled("bucket", min_index_count=1000, ledger_step=step)
    assert [(b.start, b.end) for b in tracker.buckets] == ranges


def test_small_ledgers_make_no_small_buckets():
    """A bucket of each hundred messages led to 27 merges of 10 000 messages in ledgers of 20."""
    tracker, _ = make("bucket", min_index_count=50_000, ledger_step=5, max_indexes_per_segment=5_000)
    for n in range(50_000):
        tracker.add_message(n // 20, n % 20, NOW + 1000 + n)
    assert len(tracker.buckets) == 4
    assert tracker.stats.merged.value == 0


def test_a_poll_reads_many_small_segments_at_once_and_no_more_of_large_ones():
    """Delays over years give segments of a message each, which were read one by one."""
    for spread, delays, most in ((400_000, 600, 25), (1, 6_000, 12)):
        storage = InMemoryBucketSnapshotStorage()
        reads, get_segments = [], storage.get_segments

        def counted(snapshot_id, start, stop, get_segments=get_segments, reads=reads):
            reads.append(stop - start)
            return get_segments(snapshot_id, start, stop)

        storage.get_segments = counted
        tracker, clock = make("bucket", storage=storage, min_index_count=delays, max_indexes_per_segment=500)
        for n in range(delays):
            tracker.add_message(1, n, NOW + 1000 + n * spread)
        tracker.add_message(2, 0, NOW + 1)
        clock.set(NOW + 1000 + delays * spread)
        found = []
        while positions := tracker.get_scheduled_messages(100):
            found += positions
        assert found == [(2, 0), *((1, n) for n in range(delays))]
        assert len(reads) <= most
        assert spread > 1 or set(reads) == {1}


def test_a_change_of_configuration_counts_from_the_next_seal_on():
    tracker, _ = filled("bucket", min_index_count=1000)
    tracker.reconfigure(DelayedDeliveryConfig(ledger_step=0, min_index_count=1, max_indexes_per_segment=1))
    assert tracker.buckets == []
    tracker.add_message(6, 0, NOW + 9)
    assert [len(b.segments) for b in tracker.buckets] == [20]


def test_two_neighbours_are_merged_where_the_fan_in_is_the_proposals(monkeypatch):
    monkeypatch.setattr(bucket_work, "MERGE_FAN_IN", 2)
    tracker, _ = make("bucket", max_buckets=3, min_index_count=1)
    for ledger, count, delay in [(1, 5, 30_000), (2, 3, 20_000), (3, 3, 10_000), (4, 5, 30_000), (5, 1, 30_000)]:
        for entry in range(count):
            tracker.add_message(ledger, entry, NOW + delay + entry)
    assert [(b.start, b.end) for b in tracker.buckets] == [(1, 1), (2, 3), (4, 4)]


def test_metrics_are_those_of_the_table_and_follow_the_run():
    tracker, clock = filled("bucket", min_index_count=8, max_buckets=1)
    values = {(s.name, s.labels): s.value for s in tracker.samples()}
    assert {name for name, _ in values} == {m.name for m in METRICS}
    by_name = {m.name: m for m in METRICS}
    for (name, labels), value in values.items():
        assert tuple(label for label, _ in labels) == by_name[name].labels
        assert isinstance(value, Histogram) == (by_name[name].kind == "histogram")

    def value(name, **labels):
        return values[name, tuple(labels.items())]

    assert value("pulsar_subscription_delayed") == 20
    assert value("pulsar_subscription_delayed_in_last_mutable_queue") == 4
    assert value("pulsar_delayed_message_index_bucket_total") == 2
    assert value("pulsar_delayed_delivery_tracker_bucket_merge_count") == 1
    assert value("pulsar_delayed_message_index_bucket_op_count", state="succeed", type="create") == 2
    assert value("pulsar_delayed_message_index_bucket_op_latency_ms", type="create").count == 2
    assert value("pulsar_delayed_message_index_bucket_snapshot_size_bytes") == sum(
        STORAGES[tracker].get_length(b.snapshot_id) for b in tracker.buckets
    )
    assert value("pulsar_delayed_delivery_tracker_memory_usage") > 0
    drain(tracker, clock)
    values = {(s.name, s.labels): s.value for s in tracker.samples()}
    assert value("pulsar_subscription_delayed") == value("pulsar_subscription_delayed_in_memory") == 0
    assert value("pulsar_delayed_message_index_loaded") == 0
    assert value("pulsar_delayed_message_index_bucket_snapshot_size_bytes") == 0
    assert value("pulsar_delayed_message_index_bucket_op_failed_count", type="load") == 0


@pytest.mark.parametrize("bad", [2**70, -(2**70), 2**63, "x", None])
def test_numbers_that_no_message_has_are_named(kind, bad):
    """They were OverflowErrors and TypeErrors of the kernels, wherever one came first."""
    tracker, _ = make(kind)
    tracker.add_message(5, 5, NOW + 1000)
    for call in (
        tracker.contains_message, tracker.cancel, tracker.deliver_now, tracker.forget, tracker.trim,
        lambda *position: tracker.add_message(*position, NOW + 2000),
        lambda *position: tracker.reschedule(*position, NOW + 2000),
    ):
        for position in ((bad, 5), (5, bad)):
            with pytest.raises(InvalidArgumentError, match="must be an int from"):
                call(*position)
    for call in (
        lambda: tracker.add_message(5, 6, bad), lambda: tracker.reschedule(5, 5, bad),
        lambda: tracker.get_scheduled_messages(bad),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    if isinstance(bad, int):        # no time of a message, and a good bound
        assert tracker.count(min(bad, 0), max(bad, 0)) == (bad > 0)
        assert tracker.histogram([0, bad]) == [bad > 0]
    else:
        for call in (lambda: tracker.list(0, bad), lambda: tracker.count(bad, 5), lambda: tracker.histogram([0, bad])):
            with pytest.raises(InvalidArgumentError, match="whole ms"):
                call()
    assert tracker.number_of_delayed_messages == 1
