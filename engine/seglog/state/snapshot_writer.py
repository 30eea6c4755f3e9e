"""Snapshots of many producers, written in the background: nobody who appends waits for their bytes or their sync.

It knows the file system and frozen rows, not the log.
"""
from pathlib import Path

from seglog._kernels.producer_table import FrozenProducers
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.segment.background_work import BackgroundWork

Snapshot = tuple[Path, FrozenProducers]


class SnapshotWriter(BackgroundWork[Snapshot]):
    """One is being written, and one waits at most: a later one takes its place.

    `put` and `settle` are called with the lock of the log, or by who has it for itself; `wait` by anybody.
    """

    _DOES_WITHOUT_THREAD = True

    def __init__(self, fs: FileSystem) -> None:
        super().__init__()
        self._fs = fs
        self._failure: BaseException | None = None

    def put(self, path: Path, producers: FrozenProducers) -> Path | None:
        """Write `path` as soon as may be; the path that still waited, and is not written now. Raises what went wrong
        with an earlier one."""
        self._refuse_after_failure()
        replaced = self._put((path, producers), is_latest=True)
        return None if replaced is None else replaced[0]

    def settle(self) -> None:
        """Return when all that was put is on the disk. Raises what went wrong, from then on each time."""
        self.wait()
        self._refuse_after_failure()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _do(self, job: Snapshot) -> None:
        path, producers = job
        try:
            write_atomically(self._fs, path, producers.encode())
        except BaseException as error:
            self._failure = self._failure or error
