"""Appenders that wait for the disk share one sync.

Whoever finds nobody syncing leads: its sync covers all that was written before it began. Those who come meanwhile stand
in a queue; when the sync is done, those whom it covered go, and the first of the others leads the next one for all of
them. So a lone appender pays for its own sync and nothing else, and eight threads pay for about two between them,
while they make their next appends.

Each waits for a lock of its own, and finds the answer when that opens: a condition would wake all of them to fight
for one lock, which takes as long as a sync does.

Appends are counted, not their offsets: a log that is truncated gives an offset out twice, a number never.
"""
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class GroupCommit:
    """Appenders call `wait`, after their write and without any lock that their `sync` takes.

    An error of a sync reaches whoever led it; from then on every `wait` for more raises what `failed(error)` makes
    of the first one.
    """

    def __init__(self, failed: Callable[[BaseException], Exception]) -> None:
        self._failed = failed
        # Guards all below. `committed` only goes up, so that it may be read without.
        self._lock = threading.Lock()
        self.committed = 0
        self._busy = False          # somebody syncs, or has the files for itself
        self._queue: list[_Turn] = []       # who waits meanwhile, in the order of their coming
        self._failure: BaseException | None = None
        self.syncs = 0              # how many there were, and how long they took together; whoever leads counts
        self.sync_seconds = 0.0

    def wait(self, number: int, sync: Callable[[], int]) -> None:
        """Return when the appends up to `number` are on the disk.

        Who leads calls the `sync` that he brought: it makes durable what was written before the call, and returns the
        number of the last append in it. Raises what it raises, or what `failed` makes of an earlier error.
        """
        if self.committed >= number or not self._take_files(number):
            return
        started = time.perf_counter()
        try:
            committed = sync()
        except BaseException as error:
            self._pass_on(error)
            raise
        self.syncs += 1
        self.sync_seconds += time.perf_counter() - started
        self._pass_on(committed=committed)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody syncs within: for who closes or replaces the files. Raises what `wait` does after a failure.

        An error that leaves the block is a failure.
        """
        self._take_files(None)
        try:
            yield
        except BaseException as error:
            self._pass_on(error)
            raise
        self._pass_on()

    def cover(self, number: int) -> None:
        """Within `exclusive`: all up to `number` is on the disk now, by other ways than `sync`."""
        self.committed = max(self.committed, number)

    def fail(self, error: BaseException) -> None:
        """Let everybody who waits, now or later, learn of an error. The first one counts."""
        with self._lock:
            if self._failure is None:
                self._failure = error

    def _take_files(self, number: int | None) -> bool:
        """Have the files for itself, when nobody else has; False: `number` came to be committed before that.

        Raises after a failure.
        """
        with self._lock:
            if number is not None and self.committed >= number:
                return False
            if not self._busy:
                self._refuse_after_failure()
                self._busy = True
                return True
            turn = _Turn(number)
            self._queue.append(turn)
        try:
            turn.wait()
        except BaseException:       # ^C: nobody may wait for who does not come
            self._leave(turn)
            raise
        if turn.leads:
            return True
        if number is None or self.committed < number:
            self._refuse_after_failure()
        return False

    def _pass_on(self, error: BaseException | None = None, committed: int = 0) -> None:
        """Give the files to whom they are due next, and let those go who wait for nothing any more."""
        with self._lock:
            if error is not None and self._failure is None:
                self._failure = error
            committed = self.committed = max(self.committed, committed)
            going = self._queue
            self._queue = []
            if self._failure is None:
                self._queue = [turn for turn in going if turn.number is None or turn.number > committed]
                going = [turn for turn in going if turn.number is not None and turn.number <= committed]
            self._busy = bool(self._queue)
            if self._busy:
                # Before the others, who have work of their own before they come back.
                leader = self._queue.pop(0)
                leader.leads = True
                leader.go()
        for turn in going:
            turn.go()

    def _leave(self, turn: "_Turn") -> None:
        with self._lock:
            if turn in self._queue:
                self._queue.remove(turn)
        if turn.leads:
            self._pass_on()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failed(self._failure) from self._failure


class _Turn:
    """Somebody who waits: until `number` is committed, or until the files are his (`leads`). None: only that."""

    __slots__ = ("_gate", "go", "leads", "number", "wait")

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.leads = False
        self._gate = gate = threading.Lock()
        gate.acquire()
        self.wait = gate.acquire
        self.go = gate.release
