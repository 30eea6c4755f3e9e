"""A queue whose process is killed, forks, or ends with jobs in flight; and threads that are interrupted."""
import ctypes
import gc
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter

import pytest

import seglog
from seglog.errors import ForkedHandleError, LogClosedError
from support.interrupts import with_loses_exits
from support.waiting import line_of, wait_for

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
KILLS = 60 if TORTURE else 2

WORKER = """
import sys, threading
import seglog
from seglog.queue import journaled_ledger
journaled_ledger.CHECKPOINT_BYTES = 20_000
jobs = seglog.Queue(sys.argv[1], retry_delay=0, max_attempts=None, config={"managedLedgerMaxEntriesPerLedger": 40})
lock = threading.Lock()
def say(*words):
    with lock:
        print(*words, flush=True)
say("open")
def produce(begin):
    for n in range(begin, begin + 1_000_000):
        if n % 5 == 4:
            jobs.put_many([b"%d.%d" % (n, part) for part in range(3)])
        else:
            jobs.put(b"%d.0" % n, priority=n % 2)
        say("put", n)
def consume():
    for job in jobs:
        say("got", job.value.decode(), job.attempt)
        if job.attempt == 1 and job.value.endswith(b"3.0"):
            job.nack(0)
            continue
        job.ack()
        say("acked", job.value.decode())
for n in range(2):
    threading.Thread(target=consume, daemon=True).start()
produce(int(sys.argv[2]))
"""


def test_kills(tmp_path):
    """SIGKILL at any moment: what was printed was promised."""
    chance, path = random.Random(3), tmp_path / "jobs"
    put, acked, got, begin = set(), set(), {}, 0
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", WORKER, path, str(begin)], stdout=subprocess.PIPE, text=True)
        assert line_of(child) == "open\n"
        lines, puts = [], 0
        while puts < 12:        # however slow the machine is
            lines.append(line_of(child))
            puts += lines[-1].startswith("put")
        time.sleep(chance.random() * 0.3)
        os.kill(child.pid, signal.SIGKILL)
        for line in [*lines, *child.communicate()[0].splitlines(keepends=True)]:
            if not line.endswith("\n"):
                continue
            word, *rest = line.split()
            if word == "put":
                number = int(rest[0])
                put |= {f"{number}.{part}" for part in range(3 if number % 5 == 4 else 1)}
                begin = max(begin, number + 2)
            elif word == "got":
                assert rest[0] not in acked, f"{rest[0]} came after its acknowledgement"
                attempt = got.get(rest[0], 0)
                # A kill between the record of a delivery and the line leaves one that nobody heard of.
                assert int(rest[1]) > attempt
                got[rest[0]] = int(rest[1])
            elif word == "acked":
                acked.add(rest[0])
    with seglog.Queue(path, max_attempts=None) as jobs:
        found = {job.value.decode(): job.attempt for job in jobs.get_many(1_000_000, timeout=0)}
    assert not acked & found.keys()
    assert put <= acked | found.keys() | got.keys()
    # `ack` may have been done without its line: only what no consumer had must be there.
    assert put - got.keys() <= found.keys()
    assert all(attempt > got.get(value, 0) for value, attempt in found.items())
    assert len(put) > 10 * KILLS


def test_a_forked_child_is_refused_and_closes_without_harm(tmp_path):
    with seglog.Queue(tmp_path / "jobs") as jobs:
        jobs.put(b"x")
        job = jobs.get(timeout=0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(30)
                for call in (lambda: jobs.put(b"y"), lambda: jobs.get(timeout=0), job.ack, job.nack, jobs.stats):
                    try:
                        call()
                    except ForkedHandleError:
                        continue
                    os._exit(2)
                jobs.close()
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        job.ack()
        assert jobs.stats().backlog == 0


EXITS = """
import sys, threading, time
import seglog
jobs = seglog.Queue(sys.argv[1])
for n in range(5):
    jobs.put(b"%d" % n)
taken = jobs.get_many(2, timeout=0)
def wait():
    for job in jobs:
        time.sleep(600)
threading.Thread(target=wait, daemon=True).start()
threading.Thread(target=lambda: jobs.get(), daemon=True).start()
while jobs.stats().in_flight < 4:
    time.sleep(0.01)
taken[0].ack(wait=False)
if sys.argv[2] == "raise":
    raise SystemExit(3)
if sys.argv[2] == "closed":
    jobs.close()
"""


@pytest.mark.parametrize("way", ["end", "raise", "closed"])
def test_an_interpreter_that_ends_with_jobs_in_flight_ends_at_once_and_loses_nothing(tmp_path, way):
    child = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", EXITS, tmp_path / "jobs", way], timeout=120,
        capture_output=True, text=True, check=False,
    )
    assert child.returncode == (3 if way == "raise" else 0), child.stderr
    assert "Traceback" not in child.stderr or way == "closed", child.stderr
    with seglog.Queue(tmp_path / "jobs") as jobs:
        found = {job.value: job.attempt for job in jobs.get_many(10, timeout=0)}
    assert found == {b"1": 2, b"2": 2, b"3": 2, b"4": 1}


