"""Partitions in a backup as PATHs: `STORE#SNAPSHOT/orders-0`. Each is restored into a temporary directory while it is
read."""
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import click

from seglog.archive.restoring import restore
from seglog.backups.repository import Repository
from seglog.backups.snapshot_store import path_in_backup
from seglog.errors import NotALogError, SeglogError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.removal import remove_tree
from seglog.fs.scratch import scratch_directory

from .targets import Place


@dataclass(frozen=True, slots=True)
class PlaceInBackup(Place):
    """A partition in a snapshot. `directory` exists only while it is at hand."""

    store: str = ""
    snapshot: str = ""      # its whole id
    size_bytes: int = field(default=0, compare=False)
    store_options: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def path(self) -> str:
        """`STORE#SNAPSHOT/orders-0`, with the whole id."""
        return f"{self.store}#{self.snapshot}/{self.directory.name}"

    def labels(self) -> dict[str, str]:
        """As of any partition: the snapshot is its log dir."""
        return super(PlaceInBackup, self).labels() | {"log_dir": f"{self.store}#{self.snapshot}"}

    def log_bytes(self) -> int:
        return self.size_bytes

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Read it from the store, check it, and have it at `directory` until the end. Errors name `path`.

        Raises CorruptBackupError, StorageError.
        """
        above = self.directory.parent
        try:
            restore(
                self.store, above, snapshot=self.snapshot, partitions=[self.directory.name], options=self.store_options
            )
            yield
        except SeglogError as error:
            if error.file is not None:
                error.file = self.named(error.file)
            raise
        finally:
            with suppress(StorageError):
                remove_tree(OsFileSystem(), above.parent, above.name)

    def is_gone(self) -> bool:
        return False

    def named(self, file: str) -> str:
        """The name of a file of the partition in the backup."""
        return file.replace(str(self.directory), self.path)


def places_in_backup(path: Path | str, store_options: Mapping[str, str]) -> Sequence[Place] | None:
    """The partitions that `STORE#SNAPSHOT/...` names; None if the path has another form, or exists.

    Raises NotALogError if the snapshot has none of this name, InvalidArgumentError if there is no such snapshot.
    """
    asked = path_in_backup(path)
    if asked is None:
        return None
    snapshot = Repository(asked.store, store_options, OsFileSystem()).snapshot(asked.snapshot)
    found = [part for part in snapshot.partitions if fnmatchcase(part.name, asked.path or "*")]
    if not found:
        left_out = snapshot.left_out.get(asked.path)
        if asked.path in {ledger.name for ledger in snapshot.ledgers}:
            raise NotALogError(
                f"{asked.path} is no partition, but a queue or a ledger", file=path,
                hint=f"restore it: seglog restore {asked.store} DST --snapshot {snapshot.id} --topic {asked.path}",
            )
        raise NotALogError(
            f"the snapshot {snapshot.id} has no partition of this name" + (f": {left_out}" if left_out else ""),
            file=path, hint=f"`seglog backup ls {asked.store} --snapshot {snapshot.id}` lists them",
        )
    temporary = click.get_current_context().with_resource(scratch_directory())
    is_one = [part.name for part in found] == [asked.path]
    return [
        PlaceInBackup(
            temporary / str(number) / part.name, in_log_dir=not is_one, store=asked.store, snapshot=snapshot.id,
            size_bytes=part.size_bytes, store_options=store_options,
        )
        for number, part in enumerate(found)
    ]
