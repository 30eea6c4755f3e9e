"""Statistics of a log: plain numbers, taken at one moment."""
import os
import time
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from seglog.format import names
from seglog.fs.refusals import refusals

if TYPE_CHECKING:
    from seglog.log.tail import LogTail

_TICK_NS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """What `Log.stats()` returns.

    topic, partition        from the name of its directory
    log_start_offset        the first offset that a reader may see
    log_end_offset          the offset of the next record
    last_stable_offset      where a reader with isolation="read_committed" ends
    durable_offset          everything below it is on the disk
    recovery_point          a recovery checks what follows it
    leader_epoch            the last one; -1: none
    log_bytes               size of the .log files
    index_bytes             size of .index, .timeindex, .txnindex and .time.index
    segments                number of segments, the active one included
    producers               number of idempotent producers that the log remembers
    lingering_records       records in memory, not written yet (linger.ms)
    appends, appended_bytes batches written since opening, and their bytes
    listeners               followers and callbacks of on_published in this process that wait for new records
    syncs, sync_seconds     shared syncs of the active segment since opening, and the time they took together
    failure                 the error that made the log read-only, or None
    uncleanable             the last error of retention or compaction, or None if the last try succeeded
    """

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    durable_offset: int
    recovery_point: int
    leader_epoch: int
    segments: int
    log_bytes: int
    index_bytes: int
    producers: int
    lingering_records: int
    appends: int
    appended_bytes: int
    listeners: int
    syncs: int
    sync_seconds: float
    failure: str | None
    uncleanable: str | None


class MeasuredLog(Protocol):
    """What this module needs of a log."""

    topic: str
    partition: int

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def segments(self) -> Sized: ...


class DirectorySizes:
    """`log_bytes` and `index_bytes` of a partition directory that this process writes to.

    Files that do not grow are examined again only if a name in the directory was added, removed or changed: a file is
    replaced by a rename, which changes the directory's mtime. So a look costs a few system calls, however many segments
    there are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: tuple[int, str, int, int, tuple[str, ...]] | None = None

    def look(self, active: Path) -> dict[str, int]:
        """`active`: the .log that grows. Raises StorageError."""
        stem = active.name[: -len(active.suffix)]
        with refusals("stat", self._directory):
            changed_ns = os.stat(self._directory).st_mtime_ns
        known = self._known
        if known is None or known[:2] != (changed_ns, stem):
            known = changed_ns, stem, *self._walk(stem)
            # Another change in the same tick of the file system's clock would not be visible.
            self._known = known if time.time_ns() - changed_ns > _TICK_NS else None
        _, _, log_bytes, index_bytes, growing = known
        for name in growing:
            size = _size_of(self._directory / name)
            if name.endswith(names.LOG_SUFFIXES):
                log_bytes += size
            else:
                index_bytes += size
        return {"log_bytes": log_bytes, "index_bytes": index_bytes}

    def _walk(self, stem: str) -> tuple[int, int, tuple[str, ...]]:
        """Sizes of the logs and of the indexes of all segments but `stem`, and the names of the files of `stem`."""
        log_bytes = index_bytes = 0
        growing = []
        with refusals("list", self._directory), os.scandir(self._directory) as entries:
            for entry in entries:
                parsed = names.parse_file_name(entry.name)
                if parsed is None or parsed.state or parsed.suffix == names.SNAPSHOT_SUFFIX:
                    continue
                if entry.name == stem + parsed.suffix:
                    growing.append(entry.name)
                elif parsed.suffix in names.LOG_SUFFIXES:
                    log_bytes += _size_of(entry)
                else:
                    index_bytes += _size_of(entry)
        return log_bytes, index_bytes, tuple(growing)


def stats_of(log: MeasuredLog, tail: "LogTail", sizes: DirectorySizes, uncleanable: str | None) -> LogStats:
    """What `Log.stats()` returns. Raises LogClosedError, StorageError."""
    return LogStats(
        topic=log.topic,
        partition=log.partition,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        last_stable_offset=log.last_stable_offset,
        durable_offset=tail.durable_offset,
        recovery_point=tail.recovery_point.offset,
        leader_epoch=tail.leader_epoch,
        segments=len(log.segments),
        producers=len(tail.producers),
        lingering_records=len(tail.linger.batch) if tail.linger is not None else 0,
        appends=tail.number - tail.first_number - tail.flush_marks,
        appended_bytes=tail.live.appended_bytes,
        listeners=len(tail.listeners),
        syncs=tail.syncs,
        sync_seconds=tail.sync_seconds,
        failure=None if tail.failure is None else str(tail.failure),
        uncleanable=uncleanable,
        **sizes.look(tail.active.path),
    )


def _size_of(file: "Path | os.DirEntry[str]") -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0        # deleted meanwhile
