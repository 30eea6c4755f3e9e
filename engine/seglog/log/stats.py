"""What a log says of itself: plain numbers, taken at one moment."""
import os
from dataclasses import dataclass
from pathlib import Path

from seglog.format import names
from seglog.fs.refusals import refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """What `Log.stats()` gives.

    log_bytes               of the .log files
    index_bytes             of .index, .timeindex, .txnindex and .time.index
    segments                how many there are, the active one too
    producers               idempotent producers that the log remembers
    lingering_records       in memory, not written yet (linger.ms)
    syncs, sync_seconds     shared syncs of the active segment since opening, and how long they took together
    failure                 why the log is read-only since an error; None: it is not
    uncleanable             why retention or compaction failed when it was last tried; None: it did not
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
    syncs: int
    sync_seconds: float
    failure: str | None
    uncleanable: str | None


def sizes_in(directory: Path) -> dict[str, int]:
    """`log_bytes` and `index_bytes` of a partition directory, by one look at it. Raises StorageError."""
    log_bytes = index_bytes = 0
    with refusals("list", directory), os.scandir(directory) as entries:
        for entry in entries:
            parsed = names.parse_file_name(entry.name)
            if parsed is None or parsed.state:
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue        # deleted meanwhile
            if parsed.suffix == names.LOG_SUFFIX:
                log_bytes += size
            elif parsed.suffix in names.INDEX_SUFFIXES:
                index_bytes += size
    return {"log_bytes": log_bytes, "index_bytes": index_bytes}
