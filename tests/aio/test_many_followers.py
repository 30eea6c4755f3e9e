"""Ten thousand tasks that follow a hundred logs in one process: what they take, and that each gets its records."""
import asyncio
import gc
import os
import subprocess
import sys

import pytest

import seglog
import seglog.aio
from seglog.loop.arrivals import Arrivals
from support.loops import end_following, in_both_loops, run_in

FOLLOW = """
import asyncio, sys, tempfile, threading, time
from pathlib import Path
import seglog, seglog.aio
from support.loops import end_following

LOGS, EACH = 100, 100

async def main(directory, is_own):
    logs = [seglog.open(directory / f"orders-{n}", fsync="never") for n in range(LOGS)]
    readers = []
    for log in logs:
        log.append(b"first")
        readers.append(seglog.aio.AsyncLog(log) if is_own else await seglog.aio.follow(log.path))
    seen = [0] * LOGS

    async def follow(n, reader):
        async for record in reader.follow():
            seen[n] += record.value == b"%d" % n

    tasks = [asyncio.ensure_future(follow(n, reader)) for n, reader in enumerate(readers) for _ in range(EACH)]
    await asyncio.sleep(1.2)            # all wait, and were looked after once
    threads = threading.active_count()
    for _ in range(30):     # a slow machine is longer in bringing them there
        cpu_s = time.process_time()
        await asyncio.sleep(1)
        idle_s = time.process_time() - cpu_s
        if idle_s < 0.5:
            break
    for turn in range(3):
        for n, log in enumerate(logs):
            log.append(b"%d" % n)
        deadline = time.monotonic() + 60
        while min(seen) < EACH * (turn + 1):
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.01)
    assert seen == [3 * EACH] * LOGS
    memory_kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(memory_kib, idle_s, threads)
    await end_following(tasks, readers)
    for log in logs:
        log.close()

with tempfile.TemporaryDirectory(dir=sys.argv[2]) as directory:
    asyncio.run(main(Path(directory), sys.argv[1] == "own"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("kind", ["own", "follower"])
def test_10_000_tasks_follow_100_logs_within_200_mb(in_memory, kind):
    child = subprocess.run(
        [sys.executable, "-c", FOLLOW, kind, str(in_memory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=280,
    )
    assert child.returncode == 0, child.stderr
    memory_kib, idle_s, threads = map(float, child.stdout.split())
    assert memory_kib <= 200_000
    assert idle_s < 0.5         # of processor time in a second: no task looks before its log has changed
    assert threads < 40         # of the loop's pool, by opening


@in_both_loops
@pytest.mark.parametrize("is_own", [False, True], ids=["follower", "own"])
def test_a_task_that_waits_again_keeps_four_objects_for_the_garbage_collector(in_memory, new_loop, is_own):
    """Its coroutine, its future, and what awaits that on either side. Those of 10 000 tasks are young when the
    collector comes: with nine objects each, it stopped the loop for 10 to 20 ms."""
    tasks_each, logs = 100, [seglog.open(in_memory / f"orders-{n}", fsync="never") for n in range(2)]

    async def main():
        seen = 0

        async def follow(reader):
            nonlocal seen
            async for _ in reader.follow():
                seen += 1

        async def appended(turn):
            for log in logs:
                log.append(b"v")
            while seen < turn * tasks_each * len(logs):
                await asyncio.sleep(0.001)

        readers = []
        for log in logs:
            log.append(b"first")
            readers.append(seglog.aio.AsyncLog(log) if is_own else await seglog.aio.follow(log.path))
        tasks = [asyncio.ensure_future(follow(reader)) for reader in readers for _ in range(tasks_each)]
        await asyncio.sleep(0.1)
        await appended(1)
        gc.collect()
        gc.disable()
        try:
            await appended(2)
            await asyncio.sleep(0)
            kept = len(gc.get_objects(generation=0)) / len(tasks)
        finally:
            gc.enable()
        await end_following(tasks, readers)
        for log in logs:
            log.close()
        return kept

    assert run_in(new_loop, main()) <= 5        # (some are of the logs)


def test_followers_of_many_logs_are_not_looked_after_in_the_same_moment(in_memory, monkeypatch):
    delays = []
    set_timer = Arrivals._set_timer

    def noted(self, *part):
        set_timer(self, *part)
        delays.append(self._timer.when() - asyncio.get_running_loop().time())

    monkeypatch.setattr(Arrivals, "_set_timer", noted)
    logs = [seglog.open(in_memory / f"orders-{n}", fsync="never") for n in range(50)]

    async def main():
        readers = [await seglog.aio.follow(log.path) for log in logs]
        waits = [asyncio.ensure_future(anext(reader.follow())) for reader in readers]
        while len(delays) < len(logs):
            await asyncio.sleep(0.01)
        await end_following(waits, readers)

    asyncio.run(asyncio.wait_for(main(), 20))
    for log in logs:
        log.close()
    assert max(delays[: len(logs)]) - min(delays[: len(logs)]) > 0.2
