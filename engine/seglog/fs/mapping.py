"""A file's bytes, mapped read-only: every reader and every kernel reads from these.

    with Mapping(path) as bytes_of_log:
        table = scan(Window(bytes_of_log))

A Mapping is a buffer: `memoryview(mapping)`, or a kernel's Window on it. It borrows nothing: the descriptor is closed
at once, and the file may be renamed or unlinked. Its size is that of the file when it was opened; bytes that are
appended later need a new Mapping, or, in a map that was made with `reserve`, `grow_to(size)` by a caller who knows that
the bytes exist. After `close()` it gives out no new views, but existing views keep the pages, and the last one unmaps
them; closing never fails.

Never truncate a file of which somebody may need the end, here or in another process: seglog shortens a file by writing
a shorter one beside it and renaming, except for a torn tail on a full disk (fs.aside.shorten). Kafka does truncate
files: its indexes when a segment rolls, and a replica's log. A load past
the new end finds zeros then, and whoever read from the map raises StorageError: kernels do it by themselves, code that
looks at the bytes calls `check_whole` afterwards, and `with Mapping(...)` does at its end. (With SEGLOG_SIGBUS=off the
process ends with SIGBUS instead.) Pass `copy=True` for an index in a directory that a live broker may own.
"""
import enum
import errno
import mmap
import os
import stat
from collections.abc import Callable
from types import TracebackType
from typing import Self

from seglog._kernels.mapping import FileMap, file_part
from seglog.errors import SeglogError, StorageError
from seglog.fs.handles import OpenHandle
from seglog.fs.refusals import refusals, storage_error

# How much `Mapping.load` reads by one call: more than the system reads ahead, little enough for a cache of the CPU.
_LOAD_BYTES = 256 << 10
# The most that Linux sends in one call.
_SEND_BYTES_MAX = 0x7FFFF000
# No file of a log is larger: positions in it are int32 (FileRecords, AbstractIndex). A sparse file says any size.
_MAPPED_BYTES_MAX = 2**31 - 1
_READ_BYTES_MAX = 1 << 30


class Advice(enum.IntEnum):
    """How the pages will be used (madvise)."""

    NORMAL = mmap.MADV_NORMAL
    SEQUENTIAL = mmap.MADV_SEQUENTIAL    # read ahead more, drop behind sooner
    RANDOM = mmap.MADV_RANDOM            # no read-ahead: a binary search
    WILL_NEED = mmap.MADV_WILLNEED       # start reading now
    DONT_NEED = mmap.MADV_DONTNEED       # out of our resident set; the next touch reads the file again


