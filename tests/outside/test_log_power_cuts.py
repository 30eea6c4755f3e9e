"""Power cuts under a log, from outside of the process: what it asked the kernel for, and what durability.md allows.

A worker process runs over a recorded disk; states that a power cut may leave are opened by another process, and what
that finds is held against what the worker was told. See README.md.
"""
import os

import pytest

from support.outside.logs import KINDS, MODES, record_log
from support.outside.recording import Fault

# `make torture` sets SEGLOG_TORTURE: the full number of states; otherwise a few of each.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = (3, 4, 5, 6) if FULL else (3,)
STATES = 150 if FULL else 7


@pytest.mark.parametrize("fsync", MODES)
def test_what_was_promised_outlives_a_power_cut(record, power_cuts, holds, fsync):
    # One kind a mode in `make test`: the one whose recording test_log_failing_calls.py has a use for, too.
    kinds = KINDS if FULL else [KINDS[MODES.index(fsync)]]
    cases = [record(record_log, kind, seed, fsync) for kind in kinds for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_a_log_that_deletes_by_itself_keeps_what_is_young(record, power_cuts, holds, fsync):
    """Its own thread moves the log start offset, marks, removes and rewrites segments at any moment."""
    steps = 150 if FULL else 90
    cases = [record(record_log, kind, seed, fsync, steps=steps) for kind in ("size", "time") for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["interval"])
def test_a_log_outlives_a_power_cut_beside_neighbours_whose_lines_are_written_with_its_own(
    record, power_cuts, holds, fsync
):
    """One holder of a log dir gathers what it says of its logs, and puts Kafka's clean-shutdown file back when it
    leaves."""
    cases = [record(record_log, "neighbours", seed, fsync) for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=int(FULL))
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch", "never"])
def test_threads_that_share_a_sync_outlive_a_power_cut(record, power_cuts, holds, fsync):
    cases = [record(record_log, "appends", seed, fsync, threads=4, steps=100 if FULL else 60) for seed in SEEDS]
    states = STATES * 2 if FULL else STATES
    power_cuts.judge_all([(case, states, number) for number, case in enumerate(cases)], again=3 if FULL else 0)
    holds(states * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch"])
def test_what_is_written_beside_a_sync_is_not_taken_for_synced(record, power_cuts, holds, fsync):
    """Late writes, appends that do not wait, and a thread that does nothing but flush."""
    # Few steps: the segments are short, and each state is opened, read and written with all of them.
    seeds = range(3, 15) if FULL else SEEDS
    cases = [record(record_log, "beside", seed, fsync, threads=2, steps=120) for seed in seeds]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=int(FULL))
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize(("kind", "fsync"), [
    ("appends", "batch"), ("cuts", "interval"), ("appends", "never"),
    *([("cuts", "batch"), ("appends", "interval"), ("cuts", "never")] if FULL else ()),
])
def test_killed_then_recovered_then_the_power_is_cut(record, power_cuts, holds, kind, fsync):
    """A process that was killed left its pages in memory; the next one must not take them for what is on the disk."""
    cases = [
        record(record_log, kind, seed, fsync, lives=2, faults=[Fault("any", 90 + seed * 37, "kill")]) for seed in SEEDS
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES)
def test_a_log_that_was_closed_cleanly_has_its_indexes(record, power_cuts, holds, fsync):
    """Cut, close, power cut: a clean log is not recovered, so what its indexes lack is never mended."""
    # In `make test` one corner a mode: nothing that was not synced, or its names and no bytes.
    states = range(12) if FULL else (2 * (MODES.index(fsync) % 2),)
    for seed in range(6 if FULL else 1):
        power_cuts.judge_behind(record(record_log, "closings", seed, fsync), "closed", states)
    holds(10)
