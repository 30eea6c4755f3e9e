"""A queue after a crash: what callers were told holds. Each state that the disk may have had is opened again."""
import os
import random

import pytest

from seglog.clock import ManualClock
from seglog.queue import journaled_ledger
from support.faultfs import RecordingFs
from support.queue_model import QueueBeside, copy_soon, left_in

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 1200 if TORTURE else 30
PARTS = 5
STEPS = [step for step in QueueBeside.STEPS if step != "check"] + ["purge"]


@pytest.fixture(autouse=True)
def checkpoints_and_copies_often(monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 600)
    copy_soon(monkeypatch)


def check_after(path, before, after):
    """What is left in a queue, against what was promised `before` the crash, and what was begun by `after` it."""
    attempts, dead = left_in(path, ManualClock(1_700_000_000_000 + 10**9))
    there = attempts.keys() | dead.keys()
    assert before.put - after.begun_acks <= there, f"lost: {before.put - after.begun_acks - there}"
    assert not there & before.acked, f"after their acknowledgement: {there & before.acked}"
    assert there <= after.begun_puts
    for value, attempt in attempts.items():
        # One of them is that of this look. Too low after a power cut, never too high.
        assert 1 <= attempt <= after.deliveries[value] + 1, (value, attempt, after.deliveries[value])


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

    beside = QueueBeside(disk / "queue", fs=record, told=tell)
    for _ in range(40):
        beside.step(chance.choice(STEPS), chance.randrange(100))
    beside.queue.close()
    states = 0
    for state in record.crash_states(limit=limit, seed=seed):
        states += 1
        with state.materialise() as root:
            count = state.marks[-1] if state.marks else 0
            if not count:
                continue
            try:
                check_after(root / "queue", told[count - 1], told[min(count, len(told) - 1)])
            except BaseException as error:
                error.add_note(f"program {seed}\n{state.story()}")
                raise
    return states
