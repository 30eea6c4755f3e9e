"""Changes of one file that a crash leaves done or not done: write aside, sync, rename, sync the directory.

What replaces a file has its permissions, and its owner if root replaces it: a log that only its owner could read stays
one, whatever the umask is. A killed run leaves `<name>.tmp`, as Kafka does: Kafka's loader ignores such a file, and the
next write here replaces it. Two writers of one file must exclude each other by a lock (fs.lock).
"""
import errno
import math
import os
import stat
from typing import TYPE_CHECKING

from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.files import AnyPath, FileSystem, WritableFile
from seglog.fs.mapping import Mapping
from seglog.fs.refusals import begins_as_url, is_out_of_space, refusals, url_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCRATCH_SUFFIX = ".tmp"
_COPY_BYTES = 8 << 20


def write_atomically(
    fs: FileSystem, path: AnyPath, *buffers: "Buffer", backup: AnyPath | None = None, sync_names: bool = True,
    like: AnyPath | None = None, mode: int | None = None,
) -> None:
    """Replace the contents of `path` by `buffers`, durably; after a crash it holds the old bytes or the new ones.

    With `backup` (in the same directory) the old file, if there was one, is kept under that name, replacing an older
    backup; `path` names a whole file at every moment. `sync_names=False`: it is durable only when the caller has synced
    the directory, once for several files. `like`: a file whose permissions a new one gets, for bytes that stood there.
    `mode`: the permissions, whatever the old file had.
    """
    path = os.fspath(path)
    file = _new_scratch(fs, path, like, mode)
    try:
        for buffer in buffers:
            file.append_bytes(buffer)
        file.sync()
        file.close()
        if backup is None:
            fs.replace(file.path, path)
        else:
            _take_name(fs, file.path, path, backup)
    except BaseException as error:
        file.close()
        _drop_scratch(fs, file.path, error)
        if isinstance(error, StorageError) and is_out_of_space(error):
            error.hint = _free(sum(memoryview(buffer).nbytes for buffer in buffers), path)
        raise
    if sync_names:
        fs.sync_directory(os.path.dirname(path) or ".")


