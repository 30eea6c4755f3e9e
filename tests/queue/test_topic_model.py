"""Random programs on a topic and on a model of it: each answer is compared, over restarts, checkpoints and trims."""
import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seglog.queue import journaled_ledger, sequences
from support.subscribed_topic import TopicBeside

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STEPS = 400_000 if TORTURE else 1_200
PARTS = 4


@pytest.fixture(autouse=True)
def checkpoints_often(monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 2_000)
    monkeypatch.setattr(sequences, "SNAPSHOT_ENTRIES", 7)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_topic_answers_as_its_model(in_memory, part):
    steps, seed = 0, part * 1_000_000
    while steps < STEPS // PARTS:
        chance = random.Random(seed)
        beside = TopicBeside(in_memory / f"topic-{seed}")
        done = []
        try:
            for _ in range(300):
                steps_now = TopicBeside.RARE if chance.random() < 0.03 else TopicBeside.STEPS
                name, number = chance.choice(steps_now), chance.randrange(100)
                done.append((name, number))
                beside.step(name, number)
            beside.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, last steps {done[-12:]} of {len(done)}")
            raise
        finally:
            beside.topic.close()
        steps += len(done)
        seed += 1


class TopicMachine(RuleBasedStateMachine):
    """The same, by programs that hypothesis makes, and shortens when one fails."""

    directory = None
    count = 0

    def __init__(self):
        super().__init__()
        TopicMachine.count += 1
        self.beside = TopicBeside(self.directory / f"machine-{TopicMachine.count}")

    @rule(name=st.sampled_from(sorted({*TopicBeside.STEPS, *TopicBeside.RARE})), number=st.integers(0, 99))
    def step(self, name, number):
        self.beside.step(name, number)

    @invariant()
    def counts_agree(self):
        self.beside.check()

    def teardown(self):
        self.beside.topic.close()


def test_a_program_of_hypothesis_answers_as_the_model(in_memory):
    class Machine(TopicMachine):
        directory = in_memory

    Machine.TestCase.settings = settings(
        max_examples=500 if TORTURE else 8, stateful_step_count=40, deadline=None, database=None,
    )
    Machine.TestCase("runTest").runTest()
