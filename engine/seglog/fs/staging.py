"""A directory that is built under another name, synced, and then renamed in one step.

    with Staging.of_partition(fs, "/data/kafka/orders-0") as staging:
        with staging.create("00000000000000000000.log") as file:
            ...
        staging.publish()

If the block ends without publish(), by an error or ^C, nothing is left behind. A killed run leaves a directory that
`leftovers` finds by its name and `remove_leftovers` removes.

Its place follows from Kafka's rules, because a broker does not start if its log dir has a directory with an unknown
name. It is beside the log dir, named `<log dir>+<partition>.<32 hex>.seglog-staging`; or, if that is another file
system or we cannot write there, inside the log dir as `<topic>-<p>.<32 hex>-delete`: to a broker this is a deleted
partition, which it removes at its next start (LogManager.loadLogs). The 32 hex digits begin with "seglog" in ASCII, to
tell ours from a broker's own.

Until it is published nobody else may enter it, whatever the umask is: the log dir may be closed to others where the
directory beside it is not.
"""
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.aside import copy_file
from seglog.fs.files import AnyPath, FileSystem, WritableFile
from seglog.fs.refusals import refusals
from seglog.fs.removal import remove_tree

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OURS = b"seglog".hex()
_HEX_DIGITS = 32
_BESIDE = re.compile(rf"(?s)(?P<of>.+)\.{_OURS}[0-9a-f]{{{_HEX_DIGITS - len(_OURS)}}}\.seglog-staging")
_INSIDE = re.compile(rf"(?s).*-\d+\.{_OURS}[0-9a-f]{{{_HEX_DIGITS - len(_OURS)}}}-delete")
# A partition that a broker or we have deleted (UnifiedLog.logDeleteDirName).
_DELETED = re.compile(rf"(?s).*-\d+\.[0-9a-f]{{{_HEX_DIGITS}}}-delete")
_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")     # Topic.LEGAL_CHARS of Kafka
_NAME_BYTES_MAX = 255
# Files that only the log dir of a broker has (LogManager, BrokerMetadataCheckpoint).
_LOG_DIR_MARKS = ("meta.properties", "recovery-point-offset-checkpoint", "replication-offset-checkpoint")


