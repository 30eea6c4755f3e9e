"""All operations that change the disk, behind one object that a test can replace.

A room takes a `FileSystem` in its constructor and changes files only through it; reading bypasses it (fs.mapping,
os.listdir). `OsFileSystem` is the real one. The doubles in tests/support/crash/faultfs.py record every change, lose
what was not synced, and return errors.

Whole directories are only removed by fs.removal. `cut` truncates a file, which may be mapped: fs.aside.shorten says
when that may be, and otherwise writes a shorter file beside it.

Errors are StorageError with errno and the path. docs/durability.md says what is assumed of the operating system.
"""
import contextlib
import errno
import fcntl
import functools
import os
import stat
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from seglog._kernels.appended_file import AppendedFile
from seglog._kernels.appended_file import reserve as reserve_space
from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.refusals import refusals, storage_error
from seglog.late_import import late

if TYPE_CHECKING:
    from typing_extensions import Buffer

AnyPath = str | os.PathLike[str]

# The most bytes for one write call: macOS refuses INT_MAX and more, Linux writes only a part of them.
_WRITE_BYTES_MAX = 1 << 30
# A file without reserved space may still use more of the disk than its bytes: the rest of a block, its map of blocks.
_RELEASE_BYTES_MIN = 64 << 10
# More threads than this gain nothing: they share the same commits (measured on ext4 with 8 to 64).
_SYNCS_AT_ONCE = 8
_BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)


