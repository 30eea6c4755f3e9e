"""Power cuts and failing calls under a conversion in place; see test_log_power_cuts.py."""
import os
import random

import pytest

from support.golden import golden_cases
from support.outside.logs import failing_calls, record_conversion

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 400 if FULL else 14
CASES = {case.name: case for case in golden_cases()}
NAMES = ("v1-none-ct-k391", "v0-gzip-ct-k282", "mixed-formats-k391") if FULL else ("v1-none-ct-k391",)


@pytest.mark.parametrize("name", NAMES)
def test_a_conversion_in_place_is_done_or_not(in_memory, recorder, power_cuts, holds, name):
    case = record_conversion(in_memory, recorder, CASES[name], rounds=2 if FULL else 1)
    power_cuts.judge(case, STATES, 1)
    holds(STATES // 5)      # of so many wanted fewer are different


def test_a_conversion_whose_calls_fail_leaves_the_old_or_the_new_one(in_memory, recorder, power_cuts, holds):
    golden = CASES[NAMES[0]]
    whole = record_conversion(in_memory, recorder, golden, rounds=1)
    faults = list(failing_calls(whole, random.Random(1), 3 if FULL else 1))
    wanted = []
    for fault in faults if FULL else random.Random(2).sample(faults, 2):
        wanted.append((record_conversion(in_memory, recorder, golden, 1, [fault]), 15 if FULL else 4, len(wanted)))
    power_cuts.judge_all(wanted)
    holds(len(wanted))