class Staging:
    """A directory that becomes `target` as a whole or not at all. Made by `of_partition` or `beside`, used by `with`.

    The directory is made on entering, so that no interrupt leaves one behind. The caller holds the lock that guards the
    target's directory (fs.lock): it excludes writers that would take the name, and `remove_leftovers`.
    """

    def __init__(self, fs: FileSystem, target: Path, *places: Path, replace: bool = False) -> None:
        """`places`: where the directory is made, then where it is moved to, if it can be."""
        self.path = places[0]
        self.target = target
        self._places = places
        self._fs = fs
        self._replace = replace
        self._files: dict[str, WritableFile] = {}
        self._synced: set[str] = set()
        self._published = False
        self._discarded = False
        self._descriptor = -1           # of the directory, once a file was created in it
        self._mode = 0o777              # of the directory, once it is published
        self._file_mode = 0o777         # of its files, at most

    @classmethod
    def of_partition(cls, fs: FileSystem, target: AnyPath, *, replace: bool = False) -> Self:
        """A staging for the partition directory `target` in its log dir, which must exist.

        `replace`: if the target exists, publish() exchanges the two in one step, and removes the old one. Raises
        InvalidArgumentError if the target exists without `replace`, or its name is not that of a partition.
        """
        target = Path(os.path.abspath(target)) if replace else _free(target)
        if _PARTITION.fullmatch(target.name) is None:
            raise InvalidArgumentError(
                f"{target.name!r} is not a valid name for a partition directory", file=target,
                hint="name it <topic>-<partition>, such as orders-0",
            )
        token = _token()
        inside = target.parent / _inside_name(target.name, token)
        # Made in the log dir, under a name that a broker knows, then moved out: this rename shows whether the rename
        # back will work. (Equal st_dev does not show it: bind mounts refuse renames, too.)
        beside = _place_beside(target, token)
        return cls(fs, target, inside, *([] if beside is None else [beside]), replace=replace)

    @classmethod
    def beside(cls, fs: FileSystem, target: AnyPath) -> Self:
        """A staging in the directory of `target`, which must not be a log dir: for a log dir, or a copy of anything.

        Raises InvalidArgumentError if the target exists.
        """
        target = _free(target)
        return cls(fs, target, _beside_name(target))

    def close_to_others_than(self, files: Iterable[AnyPath]) -> None:
        """Publish no file with a permission that one of `files` has not: their contents are in the staging."""
        for path in files:
            with refusals("check", path):
                self._file_mode &= os.stat(path).st_mode | 0o600

    def create(self, name: str) -> WritableFile:
        """Create a file. Sync it before closing: only the descriptor that wrote is sure to learn of an error.

        `name` must be one component of a path; otherwise ValueError. The caller checks names from foreign files first
        (format.foreign_names).
        """
        if not name or name in (".", "..") or "/" in name:
            raise ValueError(f"{name!r} is not a valid file name")
        if self._descriptor < 0:
            with refusals("open", self.path):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags)
        file = self._fs.create(self.path / name, within=self._descriptor)
        self._files[file.path] = file
        return file

    def write_file(self, name: str, *buffers: "Buffer") -> None:
        """Create a file with these bytes, synced and closed."""
        with self.create(name) as file:
            file.append(*buffers)
            file.sync()

    def link(self, name: str, source: AnyPath) -> None:
        """Hard-link a file that is on the disk and does not change any more."""
        path = self.path / name
        self._fs.link(source, path)
        self._synced.add(os.fspath(path))

    def copy(self, name: str, source: AnyPath, size_bytes: int | None = None) -> None:
        """Copy a file, or its first bytes: see fs.aside."""
        path = self.path / name
        copy_file(self._fs, source, path, size_bytes)
        self._synced.add(os.fspath(path))

    def close(self) -> None:
        """Close the descriptor of the directory. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def publish(self) -> None:
        """Sync what is not synced yet, then give the directory its name, durably.

        Raises InvalidArgumentError if the name was taken meanwhile, StorageError if a target must be replaced and the
        file system cannot exchange names. If the very last sync fails, the target is whole, but may be gone after a
        crash; the StorageError says which.
        """
        self._sync_all()
        self.close()
        replaced = self._replace and self.target.is_dir()
        if replaced:
            self._mode = stat.S_IMODE(os.stat(self.target).st_mode)
            self._fs.exchange(self.path, self.target)
            with suppress(StorageError):        # it may be another user's; it is removed below
                self._fs.set_mode(self.path, 0o700)
        else:
            _free(self.target)
            self._fs.rename(self.path, self.target)
        self._published = True
        # Only here: under its other name it may be where others can come.
        self._fs.set_mode(self.target, self._mode)
        self._fs.sync_directory(self.target.parent)
        if self.path.parent != self.target.parent:
            self._fs.sync_directory(self.path.parent)
        if replaced:
            _remove_tree(self._fs, self.path)

    def discard(self) -> None:
        """Remove what was built. Does nothing after publish(). Idempotent."""
        self.close()
        if self._published or self._discarded or not os.path.lexists(self.path):
            return
        for file in self._files.values():
            file.close()
        _remove_tree(self._fs, self.path)
        self._discarded = True

    def keep(self) -> None:
        """Leave the directory where it is, as a killed run does, also at the end of `with`. Its files are closed."""
        self.close()
        for file in self._files.values():
            file.close()
        self._discarded = True

    def __enter__(self) -> Self:
        """Make the directory. Raises StorageError."""
        try:
            self._fs.mkdir(self.path)
            self._mode = stat.S_IMODE(os.stat(self.path).st_mode)
            self._fs.set_mode(self.path, self._mode & ~0o077)
            for place in self._places[1:]:
                try:
                    self._fs.rename(self.path, place)
                except StorageError:
                    pass        # another file system, or we cannot write there: it stays inside
                else:
                    self.path = place
            return self
        except BaseException:
            # After an interrupt here, `__exit__` is not called.
            for place in self._places:
                if place.is_dir():
                    with suppress(StorageError):
                        self._fs.rmdir(place)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.discard()
        except StorageError as refusal:
            if error is None:
                raise
            error.add_note(f"{self.path} is left over: {refusal.what}")

    def _sync_all(self) -> None:
        for file in self._files.values():
            if not file.closed:
                if file.unsynced:
                    file.sync()
                file.close()
        for directory, files in _bottom_up(self.path):
            for path in files:
                mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
                if mode & self._file_mode != mode:
                    self._fs.set_mode(path, mode & self._file_mode)
                known = self._files.get(path)
                if path not in self._synced and (known is None or known.unsynced):
                    self._fs.sync_file(path)
            self._fs.sync_directory(directory)


def leftovers(log_dir: AnyPath) -> list[Path]:
    """The stagings of this log dir's partitions, in it and beside it, of runs that were killed or are still running."""
    log_dir = Path(os.path.abspath(log_dir))
    found = []
    with refusals("list", log_dir):
        found += [log_dir / name for name in os.listdir(log_dir) if _INSIDE.fullmatch(name)]
    with refusals("list", log_dir.parent):
        for name in os.listdir(log_dir.parent):
            beside = _BESIDE.fullmatch(name)
            # A topic's name has no "+", so the last one ends the name of the log dir.
            if beside is not None and beside["of"].rpartition("+")[0] == log_dir.name:
                found.append(log_dir.parent / name)
    return sorted(found)