class WritableFile(AppendedFile, ABC):
    """One file open for writing. It knows where the next append goes, and writes by position only.

    After a failed write or sync, what is on the disk is unknown, and a second fsync may succeed without having written
    anything (the kernel drops the dirty pages and forgets the error): every later call except close() is refused with
    the message of the first error. The caller must open the file again and recover.

    The caller must order the appends of several threads; syncs may run at the same time.
    """

    _failure: StorageError | OSError | None     # an OSError only if an interrupt came before it was converted

    def __init__(self, path: AnyPath, position: int) -> None:
        self.path = os.fspath(path)
        self._position = position

    @property
    def position(self) -> int:
        """Where the next append begins: the end of what was there at opening and has been appended since."""
        return self._position

    @property
    def unsynced(self) -> bool:
        """Whether anything may be missing on the disk: what was written since the last sync began, or beside it, and
        after a failure all."""
        return self.has_unsynced_writes or self._failure is not None

    @property
    def closed(self) -> bool:
        return self._closed

    def append(self, *buffers: "Buffer") -> int:
        """Write all bytes of `buffers` at the end. Returns the position where they begin."""
        begin = self._position
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        self._write_all(views, begin)
        self._position = begin + sum(view.nbytes for view in views)
        return begin

    def write_at(self, position: int, *buffers: "Buffer") -> None:
        """Write all bytes of `buffers` at `position`; the position of the next append does not change."""
        self._write_all([memoryview(buffer).cast("B") for buffer in buffers], position)

    def preallocate(self, size_bytes: int) -> None:
        """Extend the file to `size_bytes` with zeros. Never makes it shorter."""
        with self._poisoning():
            self._write_with(self._grow, size_bytes)

    def reserve(self, size_bytes: int) -> bool:
        """Reserve disk space for the file to grow to `size_bytes`; its length and bytes do not change.

        Appends then find their blocks allocated, many at a time. A hint, not a durable step: returns False if it is
        refused, which is no error. `release` gives back unused space; after a crash it stays with the file.
        """
        return False

    def release(self) -> None:
        """Give back the space that was reserved past the end of the file. Also a hint."""

    def give_back(self) -> bool:
        """Close the descriptor until the file is used again. False: not possible or not safe, nothing was done.

        It is safe if everything written was synced: a new descriptor may not learn of earlier errors. Call it alone.
        """
        return False

    def take_back(self) -> None:
        """Open the descriptor again if it was given back; every use of the file does this. Raises StorageError."""

    def close(self) -> None:
        """Close the descriptor; does not make anything durable. Idempotent."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_all(self, views: list[memoryview], position: int) -> None:
        if position < 0:
            raise ValueError(f"a write at position {position}, below 0")
        views = [view for view in views if view.nbytes]
        with self._poisoning():
            if views:
                self._write_with(self._write, views, position)

    def _write_with(self, write: Callable[..., None], *args: Any) -> None:
        self.note_write()
        try:
            write(*args)
        finally:
            self.note_write()       # a sync that began meanwhile does not cover it

    def _sync_all(self, data_only: bool) -> None:
        with self._poisoning():
            writes = self._writes
            self._sync(data_only=data_only)
            self.note_sync(writes)

    def _poisoning(self) -> "_Poisoning":
        if self._closed or self._failure is not None:
            self._refuse()
        if self._fd < 0:
            self.take_back()    # outside of _Poisoning: if this fails, nothing was written
        return _Poisoning(self)

    def check(self) -> None:
        """Raise StorageError if a write or sync has failed."""
        if self._failure is not None:
            self._refuse()

    def _refuse(self) -> None:
        """Raise the error for a call on a closed or failed file."""
        if self._failure is None or self._closed:
            raise StorageError("cannot write: the file was closed", file=self.path, hint="open it again")
        first = self._failure
        raise StorageError(
            f"cannot continue after an error: {first.what if isinstance(first, StorageError) else first}",
            file=self.path,
            hint="it is unknown what is on the disk: open the log again, which recovers it",
            errno=first.errno,
        ) from first

    def _poison(self, error: StorageError) -> None:
        # A copy: the error itself holds the frames, whose file and buffers would then hold each other.
        self._failure = StorageError(error.what, file=error.file, hint=error.hint, errno=error.errno)

    # --- what an implementation must do completely, or raise StorageError ------------------

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor, for locks and for reading back."""

    @abstractmethod
    def _write(self, views: list[memoryview], position: int) -> None: ...

    @abstractmethod
    def _grow(self, size_bytes: int) -> None: ...

    @abstractmethod
    def _sync(self, *, data_only: bool) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class _Poisoning:
    """Remembers a StorageError that leaves the block, so that the file is not used again."""

    __slots__ = ("_file",)

    def __init__(self, file: WritableFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            self._file._poison(error)


class FileSystem(ABC):
    """The changes that seglog makes. After a crash, each method's step is done or not done, never half done.

    A change is durable only after the sync that covers it: a file's bytes after its sync, a name (created, renamed,
    linked, removed) after sync_directory of the directory that holds it.
    """

    @abstractmethod
    def create(self, path: AnyPath, within: int | None = None, mode: int = 0o666) -> WritableFile:
        """Create an empty file. Refused (EEXIST) if anything has that name, even a symbolic link.

        `within`: a descriptor of the directory of `path`. The name is then created in that directory, even if the path
        leads elsewhere by now. `mode`: its permissions, less those of the umask.
        """

    @abstractmethod
    def open_write(self, path: AnyPath, position: int | None = None) -> WritableFile:
        """Open an existing file, keeping its bytes; appends begin at `position`, or at its end.

        Refused (ELOOP) if the name is a symbolic link: we would write to a file that is elsewhere. So is what is no
        regular file, a pipe for one.
        """

    @abstractmethod
    def sync_file(self, path: AnyPath) -> None:
        """Sync a file that is not open for writing here: its writer closed it, or it was copied."""

    def sync_files(self, paths: Sequence[AnyPath]) -> None:
        """Sync several such files. Raises the error of the first that cannot be synced."""
        for path in paths:
            self.sync_file(path)

    @abstractmethod
    def sync_directory(self, path: AnyPath) -> None:
        """Make the names in a directory durable."""

    def sync_directories(self, paths: Sequence[AnyPath]) -> None:
        """The same for several. Raises the error of the first that cannot be synced."""
        for path in paths:
            self.sync_directory(path)

    @abstractmethod
    def rename(self, source: AnyPath, target: AnyPath) -> None:
        """Give a file or directory a new name, which must be free (EEXIST)."""

    @abstractmethod
    def replace(self, source: AnyPath, target: AnyPath) -> None:
        """Give a file a new name; an existing file with that name is removed in the same step."""

    @abstractmethod
    def exchange(self, one: AnyPath, other: AnyPath) -> None:
        """Exchange two names in one step. Refused if the file system cannot do that."""

    @abstractmethod
    def link(self, source: AnyPath, target: AnyPath) -> None:
        """Give a file a second name, which must be free."""

    @abstractmethod
    def unlink(self, path: AnyPath, within: int | None = None) -> None:
        """Remove a file's name. Maps and open descriptors keep its bytes. `within`: as for `create`."""

    @abstractmethod
    def mkdir(self, path: AnyPath) -> None:
        """Make an empty directory in an existing one."""

    @abstractmethod
    def rmdir(self, path: AnyPath, within: int | None = None) -> None:
        """Remove an empty directory. `within`: as for `create`."""

    @abstractmethod
    def truncate(self, path: AnyPath, size_bytes: int) -> None:
        """Truncate a file to `size_bytes`, durably; it needs no space. Call it through fs.aside.shorten, or for a file
        that nobody else can have opened: a process that has mapped it loses those bytes.

        Refused (EINVAL) if the file is shorter, (EMLINK) if it has other names, (ELOOP) if the name is a symbolic link.
        """

    @abstractmethod
    def set_mtime(self, path: AnyPath, mtime_ns: int) -> None:
        """Set a file's modification time: Kafka's retention uses it if a segment has no timestamps."""

    # What a crash may do to permissions is in no model: they are the same before and behind each change of bytes.

    def take_access(self, file: WritableFile, old: os.stat_result) -> None:
        """Give `file`, which is to replace another one, the permissions of the other, and if we may, its owner."""
        fd, mode = file.fileno(), stat.S_IMODE(old.st_mode)
        with refusals("set the permissions of", file.path):
            now = os.fstat(fd)
            if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.fchown(fd, old.st_uid, old.st_gid)
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.EINVAL, errno.EACCES):
                        raise
                    mode &= ~0o070      # that was for another group
            os.fchmod(fd, mode)

    def set_mode(self, path: AnyPath, mode: int) -> None:
        """Set the permissions of a file or directory."""
        with refusals("set the permissions of", path):
            os.chmod(path, mode)


