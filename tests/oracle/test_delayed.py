"""The real tracker of Pulsar 4.2.4 beside ours: what we wrote it recovers, and what both are told both answer."""
import json
import os
import random
from pathlib import Path

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.ledger.ledger import Ledger
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage
from support.delayed import stream
from support.merge_program import digest, first_merge, merge_program
from support.pulsar_oracle import write_stream

pytestmark = pytest.mark.oracle
NOW = 1_700_000_000_000
FIRST_MERGES = Path(__file__).parents[1] / "golden/first_merges.json"


def entries_of(directory):
    with Ledger.open(directory) as ledger:
        return [entry for _, entry in ledger.read_range(0, ledger.last_entry_id)]


@pytest.mark.parametrize("max_buckets", [-1, 3, 1])
def test_pulsar_recovers_and_drains_what_we_stored(pulsar_oracle, tmp_path, max_buckets):
    """Sealed buckets and merged ones; some messages were cancelled or delivered before, and Pulsar cannot know that."""
    chance = random.Random(max_buckets)
    clock = ManualClock(NOW)
    config = DelayedDeliveryConfig(
        ledger_step=0, min_index_count=50, max_indexes_per_segment=20, time_step_s=60, max_buckets=max_buckets
    )
    storage = LedgerSnapshotStorage(tmp_path / "delayed", clock=clock)
    tracker = BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())
    at = {}
    for n in range(1500):
        position = (10 + n // 40, 3 * (n % 40))
        at[position] = NOW + 60_000 + chance.randrange(600_000)
        tracker.add_message(*position, at[position])
    stored = {(b.start, b.end): storage.path / f"ledger-{b.snapshot_id}" for b in tracker.buckets}
    expected = {p for p in at if any(start <= p[0] <= end for start, end in stored)}
    assert len(expected) > 1400
    tracker.close()
    files = {}
    for bounds, directory in stored.items():
        files[bounds] = tmp_path / f"{bounds[0]}.bin"
        write_stream(files[bounds], entries_of(directory))
    recovered, polls = pulsar_oracle.recover(NOW, files)
    assert recovered == {"recovered": len(expected), "buckets": len(stored)}
    drained = [tuple(position) for _, batch in polls for position in batch]
    assert len(drained) == len(set(drained))
    assert set(drained) == expected
    assert all(at[tuple(position)] <= now for now, batch in polls for position in batch)


def program(seed):
    """Operations of one topic: ledgers rise, the clock goes on, now and then somebody polls or asks."""
    chance = random.Random(seed)
    strict = bool(seed % 2)
    now, ledger, entry = NOW, 10, 0
    steps = [{
        "op": "config", "min_index_count_per_bucket": chance.choice([20, 60]), "tick_ms": 1000, "strict": strict,
        "time_step_per_segment_ms": chance.choice([5000, 60_000]), "max_num_buckets": -1, "now": now,
        "max_indexes_per_segment": chance.choice([-1, 7, 30]),
    }]
    for _ in range(1200):
        act = chance.random()
        if act < 0.75:
            at = now + chance.choice([-1, 0, 999, 1000, 1001, chance.randrange(200_000), chance.randrange(200_000)])
            steps.append({"op": "add", "m": [ledger, entry, at]})
            entry += chance.choice([1, 1, 1, 7])
            if chance.random() < 0.03:
                ledger, entry = ledger + chance.choice([1, 1, 4]), 0
        elif act < 0.9:
            now += chance.randrange(2000)
            steps.append({"op": "clock", "now": now})
        elif act < 0.95:
            steps.append({"op": "sched", "n": chance.choice([1, 5, 1000])})
        else:
            steps.append({"op": "contains", "m": [chance.randrange(10, ledger + 1), chance.randrange(60)]})
    for _ in range(60):
        now += 5000
        steps += [{"op": "clock", "now": now}, {"op": "sched", "n": 1000}]
    return steps


@pytest.mark.parametrize("seed", range(6))
def test_pulsar_gives_our_answers_and_writes_our_bytes(pulsar_oracle, tmp_path, seed):
    steps = program(seed)
    real = pulsar_oracle.replay(steps, tmp_path)
    head = steps[0]
    clock = ManualClock(head["now"])
    config = DelayedDeliveryConfig.of({
        "delayedDeliveryLedgerStepPerBucket": 0,
        "delayedDeliveryMinIndexCountPerBucket": head["min_index_count_per_bucket"],
        "delayedDeliveryTimeStepPerBucketSnapshotSeconds": head["time_step_per_segment_ms"] // 1000,
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": head["max_indexes_per_segment"],
        "delayedDeliveryMaxNumBuckets": -1,
        "delayedDeliveryTickTimeMillis": head["tick_ms"],
        "isDelayedDeliveryDeliverAtTimeStrict": head["strict"],
    })
    storage = LedgerSnapshotStorage(tmp_path / "delayed")
    tracker = BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())
    seals = 0
    for step in real[1:]:
        match step["op"]:
            case "clock":
                clock.set(step["now"])
            case "add":
                assert tracker.add_message(*step["m"]) == step["ret"], step
            case "contains":
                assert tracker.contains_message(*step["m"]) == step["ret"], step
            case "sched":
                # Pulsar gives a set, sorted by position.
                assert sorted(tracker.get_scheduled_messages(step["n"])) == [tuple(p) for p in step["ret"]], step
                assert tracker.number_of_delayed_messages == step["left"]
            case "snapshot_create":
                # Told before the message that led to it.
                seals += 1
    assert seals >= 3
    assert tracker.stats.counts["create", "succeed"].value == seals
    tracker.close()


