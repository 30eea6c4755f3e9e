"""Directories for files that need not outlive the process: copies of remote files, and results not yet moved there."""
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seglog.fs.refusals import refusals


@contextmanager
def scratch_directory(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """An empty directory in `parent` (by default the system's temporary directory), removed at the end with its
    contents.

    A killed process leaves it behind, under a name that begins with "seglog-". Raises StorageError.
    """
    where = tempfile.gettempdir() if parent is None else parent
    with refusals("make a directory in", where):
        directory = tempfile.TemporaryDirectory(prefix="seglog-", dir=where, ignore_cleanup_errors=True)
    with directory as path:
        yield Path(path)
