"""The place that holds backups: a folder, or a prefix of an object store, with `objects/` and `snapshots/`.

    run: objects ── the objects with partitions' files ── snapshots/<id>.json, put last

A snapshot exists once its manifest does, and by then all that it names is durable. So a run may be killed anywhere;
what it stored is found by the next run, or removed by `prune`.

A program that adds or removes anything holds the store's lock or, in a store without locks, its lease (`alone`).
Readers need neither.
"""
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from seglog.backups.manifest import (
    STORE_FILE,
    BackedFile,
    LedgerBackup,
    PartitionBackup,
    Snapshot,
    SnapshotLedger,
    SnapshotPartition,
    is_snapshot_id,
    parse_store,
    store_to_bytes,
)
from seglog.backups.pieces import PieceStore
from seglog.backups.snapshot_register import SnapshotRegister
from seglog.backups.store_lease import StoreLease, leased
from seglog.errors import CorruptBackupError, InvalidArgumentError, LogLockedError
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.fs.lock import EXCLUSIVE, LOG_DIR_LOCK, lock_file
from seglog.fs.refusals import refusals
from seglog.fs.removal import remove_file
from seglog.stores.open_store import AnyPath, open_store
from seglog.stores.store import LocalStore

_FANOUT = [f"{n:02x}" for n in range(256)]
_LATEST = "latest"


