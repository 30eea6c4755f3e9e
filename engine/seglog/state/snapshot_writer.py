"""Snapshots of many producers, written in the background: appends do not wait for their bytes or their sync.

It knows the file system and frozen rows, not the log.
"""
from pathlib import Path

from seglog._kernels.producer_table import FrozenProducers
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.threads.background_work import BackgroundWork

Snapshot = tuple[Path, FrozenProducers]


class SnapshotWriter(BackgroundWork[Snapshot]):
    """At most one snapshot is being written and one waits: a later one replaces the waiting one.

    Call `put` and `settle` with the lock of the log, or if no other thread has the log; `wait` may always be called.
    """

    _DOES_WITHOUT_THREAD = True

    def __init__(self, fs: FileSystem) -> None:
        super().__init__()
        self._fs = fs
        self._failure: BaseException | None = None

    def put(self, path: Path, producers: FrozenProducers) -> Path | None:
        """Write `path` soon. Returns the path that was still waiting, and will not be written. Raises the error of an
        earlier one."""
        self._refuse_after_failure()
        replaced = self._put((path, producers), is_latest=True)
        return None if replaced is None else replaced[0]

    def settle(self) -> None:
        """Return when everything that was put is on the disk. After an error, raises it at each call."""
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