def remove_leftovers(fs: FileSystem, log_dir: AnyPath, *, but: Collection[Path] = ()) -> list[Path]:
    """Remove the leftovers of a log dir, `but` those. The caller holds its lock exclusively, so no running process owns
    one."""
    found = [path for path in leftovers(log_dir) if path not in but]
    for path in found:
        _remove_tree(fs, path)
    return found


def remove_partition(fs: FileSystem, path: AnyPath) -> None:
    """Remove a partition directory: in one durable step it is renamed as deleted, then removed file by file.

    The caller holds its lock. What a crash leaves is one of the `leftovers`.
    """
    remove = rename_deleted(fs, path)
    fs.sync_directory(Path(os.path.abspath(path)).parent)
    remove()


def rename_deleted(fs: FileSystem, path: AnyPath) -> Callable[[], None]:
    """The first step of `remove_partition`, which the caller makes durable by a sync of the log dir. Returns a function
    that removes the files then."""
    path = Path(os.path.abspath(path))
    if _PARTITION.fullmatch(path.name) is None:
        raise ValueError(f"{path} is not a partition directory")
    gone = path.parent / deleted_name(path.name)
    fs.rename(path, gone)
    return partial(_remove_tree, fs, gone)


def remove_deleted_partition(fs: FileSystem, path: Path) -> None:
    """Remove what a crash left of a deleted partition, of a broker's as well; nothing if it has another name. The
    caller knows that no running process is removing it."""
    if _DELETED.fullmatch(path.name) is not None:
        remove_tree(fs, path.parent, path.name)


def deleted_name(partition: str) -> str:
    """A new name for a partition directory that a broker takes for that of a deleted one; also `is_ours_deleted`."""
    return _inside_name(partition, _token())


def is_ours_deleted(name: str) -> bool:
    """Whether a directory in a log dir is one that we have renamed as deleted, or a staging there."""
    return _INSIDE.fullmatch(name) is not None


def beside_leftovers(target: AnyPath) -> list[Path]:
    """The stagings that killed runs made with Staging.beside for `target`."""
    target = Path(os.path.abspath(target))
    with refusals("list", target.parent):
        return [target.parent / name for name in os.listdir(target.parent) if staged_beside(name) == target.name]


