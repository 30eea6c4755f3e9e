"""A file of ours as libraries write to one."""
from functools import partial
from typing import Any

from seglog.fs.files import WritableFile


class Sink:
    """A file of ours as pyarrow writes to one."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self.closed = False
        self.tell = partial(getattr, file, "position")

    def write(self, data: Any) -> int:
        self._file.append(data)
        return len(data)

    def flush(self) -> None:
        """The sync at the end does it."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
