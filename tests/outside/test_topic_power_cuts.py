"""Power cuts and failing calls under managed ledgers, cursors and delayed messages; see test_log_power_cuts.py."""
import os
import random

import pytest

from support.outside.logs import MODES, TOPIC_KINDS, failing_calls, record_topic
from support.outside.recording import Fault

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = range(6 if FULL else 1)
STATES = 120 if FULL else 10
EACH = 2 if FULL else 1         # faults of a kind and call
SHARE = 1 if FULL else 20       # of the faults, one in so many is tried


@pytest.mark.parametrize("fsync", MODES)
def test_what_was_promised_outlives_a_power_cut(in_memory, recorder, power_cuts, holds, fsync):
    cases = [record_topic(in_memory, recorder, kind, seed, fsync) for kind in TOPIC_KINDS for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES)
def test_threads_that_share_a_sync_outlive_a_power_cut(in_memory, recorder, power_cuts, holds, fsync):
    cases = [record_topic(in_memory, recorder, "cursors", seed, fsync, threads=4, steps=100) for seed in SEEDS]
    power_cuts.judge_all([(case, STATES * 2, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases))


@pytest.mark.parametrize("fsync", MODES)
def test_killed_then_recovered_then_the_power_is_cut(in_memory, recorder, power_cuts, holds, fsync):
    cases = [
        record_topic(in_memory, recorder, kind, seed, fsync, lives=2, faults=[Fault("any", 150 + seed * 31, "kill")])
        for kind in ("cursors", "delayed") for seed in SEEDS
    ]  # fmt: skip
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


def test_a_trim_beside_unsynced_entries_leaves_no_gap_in_message_indexes(in_memory, recorder, power_cuts, holds):
    """The manifest that a trim wrote named the index of entries that no sync had covered."""
    case = record_topic(in_memory, recorder, "cursors", 3, "never", steps=80)
    power_cuts.judge(case, 60, 3)
    holds(40)


@pytest.mark.parametrize("fsync", MODES)
def test_a_call_that_fails_costs_nothing_that_was_promised(in_memory, recorder, power_cuts, holds, fsync):
    wanted = []
    for kind in TOPIC_KINDS:
        whole = record_topic(in_memory, recorder, kind, 4, fsync)
        chance = random.Random(f"{kind} {fsync}")
        faults = [fault for fault in failing_calls(whole, chance, EACH) if fault.call != "sync" or fault.span == "on"]
        for fault in random.Random(kind).sample(faults, len(faults) // SHARE or 1):
            wanted.append((record_topic(in_memory, recorder, kind, 4, fsync, faults=[fault]), STATES, len(wanted)))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)


@pytest.mark.xfail(strict=True, reason="recovery seals a ledger by the length that the page cache has")
@pytest.mark.parametrize("fsync", MODES)
def test_a_sync_that_failed_once_is_not_made_good_by_the_next(in_memory, recorder, power_cuts, holds, fsync):
    """Its pages are lost though a later sync of the file succeeds (fsyncgate); the topic is opened again between."""
    wanted = []
    for kind in TOPIC_KINDS if FULL else ("entries", "delayed"):
        whole = record_topic(in_memory, recorder, kind, 4, fsync)
        syncs = [event.path for event in whole.events if event.op == "E"]
        of_ledgers = [number for number, path in enumerate(syncs, 1) if path.endswith(".log")]
        chance = random.Random(f"{kind} {fsync}")
        for number in range(14 if FULL else 2):
            nth = chance.choice(of_ledgers) if number % 2 == 0 else chance.randint(1, len(syncs))
            case = record_topic(in_memory, recorder, kind, 4, fsync, faults=[Fault("sync", nth)])
            wanted.append((case, STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)