def staged_beside(name: str) -> str | None:
    """The name of the target of Staging.beside whose staging has this name; None if it is the name of no staging."""
    match = _BESIDE.fullmatch(name)
    return None if match is None else match["of"]


def remove_beside_leftovers(fs: FileSystem, target: AnyPath, *, but: Collection[Path] = ()) -> None:
    """Remove the `beside_leftovers`, `but` those. The caller holds the lock that guards the directory of `target`."""
    for path in beside_leftovers(target):
        if path not in but:
            _remove_tree(fs, path)


def refuse_other_owner(partition: Path, more: str = "") -> None:
    """Raise InvalidArgumentError if the partition belongs to another user, whose broker could not write to a directory
    of ours in its place. `more`: what the message says besides."""
    owner = partition.stat().st_uid
    if owner != os.geteuid():
        raise InvalidArgumentError(
            f"the partition belongs to user {owner}, and the result would belong to {os.geteuid()}: its broker"
            f" could not write to it{more}", file=partition, hint="run as that user",
        )


def remove_directory(fs: FileSystem, path: AnyPath) -> None:
    """Remove a directory that was once a staging. It is renamed as a staging first, so a crash leaves a leftover."""
    path = Path(os.path.abspath(path))
    scratch = _beside_name(path)
    fs.rename(path, scratch)
    fs.sync_directory(path.parent)
    _remove_tree(fs, scratch)


def can_exchange(fs: FileSystem, path: AnyPath, log_dir: AnyPath) -> None:
    """Test that `path`, an empty directory, can be exchanged with one in a log dir, and back. Raises StorageError.

    Only trying shows it: equal devices do not, because bind mounts refuse renames, too.
    """
    probe = Path(os.path.abspath(log_dir)) / _inside_name("probe-0", _token())
    fs.mkdir(probe)
    try:
        fs.exchange(path, probe)
        fs.exchange(path, probe)
    finally:
        fs.rmdir(probe)


def _free(target: AnyPath) -> Path:
    """The absolute path of `target`, which must not exist."""
    target = Path(os.path.abspath(target))
    if os.path.lexists(target):
        raise InvalidArgumentError(
            "the target exists already", file=target, hint="choose another target, or move the existing files away"
        )
    return target


def _token() -> str:
    return _OURS + os.urandom((_HEX_DIGITS - len(_OURS)) // 2).hex()


def _beside_name(target: Path) -> Path:
    return target.parent / f"{target.name}.{_token()}.seglog-staging"


def _inside_name(partition: str, token: str) -> str:
    """As UnifiedLog.logDeleteDirName: a long topic name is shortened, the rest is kept."""
    topic, _, number = partition.rpartition("-")
    end = f"-{number}.{token}-delete"
    return topic[: _NAME_BYTES_MAX - len(end)] + end


def _place_beside(target: Path, token: str) -> Path | None:
    """The place of a staging of `target` beside its log dir; None if it must not or cannot be there."""
    log_dir = target.parent
    above = log_dir.parent
    name = f"{log_dir.name}+{target.name}.{token}.seglog-staging"
    if above == log_dir or len(os.fsencode(name)) > _NAME_BYTES_MAX:
        return None
    if any(os.path.lexists(above / mark) for mark in _LOG_DIR_MARKS):
        return None     # the parent directory is itself a broker's log dir
    return above / name


def _bottom_up(path: AnyPath) -> Iterator[tuple[str, list[str]]]:
    """Each directory under `path`, the deepest first, with the paths of its entries that are not directories."""
    files = []
    with refusals("list", path), os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _bottom_up(entry.path)
            else:
                files.append(entry.path)
    yield os.fspath(path), files


def _remove_tree(fs: FileSystem, path: Path) -> None:
    """Remove a staging. Raises ValueError if the directory is not named as one."""
    if _INSIDE.fullmatch(path.name) is None and _BESIDE.fullmatch(path.name) is None:
        raise ValueError(f"{path} is not a staging directory")
    remove_tree(fs, path.parent, path.name)
