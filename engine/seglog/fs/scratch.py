"""Directories for files that need not outlive the process: copies of remote files, and results not yet moved there."""
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.refusals import refusals
from seglog.fs.removal import remove_tree


@contextmanager
def scratch_directory(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """An empty directory in `parent` (by default the system's temporary directory), removed at the end with its
    contents.

    A killed process leaves it behind, under a name that begins with "seglog-". Raises StorageError.
    """
    where = tempfile.gettempdir() if parent is None else parent
    with refusals("make a directory in", where):
        path = Path(tempfile.mkdtemp(prefix="seglog-", dir=where))
    try:
        yield path
    finally:
        with suppress(StorageError):
            remove_tree(OsFileSystem(), path.parent, path.name)
