"""A topic's delayed messages under each configuration, one index for all subscriptions, from one kind to another."""
import shutil
import threading
from datetime import timedelta
from functools import partial

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.delayed.worker import InlineWorker
from seglog.errors import InvalidArgumentError, LogClosedError, LogFailedError, StorageError, TooManyDelayedError
from seglog.ledger.managed.cursor_file import CursorState
from seglog.pulsar import ManagedLedger
from seglog.topic import delayed_delivery as delivery_module
from seglog.topic import dispatcher as dispatcher_module
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.topic.delayed_index import BUILDING_CURSOR
from seglog.topic.dispatcher import Dispatcher
from support.topics import delayed, message, numbers

NOW = 1_700_000_000_000
KINDS = {
    "memory": {"enableBucketDelayedDeliveryTracker": False},
    "bucket": {},
    "shared": {"enableShareDelayedMessageIndex": True},
}
SMALL = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 3, "delayedDeliveryMaxNumBuckets": 3,
}


class Topic:
    """A managed ledger with ledgers of four entries, subscriptions by name, and delayed delivery of a kind."""

    def __init__(self, path, kind, clock=None, subscriptions=("one", "other")):
        self.path, self.kind = path, kind
        self.clock = clock or ManualClock(NOW)
        config = {"managedLedgerMaxEntriesPerLedger": 4, "defaultRetentionTimeInMinutes": 0}
        self.log = ManagedLedger(path, config=config, clock=self.clock)
        for name in subscriptions:
            self.log.open_cursor(name, "earliest")
        self.delayed = DelayedDelivery(self.log, SMALL | KINDS[kind], clock=self.clock, new_worker=InlineWorker)
        self.dispatchers = {}

    def __getitem__(self, name):
        if name not in self.dispatchers:
            self.dispatchers[name] = self.delayed.dispatcher(self.log.open_cursor(name, "earliest"))
        return self.dispatchers[name]

    def publish(self, *delays_ms):
        first = self.log.last_index_of_test = getattr(self.log, "last_index_of_test", 0)
        self.log.last_index_of_test += len(delays_ms)
        return self.log.add_entries(
            message(n) if delay is None else delayed(n, self.clock.now_ms() + delay)
            for n, delay in enumerate(delays_ms, first)
        )

    def consume(self, name, count=1000):
        """Read what is due, and acknowledge it."""
        entries = self[name].read(count)
        self[name].cursor.acknowledge_many(entry.position for entry in entries)
        return numbers(entries)

    def reopened(self, kind=None, **others):
        self.delayed.close()
        self.log.close()
        return Topic(self.path, kind or self.kind, self.clock, **others)

    def crashed(self, target, kind=None):
        """The topic as it is on the disk now, opened elsewhere."""
        shutil.copytree(self.path, target)
        return Topic(target, kind or self.kind, self.clock)

    @property
    def snapshots(self):
        """Directories of trackers that hold a snapshot."""
        return sorted({path.parent.name for path in self.path.glob("delayed/*/ledger-*")})

    def close(self):
        self.delayed.close()
        self.log.close()


@pytest.fixture
def topic(tmp_path, request):
    topic = Topic(tmp_path / "t", request.param)
    yield topic
    topic.close()


def of_kind(*kinds):
    return pytest.mark.parametrize("topic", kinds, indirect=True)


# --- every kind --------------------------------------------------------------------------------


@of_kind(*KINDS)
def test_two_subscriptions_get_everything_once_each(topic):
    topic.publish(None, *[1000 + 100 * n for n in range(20)], None)
    assert topic.consume("one") == [0, 21]
    topic.clock.set(NOW + 1500)
    assert topic.consume("one") == [1, 2, 3, 4, 5, 6]
    assert sorted(topic.consume("other")) == [0, 1, 2, 3, 4, 5, 6, 21]
    topic.clock.set(NOW + 10_000)
    assert topic.consume("other") == list(range(7, 21))
    assert topic.consume("one") == list(range(7, 21))
    assert topic.consume("one") == topic.consume("other") == []


