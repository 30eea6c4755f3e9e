"""Without a waiting thread: wait=False; durable appends in an event loop beside a thread pool; following tasks."""
import asyncio
import gc
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import seglog
import seglog.aio
from benches.appending import Place, our_log
from benches.runner import Bench, Goal

AT_ONCE = 500
# Batches of 16 KB, and how many of them may wait for the disk at once.
RECORDS = [(None, b"v" * 1000)] * 16
IN_FLIGHT = 64
LOGS, FOLLOWERS_A_LOG = 100, 100
ROUNDS = 10         # of an append to each log: with three rounds, p99 was only the three worst appends of 300
FEW_LOGS, FEW_FOLLOWERS_A_LOG = 5, 10       # for a run that only checks that the bench works


async def awaited(log: seglog.Log, rounds: int) -> None:
    ours = seglog.aio.AsyncLog(log)
    for _ in range(rounds):
        await asyncio.gather(*(ours.append(b"v" * 100) for _ in range(AT_ONCE)))


async def by_pool(log: seglog.Log, rounds: int, threads: int) -> None:
    """As without seglog.aio: a thread for each waiting append."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            await asyncio.gather(*(loop.run_in_executor(pool, log.append, b"v" * 100) for _ in range(AT_ONCE)))


def by_interval(log: seglog.Log, batches: int) -> None:
    for _ in range(batches):
        log.append_many(RECORDS)
    log.flush()


def for_nobody(log: seglog.Log, batches: int) -> None:
    """A callback for each append, with a limit on how many wait."""
    room: queue.SimpleQueue[None] = queue.SimpleQueue()     # (threading.Semaphore takes 3 us for each, in Python)
    for _ in range(IN_FLIGHT):
        room.put(None)
    for _ in range(batches):
        room.get()
        log.when_durable(log.append_many(RECORDS, wait=False), room.put)
    for _ in range(IN_FLIGHT):
        room.get()


def by_threads(log: seglog.Log, batches: int) -> None:
    def work() -> None:
        for _ in range(batches // 8):
            log.append_many(RECORDS)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(bench: Bench, directory: Path, count: int) -> None:
    place, rounds = Place(directory), max(count // 100_000, 2)

    def turn(main: object) -> object:
        return place.fresh(
            partial(our_log, fsync="batch"), lambda log: asyncio.run(main(log, rounds))     # type: ignore[operator]
        )

    # With as many threads as appends wait at once; and with an event loop's default pool.
    bench.compare(
        "500 durable appends at once", rounds * AT_ONCE / 1e3, "k rec/s",
        {
            "await append": turn(awaited),
            "500 threads": turn(partial(by_pool, threads=AT_ONCE)),
            "32 threads": turn(partial(by_pool, threads=32)),
        },
        {("await append", "500 threads"): Goal(3), ("await append", "32 threads"): Goal(3)},
        clock=time.process_time,
    )
    batches = max(count // 500, 16)

    def opened(fsync: str, work: Callable[[seglog.Log, int], None]) -> object:
        return place.fresh(partial(our_log, fsync=fsync), partial(work, batches=batches))     # type: ignore[arg-type]

    bench.compare(
        "16 KB batches, wait=False", batches / 1e3, "k batch/s",
        {
            "wait=False": opened("batch", for_nobody), "interval": opened("interval", by_interval),
            "8 threads": opened("batch", by_threads),
        },
        {("wait=False", "interval"): Goal(1 / 1.5), ("wait=False", "8 threads"): Goal()},
        clock=time.process_time,
    )
    case = "10 000 tasks follow 100 logs"
    if bench.wanted(case):
        child = subprocess.run(
            [sys.executable, "-m", "benches.event_loop", str(count)], capture_output=True, text=True, check=True,
        )
        megabytes, median_ms, p99_ms, cpu_us, gc_ms, gc_worst_ms = map(float, child.stdout.split())
        bench.limit(case, "MB", "memory", megabytes, 200)
        bench.limit(case, "ms", "append to record, p99", p99_ms, 5)
        bench.reported(case, "ms", "append to record, median", median_ms, "p99", p99_ms)
        if gc_worst_ms:     # not where the run only shows that the bench works
            bench.reported(case, "ms", "garbage collections, all", gc_ms, "the longest", gc_worst_ms)
        bench.reported(case, "us", "CPU a record and task", cpu_us, "microseconds a second", 1e6)


async def follow(directory: Path, log_count: int, followers: int) -> None:
    """Prints the process's memory; the time from an append to a following task (median, p99); the CPU time per task;
    and the garbage collector's share of it, in total and at most at once."""
    logs = [seglog.open(directory / f"bench-{n}", fsync="never") for n in range(log_count)]
    late: list[float] = []
    began, wanted, all_have_it = 0.0, 0, asyncio.Event()

    async def follow_one(log: seglog.aio.AsyncFollower) -> None:
        async for _ in log.follow():
            late.append(time.perf_counter() - began)
            if len(late) == wanted:
                all_have_it.set()

    readers = []
    for log in logs:
        for _ in range(3):      # including the marks that the first appends sync
            log.append(b"first")
        readers.append(await seglog.aio.follow(log.path))
    tasks = [asyncio.ensure_future(follow_one(reader)) for reader in readers for _ in range(followers)]
    await asyncio.sleep(1.5)
    collections = [0.0]
    gc_began = 0.0

    def collected(phase: str, _: object) -> None:
        nonlocal gc_began
        if phase == "start":
            gc_began = time.perf_counter()
        else:
            collections.append((time.perf_counter() - gc_began) * 1e3)

    gc.callbacks.append(collected)
    cpu = time.process_time()
    for log in logs * ROUNDS:
        wanted = len(late) + followers
        all_have_it.clear()
        began = time.perf_counter()
        log.append(b"v")
        await all_have_it.wait()
        await asyncio.sleep(0.01)
    cpu = time.process_time() - cpu
    gc.callbacks.remove(collected)
    status = Path("/proc/self/status").read_text()
    resident_kib = int(status.split("VmHWM:")[1].split()[0])
    print(
        resident_kib / 1000, statistics.median(late) * 1e3, sorted(late)[len(late) * 99 // 100] * 1e3,
        cpu / len(late) * 1e6, sum(collections), max(collections),
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for reader in readers:
        await reader.close()
    for log in logs:
        log.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sizes = (LOGS, FOLLOWERS_A_LOG) if int(sys.argv[1]) >= 100_000 else (FEW_LOGS, FEW_FOLLOWERS_A_LOG)
        asyncio.run(follow(Path(made), *sizes))