def test_a_queue_that_is_not_closed_is_told_and_frees_its_directory(tmp_path):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        seglog.Queue(tmp_path / "jobs").put(b"x")
        ends = time.monotonic() + 10
        while not (said := any("its next opening recovers" in str(one.message) for one in told)):
            gc.collect()        # a thread of the background may still hold it
            assert time.monotonic() < ends
            time.sleep(0.01)
    assert said
    with seglog.Queue(tmp_path / "jobs") as jobs:
        assert jobs.get(timeout=0).value == b"x"


class Stop(BaseException):
    """From outside."""


@pytest.mark.usefixtures("no_collector_hooks")
@pytest.mark.skipif(with_loses_exits(), reason="an interrupt makes `with` keep its lock: processes.md")
# An exception may come between the call of scandir and its `with` (fs.removal): the iterator is collected.
@pytest.mark.filterwarnings("ignore:unclosed scandir iterator:ResourceWarning")
def test_exceptions_from_outside_in_eight_threads_hang_and_lose_nothing(in_memory, monkeypatch):
    """PyThreadState_SetAsyncExc: in the middle of put, get, ack and nack."""
    put, acking, lock = set(), set(), threading.Lock()
    # When its acknowledgement had returned; which attempts were delivered.
    acked, delivered = {}, {}
    numbers = iter(range(10**9))
    interrupts = Counter()
    begun, died_of = [], []     # one that comes between two `try` ends the thread, which is no fault
    monkeypatch.setattr(threading, "excepthook", lambda args: died_of.append(args.exc_type))
    jobs = seglog.Queue(in_memory / "jobs", fsync="never", lease=0.05, retry_delay=0, max_attempts=None,
                        config={"managedLedgerMaxEntriesPerLedger": 50})
    stop = threading.Event()

    def once(chance):
        if chance.random() < 0.5:
            value = b"%d" % next(numbers)
            jobs.put(value)
            put.add(value)
            return
        began = time.monotonic()
        if (job := jobs.get(timeout=0)) is not None:
            # (A thread that is held up for longer than the lease acknowledges an attempt that is over, after another.)
            assert began < acked.get(job.value, math.inf), job
            assert delivered.setdefault((job.value, job.attempt), job) is job, job
            if chance.random() < 0.2:
                job.nack(0)
                return
            acking.add(job.value)
            job.ack()
            acked.setdefault(job.value, time.monotonic())

    def work(seed):
        chance = random.Random(seed)
        while not stop.is_set():
            try:
                once(chance)
            except (Stop, seglog.errors.LeaseLostError):
                interrupts[seed] += 1

    def guarded(seed):
        begun.append(seed)
        while not stop.is_set():
            try:
                work(seed)
            except Stop:
                interrupts[seed] += 1

    threads = [threading.Thread(target=guarded, args=[seed], daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(begun) == len(threads))    # before, it would come into the code that starts a thread
    chance, ends = random.Random(9), time.monotonic() + (60 if TORTURE else 1)
    # (On a machine under load they take longer to come.)
    while (now := time.monotonic()) < ends or (sum(interrupts.values()) <= 20 and now < ends + 120):
        time.sleep(0.002)
        thread = chance.choice(threads)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert set(died_of) <= {Stop}
    assert sum(interrupts.values()) > 20
    time.sleep(0.3)
    found = {job.value for job in jobs.get_many(10**6, timeout=1)}
    assert put - acking <= found
    assert not acked.keys() & found
    jobs.close()
    with lock, pytest.raises(LogClosedError):
        jobs.get(timeout=0)
