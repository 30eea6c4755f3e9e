"""A Unix socket in a directory, for processes of the same user on the same machine. Linux only.

An address of a socket has at most 108 bytes, so the directory is named by its descriptor: /proc/self/fd/N/queue.sock,
and a socket to connect to by one of its own.
"""
import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Iterator

from seglog.errors import StorageError
from seglog.fs.files import AnyPath
from seglog.fs.refusals import refusals

_PEER = struct.Struct("3i")     # struct ucred: pid, uid, gid
_BACKLOG = 128
# Every socket of this process: a forked child that kept one open would keep the peer from noticing the end of this one.
_OPEN: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
_TURNS: "weakref.WeakSet[_Turn]" = weakref.WeakSet()


# Device and inode of a file.
Identity = tuple[int, int]


def listen(directory: AnyPath, name: str) -> tuple[socket.socket, Identity]:
    """A listening socket with this name, which only this user can connect to, and its file, for `remove`. A socket of
    that name that is left over is replaced: the caller has the lock of the directory. Raises StorageError."""
    path = os.path.join(directory, name)
    _check_system(path)
    with refusals("create the socket", path), _descriptor_of(directory) as fd:
        found = noted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            # Linux gives this mode to the file that `bind` makes.
            os.fchmod(found.fileno(), 0o600)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
            found.bind(f"/proc/self/fd/{fd}/{name}")
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found.listen(_BACKLOG)
        except BaseException:
            found.close()
            raise
        return found, (status.st_dev, status.st_ino)


def connect(directory: AnyPath, name: str, timeout_s: float | None) -> socket.socket:
    """A socket that is connected to the one of that name, if that is a socket of this user or of root, and no link to
    one elsewhere. Raises OSError: no such process listens there; TimeoutError."""
    _check_system(os.path.join(directory, name))
    with _descriptor_of(directory) as directory_fd, _descriptor_of(name, os.O_PATH | os.O_NOFOLLOW, directory_fd) as fd:
        status = os.fstat(fd)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "it is no socket of this user")
        found = noted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            found.settimeout(timeout_s)
            found.connect(f"/proc/self/fd/{fd}")
        except BaseException:
            found.close()
            raise
        return found


def remove(directory: AnyPath, name: str, identity: Identity | None = None) -> None:
    """Remove the socket's name, if it is there. `identity`: only if it is this one; by now the path may be that of
    another directory, with the socket of another process."""
    path = os.path.join(directory, name)
    with contextlib.suppress(OSError):
        status = os.stat(path, follow_symlinks=False)
        if identity in (None, (status.st_dev, status.st_ino)):
            os.unlink(path)


@contextlib.contextmanager
def turn_to_open(directory: AnyPath) -> Iterator[bool]:
    """Whether no other process is in such a block just now, for the same directory: it is about to own what is there,
    and to listen. It lasts as long as that takes. True also where the system does not tell.

    A lock of the directory itself (flock): it needs no file, and goes with its process.
    """
    try:
        found = _Turn(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:     # the directory is still to be made
        yield True
        return
    try:
        try:
            fcntl.flock(found.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = True
        except OSError as error:    # NFS has no such lock of a directory
            is_mine = error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN)
        yield is_mine
    finally:
        found.close()


class _Turn:
    """A descriptor of a directory, which a forked child closes: it would keep the lock."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _TURNS.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def noted(one: socket.socket) -> socket.socket:
    """Close it in children that are forked from now on."""
    _OPEN.add(one)
    return one


def peer_of(one: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the other side."""
    pid, uid, _ = _PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def _check_system(path: str) -> None:
    if sys.platform != "linux":
        raise StorageError("processes can attach to each other on Linux only", file=path,
                           hint="open it in one process, and send that your calls")


@contextlib.contextmanager
def _descriptor_of(
    path: AnyPath, flags: int = os.O_RDONLY | os.O_DIRECTORY, within: int | None = None
) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


def _forked() -> None:
    for one in list(_OPEN):
        one.close()
    _OPEN.clear()
    for turn in list(_TURNS):
        turn.close()
    _TURNS.clear()


os.register_at_fork(after_in_child=_forked)
