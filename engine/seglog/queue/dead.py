"""The dead jobs of a queue: those that failed at every attempt."""
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from seglog._kernels.quick_lock import QuickLock
from seglog.errors import InvalidArgumentError
from seglog.queue.job import DeadJob

if TYPE_CHECKING:
    from seglog.queue.lane import Lane


class DeadJobs:
    """`queue.dead`: a view. Its methods raise LogClosedError once the queue is closed."""

    def __init__(self, lock: QuickLock, lanes: "Sequence[Lane]") -> None:
        self._lock = lock
        self._lanes = lanes

    def __len__(self) -> int:
        """The number of dead jobs."""
        return sum(len(lane.leases.dead) for lane in self._lanes)

    def __iter__(self) -> Iterator[DeadJob]:
        """The dead jobs as of now."""
        return iter(self.peek(max(len(self), 1)))

    def peek(self, count: int = 1) -> list[DeadJob]:
        """Look at the jobs that died first, by priority."""
        if type(count) is not int or count < 1:
            raise InvalidArgumentError(f"count must be an int of 1 or more, not {count!r}")
        with self._lock:
            found: list[DeadJob] = []
            for lane in self._lanes:
                lane.check()
                found += islice(lane.dead_jobs(), min(count - len(found), sys.maxsize))
            return found

    def requeue(self, jobs: Iterable[DeadJob] | None = None) -> int:
        """Put these dead jobs back, or all: they are delivered again, as if they never had been. Durable at return.
        Returns how many were dead."""
        if jobs is None:
            return sum(lane.requeue(list(lane.leases.dead)) for lane in self._lanes)
        wanted = list(jobs) if isinstance(jobs, Iterable) else [jobs]
        if not all(isinstance(job, DeadJob) for job in wanted):
            raise InvalidArgumentError("requeue takes the dead jobs of this queue: queue.dead.peek() returns them")
        return sum(lane.requeue([job._at for job in wanted if job._lane is lane]) for lane in self._lanes)

    def purge(self) -> int:
        """Remove all dead jobs, durably; return how many there were."""
        return sum(lane.finish_dead(list(lane.leases.dead)) for lane in self._lanes)
