"""Power cuts and failing calls under queues of jobs; see test_log_power_cuts.py."""
import os
import random

import pytest

from support.outside.logs import MODES, QUEUE_KINDS, failing_calls, record_queue
from support.outside.recording import Fault

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = tuple(range(4, 10)) if FULL else (4,)
STATES = 120 if FULL else 8
FAILING_STATES = 25 if FULL else 6      # of a recording with a failing call, of which there are many
EACH = 2 if FULL else 1         # faults of a kind and call


@pytest.mark.parametrize("fsync", MODES)
def test_what_was_promised_outlives_a_power_cut(record, power_cuts, holds, fsync):
    kinds = QUEUE_KINDS if FULL else QUEUE_KINDS[: 1 if fsync != "batch" else 2]
    cases = [record(record_queue, kind, seed, fsync, steps=120) for kind in kinds for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_what_a_shared_queue_promised_outlives_a_power_cut_beside_a_takeover(record, power_cuts, holds, fsync):
    """Its owners are killed, between calls and in them, or close it."""
    cases = [record(record_queue, "shared", seed, fsync, steps=120 if FULL else 60) for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_threads_that_share_a_sync_outlive_a_power_cut(record, power_cuts, holds, fsync):
    kinds = QUEUE_KINDS if FULL else QUEUE_KINDS[:1]
    cases = [
        record(record_queue, kind, seed, fsync, threads=4, steps=120 if FULL else 60)
        for kind in kinds for seed in SEEDS
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_killed_then_recovered_then_the_power_is_cut(record, power_cuts, holds, fsync):
    cases = [
        record(record_queue, kind, seed, fsync, lives=2, faults=[Fault("any", 60 + seed * 31, "kill")])
        for seed in SEEDS for kind in (QUEUE_KINDS if FULL else QUEUE_KINDS[:1])
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_a_call_that_fails_costs_nothing_that_was_promised(record, power_cuts, holds, fsync):
    """A sync, a write, a full disk: each once, or from then on."""
    chance = random.Random(fsync)
    wanted = []
    for kind in QUEUE_KINDS if FULL else QUEUE_KINDS[:1]:
        faults = list(failing_calls(record(record_queue, kind, 4, fsync), chance, EACH))
        for number, fault in enumerate(faults if FULL else chance.sample(faults, 2)):
            wanted.append((record(record_queue, kind, 4, fsync, faults=[fault]), FAILING_STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * FAILING_STATES // 4)        # a call that fails late leaves few different ones


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_a_sync_that_failed_once_is_not_made_good_by_the_next(record, power_cuts, holds, fsync):
    """Its pages are lost though a later sync of the file succeeds (fsyncgate); the queue is opened again between."""
    wanted = []
    syncs = [event.path for event in record(record_queue, "jobs", 4, fsync).events if event.op == "E"]
    of = [[number for number, path in enumerate(syncs, 1) if path.endswith(end)] for end in (".log", ".journal")]
    chance = random.Random(fsync)
    for number in range(16 if FULL else 2):
        fault = Fault("sync", chance.choice(of[number % 2] or [1]))
        wanted.append((record(record_queue, "jobs", 4, fsync, faults=[fault]), FAILING_STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * FAILING_STATES // 3)
