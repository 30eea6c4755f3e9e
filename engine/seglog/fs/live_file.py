"""A small file that one process overwrites again and again, and others read at any moment: never synced or replaced.

Its contents are valid only until the system restarts, so a crash of the system may leave anything. That is why it does
not go through a FileSystem, whose doubles lose what was not synced. Its layout must be torn-proof: a reader may see a
part of a write.
"""
import contextlib
import os

from seglog.fs.files import AnyPath

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_UNKNOWN = bytes(16)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LiveFile:
    """The file, by its path: no descriptor stays open, because a process may have many logs. Raises only OSError."""

    def __init__(self, path: AnyPath) -> None:
        self.path = os.fspath(path)

    def write(self, raw: bytes, position: int = 0) -> None:
        """Write the bytes at `position`. Creates the file if there is none, or one that has other names, too."""
        fd = os.open(self.path, _FLAGS, 0o644)
        if os.fstat(fd).st_nlink > 1:       # a copy made of hard links, or somebody else's file
            os.close(fd)
            os.unlink(self.path)
            fd = os.open(self.path, _FLAGS | os.O_EXCL, 0o644)
        try:
            os.pwrite(fd, raw, position)
        finally:
            os.close(fd)

    def read(self, size_bytes: int) -> bytes:
        """Its first bytes; none if there is no such file."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(fd, size_bytes, 0)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the file. Does nothing if it does not exist or cannot be removed."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def _read_boot_id() -> bytes:
    try:
        with open(_BOOT_ID_FILE) as file:
            return bytes.fromhex(file.read().strip().replace("-", "")).ljust(16, b"\0")[:16]
    except (OSError, ValueError):
        return _UNKNOWN


# Identifies the system's start: a file from before it is not valid.
BOOT_ID = _read_boot_id()
