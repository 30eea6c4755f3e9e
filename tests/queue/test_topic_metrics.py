"""`seglog.metrics.PROCESS` shows every topic that is open, by subscription."""
import re

import seglog
from seglog.metrics import PROCESS


def shown(path):
    """The samples of a topic: {(name, subscription or ""): value}."""
    line = re.compile(rf'seglog_topic_(\w+){{path="{path}"(?:,subscription="(.*)")?}} (.*)')
    matches = map(line.match, PROCESS.text().splitlines())
    return {(found[1], found[2] or ""): float(found[3]) for found in matches if found}


def test_each_subscription_is_shown_with_and_without_consumers(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        topic.subscribe("idle").close()
    with seglog.Topic(path, clock=clock) as topic:
        one = topic.subscribe('o"ne', kind="key_shared", max_attempts=2, retry_jitter=0)
        topic.publish_many([("a", b"1"), ("a", b"2"), ("b", b"3")])
        topic.publish(b"later", delay=100)
        clock.advance(2500)
        first, third = one.get_many(2, timeout=0)
        assert (first.value, third.value) == (b"1", b"3")
        assert one.get(0) is None
        third.ack()
        first.nack(0)
        one.get(0).nack(0)
        one.get(0)
        found = shown(path)
        assert found["messages_total", ""] == 4
        assert {name: value for (name, of), value in found.items() if of == 'o\\"ne'} == {
            "ready": 0, "held_back": 0, "delayed": 1, "waiting": 0, "in_flight": 1, "dead": 1, "consumers": 1,
            "oldest_age_seconds": 2.5, "deliveries_total": 4, "redeliveries_total": 1, "acknowledged_total": 1,
            "refused_total": 2, "deaths_total": 1,
        }
        assert (found["ready", "idle"], found["delayed", "idle"], found["consumers", "idle"]) == (3, 1, 0)
        topic.unsubscribe("idle")
        assert ("ready", "idle") not in shown(path)
    assert shown(path) == {}


def test_stats_of_a_topic_are_those_of_each_subscription(path, clock):
    with seglog.Topic(path, clock=clock) as topic:
        assert topic.stats() == {}
        used = topic.subscribe("used")
        topic.subscribe("idle").close()
        topic.publish_many([b"a", b"b"])
        used.get(0).ack()
    with seglog.Topic(path, clock=clock) as topic:
        found = topic.stats()
        assert {name: (one.ready, one.consumers) for name, one in found.items()} == {"idle": (2, 0), "used": (1, 0)}
        consumer = topic.subscribe("idle", kind="exclusive", max_attempts=3)
        assert [message.value for message in consumer.get_many(5, timeout=0)] == [b"a", b"b"]
        assert topic.stats()["idle"] == consumer.stats()
