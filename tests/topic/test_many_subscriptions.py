"""What an idle poll costs, and how many threads there are, does not grow with the subscriptions."""
import os
import sys

import pytest

from seglog.clock import ManualClock
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import delayed, message

NOW = 1_700_000_000_000


def looks_of_an_idle_poll(path, subscriptions, monkeypatch):
    """How often a poll asks a cursor where it is."""
    asked = []
    clock = ManualClock(NOW)
    with ManagedLedger(path, clock=clock, fsync="never") as log:
        cursors = [log.open_cursor(f"s{n}", "earliest") for n in range(subscriptions)]
        with DelayedDelivery(log, {"enableShareDelayedMessageIndex": True}, clock=clock) as deliveries:
            log.add_entries([message(0), delayed(1, NOW + 1000)])
            dispatcher = deliveries.dispatcher(cursors[0])
            assert len(dispatcher.read()) == 1
            dispatcher.read()
            where = ManagedCursor.mark_delete_position
            with monkeypatch.context() as patch:
                patch.setattr(
                    ManagedCursor, "mark_delete_position",
                    property(lambda cursor: asked.append(cursor) or where.fget(cursor)),
                )
                assert dispatcher.read() == []
    return len(asked)


def test_an_idle_poll_of_a_shared_index_looks_at_no_more_cursors_where_there_are_many(in_memory, monkeypatch):
    few = looks_of_an_idle_poll(in_memory / "few", 2, monkeypatch)
    assert looks_of_an_idle_poll(in_memory / "many", 60, monkeypatch) == few <= 10


def test_a_shared_index_trims_what_the_slowest_has_passed_whoever_comes_goes_or_turns_back(in_memory):
    clock = ManualClock(NOW)
    config = {"managedLedgerMaxEntriesPerLedger": 2}
    with ManagedLedger(in_memory / "orders", config=config, clock=clock, fsync="never") as log:
        one, other = (log.open_cursor(name, "earliest") for name in ("one", "other"))
        with DelayedDelivery(log, {"enableShareDelayedMessageIndex": True}, clock=clock) as deliveries:
            log.add_entries(delayed(n, NOW + 1000) for n in range(8))
            index, dispatcher = deliveries.index(one), deliveries.dispatcher(one)
            assert dispatcher.read() == []
            assert index.tracker.number_of_delayed_messages == 8
            one.clear_backlog()
            assert index.tracker.number_of_delayed_messages == 8, "the other one has not"
            other.skip(4)
            assert index.tracker.number_of_delayed_messages == 4
            third = log.open_cursor("third", "earliest")
            other.clear_backlog()
            dispatcher.read()
            assert index.tracker.number_of_delayed_messages == 4, "a third one has not"
            log.delete_cursor("third")
            dispatcher.read()
            assert third.closed
            assert index.tracker.number_of_delayed_messages <= 2, "those of the last ledger"
            log.add_entry(delayed(8, NOW + 1000))
            dispatcher.read()
            assert index.tracker.number_of_delayed_messages <= 3


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_many_subscriptions_share_a_few_threads(in_memory):
    before = len(os.listdir("/proc/self/task"))
    config = {"managedLedgerMaxEntriesPerLedger": 2}
    small = {"delayedDeliveryMinIndexCountPerBucket": 2, "delayedDeliveryLedgerStepPerBucket": 0}
    with ManagedLedger(in_memory / "orders", config=config, fsync="never") as log, DelayedDelivery(log, small) as topic:
        dispatchers = [topic.dispatcher(log.open_cursor(f"s{n}", "earliest")) for n in range(30)]
        for _ in range(3):
            topic.publish(b"later", delay=3600)
            topic.publish(b"later", delay=3600)
            for dispatcher in dispatchers:
                dispatcher.read()
        trackers = [topic.tracker(dispatcher.cursor) for dispatcher in dispatchers]
        for tracker in trackers:
            tracker.wait_idle()
        assert all(tracker.buckets for tracker in trackers)
        assert len(os.listdir("/proc/self/task")) <= before + 4
