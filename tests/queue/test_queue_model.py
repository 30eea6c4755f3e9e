"""Random programs on a queue and on a model of it: each answer is compared, over restarts, checkpoints and trims."""
import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seglog.queue import journaled_ledger
from support.queue_model import QueueBeside, copy_soon

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STEPS = 1_000_000 if TORTURE else 1_200
PARTS = 4


@pytest.fixture(autouse=True)
def checkpoints_and_copies_often(monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 2_000)
    copy_soon(monkeypatch)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_queue_answers_as_its_model(in_memory, part):
    steps, seed = 0, part * 1_000_000
    while steps < STEPS // PARTS:
        chance = random.Random(seed)
        beside = QueueBeside(in_memory / f"queue-{seed}")
        done = []
        try:
            for _ in range(300):
                name, number = chance.choice(QueueBeside.STEPS), chance.randrange(100)
                if chance.random() < 0.01:
                    name = "purge"
                done.append((name, number))
                beside.step(name, number)
            beside.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, last steps {done[-12:]} of {len(done)}")
            raise
        finally:
            beside.queue.close()
        steps += len(done)
        seed += 1


class QueueMachine(RuleBasedStateMachine):
    """The same, by programs that hypothesis makes, and shortens when one fails."""

    directory = None
    count = 0

    def __init__(self):
        super().__init__()
        QueueMachine.count += 1
        self.beside = QueueBeside(self.directory / f"machine-{QueueMachine.count}")

    @rule(name=st.sampled_from(sorted({*QueueBeside.STEPS, "purge"})), number=st.integers(0, 99))
    def step(self, name, number):
        self.beside.step(name, number)

    @invariant()
    def counts_agree(self):
        self.beside.check()

    def teardown(self):
        self.beside.queue.close()


def test_a_program_of_hypothesis_answers_as_the_model(in_memory):
    class Machine(QueueMachine):
        directory = in_memory

    Machine.TestCase.settings = settings(
        max_examples=500 if TORTURE else 8, stateful_step_count=40, deadline=None, database=None,
    )
    Machine.TestCase("runTest").runTest()