class OsFile(WritableFile):
    """A descriptor of the operating system. Made by OsFileSystem."""

    _left: os.stat_result | None = None     # if given back: the file's status at that time
    _process_id = -1                        # an interrupt may end __init__ before it is known

    def __init__(self, path: AnyPath, fd: int, position: int) -> None:
        self.path = os.fspath(path)
        self._position = position
        self._fd = fd
        self._process_id = os.getpid()

    def fileno(self) -> int:
        self.take_back()
        return self._fd

    def give_back(self) -> bool:
        if self._fd < 0 or self.unsynced:
            return False
        with refusals("stat", self.path):
            self._left = os.fstat(self._fd)
        self.close_descriptor(os.close)
        return True

    def take_back(self) -> None:
        left = self._left
        if left is None or self._closed:
            return
        if self._fd >= 0:       # an interrupt kept it from being closed
            self._left = None
            return
        try:
            with refusals("open again for writing", self.path):
                self.open_descriptor(os.open, self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                found = os.fstat(self._fd)
            if not os.path.samestat(left, found) or left.st_size != found.st_size:
                raise StorageError(
                    "the file was replaced or changed while it was closed to save descriptors: "
                    f"{left.st_size} bytes then, {found.st_size} now", file=self.path,
                    hint="close this log, find out what changes its files, and open it again, which recovers it",
                )
            self._left = None
        except BaseException:
            if self._left is not None:      # never write to a file that was not compared
                self.close_descriptor(os.close)
            raise

    def _sync_all(self, data_only: bool) -> None:
        if self._left is None or self._fd >= 0:     # otherwise all was synced before it was given back
            super()._sync_all(data_only)

    def reserve(self, size_bytes: int) -> bool:
        if self._fd < 0:
            self.take_back()
        return not self._closed and reserve_space(self._fd, self._position, size_bytes - self._position)

    def release(self) -> None:
        if self._fd < 0:
            self.take_back()
        with contextlib.suppress(OSError):
            status = os.fstat(self._fd)
            if status.st_blocks * 512 - status.st_size >= _RELEASE_BYTES_MIN:
                # Truncating to the same length: no byte is lost, but file systems free the space after it.
                os.ftruncate(self._fd, status.st_size)

    def _refuse_write(self, number: int) -> NoReturn:
        """A write of AppendedFile failed with this errno."""
        self._fail("write", OSError(number, os.strerror(number)))

    def _refuse_sync(self, number: int) -> NoReturn:
        """A sync of AppendedFile failed with this errno."""
        self._fail("sync", OSError(number, os.strerror(number)))

    def _fail(self, what: str, error: OSError) -> NoReturn:
        refusal = storage_error(error, what, self.path)
        self._poison(refusal)
        try:
            raise refusal from error
        finally:
            del refusal, error      # otherwise this frame and the error keep each other, and the maps of all callers

    def _write(self, views: list[memoryview], position: int) -> None:
        with refusals("write", self.path):
            while views:
                # A short write is no error yet: the next call continues, or reports the reason.
                written = os.pwritev(self._fd, _one_call(views), position)
                if written == 0:
                    raise OSError(errno.EIO, "the system wrote nothing")
                views, position = _rest_of(views, written), position + written

    def _grow(self, size_bytes: int) -> None:
        with refusals("preallocate", self.path):
            if os.fstat(self._fd).st_size >= size_bytes:
                return
            if sys.platform == "linux":
                os.posix_fallocate(self._fd, 0, size_bytes)
            else:
                os.ftruncate(self._fd, size_bytes)      # longer, as checked above

    def _sync(self, *, data_only: bool) -> None:
        with refusals("sync", self.path):
            _sync_descriptor(self._fd, data_only=data_only)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self.close_descriptor(os.close)
            except OSError as error:
                raise storage_error(error, "close", self.path) from error

    def _close(self) -> None:
        self.close()

    def _collected(self) -> None:
        """The file was garbage-collected without being closed."""
        if os is None:      # the interpreter has ended, and its modules are empty
            return
        # An object that is collected with it may close it later: by then the descriptor may be another file's.
        self._closed = True
        self.close_descriptor(os.close)
        if self._process_id == os.getpid():     # otherwise a fork's copy, which is not the fork's to close
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2, source=self)


