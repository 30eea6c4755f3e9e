"""The .txnindex of the segment that grows, with the entries that its writer has not written yet.

A broker and seglog append the marker of an aborted transaction first, and its entry after that. A backup may come in
between, and a writer may die there. Without the entry, records of the aborted transaction would be read as committed
ones from the restored log: nothing recovers that, because it ends where its recovery point is.
"""
from collections.abc import Sequence
from pathlib import Path

from seglog._kernels.batch_survey import first_transactional
from seglog.errors import CorruptIndexError, UnsupportedVersionError
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import TransactionIndex, encode
from seglog.state.checked_aborts import aborts_of_log
from seglog.state.producer_state import read_marker


def with_last_aborts(raw: bytes, path: Path, segment: Segment, begin: int, before: Sequence[Path]) -> bytes:
    """The bytes of a .txnindex with the entries that it lacks of the markers behind its last one. `begin`: the position
    of a batch of the segment, behind which they are; `before`: the .log files before it. Damaged files stay as they
    are."""
    try:
        listed = TransactionIndex(raw, path=path)
        last = listed[-1].last_offset if len(listed) else -1
        if not _has_abort_behind(segment, begin, last):
            return raw
        earlier = [Segment(log, is_last=False) for log in before]
        try:
            found = aborts_of_log(segment, earlier)
        finally:
            for one in earlier:
                one.close()
    except (CorruptIndexError, UnsupportedVersionError, *UNREADABLE):
        return raw
    return raw + encode(entry for entry in found if entry.last_offset > last)


def _has_abort_behind(segment: Segment, begin: int, offset: int) -> bool:
    for table in segment.tables(begin, check_crc=False):
        slot = first_transactional(table)
        while slot >= 0:
            batch = table[slot]
            if batch.is_control and batch.last_offset > offset and (marker := read_marker(batch)) and marker.is_abort:
                return True
            slot = first_transactional(table, slot + 1)
    return False
