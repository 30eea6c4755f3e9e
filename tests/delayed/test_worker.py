"""Background work runs when it is woken, once more for wakes that came meanwhile, and never after close."""
import os
import sys
import threading
import time
from collections import Counter

import pytest

from seglog.delayed.worker import BackgroundWorker, InlineWorker, WorkerPool


@pytest.mark.parametrize("make", [InlineWorker, BackgroundWorker])
def test_a_wake_makes_it_work(make):
    worker, runs = make(), []
    worker.start(lambda: runs.append(1))
    worker.wake()
    worker.wait_idle()
    assert runs == [1]
    worker.close()
    worker.wake()
    worker.wait_idle()
    worker.close()
    assert runs == [1]


def test_a_wake_during_the_work_makes_it_work_once_more():
    worker, runs, begun, go_on = BackgroundWorker(), [], threading.Event(), threading.Event()

    def work():
        runs.append(1)
        begun.set()
        go_on.wait()

    worker.start(work)
    worker.wake()
    begun.wait()
    for _ in range(5):
        worker.wake()
    go_on.set()
    worker.wait_idle()
    assert len(runs) == 2
    worker.close()


def test_work_that_wakes_itself_inline_is_not_entered_again():
    worker, runs = InlineWorker(), []

    def work():
        runs.append(1)
        worker.wake()

    worker.start(work)
    worker.wake()
    assert runs == [1]


def test_work_may_close_its_own_worker():
    worker = BackgroundWorker()
    worker.start(worker.close)
    worker.wake()
    worker.wait_idle()


def test_after_an_error_nobody_expected_the_next_wake_works_again(monkeypatch):
    worker, runs, seen = BackgroundWorker(), [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.set())

    def work():
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("a mistake")

    worker.start(work)
    worker.wake()
    assert seen.wait(60)
    worker.wake()
    worker.wait_idle()
    assert runs == [1, 1]
    worker.close()


def test_many_workers_share_the_threads_of_a_pool_and_each_works_alone():
    pool, busy, overlaps, runs = WorkerPool(2), set(), [], Counter()
    workers = [pool.new_worker() for _ in range(100)]

    def work(n):
        overlaps.extend([n] * (n in busy))
        busy.add(n)
        time.sleep(0.0002)
        runs[n] += 1
        busy.discard(n)

    before = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    for n, worker in enumerate(workers):
        worker.start(lambda n=n: work(n))
    for _ in range(3):
        for worker in workers:
            worker.wake()
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/task")) <= before + 2
    for worker in workers[1:]:
        worker.wait_idle()
    workers[0].close()
    workers[0].wake()
    workers[1].wake()
    workers[1].wait_idle()
    assert not overlaps
    assert set(runs) >= set(range(1, 100))
    pool.close()
    workers[1].wake()
    workers[1].wait_idle()
