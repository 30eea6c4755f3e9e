"""The minute index of one segment (.time.index), ours: docs/formats/minute_index.md.

Where `time.index.minute.enabled` is set. It answers what the time index answers, from an entry a minute instead of one
every index.interval.bytes; Kafka knows nothing of it, and may rewrite the log under it (the cleaner, a truncation).
So it is a hint that a search verifies, and is made anew where it is stale.
"""
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.config import LogConfig
from seglog.errors import CorruptIndexError, CorruptRecordError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.segment.indexes import index_bytes
from seglog.segment.time_index import TimeIndex

if TYPE_CHECKING:
    from seglog.segment.segment import Segment  # which holds a MinuteIndex

MINUTE_MS = 60_000
# Headers that are read at once on the way from an offset entry to the batch that a minute entry names.
_STEP_BATCHES = 64


class MinuteIndex(TimeIndex):
    """`MinuteIndex(buffer, base_offset)`: the entries of a .time.index as a sequence of (timestamp ms, offset).

    The largest timestamp up to and with `offset`, and the last offset of the batch that holds it; no two entries lie
    in one minute. `lookup(timestamp)` is a lower bound: what is at or after that time begins at the entry's batch or
    behind it, however disordered timestamps are.
    """


def ensure_minute_index(fs: FileSystem, segment: "Segment", config: LogConfig) -> bool:
    """Let a closed segment have its minute index: written where it is missing or stale, durably. True: it was.

    Raises CorruptRecordError where the log is damaged.
    """
    path = minute_index_path(segment)
    try:
        raw = read_file(path)
        if not is_stale(segment, MinuteIndex(raw, segment.base_offset, path=path)):
            return False
    except (FileNotFoundError, CorruptIndexError):
        pass
    write_atomically(fs, path, index_bytes(segment, config).minute_index)
    return True


def minute_index_path(segment: "Segment") -> Path:
    """Beside the .log."""
    return segment.path.with_suffix(names.MINUTE_INDEX_SUFFIX)


def is_stale(segment: "Segment", index: MinuteIndex) -> bool:
    """Whether an entry leads past the end of the segment, or to no batch with that largest timestamp."""
    try:
        return any(_largest_at(segment, offset) != timestamp for timestamp, offset in index)
    except (CorruptIndexError, CorruptRecordError):
        return True


def _largest_at(segment: "Segment", offset: int) -> int | None:
    """The largest timestamp of the batch that ends with `offset`; None where none does."""
    position = 0 if segment.offset_index is None else segment.offset_index.lookup(offset)[1]
    for table in segment.tables(position, check_crc=False, max_batches=_STEP_BATCHES):
        slot = table.find_offset(offset)
        if slot >= 0:
            batch = table[slot]
            return batch.max_timestamp if batch.last_offset == offset else None
    return None
