"""Files of ours as libraries write to them."""
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from seglog.fs.files import FileSystem, WritableFile


@contextmanager
def new_file(fs: FileSystem, path: Path) -> Iterator["Sink"]:
    """A file to write to, synced at the end; removed again if that fails. Raises StorageError if there is one."""
    file = fs.create(path)
    try:
        yield Sink(file)
        file.sync()
    except BaseException:
        file.close()
        fs.unlink(path)
        raise
    file.close()


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