@of_kind(*KINDS)
def test_a_restart_repeats_and_loses_nothing(topic):
    topic.publish(*[1000 * n for n in range(30)])
    got = {"one": [], "other": []}
    for now in range(NOW, NOW + 31_000, 4000):
        topic.clock.set(now)
        for name in got:
            got[name] += topic.consume(name, 3)
        again = topic.reopened()
        topic.delayed, topic.log, topic.dispatchers = again.delayed, again.log, again.dispatchers
    topic.clock.set(NOW + 100_000)
    for name, numbered in got.items():
        while more := topic.consume(name, 7):
            numbered += more
        assert sorted(numbered) == list(range(30)), name
    assert topic.log.entry_count <= 4, "ledgers that everybody has passed are trimmed"


@of_kind(*KINDS)
def test_what_was_acknowledged_while_it_was_delayed_does_not_count_after_a_restart(topic):
    positions = topic.publish(*[1000] * 20)
    moved, acknowledged = positions[7], positions[13]
    for name in ("one", "other"):
        assert topic.consume(name) == []
        topic.delayed.tracker(topic[name].cursor).reschedule(*moved, NOW + 5000)
        topic[name].cursor.acknowledge_many([moved, acknowledged])
    again = topic.reopened()
    tracker = again.delayed.tracker(again["one"].cursor)
    assert tracker.count(0, 2**63) == tracker.number_of_delayed_messages == 18
    listed = {(message.ledger_id, message.entry_id) for message in tracker.list(0, 2**63)}
    assert listed == set(positions) - {moved, acknowledged}
    again.delayed.close()
    again.log.close()


@of_kind(*KINDS)
def test_a_subscription_that_was_deleted_and_made_again_gets_everything(topic):
    """Its index was that of the deleted one, whose cursor is closed."""
    topic.publish(None, *[1000] * 20)
    assert topic.consume("one") == [0]
    topic.log.delete_cursor("one")
    del topic.dispatchers["one"]
    cursor = topic.log.open_cursor("one", "earliest")
    assert topic.consume("one") == [0]
    assert topic.delayed.tracker(cursor).count(0, 2**63) == 20
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == list(range(1, 21))
    assert topic.consume("other") == list(range(21))


@of_kind(*KINDS)
def test_what_was_given_and_not_acknowledged_survives_a_crash(topic, tmp_path):
    topic.publish(*[1000] * 10, None)
    topic["one"], topic["other"]
    topic.clock.set(NOW + 1000)
    assert len(topic["one"].read()) == 11
    topic["one"].cursor.flush()
    again = topic.crashed(tmp_path / "copy")
    assert sorted(again.consume("one")) == sorted(again.consume("other")) == list(range(11))
    again.close()


# --- one index for all ---------------------------------------------------------------------------


@of_kind("shared")
def test_all_subscriptions_have_one_tracker_and_its_cursor_is_its_own(topic):
    topic.publish(*[1000] * 12)
    one, other = topic["one"], topic["other"]
    assert topic.delayed.tracker(one.cursor) is topic.delayed.tracker(other.cursor)
    assert one.read() == other.read() == []
    assert topic.delayed.tracker(one.cursor).number_of_delayed_messages == 12
    building = topic.log.cursors[BUILDING_CURSOR]
    assert [name for name in building.properties if name.startswith(BUCKET_PROPERTY)]
    assert one.cursor.properties == other.cursor.properties == {}
    assert topic.snapshots == [BUILDING_CURSOR]


@of_kind("shared")
def test_any_poll_puts_scheduled_messages_into_the_queues_of_all(topic):
    topic.publish(*[1000] * 5)
    one, other = topic["one"], topic["other"]
    one.read()
    topic.clock.set(NOW + 1000)
    assert numbers(one.read()) == [0, 1, 2, 3, 4]
    assert topic.delayed.tracker(one.cursor).number_of_delayed_messages == 0
    # Its own cursor has read nothing so far, and comes to the same entries.
    assert numbers(other.read()) == [0, 1, 2, 3, 4]
    assert other.read() == []


@of_kind("shared")
def test_a_subscription_without_a_dispatcher_finds_what_was_scheduled_by_its_cursor(topic):
    topic.log.open_cursor("late", "earliest")
    topic.publish(None, 1000, 2000)
    assert topic.consume("one") == [0]
    topic.clock.set(NOW + 1500)
    assert topic.consume("one") == [1]
    assert topic.consume("late") == [0, 1]
    topic.clock.set(NOW + 2000)
    assert topic.consume("late") == topic.consume("one") == [2]