class OsFileSystem(FileSystem):
    """The file system of this machine."""

    def create(self, path: AnyPath, within: int | None = None, mode: int = 0o666) -> OsFile:
        # O_EXCL does not follow symbolic links either.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:        # not `refusals`: its calls would cost as much as the system's
            if within is None:
                return OsFile(path, os.open(path, flags, mode), 0)
            return OsFile(path, os.open(os.path.basename(path), flags, mode, dir_fd=within), 0)
        except OSError as error:
            raise storage_error(error, "create", path) from error

    def open_write(self, path: AnyPath, position: int | None = None) -> OsFile:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                return OsFile(path, fd, status.st_size if position is None else position)
            os.close(fd)
        except OSError as error:
            raise storage_error(error, "open for writing", path) from error
        raise StorageError(
            "cannot open for writing: not a regular file (a pipe, socket or device)",
            file=path, hint="check the path; remove it if it does not belong there",
        )

    def sync_file(self, path: AnyPath) -> None:
        self._sync_path(path, os.O_RDONLY)

    def sync_files(self, paths: Sequence[AnyPath]) -> None:
        _sync_at_once(self.sync_file, paths)

    def sync_directory(self, path: AnyPath) -> None:
        self._sync_path(path, os.O_RDONLY | os.O_DIRECTORY)

    def sync_directories(self, paths: Sequence[AnyPath]) -> None:
        _sync_at_once(self.sync_directory, paths)

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        with refusals(f"rename to {os.fspath(target)}", source):
            try:
                _rename_with_flag(source, target, linux_flag=_RENAME_NOREPLACE, macos_flag=_RENAME_EXCL)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                # Not supported by this file system. Check first; the locks exclude others in between.
                if os.path.lexists(target):
                    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
                os.rename(source, target)

    def replace(self, source: AnyPath, target: AnyPath) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise storage_error(error, f"rename to {os.fspath(target)}", source) from error

    def exchange(self, one: AnyPath, other: AnyPath) -> None:
        with refusals(f"exchange with {os.fspath(other)}", one):
            _rename_with_flag(one, other, linux_flag=_RENAME_EXCHANGE, macos_flag=_RENAME_SWAP)

    def link(self, source: AnyPath, target: AnyPath) -> None:
        with refusals(f"link as {os.fspath(target)}", source):
            os.link(source, target, follow_symlinks=False)

    def unlink(self, path: AnyPath, within: int | None = None) -> None:
        try:
            os.unlink(path if within is None else os.path.basename(path), dir_fd=within)
        except OSError as error:
            raise storage_error(error, "remove", path) from error

    def mkdir(self, path: AnyPath) -> None:
        with refusals("make a directory", path):
            os.mkdir(path)

    def rmdir(self, path: AnyPath, within: int | None = None) -> None:
        with refusals("remove the directory", path):
            os.rmdir(path if within is None else os.path.basename(path), dir_fd=within)

    def truncate(self, path: AnyPath, size_bytes: int) -> None:
        with refusals("truncate", path):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if not 0 <= size_bytes <= status.st_size:
                    raise OSError(errno.EINVAL, f"it has {status.st_size} bytes, not {size_bytes} or more")
                if status.st_nlink > 1:
                    raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
                os.ftruncate(fd, size_bytes)
                _sync_descriptor(fd, data_only=False)
            finally:
                os.close(fd)

    def set_mtime(self, path: AnyPath, mtime_ns: int) -> None:
        with refusals("set the time", path):
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def _sync_path(self, path: AnyPath, flags: int) -> None:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
            try:
                _sync_descriptor(fd, data_only=False)
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error(error, "sync", path) from error


