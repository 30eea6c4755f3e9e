"""Errors of the operating system, in words for an operator.

One table turns an errno into what happened and what to do. Every room that touches a path uses it, readers too, so that
no bare OSError reaches a user.
"""
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from seglog.errors import InvalidArgumentError, StorageError
from seglog.late_import import late

Result = TypeVar("Result")

_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:(/|\\Z)")       # with one slash, if it became a path

_REFUSALS = {
    errno.ENOSPC: ("no space is left on the device", "free space on that file system, and run the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free space or raise the quota, and run the same command again"),
    errno.EFBIG: ("the file would be larger than this file system or limit allows",
                  "check `ulimit -f` and the file system's largest file"),
    errno.EACCES: ("permission denied", "run as the user who owns the files, or correct the permissions"),
    errno.EPERM: ("operation not permitted", "run as the user who owns the files; look for an immutable flag (lsattr)"),
    errno.EROFS: ("the file system is read-only", "choose a target on a writable file system, or remount it"),
    errno.EIO: ("the device reported an input/output error",
                "the disk may be failing: look at the kernel log, and work on a copy on another disk"),
    errno.ESTALE: ("the network file system lost the file", "mount it again, then run again"),
    errno.EISDIR: ("expected a file, found a directory", "check the path; move the directory away"),
    errno.ENOTDIR: ("expected a directory, found a file", "check the path; move the file away"),
    errno.ENOENT: ("no such file or directory", "check the path"),
    errno.EEXIST: ("it exists already", "choose another target, or move the existing one away"),
    errno.ENOTEMPTY: ("the directory is not empty", "choose another target, or move the existing one away"),
    errno.EXDEV: ("source and target are on different file systems", "choose a target on the same file system"),
    errno.ELOOP: ("expected a file, found a symbolic link, or the links form a loop",
                  "put the file itself there, because seglog does not write through links; or check where the links of "
                  "this path lead"),
    errno.ENAMETOOLONG: ("the name is too long for this file system", "choose a shorter path"),
    errno.EADDRINUSE: ("the address is already in use",
                       "pass another port, or port 0 for any free one; or stop the program that has it"),
    errno.EBUSY: ("it is in use", "stop the program that uses it, then run again"),
    errno.EMFILE: ("too many open files in this process", "raise `ulimit -n`"),
    errno.ENFILE: ("too many open files on this machine", "raise fs.file-max"),
    errno.EMLINK: ("too many hard links to one file", "use a target on another file system"),
    errno.ENOMEM: ("the kernel is out of memory or maps", "free memory, or raise vm.max_map_count"),
    errno.ENOLCK: ("the system cannot grant a record lock (ENOLCK)",
                   "the file system has no POSIX locks (NFS: its lock daemon must run), or the lock table is full"),
    errno.EOPNOTSUPP: ("this file system cannot do that", "use a local file system such as ext4 or xfs"),
    errno.ENOSYS: ("this system cannot do that", "use a newer kernel"),
    errno.EINVAL: ("this file system cannot do that", "use a local file system such as ext4 or xfs"),
}
# What a process may need besides its maps, for what it reads there: the rows of a scan, stacks of its threads.
_BESIDE_MAPS_BYTES = 128 << 20
_ELSE_HINT = "see the message of the operating system"


def storage_error(error: OSError, doing: str, path: str | os.PathLike[str]) -> StorageError:
    """The StorageError for `error`. `doing` completes "cannot ...": "write", "rename to /b"."""
    number = error.errno
    words, hint = _REFUSALS.get(number or 0, (error.strerror or str(error), _ELSE_HINT))
    if number == errno.ENOMEM:
        words, hint = _of_limited_memory(path) or (words, hint)
    if number == errno.ENOENT:
        hint = hint_of_topic(path) or hint
    return StorageError(f"cannot {doing}: {words}", file=path, hint=hint, errno=number)


