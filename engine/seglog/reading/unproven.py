"""Records of damaged batches, unproven: what can still be decoded although the checksum does not match.

A consumer with `check.crcs=false` (Kafka's ConsumerConfig) takes such records for good ones. Here they are only for
people to look at: no table, conversion or recovery uses them. One wrong byte may be in a value, or in a length before
it, so what follows in the batch may be wrong, too.
"""
import os
from collections.abc import Iterator
from pathlib import Path

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of
from seglog.fs.mapping import Mapping
from seglog.segment.batches import SCAN_BYTES, UNREADABLE
from seglog.segment.positions import LostRange


def unproven_batches(
    file: str | os.PathLike[str], start: int = 0, size_bytes: int | None = None
) -> Iterator[RecordBatch]:
    """The batches in these bytes of a file whose headers can be read, up to the first that cannot: nothing tells where
    the next one begins. Positions are those in the file. StorageError."""
    mapping = Mapping(Path(file))
    stop = len(memoryview(mapping)) if size_bytes is None else start + size_bytes
    window = Window(mapping, str(file), stop, is_tagged=dialect_of(Path(file)).is_tagged)
    position = start
    while position < stop:
        table = scan(window, position, max_bytes=SCAN_BYTES, decompress=decompressor())
        if not len(table):
            return
        yield from table
        position = table.end


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
