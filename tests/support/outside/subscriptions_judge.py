"""Opens topics that a power cut left, and tells what their subscriptions get; see log_judge.py.

reads {"path", "name", "fsync", "now", "sequence", "has_producer"} and answers with the facts that
subscriptions_witness.py asks for.
"""
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from seglog.ledger.message_batch import batch_of
from seglog.queue import journaled_ledger, sequences
from seglog.verification.ledger_check import check_managed_ledger
from support.outside.judging import STEP, answer_all, is_turn
from support.outside.queue_judge import END_MS, LONG_S
from support.outside.queue_worker import CHECKPOINT_BYTES, number_of, value_of
from support.outside.subscriptions_worker import CONFIG, PRODUCER, SNAPSHOT_ENTRIES, TRACKERS


def judge(task, note, number):
    """Open, look, take for each subscription what is due now and at the end of time, publish, acknowledge, close, and
    look again; the last in every other state in `make test`."""
    journaled_ledger.CHECKPOINT_BYTES, sequences.SNAPSHOT_ENTRIES = CHECKPOINT_BYTES, SNAPSHOT_ENTRIES
    path, clock, wrong = task["path"], ManualClock(task["now"]), []
    config = CONFIG | TRACKERS[number // STEP % len(TRACKERS)]
    note("now", task["now"])
    with seglog.Topic(path, fsync=task["fsync"], config=config, clock=clock) as topic:
        names = topic.subscriptions
        note("opened", names)
        stored = numbers_in(topic)
        last_sequence = last_sequence_of(topic, task, wrong) if task["has_producer"] else None
        compacted = [(one.key, int(one.value.partition(b".")[0])) for one in topic.read_compacted()]
        consumers = {name: subscribed(topic, name, note) for name in names}
        dead = {name: [number_of(one) for one in consumer.dead] for name, consumer in consumers.items()}
        counts = {name: consumer.stats() for name, consumer in consumers.items()}
        now = {name: taken(name, consumer, note, "got") for name, consumer in consumers.items()}
        clock.set(END_MS)
        later = {name: taken(name, consumer, note, "got later") for name, consumer in consumers.items()}
        left = {name: [(number_of(one), one.attempt) for one in now[name] + later[name]] for name in names}
        for name in names:
            if (counts[name].backlog, counts[name].dead) != (len(left[name]), len(dead[name])):
                wrong.append(f"{name} counted {counts[name]}: there are {len(left[name])} and {len(dead[name])}")
        note("put", [number], 0, [None])
        note("took", [number], [[*map(int, topic.publish(value_of(number)).split(":"))]])
        for name, consumer in consumers.items():
            half = (now[name] + later[name])[::2]
            note("ack", name, [number_of(one) for one in half])
            consumer.ack(half)
            note("acked", name, [number_of(one) for one in half])
        note("close")
    note("closed")
    report = check_managed_ledger(Path(path))
    wrong += [f"ledger verify: {each}" for each in report.findings if each.code != "relocated_stray"]
    if is_turn(number, 2, 0):
        with seglog.Topic(path, fsync=task["fsync"], config=CONFIG, clock=ManualClock(END_MS)) as topic:
            if topic.subscriptions != names:
                wrong.append(f"opened a second time it has {topic.subscriptions}, not {names}")
            for name in topic.subscriptions:
                consumer = subscribed(topic, name)
                again = sorted((number_of(one), one.attempt) for one in taken(name, consumer))
                expected = sorted([*((one, attempt + 1) for one, attempt in left[name][1::2]), (number, 1)])
                if again != expected:
                    wrong.append(f"opened a second time {name} has {again}, not {expected}")
                if [number_of(one) for one in consumer.dead] != dead[name]:
                    wrong.append(f"opened a second time {name} has other dead messages")
    return {
        "subscriptions": {
            name: {"now": [number_of(one) for one in now[name]], "left": left[name], "dead": dead[name]}
            for name in names
        },
        "stored": stored, "last_sequence": last_sequence, "compacted": compacted, "wrong": wrong,
    }


def subscribed(topic, name, note=lambda *words: None):
    """A consumer that nothing is refused by, and whose leases do not end."""
    note("subscribe", name, "latest")
    consumer = topic.subscribe(name, kind="shared", max_attempts=None, lease=LONG_S)
    note("subscribed", name)
    return consumer


def taken(name, consumer, note=lambda *words: None, word="got"):
    note("get", name)
    found = []
    while more := consumer.get_many(100, timeout=0):
        found += more
    note(word, name, *((number_of(one), one.attempt) for one in found))
    return found


def numbers_in(topic):
    """The numbers of all messages that the ledgers have."""
    found = []
    for stored in topic._home.managed_ledger:
        is_batch = stored.entry.fields().is_batch
        values = [one.value for one in batch_of(stored.entry).messages] if is_batch else [stored.value]
        found += [int(bytes(value).partition(b".")[0]) for value in values]
    return found


def last_sequence_of(topic, task, wrong):
    with topic.producer(PRODUCER) as producer:
        last = producer.last_sequence_id
        if task["sequence"] >= 0 and producer.publish(b"-1.", sequence_id=task["sequence"]) is not None:
            wrong.append(f"stored sequence id {task['sequence']} again")
        return last


def main():
    answer_all(judge)
