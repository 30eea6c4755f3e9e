"""The minute index of one segment (.time.index), ours: docs/formats/minute_index.md.

Where `time.index.minute.enabled` is set. It answers what the time index answers, from an entry a minute instead of one
every index.interval.bytes; Kafka knows nothing of it, and may rewrite the log under it (the cleaner, a truncation).
So it is a hint that a search verifies, and is made anew where it is stale, when the log is opened (log.index_trust).
"""
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.format import names
from seglog.segment.time_index import TimeIndex

if TYPE_CHECKING:
    from seglog.segment.segment import Segment  # which holds a MinuteIndex

MINUTE_MS = 60_000


class MinuteIndex(TimeIndex):
    """`MinuteIndex(buffer, base_offset)`: the entries of a .time.index as a sequence of (timestamp ms, offset).

    The largest timestamp up to and with `offset`, and the last offset of the batch that holds it; no two entries lie
    in one minute. `lookup(timestamp)` is a lower bound: what is at or after that time begins at the entry's batch or
    behind it, however disordered timestamps are.
    """


def minute_index_path(segment: "Segment") -> Path:
    """Beside the .log."""
    return segment.path.with_suffix(names.MINUTE_INDEX_SUFFIX)
