"""Work that threads do ahead of whoever takes its results."""
import itertools
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from seglog.frames import ahead
from seglog.frames.ahead import in_order
from support.waiting import wait_for


def later(n):
    time.sleep(0.002 * (n % 3))
    return n


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_work_however_long_each_takes(threads):
    assert list(in_order((partial(later, n) for n in range(40)), threads)) == list(range(40))
    assert list(in_order(iter(()), threads)) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_than_two_results_for_each_thread_are_made_ahead(threads):
    begun, ahead = [], 2 * threads - 1 if threads > 1 else 0
    results = in_order((partial(begun.append, n) for n in itertools.count()), threads)
    for taken in range(1, 20):
        next(results)
        wait_for(lambda taken=taken: len(begun) >= taken + ahead)
        assert len(begun) == taken + ahead
    results.close()


def test_a_thread_goes_on_while_the_consumer_is_in_a_piece_of_its_own():
    """The consumer has made one result that is not its turn, and begins another one; then the thread ends its piece."""
    consumer, begun, by_thread = threading.main_thread(), [], []

    def piece(n):
        begun.append(n)
        if threading.current_thread() is not consumer:
            by_thread.append(len(begun))
            if len(by_thread) == 1:
                wait_for(lambda: len(begun) == by_thread[0] + 2)
        elif by_thread and len(begun) == by_thread[0] + 2:
            wait_for(lambda: len(by_thread) == 2)
        return n

    assert list(in_order((partial(piece, n) for n in range(20)), 2)) == list(range(20))


def test_all_threads_look_for_their_work_themselves_one_at_a_time(monkeypatch):
    """So does the consumer while it waits. While it is busy with results, the threads go on: see above."""
    # On a busy machine the others take longer to find a piece: the consumer would wait for their results instead.
    monkeypatch.setattr(ahead, "_PATIENCE_S", 60)
    walkers, walking = set(), threading.Lock()

    def work():
        for n in range(30):
            assert walking.acquire(blocking=False)
            time.sleep(0.001)
            walkers.add(threading.current_thread())
            walking.release()
            yield partial(until_another_walked, n)

    def until_another_walked(n):
        """The consumer waits in its pieces for another thread, and the others for the consumer."""
        consumer = threading.main_thread()
        if threading.current_thread() is consumer:
            wait_for(lambda: len(walkers) > 1)
        else:
            wait_for(lambda: consumer in walkers)
        return n

    assert list(in_order(work(), 3)) == list(range(30))


def test_a_result_that_is_ready_does_not_wait_for_a_thread_that_takes_long_to_find_its_piece():
    """Such as one that fetches a segment from a store."""
    for _ in range(5):
        is_finding, is_taken, waits = threading.Event(), threading.Event(), []

        def work(is_finding=is_finding, is_taken=is_taken, waits=waits):
            yield lambda: is_finding.wait(60)
            while True:
                if threading.current_thread() is not threading.main_thread():
                    is_finding.set()
                    waits.append(is_taken.wait(10))
                yield int

        results = in_order(work(), 3)
        assert next(results)
        is_taken.set()
        results.close()
        assert all(waits)


def test_an_interrupt_of_the_consumer_in_a_piece_does_not_wait_for_the_results_before_it():
    """Whichever of the two takes the first piece: mostly it is the other thread."""
    for _ in range(20):
        interrupted = threading.Event()

        def piece(interrupted=interrupted):
            if threading.current_thread() is threading.main_thread():
                interrupted.set()
                raise KeyboardInterrupt
            assert interrupted.wait(60)

        with pytest.raises(KeyboardInterrupt):
            next(in_order(itertools.repeat(piece), 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_behind_the_results_before_it(threads):
    def work(fails_in):
        for n in range(10):
            if n == 7 and fails_in == "walk":
                raise LookupError
            yield partial(later, n) if n != 7 else partial([].pop)

    for fails_in, error in (("walk", LookupError), ("piece", IndexError)):
        taken = []
        with pytest.raises(error):
            taken.extend(in_order(work(fails_in), threads))
        assert taken == list(range(7))


@pytest.mark.parametrize("threads", [1, 3])
def test_whoever_stops_early_leaves_no_thread_and_the_work_can_be_closed(threads):
    closed = []

    def work():
        try:
            for n in itertools.count():
                time.sleep(0.001)
                yield partial(later, n)
        finally:
            closed.append(True)

    for stop in range(6):
        walk = work()
        results = in_order(walk, threads)
        assert list(itertools.islice(results, stop)) == list(range(stop))
        results.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("seglog-scan")]
        walk.close()
    assert len(closed) == 5     # of the first one nothing was asked for: it had not begun


def test_threads_that_found_nothing_permitted_go_on_with_what_is_permitted_later():
    results = in_order((partial(later, n) for n in range(12)), 2)
    for n in range(12):
        if n in (1, 6):
            time.sleep(0.2)     # longer than a thread waits for its next piece
        assert next(results) == n
    assert next(results, None) is None


@pytest.mark.parametrize("end", ["", "raise LookupError"])
def test_a_process_ends_that_takes_no_more_results_and_does_not_close_them(end):
    """As `reader = scan.to_reader()` of a script, or in the traceback of its error: these live until the interpreter
    ends, and that waits for the pool's threads before it lets go of them."""
    script = (
        "from seglog.frames.ahead import in_order\n"
        "results = in_order(iter([lambda: 1] * 100), 2)\n"
        f"print(next(results), flush=True)\n{end}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "1\n"
    assert ("LookupError" in ended.stderr) == bool(end)
    assert (ended.returncode != 0) == bool(end), ended.stderr
