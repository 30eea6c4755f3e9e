"""What a program does with a topic of delayed messages: publish, read values, keep policies, look at counts."""
import gc
import sys
import warnings
import weakref
from datetime import timedelta

import pytest

from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import BackgroundWorker, InlineWorker
from seglog.errors import InvalidArgumentError, InvalidConfigError
from seglog.ledger.message_batch import build_message_entry
from seglog.pulsar import ManagedLedger
from seglog.pulsar_pb.entry_pb2 import MessageMetadata
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import batch, delayed, message, numbers

NOW = 1_700_000_000_000
KINDS = {
    "memory": {"enableBucketDelayedDeliveryTracker": False},
    "bucket": {"delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4},
    "shared": {"enableShareDelayedMessageIndex": True},
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def log(tmp_path, clock):
    with ManagedLedger(tmp_path / "t", config={"managedLedgerMaxEntriesPerLedger": 4}, clock=clock) as log:
        log.open_cursor("one", "earliest")
        yield log


def opened(log, config=None):
    return DelayedDelivery(log, config, clock=log._clock, new_worker=InlineWorker)


# --- publishing --------------------------------------------------------------------------------


def test_a_message_is_published_with_a_delay_and_read_by_its_value(log, clock):
    with opened(log) as delivery, delivery.dispatcher(log.open_cursor("one")) as dispatcher:
        delivery.publish(b"later", delay=1.5, key="k", properties={"a": "b"})
        delivery.publish(b"at once")
        delivery.publish(b"in a while", delay=timedelta(seconds=1))
        delivery.publish(b"at a time", deliver_at_ms=NOW + 1200)
        assert [entry.value for entry in dispatcher.read()] == [b"at once"]
        clock.set(NOW + 1500)
        entries = dispatcher.read()
        assert [entry.value for entry in entries] == [b"in a while", b"at a time", b"later"]
        metadata = entries[2].entry.metadata
        assert (metadata.partition_key, metadata.publish_time, metadata.deliver_at_time) == ("k", NOW, NOW + 1500)
        assert [(p.key, p.value) for p in metadata.properties] == [("a", "b")]
        assert len({entry.entry.metadata.sequence_id for entry in log}) == 4


@pytest.mark.parametrize("how", [
    {"delay": -1}, {"delay": "1"}, {"delay": float("nan")}, {"delay": 1e300}, {"delay": 1, "deliver_at_ms": 5},
    {"deliver_at_ms": 1.5}, {"deliver_at_ms": -1}, {"deliver_at_ms": 2**63},
])
def test_what_is_no_delay_is_refused(log, how):
    with opened(log) as delivery:
        if how == {"delay": "1"}:
            how = {"delay": object()}
        with pytest.raises(InvalidArgumentError):
            delivery.publish(b"", **how)
        assert log.entry_count == 0


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_a_compressed_entry_gives_its_value(log, codec):
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    position = log.add_entry(build_message_entry(metadata, b"value " * 50, codec))
    assert log.read(position).value == log.read(position).entry.value == b"value " * 50


def test_the_value_of_a_batch_is_that_of_no_single_message(log):
    position = log.add_entry(batch(1, 3))
    with pytest.raises(InvalidArgumentError, match="batch of messages"):
        _ = log.read(position).value


# --- counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["acknowledge", "acknowledge_many", "mark_delete", "skip", "clear_backlog"])
def test_what_was_acknowledged_while_delayed_leaves_the_counts(log, clock, kind, how):
    with opened(log, kind) as delivery, delivery.dispatcher(cursor := log.open_cursor("one")) as dispatcher:
        positions = log.add_entries(delayed(n, NOW + 1000 + n) for n in range(22))
        assert dispatcher.read() == []
        tracker = delivery.tracker(cursor)
        assert tracker.number_of_delayed_messages == 22
        if how == "acknowledge":
            cursor.acknowledge(positions[5])
            cursor.acknowledge(positions[0])
            left = 20
        elif how == "acknowledge_many":
            cursor.acknowledge_many(positions[3:10])
            left = 15
        elif how == "mark_delete":
            cursor.mark_delete(positions[9])
            left = 12
        elif how == "skip":
            cursor.skip(7)
            left = 15
        else:
            cursor.clear_backlog()
            left = 0
        assert tracker.number_of_delayed_messages == left
        assert tracker.count(0, 2**63) == len(tracker.list(0, 2**63)) == left
        clock.set(NOW + 5000)
        assert len(dispatcher.read()) == left


def test_in_a_shared_index_a_message_counts_until_all_have_acknowledged_it(log, clock):
    with opened(log, KINDS["shared"]) as delivery:
        one, other = log.open_cursor("one"), log.open_cursor("other", "earliest")
        (position,) = log.add_entries([delayed(0, NOW + 1000)])
        tracker = delivery.tracker(one)
        assert tracker.count(0, 2**63) == 1
        one.acknowledge(position)
        assert tracker.number_of_delayed_messages == 1
        other.acknowledge(position)
        assert tracker.number_of_delayed_messages == 0


def test_buckets_are_counted_under_the_name_of_the_proposal(log):
    with opened(log, KINDS["bucket"]) as delivery, delivery.dispatcher(cursor := log.open_cursor("one")) as dispatcher:
        log.add_entries(delayed(n, NOW + 1000 + n) for n in range(22))
        dispatcher.read()
        tracker = delivery.tracker(cursor)
        values = {sample.name: sample.value for sample in tracker.samples()}
        assert values["pulsar_delayed_delivery_tracker_bucket_count"] == len(tracker.buckets) + 1 == 6


# --- policies ------------------------------------------------------------------------------------


def test_policies_are_kept_with_the_topic_and_count_at_once(tmp_path, clock):
    with ManagedLedger(tmp_path / "t", clock=clock) as log:
        log.open_cursor("one", "earliest")
        log.update_properties({"own": "x"})
        with opened(log, {"delayedDeliveryMaxDelayInMillis": 9000}) as delivery:
            assert delivery.policies == {}
            delivery.set_policies({
                "delayedDeliveryMaxDelayInMillis": 2000, "isDelayedDeliveryDeliverAtTimeStrict": False,
            })
            with pytest.raises(InvalidArgumentError, match="delayedDeliveryMaxDelayInMillis is 2000"):
                delivery.publish(b"", delay=3)
            delivery.reconfigure({"delayedDeliveryMaxDelayInMillis": 1})
    with ManagedLedger(tmp_path / "t", clock=clock) as log:
        with opened(log, {"delayedDeliveryMaxDelayInMillis": 9000}) as delivery:
            assert delivery.policies == {
                "delayedDeliveryMaxDelayInMillis": "2000", "isDelayedDeliveryDeliverAtTimeStrict": "false"
            }
            assert (delivery.config.max_delay_ms, delivery.config.strict) == (2000, False)
            delivery.set_policies({"delayedDeliveryMaxDelayInMillis": None})
            assert (delivery.config.max_delay_ms, delivery.config.strict) == (9000, False)
        assert log.properties["own"] == "x"


@pytest.mark.parametrize(("changes", "error"), [
    ({"delayedDeliveryMaxDelayInMilis": 1}, InvalidConfigError), ({"nothing": None}, InvalidConfigError),
    ({"delayedDeliveryTickTimeMillis": 0}, InvalidConfigError),
    ({"enableShareDelayedMessageIndex": True}, InvalidArgumentError),
])
def test_what_is_no_policy_is_refused_and_changes_nothing(log, changes, error):
    with opened(log) as delivery:
        with pytest.raises(error):
            delivery.set_policies({"delayedDeliveryMaxDelayInMillis": 5, **changes})
        assert delivery.policies == {}
        assert delivery.config == DelayedDeliveryConfig()


# --- forgotten, and few steps ---------------------------------------------------------------------


def test_a_delivery_that_nobody_closed_is_collected_and_gives_up_the_lock(tmp_path):
    config = {"delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4}
    log = ManagedLedger(tmp_path / "t", config={"managedLedgerMaxEntriesPerLedger": 4})
    delivery = DelayedDelivery(log, config, new_worker=BackgroundWorker)
    cursor = log.open_cursor("one", "earliest")
    dispatcher = delivery.dispatcher(cursor)
    log.add_entries(delayed(n, 2**62) for n in range(30))
    assert dispatcher.read() == []
    delivery.tracker(cursor).wait_idle()
    watched = [weakref.ref(delivery), weakref.ref(dispatcher), weakref.ref(log)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)     # that it was not closed
        del log, delivery, dispatcher, cursor
        gc.collect()
    assert [found() for found in watched] == [None, None, None]
    ManagedLedger(tmp_path / "t").close()


def test_the_first_read_that_meets_five_delayed_entries_takes_few_steps(tmp_path, clock):
    """187 calls of Python functions, entry by entry."""
    log = ManagedLedger(tmp_path / "t", clock=clock)
    log.open_cursor("one", "earliest")
    with log, opened(log, KINDS["memory"]) as delivery:
        log.add_entries([message(0)])
        with delivery.dispatcher(log.open_cursor("one")) as dispatcher:
            assert numbers(dispatcher.read()) == [0]
            log.add_entries(delayed(n, NOW + 1000) for n in range(1, 6))
            calls = 0

            def count(frame, event, argument):
                nonlocal calls
                calls += event == "call"

            sys.setprofile(count)
            try:
                assert dispatcher.read() == []
            finally:
                sys.setprofile(None)
            assert delivery.tracker(dispatcher.cursor).number_of_delayed_messages == 5
    assert calls <= 120, calls
