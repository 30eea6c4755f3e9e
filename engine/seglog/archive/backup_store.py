"""`seglog.BackupStore`: the snapshots in a store, for those who look after them."""
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from seglog.archive.checking import BackupCheck, Progress, check_backups
from seglog.archive.creating import BackupRun, back_up, backup
from seglog.archive.forgetting import ForgetRun, PruneRun, forget, prune
from seglog.archive.restoring import RestoreRun, restore
from seglog.archive.stored_objects import StoredObjects
from seglog.backups.manifest import Snapshot
from seglog.backups.repository import Repository
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.fs.files import FileSystem, checked_fs
from seglog.reading.times import Time
from seglog.stores.open_store import AnyPath

# How often one that follows looks again whether the store still has what it needs.
_LISTED_S = 3600.0


class StopSignal(Protocol):
    """What ends `BackupStore.follow`. An Event of the module threading is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float, /) -> object:
        """Return after `timeout` seconds, or earlier if it is set."""
        ...


class _Never:
    """Only an exception ends the waiting: ^C, say."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float, /) -> object:
        time.sleep(timeout)
        return False


class BackupStore:
    """The backups in a store.

        store = seglog.BackupStore("/mnt/backups")
        store.create("/var/lib/kafka")
        for snapshot in store.snapshots():
            print(snapshot.id, snapshot.source, snapshot.size_bytes)
        store.restore("/var/lib/kafka-restored", topics=["orders"])

    Nothing is kept open between two calls. Methods that change the store exclude each other, also across processes, and
    raise LogLockedError.
    """

    def __init__(
        self, store: AnyPath, *, options: Mapping[str, str] | None = None, fs: FileSystem | None = None
    ) -> None:
        """Raises InvalidArgumentError for a URL or an option that no store knows. Nothing is accessed yet."""
        self._store = store
        self._options = options
        self._fs = checked_fs(fs)
        self._repository = Repository(store, options, self._fs)

    def __repr__(self) -> str:
        return f"<BackupStore {self._repository.path}>"

    def create(
        self, src: str | os.PathLike[str], *, compression: str | None = None, reread: bool = False,
        dry_run: bool = False, progress: Progress | None = None,
    ) -> BackupRun:
        """`seglog.backup(src, store)`."""
        return backup(
            src, self._store, options=self._options, compression=compression, reread=reread, dry_run=dry_run,
            progress=progress, fs=self._fs,
        )

    def follow(
        self, src: str | os.PathLike[str], *, every_s: float = 10.0, stop: StopSignal | None = None,
        on_run: Callable[[BackupRun], object] = lambda run: None,
        on_error: Callable[[SeglogError], object] = lambda error: None,
    ) -> None:
        """Back up `src` again and again, `every_s` seconds after the last run ended, until `stop` is set.

        After the loss of the source, a restore lacks at most what was acknowledged in the last `every_s` seconds and
        during the run that was interrupted. If nothing has changed, no snapshot is made. Of those that this call makes,
        the last one of each hour stays; other snapshots are left alone. The store is not held between two runs, so that
        `forget` and `prune` can work. `on_run` is called after each run.

        The first run raises what `create` raises. If a later one fails, `on_error` is called, and the next one follows.
        """
        if not isinstance(every_s, int | float) or not 0 < every_s <= threading.TIMEOUT_MAX:
            raise InvalidArgumentError(f"every_s must be a number of seconds above 0, not {every_s!r}")
        signal = stop or _Never()
        last: Snapshot | None = None
        objects, listed_s = StoredObjects(self._repository), time.monotonic()
        is_first = True
        while not signal.is_set():
            if time.monotonic() - listed_s > _LISTED_S:
                objects, listed_s = StoredObjects(self._repository), time.monotonic()
            try:
                run = back_up(src, self._repository, following=last, is_followed=not is_first, objects=objects)
            except SeglogError as error:
                if is_first:
                    raise
                on_error(error)
            else:
                last, is_first = run.snapshot if run.is_new else last, False
                on_run(run)
            signal.wait(every_s)

    def restore(
        self, dst: str | os.PathLike[str], *, snapshot: str = "latest", topics: Collection[str] = (),
        partitions: Collection[str] = (), until: "Time | None" = None, until_offset: int | None = None,
        rename: Mapping[str, str] | None = None, adopt: bool = False, config: Mapping[str, object] | None = None,
        dry_run: bool = False, progress: Progress | None = None,
    ) -> RestoreRun:
        """`seglog.restore(store, dst)`."""
        return restore(
            self._store, dst, snapshot=snapshot, topics=topics, partitions=partitions, until=until,
            until_offset=until_offset, rename=rename, adopt=adopt, config=config, options=self._options,
            dry_run=dry_run, progress=progress, fs=self._fs,
        )

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, the oldest first. Raises InvalidArgumentError if there are no backups here,
        CorruptBackupError."""
        return self._repository.snapshots()

    def snapshot(self, snapshot_id: str = "latest") -> Snapshot:
        """The snapshot whose id begins so. Raises InvalidArgumentError if there is none, or more than one."""
        return self._repository.snapshot(snapshot_id)

    def check(self, *, read_data: bool = False, progress: Progress | None = None) -> BackupCheck:
        """Check that all is there that snapshots name; with `read_data`, read every object and compare its SHA-256."""
        return check_backups(self._repository, read_data=read_data, progress=progress)

    def forget(
        self, *, keep_last: int = 0, keep_daily: int = 0, keep_weekly: int = 0, dry_run: bool = False
    ) -> ForgetRun:
        """Remove all snapshots but, of each source, the last `keep_last`, and the last one of each of `keep_daily` days
        and `keep_weekly` weeks that have one, in UTC. `prune` then frees the space."""
        with self._alone(dry_run):
            return forget(self._repository, keep_last, keep_daily, keep_weekly, dry_run=dry_run)

    def prune(self, *, dry_run: bool = False) -> PruneRun:
        """Remove the objects that no snapshot names. Raises CorruptBackupError if a snapshot is damaged."""
        with self._alone(dry_run):
            return prune(self._repository, dry_run=dry_run)

    def _alone(self, dry_run: bool) -> AbstractContextManager[None]:
        _ = self._repository.compression        # there are backups here
        return nullcontext() if dry_run else self._repository.alone()
