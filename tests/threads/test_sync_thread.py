"""When the sync thread begins the next sync of a log. What it does for logs: tests/log/test_log_waits_for_nobody.py."""
from collections import deque
from types import SimpleNamespace

import pytest

from seglog.threads import sync_thread


class End(Exception):
    pass


class Calls:
    """As many calls at a time as are in one list; what comes while the thread rests is there when it looks."""

    def __init__(self, *turns):
        self._turns, self._now = deque(turns), deque()

    def get(self):
        if not self._now:
            if not self._turns:
                raise End
            self._now.extend(self._turns.popleft())
        return self._now.popleft()

    def empty(self):
        return not self._now


class Gate:
    path = "orders-0"

    def __init__(self, clock, sync_s=0.0005):
        self.committed = self.syncs = 0
        self._clock, self._sync_s = clock, sync_s

    def reach(self, number):
        self._clock.now += self._sync_s
        self.committed, self.syncs = number, self.syncs + 1


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0, slept=[])

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(sync_thread, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep), raising=False)
    return clock


def run(*turns):
    """How many were called back."""
    done = []
    with pytest.raises(End):
        sync_thread._run(Calls(*([(gate, number, done.append) for gate, number in turn] for turn in turns)))
    assert set(done) <= {None}
    return len(done)


def test_behind_a_sync_of_several_the_next_one_waits_for_those_who_come_back(clock):
    """It began with the first of them and covered only that one: every second sync was in vain."""
    gate = Gate(clock)
    assert run([(gate, 1), (gate, 2), (gate, 3)], [(gate, 4), (gate, 5)]) == 5
    assert clock.slept == [pytest.approx(0.0005)]
    assert gate.syncs == 2


def test_it_waits_a_millisecond_at_most(clock):
    gate = Gate(clock, sync_s=0.02)
    run([(gate, 1), (gate, 2)], [(gate, 3)])
    assert clock.slept == [pytest.approx(0.001)]


def test_who_appends_one_at_a_time_does_not_wait(clock):
    gate = Gate(clock)
    run(*([(gate, number)] for number in range(1, 9)))
    assert clock.slept == []
    assert gate.syncs == 8


def test_another_log_does_not_wait_nor_do_several(clock):
    one, other = Gate(clock), Gate(clock)
    run([(one, 1), (one, 2)], [(other, 1)], [(one, 3), (other, 2), (one, 4)], [(one, 5)])
    assert clock.slept == []


def test_who_comes_later_does_not_wait(clock):
    gate = Gate(clock)

    class Late(Calls):
        def get(self):
            clock.now += 0.01
            return super().get()

    with pytest.raises(End):
        sync_thread._run(Late([(gate, 1, str), (gate, 2, str)], [(gate, 3, str)]))
    assert clock.slept == []
