"""Time ranges of segments that a log has sealed, made in the background: appends, reads and cuts go on meanwhile.

A thread for as long as there is one to make. It reads a whole segment, without any lock; the file is put beside the
segment with the files lock, if the log still has that segment. A hint: what cannot be made is not there, and searches
walk the headers.
"""
import logging
from _thread import allocate_lock, start_new_thread
from pathlib import Path

from seglog._kernels.shield import work_in_background
from seglog._kernels.write_gate import Bell, CallLock
from seglog.errors import SeglogError
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.log.extent import Shown
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path

_LOG = logging.getLogger(__name__)

# How long one who waits sleeps on where another one, who was interrupted, did not pass the bell on.
_LOOK_S = 1.0


class RangesWriter:
    """Of one log. `put` is called with the lock of the log; `wait` by anybody who has no lock of it."""

    def __init__(self, fs: FileSystem, path: Path, shown: Shown, files_lock: CallLock) -> None:
        self._fs = fs
        self._path = path
        self._shown = shown
        self._files_lock = files_lock
        self._lock = allocate_lock()        # of the two fields that follow
        self._due: list[Segment] = []
        self.is_busy = False
        self._idle = Bell()

    def put(self, segment: Segment) -> None:
        """Make those of a segment that does not grow any more, as soon as may be."""
        with self._lock:
            self._due.append(segment)
            begins, self.is_busy = not self.is_busy, True
        if begins:
            self._idle = Bell()
            try:
                start_new_thread(self._run, ())
            except RuntimeError:            # at the end of the interpreter, or at a limit of the system
                self._forget()

    def wait(self) -> None:
        """Return when all that were put are made."""
        while self.is_busy:
            bell = self._idle
            bell.wait(_LOOK_S)
            bell.ring()     # for who else waits

    def _run(self) -> None:
        work_in_background()
        bell = self._idle
        while (segment := self._take()) is not None:
            self._make(segment)
            del segment
        bell.ring()

    def _take(self) -> Segment | None:
        with self._lock:
            segment = self._due.pop(0) if self._due else None
            self.is_busy = segment is not None
        return segment

    def _forget(self) -> None:
        with self._lock:
            self._due.clear()
            self.is_busy = False
        self._idle.ring()

    def _make(self, segment: Segment) -> None:
        try:
            raw = time_ranges_bytes(segment)
            self._files_lock.run(self._place, segment, raw)
        except SeglogError as error:
            if self._has(segment):      # else it went meanwhile
                _LOG.warning("%s: %s gets no time ranges: %s", self._path, segment.path.name, error)

    def _place(self, segment: Segment, raw: bytes) -> None:
        """With the files lock: nobody cuts or removes the segment."""
        if self._has(segment):
            write_atomically(self._fs, time_ranges_path(segment.path), raw)
            segment.let_go()            # whoever searches it next opens them

    def _has(self, segment: Segment) -> bool:
        extent = self._shown.extent
        return extent is not None and segment in extent.segments