class Mapping(FileMap):
    """Mapping(path, copy=False, reserve=0): the file's bytes as they are now, read-only.

    `copy` reads them into memory instead of mapping them, from the byte `start` on: for small files that another
    process may truncate.
    `reserve`: bytes of address space, so that a file that grows to that size needs no other map (`grow_to`).
    Raises StorageError if the file cannot be opened, is not a regular file, is larger than any file of a log, or cannot
    be mapped.
    """

    __slots__ = ("__weakref__", "_descriptor", "_identity", "path")

    path: str
    _identity: tuple[int, int]              # device and inode
    _descriptor: "ReadDescriptor | None"

    def __new__(cls, path: str | os.PathLike[str], *, copy: bool = False, reserve: int = 0, start: int = 0) -> Self:
        with refusals("read", path):
            fd, status = _open_regular(path)
            try:
                size = max(status.st_size - start, 0)
                _check_size(path, size, _READ_BYTES_MAX if copy else _MAPPED_BYTES_MAX)
                self = super().__new__(cls, fd, size, copy=copy, reserve=reserve, start=start)
            finally:
                os.close(fd)
        self.path = os.fspath(path)
        self._identity = status.st_dev, status.st_ino
        self._descriptor = None
        return self

    def descriptor(self) -> "ReadDescriptor | None":
        """A descriptor of the mapped file, for system calls that read from it; the same one each time. None if the
        name now belongs to another file, or to none.

        As long as the map lives, no other file can have this inode, so the comparison is reliable.
        """
        if self._descriptor is None:
            try:
                found = ReadDescriptor(self.path)
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    return None
                raise
            status = os.fstat(found.fileno())
            if (status.st_dev, status.st_ino) != self._identity:
                return None
            self._descriptor = found
        return self._descriptor

    def advise(self, advice: Advice, position: int = 0, size: int | None = None) -> None:
        """Tell the kernel how [position, position + size) will be read; to the end without `size`. A hint: no error."""
        self._advise(advice, position, len(self) if size is None else size)

    def load(self, position: int, size: int) -> None:
        """Bring [position, position + size) into the page cache, as far as mapped, unless its last byte is there. A
        hint: no error.

        read() reads ahead in larger steps than page faults do, and what it brings in is mapped by fewer faults later.
        """
        last = min(position + size, len(self)) - 1
        if last < position or self.closed or not hasattr(os, "RWF_NOWAIT"):
            return
        try:
            file = self.descriptor()
            if file is None:
                return
            try:
                os.preadv(file.fileno(), [bytearray(1)], last, os.RWF_NOWAIT)
                return
            except BlockingIOError:
                pass
            buffer = bytearray(_LOAD_BYTES)
            while position <= last and (count := os.preadv(file.fileno(), [buffer], position)) > 0:
                position += count
        # A file system without RWF_NOWAIT, no free descriptor, a bad sector: access to the bytes reports what matters.
        except (OSError, StorageError):
            pass

    def check_whole(self) -> None:
        """Raise StorageError if the file became shorter while bytes of this map were read."""
        if self.is_torn:
            raise StorageError(
                "the file became shorter while it was read, or its disk gave no bytes", file=self.path,
                hint="read it again, if another program writes to it; otherwise check the disk",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None or issubclass(kind, SeglogError):       # which may only be what the zeros led to
            self.check_whole()

    def __repr__(self) -> str:
        return f"<Mapping {self.path} {len(self)} bytes{' closed' if self.closed else ''}>"


class OpenedFile:
    """A small file that other processes replace or change now and then: read once, and again only if it has changed.

    The file stays open until close(): so no successor can have its inode, and the status of the path tells whether it
    is the same file. A missing file counts as unchanged while it is missing. Raises StorageError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._fd = -1
        self._identity: tuple[int, ...] | None = None
        self._size_bytes = 0
        try:
            self._fd, status = _open_regular(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "read", path) from error
        self._identity = _identity_of(status)
        self._size_bytes = status.st_size

    def is_current(self) -> bool:
        """Whether the path still names this file, unchanged."""
        try:
            return _identity_of(os.stat(self._path)) == self._identity
        except FileNotFoundError:
            return self._identity is None
        except OSError as error:
            raise storage_error(error, "check the file", self._path) from error

    def read(self) -> bytes | None:
        """All its bytes; None if there is no file."""
        if self._fd < 0:
            return None
        with refusals("read", self._path):
            return _read_all(self._path, self._fd, self._size_bytes)

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def _identity_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def status_of(path: str | os.PathLike[str]) -> os.stat_result:
    """What the system tells of a file of a log. Raises FileNotFoundError if there is none, StorageError for any other
    error: also if it is a link to nothing, is not a regular file, or is larger than any file of a log."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise storage_error(error, "look at", path) from error
        raise
    except OSError as error:
        raise storage_error(error, "look at", path) from error
    _check_regular(path, status)
    _check_size(path, status.st_size, _MAPPED_BYTES_MAX)
    return status


def _check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise StorageError(
            "cannot read: expected a file, found a directory",
            file=path, hint="check the path; move the directory away",
        )
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(
            "cannot read: not a regular file (a pipe, socket or device)",
            file=path, hint="check the path; remove it if it does not belong there",
        )


def _open_regular(path: str | os.PathLike[str]) -> tuple[int, os.stat_result]:
    """Open a regular file for reading. Call within `refusals`."""
    # O_NONBLOCK: opening a FIFO that has the name of a segment must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        _check_regular(path, status)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


class ReadDescriptor(OpenHandle):
    """A file that is open for reading, and is closed when this object is collected."""

    __slots__ = ("_number",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises StorageError."""
        self._number = -1
        with refusals("read", path):
            self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._number

    def send_to(self, out: int, position: int, size_bytes: int) -> int:
        """Call os.sendfile once, to the descriptor `out`. Returns how many bytes it took, 0 at the end of the file."""
        return os.sendfile(out, self._number, position, min(size_bytes, _SEND_BYTES_MAX))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:     # os is gone when the interpreter ends
        if self._number >= 0:
            close(self._number)


class RegularFile:
    """A regular file that is open for reading until the end of a `with` block. Raises StorageError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with refusals("read", path):
            self._number, status = _open_regular(path)
        self.inode = status.st_ino

    def part(self, position: int, size_bytes: int) -> bytes:
        """The bytes [position, position + size_bytes), fewer at the end of the file."""
        with refusals("read", self._path):
            return _read_all(self._path, self._number, position + size_bytes, position)

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on. Returns how many there are, fewer at the end of the file."""
        done = 0
        with refusals("read", self._path):
            while done < len(view) and (count := os.preadv(self._number, [view[done:]], position + done)):
                done += count
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)


def read_part(path: str, position: int, size_bytes: int) -> bytes:
    """The bytes [position, position + size_bytes) of a file, fewer at its end. Raises StorageError."""
    try:
        return file_part(path, position, size_bytes)
    except OSError as error:
        raise storage_error(error, "read", path) from error


def read_small(path: str | os.PathLike[str], most_bytes: int) -> bytes | None:
    """All bytes of a file that has at most `most_bytes`; None if it has more. Raises StorageError."""
    with refusals("read", path):
        fd, status = _open_regular(path)
        try:
            return os.read(fd, status.st_size) if status.st_size <= most_bytes else None
        finally:
            os.close(fd)


def read_file(path: str | os.PathLike[str], start: int = 0) -> bytes:
    """All bytes of a small file, or those from the byte `start` on.

    Raises FileNotFoundError if there is none, StorageError for any other error: also if it is a link to nothing, is not
    a regular file (`Path.read_bytes` waits forever if a FIFO has no writer), or has more than 1 GiB.
    """
    try:
        fd, status = _open_regular(path)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise storage_error(error, "read", path) from error
        raise
    except OSError as error:
        raise storage_error(error, "read", path) from error
    with refusals("read", path):
        try:
            return _read_all(path, fd, status.st_size, start)
        finally:
            os.close(fd)


def _check_size(path: str | os.PathLike[str], size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise StorageError(
            f"cannot read: it has {size_bytes} bytes, and no file of its kind has more than {most_bytes}",
            file=path, errno=errno.EFBIG, hint="move it away, or get it again from where it was copied",
        )


def _read_all(path: str | os.PathLike[str], fd: int, stop: int, start: int = 0) -> bytes:
    """The bytes [start, stop) of a file, fewer at its end."""
    _check_size(path, stop - start, _READ_BYTES_MAX)
    parts = []
    while start < stop and (part := os.pread(fd, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