class AtomicWrites:
    """Replaces many files as `write_atomically` does, each by itself, and waits for the disk once for all of them.

    What `write` was given stands in scratch files until `finish` syncs these together, renames them, and syncs each
    directory once. As a context manager it removes at its end what was not finished.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._waiting: dict[str, tuple[str, AnyPath | None]] = {}      # scratch file: the name it gets, its backup
        self.waiting_bytes = 0

    def __enter__(self) -> "AtomicWrites":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        while self._waiting:
            scratch, _ = self._waiting.popitem()
            _drop_scratch(self._fs, scratch, error)

    def __len__(self) -> int:
        return len(self._waiting)

    def write(self, path: AnyPath, raw: "Buffer", *, backup: AnyPath | None = None) -> None:
        """Write the new contents of `path` aside. `backup`: as for `write_atomically`. Raises StorageError."""
        path = os.fspath(path)
        file = _new_scratch(self._fs, path, None, None)
        self._waiting[file.path] = path, backup
        try:
            with file:
                file.append_bytes(raw)
        except StorageError as error:
            if is_out_of_space(error):
                error.hint = _free(self.waiting_bytes + memoryview(raw).nbytes, path)
            raise
        self.waiting_bytes += memoryview(raw).nbytes

    def finish(self) -> None:
        """Return when all files that were written have their names and contents, durably. Raises StorageError."""
        self._fs.sync_files(list(self._waiting))
        directories = {os.path.dirname(path) or "." for path, _ in self._waiting.values()}
        for scratch, (path, backup) in list(self._waiting.items()):
            _take_name(self._fs, scratch, path, backup)
            del self._waiting[scratch]
        self.waiting_bytes = 0
        self._fs.sync_directories(sorted(directories))


def _take_name(fs: FileSystem, scratch: str, path: str, backup: AnyPath | None) -> None:
    """Give a scratch file, which is synced, the name of the file that it replaces."""
    if backup is not None and os.path.lexists(path):
        _keep(fs, path, os.fspath(backup))
    fs.replace(scratch, path)


def _drop_scratch(fs: FileSystem, scratch: str, error: BaseException | None) -> None:
    """Remove a scratch file after `error`, which is told if that is refused, too."""
    try:
        fs.unlink(scratch)
    except StorageError as refusal:
        if error is None:
            raise
        error.add_note(f"{scratch} is left over: {refusal.what}")


def write_derived(fs: FileSystem, path: AnyPath, raw: "Buffer", source: AnyPath) -> None:
    """Replace a file that can be made again from `source`, as an index from its log. The caller syncs the directory.

    If the disk has no room for the old one and the new one, the old one goes first.
    """
    try:
        write_atomically(fs, path, raw, sync_names=False, like=source)
    except StorageError as error:
        if not is_out_of_space(error) or not os.path.lexists(path):
            raise
        fs.unlink(path)
        write_atomically(fs, path, raw, sync_names=False, like=source)


def shorten(fs: FileSystem, path: AnyPath, size_bytes: int, *, is_torn_tail: bool = False) -> None:
    """Shorten `path` to its first `size_bytes` bytes, durably: a shorter copy takes its name.

    The file is not truncated in place, because others may have mapped it, and hold records of the part that goes: such
    maps keep the whole file. Costs a copy of the bytes that stay.

    `is_torn_tail`: what goes is no record, so that nobody holds any of it. If the disk has no room for the copy, the
    file is then truncated after all, unless it has other names. A reader that looks there at that moment finds zeros,
    and its map is marked (fs.mapping). Otherwise the StorageError says how many bytes to free.
    """
    size_now = os.stat(path).st_size
    if size_bytes > size_now:
        raise ValueError(f"{os.fspath(path)} has {size_now} bytes, fewer than {size_bytes}")
    # Also before a copy is tried, which would fill the disk up: writes of other programs would fail.
    if is_torn_tail and size_bytes > _free_bytes(path) and _cut(fs, path, size_bytes):
        return
    try:
        with Mapping(path) as whole:
            write_atomically(fs, path, memoryview(whole)[:size_bytes])
    except StorageError as error:
        if not is_out_of_space(error):
            raise
        if not (is_torn_tail and _cut(fs, path, size_bytes)):
            raise _no_room(error, path, size_bytes) from error


def _cut(fs: FileSystem, path: AnyPath, size_bytes: int) -> bool:
    """Truncate a file in place, unless it has other names or the file system needs space even for that. Returns whether
    it was done. Raises StorageError."""
    try:
        fs.truncate(path, size_bytes)
    except StorageError as error:
        if error.errno != errno.EMLINK and not is_out_of_space(error):
            raise
        return False
    return True


def _free_bytes(path: AnyPath) -> float:
    """What a user may still write to the file system of `path`; infinite if it does not tell."""
    try:
        status = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return math.inf
    return status.f_bavail * status.f_frsize if status.f_blocks else math.inf


def _no_room(error: StorageError, path: AnyPath, size_bytes: int) -> StorageError:
    """The error for a file that cannot be shortened because `size_bytes` bytes of it are copied first."""
    is_shared = os.stat(path).st_nlink > 1
    why = "it has other names (hard links, as of a hot backup)" if is_shared else "readers may hold the truncated bytes"
    return StorageError(
        f"cannot truncate the file after byte {size_bytes}: there is no room for a copy of what stays, which is needed "
        f"because {why}", file=path, errno=error.errno, hint=_free(size_bytes, path),
    )


# A file of a few bytes takes a block, and is seldom the last that an opening or a first append writes.
_OTHER_FILES_BYTES = 64 << 10


def _free(size_bytes: int, path: AnyPath) -> str:
    """What to do if `size_bytes` bytes more find no space."""
    free = _free_bytes(path)
    # With a quota the file system has room, and nobody knows how much of it is ours.
    missing = size_bytes if free >= size_bytes else size_bytes - int(free)
    missing = max(missing, _OTHER_FILES_BYTES)
    return f"free at least {missing} bytes on that file system, and run the same command again"


def copy_file(fs: FileSystem, source: AnyPath, target: AnyPath, size_bytes: int | None = None) -> None:
    """Create `target` with the bytes of `source`, or the first `size_bytes` of them, and its mtime; synced.

    (A segment without timestamps is as old as its file.) Nobody else may read the copy who could not read the source.
    The caller syncs the directory.
    """
    mode = stat.S_IMODE(os.stat(source).st_mode) & 0o666 | 0o600
    with Mapping(source) as whole, fs.create(target, mode=mode) as file:
        raw = memoryview(whole)[:size_bytes]
        for at in range(0, len(raw), _COPY_BYTES):
            file.append(raw[at : at + _COPY_BYTES])
        fs.set_mtime(target, os.stat(source).st_mtime_ns)
        file.sync()


def have_same_bytes(one: AnyPath, other: AnyPath) -> bool:
    """Whether two files have the same contents."""
    if os.stat(one).st_size != os.stat(other).st_size:
        return False
    with Mapping(one) as first, Mapping(other) as second:
        ours, theirs = memoryview(first), memoryview(second)
        return all(
            ours[at : at + _COPY_BYTES] == theirs[at : at + _COPY_BYTES] for at in range(0, len(ours), _COPY_BYTES)
        )


def write_again(fs: FileSystem, path: AnyPath, position: int = 0) -> None:
    """Write the bytes of `path` from `position` on to the disk, durably, even if a sync of them failed before.

    After a failed sync the system may hold pages that it takes for written: they can be read, but no later sync writes
    them. Writing the same bytes over themselves ensures that they are written. A crash on the way changes no sector
    that was on the disk already.
    """
    with Mapping(path) as whole, fs.open_write(path) as file:
        raw = memoryview(whole)
        for at in range(position, len(raw), _COPY_BYTES):
            file.write_at(at, bytes(raw[at : at + _COPY_BYTES]))
        file.sync()


def unshare(fs: FileSystem, path: AnyPath) -> None:
    """Call before writing to a file in place: if it has other hard links (a hot backup), `path` gets its own copy.

    Does nothing if the file does not exist.
    """
    try:
        links = os.stat(path).st_nlink
    except FileNotFoundError:
        return
    if links > 1:
        with Mapping(path) as whole:
            write_atomically(fs, path, memoryview(whole))


def make_directories(fs: FileSystem, path: AnyPath) -> None:
    """Make a directory and its missing parents, durably.

    An existing directory is left alone. But if it is empty, the process that made it may have been killed before it
    synced the name: so the name is synced before the directory is used.

    Raises InvalidArgumentError for a URL, and for a new directory named `~`; StorageError for a broken symbolic link.
    """
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        if begins_as_url(os.path.basename(path)):
            raise url_error(path, "name a directory; `seglog backup create` copies one to a store")
        if os.path.islink(path):
            raise StorageError(
                "expected a directory, found a symbolic link that leads to none", file=path, errno=errno.EEXIST,
                hint="make the directory where the link leads (`readlink -f`), or choose another path",
            )
        if os.path.basename(path) == "~":
            # (A directory of this name is hard to be rid of: `rm -r ~` removes the home directory.)
            raise InvalidArgumentError(
                "only a shell makes ~ your home directory: here, it would be a directory of this name", file=path,
                hint="pass os.path.expanduser(path), or the whole path",
            )
        missing.append(path)
        path = os.path.dirname(path)
    if _is_empty(path):
        _sync_name(fs, path)
    for directory in reversed(missing):
        _make(fs, directory)


def make_directory(fs: FileSystem, path: AnyPath) -> None:
    """The same for one directory whose parent exists and is not empty."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        _make(fs, path)
    elif _is_empty(path):
        _sync_name(fs, path)


