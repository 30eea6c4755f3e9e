"""`follow` in the writer's process while segments are being changed, or after that was interrupted."""
import queue
import threading

import pytest

import seglog
from seglog.errors import IdleTimeoutError


def in_time(call, seconds=20):
    answers = queue.SimpleQueue()

    def run():
        try:
            answers.put(call())
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        pytest.fail(f"hangs for {seconds} s")


def test_whoever_follows_completes_a_change_that_an_interrupt_left_in_the_middle(in_memory):
    """Nobody else may come: the thread that was interrupted may never append again."""
    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"x")
        tail = log._tail
        tail.live.begin()       # as an interrupt left it that came while the log was being loaded again
        tail.is_torn = True
        following = log.follow("start", timeout=0.05)
        assert in_time(lambda: next(following).value) == b"x"
        assert isinstance(in_time(lambda: next(following)), IdleTimeoutError)
        assert not tail.is_torn
        log.append(b"y")
        assert [r.value for r in log.read()] == [b"x", b"y"]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_timeout_is_kept_while_segments_are_being_cut(in_memory, is_open):
    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"x")
        following = log.follow("end", timeout=0.05) if is_open else None
        tail = log._tail
        tail.live.begin()       # a cut that takes its time
        answer = in_time(lambda: list(following or log.follow("end", timeout=0.05)))
        assert isinstance(answer, IdleTimeoutError)
        tail.live.end(log._shown, log.last_stable_offset)