def _of_limited_memory(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """A message and hint if the process has used up its address space limit; None if it has none, or enough is left."""
    try:
        late("resource")
        import resource  # not on Windows

        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_bytes == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm", "rb") as file:
            used_bytes = int(file.read().split()[0]) * resource.getpagesize()
        file_bytes = os.stat(path).st_size
    except (ImportError, OSError, ValueError, IndexError):
        return None
    if used_bytes + file_bytes <= limit_bytes:
        return None
    # A reader that goes on to the next segment has both mapped for a moment; a scan that plans ahead has a third.
    needed_kib = -(-(used_bytes + 3 * file_bytes + _BESIDE_MAPS_BYTES) // 1024)
    return (
        f"a file of {file_bytes >> 20} MiB does not fit into the address space of this process, which is limited to "
        f"{limit_bytes >> 20} MiB (RLIMIT_AS), {used_bytes >> 20} MiB of it in use",
        f"files are mapped as a whole, up to three of them at a time: {needed_kib} KiB are enough (`ulimit -v "
        f"{needed_kib}`), or remove the limit (`ulimit -v unlimited`); limit resident memory by a cgroup instead",
    )


def missing(path: str | os.PathLike[str]) -> StorageError:
    """The error for a path that must exist and does not, in the words that the system's own error gets."""
    return storage_error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), "open", path)


def hint_of_topic(path: str | os.PathLike[str]) -> str | None:
    """The hint if a missing path is a topic's, `data/orders`, whose partitions are there: `data/orders-0`."""
    where, name = os.path.split(os.fspath(path))
    # (ValueError: there is none.)
    try:
        found = min(entry for entry in os.listdir(where or ".") if re.fullmatch(f"{re.escape(name)}-[0-9]+", entry))
    except (OSError, ValueError):
        return None
    return f"a topic has a directory for each partition, such as {os.path.join(where, found)}"


def hint_of_log_dir(path: str | os.PathLike[str]) -> str | None:
    """The hint if a directory without segments is a log dir: one of its partitions."""
    try:
        found = min(entry for entry in os.listdir(path) if re.fullmatch(r".+-[0-9]+", entry))
    except (OSError, ValueError):
        return None
    return f"it holds directories of partitions: pass one of them, such as {os.path.join(path, found)}"


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path as a caller gave it. Raises InvalidArgumentError if it is something else."""
    try:
        found = Path(path)
    except TypeError:
        raise InvalidArgumentError(
            f"a path must be text or a Path, not {type(path).__name__}",
            hint="pass os.fsdecode(path)" if isinstance(path, bytes) else 'for example "data/orders-0"',
        ) from None
    if "\0" in str(found):
        raise InvalidArgumentError(f"a path must not contain a null byte: {str(found)!r}")
    return found


def begins_as_url(path: str) -> bool:
    """Whether a path, or a name in it, is a URL or the beginning of one: as a path, s3://bucket/logs is a directory
    `s3:` of this machine."""
    return _SCHEME.match(path) is not None


def url_error(path: str | os.PathLike[str], hint: str) -> InvalidArgumentError:
    """The error for a URL in place of a path."""
    return InvalidArgumentError("a directory of this machine is needed here, not a URL", file=path, hint=hint)


def is_out_of_space(error: BaseException | None) -> bool:
    """Whether an error means that the disk or quota is full: then deleting may help."""
    return isinstance(error, StorageError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def with_room(write: Callable[[], Result], make_room: Callable[[], bool]) -> Result:
    """Call `write`, which a failure leaves undone. If the disk is full and `make_room` finds something to give back,
    call it once more."""
    try:
        return write()
    except StorageError as error:
        if not is_out_of_space(error) or not make_room():
            raise
        return write()


class refusals:
    """In this block, an OSError becomes a StorageError that says what was tried and where.

        with refusals("list", path):
            names = os.listdir(path)

    A class, not a generator: it is on the write path, and a class is cheaper.
    """

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: str | os.PathLike[str]) -> None:
        self._doing = doing
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise storage_error(error, self._doing, self._path) from error
