"""Waiting for jobs of some lanes, and taking them: what a queue and a consumer of a topic have in common.

A thread that waits sleeps until the next job is due, a lease ends, a job comes, or the clock is set.
"""
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from seglog._kernels.quick_lock import LockCondition
from seglog.clock import Clock
from seglog.queue.dead_letters import DeadLetters
from seglog.queue.job import Job
from seglog.queue.lane import Lane
from seglog.queue.options import QueueOptions, duration_ns
from seglog.topic.dispatcher import LONGEST_S, LOOK_AGAIN_S


class JobTaker:
    """A subclass has these fields, and `_check` and `_is_held_back`. `_in_order`: the lanes, the most urgent first.
    `_is_told`: setting the clock is reported, by a notification of `_changed`."""

    _in_order: Sequence[Lane]
    _changed: LockCondition
    _letters: DeadLetters | None
    _options: QueueOptions
    _clock: Clock
    _is_told: bool

    def _check(self) -> None:
        """Raise what keeps it from taking jobs, with the lock."""
        raise NotImplementedError

    def _is_held_back(self) -> bool:
        """Whether no job is handed out now, with the lock. `_changed` is notified when that ends."""
        raise NotImplementedError

    def _take_for(
        self, holder: int, count: int | Callable[[], int], timeout: timedelta | float | None,
        lease: timedelta | float | None,
    ) -> list[Job]:
        """Take jobs for the holder with this number; 0: this process."""
        deadline = None if timeout is None else time.monotonic() + duration_ns("timeout", timeout) / 1e9
        lease_ns = self._options.lease_ns if lease is None else duration_ns("lease", lease)
        letters = self._letters
        while True:
            if letters is not None and letters.is_due:
                letters.send()
            jobs = self._wait_for_jobs(count, deadline, lease_ns, holder)
            if jobs is not None:
                return jobs

    def _wait_for_jobs(
        self, count: int | Callable[[], int], deadline: float | None, lease_ns: int, holder: int
    ) -> list[Job] | None:
        """None: look again; dead letters are due."""
        letters = self._letters
        with self._changed:
            while True:
                # Noted before the first look, so that what comes after it wakes this thread.
                seen = self._changed.number
                self._check()
                wanted = count if isinstance(count, int) else count()
                if not wanted:
                    self._changed.notify_one()      # another one that waits gets what woke this one
                    return []
                jobs = [] if self._is_held_back() else self._take_now(wanted, lease_ns, holder)
                if jobs:
                    return jobs
                left_s = None if deadline is None else deadline - time.monotonic()
                if letters is not None and letters.is_due:
                    return None
                if left_s is not None and left_s <= 0:
                    return jobs
                self._sleep(seen, left_s)

    def _take_now(self, count: int, lease_ns: int, holder: int) -> list[Job]:
        lanes = self._in_order
        if len(lanes) == 1:
            return lanes[0].take(count, lease_ns, holder)
        jobs: list[Job] = []
        for lane in lanes:
            jobs += lane.take(count - len(jobs), lease_ns, holder)
            if len(jobs) == count:
                break
        return jobs

    def _sleep(self, seen: int, left_s: float | None) -> None:
        """Sleep until something may have changed."""
        sleep_s = left_s
        if self._is_held_back():
            self._changed.wait(seen, left_s)
            return
        dues = [due for lane in self._in_order if (due := lane.next_ms()) is not None]
        if dues:
            # Read the clock only now: setting it is reported.
            due_s = (min(dues) - self._clock.now_ms()) / 1000
            longest_s = LONGEST_S if self._is_told else LOOK_AGAIN_S
            sleep_s = _least(sleep_s, min(due_s, longest_s) if due_s > 0 else LOOK_AGAIN_S)
        ends = [end for lane in self._in_order if (end := lane.leases.next_end_ns()) is not None]
        if ends:
            sleep_s = _least(sleep_s, max((min(ends) - self._clock.monotonic_ns()) / 1e9, 0))
        self._changed.wait(seen, sleep_s)


def _least(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
