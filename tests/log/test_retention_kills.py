"""Writers killed while their log deletes by itself: what is young enough is there, and no file is left over."""
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seglog
from support.killed_retainer import value_of
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
KILLS = 100 if os.environ.get("SEGLOG_TORTURE") else 5
TESTS = Path(__file__).parents[1]
KEPT_BYTES, KEPT_MS = 20_000, 400
CONFIGS = [
    {"retention.bytes": KEPT_BYTES, "file.delete.delay.ms": 20},
    {"retention.ms": KEPT_MS, "seglog.retention.granularity": "batch", "seglog.retention.head.rewrite.ratio": 0.3,
     "file.delete.delay.ms": 0},
    {"retention.ms": KEPT_MS, "file.delete.delay.ms": 60_000, "segment.ms": 100, "seglog.segment.idle.roll": True},
]


def live(path, seed, config, rng):
    """Let a writer work for a while and kill it; what it said it had appended, and when that was."""
    command = [sys.executable, "-m", "support.killed_retainer", path, str(seed), json.dumps(config)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(TESTS)}
    ) as writer:
        lines = [line_of(writer)]
        end = time.monotonic() + rng.random() * 1.5
        while time.monotonic() < end:
            lines.append(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        lines += [line for line in writer.stdout if line.endswith("\n")]
    return {int(offset): int(timestamp) for _, offset, timestamp in map(str.split, lines)}


@pytest.mark.parametrize("config", CONFIGS, ids=["size", "batches", "time"])
def test_a_killed_writer_has_lost_nothing_that_is_young(tmp_path, config):
    rng = random.Random(1)
    path = tmp_path / "orders-0"
    config = {"segment.bytes": 5000, "index.interval.bytes": 500} | config
    taken, moved = {}, set()
    for life in range(-(-KILLS // len(CONFIGS))):
        taken |= live(path, life, config, rng)
        killed_ms = time.time_ns() // 1_000_000
        with seglog.open(path) as log:
            start, end = log.log_start_offset, log.log_end_offset
            assert end > max(taken)
            assert [(r.offset, r.value) for r in log.read()] == [(n, value_of(n)) for n in range(start, end)]
            if "retention.ms" in config:
                assert [n for n, timestamp in taken.items() if n < start and timestamp > killed_ms - KEPT_MS] == []
            elif start:
                assert sum(batch.size_bytes for batch in log.batches(start)) >= KEPT_BYTES
            left = [p.name for p in path.iterdir() if p.suffix in (".deleted", ".cleaned", ".swap")]
            assert [name for name in left if name[0] != "."] == []
            moved.add(start)
    assert len(moved) > 1 or KILLS < 20
