"""Rings a bell when a file that another process writes changes: one inotify instance and one thread per process.

    watched = FILE_WATCHES.watch(path, bell)      None if the system cannot watch it: then poll
"""
import os
from typing import Protocol

from seglog._kernels.file_watch import FileWatch
from seglog._kernels.shield import start_thread
from seglog._kernels.write_gate import CallLock
from seglog.fs.files import AnyPath


class AnyBell(Protocol):
    """A bell: _kernels.write_gate.Bell, or that of an event loop (aio.arrivals)."""

    def ring(self, _: object = None) -> None:
        """Called from any thread."""


class WatchedFile:
    """Until `cancel`, or until the file is gone, the bell rings at each change."""

    __slots__ = ("_number", "_owner", "bell")

    def __init__(self, owner: "FileWatches", number: int, bell: AnyBell) -> None:
        self._owner = owner
        self._number = number
        self.bell = bell

    def cancel(self) -> None:
        """Idempotent; may also be called in a forked child."""
        self._owner.remove(self, self._number)


class FileWatches:
    """All watches of the process. inotify is set up at the first watch, and again in a forked child."""

    def __init__(self) -> None:
        self._alone = CallLock()        # guards all below
        self._watch: FileWatch | None = None
        self._process_id = 0
        self._watched: dict[int, tuple[WatchedFile, ...]] = {}

    def watch(self, path: AnyPath, bell: AnyBell, *, is_directory: bool = False) -> WatchedFile | None:
        """Watch a file. Returns None if that is not possible: no inotify, its limit is reached, or no such file."""
        return self._alone.run(self._add, path, bell, is_directory)

    def _add(self, path: AnyPath, bell: AnyBell, is_directory: bool) -> WatchedFile | None:
        if self._process_id != os.getpid():
            self._begin()
        if self._watch is None:
            return None
        try:
            number = self._watch.add(os.fsencode(path), is_directory)
        except OSError:
            return None
        watched = WatchedFile(self, number, bell)
        self._watched[number] = (*self._watched.get(number, ()), watched)
        return watched

    def remove(self, watched: WatchedFile, number: int) -> None:
        self._alone.run(self._remove, watched, number)

    def _remove(self, watched: WatchedFile, number: int) -> None:
        before = self._watched.get(number, ())
        left = tuple(one for one in before if one is not watched)
        if left:
            self._watched[number] = left
        elif before:
            del self._watched[number]
            if self._watch is not None and self._process_id == os.getpid():
                self._watch.remove(number)

    def _begin(self) -> None:
        self._process_id = os.getpid()
        try:
            self._watch = FileWatch()
        except OSError:
            self._watch = None
            return
        start_thread(self._run, (self._watch,))

    def _run(self, watch: FileWatch) -> None:
        while True:
            for number in set(watch.wait()):
                self._ring(number)

    # (A separate function, so that the waiting thread does not keep a bell alive.)
    def _ring(self, number: int) -> None:
        # Without the lock, by one atomic read; -1: events were lost, so any file may have changed.
        found = self._watched.get(number, ()) if number >= 0 else sum(list(self._watched.values()), ())
        for watched in found:
            watched.bell.ring()


FILE_WATCHES = FileWatches()
os.register_at_fork(after_in_child=FILE_WATCHES.__init__)  # type: ignore[misc]
