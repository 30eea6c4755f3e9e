"""A dispatcher: each entry when it is due, once, and what is delayed is not read before."""
import threading
import time

import pytest

from seglog.clock import ManualClock, SystemClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.errors import LogClosedError
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.topic.dispatcher import Dispatcher
from support.topics import delayed, message, numbers

NOW = 1_700_000_000_000


class Topic:
    """A managed ledger, one cursor from its start, a tracker over it and a dispatcher, under a clock that is set."""

    def __init__(self, path, kind="bucket", clock=None, entries_per_ledger=5, **config):
        self.clock = clock or ManualClock(NOW)
        self.log = ManagedLedger(
            path,
            config={"managedLedgerMaxEntriesPerLedger": entries_per_ledger, "defaultRetentionTimeInMinutes": -1},
            clock=self.clock,
        )
        self.cursor = self.log.open_cursor("sub", "earliest")
        settings = DelayedDeliveryConfig(**{"ledger_step": 0, "min_index_count": 4} | config)
        if kind == "memory":
            self.tracker = InMemoryDelayedDeliveryTracker(settings, clock=self.clock)
        else:
            storage = InMemoryBucketSnapshotStorage()
            self.tracker = BucketDelayedDeliveryTracker(storage, settings, clock=self.clock, worker=InlineWorker())
        self.dispatcher = Dispatcher(self.log, self.cursor, self.tracker, clock=self.clock)
        self.sleeps = threading.Semaphore(0)
        sleep = self.dispatcher._sleep
        self.dispatcher._sleep = lambda *how: (self.sleeps.release(), sleep(*how))
        self.reads = []
        read, _read_run = self.log.read, self.log._read_run
        self.log.read = lambda position: (self.reads.append(position), read(position))[1]
        self.log._read_run = lambda ledger_id, ids: (
            self.reads.extend(Position(ledger_id, entry_id) for entry_id in ids), _read_run(ledger_id, ids),
        )[1]

    def publish(self, *delays_ms):
        """Messages that are delayed by so much, None: not at all; numbered by where they stand."""
        first = self.log.entry_count
        return self.log.add_entries(
            message(n) if delay is None else delayed(n, self.clock.now_ms() + delay)
            for n, delay in enumerate(delays_ms, first)
        )

    def read(self, count=100):
        return numbers(self.dispatcher.read(count))

    def until_waiting(self):
        """Return when a reader has found nothing; it has the lock until it sleeps."""
        assert self.sleeps.acquire(timeout=30)
        with self.tracker.lock:
            pass

    def close(self):
        self.dispatcher.close()
        self.tracker.close()
        self.log.close()


@pytest.fixture(params=["memory", "bucket"])
def topic(request, tmp_path):
    topic = Topic(tmp_path / "t", request.param)
    yield topic
    topic.close()


def test_of_ten_entries_with_eight_delayed_two_are_read(topic):
    positions = topic.publish(None, *[1000] * 8, None)
    for position in positions[1:9]:
        assert topic.tracker.add_message(*position, NOW + 1000)
    assert topic.read() == [0, 9]
    assert topic.reads == [positions[0], positions[9]]
    topic.clock.set(NOW + 1000)
    assert topic.read() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(topic.reads) == 10


def test_what_is_delayed_and_not_known_is_added_when_it_is_read(topic):
    topic.publish(None, 500, 200, None)
    assert topic.read() == [0, 3]
    assert topic.tracker.number_of_delayed_messages == 2
    topic.clock.set(NOW + 199)
    assert topic.read() == []
    topic.clock.set(NOW + 500)
    assert topic.read() == [2, 1]


def test_what_is_due_and_not_known_is_dispatched_at_once(topic):
    topic.publish(100, -5, 0)
    topic.clock.set(NOW + 100)
    assert topic.read() == [0, 1, 2]
    assert topic.tracker.number_of_delayed_messages == 0


def test_no_more_are_given_than_asked_for_and_none_twice(topic):
    topic.publish(None, 100, None, 100, 100, None)
    assert topic.read(2) == [0, 2]
    topic.clock.set(NOW + 100)
    assert topic.read(2) == [1, 3]
    assert topic.read(2) == [4, 5]
    assert topic.read() == []


