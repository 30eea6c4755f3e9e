"""Appenders that wait for the disk share one sync.

Whoever finds nobody syncing leads: its sync covers all that was written before it began. Those who come meanwhile stand
in a queue; when the sync is done, those whom it covered go, and the first of the others leads the next one for all of
them. So a lone appender pays for its own sync and nothing else, and eight threads pay for about two between them,
while they make their next appends.

Left at that, they soon stand in two halves, each of which appends while the other syncs. Where a sync takes no longer
than handing eight threads the interpreter does, nothing is faster. Where it takes longer, who is due to lead first
gathers: those who were let go together are mostly back at once with their next append, and the last of them leads for
all. Nobody waits for them longer than a sync takes, or a millisecond; and where they did not come, the next few syncs
do not wait. A lone appender never does.

Each waits for a lock of its own, and finds the answer when that opens: a condition would wake all of them to fight
for one lock, which takes as long as a sync does.

Appends are counted, not their offsets: a log that is truncated gives an offset out twice, a number never.
"""
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_S_MAX = 0.001
# Eight threads beside one, on two cores: with syncs of 0.2 ms 3.4 times as fast by gathering and 3.9 by halves, with
# 0.3 ms 4.3 and 4.1, with 1 ms 6.7 and 4.4.
_GATHER_FROM_S = 0.00025
# Who waited in vain lets 1, 3, 7 ... syncs be led at once before somebody waits again, and at most so many.
_REST_SYNCS_MAX = 63


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
        self._gatherer: _Turn | None = None     # who leads when those who are missing do not come; `_busy` meanwhile
        self._missing = 0           # how many of those whom the last sync let go are not back
        self._patience_s = 0.0
        self._rest = 0              # syncs until somebody gathers again
        self._last_rest = 0         # what it was when somebody last waited in vain, 0 once nobody does
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
        seconds = time.perf_counter() - started
        self.syncs += 1
        self.sync_seconds += seconds
        self._patience_s = min(seconds, _PATIENCE_S_MAX)
        self._pass_on(committed=committed, synced=True)

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
            if not self._busy and (number is None or self._missing <= 1):
                self._refuse_after_failure()
                self._busy = True
                return True
            turn = _Turn(number)
            if self._comes_last(turn):
                return True
        try:
            self._await(turn)
        except BaseException:       # ^C: nobody may wait for who does not come
            self._leave(turn)
            raise
        if turn.leads:
            return True
        if number is None or self.committed < number:
            self._refuse_after_failure()
        return False

    def _comes_last(self, turn: "_Turn") -> bool:
        """Under the lock: whether who comes is the last who was missing, and leads. Else he waits, or gathers."""
        gatherer = self._gatherer
        if not self._busy:
            self._refuse_after_failure()
            self._busy = True
            self._missing -= 1
            self._gatherer = turn
            turn.gathers = True
            return False
        if gatherer is not None:
            self._missing -= 1
            if turn.number is None:
                self._gatherer = None
                gatherer.lead()
            elif self._missing <= 0:
                # The last one is awake already.
                self._gatherer = None
                self._last_rest = 0
                self._queue.append(gatherer)
                return True
        self._queue.append(turn)
        return False

    def _await(self, turn: "_Turn") -> None:
        """Return when `turn` leads, or nothing is left to wait for."""
        if not turn.gathers:
            turn.wait()
        if turn.gathers and not turn.wait(True, self._patience_s):
            with self._lock:
                if self._gatherer is turn:
                    self._gatherer = None
                    self._rest = self._last_rest = min(2 * self._last_rest + 1, _REST_SYNCS_MAX)
                    turn.leads = True
            if not turn.leads:      # somebody was faster
                turn.wait()

    def _pass_on(self, error: BaseException | None = None, committed: int = 0, *, synced: bool = False) -> None:
        """Give the files to whom they are due next, and let those go who wait for nothing any more."""
        with self._lock:
            if error is not None and self._failure is None:
                self._failure = error
            committed = self.committed = max(self.committed, committed)
            going = self._queue
            if not going:
                self._missing = 0
                self._busy = False
                return
            self._queue = []
            if self._failure is None:
                self._queue = [turn for turn in going if turn.number is None or turn.number > committed]
                going = [turn for turn in going if turn.number is not None and turn.number <= committed]
            self._missing = self._expected(len(going) + 1) if synced else 0
            self._busy = bool(self._queue)
            if self._busy:
                # Before the others, who have work of their own before they come back.
                first = self._queue.pop(0)
                if self._missing:
                    self._gatherer = first
                    first.gather()
                else:
                    first.lead()
        for turn in going:
            turn.go()

    def _expected(self, let_go: int) -> int:
        """How many appenders the next sync shall wait for, where this one lets so many go."""
        if self._patience_s < _GATHER_FROM_S:
            return 0
        if let_go + len(self._queue) == 1 or any(turn.number is None for turn in self._queue):
            return 0
        if self._rest:
            self._rest -= 1
            return 0
        return let_go

    def _leave(self, turn: "_Turn") -> None:
        with self._lock:
            if turn in self._queue:
                self._queue.remove(turn)
            is_due = turn.leads
            if self._gatherer is turn:
                self._gatherer = None
                is_due = True
        if is_due:
            self._pass_on()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failed(self._failure) from self._failure


class _Turn:
    """Somebody who waits: until `number` is committed, or until the files are his (`leads`). None: only that.

    Who `gathers` waits for a while only.
    """

    __slots__ = ("gathers", "go", "leads", "number", "wait")

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.leads = False
        self.gathers = False
        self._close()

    def _close(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        self.wait = gate.acquire
        self.go = gate.release

    def lead(self) -> None:
        self.leads = True
        self.go()

    def gather(self) -> None:
        """Wake him to wait once more."""
        go = self.go
        self._close()
        self.gathers = True
        go()
