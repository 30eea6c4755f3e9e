"""A topic after a crash: what callers were told holds. Each state that the disk may have had is opened again."""
import os
import random

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.queue import journaled_ledger, sequences
from support.faultfs import RecordingFs
from support.subscribed_topic import NOW, TopicBeside, left_in

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 1200 if TORTURE else 12
PARTS = 5
STEPS = [step for step in TopicBeside.STEPS if step != "check"] + [*TopicBeside.RARE]


@pytest.fixture(autouse=True)
def checkpoints_often(monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 600)
    monkeypatch.setattr(sequences, "SNAPSHOT_ENTRIES", 4)


def check_after(path, before, after):
    """What is left in a topic, against what was promised `before` the crash, and what was begun by `after` it."""
    clock = ManualClock(NOW + 10**9)
    with seglog.Topic(path, clock=clock) as topic:
        for name in before.owed.keys() & after.owed.keys() - before.unsure - after.unsure:
            assert name in topic.subscriptions
            attempts, dead = left_in(topic, name, clock)
            there = attempts.keys() | dead.keys()
            lost = before.owed[name] - after.begun_acks[name] - there
            assert not lost, f"{name} lost {lost}"
            again = there & before.acked[name] & after.acked[name]
            assert not again, f"{name} got after their acknowledgement: {again}"
            assert there <= after.begun
            for value, attempt in attempts.items():
                # One of them is that of this look. Too low after a power cut, never too high.
                assert 1 <= attempt <= after.deliveries[name, value] + 1, (name, value, attempt)
        for name in after.unsure & {*topic.subscriptions}:
            left_in(topic, name, clock)
        if before.sequence >= 0:
            with topic.producer("numbered") as producer:
                assert before.sequence <= producer.last_sequence_id <= max(after.begun_sequence, after.sequence)
                assert producer.publish(b"again", sequence_id=before.sequence) is None


@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_promised_outlives_a_crash(in_memory, part):
    states, seed = 0, part * 1000
    while states < STATES:
        states += crash_states_of_a_program(in_memory / f"disk-{seed}", seed, min(STATES - states, 200))
        seed += 1


def crash_states_of_a_program(disk, seed, limit):
    disk.mkdir()
    record, told, chance = RecordingFs(disk), [], random.Random(seed)

    def tell(promises):
        told.append(promises.copy())
        record.mark(len(told))

    beside = TopicBeside(disk / "topic", fs=record, told=tell)
    beside.step("subscribe", chance.randrange(100))
    for _ in range(50):
        beside.step(chance.choice(STEPS), chance.randrange(100))
    beside.topic.close()
    states = 0
    for state in record.crash_states(limit=limit, seed=seed):
        states += 1
        with state.materialise() as root:
            count = state.marks[-1] if state.marks else 0
            if not count:
                continue
            try:
                check_after(root / "topic", told[count - 1], told[min(count, len(told) - 1)])
            except BaseException as error:
                error.add_note(f"program {seed}\n{state.story()}")
                raise
    return states
