"""Writes column statistics (segment.column_stats) for a partition: queries over tables use them to skip bytes."""
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import UnsupportedVersionError
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.partition_locks import lock_alone
from seglog.reading.partition import Partition
from seglog.segment.batches import UNREADABLE
from seglog.segment.column_stats import ColumnStats, column_stats_bytes, column_stats_of, column_stats_path
from seglog.upkeep.index_rebuild import IndexFiles, Progress, RebuiltIndex, RefusedSegment


def write_column_stats(
    path: str | Path,
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    only: Collection[str] = (),
    dry_run: bool = False,
    fs: FileSystem | None = None,
    progress: Progress | None = None,
) -> Iterator[RebuiltIndex | RefusedSegment]:
    """Write a .stats.index for each segment of a partition directory; yields each durable file and each refused
    segment.

    `only`: names of the .log files to process; all if empty. A file made from the present log stays. The last segment
    gets one, too: it is valid until the segment grows. `dry_run`: only tell what would be written, also beside a
    writer. A generator: it holds the log dir's lock while it runs. Raises LogLockedError if a broker or another writer
    holds it, StorageError if a write fails.
    """
    fs = OsFileSystem() if fs is None else fs
    path = Path(path)
    with (
        nullcontext() if dry_run else lock_alone(fs, path), Partition(path, config=config) as partition,
        IndexFiles(fs, dry_run=dry_run) as files,
    ):
        wanted = [s for s in partition.segments if (not only or s.path.name in only) and not s.dialect.is_tagged]
        total, done = sum(s.size_bytes for s in wanted), 0
        for segment in wanted:
            file = column_stats_path(segment.path)
            there = column_stats_of(segment.path)
            if there is not None:
                size_bytes = file.stat().st_size
                files.keep(RebuiltIndex(os.fspath(file), len(there), size_bytes, size_bytes))
            else:
                try:
                    raw = column_stats_bytes(segment)
                except (*UNREADABLE, UnsupportedVersionError) as e:
                    files.refuse(file, e)
                else:
                    files.put(file, raw, len(ColumnStats(raw, file)))
            done += segment.size_bytes
            if progress is not None:
                progress(done, total)
            yield from files.take()
        yield from files.take_all()
