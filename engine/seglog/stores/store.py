"""The interface to the files of a conversion, the same for a disk, HDFS and an object store.

Paths are text with "/" between names, for a remote store complete URLs, so they mean the same in a journal, in an error
message and to a user. A store can be pickled: each task gets its own copy. A method's changes are durable when it
returns.
"""
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from seglog._kernels.mapping import file_part
from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals, storage_error
from seglog.fs.removal import remove_file, remove_tree
from seglog.fs.staging import remove_leftovers, remove_partition
from seglog.stores.side_by_side import Item, Result

WORKPLACE_SUFFIX = ".seglog-spark"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a listing. `stamp` changes when the file does: its time in ns, or an entity tag.

    `end_offset`: a segment's last offset plus one, if the listing tells it.
    """

    name: str
    size_bytes: int
    stamp: str
    end_offset: int | None = None


class ReadableStore(ABC):
    """A store whose files can be read."""

    @abstractmethod
    def directories(self, path: str) -> list[str]:
        """The names of the directories in `path`, sorted. If `path` does not exist, raises StorageError; in an object
        store it is empty instead.
        """

    @abstractmethod
    def files(self, path: str) -> list[StoredFile]:
        """The files in `path`, by name. If `path` does not exist: as for `directories`."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The bytes of a small file; None if it does not exist."""

    @abstractmethod
    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        """The bytes [position, position + size_bytes) of a file, fewer if it ends before. Raises StorageError."""

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the result of `work` for each item, in order; a remote store works on several at a time.

        A few results wait in memory for their turn.
        """
        return map(work, items)


class Store(ReadableStore):
    """A store that the driver and every executor can access."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file or directory with this name exists."""

    @abstractmethod
    def write(self, path: str, data: bytes | memoryview) -> None:
        """Replace the contents of a file by `data`; a reader sees the old contents or the new."""

    def write_draft(self, path: str, data: bytes | memoryview) -> None:
        """As `write`, for a file that shows by itself whether it is whole, and can be made again: it may get lost."""
        self.write(path, data)

    @abstractmethod
    def file(self, path: str) -> StoredFile | None:
        """The file as it is now; None if it does not exist."""

    @abstractmethod
    @contextmanager
    def local(self, directory: str, name: str, size_bytes: int) -> Iterator[Path]:
        """A segment's .log on this machine for use in the block, with its .txnindex in the same directory, if any.

        `size_bytes`: its size when it was listed. A store that copies it raises ProofMismatchError if the size differs.
        """

    @abstractmethod
    @contextmanager
    def attempt(self, workplace: str) -> Iterator[Path]:
        """An empty directory on this machine for one attempt of one task, removed at the end with its contents."""

    @abstractmethod
    def take(self, attempt: Path, names: Iterable[str], into: str) -> None:
        """Move finished files of an attempt into an existing directory. They replace files with the same names."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a directory and those above it, unless they exist."""

    def make_directories(self, path: str, names: Iterable[str]) -> None:
        """Create directories with these names in `path`, which is created, too."""
        for _ in self.each(self.make_directory, [path, *(f"{path}/{name}" for name in names)]):
            pass

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a file in a workplace, if it exists."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a workplace, or a directory in one, with all its contents, if it exists."""

    def check_workplace(self, path: str) -> None:
        """Raise InvalidArgumentError if the workplace `path` is a link, which leads to another place's files."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make the names in a directory durable, for stores where they are not durable once a method returns."""


