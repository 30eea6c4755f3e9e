"""Compaction of a log beside Kafka's own cleaner, its map beside a dict of MD5 digests, and its effect on appends.

Kafka's cleaner (3.9.1) runs in a separate JVM with the optimizing compiler, on copies of the same directory: thread CPU
time, best of several runs. Copying and opening are not timed on either side.
"""
import hashlib
import json
import random
import shutil
import subprocess
import tempfile
import threading
import time
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
    _appends(bench, directory, count)
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


class Cleaning:
    """A log that a thread compacts from its start repeatedly, while `runs` is set."""

    def __init__(self, path: Path, count: int, *, runs: bool) -> None:
        self._runs = runs
        self._log = Log(path, config=CONFIG | {"segment.bytes": "1MiB"}, fsync="never")
        for raw in batches_of(count, max(count // 10, 1), "none"):
            self._log.append_batch(raw)
        self._log.roll()
        self._thread = threading.Thread(target=self._clean)
        self._thread.start()

    def _clean(self) -> None:
        while self._runs:
            self._log._put_cleaner_offset(0)
            clean(self._log, should_stop=lambda: not self._runs)

    def end(self) -> None:
        self._runs = False
        self._thread.join()
        self._log.close()


def _appends(bench: Bench, directory: Path, count: int) -> None:
    """The appending thread's CPU time, and its longest waits for an append; the cleaner works on another log."""
    case = "append while the cleaner runs"
    if not bench.wanted(case):
        return
    appends = max(count // 20, 500)
    waits: dict[bool, list[float]] = {True: [], False: []}

    def make(*, runs: bool) -> tuple[Log, Cleaning]:
        place = Path(tempfile.mkdtemp(dir=directory))
        return Log(place / "appended-0", fsync="never"), Cleaning(place / "cleaned-0", count // 4, runs=runs)

    def work(logs: tuple[Log, Cleaning], *, runs: bool) -> None:
        append, value, took = logs[0].append, b"v" * 100, []
        for _ in range(appends):
            started = time.perf_counter()
            append(value, key=b"key", timestamp=1_700_000_000_000)
            took.append(time.perf_counter() - started)
        waits[runs] = sorted(took)

    def drop(logs: tuple[Log, Cleaning]) -> None:
        logs[1].end()
        logs[0].close()
        shutil.rmtree(logs[0].path.parent)

    bench.compare(
        case, appends / 1e6, "M appends/s",
        {
            name: Fresh(lambda runs=runs: make(runs=runs), lambda logs, runs=runs: work(logs, runs=runs), drop)
            for name, runs in (("cleaner runs", True), ("no cleaner", False))
        },
        {("cleaner runs", "no cleaner"): Goal(1 / 1.1)},
    )
    p99 = {runs: found[-1 - len(found) // 100] * 1e6 for runs, found in waits.items()}
    bench.reported(f"{case}, p99 of one", "us", "cleaner runs", p99[True], "no cleaner", p99[False])


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
