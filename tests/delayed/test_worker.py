"""Background work runs when it is woken, once more for wakes that came meanwhile, and never after close."""
import threading

import pytest

from seglog.delayed.worker import BackgroundWorker, InlineWorker


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
    assert seen.wait(10)
    worker.wake()
    worker.wait_idle()
    assert runs == [1, 1]
    worker.close()
