"""The lowest floor: clocks that a test can move, numbers that anyone can read."""
import time

from seglog.clock import ManualClock, SystemClock
from seglog.counters import Counter, Histogram


def test_the_systems_clock_is_the_systems():
    clock = SystemClock()
    before = time.time() * 1000
    now_ms = clock.now_ms()
    assert before - 1000 < now_ms < time.time() * 1000 + 1000
    assert clock.monotonic_ns() <= clock.monotonic_ns()


def test_a_manual_clock_steps_both_ways_and_its_monotonic_time_only_forward():
    clock = ManualClock(1000)
    clock.set(1500)
    clock.advance(-700)
    assert (clock.now_ms(), clock.monotonic_ns()) == (800, 500_000_000)
    clock.advance_monotonic(1)
    assert (clock.now_ms(), clock.monotonic_ns()) == (800, 501_000_000)


def test_a_counter_counts():
    counter = Counter()
    counter.add()
    counter.add(4)
    assert counter.value == 5


def test_a_histogram_counts_what_is_at_or_below_each_bound():
    histogram = Histogram([1, 10])
    for value in (0.5, 1, 2, 10, 11):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 1], 5, 24.5)