class Repository:
    """`Repository(path)`: nothing is accessed before a method is called. Paths and URLs as in `open_store`."""

    def __init__(self, path: AnyPath, options: Mapping[str, str] | None, fs: FileSystem) -> None:
        self.store, self.path = open_store(path, options or {}, fs, removable=self._removable)
        self.fs = fs
        # A directory's listing shows what is there.
        self._register = None if isinstance(self.store, LocalStore) else SnapshotRegister(self.store, self.path)
        self._compression: str | None = None
        self._lease: StoreLease | None = None

    # --- the store itself ------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there are backups here, or a run has begun to make one."""
        return self.store.read(f"{self.path}/{STORE_FILE}") is not None

    @property
    def compression(self) -> str:
        """How new objects are compressed. Raises InvalidArgumentError if there are no backups here."""
        if self._compression is None:
            file = f"{self.path}/{STORE_FILE}"
            raw = self.store.read(file)
            if raw is None:
                raise InvalidArgumentError(
                    "there are no backups here", file=self.path,
                    hint="check the path; `seglog backup create` begins one",
                )
            self._compression = parse_store(raw, file)
        return self._compression

    def check_place(self) -> None:
        """Raise InvalidArgumentError if a new store would be in another one, or in a directory with other things."""
        if self.exists or not isinstance(self.store, LocalStore):
            return
        for above in Path(self.path).parents:
            if os.path.lexists(above / STORE_FILE):
                raise InvalidArgumentError(
                    f"the directory is in a store of backups, {above}", file=self.path,
                    hint="name that store, or a directory elsewhere",
                )
        with refusals("list", self.path), suppress(FileNotFoundError):
            found = set(os.listdir(self.path)) - {LOG_DIR_LOCK, "objects", "snapshots"}
            if any(not name.startswith(STORE_FILE) for name in found):
                raise InvalidArgumentError(
                    "the directory holds other files, and no backups", file=self.path,
                    hint="name an empty directory, or one that does not exist",
                )

    def begin(self, compression: str | None) -> None:
        """Make the store unless it exists. Its directories are closed to other users: it holds copies of closed files.

        Raises InvalidArgumentError if other things are here, or it compresses otherwise.
        """
        file = f"{self.path}/{STORE_FILE}"
        is_new = not self.exists
        if is_new:
            self.check_place()
        if is_new or self._lacks_directories():
            self.store.make_directories(f"{self.path}/objects", _FANOUT)
            self.store.make_directories(self.path, ["snapshots"])
            if isinstance(self.store, LocalStore):
                for directory in ("objects", "snapshots"):
                    self.fs.set_mode(f"{self.path}/{directory}", 0o700)
        if is_new:
            self.store.write(file, store_to_bytes(compression or "none"))
        if compression not in (None, self.compression):
            raise InvalidArgumentError(
                f"the objects of this store are compressed by {self.compression}, not by {compression}", file=self.path,
                hint="leave the option out, or name another store",
            )

    @property
    def has_objects(self) -> bool:
        """Whether the place of the objects is there. (A store without directories needs none.)"""
        return not isinstance(self.store, LocalStore) or os.path.lexists(f"{self.path}/objects")

    def _lacks_directories(self) -> bool:
        """Whether some were removed, with all that was in them."""
        if not isinstance(self.store, LocalStore):
            return False
        if not self.has_objects or not os.path.lexists(f"{self.path}/snapshots"):
            return True
        with refusals("list", self.path):
            return not set(os.listdir(f"{self.path}/objects")).issuperset(_FANOUT)

    def pieces(self, *, dry_run: bool = False, reread: bool = False) -> PieceStore:
        """`dry_run`: its objects are counted, and not stored; the store may be missing. `reread`: as in PieceStore."""
        if dry_run and not self.exists:
            return PieceStore(self.store, self.path, "none", dry_run=True)
        return PieceStore(self.store, self.path, self.compression, dry_run=dry_run, reread=reread)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude every other run that changes the store. Raises LogLockedError."""
        if isinstance(self.store, LocalStore):
            make_directories(self.fs, self.path)
            try:
                lock = lock_file(self.fs, os.path.join(self.path, LOG_DIR_LOCK), EXCLUSIVE)
            except LogLockedError as error:
                error.hint = "another run changes this store; run the same command again when it has ended"
                raise
            with lock:
                yield
            return
        with leased(self.store, f"{self.path}/runs", self.remove) as self._lease:
            try:
                yield
            finally:
                self._lease = None

    def check_alone(self) -> None:
        """Within `alone`: raise StorageError if another run may have begun meanwhile."""
        if self._lease is not None:
            self._lease.check()

    def _removable(self, path: str) -> str:
        if not path.startswith(tuple(f"{self.path}/{name}/" for name in ("objects", "snapshots", "runs"))):
            raise ValueError(f"{path} is not an object, a snapshot or the mark of a run")
        return path

    def remove(self, path: str) -> None:
        """Remove an object or a snapshot, if it exists."""
        names = self._removable(path).removeprefix(f"{self.path}/").split("/")
        if isinstance(self.store, LocalStore):
            remove_file(self.fs, self.path, *names)
        else:
            self.store.remove_file(path)

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot_ids(self, *, may_be_missing: bool = False) -> list[str]:
        """The ids of all snapshots, the oldest first. Raises InvalidArgumentError if there are no backups here; none,
        if the store `may_be_missing`."""
        if may_be_missing and not self.exists:
            return []
        _ = self.compression
        return sorted(self.ids_now())

    def ids_now(self) -> set[str]:
        """The ids of all snapshots, whatever else is here."""
        found = self.listed_ids()
        with suppress(CorruptBackupError):      # `check` finds it
            found |= self.registered_ids()
        return found

    def listed_ids(self) -> set[str]:
        """The ids of the snapshots that a listing shows."""
        found = {file.name.partition(".json") for file in self.store.files(f"{self.path}/snapshots")}
        return {name for name, suffix, rest in found if suffix and not rest and is_snapshot_id(name)}

    def registered_ids(self) -> set[str]:
        """The ids of snapshots that a listing may not show yet, and of some that are gone. Raises CorruptBackupError,
        UnsupportedVersionError."""
        return set() if self._register is None else self._register.ids()

    def new_id(self, now_ms: int) -> str:
        """An id for a snapshot of this time; later than all others, even if the clock was set back."""
        last = (self.snapshot_ids(may_be_missing=True) or [""])[-1]
        while True:
            moment = f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"
            if moment > last[: len(moment)]:
                return f"{moment}-{secrets.token_hex(4)}"
            then = datetime.strptime(f"{last[:19]}+0000", "%Y%m%dT%H%M%S.%f%z")
            now_ms = int(then.timestamp() * 1000) + 1

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """The snapshot with this id, `latest`, or the only one whose id begins so. Raises InvalidArgumentError."""
        gone: set[str] = set()
        while True:
            # `follow` replaces the last one again and again, so look for the one that came instead. The register may
            # also have ids whose snapshots were never put.
            ids = self.snapshot_ids()
            left = [one for one in ids if one not in gone]
            chosen = left[-1:] if snapshot_id == _LATEST else [one for one in left if one.startswith(snapshot_id)]
            found: list[Snapshot] = []
            for one in chosen:
                snapshot = self.find_snapshot(one)
                if snapshot is None:
                    gone.add(one)
                else:
                    found.append(snapshot)
                if len(found) > 1:
                    raise InvalidArgumentError(
                        f"several snapshots begin with {snapshot_id!r}", file=self.path,
                        hint="`seglog backup ls` lists them",
                    )
            if found:
                return found[0]
            if not chosen:
                if seen := sorted(gone & self.listed_ids()):
                    return self.read_snapshot(seen[-1])
                raise InvalidArgumentError(
                    f"no snapshot {snapshot_id!r}", file=self.path, hint="`seglog backup ls` lists them"
                )

    def snapshots(self) -> list[Snapshot]:
        """All, the oldest first, but those that are removed meanwhile. Raises InvalidArgumentError if there are no
        backups here, CorruptBackupError, UnsupportedVersionError."""
        found = map(self.find_snapshot, self.snapshot_ids())
        return [snapshot for snapshot in found if snapshot is not None]

    def read_snapshot(self, snapshot_id: str) -> Snapshot:
        """Raises CorruptBackupError, UnsupportedVersionError, InvalidArgumentError if it was removed meanwhile."""
        found = self.find_snapshot(snapshot_id)
        if found is None:
            file = self.snapshot_path(snapshot_id)
            raise InvalidArgumentError("the snapshot was removed meanwhile", file=file, hint="choose another one")
        return found

    def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """None if it was removed since it was listed. Raises CorruptBackupError, UnsupportedVersionError."""
        file = self.snapshot_path(snapshot_id)
        raw = self.store.read(file)
        return None if raw is None else Snapshot.parse(raw, file)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.check_alone()
        if self._register is not None:
            self._register.write({*self.snapshot_ids(), snapshot.id})
        self.store.write(self.snapshot_path(snapshot.id), snapshot.to_bytes())

    def drop_from_register(self, ids: Iterable[str]) -> None:
        """Of snapshots that are gone."""
        dropped = set(ids)
        if dropped and self._register is not None:
            self._register.write(set(self.snapshot_ids()) - dropped)

    def remove_snapshots(self, ids: Iterable[str]) -> None:
        """Remove snapshots, durably, before objects go that only they name."""
        removed = set(ids)
        for snapshot_id in removed:
            self.remove(self.snapshot_path(snapshot_id))
        self.store.sync(f"{self.path}/snapshots")
        self.drop_from_register(removed)

    def snapshot_path(self, snapshot_id: str) -> str:
        return f"{self.path}/snapshots/{snapshot_id}.json"

    def partition(self, part: SnapshotPartition, pieces: PieceStore) -> PartitionBackup:
        """The files of a partition. Raises CorruptBackupError, UnsupportedVersionError."""
        return PartitionBackup.parse(self.list_of(part, pieces), self._file_of(part, pieces))

    def ledger(self, part: SnapshotLedger, pieces: PieceStore) -> LedgerBackup:
        """The files of a queue or ledger. Raises as `partition`."""
        return LedgerBackup.parse(self.list_of(part, pieces), self._file_of(part, pieces))

    def files(self, part: SnapshotPartition | SnapshotLedger, pieces: PieceStore) -> tuple[BackedFile, ...]:
        """The files of either. Raises as `partition`."""
        if isinstance(part, SnapshotLedger):
            return self.ledger(part, pieces).files
        return self.partition(part, pieces).files

    def list_of(self, part: SnapshotPartition | SnapshotLedger, pieces: PieceStore) -> bytes:
        """The bytes of the list of its files. Raises CorruptBackupError, StorageError."""
        return b"".join(pieces.get_each(part.pieces))

    def _file_of(self, part: SnapshotPartition | SnapshotLedger, pieces: PieceStore) -> str:
        return pieces.path_of(part.pieces[0].digest) if part.pieces else self.path


def file_content(file: BackedFile, pieces: PieceStore) -> bytes:
    """The bytes of a file. Raises CorruptBackupError, StorageError."""
    return b"".join(pieces.get_each(file.pieces)) if file.inline is None else file.inline


def this_host() -> str:
    return socket.gethostname()
