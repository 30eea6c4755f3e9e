"""^C anywhere in a call of a topic: it is usable then, nothing that was published is lost, nothing comes after its
acknowledgement returned, keys stay in order, and no thread waits forever."""
import gc
import os

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import SubscriptionBusyError
from seglog.queue import journaled_ledger
from support.interrupts import interrupted_at_each_opcode, uninterrupted, with_loses_exits
from support.subscribed_topic import left_in

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
pytestmark = [
    pytest.mark.skipif(with_loses_exits(), reason="an interrupt makes `with` keep its lock: processes.md"),
    pytest.mark.usefixtures("no_collector_hooks"),
]
OPTIONS = {"lease": 10, "max_attempts": None, "retry_delay": 1}


class Watched:
    """A topic with a subscription of one kind, and what callers were told of it."""

    def __init__(self, directory, kind):
        self.path, self.kind = directory / "topic", kind
        self.clock = ManualClock(1_700_000_000_000)
        self.topic = seglog.Topic(
            self.path, clock=self.clock, fsync="never", config={"managedLedgerMaxEntriesPerLedger": 20}
        )
        self.consumer = self.topic.subscribe("s", kind=kind, **OPTIONS)
        self.producer = self.topic.producer("numbered")
        self.number = 0
        self.published, self.begun, self.acked, self.acking = set(), set(), set(), set()

    def publish(self, **options):
        value = b"%d" % self.number
        self.number += 1
        self.begun.add(value)
        self.topic.publish(value, key="ab"[self.number % 2], **options)
        self.published.add(value)

    def publish_once(self):
        """As a program that tries again until it is told."""
        value = b"%d" % self.number
        self.number += 1
        self.begun.add(value)
        try:
            self.producer.publish(value, sequence_id=self.number, key="a")
        finally:
            with uninterrupted():
                self.producer.publish(value, sequence_id=self.number, key="a")
        self.published.add(value)

    def ack(self, message, **options):
        self.acking.add(message.value)
        message.ack(**options)
        self.acked.add(message.value)

    def taken(self):
        self.clock.advance(3_600_000)
        found = self.consumer.get_many(10_000, timeout=0)
        assert found
        return found

    def check(self, where):
        """Everything that is left comes, each once; then most of it is acknowledged."""
        with uninterrupted():
            self.clock.advance(3_600_000)
            seen, by_key = [], {}
            while messages := self.consumer.get_many(100, timeout=0):
                for message in messages:
                    seen.append(message.value)
                    by_key.setdefault(message.key, []).append(int(message.value))
                    self.ack(message, wait=False)
            assert len({*seen}) == len(seen), where
            before = self.acked - {*seen}
            assert self.published - self.acking <= {*seen}, where
            assert self.published <= before | {*seen} | self.acking, where
            assert {*seen} <= self.begun, where
            assert not ({*seen} & self.done), where
            for numbers in by_key.values():
                assert self.kind == "shared" or numbers == sorted(numbers), where
            self.done |= self.acked
            assert self.consumer.stats().backlog == 0, where

    done = frozenset()


def take_and(finish):
    def action(watched):
        with uninterrupted():
            watched.publish()
            watched.publish()
            message = watched.taken()[0]
        finish(watched, message)
    return action


ACTIONS = {
    "publish": lambda watched: watched.publish(),
    "publish once": lambda watched: watched.publish_once(),
    "get": take_and(lambda watched, message: (message.nack(0), watched.consumer.get_many(5, timeout=0))),
    "ack": take_and(Watched.ack),
    "nack": take_and(lambda watched, message: message.nack()),
    "release": take_and(lambda watched, message: watched.consumer.release([message])),
    "lease": take_and(
        lambda watched, message: (watched.clock.advance(11_000), watched.consumer.get_many(5, timeout=0))
    ),
    "stats": take_and(lambda watched, message: watched.consumer.stats()),
}


@pytest.mark.parametrize("kind", ["exclusive", "key_shared"])
@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_at_any_instruction_leaves_the_topic_usable(in_memory, monkeypatch, name, kind):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 4_000)
    watched = Watched(in_memory, kind)
    watched.publish()
    interrupted_at_each_opcode(lambda: watched, ACTIONS[name], Watched.check, step=1 if TORTURE else 211)
    watched.topic.close()
    with seglog.Topic(watched.path, clock=watched.clock) as topic:
        attempts, _ = left_in(topic, "s", watched.clock)
    assert watched.published - watched.acking <= attempts.keys()
    assert not watched.acked & attempts.keys()


@pytest.mark.parametrize("call", ["subscribe", "close", "seek", "unsubscribe"])
def test_an_interrupted_change_of_a_subscription_can_be_repeated(in_memory, call):
    watched = Watched(in_memory, "exclusive")
    for _ in range(3):
        watched.publish()

    def act(_):
        if call == "subscribe":
            watched.topic.subscribe("other", start="earliest", **OPTIONS).close()
        elif call == "close":
            watched.consumer.close()
        elif call == "seek":
            watched.consumer.seek("earliest")
        else:
            watched.topic.unsubscribe("other")

    def prepare():
        with uninterrupted():
            watched.topic.subscribe("other", start="earliest", **OPTIONS).close()

    def check(_, where):
        with uninterrupted():
            gc.collect()
            watched.consumer.close()
            other = watched.topic.subscribe("other", start="earliest", **OPTIONS)
            assert len(other.get_many(10, timeout=0)) == 3, where
            with pytest.raises(SubscriptionBusyError):
                watched.topic.subscribe("other")
            other.close()
            watched.consumer = watched.topic.subscribe("s", kind="exclusive", start="earliest", **OPTIONS)
            watched.consumer.seek("earliest")
            got = watched.consumer.get_many(10, timeout=0)
            assert len(got) == 3, where
            assert [one.attempt for one in got] == [1, 1, 1], where

    interrupted_at_each_opcode(prepare, act, check, step=7 if TORTURE else 211)
    watched.topic.close()
