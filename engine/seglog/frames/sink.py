"""Files of seglog.fs, for libraries that write to file objects."""
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from seglog.fs.files import FileSystem, WritableFile


@contextmanager
def new_file(fs: FileSystem, path: Path) -> Iterator["Sink"]:
    """Create a file to write to. It is synced at the end, or removed on failure. Raises StorageError if it exists."""
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
    """A WritableFile with the methods that pyarrow expects of a file object."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self.closed = False
        self.tell = partial(getattr, file, "position")

    def write(self, data: Any) -> int:
        self._file.append(data)
        return len(data)

    def flush(self) -> None:
        """Does nothing: the file is synced at the end."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
