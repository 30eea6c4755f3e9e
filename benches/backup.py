"""Backups: a first run and a restore, beside reading, hashing and writing the same files; a run without changes; and
what one that follows a log costs the appending thread."""
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import seglog
from benches import data
from benches.appending import our_log
from benches.following import append_all
from benches.opening import renumbered
from benches.runner import Bench, Fresh, Goal

SEGMENTS = 4
PIECE_BYTES = 16 << 20
# Of each million records that the other benchmarks use, so many segments in a log dir that has not changed.
UNCHANGED_SEGMENTS, IN_A_PARTITION = 0.1, 1000
UNCHANGED_BOUND_S = 3.0
# Many short turns, each with several runs of the backup.
EVERY_S = 0.03
TURN, PAIRS_A_REPETITION = 0.03, 15
FOLLOW = """
import seglog, sys
seglog.BackupStore(sys.argv[2]).follow(sys.argv[1], every_s=float(sys.argv[3]), on_run=lambda _: print(flush=True))
"""


class Following:
    """A log, and a process that backs it up again and again during the turns of this contender, and stands still
    during those of others."""

    def __init__(self, path: Path) -> None:
        self.log = our_log(path, fsync="never")
        self.log.append(b"first")
        arguments = [sys.executable, "-c", FOLLOW, path / "bench-0", path / "store", str(EVERY_S)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()     # the first run is over
        self._runs = 1
        self._thread = threading.Thread(target=self._count, args=[self._process.stdout])
        self._thread.start()
        self._process.send_signal(signal.SIGSTOP)

    def _count(self, told: IO[str]) -> None:
        for _ in told:
            self._runs += 1

    def turn(self, append: Callable[[object], object]) -> Fresh:
        return Fresh(
            lambda: self._process.send_signal(signal.SIGCONT), lambda _: append(self),
            lambda _: self._process.send_signal(signal.SIGSTOP),
        )

    def close(self) -> int:
        """Returns how many runs there were."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self.log.close()
        return self._runs


class Alone:
    """A log that nobody backs up."""

    def __init__(self, path: Path) -> None:
        self.log = our_log(path, fsync="never")
        self.log.append(b"first")


def run(bench: Bench, directory: Path, count: int) -> None:
    _copying(bench, directory / "backup", count)
    _unchanged(bench, directory / "unchanged", max(int(count * UNCHANGED_SEGMENTS), 1))
    _following(bench, directory / "following", count)


def plainly(source: Path, target: Path) -> None:
    """Read, hash and write the logs of a directory, each synced."""
    target.mkdir()
    for path in source.glob("*.log"):
        with open(path, "rb") as file, open(target / path.name, "wb") as copy:
            while piece := file.read(PIECE_BYTES):
                hashlib.sha256(piece).digest()
                copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())


def _copying(bench: Bench, directory: Path, count: int) -> None:
    cases = "backup create", "restore"
    if not any(map(bench.wanted, cases)):
        return
    batches, log_dir, store = data.segment(2, "none", 16384, count), directory / "logs", directory / "store"
    for number in range(SEGMENTS):
        path = log_dir / "bench-0" / f"{number * count:020d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(renumbered(batches, number * count))
    amount = len(batches) * SEGMENTS / 1e9

    def fresh(work: Callable[[], object], target: Path) -> Fresh:
        return Fresh(lambda: shutil.rmtree(target, ignore_errors=True), lambda _: work(), lambda _: None)

    plain = "read, SHA-256, write"
    peer = fresh(partial(plainly, log_dir / "bench-0", directory / "copy"), directory / "copy")
    goals = {("seglog", plain): Goal(0.7)}
    bench.compare(
        cases[0], amount, "GB/s", {"seglog": fresh(partial(seglog.backup, log_dir, store), store), plain: peer},
        goals, clock=time.process_time,
    )
    shutil.rmtree(store, ignore_errors=True)
    seglog.backup(log_dir, store)
    back = directory / "back"
    bench.compare(
        cases[1], amount, "GB/s", {"seglog": fresh(partial(seglog.restore, store, back), back), plain: peer},
        goals, clock=time.process_time,
    )


def _unchanged(bench: Bench, log_dir: Path, segments: int) -> None:
    name = f"backup create, {segments} segments that have not changed"
    if not bench.wanted(name):
        return
    batch = seglog.build_batch([(b"k", b"v")], base_offset=0, timestamp=1)
    for number in range(segments):
        place, offset = log_dir / f"bench-{number // IN_A_PARTITION}", number % IN_A_PARTITION
        if not offset:
            place.mkdir(parents=True)
        (place / f"{offset:020d}.log").write_bytes(struct.pack(">q", offset) + batch[8:])
        for suffix in (".index", ".timeindex"):
            (place / f"{offset:020d}{suffix}").touch()
    store = log_dir.with_name("unchanged-store")
    seglog.backup(log_dir, store)
    best_s = float("inf")
    for _ in range(bench.repetitions):
        began = time.process_time()
        run = seglog.backup(log_dir, store)
        best_s = min(best_s, time.process_time() - began)
        assert run.read_bytes == 0
    bench.limit(name, "s", "seglog", best_s, UNCHANGED_BOUND_S)


def _following(bench: Bench, directory: Path, count: int) -> None:
    """By the CPU time of the process that appends. The disk and the cores that the two share are not its cost."""
    name = "append while a backup follows"
    if not bench.wanted(name):
        return
    records, pairs = max(int(count * TURN), 100), PAIRS_A_REPETITION * bench.repetitions
    append = partial(append_all, records=records)
    followed, alone = Following(directory / "followed"), Alone(directory / "alone")
    try:
        bench.paired(
            name, records / 1e6, "M rec/s", ("followed", followed.turn(append)),
            ("alone", Fresh(lambda: alone, append, lambda _: None)), Goal(0.97), pairs=pairs, clock=time.process_time,
        )
    finally:
        runs = followed.close()
        alone.log.close()
    print(f"{'':34} {runs} runs of the backup, {records} records a turn")
