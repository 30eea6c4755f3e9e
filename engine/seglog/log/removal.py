"""Taking segments away, and cutting one short, so that a crash at any point leaves what Kafka and we open.

A segment goes in three steps: its files get the suffix .deleted, the directory is synced, the files are unlinked.
What a crash leaves in between are `.deleted` files and indexes without a log, and both loaders remove those. The
caller has told the readers before (Segment.retire).
"""
import os
from collections.abc import Iterable
from pathlib import Path

from seglog.format import names
from seglog.fs.aside import shorten
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.segment.transaction_index import TransactionIndex

# The log first: without it the others are strays.
_SUFFIXES = (
    names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.MINUTE_INDEX_SUFFIX,
    names.TRANSACTION_INDEX_SUFFIX,
)  # fmt: skip


def segment_files(log: Path) -> list[Path]:
    """The files of the segment whose .log is at `log`, as far as they are there."""
    return [path for suffix in _SUFFIXES if os.path.lexists(path := log.with_suffix(suffix))]


def remove_segments(fs: FileSystem, directory: Path, logs: Iterable[Path]) -> None:
    """Remove segments by their .log files; when it returns they are gone for good. Raises StorageError."""
    deleted = []
    for log in logs:
        for path in segment_files(log):
            target = path.with_name(path.name + names.DELETED_SUFFIX)
            fs.replace(path, target)
            deleted.append(target)
    if deleted:
        fs.sync_directory(directory)
    for path in deleted:
        fs.unlink(path)


def cut_segment(fs: FileSystem, log: Path, position: int, offset: int) -> None:
    """Keep the bytes of `log` before `position`, and the aborted transactions that ended before `offset`.

    Its other indexes are left: who opens it for appending makes them follow the log.
    """
    aborted = log.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
    if aborted.exists():
        kept = TransactionIndex(read_file(aborted), path=aborted).size_up_to(offset)
        if kept:
            shorten(fs, aborted, kept)
        else:
            fs.unlink(aborted)
    shorten(fs, log, position)
