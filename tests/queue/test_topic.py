"""A topic: subscriptions by their kind, order, positions, producers, and what it refuses."""
import logging
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    LeaseLostError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    SubscriptionBusyError,
)
from seglog.ledger.managed.journal import JournalKind, read_journal
from seglog.pulsar import ManagedLedger, Position, build_entry
from seglog.queue import sequences, subscription
from support.crash.faultfs import HeldNameFs
from support.subscribed_topic import NOW

WHOLE = ("exclusive", "failover", "shared", "key_shared")


@pytest.fixture
def path(in_memory):
    return in_memory / "topic"


@pytest.fixture
def topic(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        yield topic


def values(messages):
    return [message.value for message in messages]


def fill(topic, *texts, **options):
    """Publish `k1` with the key k."""
    return [topic.publish(text.encode(), key=text[:1], **options) for text in texts]


# --- subscriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WHOLE)
def test_each_subscription_gets_every_message(topic, kind):
    fill(topic, "a1", "b1")
    one = topic.subscribe("one", kind=kind, start="earliest")
    other = topic.subscribe("other", kind=kind, start="earliest")
    for consumer in (one, other):
        got = consumer.get_many(10, timeout=0)
        assert values(got) == [b"a1", b"b1"]
        consumer.ack(got)
    assert one.stats().backlog == other.stats().backlog == 0


def test_a_subscription_keeps_its_messages_without_a_consumer(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        topic.subscribe("billing").close()
        fill(topic, "a1", "a2")
        topic.subscribe("later").close()
        with topic.subscribe("billing") as billing:
            billing.get(0).ack()
    with seglog.Topic(path, clock=clock) as topic:
        assert topic.subscriptions == ["billing", "later"]
        with topic.subscribe("billing", start="earliest") as billing, topic.subscribe("later") as later:
            assert values(billing.get_many(10, timeout=0)) == [b"a2"]
            assert later.get(0) is None


def test_acknowledgements_of_several_subscriptions_are_in_one_journal(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        fill(topic, "a1")
        for name in ("one", "two", "three"):
            topic.subscribe(name, start="earliest").get(0).ack()
        records = read_journal(path).records
    assert [one.subscription for one in records if one.kind is JournalKind.ACKED] == ["one", "two", "three"]
    assert [path.name for path in path.glob("*.journal")] == ["queue.journal"]


def test_a_message_that_its_process_did_not_finish_is_counted(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        fill(topic, "a1", "a2")
        one, other = topic.subscribe("one", start="earliest"), topic.subscribe("other", start="earliest")
        one.get_many(2, timeout=0)[0].ack()
        other.get(0)
    with seglog.Topic(path, clock=clock) as topic:
        topic.subscribe("unused")       # the state of the others outlives an opening without their consumers
    with seglog.Topic(path, clock=clock) as topic:
        [message] = topic.subscribe("one").get_many(10, timeout=0)
        assert (message.value, message.attempt) == (b"a2", 2)
        assert [message.attempt for message in topic.subscribe("other").get_many(10, timeout=0)] == [2, 1]


@pytest.mark.parametrize(("kind", "other"), [
    ("exclusive", "exclusive"), ("exclusive", "shared"), ("shared", "key_shared"), ("failover", "exclusive"),
])
def test_consumers_that_cannot_share_a_subscription(topic, kind, other):
    first = topic.subscribe("s", kind=kind)
    with pytest.raises(SubscriptionBusyError, match="subscription 's'"):
        topic.subscribe("s", kind=other)
    first.close()
    assert topic.subscribe("s", kind=other).kind == other


def test_consumers_of_a_subscription_have_the_same_options(topic):
    consumer = topic.subscribe("s", kind="shared", max_attempts=3)
    with pytest.raises(InvalidArgumentError, match="other options"):
        topic.subscribe("s", kind="shared", max_attempts=4)
    del consumer        # one that nobody has any more, and did not close, holds nobody up
    assert topic.subscribe("s", kind="exclusive", max_attempts=4).is_active


def test_a_consumer_that_closes_gives_its_messages_to_the_others(topic):
    fill(topic, "a1", "b1", "c1")
    one = topic.subscribe("s", kind="shared", start="earliest")
    two = topic.subscribe("s", kind="shared")
    taken, kept = one.get(0), two.get(0)
    one.close()
    got = two.get_many(10, timeout=0)
    assert [(one.value, one.attempt) for one in got] == [(taken.value, 2), (b"c1", 1)]
    taken.ack()     # late: it counts
    with pytest.raises(LeaseLostError, match="message 0:0"):
        got[0].nack()
    kept.ack()
    with pytest.raises(LogClosedError, match="consumer of s"):
        one.get(0)


def test_a_failover_consumer_waits_until_the_one_before_it_closes(topic):
    fill(topic, "a1", "a2", "a3")
    one, two, three = (topic.subscribe("s", kind="failover", start="earliest") for _ in range(3))
    assert values(one.get_many(2, timeout=0)) == [b"a1", b"a2"]
    assert two.get(0) is None
    assert (one.is_active, two.is_active) == (True, False)
    got = []
    waiter = threading.Thread(target=lambda: got.append(two.get(10)))
    waiter.start()
    one.close()
    waiter.join(10)
    assert (got[0].value, got[0].attempt) == (b"a1", 2)
    assert three.get(0) is None


# --- order ---------------------------------------------------------------------------------------


def test_text_and_its_bytes_are_one_key(topic):
    topic.publish(b"1", key="ü")
    topic.publish(b"2", key="ü".encode())
    topic.publish_many([("ü".encode(), b"3"), (b"\xff", b"4")])
    consumer = topic.subscribe("s", kind="key_shared", start="earliest")
    assert values(consumer.get_many(10, timeout=0)) == [b"1", b"4"]


def test_messages_of_a_key_come_one_by_one_and_others_do_not_wait(topic):
    fill(topic, "a1", "a2", "b1", "a3", "b2")
    topic.publish(b"no key")
    one = topic.subscribe("s", kind="key_shared", start="earliest")
    two = topic.subscribe("s", kind="key_shared")
    first = one.get(0)
    assert values(two.get_many(10, timeout=0)) == [b"b1", b"no key"]
    assert one.get(0) is None
    stats = one.stats()
    assert (stats.ready, stats.held_back, stats.in_flight, stats.backlog) == (0, 3, 3, 6)
    first.ack()
    assert values(two.get_many(10, timeout=0)) == [b"a2"]


def test_later_messages_of_a_key_wait_for_a_refused_one_until_it_is_dead(topic, clock, caplog):
    fill(topic, "a1", "a2", "b1")
    consumer = topic.subscribe("s", kind="key_shared", start="earliest", max_attempts=2, retry_jitter=0)
    first = consumer.get(0)
    first.nack(reason="not now")
    assert values(consumer.get_many(10, timeout=0)) == [b"b1"]
    clock.advance(999)
    assert consumer.get(0) is None
    clock.advance(1)
    again = consumer.get(0)
    assert (again.value, again.attempt) == (b"a1", 2)
    with caplog.at_level(logging.ERROR):
        again.nack(reason="never")
    assert "message 0:0 is dead after attempt 2: never" in caplog.text
    assert consumer.get(0).value == b"a2"
    [dead] = consumer.dead
    assert (dead.value, dead.reason, type(dead)) == (b"a1", "never", seglog.DeadMessage)


def test_the_order_of_a_key_holds_in_batches_and_over_openings(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s", kind="key_shared")
        topic.publish_many([("a", b"1"), ("b", b"2"), ("a", b"3")])
        fill(topic, "a4")
        assert values(consumer.get_many(10, timeout=0)) == [b"1", b"2"]
        [third] = [message for message in consumer.peek(10) if message.value == b"3"]
        third.ack()     # nobody has it: it waits for its key
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s", kind="key_shared")
        first, _ = got = consumer.get_many(10, timeout=0)
        assert values(got) == [b"1", b"2"]
        first.ack()
        assert values(consumer.get_many(10, timeout=0)) == [b"a4"]


def test_an_ordering_key_comes_before_the_key(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        topic.subscribe("s").close()
    with ManagedLedger(path, clock=clock) as ledger:
        for number, (key, ordering) in enumerate([("k", b"x"), ("l", b"x"), ("k", b"y")]):
            metadata = seglog.pulsar.MessageMetadata(
                producer_name="p", sequence_id=number, publish_time=NOW, partition_key=key, ordering_key=ordering
            )
            ledger.add_entry(build_entry(metadata, b"%d" % number))
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s", kind="key_shared")
        assert values(consumer.get_many(10, timeout=0)) == [b"0", b"2"]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_a_refused_message_holds_all_later_ones_up(topic, clock, kind):
    fill(topic, "a1", "b1", "c1")
    consumer = topic.subscribe("s", kind=kind, start="earliest", retry_delay=2, retry_jitter=0)
    first, second = consumer.get_many(2, timeout=0)
    first.nack()
    assert consumer.get(0) is None
    clock.advance(2000)
    got = consumer.get_many(10, timeout=0)
    assert [(one.value, one.attempt) for one in got] == [(b"a1", 2), (b"b1", 1), (b"c1", 1)]
    second.ack()        # late: it counts
    assert consumer.stats().in_flight == 2


def test_after_a_lease_ended_later_messages_come_again_behind_it(topic, clock):
    fill(topic, "a1", "b1", "c1")
    consumer = topic.subscribe("s", start="earliest", lease=5)
    consumer.get(0)
    later = consumer.get_many(2, timeout=0)
    later[0].extend(100)
    clock.advance(5000)
    assert [(one.value, one.attempt) for one in consumer.get_many(10, timeout=0)] == [
        (b"a1", 2), (b"b1", 1), (b"c1", 2)]


@pytest.mark.parametrize("kind", WHOLE)
def test_a_delayed_message_is_never_early_and_holds_nobody_up(topic, clock, kind):
    topic.publish(b"late", key="a", delay=10)
    fill(topic, "a1")
    consumer = topic.subscribe("s", kind=kind, start="earliest")
    consumer.get(0).ack()
    clock.advance(9_999)
    assert consumer.get(0) is None
    clock.advance(1)
    assert consumer.get(0).value == b"late"


def test_a_shared_index_of_delayed_messages(path, clock):
    with seglog.Topic(path, clock=clock, config={"enableShareDelayedMessageIndex": True}) as topic:
        consumers = [topic.subscribe(name, kind="shared") for name in ("one", "two")]
        topic.publish(b"late", delay=10)
        assert [one.get(0) for one in consumers] == [None, None]
        clock.advance(10_000)
        assert [one.get(0).value for one in consumers] == [b"late", b"late"]
        assert topic.subscriptions == ["one", "two"]


def test_a_subscription_stops_reading_when_too_many_wait_for_their_keys(topic, monkeypatch, caplog):
    monkeypatch.setattr(subscription, "LOOK_AHEAD", 100)
    fill(topic, *[f"a{number}" for number in range(300)], "b1")
    consumer = topic.subscribe("s", kind="key_shared", start="earliest")
    first = consumer.get(0)
    with caplog.at_level(logging.WARNING):
        assert consumer.get(0) is None
        assert consumer.get(0) is None
    assert caplog.text.count("subscription s waits: ") == 1
    stats = consumer.stats()
    assert stats.is_at_limit
    assert 100 <= stats.held_back < 200
    assert stats.backlog == 301
    first.ack()
    got = []
    while message := consumer.get(0):
        got.append(message.value)
        message.ack()
    assert got == [*(b"a%d" % number for number in range(1, 300)), b"b1"]
    assert not consumer.stats().is_at_limit


def test_a_waiting_consumer_is_woken_when_its_key_is_free(topic):
    fill(topic, "a1", "a2")
    one, two = (topic.subscribe("s", kind="key_shared", start="earliest") for _ in range(2))
    first, got = one.get(0), []
    waiter = threading.Thread(target=lambda: got.append(two.get(10)))
    waiter.start()
    time.sleep(0.05)
    first.ack()
    waiter.join(10)
    assert values(got) == [b"a2"]


# --- cumulative acknowledgements, positions ------------------------------------------------------


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_a_cumulative_acknowledgement(path, clock, kind):
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s", kind=kind, max_attempts=1)
        fill(topic, "a1")
        topic.publish(b"late", delay=60)
        topic.publish_many([b"b0", b"b1", b"b2"])
        consumer.get(0).nack(reason="dead now")
        got = consumer.get_many(3, timeout=0)
        assert values(got) == [b"b0", b"b1", b"b2"]
        got[1].ack_cumulative()
        assert got[1].is_settled
    clock.advance(60_000)
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s", kind="shared", max_attempts=5)
        assert sorted(values(consumer.get_many(10, timeout=0))) == [b"b2", b"late"]
        assert values(consumer.dead) == [b"a1"]


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
def test_no_cumulative_acknowledgement_with_several_consumers(topic, kind):
    consumer = topic.subscribe("s", kind=kind)
    fill(topic, "a1")
    message = consumer.get(0)
    with pytest.raises(InvalidArgumentError, match=f"this one is {kind}"):
        message.ack_cumulative()
    assert not message.is_settled
    message.ack()


STARTS = {
    "earliest": ("earliest", 0), "latest": ("latest", 6), "position": (Position(0, 2), 2), "index": (4, 3),
    "time": (datetime.fromtimestamp(NOW / 1000 + 20, UTC), 2), "text": ("2023-11-14T22:13:35Z", 2),
    "later": ("+1h", 6), "ago": ("-25s", 2),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("by", ["subscribe", "seek"])
def test_starts(topic, clock, start, by):
    """Entries 0 to 3, ten seconds apart; entry 2 has two messages."""
    clock.advance(0)
    topic.subscribe("keeps")
    entries = [[b"0"], [b"1"], [b"2", b"3"], [b"4"]]
    for entry in entries:
        topic.publish_many(entry)
        clock.advance(10_000)
    where, count = STARTS[start]
    expected = [value for entry in entries[count:] for value in entry]
    consumer = topic.subscribe("s", start=where if by == "subscribe" else "earliest")
    if by == "seek":
        consumer.get_many(10, timeout=0)[3].ack()
        consumer.seek(where)
    topic.publish(b"new")
    assert values(consumer.get_many(10, timeout=0)) == [*expected, b"new"]


def test_a_seek_forgets_what_was_delivered_durably(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        fill(topic, "a1", "a2", "a3")
        topic.subscribe("keeps", start="earliest")
        consumer = topic.subscribe("s", start="earliest", max_attempts=1)
        first, second, third = consumer.get_many(3, timeout=0)
        assert [message.index for message in (first, second, third)] == [0, 1, 2]
        first.ack()
        second.nack()
        consumer.seek(first)
        with pytest.raises(LeaseLostError):
            third.nack()
        assert len(consumer.dead) == 0
    with seglog.Topic(path, clock=clock) as topic:
        got = topic.subscribe("s", max_attempts=1).get_many(10, timeout=0)
        assert [(one.value, one.attempt) for one in got] == [(b"a1", 1), (b"a2", 1), (b"a3", 1)]


def test_a_seek_past_a_delayed_message_leaves_it_out(topic, clock):
    topic.publish(b"later", delay=60)
    topic.publish(b"soon", delay=20)
    consumer = topic.subscribe("s", start="earliest")
    assert consumer.get(timeout=0) is None
    consumer.seek(1)
    stats = consumer.stats()
    assert (stats.backlog, stats.delayed) == (1, 1)
    clock.advance(60_000)
    assert values(consumer.get_many(9, timeout=0)) == [b"soon"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_seek_back_finds_a_delayed_message_again(path, clock, is_shared):
    with seglog.Topic(path, clock=clock, config={"enableShareDelayedMessageIndex": is_shared}) as topic:
        topic.publish(b"later", delay=60)
        topic.publish(b"now")
        topic.publish(b"next")
        one, other = (topic.subscribe(name, start="earliest", lease=600) for name in ("one", "other"))
        other.seek(1)
        one.seek(1)
        other.seek(0)
        assert values(other.get_many(9, timeout=0)) == [b"now", b"next"]
        for message in one.get_many(9, timeout=0):
            message.ack()
        clock.advance(60_000)
        assert values(other.get_many(9, timeout=0)) == [b"later"]


def test_unsubscribe(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        fill(topic, "a1")
        one = topic.subscribe("s", kind="shared", start="earliest", max_attempts=1)
        two = topic.subscribe("s", kind="shared", max_attempts=1)
        one.get(0).nack()
        topic.publish(b"b1")
        with pytest.raises(SubscriptionBusyError, match="2 consumers"):
            one.unsubscribe()
        two.close()
        late = one.peek(1)
        one.unsubscribe()
        assert one.closed
        for message in late:
            with pytest.raises(LogClosedError, match="subscription s was removed"):
                message.ack()
        assert topic.subscriptions == []
        with pytest.raises(InvalidArgumentError, match="no subscription 's'"):
            topic.unsubscribe("s")
        again = topic.subscribe("s", start="earliest", max_attempts=1)
        assert (again.get(0).attempt, len(again.dead)) == (1, 0)
        again.close()
        topic.unsubscribe("s")
    with seglog.Topic(path, clock=clock) as topic:
        assert topic.subscriptions == []
        assert topic.subscribe("s", start="earliest").get(0).attempt == 1


def test_a_removed_subscription_does_not_come_back(tmp_path):
    """fsync="interval": its cursor's file is being written in the background when it is removed."""
    path, fs = tmp_path / "topic", HeldNameFs(".cursor")
    with seglog.Topic(path, fsync="interval", config={"flush.ms": 600_000}, fs=fs) as topic:
        fill(topic, "a1")
        consumer = topic.subscribe("s", start="earliest")
        consumer.get(0).ack()
        fs.armed = True
        writer = threading.Thread(target=topic._home.managed_ledger._maintain)
        writer.start()
        assert fs.begun.wait(10)
        remover = threading.Thread(target=consumer.unsubscribe)
        remover.start()
        remover.join(0.2)       # it waits for the writer, or is done before it
        fs.go.set()
        writer.join()
        remover.join()
    with seglog.Topic(path) as topic:
        assert topic.subscriptions == []


# --- producers, compaction -----------------------------------------------------------------------


def test_a_repeated_sequence_id_is_not_stored_again(path, clock, monkeypatch):
    monkeypatch.setattr(sequences, "SNAPSHOT_ENTRIES", 3)
    with seglog.Topic(path, clock=clock) as topic:
        consumer = topic.subscribe("s")
        with topic.producer("import") as producer:
            assert producer.last_sequence_id == -1
            assert producer.publish(b"first") == "0:0"
            assert producer.publish(b"ten", sequence_id=10) == "0:1"
            assert producer.publish(b"ten", sequence_id=10) is None
            assert producer.publish(b"nine", sequence_id=9) is None
            with pytest.raises(SubscriptionBusyError, match="'import' is open"):
                topic.producer("import")
        with topic.producer("other") as other:
            other.publish(b"other", sequence_id=10)
        topic.publish(b"plain")
        assert values(consumer.get_many(10, timeout=0)) == [b"first", b"ten", b"other", b"plain"]
    for _ in range(2):
        with seglog.Topic(path, clock=clock) as topic, topic.producer("import") as producer:
            assert producer.last_sequence_id == 10
            assert producer.publish(b"ten", sequence_id=10) is None
            assert topic.subscriptions == ["s"]


def test_a_broker_finds_the_sequence_ids_that_seglog_stored(path, clock):
    """MessageDeduplication stores {producer: highest sequence id} as properties of the cursor pulsar.dedup."""
    with seglog.Topic(path, clock=clock) as topic:
        with topic.producer("import") as producer:
            for number in range(1500):
                producer.publish(b"x", sequence_id=2 * number)
        cursor = topic._home.managed_ledger.cursors["pulsar.dedup"]
        assert cursor.properties == {"import": "1998"}
        assert cursor.mark_delete_position == topic._home.managed_ledger.previous_valid(Position(0, 1000))


def test_a_producer_after_an_interrupt_looks_at_what_was_stored(topic, monkeypatch):
    producer = topic.producer("import")
    producer.publish(b"0")
    publish = topic._publish

    def interrupted(*args, **named):
        publish(*args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(topic, "_publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.publish(b"1", sequence_id=1)
    assert producer.publish(b"1", sequence_id=1) is None
    assert producer.last_sequence_id == 1


def test_threads_that_repeat_each_others_messages(topic):
    producer, consumer = topic.producer("import"), topic.subscribe("s")

    def repeat():
        for number in range(50):
            producer.publish(b"%d" % number, sequence_id=number)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = values(consumer.get_many(1000, timeout=0))
    assert sorted(got, key=int) == got
    assert len({*got}) == len(got)
    assert got[-1] == b"49"


def test_reading_compacted(topic):
    consumer = topic.subscribe("s", start="earliest")
    fill(topic, "a1", "b1", "a2")
    topic.publish(b"c1", key=b"\xff")
    topic.compact()
    topic.publish_many([("b", b"b2"), ("d", b"d1")])
    read = [(one.key, one.value) for one in topic.read_compacted()]
    assert read == [("b", b"b1"), ("a", b"a2"), (b"\xff", b"c1"), ("b", b"b2"), ("d", b"d1")]
    assert len(consumer.get_many(10, timeout=0)) == 6


# --- doors ---------------------------------------------------------------------------------------


def test_another_process_and_another_face(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        topic.subscribe("s")
        with pytest.raises(LogLockedError) as caught:
            seglog.Topic(path)
        assert "shares it among its threads" in str(caught.value.hint)
        code = "import sys, seglog\ntry: seglog.Topic(sys.argv[1])\n" \
            "except seglog.errors.LogLockedError: print('locked')"
        ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
        assert ran.stdout == "locked\n", ran.stderr
    with pytest.raises(NotALogError, match="not a queue, but a topic"):
        seglog.Queue(path)
    with seglog.Queue(path.parent / "queue") as queue:
        queue.put(b"x")
    with pytest.raises(NotALogError, match="not a topic, but a queue"):
        seglog.Topic(path.parent / "queue")
    with pytest.raises(NotALogError, match="not a topic"):
        seglog.Topic(path.parent / "nothing", create=False)


def test_a_managed_ledger_of_a_broker_becomes_a_topic(path, clock):
    with ManagedLedger(path, clock=clock) as ledger:
        cursor = ledger.open_cursor("billing", "earliest")
        for number in range(3):
            metadata = seglog.pulsar.MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW)
            ledger.add_entry(build_entry(metadata, b"%d" % number))
        cursor.acknowledge(Position(0, 1))
    with seglog.Topic(path, clock=clock) as topic:
        assert values(topic.subscribe("billing").get_many(10, timeout=0)) == [b"0", b"2"]


WRONG = {
    "kind": lambda topic: topic.subscribe("s", kind="sharde"),
    "name": lambda topic: topic.subscribe(b"s"),
    "own name": lambda topic: topic.subscribe("pulsar.dedup"),
    "start": lambda topic: topic.subscribe("s", start=1.5),
    "start text": lambda topic: topic.subscribe("s", start="yesterday"),
    "start bool": lambda topic: topic.subscribe("s", start=True),
    "lease": lambda topic: topic.subscribe("s", lease=0),
    "attempts": lambda topic: topic.subscribe("s", max_attempts="3"),
    "value": lambda topic: topic.publish("text"),
    "key": lambda topic: topic.publish(b"x", key=1),
    "delay": lambda topic: topic.publish(b"x", delay=-1),
    "delay and at": lambda topic: topic.publish(b"x", delay=1, at="+1m"),
    "many": lambda topic: topic.publish_many(b"x"),
    "one of many": lambda topic: topic.publish_many([b"x", 3]),
    "producer": lambda topic: topic.producer(""),
    "sequence": lambda topic: topic.producer("p").publish(b"x", sequence_id=-1),
    "sequence bool": lambda topic: topic.producer("q").publish(b"x", sequence_id=True),
    "count": lambda topic: topic.subscribe("s").get_many(0),
    "timeout": lambda topic: topic.subscribe("s").get("soon"),
    "seek": lambda topic: topic.subscribe("s").seek(None),
    "ack": lambda topic: topic.subscribe("s").ack([b"x"]),
    "ack one": lambda topic: topic.subscribe("s").ack(b"x"),
    "peek": lambda topic: topic.subscribe("s").peek(0),
    "unsubscribe": lambda topic: topic.unsubscribe(3),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments(topic, wrong):
    with pytest.raises(InvalidArgumentError):
        WRONG[wrong](topic)
    assert topic.publish(b"goes on")


def test_wrong_options_of_a_topic(path):
    with pytest.raises(InvalidArgumentError):
        seglog.Topic(path, fsync="always")
    for config in ({"noSuchKey": 1}, 3, {"enableShareDelayedMessageIndex": "perhaps"}):
        with pytest.raises(InvalidConfigError):
            seglog.Topic(path, config=config)
    assert not path.exists()


def test_a_message_of_another_subscription(topic):
    fill(topic, "a1")
    one, two = (topic.subscribe(name, start="earliest") for name in ("one", "two"))
    with pytest.raises(InvalidArgumentError, match="not a message of this subscription"):
        two.ack([one.get(0)])


def test_closing_wakes_all_who_wait(path):
    topic, ended = seglog.Topic(path), []
    consumers = [topic.subscribe("s", kind="shared"), topic.subscribe("f", kind="failover"),
                 topic.subscribe("f", kind="failover")]

    def wait(consumer):
        ended.append(list(consumer))

    threads = [threading.Thread(target=wait, args=(one,)) for one in consumers]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    topic.close()
    for thread in threads:
        thread.join(10)
    assert ended == [[], [], []]
    topic.close()
    for call in (lambda: topic.publish(b"x"), lambda: topic.subscribe("s"), lambda: consumers[0].get(0),
                 lambda: topic.producer("p"), lambda: topic.subscriptions, lambda: consumers[0].stats(),
                 topic.flush, topic.read_compacted):
        with pytest.raises(LogClosedError):
            call()


def test_a_block_that_raises_refuses_and_one_that_is_interrupted_gives_back(topic, caplog):
    fill(topic, "a1")
    consumer = topic.subscribe("s", start="earliest", retry_delay=0)
    with consumer.get(0):
        raise ValueError("boom")
    assert "message 0:0 failed at attempt 1 of 10" in caplog.text
    with pytest.raises(KeyboardInterrupt), consumer.get(0):
        raise KeyboardInterrupt
    with consumer.get(0) as message:
        assert message.attempt == 2
    assert consumer.stats().backlog == 0


def test_many_threads_on_a_key_shared_subscription(path):
    """Each key's messages are worked on in order, one at a time, by 8 threads of 2 consumers."""
    with seglog.Topic(path, fsync="never") as topic:
        consumers = [topic.subscribe("s", kind="key_shared", retry_delay=0) for _ in range(2)]
        seen, busy, wrong, lock, left = {}, set(), [], threading.Lock(), [400]

        def work(consumer):
            while left[0]:
                message = consumer.get(0.2)
                if message is None:
                    continue
                key, number = message.key, int(message.value)
                with lock:
                    if key in busy or seen.get(key, -1) != number - 1:
                        wrong.append((key, number, seen.get(key)))
                    busy.add(key)
                if number % 7 == 3 and message.attempt == 1:
                    with lock:
                        busy.discard(key)
                    message.nack()
                    continue
                with lock:
                    seen[key] = number
                    busy.discard(key)
                    left[0] -= 1
                message.ack()

        threads = [threading.Thread(target=work, args=(consumers[n % 2],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for number in range(40):
            for key in "abcdefghij":
                topic.publish(b"%d" % number, key=key)
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert left == [0]
        assert consumers[0].stats().backlog == 0


def test_a_kill_in_the_middle(path):
    """What a process was told is there after kill -9, and comes to each subscription that has not acknowledged it."""
    code = """if True:
        import os, sys, seglog
        topic = seglog.Topic(sys.argv[1])
        one = topic.subscribe("one", kind="key_shared")
        two = topic.subscribe("two", kind="shared")
        with topic.producer("p") as producer:
            for number in range(50):
                producer.publish(b"%d" % number, key=str(number % 3))
        for message in one.get_many(3, timeout=0): message.ack()
        two.get_many(10, timeout=0)[4].ack()
        os.kill(os.getpid(), 9)
    """
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert ran.returncode == -9, ran.stderr
    with seglog.Topic(path) as topic:
        with topic.producer("p") as producer:
            assert producer.last_sequence_id == 49
        one, two = topic.subscribe("one", kind="key_shared"), topic.subscribe("two", kind="shared")
        assert values(one.get_many(100, timeout=0)) == [b"3", b"4", b"5"]
        got = two.get_many(100, timeout=0)
        assert len(got) == 49
        assert {message.value: message.attempt for message in got}[b"3"] == 2
        assert b"4" not in values(got)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_message_is_as_a_job(topic):
    topic.publish(b"v", key=b"\x00", properties={"a": "b"}, delay=timedelta(seconds=0))
    consumer = topic.subscribe("s", start="earliest")
    message = consumer.get(0)
    assert isinstance(message, seglog.Message)
    assert (message.value, message.key, message.properties) == (b"v", b"\x00", {"a": "b"})
    assert message.id == "0:0"
    assert message.position == Position(0, 0)
    assert message.enqueued_at == datetime.fromtimestamp(NOW / 1000, UTC)
    assert repr(message) == "<Message 0:0: attempt 1, key b'\\x00', value b'v'>"
    consumer.release([message])
    assert consumer.get(0).attempt == 1
    assert repr(consumer) == "<Consumer s: exclusive>"


def test_a_damaged_journal_is_mended_for_all_subscriptions(path):
    clock = ManualClock(NOW)
    with seglog.Topic(path, clock=clock) as topic:
        fill(topic, "a1", "a2")
        for name in ("one", "two"):
            topic.subscribe(name, start="earliest").get(0).ack()
        raw = (path / "queue.journal").read_bytes()
    (path / "queue.journal").write_bytes(raw[:40] + b"\xff" + raw[41:])
    with pytest.raises(seglog.errors.CorruptJournalError):
        seglog.Topic(path, clock=clock)
    with seglog.Topic(path, clock=clock, recover=True) as topic:
        for name in ("one", "two"):
            assert b"a2" in values(topic.subscribe(name).get_many(10, timeout=0))


# --- left behind, and ended from another thread --------------------------------------------------


def test_a_topic_that_nobody_has_any_more_lets_its_directory_go(path):
    # In a process of its own, where nothing but this program has it.
    program = """
import gc, sys, time, seglog
topic = seglog.Topic(sys.argv[1])
consumer = topic.subscribe("s", kind="key_shared", start="earliest")
topic.publish(b"x", key="a")
assert consumer.get(0).value == b"x"
del topic, consumer
end = time.monotonic() + 20     # a thread of the background may still have it
while True:
    gc.collect()
    try:
        seglog.Topic(sys.argv[1]).close()
        break
    except seglog.errors.LogLockedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.05)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(path)], check=True, timeout=60)


def test_a_loop_ends_when_its_subscription_is_removed(topic, monkeypatch):
    consumer, ended = topic.subscribe("s"), threading.Event()
    unsubscribe = topic._unsubscribe

    def remove(name, number):
        unsubscribe(name, number)
        ended.wait(10)      # the thread that waits is faster than this one

    monkeypatch.setattr(topic, "_unsubscribe", remove)
    errors = []

    def loop():
        try:
            assert list(consumer) == []
        except BaseException as error:
            errors.append(error)
        ended.set()

    worker = threading.Thread(target=loop)
    worker.start()
    consumer.unsubscribe()
    worker.join(10)
    assert errors == []


def test_a_producer_cannot_have_a_name_of_those_without_one(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        with pytest.raises(InvalidArgumentError, match="messages without a producer have such names"):
            topic.producer("seglog-0123456789ab")
        assert topic.producer("seglog-0123456789abc").publish(b"x", sequence_id=1) is not None


@pytest.mark.parametrize("name", [["x"], {}, None, 3])
def test_what_is_no_name_is_refused_when_it_is_to_be_removed(topic, name):
    with pytest.raises(InvalidArgumentError, match="there is no subscription"):
        topic.unsubscribe(name)
