"""Random runs of a topic with delayed messages, long enough that buckets are merged: for Pulsar's tracker and ours."""
import json
import random
from zlib import crc32

NOW = 1_700_000_000_000


def merge_program(seed):
    """Operations as PulsarOracle.replay takes them, the configuration first."""
    chance = random.Random(seed)
    now, ledger, entry = NOW, 10, 0
    steps = [{
        "op": "config", "min_index_count_per_bucket": chance.choice([20, 40, 60]), "tick_ms": 1000,
        "strict": chance.random() < 0.5, "time_step_per_segment_ms": chance.choice([20_000, 300_000]),
        "max_num_buckets": chance.choice([4, 5, 7]), "now": now, "max_indexes_per_segment": chance.choice([4, 7, 12]),
    }]
    spread, ledger_size = chance.choice([60_000, 300_000, 2_000_000]), chance.choice([10, 30, 80])
    polls = chance.choice([0, 0.02, 0.1])
    for _ in range(1000):
        act = chance.random()
        if act < 0.8:
            at = now + chance.choice([1001, 5000 + chance.randrange(spread), chance.randrange(2000, 2 * spread)])
            steps.append({"op": "add", "m": [ledger, entry, at]})
            entry += chance.choice([1, 1, 1, 7])
            if chance.random() < 1 / ledger_size:
                ledger, entry = ledger + chance.choice([1, 1, 4]), 0
        elif act < 0.8 + polls:
            steps.append({"op": "sched", "n": chance.choice([1, 5, 1000])})
        else:
            now += chance.randrange(spread // 100)
            steps.append({"op": "clock", "now": now})
    return steps


def digest(steps):
    """Says whether a program is still that which Pulsar ran."""
    return crc32("".join(json.dumps(step) for step in steps).encode())


def first_merge(answers):
    """Of what Pulsar did: the ledgers "start_end" of the first bucket that it made of others, None where it made none.
    """
    seen = []
    for step in answers:
        if step["op"] == "snapshot_create":
            start, end = map(int, step["key"].rpartition("bucket_")[2].split("_"))
            if any(start <= other[0] and other[1] <= end for other in seen):
                return f"{start}_{end}"
            seen.append((start, end))
    return None
