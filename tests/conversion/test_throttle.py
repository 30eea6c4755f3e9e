"""Work that is held to a rate."""
import pytest

from seglog.clock import ManualClock
from seglog.conversion.throttle import Throttle


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def slept(clock):
    return []


@pytest.fixture
def throttle(clock, slept):
    def sleep(seconds):
        slept.append(seconds)
        clock.advance_monotonic(round(seconds * 1000))

    return Throttle(1000, clock=clock, sleep=sleep)


def test_work_takes_at_least_its_time(throttle, clock, slept):
    began = clock.monotonic_ns()
    for _ in range(10):
        throttle(500)
    assert clock.monotonic_ns() - began == 5_000_000_000
    assert sum(slept) == 5


def test_work_that_is_slow_by_itself_is_not_held_up(throttle, clock, slept):
    for _ in range(10):
        clock.advance_monotonic(600)
        throttle(500)
    assert not slept


def test_a_long_rest_is_no_credit_for_a_burst(throttle, clock, slept):
    clock.advance_monotonic(3_600_000)
    throttle(5000)
    assert sum(slept) == 4


def test_no_rate_is_no_limit(slept):
    Throttle(0, sleep=slept.append)(1 << 60)
    assert not slept


def test_progress_is_told_and_held(throttle, slept):
    told = []
    progress = throttle.progress(lambda done, total: told.append((done, total)))
    for done in (1000, 3000, 3000):
        progress(done, 3000)
    assert told == [(1000, 3000), (3000, 3000), (3000, 3000)]
    assert sum(slept) == 3