def _make(fs: FileSystem, directory: str) -> None:
    """Make a directory durably. If another process makes it at this moment, that one is used."""
    try:
        fs.mkdir(directory)
    except StorageError as error:
        if error.errno != errno.EEXIST or not os.path.isdir(directory):
            raise
    fs.sync_directory(os.path.dirname(directory))


def _is_empty(directory: str) -> bool:
    with refusals("list", directory), os.scandir(directory) as entries:
        return next(entries, None) is None


def _sync_name(fs: FileSystem, directory: str) -> None:
    try:
        fs.sync_directory(os.path.dirname(directory))
    except StorageError as error:
        # If we may not read a directory, we have not made anything in it.
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise


def _new_scratch(fs: FileSystem, path: str, like: AnyPath | None, wanted_mode: int | None) -> WritableFile:
    """A new file `<path>.tmp` with the access rights of `path`."""
    scratch = path + SCRATCH_SUFFIX
    old = None if wanted_mode is not None else _regular_file(path) or (None if like is None else _regular_file(like))
    # Before it has those of the old one, nobody else can open it.
    mode = wanted_mode or (0o666 if old is None else 0o600)
    try:
        file = fs.create(scratch, mode=mode)
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise
        fs.unlink(scratch)      # left by a killed run
        file = fs.create(scratch, mode=mode)
    if old is not None:
        try:
            fs.take_access(file, old)
        except BaseException:
            file.close()
            raise
    return file


def _regular_file(path: AnyPath) -> os.stat_result | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _keep(fs: FileSystem, path: str, backup: str) -> None:
    """Give the file at `path` the second name `backup`; `path` exists at every moment."""
    if os.path.lexists(backup):
        fs.unlink(backup)
    fs.link(path, backup)
