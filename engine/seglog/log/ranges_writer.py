"""Time ranges of the segments that a log has sealed, made in the background while the log is in use.

A whole segment is read without any lock; the file is put beside the segment with the files lock, if the log still has
that segment. It is only a hint: if it cannot be made, searches walk the headers.
"""
from pathlib import Path

from seglog._kernels.write_gate import CallLock
from seglog.errors import SeglogError
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.late_import import late
from seglog.logger import Logger
from seglog.reading.extent import Shown
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.threads.background_work import BackgroundWork

_LOG = Logger(__name__)


class RangesWriter(BackgroundWork[Segment]):
    """The writer of one log. Call `put` with the lock of the log, and `wait` without any lock of it."""

    _DOES_WITHOUT_THREAD = False        # `put` is called with the lock of the log

    def __init__(self, fs: FileSystem, path: Path, shown: Shown, files_lock: CallLock) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._shown = shown
        self._files_lock = files_lock

    def put(self, segment: Segment) -> None:
        """Have the time ranges of a sealed segment made soon."""
        self._put(segment)

    def _do(self, job: Segment) -> None:
        try:
            raw = time_ranges_bytes(job)
            self._files_lock.run(self._place, job, raw)
        except SeglogError as error:
            if self._has(job):      # otherwise it was removed meanwhile
                _LOG.warning("%s: %s gets no time ranges: %s", self._path, job.path.name, error)

    def _place(self, segment: Segment, raw: bytes) -> None:
        """With the files lock, so that the segment is not cut or removed meanwhile."""
        if self._has(segment):
            late("seglog.segment.time_ranges")
            from seglog.segment.time_ranges import time_ranges_path

            write_atomically(self._fs, time_ranges_path(segment.path), raw)
            segment._let_go()            # the next search opens them

    def _has(self, segment: Segment) -> bool:
        extent = self._shown.extent
        return extent is not None and segment in extent.segments
