"""Where the files of a conversion lie: the one interface behind which a disk, HDFS and an object store look alike.

Paths are text with "/" between names, for a remote store whole URLs: so they mean the same in a journal, in an error
and to whoever reads them. A store pickles: each task takes its own copy along. What a method changed is durable when it
returns.
"""
import errno
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from seglog._kernels.mapping import file_part
from seglog.errors import StorageError
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals, storage_error
from seglog.fs.staging import bottom_up

WORKPLACE_SUFFIX = ".seglog-spark"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing tells it. `stamp` changes when the file does: its time in ns, or an entity tag.

    `end_offset`: of a segment, one behind its last offset, where the listing tells that.
    """

    name: str
    size_bytes: int
    stamp: str
    end_offset: int | None = None


class ReadableStore(ABC):
    """A place for files that are read."""

    @abstractmethod
    def directories(self, path: str) -> list[str]:
        """Names of the directories in `path`, sorted. Where `path` is not there StorageError is raised, but not by an
        object store: there it is empty.
        """

    @abstractmethod
    def files(self, path: str) -> list[StoredFile]:
        """The files in `path`, by name. Where `path` is not there: as `directories`."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """A small file whole; None if there is none."""

    @abstractmethod
    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        """The bytes [position, position + size_bytes) of a file, fewer where it ends. Raises StorageError."""

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What `work` on the store gives for each item, in their order; some at a time where the store is far away.

        Results wait in memory for their turn, a few of them.
        """
        return map(work, items)


class Store(ReadableStore):
    """A place for files that the driver and every executor see."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of this name."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Let the file hold `data`; a reader sees what was there before or all of it."""

    def write_draft(self, path: str, data: bytes) -> None:
        """The same of a file that tells by itself whether it is whole, and is made again if not: it may be lost."""
        self.write(path, data)

    @abstractmethod
    def file(self, path: str) -> StoredFile | None:
        """The file as it is now; None if there is none."""

    @abstractmethod
    @contextmanager
    def local(self, directory: str, name: str, size_bytes: int) -> Iterator[Path]:
        """A segment's .log on this machine, to be read in the block, its .txnindex beside it where there is one.

        `size_bytes`: what it had when it was listed. A store that copies it raises ProofMismatchError where it differs.
        """

    @abstractmethod
    @contextmanager
    def attempt(self, workplace: str) -> Iterator[Path]:
        """An empty directory on this machine for one attempt of one task. What is left in it at the end goes away."""

    @abstractmethod
    def take(self, attempt: Path, names: Iterable[str], into: str) -> None:
        """Move finished files of an attempt into a directory that is there. Files of these names are replaced."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make it and those above it; one that is there is left alone."""

    def make_directories(self, path: str, names: Iterable[str]) -> None:
        """Make directories of these names in `path`, which is made as well."""
        for _ in self.each(self.make_directory, [path, *(f"{path}/{name}" for name in names)]):
            pass

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a file in a workplace. Nothing if there is none."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a directory in a workplace, or a workplace, with all that is in it. Nothing if there is none."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make the names in a directory durable, where they are not as soon as a method returns."""


class RenamingStore(Store):
    """A store that gives a directory another name in one step, whatever is in it. An object store cannot."""

    @abstractmethod
    def rename(self, path: str, target: str) -> None:
        """Give a directory another name, which must be free, in one step."""

    def move(self, names: Iterable[str], path: str, into: str) -> None:
        """Rename directories of these names in `path` into another directory, one after the other."""
        for name in names:
            self.rename(f"{path}/{name}", f"{into}/{name}")


class LocalStore(RenamingStore):
    """Paths that every executor has mounted: the disk of a single machine, NFS, any POSIX file system."""

    def __init__(self, fs: FileSystem | None = None) -> None:
        self._fs = fs or OsFileSystem()

    @property
    def fs(self) -> FileSystem:
        """What changes the disk."""
        return self._fs

    def directories(self, path: str) -> list[str]:
        with refusals("list", path), os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def files(self, path: str) -> list[StoredFile]:
        with refusals("list", path), os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
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

    def write(self, path: str, data: bytes) -> None:
        self._write(path, data, durably=True)
        self._fs.sync_directory(os.path.dirname(path))

    def write_draft(self, path: str, data: bytes) -> None:
        self._write(path, data, durably=False)

    def _write(self, path: str, data: bytes, *, durably: bool) -> None:
        # Two attempts of a task may write the same file at one time: each aside under a name of its own.
        scratch = f"{path}.{secrets.token_hex(8)}{SCRATCH_SUFFIX}"
        with self._fs.create(scratch) as file:
            file.append(data)
            if durably:
                file.sync()
        self._fs.replace(scratch, path)

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
        # On the file system of the result, so that a rename carries each file there; never inside of the result.
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
        # Once for all of them, also of those that a run made which died before it synced.
        self._fs.sync_directory(path)

    def remove_file(self, path: str) -> None:
        with _gone_is_fine():
            self._fs.unlink(in_workplace(path))

    def remove_tree(self, path: str) -> None:
        path = in_workplace(path)
        if not os.path.isdir(path):
            return
        # Another run's attempt that still lives may remove its own part at the same time.
        with _gone_is_fine():
            for directory, files in bottom_up(path):
                for file in files:
                    with _gone_is_fine():
                        self._fs.unlink(file)
                with _gone_is_fine():
                    self._fs.rmdir(directory)

    def sync(self, path: str) -> None:
        self._fs.sync_directory(path)

    def rename(self, path: str, target: str) -> None:
        self._fs.rename(path, target)
        self._fs.sync_directory(os.path.dirname(target))
        self._fs.sync_directory(os.path.dirname(path))

    def move(self, names: Iterable[str], path: str, into: str) -> None:
        # Each step is whole by itself, and the last word about all of them comes later: so one sync serves them all.
        for name in names:
            self._fs.rename(f"{path}/{name}", f"{into}/{name}")
        self._fs.sync_directory(into)
        self._fs.sync_directory(path)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise


def in_workplace(path: str) -> str:
    """`path`, which must be a workplace or lie in one: nothing else is ever removed."""
    if not any(name.endswith(WORKPLACE_SUFFIX) for name in path.split("/")):
        raise ValueError(f"{path} lies in no workplace")
    return path
