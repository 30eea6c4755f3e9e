"""Bugs of Pulsar's dispatchers that could occur here, one test each, named after where they were found.

Those of its trackers: tests/delayed/test_pulsar_bugs.py.
"""
import threading

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.errors import StorageError
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.topic.dispatcher import Dispatcher
from support.topics import delayed, message, numbers

NOW = 1_700_000_000_000
SMALL = {"delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4}


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def topic(tmp_path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 4, "defaultRetentionTimeInMinutes": -1}
    with ManagedLedger(tmp_path / "t", config=config, clock=clock) as topic:
        yield topic


@pytest.fixture
def delivery(topic, clock):
    with DelayedDelivery(topic, SMALL, clock=clock, new_worker=InlineWorker) as delivery:
        yield delivery


def publish(topic, *delays_ms):
    return topic.add_entries(
        message(n) if delay is None else delayed(n, NOW + delay) for n, delay in enumerate(delays_ms)
    )


def test_19801_14740_the_index_outlives_the_consumers(topic, delivery, clock):
    publish(topic, *[1000] * 10)
    cursor = topic.open_cursor("sub", "earliest")
    with delivery.dispatcher(cursor) as dispatcher:
        dispatcher.read()
    tracker = delivery.tracker(cursor)
    assert tracker.number_of_delayed_messages == 10
    cursor.rewind()
    clock.set(NOW + 1000)
    with delivery.dispatcher(cursor) as dispatcher:
        assert sorted(numbers(dispatcher.read())) == list(range(10))
        assert dispatcher.read() == []


def test_15171_10078_a_rewind_while_messages_wait_to_be_replayed_loses_none_of_them(topic, delivery, clock):
    publish(topic, *[1000] * 10, None)
    dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
    dispatcher.read()
    clock.set(NOW + 1000)
    assert len(dispatcher.read(3)) == 3
    dispatcher.rewind()
    assert sorted(numbers(dispatcher.read())) == list(range(11))


def test_15171_a_replay_whose_read_fails_is_tried_again(topic, delivery, clock, monkeypatch):
    publish(topic, 1000, 1000)
    dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
    dispatcher.read()
    clock.set(NOW + 1000)

    def refuse(position):
        raise StorageError("the disk refused")

    with monkeypatch.context() as broken:
        broken.setattr(topic, "read", refuse)
        with pytest.raises(StorageError):
            dispatcher.read()
    assert numbers(dispatcher.read()) == [0, 1]


def test_20099_5489_a_topic_that_is_opened_again_repeats_only_what_was_not_acknowledged(topic, clock):
    publish(topic, *[1000] * 8)
    cursor = topic.open_cursor("sub", "earliest")
    with DelayedDelivery(topic, SMALL, clock=clock, new_worker=InlineWorker) as delivery:
        dispatcher = delivery.dispatcher(cursor)
        dispatcher.read()
        clock.set(NOW + 1000)
        entries = dispatcher.read(5)
        cursor.acknowledge_many(entry.position for entry in entries[:3])
    cursor.rewind()
    with DelayedDelivery(topic, SMALL, clock=clock, new_worker=InlineWorker) as delivery:
        assert numbers(delivery.dispatcher(cursor).read()) == [3, 4, 5, 6, 7]


def test_25996_26012_a_reader_that_waits_is_woken_although_the_next_message_was_cancelled(topic, delivery, clock):
    positions = publish(topic, 1000, 2000)
    dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
    results = []
    thread = threading.Thread(target=lambda: results.append(numbers(dispatcher.read(timeout=30))))
    thread.start()
    while delivery.tracker(dispatcher.cursor).number_of_delayed_messages < 2:
        thread.join(0.01)
    dispatcher.cancel(positions[0])
    clock.set(NOW + 1000)
    thread.join(0.05)
    assert results == []
    clock.set(NOW + 2000)
    thread.join(30)
    assert results == [[1]]


def test_26103_26105_a_dispatcher_reads_on_while_a_snapshot_is_being_written(topic, clock):
    release = threading.Event()

    class Slow(InMemoryBucketSnapshotStorage):
        def create_snapshot(self, metadata, segments):
            release.wait(30)
            return super().create_snapshot(metadata, segments)

    publish(topic, *[1000] * 8, *[None] * 4)
    tracker = BucketDelayedDeliveryTracker(
        Slow(), DelayedDeliveryConfig(ledger_step=0, min_index_count=4), clock=clock
    )
    with Dispatcher(topic, topic.open_cursor("sub", "earliest"), tracker, clock=clock) as dispatcher:
        assert numbers(dispatcher.read()) == [8, 9, 10, 11]
        clock.set(NOW + 1000)
        assert sorted(numbers(dispatcher.read())) == list(range(8))
        release.set()
        tracker.wait_idle()
    tracker.close()


def test_13567_25310_one_clock_decides_whatever_a_producer_thinks_of_the_time(topic, delivery, clock):
    """Delays are asked for as times: those of a producer whose clock is slow are over already."""
    publish(topic, -500_000, 1000)
    dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
    assert numbers(dispatcher.read()) == [0]
    clock.set(NOW + 999)
    assert dispatcher.read() == []
    clock.set(NOW + 1000)
    assert numbers(dispatcher.read()) == [1]


def test_8714_clearing_the_backlog_delivers_nothing_later(topic, delivery, clock):
    publish(topic, *[1000] * 10)
    dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
    dispatcher.read()
    dispatcher.cursor.clear_backlog()
    clock.set(NOW + 1000)
    assert dispatcher.read() == []
    assert delivery.tracker(dispatcher.cursor).number_of_delayed_messages <= 2


def test_site_764_771_a_long_delay_keeps_ledgers_until_it_is_cancelled(tmp_path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 4, "defaultRetentionTimeInMinutes": 0}
    with (
        ManagedLedger(tmp_path / "t", config=config, clock=clock) as topic,
        DelayedDelivery(topic, SMALL, clock=clock, new_worker=InlineWorker) as delivery,
    ):
        publish(topic, 10**9, *[None] * 20)
        dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
        for entry in dispatcher.read():
            dispatcher.cursor.acknowledge(entry.position)
        assert topic.first_position == (0, 0)
        assert dispatcher.cursor.backlog == 1
        assert dispatcher.cancel(topic.first_position)
        topic.trim()
        assert topic.first_position.ledger_id == 5
        assert dispatcher.cursor.backlog == 0
