"""`follow` in the writer's process while segments are being changed, or after that was interrupted."""
import signal

import pytest

import seglog
from seglog.errors import IdleTimeoutError
from seglog.log.own_source import OwnSource
from support.waiting import in_time, signals_meanwhile


def test_whoever_follows_completes_a_change_that_an_interrupt_left_in_the_middle(in_memory):
    """Nobody else may come: the thread that was interrupted may never append again."""
    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"x")
        tail = log._tail
        tail.live.begin()       # as an interrupt left it that came while the log was being loaded again
        tail.is_torn = True
        following = log.follow("start", timeout=0.05)
        assert in_time(lambda: next(following).value) == b"x"
        with pytest.raises(IdleTimeoutError):
            in_time(lambda: next(following))
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
        with pytest.raises(IdleTimeoutError):
            in_time(lambda: list(following or log.follow("end", timeout=0.05)))
        tail.live.end(log._shown, log.last_stable_offset)


def test_a_timeout_is_kept_though_signals_come(in_memory):
    """As a program's own timer sends them: each one began the wait anew."""
    with seglog.open(in_memory / "orders-0") as log, signals_meanwhile(most=100) as signals:
        with pytest.raises(IdleTimeoutError):
            next(log.follow("end", timeout=0.3))
        assert len(signals) < 100


def test_an_interrupt_as_a_call_of_follow_is_dropped_reaches_the_program(in_memory, monkeypatch):
    """Not a generator's finalizer, which would print it and go on."""
    def cancel(source, cancel=OwnSource.cancel):
        cancel(source)
        signal.raise_signal(signal.SIGINT)

    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"x")
        following = log.follow("start")
        next(following)
        monkeypatch.setattr(OwnSource, "cancel", cancel)
        with pytest.raises(KeyboardInterrupt):      # noqa: PT012
            del following
            for _ in range(10):
                pass
        monkeypatch.undo()
        assert next(log.follow("start")).value == b"x"