@pytest.mark.parametrize("seed", range(2))
def test_pulsar_seals_the_same_bytes(pulsar_oracle, tmp_path, seed):
    """Nothing is polled, so that every bucket is there at the end."""
    steps = [step for step in program(seed)[:1200] if step["op"] in ("config", "add")]
    real = pulsar_oracle.replay(steps, tmp_path)
    clock = ManualClock(steps[0]["now"])
    config = DelayedDeliveryConfig(
        ledger_step=0, min_index_count=steps[0]["min_index_count_per_bucket"], strict=steps[0]["strict"],
        time_step_s=steps[0]["time_step_per_segment_ms"] // 1000, max_buckets=-1,
        max_indexes_per_segment=steps[0]["max_indexes_per_segment"],
    )
    storage = LedgerSnapshotStorage(tmp_path / "delayed")
    tracker = BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())
    for step in steps[1:]:
        tracker.add_message(*step["m"])
    ours = {name: int(number) for name, number in storage.properties().items() if name.startswith(BUCKET_PROPERTY)}
    pulsars = {step["key"]: tmp_path / "replayed" / step["file"] for step in real if step["op"] == "snapshot_create"}
    assert ours.keys() == pulsars.keys()
    assert len(ours) >= 3
    for name, number in ours.items():
        assert entries_of(storage.path / f"ledger-{number}") == stream(pulsars[name]), name
    tracker.close()


def test_pulsar_merges_first_what_the_golden_file_says(pulsar_oracle, tmp_path):
    """A JVM a run: a few of them, or, with SEGLOG_UPDATE_GOLDEN, all 80, of which the file is made."""
    golden = json.loads(FIRST_MERGES.read_text())
    is_update = bool(os.environ.get("SEGLOG_UPDATE_GOLDEN"))
    found = []
    for seed in range(80 if is_update else 4):
        steps = merge_program(seed)
        merged = first_merge(pulsar_oracle.replay(steps, tmp_path))
        found.append({"digest": digest(steps), "merged": merged})
    if is_update:
        FIRST_MERGES.write_text("[\n" + ",\n".join(f" {json.dumps(run)}" for run in found) + "\n]\n")
    assert found == golden[: len(found)]
