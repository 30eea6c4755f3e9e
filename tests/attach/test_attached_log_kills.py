"""Processes with one log, owners and others, that are killed at any moment: what they printed was promised."""
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import seglog
from seglog.fs.lock import writer_of
from support.waiting import line_of

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
KILLS = 20 if TORTURE else 4
RECORDS = 10_000 if TORTURE else 250        # of each process
PAUSE_S = 0 if TORTURE else 0.02

WORKER = """
import asyncio, sys, time
import seglog, seglog.aio
path, name, *numbers, pause_s, fsync, how = sys.argv[1:]
(begin, end), pause_s = map(int, numbers), float(pause_s)
options = {"attach": True, "fsync": fsync, "config": {"segment.bytes": 20_000, "max.message.bytes": 500}}
print("open", flush=True)
def value(n):
    return b"%s.%d" % (name.encode(), n)
def append(log):
    n = begin
    while n < end:
        time.sleep(pause_s)
        if n % 10 == 4:
            most = min(n + 30, end)
            last = log.append_many([(None, value(one)) for one in range(n, most)], atomic=False)
            print("many", n, most - n, last, flush=True)
            n = most
        else:
            print("one", n, log.append(value(n)), flush=True)
            n += 1
async def gather():
    async with seglog.aio.open(path, **options) as log:
        n = begin
        while n < end:
            await asyncio.sleep(pause_s)
            most = min(n + 7, end)
            offsets = await asyncio.gather(*(log.append(value(one)) for one in range(n, most)))
            for one, offset in zip(range(n, most), offsets):
                print("one", one, offset, flush=True)
            n = most
if how == "tasks":
    asyncio.run(gather())
else:
    log = seglog.open(path, **options)
    append(log)
    log.close()
print("done", flush=True)
"""


class Worker:
    """A process that is started again where it was when it is killed."""

    def __init__(self, path, name, fsync, how):
        self.arguments = path, name
        self.rest = fsync, how
        self.name, self.next, self.is_done = name, 0, False
        self.offsets = {}       # of a number, in order
        self.many = []
        self.start()

    def start(self):
        # (What was under way may have been appended: its numbers are not used again.)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *self.arguments, str(self.next), str(RECORDS), str(PAUSE_S),
             *self.rest],
            stdout=subprocess.PIPE, text=True,
        )
        assert line_of(self.process) == "open\n"

    def read(self, line):
        if not line.endswith("\n"):
            return
        word, *numbers = line.split()
        if word == "one":
            number, offset = map(int, numbers)
            self.offsets[number], self.next = offset, number + 1
        elif word == "many":
            first, count, last = map(int, numbers)
            self.many.append((first, count))
            self.offsets[first + count - 1], self.next = last, first + count
        self.is_done |= word == "done"

    def read_to(self, number):
        while self.next < min(number, RECORDS):
            self.read(line_of(self.process))

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        for line in self.process.communicate()[0].splitlines(keepends=True):
            self.read(line)
        self.next += 40     # what was under way


@pytest.mark.parametrize(("count", "fsync", "how"), [(2, "batch", "threads"), (4, "never", "threads"),
                                                   (3, "batch", "tasks")])
def test_kills_lose_nothing_that_was_acknowledged_and_append_nothing_twice(tmp_path, count, fsync, how):
    chance, path = random.Random(count), tmp_path / "orders-0"
    workers = [Worker(path, f"p{number}", fsync, how) for number in range(count)]
    owners_killed = 0
    for number in range(KILLS):
        for worker in workers:
            worker.read_to((number + 1) * RECORDS // (KILLS + 2))
        time.sleep(chance.random() * 0.05)      # any moment
        owner = owner_of(path, workers)
        is_owners_turn = number % 2 == 0
        owners_killed += is_owners_turn and owner is not None
        victim = owner if is_owners_turn and owner else chance.choice([one for one in workers if one is not owner])
        victim.kill()
        victim.start()
    for worker in workers:
        worker.read_to(RECORDS)
        assert worker.process.wait(60) == 0
        worker.process.stdout.close()
    assert owners_killed
    with seglog.open(path) as log:
        found = [(record.offset, record.value.decode()) for record in log.read()]
        assert not log.recovery.lost
    assert len({value for _, value in found}) == len(found), "something was appended twice"
    at = {value: offset for offset, value in found}
    for worker in workers:
        for number, offset in worker.offsets.items():
            assert at[f"{worker.name}.{number}"] == offset
        for first, size in worker.many:
            assert all(f"{worker.name}.{number}" in at for number in range(first, first + size))
        numbers = [int(value.partition(".")[2]) for _, value in found if value.startswith(f"{worker.name}.")]
        assert numbers == sorted(numbers)
        assert len(numbers) >= RECORDS // 2
    assert seglog.verify(path).ok


def owner_of(path, workers):
    found = writer_of(path)
    return next((one for one in workers if found is not None and f"process {one.process.pid} " in f"{found} "), None)
