"""Compaction of a log beside Kafka's own cleaner, and its map beside a dict of MD5 digests.

Kafka's is timed in a JVM of its own with the optimizing compiler: thread CPU time of 3.9.1's cleaner on copies of the
same directory, best of some runs. Neither side's copying and opening is timed.
"""
import hashlib
import json
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from benches.java import JAVA
from benches.runner import Bench, Fresh, Goal
from seglog import build_batch
from seglog._kernels.key_map import KeyMap
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.log.log import Log
from seglog.upkeep.cleaner import clean

BATCH = 500
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "32MiB"}
DEDUPE_BYTES = 128 << 20
JAVA_RUNS = 6


def batches_of(count: int, keys: int, codec: str) -> "list[bytes]":
    chance = random.Random(1)
    words = [chance.randbytes(7).hex().encode() for _ in range(64)]
    return [
        build_batch(
            [(b"key-%09d" % chance.randrange(keys), b" ".join(chance.choices(words, k=6))) for _ in range(BATCH)],
            codec=codec, base_offset=first, timestamp=1_700_000_000_000 + first,
        )
        for first in range(0, max(count, BATCH), BATCH)
    ]


def run(bench: Bench, directory: Path, count: int, *, with_java: bool) -> None:
    _map(bench, count)
    if with_java:
        for codec in ("none", "lz4"):
            _compaction(bench, directory, count, codec)


def _map(bench: Bench, count: int) -> None:
    case = "map of a log's keys, all different"
    if not bench.wanted(case):
        return
    window = Window(b"".join(
        build_batch([(b"key-%09d" % (first + n), b"v" * 100) for n in range(BATCH)], base_offset=first, timestamp=1)
        for first in range(0, max(count, BATCH), BATCH)
    ))
    table: BatchTable = scan(window)
    keys = [record.key or b"" for batch in table for record in batch]
    md5 = hashlib.md5

    def ours() -> None:
        found = KeyMap(max(32 * len(keys), 4096), expected_keys=len(keys))
        assert found.add_batches(table) == len(table)
        assert found.nbytes <= 32 * len(keys) + 4096

    def theirs() -> None:
        found = {}
        for offset, key in enumerate(keys):
            found[md5(key, usedforsecurity=False).digest()] = offset

    bench.compare(
        case, len(keys) / 1e6, "M keys/s", {"seglog": ours, "dict of MD5": theirs}, {("seglog", "dict of MD5"): Goal(8)}
    )


def _compaction(bench: Bench, directory: Path, count: int, codec: str) -> None:
    case = f"compaction of a log, v2 {codec}"
    if not bench.wanted(case):
        return
    path = directory / f"compact-{codec}-0"
    with Log(path, config=CONFIG, fsync="never") as log:
        for raw in batches_of(count, max(count // 10, 1), codec):
            log.append_batch(raw)
        log.roll()
        end = log.log_end_offset
    done = subprocess.run(
        [JAVA, "3.9.1", "-XX:TieredStopAtLevel=4", "CleanBench", path, str(JAVA_RUNS), str(DEDUPE_BYTES),
         f"segment.bytes={32 << 20}"],
        capture_output=True, text=True, check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert all(run["end_offset"] == end for run in told)

    def make() -> Log:
        copy = Path(tempfile.mkdtemp(dir=directory)) / path.name
        shutil.copytree(path, copy)
        return Log(copy, config=CONFIG, fsync="never")

    def ours(log: Log) -> None:
        assert clean(log).end_offset == end

    def drop(log: Log) -> None:
        log.close()
        shutil.rmtree(log.path.parent)

    bench.beside(
        case, end / 1e6, "M records/s", Fresh(make, ours, drop), "Kafka 3.9.1", min(run["cpu_s"] for run in told),
        min(run["wall_s"] for run in told), Goal(3, 8),
    )
