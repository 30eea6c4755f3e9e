"""QuickLock excludes, and is taken again by its thread; a LockCondition misses no change; Intake leaves a taken one
alone."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from pyroaring import BitMap

from seglog._kernels.due_runs import DueRuns
from seglog._kernels.intake import Intake
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quick_lock import LockCondition, QuickLock
from support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("no_collector_hooks")


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_one_thread_at_a_time_is_inside():
    lock, inside, most, rounds = QuickLock(), [], [], 300

    def work(number):
        for turn in range(rounds):
            with lock:
                inside.append(number)
                if turn % 3 == 0:
                    time.sleep(0)       # gives the interpreter away
                with lock:
                    most.append(len(inside))
                inside.pop()

    in_threads(6, work)
    assert set(most) == {1}
    assert len(most) == 6 * rounds


def test_who_waits_comes_in_when_the_last_turn_is_given_back():
    lock, order = QuickLock(), []
    assert lock.acquire()
    lock.acquire()

    def work(_):
        with lock:
            order.append("waited")

    thread = threading.Thread(target=work, args=(0,))
    thread.start()
    lock.release()
    time.sleep(0.02)
    order.append("given back")
    lock.release()
    thread.join(30)
    assert order == ["given back", "waited"]


def test_a_lock_of_another_thread_or_of_nobody_is_not_given_back():
    lock, refused = QuickLock(), []
    with pytest.raises(RuntimeError):
        lock.release()

    def work(_):
        try:
            lock.release()
        except RuntimeError:
            refused.append(True)

    with lock:
        in_threads(2, work)
    assert refused == [True, True]


def test_a_condition_waits_and_is_notified_however_often_the_lock_was_taken():
    lock = QuickLock()
    condition = LockCondition(lock)
    given, taken = [], []

    def consume(_):
        with lock, lock:
            while not given:
                condition.wait(condition.number, 30)
            taken.append(given.pop())
            condition.notify()

    def produce(_):
        for n in range(3):
            with lock:
                given.append(n)
                condition.notify()
                while len(taken) <= n:
                    condition.wait(condition.number, 30)

    in_threads(4, lambda n: produce(n) if n == 3 else consume(n))
    assert sorted(taken) == [0, 1, 2]


def sleeping(count, work):
    """Threads that do `work`, and sleep in it, all of them."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    code = work.__code__
    wait_for(lambda: all(sys._current_frames()[thread.ident].f_code is code for thread in threads))
    time.sleep(0.1)
    return threads


def test_one_thread_is_woken_for_one_change_and_each_that_leaves_wakes_the_next():
    lock = QuickLock()
    condition = LockCondition(lock)
    given, taken, looks = [], [], []

    def consume(_):
        with condition:
            while not given:
                seen = condition.number
                condition.wait(seen, 30)
                looks.append(1)
            taken.append(given.pop())

    threads = sleeping(6, consume)
    with lock:
        given.append(0)
        condition.notify_one()
    wait_for(lambda: len(taken) == 1)
    time.sleep(0.05)
    assert len(looks) <= 2          # the one that took it, and the next one, which finds nothing
    with lock:
        given.extend(range(5))
        condition.notify_one()      # for all five: each wakes the next
    for thread in threads:
        thread.join(30)
    assert len(taken) == 6


def test_a_thread_that_is_woken_and_interrupted_wakes_another():
    lock = QuickLock()
    condition = LockCondition(lock)
    given, taken = [], []

    def consume(_):
        with condition:
            while not given:
                condition.wait(condition.number, 30)
            taken.append(given.pop())

    [thread] = sleeping(1, consume)
    signal_before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), condition:      # noqa: PT012
            given.append(1)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            condition.wait(condition.number, 30)
    finally:
        signal.signal(signal.SIGUSR1, signal_before)
    thread.join(20)
    assert taken == [1]


def test_a_change_between_looking_and_waiting_is_not_missed():
    lock = QuickLock()
    condition = LockCondition(lock)
    with lock:
        seen = condition.number
        condition.notify()
        condition.wait(seen)        # or it would be for ever
        condition.wait(condition.number, 0.001)
    with pytest.raises(RuntimeError):
        condition.wait(condition.number)