def test_what_was_acknowledged_meanwhile_is_not_replayed(topic):
    positions = topic.publish(100, 100, 100, None)
    assert topic.read() == [3]
    topic.cursor.acknowledge(positions[1])
    topic.cursor.mark_delete(positions[0])
    topic.clock.set(NOW + 100)
    assert topic.read() == [2]
    assert topic.read() == []


def test_ledgers_that_the_cursor_has_passed_are_forgotten(topic):
    positions = topic.publish(*[100_000] * 12)
    assert topic.read() == []
    topic.cursor.mark_delete(positions[10])
    topic.read()
    assert topic.tracker.number_of_delayed_messages == 1
    topic.clock.set(NOW + 100_000)
    assert topic.read() == [11]


def test_what_a_tracker_knows_ahead_of_the_cursor_comes_once(topic):
    """After a restart the tracker has messages from snapshots, and the cursor is at its mark-delete position."""
    positions = topic.publish(None, 1000, 2000, None)
    topic.tracker.add_message(*positions[1], NOW + 1000)
    topic.tracker.add_message(*positions[2], NOW + 2000)
    topic.clock.set(NOW + 1500)
    assert topic.read(1) == [1]
    assert topic.read() == [0, 3]
    topic.clock.set(NOW + 2000)
    assert topic.read() == [2]


def test_a_rewind_gives_everything_that_is_due_once_more(topic):
    positions = topic.publish(None, 100, None, 9000)
    topic.read()
    topic.clock.set(NOW + 100)
    assert topic.read() == [1]
    topic.cursor.acknowledge(positions[0])
    topic.dispatcher.rewind()
    assert topic.read() == [1, 2]
    topic.clock.set(NOW + 9000)
    assert topic.read() == [3]


def test_single_entries_are_delivered_again(topic):
    positions = topic.publish(None, None, None)
    topic.read()
    topic.cursor.acknowledge(positions[1])
    topic.dispatcher.redeliver([positions[2], positions[1], positions[2]])
    assert topic.read() == [2]
    assert topic.read() == []


def test_a_cancelled_message_is_acknowledged(topic):
    positions = topic.publish(1000, None)
    topic.read()
    topic.cursor.acknowledge(positions[1])
    assert topic.dispatcher.cancel(positions[0])
    assert not topic.dispatcher.cancel(positions[0])
    assert topic.cursor.backlog == 0
    topic.clock.set(NOW + 1000)
    assert topic.read() == []


def test_a_message_that_was_cancelled_before_a_crash_is_acknowledged_when_it_is_read(topic):
    (position,) = topic.publish(1000)
    topic.tracker.add_message(*position, NOW + 1000)
    topic.tracker.cancel(*position)
    assert topic.read() == []
    assert topic.cursor.backlog == 0


def test_what_is_in_the_log_is_delivered_however_many_messages_may_be_delayed(tmp_path):
    """The limit is for those who publish. In the log, it held up messages that are not delayed."""
    topic = Topic(tmp_path / "t", max_delayed=2)
    topic.publish(100, 200, 300, None)
    assert topic.read() == [3]
    assert topic.tracker.number_of_delayed_messages == 3
    topic.clock.set(NOW + 300)
    assert topic.read() == [0, 1, 2]
    topic.close()


def test_a_closed_dispatcher_gives_nothing(topic):
    topic.dispatcher.close()
    topic.dispatcher.close()
    with pytest.raises(LogClosedError):
        topic.dispatcher.read()


# --- waiting -----------------------------------------------------------------------------------


