"""Snapshots of many producers, written in the background: nobody who appends waits for their bytes or their sync.

A thread for as long as there is one to write. It knows the file system and frozen rows, not the log.
"""
from _thread import allocate_lock, start_new_thread
from pathlib import Path

from seglog._kernels.producer_table import FrozenProducers
from seglog._kernels.shield import work_in_background
from seglog._kernels.write_gate import Bell
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem

# How long one who waits sleeps on where another one, who was interrupted, did not pass the bell on.
_LOOK_S = 1.0


class SnapshotWriter:
    """One is being written, and one waits at most: a later one takes its place.

    `put` and `settle` are called with the lock of the log, or by who has it for itself; `wait` by anybody.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = allocate_lock()        # of the two fields that follow
        self._next: tuple[Path, FrozenProducers] | None = None
        self.is_busy = False
        self._idle = Bell()
        self._failure: BaseException | None = None

    def put(self, path: Path, producers: FrozenProducers) -> Path | None:
        """Write `path` as soon as may be; the path that still waited, and is not written now. Raises what went wrong
        with an earlier one."""
        self._refuse_after_failure()
        with self._lock:
            replaced, self._next = self._next, (path, producers)
            begins, self.is_busy = not self.is_busy, True
        if begins:
            self._idle = Bell()
            try:
                start_new_thread(self._run, ())
            except RuntimeError:            # at the end of the interpreter, or at a limit of the system
                self._write()
        return None if replaced is None else replaced[0]

    def settle(self) -> None:
        """Return when all that was put is on the disk. Raises what went wrong, from then on each time."""
        self.wait()
        self._refuse_after_failure()

    def wait(self) -> None:
        """Return when nothing is being written, whatever came of it."""
        while self.is_busy:
            bell = self._idle
            bell.wait(_LOOK_S)
            bell.ring()     # for who else waits

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        work_in_background()
        self._write()

    def _write(self) -> None:
        bell = self._idle
        while (job := self._take()) is not None:
            path, producers = job
            try:
                write_atomically(self._fs, path, producers.encode())
            except BaseException as error:
                self._failure = self._failure or error
            del job, producers
        bell.ring()

    def _take(self) -> tuple[Path, FrozenProducers] | None:
        with self._lock:
            job, self._next = self._next, None
            self.is_busy = job is not None
        return job
