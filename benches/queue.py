"""A queue of jobs: ours beside persist-queue, litequeue, huey and a table in SQLite, with the same durability.

A turn puts, takes and acknowledges jobs of 200 bytes. The peers' items are theirs: persist-queue pickles, litequeue
takes text. huey removes a job when it is taken, and so loses those in flight; persist-queue and litequeue mark it.
"""
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litequeue
import persistqueue
from huey.storage import SqliteStorage

import seglog
from benches.runner import Bench, Goal

VALUE = b"v" * 200
TEXT = VALUE.decode()
TURNS, JOBS = 40, 20
BATCH = 100
THREADS, JOBS_A_THREAD = 16, 10
PROCESSES, JOBS_A_PROCESS = 4, 20
# What a put and an acknowledgement write here: an entry in its batch; a delivery and an acknowledgement in the journal.
ENTRY_BYTES, RECORD_BYTES = 330, 64
RESERVED_BYTES = 16 << 20

Turn = Callable[[int], None]


class SqliteJobs:
    """A table of jobs as one would write it by hand: a row is put, marked, and deleted."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._db = db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, taken INTEGER NOT NULL DEFAULT 0, value BLOB NOT NULL)")
        db.execute("CREATE INDEX ready ON jobs (taken, id)")

    def turn(self, jobs: int) -> None:
        execute = self._db.execute
        for _ in range(jobs):
            execute("INSERT INTO jobs (value) VALUES (?)", (VALUE,))
            [(number, _)] = execute(
                "UPDATE jobs SET taken = 1 WHERE id = (SELECT id FROM jobs WHERE taken = 0 ORDER BY id LIMIT 1)"
                " RETURNING id, value"
            ).fetchall()
            execute("DELETE FROM jobs WHERE id = ?", (number,))

    def batch(self, jobs: int) -> None:
        execute, many = self._db.execute, self._db.executemany
        for _ in range(jobs // BATCH):
            execute("BEGIN")
            many("INSERT INTO jobs (value) VALUES (?)", [(VALUE,)] * BATCH)
            execute("COMMIT")
            taken = execute(
                "UPDATE jobs SET taken = 1 WHERE id IN (SELECT id FROM jobs WHERE taken = 0 ORDER BY id LIMIT ?)"
                " RETURNING id, value", (BATCH,)
            ).fetchall()
            execute("BEGIN")
            many("DELETE FROM jobs WHERE id = ?", [(number,) for number, _ in taken])
            execute("COMMIT")


def ours(queue: seglog.Queue) -> Turn:
    def turn(jobs: int) -> None:
        for _ in range(jobs):
            queue.put(VALUE)
            job = queue.get(timeout=5)
            assert job is not None
            job.ack()
    return turn


def ours_in_batches(queue: seglog.Queue) -> Turn:
    def turn(jobs: int) -> None:
        for _ in range(jobs // BATCH):
            queue.put_many([VALUE] * BATCH)
            queue.ack(queue.get_many(BATCH, timeout=5))
    return turn


def persistqueues(queue: persistqueue.SQLiteAckQueue) -> Turn:
    def turn(jobs: int) -> None:
        for _ in range(jobs):
            queue.put(VALUE)
            queue.ack(queue.get(timeout=5))
    return turn


def litequeues(queue: litequeue.LiteQueue) -> Turn:
    def turn(jobs: int) -> None:
        for _ in range(jobs):
            queue.put(TEXT)
            queue.done(queue.pop().message_id)
    return turn


def hueys(storage: SqliteStorage) -> Turn:
    def turn(jobs: int) -> None:
        for _ in range(jobs):
            storage.enqueue(VALUE)
            storage.dequeue()
    return turn


class BareSyncs:
    """Writes of the same sizes into two files, and a sync of each: what no queue can do without."""

    def __init__(self, directory: Path) -> None:
        self._files = [os.open(directory / name, os.O_CREAT | os.O_RDWR) for name in ("entries", "journal")]
        for file in self._files:
            os.posix_fallocate(file, 0, RESERVED_BYTES)
            os.fsync(file)
        self._number = 0

    def turn(self, jobs: int) -> None:
        entries, journal = self._files
        for _ in range(jobs):
            self._number = (self._number + 1) % (RESERVED_BYTES // ENTRY_BYTES)
            os.pwrite(entries, bytes(ENTRY_BYTES), self._number * ENTRY_BYTES)
            os.fdatasync(entries)
            for part in range(2):
                os.pwrite(journal, bytes(RECORD_BYTES), (2 * self._number + part) * RECORD_BYTES)
            os.fdatasync(journal)

    def close(self) -> None:
        for file in self._files:
            os.close(file)


# What each process of several opens, and how it does a turn. (litequeue and a table by hand do as huey does.)
OPENED = {
    "seglog": lambda path: ours(seglog.Queue(path, attach=True)),
    "persist-queue": lambda path: persistqueues(
        persistqueue.SQLiteAckQueue(path, auto_commit=True, multithreading=True, timeout=60)
    ),
    "huey": lambda path: hueys(SqliteStorage(filename=path, fsync=True, timeout=60)),
}


class Processes:
    """Several that have one queue open, and do turns at the same time: `python -m benches.queue NAME PATH`."""

    def __init__(self, name: str, path: Path, count: int) -> None:
        self._all = [
            subprocess.Popen(
                [sys.executable, "-m", "benches.queue", name, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        self._wait()

    def turn(self) -> None:
        for process in self._all:
            assert process.stdin is not None
            print(JOBS_A_PROCESS, file=process.stdin, flush=True)
        self._wait()

    def _wait(self) -> None:
        for process in self._all:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("a process of the bench has ended")

    def close(self) -> None:
        for process in self._all:
            process.communicate()


def main() -> None:
    turn = OPENED[sys.argv[1]](sys.argv[2])
    print(flush=True)
    for jobs in sys.stdin:
        turn(int(jobs))
        print(flush=True)


def by_threads(turn: Turn) -> Callable[[], None]:
    """The turn in many threads at once."""
    def all_of_them() -> None:
        threads = [threading.Thread(target=turn, args=(JOBS_A_THREAD,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return all_of_them


def run(bench: Bench, directory: Path, count: int) -> None:
    one, many, threads = "queue: one at a time", "queue: 100 a call", "queue: 16 threads"
    processes = "queue: 4 processes"
    if not any(map(bench.wanted, (one, many, threads, processes))):
        return
    place = directory / "queues"
    place.mkdir()
    turns = TURNS if count >= 100_000 else 2
    if bench.wanted(processes):
        started = PROCESSES if count >= 100_000 else 2
        several = {name: Processes(name, place / f"{name} of several", started) for name in OPENED}
        bench.by_wall(processes, started * JOBS_A_PROCESS, "jobs/s", {
            name: contender.turn for name, contender in several.items()
        }, {("seglog", "persist-queue"): Goal(), ("seglog", "huey"): Goal()}, turns=max(turns // 4, 2))
        for contender in several.values():
            contender.close()
    bare = BareSyncs(place)
    full, normal = (SqliteJobs(place / f"{mode}.db", mode) for mode in ("FULL", "NORMAL"))
    with seglog.Queue(place / "jobs") as queue, seglog.Queue(place / "unsynced", fsync="interval") as unsynced:
        theirs = persistqueue.SQLiteAckQueue(str(place / "persist"), auto_commit=True, multithreading=True)
        durable: dict[str, Turn] = {
            "seglog": ours(queue), "persist-queue": persistqueues(theirs),
            "huey": hueys(SqliteStorage(filename=str(place / "huey.db"), fsync=True)),
            "SQLite FULL": full.turn, "bare syncs": bare.turn,
        }
        contenders = {name: lambda turn=turn: turn(JOBS) for name, turn in durable.items()}
        bench.by_wall(one + ", wall", JOBS, "jobs/s", contenders, {
            ("seglog", "bare syncs"): Goal(0.9), ("seglog", "persist-queue"): Goal(), ("seglog", "huey"): Goal(),
            ("seglog", "SQLite FULL"): Goal(),
        }, turns=turns)
        clocked: Any = {"clock": time.process_time, "rounds": 2}
        bench.compare(one + ", CPU", JOBS, "jobs/s", contenders, {
            ("seglog", "persist-queue"): Goal(4), ("seglog", "huey"): Goal(2), ("seglog", "SQLite FULL"): Goal(),
            ("seglog", "bare syncs"): Goal(),
        }, **clocked)
        lazy: dict[str, Turn] = {
            "seglog interval": ours(unsynced), "SQLite NORMAL": normal.turn,
            "litequeue NORMAL": litequeues(litequeue.LiteQueue(str(place / "lite.db"))),
        }
        bench.compare(
            one + ", unsynced, CPU", JOBS, "jobs/s",
            {name: lambda turn=turn: turn(JOBS) for name, turn in lazy.items()},
            {("seglog interval", "SQLite NORMAL"): Goal(), ("seglog interval", "litequeue NORMAL"): Goal()}, **clocked,
        )
        bench.by_wall(many, BATCH, "jobs/s", {
            "seglog": lambda: ours_in_batches(queue)(BATCH), "persist-queue": lambda: durable["persist-queue"](BATCH),
            "SQLite FULL": lambda: full.batch(BATCH),
        }, {("seglog", "persist-queue"): Goal(10), ("seglog", "SQLite FULL"): Goal()}, turns=max(turns // 4, 2))
        bench.by_wall(threads, THREADS * JOBS_A_THREAD, "jobs/s", {
            "seglog": by_threads(ours(queue)), "persist-queue": by_threads(durable["persist-queue"]),
        }, {("seglog", "persist-queue"): Goal(8)}, turns=max(turns // 8, 2))
    bare.close()


if __name__ == "__main__":
    main()
