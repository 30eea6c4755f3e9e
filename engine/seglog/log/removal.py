"""Removing segments, and truncating one, so that a crash at any point leaves a log that Kafka and seglog can open.

A segment is removed in three steps: its files get the suffix .deleted, the directory is synced, the files are unlinked.
A crash in between leaves `.deleted` files and indexes without a log, which both loaders remove. The caller has told the
readers before (Segment._retire).
"""
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from seglog.errors import StorageError
from seglog.format import names
from seglog.format.dialect import Dialect, dialect_of
from seglog.fs.aside import shorten
from seglog.fs.files import AnyPath, FileSystem
from seglog.fs.mapping import read_file
from seglog.segment.transaction_index import TransactionIndex


def remove_segments(fs: FileSystem, directory: Path, logs: Iterable[AnyPath]) -> None:
    """Remove segments, given by their .log files, durably. Raises StorageError."""
    for path in mark_deleted(fs, directory, logs):
        fs.unlink(path)


def mark_deleted(fs: FileSystem, directory: Path, logs: Iterable[AnyPath]) -> list[str]:
    """Take segments, given by their .log files, out of the log durably. Returns the .deleted files for the caller to
    remove."""
    deleted = []
    dialect: Dialect | None = None
    for log in logs:
        dialect = dialect or dialect_of(log)        # the directory's: one for all
        stem = os.fspath(log).removesuffix(dialect.log)
        # The .log first: without it the other files are orphans.
        for suffix in dialect.suffixes:
            path = stem + suffix
            if os.path.lexists(path):
                target = path + names.DELETED_SUFFIX
                fs.replace(path, target)
                deleted.append(target)
    if deleted:
        fs.sync_directory(directory)
    return deleted


def remove_cleaned(fs: FileSystem, cleaned: Path) -> None:
    """Remove a rewritten segment, given by its .log.cleaned; the next opening removes what this call cannot."""
    dialect = dialect_of(cleaned)
    stem = cleaned.name.removesuffix(dialect.log + names.CLEANED_SUFFIX)
    for suffix in dialect.suffixes:
        path = cleaned.with_name(stem + suffix + names.CLEANED_SUFFIX)
        with suppress(StorageError):
            if path.exists():
                fs.unlink(path)


def truncate_segment(fs: FileSystem, log: Path, position: int, offset: int) -> None:
    """Keep the bytes of `log` before `position`, and the aborted transactions that ended before `offset`.

    Its time ranges and column statistics are removed. Its other indexes are left: opening the log for appending makes
    them match it.
    """
    for suffix in names.OF_WHOLE_LOGS:
        path = log.with_suffix(suffix)
        if path.exists():
            fs.unlink(path)
    aborted = log.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
    if aborted.exists():
        kept = TransactionIndex(read_file(aborted), path=aborted).size_up_to(offset)
        if kept:
            shorten(fs, aborted, kept)
        else:
            fs.unlink(aborted)
    shorten(fs, log, position)
