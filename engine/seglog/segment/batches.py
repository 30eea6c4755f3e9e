"""Batches as readers of a segment take them: how many at a time, and what of one that contradicts itself."""
from collections.abc import Iterable
from itertools import islice

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError
from seglog.format.compression import Decompress

# What one scan looks at before it returns to Python: enough to make the call free, little enough that
# what it brought into the cache is still there when records are read. Of headers alone, more.
SCAN_BYTES = 1 << 20
SCAN_BATCHES = 8192
# How far apart the places are at which a walk over headers keeps what it saw: what a later walk may repeat.
WALK_BATCHES = 4096

# So many record objects are kept while a batch is checked; one of more is read twice. Seven bytes of a payload can
# be a record, and an object takes a hundred.
KEPT_RECORDS = 1 << 16

# What a batch answers that does not give its records. (A codec that is not installed is no fault of the batch.)
UNREADABLE = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError)


def first_offset_of(batch: RecordBatch) -> int:
    """Where the batch begins; for a wrapper that does not open, where it ends: that, its header tells."""
    try:
        return batch.base_offset
    except UNREADABLE:
        return batch.last_offset


def checked_records(batch: RecordBatch) -> Iterable[Record]:
    """The records of a batch, all of them read before the first is given: a damaged batch gives none, not a part.

    Iterate over it as often as you like. Raises what reading the batch raises.
    """
    reader = iter(batch)
    records = list(islice(reader, KEPT_RECORDS))
    if len(records) < KEPT_RECORDS:
        return records
    for _ in reader:
        pass
    return batch


def within_int64(n: int) -> int:
    """The number nearest to `n` that an offset or a timestamp can be compared with: no batch ends at the last one."""
    return min(max(n, -(2**63)), 2**63 - 1)


def known_epoch(batch: RecordBatch) -> int | None:
    return None if batch.leader_epoch < 0 else batch.leader_epoch


def begins_at(window: Window, position: int, offset: int, decompress: Decompress) -> bool:
    """Is it a wrapper that stands there, and is the offset its first message's?

    A wrapper's header does not tell where it begins, so that of two, the scan cannot say which one is wrong.
    """
    for batch in scan(window, position, max_batches=1, decompress=decompress):
        if batch.magic in (0, 1) and batch.codec:
            try:
                return next(iter(checked_records(batch))).offset == offset
            except UNREADABLE:
                return False
    return False