def test_a_thread_that_waits_is_left_by_a_signal_with_the_lock_taken_and_given_back():
    """threading.Condition kept its lock where the signal came at certain steps."""
    lock = QuickLock()
    condition = LockCondition(lock)
    signal_before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for n in range(60):
            # It may come at any step of the block.
            with pytest.raises(KeyboardInterrupt):      # noqa: PT012
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + n * 2e-5)
                with lock, lock:
                    while True:
                        condition.wait(condition.number)
            free = []
            in_threads(1, lambda _, free=free: free.append(lock.acquire() and lock.release() is None))
            assert free == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal_before)


def test_in_a_forked_child_a_lock_of_another_thread_is_free():
    lock = QuickLock()
    condition = LockCondition(lock)
    taken, done = threading.Event(), threading.Event()

    def hold(_):
        with lock:
            taken.set()
            done.wait(30)

    def wait(_):
        with lock:
            condition.wait(condition.number, 30)

    holder, waiter = (threading.Thread(target=work, args=(0,)) for work in (hold, wait))
    holder.start()
    assert taken.wait(30)
    waiter.start()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        condition.notify()
        with lock, lock:
            os._exit(7)
    done.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    holder.join(30)
    with lock:
        condition.notify()
    waiter.join(30)
    assert not waiter.is_alive()


def test_an_exception_gives_the_lock_back():
    lock = QuickLock()
    with pytest.raises(KeyError), lock, lock:
        raise KeyError
    in_threads(1, lambda _: lock.acquire())


def intake(lock, **settings):
    decided, moved = settings.pop("decided", {}), settings.pop("moved", {})
    found = Intake(lock, DueRuns(), PendingSet(BitMap), decided, moved, lambda: 100, settings.pop("other", None))
    found.most = 2
    for name, value in settings.items():
        setattr(found, name, value)
    return found


def test_the_intake_takes_what_is_plain():
    took = intake(QuickLock())
    assert [took.add(5, 1, 101), took.add(5, 1, 101), took.delayed] == [True, True, 1]
    assert [took.add(6, 1, 150), took.add(6, 2, 150), took.delayed] == [True, False, 2]      # `most`


def test_the_intake_leaves_alone_what_is_not_plain():
    known = PendingSet(BitMap)
    known.add(5, 9)
    assert not intake(QuickLock()).add(5, 1, 100)                        # due
    assert not intake(QuickLock(), early_ms=10).add(5, 1, 110)
    assert not intake(QuickLock(), early_ms=-200).add(5, 1, -1)          # not delayed at all
    assert not intake(QuickLock(), ledger_id=4).add(5, 1, 101)
    assert not intake(QuickLock(), decided={5: BitMap()}).add(5, 1, 101)
    assert not intake(QuickLock(), moved={(5, 2): 7}).add(5, 1, 101)
    assert not intake(QuickLock(), other=known).add(5, 1, 101)
    assert intake(QuickLock(), other=known).add(6, 1, 101)
    assert intake(QuickLock(), ledger_id=5).add(5, 1, 101)


def test_the_intake_leaves_everything_alone_while_another_thread_is_at_work():
    lock = QuickLock()
    took, answers = intake(lock), []
    with lock:
        in_threads(1, lambda _: answers.append(took.add(5, 1, 101)))
        assert took.add(5, 1, 101)
    in_threads(1, lambda _: answers.append(took.add(5, 2, 101)))
    assert answers == [False, True]


def test_the_intake_reads_the_systems_clock():
    took = Intake(QuickLock(), DueRuns(), PendingSet(BitMap), {}, {})
    took.most = 10
    now = time.time_ns() // 10**6
    assert not took.add(5, 1, now - 5)
    assert took.add(5, 1, now + 10_000)


AT_THE_END = """
import os, sys, threading, time, types
from seglog._kernels.quick_lock import LockCondition, QuickLock

condition, sleeping = LockCondition(QuickLock()), threading.Semaphore(0)

def sleep():
    with condition:
        sleeping.release()
        condition.wait(condition.number, 0.05)

threading.stack_size(32 << 20)      # so large that the system gets them back
for _ in range(6):
    threading.Thread(target=sleep, daemon=True).start()

class Last:
    def __del__(self, condition=condition, sleep=time.sleep, write=os.write):
        sleep(0.2)      # the threads wake up, and are stopped
        condition.notify_one()
        condition.notify()
        write(1, b"notified")

sys.modules["holder"] = holder = types.ModuleType("holder")
holder.last = Last()
del holder
for _ in range(6):
    sleeping.acquire()
with condition:     # they sleep
    pass
"""


def test_who_notifies_while_the_interpreter_ends_wakes_no_thread_whose_stack_is_gone():
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "notified"), done.stderr