class RenamingStore(Store):
    """A store that can rename a directory, whatever its contents, in one step. An object store cannot."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None:
        """Rename a directory in one step. The new name must be free."""

    @abstractmethod
    def remove_partition(self, path: str) -> None:
        """Remove a partition directory of a log dir: it is renamed as deleted in one step, and then its files go."""

    @abstractmethod
    def remove_deleted(self, log_dir: str) -> None:
        """Remove what an interrupted `remove_partition` left in a log dir that nothing else uses."""

    def move(self, names: Iterable[str], path: str, into: str) -> None:
        """Move directories with these names from `path` into another directory, one after another."""
        for name in names:
            self.rename(f"{path}/{name}", f"{into}/{name}")


class LocalStore(RenamingStore):
    """Paths that every executor has mounted: one machine's disk, NFS, any POSIX file system."""

    def __init__(self, fs: FileSystem | None = None) -> None:
        self._fs = checked_fs(fs)

    @property
    def fs(self) -> FileSystem:
        """The file system that changes the disk."""
        return self._fs

    def directories(self, path: str) -> list[str]:
        with refusals("list", path), os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def files(self, path: str) -> list[StoredFile]:
        found = []
        with refusals("list", path), os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):       # removed or renamed since it was listed
                    if entry.is_file():
                        found.append((entry.name, entry.stat()))
        return sorted(
            (StoredFile(name, status.st_size, str(status.st_mtime_ns)) for name, status in found),
            key=lambda file: file.name,
        )

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def read(self, path: str) -> bytes | None:
        try:
            return read_file(path)
        except FileNotFoundError:
            return None

    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        with refusals("read", path):
            return file_part(path, position, size_bytes)

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._write(path, data, durably=True)
        self._fs.sync_directory(os.path.dirname(path))

    def write_draft(self, path: str, data: bytes | memoryview) -> None:
        self._write(path, data, durably=False)

    def _write(self, path: str, data: bytes | memoryview, *, durably: bool) -> None:
        # Two attempts of a task may write the same file at the same time: each uses its own temporary name.
        scratch = f"{path}.{secrets.token_hex(8)}{SCRATCH_SUFFIX}"
        try:
            with self._fs.create(scratch) as file:
                file.append(data)
                if durably:
                    file.sync()
            self._fs.replace(scratch, path)
        except StorageError:
            with suppress(StorageError):        # on a full disk, its bytes would be in the way of what makes room
                self._fs.unlink(scratch)
            raise

    def file(self, path: str) -> StoredFile | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, "look at", path) from error
        return StoredFile(os.path.basename(path), status.st_size, str(status.st_mtime_ns))

    @contextmanager
    def local(self, directory: str, name: str, size_bytes: int) -> Iterator[Path]:
        yield Path(directory, name)

    @contextmanager
    def attempt(self, workplace: str) -> Iterator[Path]:
        # On the file system of the result, so that each file can be renamed there, but never inside the result.
        path = f"{workplace}/attempts/{secrets.token_hex(16)}"
        self._fs.mkdir(path)
        try:
            yield Path(path)
        finally:
            self.remove_tree(path)

    def take(self, attempt: Path, names: Iterable[str], into: str) -> None:
        for name in names:
            self._fs.replace(attempt / name, f"{into}/{name}")
        self._fs.sync_directory(into)

    def make_directory(self, path: str) -> None:
        make_directories(self._fs, path)

    def make_directories(self, path: str, names: Iterable[str]) -> None:
        make_directories(self._fs, path)
        for name in names:
            if not os.path.isdir(f"{path}/{name}"):
                self._fs.mkdir(f"{path}/{name}")
        # Sync once for all of them, including those of a run that died before its sync.
        self._fs.sync_directory(path)

    def remove_file(self, path: str) -> None:
        remove_file(self._fs, *_root_and_names(path))

    def remove_tree(self, path: str) -> None:
        remove_tree(self._fs, *_root_and_names(path))

    def check_workplace(self, path: str) -> None:
        if os.path.islink(path):
            raise InvalidArgumentError(
                "the workplace is a symbolic link; nothing was changed", file=path,
                hint="remove the link: the workplace must be a directory beside the target",
            )

    def sync(self, path: str) -> None:
        self._fs.sync_directory(path)

    def rename(self, path: str, target: str) -> None:
        self._fs.rename(path, target)
        self._fs.sync_directory(os.path.dirname(target))
        self._fs.sync_directory(os.path.dirname(path))

    def remove_partition(self, path: str) -> None:
        remove_partition(self._fs, path)

    def remove_deleted(self, log_dir: str) -> None:
        remove_leftovers(self._fs, log_dir)

    def move(self, names: Iterable[str], path: str, into: str) -> None:
        # Each rename is atomic, and they are confirmed together later: so one sync is enough for all of them.
        for name in names:
            self._fs.rename(f"{path}/{name}", f"{into}/{name}")
        self._fs.sync_directory(into)
        self._fs.sync_directory(path)


def in_workplace(path: str) -> str:
    """Return `path`, which must be a workplace or in one: nothing else is ever removed. Raises ValueError."""
    if not any(name.endswith(WORKPLACE_SUFFIX) for name in path.split("/")):
        raise ValueError(f"{path} is not in a workplace")
    return path


def _root_and_names(path: str) -> list[str]:
    """The directory that holds the workplace, and the names from there to `path`, which is in the workplace."""
    names = in_workplace(path).split("/")
    workplace = max(at for at, name in enumerate(names) if name.endswith(WORKPLACE_SUFFIX))
    return ["/".join(names[:workplace]) or "/", *names[workplace:]]
