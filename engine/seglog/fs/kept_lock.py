"""An exclusive lock of a file that needs no descriptor while it is held. docs/formats/partition_lock.md

A process that holds record locks needs a descriptor for each file, and most systems allow it only 1024. Linux has locks
that belong to the open file description (F_OFD_SETLK); they and the record locks of other processes exclude each other.
When the descriptor is closed, a map keeps the description (_kernels.lock_map), and with it the lock.

Not every file system keeps it: overlayfs maps the file below its own, and the lock goes with the descriptor. So after
locking we check through another descriptor whether the lock is still there. One byte far past the end of the file, a
different one for each lock, is locked for reading and all others for writing: no other lock looks like that. If the
lock is gone, the caller takes a record lock and keeps its descriptor.
"""
import contextlib
import errno
import fcntl
import os
import struct
import sys
import time

from seglog._kernels.lock_map import LockMap
from seglog.fs.files import WritableFile
from seglog.fs.refusals import refusals

# struct flock of fcntl.h with a 64-bit off_t. Start and length 0: the whole file, however long.
FLOCK_FIELDS = (
    ("l_start", "l_len", "l_pid", "l_type", "l_whence")
    if sys.platform == "darwin"
    else ("l_type", "l_whence", "l_start", "l_len", "l_pid")
)
FLOCK = struct.Struct("qqihh" if sys.platform == "darwin" else "hhqqi4x")
NOTE_BYTES = 128                        # a fixed size, so that a shorter note covers a longer one
_MARK_FROM, _MARK_BYTES = 1 << 40, 5
_PID_DIGITS_MAX = 9                     # Linux counts to 4 194 304; os.kill may not accept longer numbers
# A killed process may keep its maps for a moment after it is gone, while another one reads its memory.
_DEAD_WAIT_S, _RETRY_S = 1.0, 0.001
# The errors of a system without such locks, of a file that cannot be mapped, and of a process with too many maps.
_UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENODEV, errno.ENOMEM, errno.EACCES, errno.EPERM)

# Devices on which a lock went with its descriptor. It only grows.
_forgetful: set[int] = set()


class KeptLock:
    """A lock made by `try_lock`. Held until close(), or until the process ends. A forked child does not have it."""

    def __init__(self, file: WritableFile, mark: int, kept_by: LockMap) -> None:
        self.path = file.path
        self._file = file
        self._mark = mark
        self._map = kept_by

    def settle(self) -> bool:
        """Close the descriptor. False: the lock went with it, or the name is now another file's; nothing is held."""
        locked = os.fstat(self._file.fileno())
        self._file.close()
        with refusals("check the lock", self.path):
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                is_same = os.path.samestat(locked, os.fstat(fd))
                kept = flock(fd, fcntl.F_GETLK, fcntl.F_WRLCK, self._mark, 1)["l_type"] == fcntl.F_RDLCK
            finally:
                os.close(fd)
        if is_same and not kept:
            _forgetful.add(locked.st_dev)
        if not is_same or not kept:
            self._map.close()
            return False
        return True

    def close(self) -> None:
        """Release the lock. Idempotent; may also be called in a child process."""
        self._map.close()
        self._file.close()


def host_name() -> str:
    """As socket.gethostname, without importing socket: opening a log needs nothing else of it."""
    return os.uname().nodename


def try_lock(file: WritableFile) -> KeptLock | None:
    """Lock all of `file`, if the system has such locks; otherwise None, and the caller must use a record lock.

    Raises BlockingIOError if another process holds it, StorageError. Call `settle` when nothing needs the file any
    more.
    """
    if sys.platform != "linux":
        return None
    fd = file.fileno()
    if os.fstat(fd).st_dev in _forgetful:
        return None
    mark = _MARK_FROM + int.from_bytes(os.urandom(_MARK_BYTES))
    try:
        _lock_patiently(fd)
        flock(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, mark, 1)
        return KeptLock(file, mark, LockMap(fd))
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno not in _UNABLE:
            raise
        with contextlib.suppress(OSError):
            flock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
        return None


def _lock_patiently(fd: int) -> None:
    deadline = None
    while True:
        try:
            flock(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            deadline = deadline or time.monotonic() + _DEAD_WAIT_S
            if time.monotonic() > deadline or not _is_gone(os.pread(fd, NOTE_BYTES, 0)):
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock") from error
        time.sleep(_RETRY_S)


def _is_gone(note: bytes) -> bool:
    """Whether the process that wrote the note ran on this machine, and has ended."""
    pid, host = noted_process(note)
    if pid is None or host != host_name():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def noted_process(note: bytes) -> tuple[int | None, str]:
    """Process id and host from the note of a lock file; None and "" if it has none."""
    first, _, _ = note.decode("ascii", "replace").strip().partition("\n")
    pid, _, host = first.partition(" ")
    is_one = pid.isdigit() and len(pid) <= _PID_DIGITS_MAX and host.isprintable()
    return (int(pid), host) if is_one else (None, "")


def flock(fd: int, command: int, kind: int, start: int = 0, size: int = 0) -> dict[str, int]:
    """Make one fcntl call for locks. Returns the fields of struct flock. `size` 0: to the end, however far it moves.

    Raises OSError.
    """
    given = {"l_type": kind, "l_whence": os.SEEK_SET, "l_start": start, "l_len": size}
    answer = fcntl.fcntl(fd, command, FLOCK.pack(*(given.get(name, 0) for name in FLOCK_FIELDS)))
    return dict(zip(FLOCK_FIELDS, FLOCK.unpack(answer), strict=True))
