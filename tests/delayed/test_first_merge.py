"""Which buckets are merged first: those that the real tracker of Pulsar 4.2.4 took, in 80 random runs.

`tests/oracle/test_delayed.py` made golden/first_merges.json, and asks the real classes again.
"""
import json
from pathlib import Path

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.merge import pulsars_choice
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from support.merge_program import digest, merge_program

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/first_merges.json").read_text())


def run(steps, *, merges):
    """A tracker that ran a program, and yields itself after each seal: before it merges, or instead."""
    head = steps[0]
    clock = ManualClock(head["now"])
    config = DelayedDeliveryConfig(
        ledger_step=0, min_index_count=head["min_index_count_per_bucket"], tick_time_ms=head["tick_ms"],
        time_step_s=head["time_step_per_segment_ms"] // 1000, max_indexes_per_segment=head["max_indexes_per_segment"],
        max_buckets=head["max_num_buckets"] if merges else -1, strict=head["strict"],
    )
    tracker = BucketDelayedDeliveryTracker(
        InMemoryBucketSnapshotStorage(), config, clock=clock, worker=InlineWorker()
    )
    for step in steps[1:]:
        sealed = tracker.stats.counts["create", "succeed"].value
        match step["op"]:
            case "clock":
                clock.set(step["now"])
            case "add":
                tracker.add_message(*step["m"])
            case "sched":
                tracker.get_scheduled_messages(step["n"])
        if tracker.stats.counts["create", "succeed"].value > sealed:
            yield tracker
    tracker.close()


def merged_range(steps):
    """(what Pulsar's rule chooses first, whether it failed before)."""
    most, has_failed = steps[0]["max_num_buckets"], False
    for tracker in run(steps, merges=False):
        if len(tracker.buckets) > most:
            try:
                group = pulsars_choice(tracker.buckets, 4, tracker._delivered_to)
            except LookupError:
                has_failed = True
                continue
            if group:
                return f"{group[0].start}_{group[-1].end}", has_failed
    return None, has_failed


def test_the_buckets_that_are_merged_first_are_those_that_pulsar_took():
    alike, after_failures = 0, 0
    for seed, real in enumerate(GOLDEN):
        steps = merge_program(seed)
        assert digest(steps) == real["digest"], f"{seed}: another program than Pulsar ran"
        chosen, has_failed = merged_range(steps)
        assert chosen == real["merged"], seed
        alike += chosen is not None
        after_failures += has_failed
    assert alike >= 50
    assert after_failures >= 1, "where Pulsar's code failed first, its next choice is ours too"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tracker_merges_them(seed):
    merged = next(tracker for tracker in run(merge_program(seed), merges=True) if tracker.stats.merged.value)
    ranges = [f"{bucket.start}_{bucket.end}" for bucket in merged.buckets if bucket.is_merged]
    assert ranges == [GOLDEN[seed]["merged"]]
