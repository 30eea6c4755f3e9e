"""Random programs on a queue that two processes share, and on a model of it: each answer is compared, over the deaths of
owners, takeovers, restarts, checkpoints and trims."""
import os
import random

import pytest

from seglog.queue import lane
from support.models.queue_model import copy_soon
from support.models.shared_queue_model import SharedQueueBeside

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STEPS = 100_000 if TORTURE else 400
PROGRAM = 200


def test_a_shared_queue_answers_as_its_model(in_memory, monkeypatch):
    monkeypatch.setattr(lane, "CHECKPOINT_BYTES", 2_000)
    copy_soon(monkeypatch)
    for seed in range(STEPS // PROGRAM):
        chance = random.Random(seed)
        beside = SharedQueueBeside(in_memory / f"queue-{seed}")
        done = []
        try:
            for _ in range(PROGRAM):
                done.append((chance.choice(SharedQueueBeside.STEPS), chance.randrange(100)))
                beside.step(*done[-1])
            beside.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, last steps {done[-12:]} of {len(done)}")
            raise
        finally:
            beside.close()
