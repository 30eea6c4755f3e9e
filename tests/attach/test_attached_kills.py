"""Processes with one queue, owners and workers, that are killed at any moment: what they printed was promised."""
import os
import random
import signal
import subprocess
import sys
import time

import seglog
from support.waiting import line_of

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
PROCESSES = 4 if TORTURE else 3
OWNER_KILLS, WORKER_KILLS = (10, 30) if TORTURE else (2, 2)
JOBS = 100_000 if TORTURE else 120      # of each process

WORKER = """
import sys, threading, time
import seglog
path, name, begin, end, fsync = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
jobs = seglog.Queue(path, attach=True, retry_delay=0, max_attempts=None, fsync=fsync)
lock = threading.Lock()
def say(*words):
    with lock:
        print(*words, flush=True)
say("open")
def produce():
    n = begin
    while n < end:
        if n % 10 == 4:
            ids = jobs.put_many([b"%s.%d" % (name.encode(), one) for one in range(n, min(n + 5, end))])
            say("put", n, len(ids))
            n += len(ids)
        else:
            jobs.put(b"%s.%d" % (name.encode(), n), priority=int(n % 7 == 0))
            say("put", n, 1)
            n += 1
    say("done")
def consume():
    count = 0
    while True:
        began = time.monotonic_ns()
        job = jobs.get(timeout=0.2)
        if job is None:
            continue
        say("got", job.value.decode(), job.id, began)
        count += 1
        if count % 13 == 0:
            try:
                job.nack(0)
            except seglog.errors.LeaseLostError:
                pass
            continue
        job.ack()
        say("acked", job.value.decode(), time.monotonic_ns())
threading.Thread(target=consume, daemon=True).start()
produce()
threading.Event().wait()
"""


class Worker:
    """A process that is started again where it was when it is killed."""

    def __init__(self, path, name):
        self.path, self.name, self.next, self.is_done = path, name, 0, False
        self.lines = []
        self.start()

    def start(self):
        # (A batch that was under way may have been put as a whole: its numbers are not used again.)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, self.path, self.name, str(self.next), str(JOBS),
             "interval" if TORTURE else "batch"], stdout=subprocess.PIPE, text=True,
        )
        assert line_of(self.process) == "open\n"

    def read(self, line):
        if line.endswith("\n"):
            word, *rest = line.split()
            self.lines.append((word, rest))
            if word == "put":
                self.next = int(rest[0]) + int(rest[1])
            self.is_done |= word == "done"

    def read_to(self, puts):
        """Read until it has put so many, or all of its jobs."""
        while self.next < min(puts, JOBS):
            self.read(line_of(self.process))

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        for line in self.process.communicate()[0].splitlines(keepends=True):
            self.read(line)
        self.next += 10     # what was under way


def test_kills_of_owners_and_workers_lose_no_job_and_bring_none_back(tmp_path):
    chance, path = random.Random(4), tmp_path / "jobs"
    workers = [Worker(path, f"p{number}") for number in range(PROCESSES)]
    kills = ["owner"] * OWNER_KILLS + ["worker"] * WORKER_KILLS
    chance.shuffle(kills)
    for number, kind in enumerate(kills):
        for worker in workers:
            worker.read_to((number + 1) * JOBS // (len(kills) + 2))
        time.sleep(chance.random() * 0.1)       # any moment
        owner = _owner_of(path, workers)
        victim = owner if kind == "owner" and owner else chance.choice([one for one in workers if one is not owner])
        victim.kill()
        victim.start()
    for worker in workers:
        worker.read_to(JOBS)
    for worker in workers:
        worker.kill()
    put, got, acked, ids = set(), {}, {}, {}
    for worker in workers:
        for word, rest in worker.lines:
            if word == "put":
                put |= {f"{worker.name}.{int(rest[0]) + one}" for one in range(int(rest[1]))}
            elif word == "got":
                got.setdefault(rest[0], []).append(int(rest[2]))
                assert ids.setdefault(rest[0], rest[1]) == rest[1], f"{rest[0]} was put twice"
            elif word == "acked":
                acked[rest[0]] = min(int(rest[1]), acked.get(rest[0], 2**63))
    for value, at in acked.items():
        assert max(got[value]) <= at, f"{value} came after its acknowledgement"
    with seglog.Queue(path, max_attempts=None) as jobs:
        left = set()
        while found := jobs.get_many(1000, timeout=0):
            for job in found:
                left.add(job.value.decode())
                assert ids.setdefault(job.value.decode(), job.id) == job.id
    assert not acked.keys() & left
    # An acknowledgement may have been done without its line.
    assert put - got.keys() <= left
    assert put <= left | got.keys()
    assert len(put) > PROCESSES * JOBS // 2


def _owner_of(path, workers):
    from seglog.fs.lock import writer_of

    found = writer_of(path)
    return next((one for one in workers if found is not None and str(one.process.pid) in str(found)), None)
