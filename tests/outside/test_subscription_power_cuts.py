"""Power cuts and failing calls under topics with subscriptions; see test_log_power_cuts.py."""
import os
import random

import pytest

from support.outside.logs import MODES, SUBSCRIPTION_KINDS, failing_calls, record_subscriptions
from support.outside.recording import Fault

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = tuple(range(4, 10)) if FULL else (4,)
STATES = 120 if FULL else 6
FAILING_STATES = 25 if FULL else 5      # of a recording with a failing call, of which there are many
EACH = 2 if FULL else 1         # faults of a kind and call
# One kind a mode in `make test`.
PAIRS = [(kind, fsync) for kind in SUBSCRIPTION_KINDS for fsync in MODES] if FULL else [
    ("subscriptions", "batch"), ("producers", "batch"), ("producers", "never"),
]


@pytest.mark.parametrize(("kind", "fsync"), PAIRS)
def test_what_was_promised_outlives_a_power_cut(record, power_cuts, holds, kind, fsync):
    cases = [record(record_subscriptions, kind, seed, fsync, steps=140) for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize(("kind", "fsync"), PAIRS if FULL else [("subscriptions", "batch")])
def test_killed_then_recovered_then_the_power_is_cut(record, power_cuts, holds, kind, fsync):
    """The opening writes the files of the cursors whose acknowledgements only the journal has, and no others."""
    cases = [
        record(record_subscriptions, kind, seed, fsync, lives=lives, faults=[Fault("any", 150 + seed * 31, "kill")])
        for seed in SEEDS for lives in ((2, 3) if FULL else (2,))
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize(("kind", "fsync"), PAIRS if FULL else [("subscriptions", "interval")])
def test_threads_that_share_a_sync_outlive_a_power_cut(record, power_cuts, holds, kind, fsync):
    cases = [
        record(record_subscriptions, kind, seed, fsync, threads=4, steps=120 if FULL else 60) for seed in SEEDS
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize(("kind", "fsync"), PAIRS if FULL else [("subscriptions", "batch")])
def test_a_call_that_fails_costs_nothing_that_was_promised(record, power_cuts, holds, kind, fsync):
    """A sync, a write, a full disk: each once, or from then on."""
    chance = random.Random(f"{kind} {fsync}")
    faults = list(failing_calls(record(record_subscriptions, kind, 4, fsync, steps=140), chance, EACH))
    wanted = []
    for number, fault in enumerate(faults if FULL else chance.sample(faults, 2)):
        case = record(record_subscriptions, kind, 4, fsync, steps=140, faults=[fault])
        wanted.append((case, FAILING_STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * FAILING_STATES // 4)        # a call that fails late leaves few different ones
