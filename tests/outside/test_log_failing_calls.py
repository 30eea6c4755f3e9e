"""Calls that fail under a log, by the recorder; then it is closed and opened again, and some time the power is cut."""
import os
import random

import pytest

from support.outside.logs import KINDS, MODES, failing_calls, record_log
from support.outside.recording import Fault

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 25 if FULL else 6
SHARE = 1 if FULL else 18       # of the faults, one in so many is tried
EACH = 2 if FULL else 1         # faults of a kind and call


@pytest.mark.parametrize("fsync", MODES)
def test_a_call_that_fails_costs_nothing_that_was_promised(in_memory, recorder, power_cuts, holds, fsync):
    wanted = []
    for kind in KINDS:
        whole = record_log(in_memory, recorder, kind, 3, fsync)
        chance = random.Random(f"{kind} {fsync}")
        faults = [fault for fault in failing_calls(whole, chance, EACH) if fault.call != "sync" or fault.span == "on"]
        for fault in random.Random(kind).sample(faults, len(faults) // SHARE):
            wanted.append((record_log(in_memory, recorder, kind, 3, fsync, faults=[fault]), STATES, len(wanted)))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)


@pytest.mark.parametrize(
    ("kind", "fsync"),
    [(kind, fsync) for kind in KINDS for fsync in MODES] if FULL else [("appends", "batch"), ("cuts", "interval")],
)
def test_a_sync_that_failed_once_is_not_made_good_by_the_next(in_memory, recorder, power_cuts, holds, kind, fsync):
    """Its pages are lost though a later sync of the file succeeds (fsyncgate); the log is closed and opened between."""
    whole = record_log(in_memory, recorder, kind, 3, fsync)
    syncs = [event.path for event in whole.events if event.op == "E"]
    of_logs = [number for number, path in enumerate(syncs, 1) if path.endswith(".log")]
    chance = random.Random(f"{kind} {fsync}")
    wanted = []
    for number in range(12 if FULL else 2):
        nth = chance.choice(of_logs) if number % 2 == 0 else chance.randint(1, len(syncs))
        case = record_log(in_memory, recorder, kind, 3, fsync, faults=[Fault("sync", nth)])
        wanted.append((case, STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)