@of_kind("shared")
def test_a_queue_that_nobody_reads_is_dropped_and_found_again_by_the_cursor(topic, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "MAX_REPLAY", 5)
    topic.publish(*[1000] * 15, None)
    assert numbers(topic["other"].read()) == [15]
    topic.clock.set(NOW + 1000)
    got = []
    while more := topic["one"].read(4):
        got += numbers(more)
    assert sorted(got) == list(range(16))
    assert sorted(numbers(topic["other"].read())) == list(range(15))
    assert topic["other"].read() == []


@of_kind("shared")
def test_the_building_cursor_keeps_no_ledger_that_no_subscription_needs(topic):
    topic.publish(*[1000] * 20)
    topic["one"].read()
    topic["other"].read()
    topic.clock.set(NOW + 1000)
    topic.consume("one")
    assert topic.log.entry_count == 20
    topic.consume("other")
    topic.consume("one")
    topic.log.trim()
    assert topic.log.entry_count <= 4


@of_kind("shared")
def test_a_shared_message_is_cancelled_for_all(topic):
    positions = topic.publish(1000, 1000)
    topic["one"].read()
    topic["other"].read()
    assert topic["one"].cancel(positions[0])
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == topic.consume("other") == [1]
    assert topic["other"].cursor.backlog == 0


@of_kind("shared")
def test_a_shared_tracker_says_nothing_of_subscriptions(topic):
    names = {sample.name for sample in topic.delayed.tracker(topic["one"].cursor).samples()}
    assert not [name for name in names if name.startswith("pulsar_subscription")]


def test_a_shared_index_needs_buckets(tmp_path):
    with ManagedLedger(tmp_path / "t") as log, pytest.raises(InvalidArgumentError, match="needs enableBucket"):
        DelayedDelivery(log, KINDS["memory"] | KINDS["shared"])


# --- from one kind to another ---------------------------------------------------------------------


@of_kind("memory")
def test_each_message_is_delivered_once_from_kind_to_kind_and_no_snapshot_is_left(topic):
    topic.publish(*[1000 * n for n in range(40)], None)
    got = {"one": [], "other": []}
    where = {"memory": [], "bucket": ["one", "other"], "shared": [BUILDING_CURSOR]}
    current = topic
    for step, kind in enumerate(["memory", "bucket", "shared", "bucket", "memory", "memory"]):
        current = current.reopened(kind)
        topic.delayed, topic.log = current.delayed, current.log
        current.clock.set(NOW + 5000 * step)
        for name in got:
            got[name] += current.consume(name)
        assert current.snapshots == where[kind], kind
        assert (BUILDING_CURSOR in current.log.cursors) == (kind == "shared")
    current.clock.set(NOW + 100_000)
    for name, numbered in got.items():
        numbered += current.consume(name)
        assert sorted(numbered) == list(range(41))
    assert isinstance(current.delayed.tracker(current["one"].cursor), InMemoryDelayedDeliveryTracker)
    assert not (topic.path / "delayed").exists() or list((topic.path / "delayed").iterdir()) == []
    assert current["one"].cursor.properties == {}


@of_kind("bucket")
@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_what_was_cancelled_under_another_kind_stays_cancelled(topic, kind):
    positions = topic.publish(*[1000] * 6)
    topic["one"].read()
    topic["other"].read()
    tracker = topic.delayed.tracker(topic["one"].cursor)
    assert isinstance(tracker, BucketDelayedDeliveryTracker)
    assert tracker.cancel(*positions[2])
    again = topic.reopened(kind)
    topic.delayed, topic.log = again.delayed, again.log
    again.clock.set(NOW + 1000)
    assert again.consume("one") == [0, 1, 3, 4, 5]
    assert again.consume("other") == [0, 1, 2, 3, 4, 5]


