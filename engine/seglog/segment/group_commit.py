"""Appenders that wait for the disk share one sync.

Whoever finds nobody syncing leads: its sync covers all that was written before it began. Those who come meanwhile
wait, and one of them leads the next sync for all of them. So a lone appender pays for its own sync and nothing
else, and eight threads pay for about one between them.

Appends are counted, not their offsets: a log that is truncated gives an offset out twice, a number never.
"""
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A leader waits for those who shared the last sync to come back with their next append, at most for this part of the
# time that a sync takes. Without it two groups of threads would take turns, and half of the syncs carry one append.
GATHER_PART = 0.5


class GroupCommit:
    """Appenders call `wait`, after their write and without any lock that their `sync` takes.

    An error of a sync reaches whoever led it; from then on every `wait` for more raises what `failed(error)` makes
    of the first one.
    """

    def __init__(self, failed: Callable[[BaseException], Exception]) -> None:
        self._failed = failed
        # Guards all below. `committed` only goes up, so that it may be read without.
        self._changed = threading.Condition(threading.Lock())
        self.committed = 0
        self._busy = False          # somebody syncs, or has the files for itself
        self._waiting = 0           # appends that wait for somebody else's sync
        self._shared = 0            # how many waited for the last one
        self._sync_s = 0.0          # how long the last one took
        self.syncs = 0              # how many there were, and how long they took together
        self.sync_seconds = 0.0
        self._failure: BaseException | None = None

    def wait(self, number: int, sync: Callable[[], int]) -> None:
        """Return when the appends up to `number` are on the disk.

        Who leads calls the `sync` that he brought: it makes durable what was written before the call, and returns the
        number of the last append in it. Raises what it raises, or what `failed` makes of an earlier error.
        """
        if self.committed >= number:
            return
        with self._changed:
            while self._busy:
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
                if self.committed >= number:
                    return
            if self.committed >= number:
                return
            self._refuse_after_failure()
            self._busy = True
            self._gather()
        with self._alone():
            started = time.perf_counter()
            try:
                number = sync()
            except Exception as error:
                self.fail(error)
                raise
            self._sync_s = time.perf_counter() - started
            self.syncs += 1
            self.sync_seconds += self._sync_s
            self.committed = max(self.committed, number)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody syncs within: for who closes or replaces the files. Raises what `wait` does after a failure.

        An error that leaves the block is a failure.
        """
        with self._changed:
            while self._busy:
                self._changed.wait()
            self._refuse_after_failure()
            self._busy = True
        with self._alone():
            try:
                yield
            except BaseException as error:
                self.fail(error)
                raise

    def cover(self, number: int) -> None:
        """Within `exclusive`: all up to `number` is on the disk now, by other ways than `sync`."""
        self.committed = max(self.committed, number)

    def fail(self, error: BaseException) -> None:
        """Let everybody who waits, now or later, learn of an error. The first one counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._shared = self._waiting
                self._changed.notify_all()

    def _gather(self) -> None:
        """Under the condition: wait a little for those who waited for the last sync, too."""
        if not self._shared:
            return
        until = time.perf_counter() + self._sync_s * GATHER_PART
        while self._waiting < self._shared and (left := until - time.perf_counter()) > 0:
            self._changed.wait(left)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failed(self._failure) from self._failure
