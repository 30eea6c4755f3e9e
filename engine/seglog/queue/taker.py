"""Waiting for jobs of some lanes, and taking them: what a queue and a consumer of a topic have in common.

A thread that waits sleeps until the next job is due, a lease ends, a job comes, or the clock is set.

Who takes jobs passes a list, to which they are added in one step as they are delivered. An exception from outside may
come before the caller has them: the method that was called then finds them there, and gives them back.
"""
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from seglog._kernels.quick_lock import LockCondition
from seglog.clock import Clock
from seglog.errors import SeglogError
from seglog.queue.dead_letters import DeadLetters
from seglog.queue.job import Job
from seglog.queue.lane import Lane
from seglog.queue.options import QueueOptions, duration_ns
from seglog.topic.dispatcher import LONGEST_S, LOOK_AGAIN_S


class JobTaker:
    """A subclass has these fields, `release`, and `_check` and `_is_held_back`. `_in_order`: the lanes, the most urgent
    first. `_is_told`: setting the clock is reported, by a notification of `_changed`."""

    _in_order: Sequence[Lane]
    _changed: LockCondition
    _letters: DeadLetters | None
    _options: QueueOptions
    _clock: Clock
    _is_told: bool

    def release(self, jobs: Iterable[Any]) -> None:
        """Give jobs back that were not worked on."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise what keeps it from taking jobs, with the lock."""
        raise NotImplementedError

    def _is_held_back(self) -> bool:
        """Whether no job is handed out now, with the lock. `_changed` is notified when that ends."""
        raise NotImplementedError

    def _give_back(self, taken: list[Job]) -> None:
        """They were taken, and the caller did not get them: deliver them at once, as the same attempt."""
        with suppress(SeglogError):     # then the next opening delivers them
            self.release(taken)

    def _take_for(
        self, holder: int, count: int | Callable[[], int], timeout: timedelta | float | None,
        lease: timedelta | float | None, taken: list[Job],
    ) -> None:
        """Take jobs for the holder with this number; 0: this process."""
        deadline = None if timeout is None else time.monotonic() + duration_ns("timeout", timeout) / 1e9
        lease_ns = self._options.lease_ns if lease is None else duration_ns("lease", lease)
        letters = self._letters
        while True:
            if letters is not None and letters.is_due:
                letters.send()
            if self._wait_for_jobs(count, deadline, lease_ns, holder, taken):
                return

    def _wait_for_jobs(
        self, count: int | Callable[[], int], deadline: float | None, lease_ns: int, holder: int, taken: list[Job]
    ) -> bool:
        """False: look again; dead letters are due."""
        letters = self._letters
        with self._changed:
            while True:
                # Noted before the first look, so that what comes after it wakes this thread.
                seen = self._changed.number
                self._check()
                wanted = count if isinstance(count, int) else count()
                if not wanted:
                    self._changed.notify_one()      # another one that waits gets what woke this one
                    return True
                if not self._is_held_back():
                    self._take_now(wanted, lease_ns, holder, taken)
                if taken:
                    return True
                left_s = None if deadline is None else deadline - time.monotonic()
                if letters is not None and letters.is_due:
                    return False
                if left_s is not None and left_s <= 0:
                    return True
                self._sleep(seen, left_s)

    def _take_now(self, count: int, lease_ns: int, holder: int, taken: list[Job]) -> None:
        for lane in self._in_order:
            lane.take(count - len(taken), lease_ns, holder, taken)
            if len(taken) == count:
                break

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
