"""Records of damaged batches, unproven: what can still be decoded although the checksum does not match.

A consumer with `check.crcs=false` (Kafka's ConsumerConfig) takes such records for good ones. Here they are only for
people to look at: no table, conversion or recovery uses them. One wrong byte may be in a value, or in a length before
it, so what follows in the batch may be wrong, too.

If the wrong byte is the magic, it hides the whole batch, because another format has another header. So a batch whose
checksum is right with another magic is given with that one.
"""
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.batch_layout import LOG_OVERHEAD, MAGIC_POS, SIZE_POS
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of
from seglog.fs.mapping import Mapping
from seglog.segment.batches import SCAN_BYTES, UNREADABLE
from seglog.segment.positions import LostRange

# The newest first: it is the format of almost all batches, and the one whose checksum leaves out the magic.
MAGICS = (2, 1, 0)


def unproven_batches(
    file: str | os.PathLike[str], start: int = 0, size_bytes: int | None = None
) -> Iterator[RecordBatch]:
    """The batches in these bytes of a file whose headers can be read, up to the first that cannot: nothing tells where
    the next one begins. One with a wrong magic alone is given with the right one. Positions are those in the file.
    StorageError."""
    mapping = Mapping(Path(file))
    stop = len(memoryview(mapping)) if size_bytes is None else start + size_bytes
    window = Window(mapping, str(file), stop, is_tagged=dialect_of(Path(file)).is_tagged)
    position = start
    while position < stop:
        table = scan(window, position, max_bytes=SCAN_BYTES, decompress=decompressor())
        for batch in table:
            yield (None if batch.crc_is_valid() else _with_right_magic(window, batch.position)) or batch
        position = table.end
        if not len(table):
            hidden = _with_right_magic(window, position)
            if hidden is None:
                return
            yield hidden
            position += hidden.size_bytes


def _with_right_magic(window: Window, position: int) -> RecordBatch | None:
    """The batch that is intact there with another magic; None if there is none."""
    raw = memoryview(window)
    size_bytes = LOG_OVERHEAD + int.from_bytes(raw[position + SIZE_POS : position + LOG_OVERHEAD], "big", signed=True)
    stop = position + size_bytes
    if window.is_tagged or not MAGIC_POS < size_bytes <= len(raw) - position:
        return None
    # So that its position stays that in the file: pages of memory that are not touched cost nothing.
    copy = mmap.mmap(-1, stop)
    copy[position:stop] = raw[position:stop]
    for magic in MAGICS:
        copy[position + MAGIC_POS] = magic
        table = scan(
            Window(copy, window.name, stop), position, check_crc=True, max_batches=1, decompress=decompressor()
        )
        if len(table) and table.end == stop:
            return table[0]
    return None


def unproven_records(batch: RecordBatch) -> Iterator[Record]:
    """The records of a batch up to the first that cannot be decoded."""
    try:
        yield from batch
    except UNREADABLE:
        return


def count_unproven(lost: LostRange) -> int:
    """How many records can be decoded in a damaged range."""
    return sum(
        1 for batch in unproven_batches(lost.file, lost.position, lost.size_bytes) if not batch.is_control
        for _ in unproven_records(batch)
    )
