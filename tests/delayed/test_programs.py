"""Random lives of a tracker: 50 of them, 1 000 in `make torture`."""
import os

import pytest

from support.delayed_program import Program

PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
BATCH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_nothing_is_lost_or_delivered_twice_or_early(first):
    for seed in range(first, first + BATCH):
        try:
            Program(seed).run(120)
        except Exception as e:
            e.add_note(f"seed {seed}")
            raise