def in_thread(function):
    """(thread, its results), started."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def test_a_reader_waits_no_longer_than_it_was_told(topic):
    topic.publish(100_000)
    assert topic.dispatcher.read(timeout=0.05) == []


def test_a_waiting_reader_is_woken_by_an_entry(topic):
    thread, results = in_thread(lambda: topic.dispatcher.read(timeout=None))
    topic.until_waiting()
    topic.publish(None)
    thread.join(60)
    assert numbers(results[0]) == [0]


def test_a_waiting_reader_is_woken_when_the_clock_is_set_forward(topic):
    topic.publish(3_600_000)
    thread, results = in_thread(lambda: topic.dispatcher.read(timeout=None))
    topic.until_waiting()
    assert not results
    topic.clock.set(NOW + 3_600_000)
    thread.join(60)
    assert numbers(results[0]) == [0]


def test_a_clock_that_is_set_back_makes_no_message_early(topic):
    topic.publish(1000)
    topic.read()
    topic.clock.set(NOW + 999)
    assert topic.read() == []
    topic.clock.set(NOW - 5000)
    assert topic.dispatcher.read(timeout=0.05) == []
    topic.clock.set(NOW + 1000)
    assert topic.read() == [0]


def test_a_waiting_reader_is_woken_when_a_message_is_rescheduled(topic):
    (position,) = topic.publish(3_600_000)
    thread, results = in_thread(lambda: topic.dispatcher.read(timeout=None))
    topic.until_waiting()
    assert topic.tracker.deliver_now(*position)
    thread.join(60)
    assert numbers(results[0]) == [0]


def test_a_waiting_reader_does_not_look_at_the_clock_again_and_again(topic):
    """Fifty of them took 18 % of a core, looking every 10 ms."""
    topic.publish(3_600_000)
    assert topic.dispatcher.read(timeout=0.3) == []
    looks = 0
    while topic.sleeps.acquire(blocking=False):
        looks += 1
    assert looks <= 1       # none if its time was over at once


class SilentClock:
    """A clock that cannot tell when it is set."""

    def __init__(self, now_ms):
        self.now = now_ms

    def now_ms(self):
        return self.now

    def monotonic_ns(self):
        return time.monotonic_ns()


def test_a_waiting_reader_looks_now_and_then_at_a_clock_that_cannot_tell(tmp_path):
    topic = Topic(tmp_path / "t", clock=SilentClock(NOW))
    topic.publish(3_600_000)
    thread, results = in_thread(lambda: topic.dispatcher.read(timeout=None))
    topic.until_waiting()
    topic.clock.now += 3_600_000
    thread.join(60)
    assert numbers(results[0]) == [0]
    topic.close()


def test_a_waiting_reader_gives_up_when_the_dispatcher_is_closed(topic):
    def wait():
        with pytest.raises(LogClosedError):
            topic.dispatcher.read(timeout=None)
        return "closed"

    thread, results = in_thread(wait)
    topic.until_waiting()
    topic.dispatcher.close()
    thread.join(60)
    assert results == ["closed"]


@pytest.mark.parametrize("kind", ["memory", "bucket"])
def test_by_the_clock_of_the_machine_no_message_is_early(tmp_path, kind):
    topic = Topic(tmp_path / "t", kind, clock=SystemClock())
    topic.publish(*range(20, 120, 2))
    due = {n: topic.log.read(position).entry.fields().deliver_at_time for n, position in enumerate(
        entry.position for entry in topic.log
    )}
    got = []
    while len(got) < 50:
        entries = topic.dispatcher.read(timeout=60)
        now = time.time_ns() // 10**6
        assert entries
        assert all(due[n] <= now for n in numbers(entries))
        got += numbers(entries)
    assert got == sorted(got)
    topic.close()


def test_adding_and_reading_threads_lose_and_repeat_nothing(tmp_path):
    topic = Topic(tmp_path / "t", clock=SystemClock(), entries_per_ledger=60, min_index_count=50, max_buckets=2)
    total, got, lock = 600, [], threading.Lock()

    def consume():
        while len(got) < total:
            for entry in topic.dispatcher.read(20, timeout=0.2):
                with lock:
                    got.append(*numbers([entry]))
                topic.cursor.acknowledge(entry.position)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    for n in range(0, total, 20):
        topic.publish(*[None if k % 3 == 0 else k * 37 % 300 for k in range(n, n + 20)])
    for consumer in consumers:
        consumer.join(60)
    assert sorted(got) == list(range(total))
    assert topic.cursor.backlog == 0
    topic.close()