@of_kind("bucket")
def test_the_snapshots_of_a_subscription_that_is_gone_are_removed(topic):
    topic.publish(*[1000] * 12)
    topic["one"].read()
    topic["other"].read()
    assert topic.snapshots == ["one", "other"]
    topic.log.delete_cursor("other")
    again = topic.reopened(subscriptions=["one"])
    topic.delayed, topic.log = again.delayed, again.log
    assert again.snapshots == ["one"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_was_cancelled_stays_so_through_a_crash(tmp_path, kind):
    topic = Topic(tmp_path / "t", kind)
    (position,) = topic.publish(1000)
    assert topic.consume("one") == topic.consume("other") == []
    assert topic["one"].cancel(position)
    after = topic.crashed(tmp_path / "after", "memory")
    after.clock.set(NOW + 1000)
    assert after.consume("one") == []
    assert after.consume("other") == ([] if kind == "shared" else [0])
    after.close()
    topic.close()


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_a_message_that_was_rescheduled_keeps_its_time_through_a_crash_and_under_another_kind(tmp_path, before, after):
    topic = Topic(tmp_path / "t", before)
    positions = topic.publish(*[1000] * 10, *[9000] * 2)
    assert topic.consume("one") == topic.consume("other") == []
    for tracker in {topic.delayed.tracker(topic[name].cursor) for name in ("one", "other")}:
        assert tracker.reschedule(*positions[1], NOW + 5000)
        assert tracker.reschedule(*positions[10], NOW + 1500)
    found = topic.crashed(tmp_path / "after", after)
    later = found.crashed(tmp_path / "later", after)
    for again in (found, later):
        for now, due in (
            (1000, [0, 2, 3, 4, 5, 6, 7, 8, 9]), (1499, []), (1500, [10]), (4999, []), (5000, [1]), (9000, [11])
        ):
            again.clock.set(NOW + now)
            assert sorted(again.consume("one")) == due, now
            assert sorted(again.consume("other")) == due, now
        again.clock.set(NOW)
    for opened in (later, found, topic):
        opened.close()


def test_a_delay_above_the_limit_is_refused_when_it_is_published(tmp_path):
    with ManagedLedger(tmp_path / "t") as log:
        with DelayedDelivery(log, {"delayedDeliveryMaxDelayInMillis": 5000}) as limited:
            assert limited.add_entry(delayed(0, 6000, publish_time=1000)) == (0, 0)
            with pytest.raises(InvalidArgumentError, match="a delay of 5001 ms"):
                limited.add_entry(delayed(1, 6001, publish_time=1000))
            assert limited.add_entry(message(2)) == (0, 1)
        with DelayedDelivery(log) as unlimited:
            unlimited.add_entry(delayed(3, 2**62))
        assert log.entry_count == 3


def test_what_was_cancelled_is_not_pending_when_a_shared_index_was_cleared(tmp_path):
    topic = Topic(tmp_path / "t", "shared")
    positions = topic.publish(*[1000] * 6)
    assert topic.consume("one") == topic.consume("other") == []
    index = topic.delayed.index(topic["one"].cursor)
    assert topic["one"].cancel(positions[2])
    assert index.clear() == 5
    assert topic.consume("one") == []
    assert index.tracker.number_of_delayed_messages == 5
    topic.close()


@pytest.mark.parametrize("kind", KINDS)
def test_trackers_go_on_under_another_configuration(tmp_path, kind):
    topic = Topic(tmp_path / "t", kind)
    topic.publish(1000)
    assert topic.consume("one") == []
    topic.delayed.reconfigure(KINDS[kind] | {"isDelayedDeliveryDeliverAtTimeStrict": False})
    assert topic.consume("one") == [0]
    assert topic.consume("other") == [0]
    another = next(settings for name, settings in KINDS.items() if name != kind)
    with pytest.raises(InvalidArgumentError, match="cannot be changed while"):
        topic.delayed.reconfigure(another)
    topic.close()


def test_of_two_times_for_one_message_a_shared_index_has_the_later_one(tmp_path):
    topic = Topic(tmp_path / "t", "bucket")
    positions = topic.publish(*[1000] * 3)
    assert topic.consume("one") == topic.consume("other") == []
    assert topic.delayed.tracker(topic["one"].cursor).reschedule(*positions[0], NOW + 500)
    assert topic.delayed.tracker(topic["one"].cursor).reschedule(*positions[1], NOW + 3000)
    assert topic.delayed.tracker(topic["other"].cursor).reschedule(*positions[1], NOW + 2000)
    assert topic["other"].cancel(positions[2])
    assert topic.delayed.tracker(topic["one"].cursor).reschedule(*positions[2], NOW + 300)
    topic = topic.reopened("shared")
    for now, one, other in ((300, [2], []), (999, [], []), (1000, [0], [0]), (2999, [], []), (3000, [1], [1])):
        topic.clock.set(NOW + now)
        assert (topic.consume("one"), topic.consume("other")) == (one, other), now
    topic.close()


def test_what_was_decided_is_forgotten_when_it_was_passed(tmp_path):
    topic = Topic(tmp_path / "t", "memory")
    positions = topic.publish(*[1000] * 9)
    assert topic.consume("one") == []
    tracker = topic.delayed.tracker(topic["one"].cursor)
    assert tracker.reschedule(*positions[1], NOW + 2000)
    assert tracker.reschedule(*positions[8], NOW + 2000)
    assert len(topic["one"].cursor.properties) == 2
    topic.clock.set(NOW + 2000)
    assert len(topic.consume("one")) == 9
    assert topic.consume("one") == []
    assert len(topic["one"].cursor.properties) == 1     # the last ledger may still be read again
    topic.delayed.index(topic["one"].cursor).clear()
    assert topic["one"].cursor.properties == {}
    topic.close()


def test_an_index_may_become_shared_when_all_that_was_passed_is_trimmed(tmp_path):
    topic = Topic(tmp_path / "t", "bucket")
    topic.publish(*[None] * 9)
    assert len(topic.consume("one")) == len(topic.consume("other")) == 9
    topic = topic.reopened()
    topic.log.trim()
    assert topic.log.entry_count == 0
    topic = topic.reopened("shared")
    assert topic.consume("one") == []
    topic.publish(None, 1000)
    assert len(topic.consume("one")) == len(topic.consume("other")) == 1
    topic.clock.set(NOW + 1000)
    assert len(topic.consume("one")) == len(topic.consume("other")) == 1
    topic.close()


# --- what the subscription keeps for itself ------------------------------------------------------


@of_kind(*KINDS)
@pytest.mark.parametrize("by", ["tracker", "index"])
def test_clearing_leaves_the_subscriptions_own_properties(topic, by):
    cursor = topic["one"].cursor
    cursor.update_properties({"team": "billing", "#x": "y"})
    topic.publish(*[1000] * 12)
    assert topic.consume("one") == []
    if by == "tracker":
        topic.delayed.tracker(cursor).clear()
    else:
        topic.delayed.index(cursor).clear()
    assert cursor.properties == {"team": "billing", "#x": "y"}
    assert topic.snapshots == []
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == list(range(12))


# --- threads -----------------------------------------------------------------------------------


def at_once(*calls):
    """What each call gave, or raised: all of them by threads that begin together."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(slot, call):
        barrier.wait()
        try:
            results[slot] = call()
        except Exception as error:
            results[slot] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@of_kind(*KINDS)
def test_threads_that_ask_for_one_tracker_get_one(topic):
    cursor = topic.log.open_cursor("one")
    found = at_once(*[lambda: topic.delayed.tracker(cursor)] * 8)
    assert all(tracker is found[0] for tracker in found), found


@of_kind(*KINDS)
def test_threads_that_open_several_subscriptions_at_once_all_succeed(topic):
    cursors = [topic.log.open_cursor(f"s{n}") for n in range(8)]
    found = at_once(*[partial(topic.delayed.tracker, cursor) for cursor in cursors])
    assert all(isinstance(tracker, DelayedDeliveryTracker) for tracker in found), found


@of_kind(*KINDS)
def test_a_second_dispatcher_of_a_subscription_is_refused(topic):
    topic.publish(None, 1000)
    cursor = topic["one"].cursor
    with pytest.raises(InvalidArgumentError, match="'one' already has a dispatcher"):
        topic.delayed.dispatcher(cursor)
    with pytest.raises(InvalidArgumentError):
        Dispatcher(topic.log, cursor, topic.delayed.tracker(cursor), clock=topic.clock)
    assert topic.consume("one") == [0]
    topic["one"].close()
    topic.dispatchers["one"] = topic.delayed.dispatcher(cursor)
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == [1]


@of_kind(*KINDS)
def test_after_it_was_closed_there_is_no_tracker(topic):
    cursor = topic["one"].cursor
    topic.delayed.close()
    for door in (topic.delayed.tracker, topic.delayed.index, topic.delayed.dispatcher):
        with pytest.raises(LogClosedError, match="the delayed delivery is closed"):
            door(cursor)


# --- what no dispatcher has read yet -------------------------------------------------------------


@of_kind(*KINDS)
def test_a_message_may_be_cancelled_as_soon_as_it_is_published(topic):
    (position,) = topic.publish(1000)
    assert topic["one"].cancel(position)
    assert not topic["one"].cancel(position)
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == []
    assert topic.consume("other") == ([] if topic.kind == "shared" else [0])
    assert topic["one"].cursor.backlog == 0


@of_kind(*KINDS)
def test_messages_behind_a_backlog_are_rescheduled_and_counted(topic):
    positions = topic.publish(*[None] * 30, *[1000 * n for n in range(1, 21)])
    tracker = topic.delayed.tracker(topic["one"].cursor)
    assert tracker.reschedule(*positions[40], NOW + 100)
    assert tracker.deliver_now(*positions[41])
    assert not tracker.reschedule(*positions[7], NOW + 100)
    assert tracker.count(0, 2**63) == len(tracker.list(0, 2**63)) == tracker.number_of_delayed_messages == 20
    assert tracker.histogram([NOW, NOW + 101, NOW + 10_001, 2**63]) == [2, 10, 8]
    assert topic.consume("one", 31)[:1] == [41]
    topic.clock.set(NOW + 100)
    assert 40 in topic.consume("one")


@of_kind(*KINDS)
def test_a_clock_that_went_back_brings_what_was_due_once(topic):
    """It was due when it was met first, so it was not added."""
    positions = topic.publish(1000, None)
    topic.clock.set(NOW + 2000)
    tracker = topic.delayed.tracker(topic["one"].cursor)
    assert tracker.count(0, 2**63) == 0
    topic.clock.set(NOW)
    assert topic.consume("one") == [1]
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == [0]
    assert topic["one"].cursor.mark_delete_position == positions[1]


# --- how many may be delayed ---------------------------------------------------------------------


@of_kind(*KINDS)
def test_the_limit_of_delayed_messages_is_held_at_the_door(topic):
    topic.delayed.reconfigure(SMALL | KINDS[topic.kind] | {"seglog.delayed.max.messages": 2})
    for number in range(2):
        topic.delayed.add_entry(delayed(number, NOW + 1000))
    with pytest.raises(TooManyDelayedError, match="2 messages are delayed"):
        topic.delayed.add_entry(delayed(2, NOW + 1000))
    topic.delayed.add_entry(message(3))
    topic.delayed.add_entry(delayed(4, NOW))
    assert topic.consume("one") == [3, 4]
    topic.clock.set(NOW + 1000)
    assert topic.consume("one") == [0, 1]
    assert topic.consume("other") == [0, 1, 3, 4] or topic.kind != "memory"
    topic.delayed.add_entry(delayed(5, NOW + 5000))


# --- the last millisecond, and what is no time at all --------------------------------------------


@of_kind(*KINDS)
def test_the_last_millisecond_is_listed_and_dropped(topic):
    last = [delayed(0, 2**63 - 1), delayed(1, 2**63 - 2)]
    topic.log.add_entries(last + [delayed(n, NOW + 9000) for n in range(2, 14)])
    tracker = topic.delayed.tracker(topic["one"].cursor)
    assert [at for at, *_ in tracker.list(2**63 - 2, 2**63)] == [2**63 - 2, 2**63 - 1]
    assert tracker.count(2**63 - 1, 2**63) == tracker.count(2**63 - 1, 10**30) == 1
    assert tracker.histogram([0, 2**62, 2**63]) == [12, 2]
    assert topic.delayed.index(topic["one"].cursor).clear(acknowledge=True) == 14
    assert topic["one"].cursor.backlog == 0


@of_kind(*KINDS)
@pytest.mark.parametrize("at", [1.5, NOW + 0.0, 2**63, -1, "1", None, True])
def test_a_message_is_rescheduled_to_whole_milliseconds_only(topic, at):
    (position,) = topic.publish(1000)
    tracker = topic.delayed.tracker(topic["one"].cursor)
    with pytest.raises(InvalidArgumentError):
        tracker.reschedule(*position, at)
    assert [due for due, *_ in tracker.list(0, 2**63)] == [NOW + 1000]


# --- what is due ---------------------------------------------------------------------------------


@of_kind(*KINDS)
def test_no_message_is_available_where_the_one_that_is_due_was_cancelled(topic):
    positions = topic.publish(*[1000 + n for n in range(20)])
    tracker = topic.delayed.tracker(topic["one"].cursor)
    for position in positions[:10]:
        assert topic["one"].cancel(position)
    topic.clock.set(NOW + 1009)
    assert not tracker.has_message_available()
    topic.clock.set(NOW + 1010)
    assert tracker.has_message_available()


def test_what_a_read_kept_to_itself_is_told_at_closing(tmp_path, monkeypatch):
    """A read that found entries gives them, and not the error that it met behind them; nobody else ever told of it."""
    clock = ManualClock(NOW)
    topic = ManagedLedger(
        tmp_path / "topic", fsync="never", clock=clock, config={"managedLedgerDefaultMarkDeleteRateLimit": 0}
    )
    cursor = topic.open_cursor("one", "earliest")
    with DelayedDelivery(topic, clock=clock) as delivery, delivery.dispatcher(cursor) as dispatcher:
        first, late = topic.add_entries([message(0), delayed(1, NOW + 1000)])
        assert [entry.position for entry in dispatcher.read(timeout=0)] == [first]
        delivery.tracker(cursor).cancel(*late)     # which leaves it to the next reading to acknowledge it
        dispatcher.redeliver([first])
        dispatcher._read_again()
        with monkeypatch.context() as patch:
            patch.setattr(CursorState, "write", fail_to_write)
            assert [entry.position for entry in dispatcher.read(timeout=0)] == [first]
    with pytest.raises(LogFailedError, match="no space"):
        topic.close()


def fail_to_write(state, fs, directory):
    raise StorageError("no space is left", file=directory)


@pytest.mark.parametrize("delay", [0.0019, 0.001, 0.29, timedelta(microseconds=1900), timedelta(microseconds=1)])
def test_a_delay_is_never_cut_by_the_clock_that_set_it(tmp_path, monkeypatch, delay):
    now_ns = 1_700_000_000_000_999_999      # the last moment of a millisecond
    with ManagedLedger(tmp_path / "t") as topic, DelayedDelivery(topic) as delivery:
        cursor = topic.open_cursor("s", "earliest")
        monkeypatch.setattr("time.time_ns", lambda: now_ns)
        delivery.publish(b"later", delay=delay)
        [entry] = cursor.read()
        length = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        delay_ns = length // timedelta(microseconds=1) * 1000
        early_ns = now_ns + delay_ns - entry.entry.metadata.deliver_at_time * 1_000_000
        assert -1_000_000 < early_ns <= 0


def test_no_delay_and_the_longest_one_are_not_rounded_up(tmp_path, monkeypatch):
    config = {"delayedDeliveryMaxDelayInMillis": 1000}
    with ManagedLedger(tmp_path / "t") as topic, DelayedDelivery(topic, config) as delivery:
        dispatcher = delivery.dispatcher(topic.open_cursor("s", "earliest"))
        monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_500_000)
        delivery.publish(b"at once", delay=0)
        delivery.publish(b"the longest", delay=1)
        with pytest.raises(InvalidArgumentError, match="a delay of 1002 ms"):
            delivery.publish(b"longer", delay=1.002)
        assert [bytes(entry.entry.payload()) for entry in dispatcher.read()] == [b"at once"]


def test_publishing_within_limits_parses_no_entry_that_it_has_just_built(tmp_path, monkeypatch):
    topic = Topic(tmp_path / "orders", "bucket")
    topic.delayed.reconfigure(SMALL | {"delayedDeliveryMaxDelayInMillis": 5000, "seglog.delayed.max.messages": 1})

    def refused(entry):
        raise AssertionError("an entry is parsed")

    with monkeypatch.context() as patch:
        patch.setattr(delivery_module, "Entry", refused)
        topic.delayed.publish(b"due in 4 s", delay=4)
        with pytest.raises(TooManyDelayedError):
            topic.delayed.publish(b"one too many", delay=3)
        with pytest.raises(InvalidArgumentError, match="delayedDeliveryMaxDelayInMillis is 5000"):
            topic.delayed.publish(b"too late", delay=6)
        topic.delayed.publish(b"at once")
    topic.delayed.close()
    topic.log.close()


def test_a_key_is_text_or_bytes(tmp_path):
    with ManagedLedger(tmp_path / "t") as topic, DelayedDelivery(topic) as delivery:
        dispatcher = delivery.dispatcher(topic.open_cursor("s", "earliest"))
        delivery.publish(b"1", key="k")
        delivery.publish(b"2", key=b"\xff\x00")
        with pytest.raises(InvalidArgumentError, match="a key must be text"):
            delivery.publish(b"3", key=5)
        found = [entry.entry.metadata for entry in dispatcher.read()]
        assert [(one.partition_key, one.partition_key_b64_encoded) for one in found] == [("k", False), ("/wA=", True)]
