"""A queue in which much waits: tasks of an event loop, a process that waits for another's jobs, delayed jobs.

The functions that must run in a separate process have a command: `python -m benches.queue_waiting NAME PATH COUNT`
prints what it found as JSON.
"""
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import seglog
from benches.delayed_scale import status_mib
from benches.queue import VALUE
from benches.runner import Bench, Goal
from seglog.clock import ManualClock

TASKS, FEW_TASKS = 1000, 20
SENT, FEW_SENT = 300, 10
# Between two jobs that are sent: the one before has long arrived.
PAUSE_S = 0.01
BEYOND_SYNC_MS = 3
NOW_MS = 1_700_000_000_000
HOUR_S = 3600
# The clock moves by so much: in a small run, so that it is short.
STEP_S, FEW_STEP_S = 1, 60
# A job is due within so many ms of its time: as docs/queue.md says.
LATE_MS = 20


# --- tasks -----------------------------------------------------------------------------------


async def turns_of_tasks(queue: seglog.aio.Queue, count: int) -> None:
    async def turn() -> None:
        await queue.put(VALUE)
        job = await queue.get(timeout=60)
        assert job is not None
        await job.ack()

    await asyncio.gather(*(turn() for _ in range(count)))


async def turns_in_a_pool(queue: seglog.Queue, count: int) -> None:
    def turn() -> None:
        queue.put(VALUE)
        job = queue.get(timeout=60)
        assert job is not None
        job.ack()

    await asyncio.gather(*(asyncio.to_thread(turn) for _ in range(count)))


def tasks(bench: Bench, case: str, place: Path, count: int, turns: int) -> None:
    with asyncio.Runner() as runner, seglog.Queue(place / "pool") as pooled:
        queue = seglog.aio.Queue(place / "tasks")
        runner.run(queue.__aenter__())
        bench.by_wall(case, count, "jobs/s", {
            "seglog.aio": lambda: runner.run(turns_of_tasks(queue, count)),
            "a thread pool": lambda: runner.run(turns_in_a_pool(pooled, count)),
        }, {("seglog.aio", "a thread pool"): Goal(5)}, turns=turns)
        runner.run(queue.__aexit__(None, None, None))


# --- another process -------------------------------------------------------------------------


def take_all(path: str, count: int) -> list[int]:
    """When each job was there, monotonic ns."""
    came = []
    with seglog.Queue(path, attach=True) as queue:
        print(flush=True)
        for _ in range(count):
            job = queue.get(timeout=60)
            assert job is not None
            came.append(time.monotonic_ns())
            job.ack(wait=False)
    return came


def another_process(bench: Bench, case: str, place: Path, count: int) -> None:
    path = str(place / "between")
    with seglog.Queue(path, attach=True) as queue, _command("take_all", path, count) as other:
        assert other.stdout is not None
        other.stdout.readline()
        durable = []
        for _ in range(count):
            queue.put(VALUE)
            durable.append(time.monotonic_ns())
            time.sleep(PAUSE_S)
        came = json.loads(other.stdout.readline())
    beyond_ms = sorted((at - done) / 1e6 for at, done in zip(came, durable, strict=True))
    bench.limit(case, "ms", "p99", max(beyond_ms[count * 99 // 100], 0.001), BEYOND_SYNC_MS)


# --- delayed jobs ----------------------------------------------------------------------------


def deliver_delayed(path: str, count: int) -> dict[str, float]:
    """Put jobs that are due within an hour; let the hour pass, a step at a time. How late a job is: how long after the
    step it was there."""
    chance, clock = random.Random(3), ManualClock(NOW_MS)
    step_s = STEP_S if count >= 100_000 else FEW_STEP_S
    with seglog.Queue(path, fsync="never", clock=clock) as queue:
        queue.put(VALUE)
        queue.ack(queue.get_many(1, timeout=0))
        before_mib = status_mib("RssAnon")
        began = time.perf_counter()
        for _ in range(count):
            queue.put(VALUE, delay=timedelta(milliseconds=chance.randrange(1000, HOUR_S * 1000)))
        put_s, more_mib = time.perf_counter() - began, status_mib("RssAnon") - before_mib
        late_ms, early, delivered, took_s = [], 0, 0, 0.0
        for _ in range(HOUR_S // step_s):
            clock.advance(step_s * 1000)
            began = time.perf_counter()
            while jobs := queue.get_many(100, timeout=0):
                spent_s = time.perf_counter() - began
                late_ms += [1000 * spent_s] * len(jobs)
                early += sum(int(job.due_at.timestamp() * 1000) > clock.now_ms() for job in jobs)
                queue.ack(jobs, wait=False)
                delivered += len(jobs)
            took_s += time.perf_counter() - began
    late_ms.sort()
    return {
        "late_ms": late_ms[len(late_ms) * 99 // 100], "bytes": more_mib * 2**20 / count, "early": early,
        "missing": count - delivered, "put_us": 1e6 * put_s / count, "taken_us": 1e6 * took_s / count,
    }


def delayed_jobs(bench: Bench, case: str, place: Path, count: int) -> None:
    with _command("deliver_delayed", str(place / "delayed"), count) as other:
        assert other.stdout is not None
        found = json.loads(other.stdout.readline())
    if found["early"] or found["missing"]:
        raise RuntimeError(f"{found['early']} jobs were early, {found['missing']} never came")
    bench.limit(f"{case}, p99 of how late they are", "ms", "seglog", found["late_ms"], LATE_MS)
    bench.limit(f"{case}, memory", "bytes/job", "seglog", max(found["bytes"], 0.1), 64)
    bench.reported(f"{case}, put and taken", "us/job", "put", found["put_us"], "taken and finished", found["taken_us"])


# --- running ---------------------------------------------------------------------------------


def _command(name: str, path: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benches.queue_waiting", name, path, str(count)], stdout=subprocess.PIPE, text=True,
    )


COMMANDS: dict[str, Callable[[str, int], object]] = {"take_all": take_all, "deliver_delayed": deliver_delayed}


def main() -> None:
    name, path, count = sys.argv[1:]
    print(json.dumps(COMMANDS[name](path, int(count))), flush=True)


def run(bench: Bench, directory: Path, count: int) -> None:
    of_tasks, of_another = "queue: 1 000 tasks", "queue: put here, taken in another process"
    with tempfile.TemporaryDirectory(dir=directory) as place:
        if bench.wanted(of_tasks):
            size, turns = (TASKS, 5) if count >= 100_000 else (FEW_TASKS, 2)
            tasks(bench, of_tasks, Path(place), size, turns)
        if bench.wanted(of_another):
            another_process(bench, of_another, Path(place), SENT if count >= 100_000 else FEW_SENT)


def run_delayed(bench: Bench, directory: Path, count: int) -> None:
    case = f"queue: {count:,} delayed jobs in an hour"
    if bench.wanted(case):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            delayed_jobs(bench, case, Path(place), count)


if __name__ == "__main__":
    main()
