"""The limit of a queue's backlog: the jobs that are neither acknowledged nor dead.

    put ── reserve ── write          acknowledged, dead ── add(-1) ── threads that wait for room

A put is counted before it is written, so that threads never exceed the limit together. After a put that failed, and an
exception in the middle of a change, the count is not known, and is made again from what the lanes have.
"""
import time
from collections.abc import Callable
from typing import Literal
from weakref import WeakSet

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog.errors import QueueFullError

WhenFull = Literal["block", "refuse", "drop"]


class Backlog:
    """`limit`: if None, there is no limit and nothing is counted. `check` raises once the queue is closed. `count`: how
    many jobs there are; `droppable`: how many of them `drop` could remove, of which it returns how many it did. All are
    called with `lock`, which guards the fields."""

    def __init__(
        self, lock: QuickLock, limit: int | None, when_full: WhenFull, check: Callable[[], object],
        count: Callable[[], int], droppable: Callable[[int], int], drop: Callable[[int], int],
    ) -> None:
        self._lock = lock
        self._room = LockCondition(lock)
        self.limit = limit
        self.when_full = when_full
        self._check = check
        self._count = count
        self._droppable = droppable
        self._drop = drop
        # None until they are counted.
        self._jobs: int | None = None
        # Puts that are being written: a count may find their jobs or not.
        self._under_way: WeakSet[Reservation] = WeakSet()
        # How often the count was forgotten.
        self._forgotten = 0

    def add(self, jobs: int) -> None:
        """Note that so many jobs came, or went if it is negative. With the lock."""
        if self.limit is None:
            return
        if self._jobs is not None:
            self._jobs += jobs
        if jobs < 0:
            self._room.notify_one()

    def forget(self) -> None:
        """Count again before the next put."""
        if self.limit is not None:
            self._jobs = None
            self._forgotten += 1
            self._room.notify_one()

    def wake(self) -> None:
        """Let everybody who waits look again: the queue was closed."""
        self._room.notify()

    def reserve(self, jobs: int, timeout_s: float | None, *, waits: bool = True) -> "Reservation | None":
        """Reserve room for so many jobs, which are then put. Returns None if there is no room and `waits` is False.
        Raises QueueFullError after the timeout, if that is not None, or at once if the queue refuses what is too much.
        """
        if self.limit is None:
            return Reservation(self, 0)
        if jobs > self.limit:
            raise QueueFullError(f"{jobs} jobs are more than the queue may hold: max_backlog is {self.limit}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._room:
            while True:
                seen = self._room.number
                self._check()
                if self._jobs is None:
                    self._jobs = self._count() + sum(one.jobs for one in self._under_way)
                over = self._jobs + jobs - self.limit
                if over <= 0 or (self.when_full == "drop" and self._droppable(over) >= over):
                    reservation = Reservation(self, jobs)
                    self._under_way.add(reservation)
                    self._jobs += jobs
                    return reservation
                if not waits:
                    return None
                left_s = None if deadline is None else deadline - time.monotonic()
                if self.when_full != "block" or (left_s is not None and left_s <= 0):
                    raise QueueFullError(
                        f"the queue has {self._jobs} jobs, and max_backlog is {self.limit}"
                        + ("; those in flight are not dropped" if self.when_full == "drop" else "")
                    )
                self._room.wait(seen, left_s)

    def settle(self, reservation: "Reservation", *, is_put: bool) -> None:
        """The jobs were put, or something went wrong."""
        with self._lock:
            self._under_way.discard(reservation)
            if not is_put or reservation.forgotten != self._forgotten:
                self.forget()
            elif self.when_full == "drop" and self._jobs is not None and self._jobs > (self.limit or 0):
                # Only now: a put that fails removes nothing.
                self._drop(self._jobs - (self.limit or 0))


class Reservation:
    """Jobs that are counted already: `with` their put."""

    __slots__ = ("__weakref__", "_backlog", "forgotten", "jobs")

    def __init__(self, backlog: Backlog, jobs: int) -> None:
        self._backlog = backlog
        self.jobs = jobs
        self.forgotten = backlog._forgotten

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.jobs:
            self._backlog.settle(self, is_put=kind is None)
