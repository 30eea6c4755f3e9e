"""How readers of a segment take batches: how many at a time, and what to do with an inconsistent one."""
from collections.abc import Iterable
from itertools import islice

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError
from seglog.format.compression import Decompress

# What one scan covers before it returns to Python: enough to make the call cheap, and little enough that its data is
# still in the cache when records are read. More if only headers are read.
SCAN_BYTES = 1 << 20
SCAN_BATCHES = 8192
# The distance of the places where a walk over headers saves its state: a later walk repeats at most this much.
WALK_BATCHES = 4096

# How many record objects are kept while a batch is checked; a batch with more is read twice. Seven bytes of a payload
# can be a record, and an object takes a hundred.
KEPT_RECORDS = 1 << 16

# The errors of a batch whose records cannot be read. (A codec that is not installed is not the batch's fault.)
UNREADABLE = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError)


def first_offset_of(batch: RecordBatch) -> int:
    """Return the batch's first offset; for a wrapper that does not decompress its last one, which is in its header."""
    try:
        return batch.base_offset
    except UNREADABLE:
        return batch.last_offset


def header_offset_of(batch: RecordBatch) -> int:
    """Return a batch's first offset according to its header; for a wrapper, this is its last one."""
    return batch.last_offset if batch.magic in (0, 1) else batch.base_offset


def checked_records(batch: RecordBatch) -> Iterable[Record]:
    """Read all records of a batch before giving the first: a damaged batch gives none, instead of a part.

    May be iterated any number of times. Raises what reading the batch raises.
    """
    reader = iter(batch)
    records = list(islice(reader, KEPT_RECORDS))
    if len(records) < KEPT_RECORDS:
        return records
    for _ in reader:
        pass
    return batch


def within_int64(n: int) -> int:
    """Return the number nearest to `n` to compare offsets or timestamps with: none equals the largest int64."""
    return min(max(n, -(2**63)), 2**63 - 1)


def known_epoch(batch: RecordBatch) -> int | None:
    return None if batch.leader_epoch < 0 else batch.leader_epoch


def begins_at(window: Window, position: int, offset: int, decompress: Decompress) -> bool:
    """Whether a wrapper is at this position, and the offset is that of its first message.

    A wrapper's header does not have its first offset, so the scan cannot tell which of two wrappers is wrong.
    """
    for batch in scan(window, position, max_batches=1, decompress=decompress):
        if batch.magic in (0, 1) and batch.codec:
            try:
                return next(iter(checked_records(batch))).offset == offset
            except UNREADABLE:
                return False
    return False