def _sync_at_once(sync: Callable[[AnyPath], None], paths: Sequence[AnyPath]) -> None:
    """A journaling file system commits what waits at the same moment together: one after the other would wait for a
    commit each."""
    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    late("concurrent.futures.thread")
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_SYNCS_AT_ONCE, len(paths)), "seglog-sync") as pool:
        for _ in pool.map(sync, paths):
            pass


# --- system calls that need an explanation --------------------------------------------------


def _sync_descriptor(fd: int, *, data_only: bool) -> None:
    if sys.platform == "darwin":
        try:
            # fsync there leaves the bytes in the drive's cache (fsync(2), macOS).
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)        # a network or foreign file system: nothing better is available
    elif data_only:
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def _one_call(views: list[memoryview]) -> list[memoryview]:
    """The first of `views` that one pwritev accepts: not too many, and not too large together."""
    batch: list[memoryview] = []
    room = _WRITE_BYTES_MAX
    for view in views[:_BUFFERS_MAX]:
        batch.append(view[:room])
        room -= batch[-1].nbytes
        if room == 0:
            break
    return batch


def _rest_of(views: list[memoryview], written: int) -> list[memoryview]:
    """The part of `views` that remains to be written after the first `written` bytes."""
    for slot, view in enumerate(views):
        if written < view.nbytes:
            return [view[written:], *views[slot + 1 :]]
        written -= view.nbytes
    return []


_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2      # linux/fs.h
_RENAME_SWAP, _RENAME_EXCL = 2, 4               # sys/stdio.h of macOS
_AT_FDCWD = -100                                # linux/fcntl.h


@functools.cache
def _system_rename(name: str) -> tuple[Any, Callable[[], int]]:
    """A rename function of the C library, and a function that returns its errno. Raises AttributeError.

    Looked up once: opening a library makes a class, and collecting a class runs Python code in which ^C is lost.
    """
    late("ctypes")
    import ctypes  # not at the top: programs that only read do not need it

    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    paths = [ctypes.c_char_p] if sys.platform == "darwin" else [ctypes.c_int, ctypes.c_char_p] * 2
    function.argtypes = [*(paths * 2 if sys.platform == "darwin" else paths), ctypes.c_uint]
    return function, ctypes.get_errno


def _rename_with_flag(source: AnyPath, target: AnyPath, *, linux_flag: int, macos_flag: int) -> None:
    """renameat2 or renamex_np, which Python does not have. OSError(ENOSYS) if the C library lacks it."""
    old, new = os.fsencode(source), os.fsencode(target)
    is_macos = sys.platform == "darwin"
    try:
        rename, last_errno = _system_rename("renamex_np" if is_macos else "renameat2")
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    result = rename(old, new, macos_flag) if is_macos else rename(_AT_FDCWD, old, _AT_FDCWD, new, linux_flag)
    if result != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def checked_fs(fs: FileSystem | None) -> FileSystem:
    """The file system that a caller gave; this machine's for None. Raises InvalidArgumentError if it is none."""
    if fs is None:
        return OsFileSystem()
    if isinstance(fs, type) or not callable(getattr(fs, "sync_directory", None)):
        raise InvalidArgumentError(
            f"fs must be a seglog.fs.files.FileSystem, not {repr(fs)[:80]}",
            hint="leave it out: it is for tests, which make changes fail",
        )
    return fs
