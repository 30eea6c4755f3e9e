"""Random programs of everything that a log can do, against a plain model of it."""
import os

import pytest

from support.log_program import Program

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
STEPS = 200


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program_does_what_the_model_says(in_memory, seed):
    try:
        Program(seed, in_memory).run(STEPS)
    except Exception as error:
        error.add_note(
            "again: SEGLOG_TORTURE=1 python -m pytest "
            f"'tests/log/test_log_programs.py::test_a_random_program_does_what_the_model_says[{seed}]'"
        )
        raise
