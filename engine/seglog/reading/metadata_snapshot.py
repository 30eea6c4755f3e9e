"""Snapshots of the metadata log: files of record batches, each with what the log says up to an offset.

See docs/formats/cluster_metadata.md.
"""
import os
from collections.abc import Iterator
from pathlib import Path

from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError
from seglog.format.compression import decompressor
from seglog.fs.mapping import Mapping
from seglog.segment.batches import SCAN_BYTES


def snapshot_batches(path: str | os.PathLike[str]) -> Iterator[RecordBatch]:
    """The batches of a metadata snapshot. Raises CorruptRecordError at the first one that is damaged or torn: a
    snapshot gets its name when it is whole. StorageError."""
    file = Path(path)
    window = Window(Mapping(file), str(file))
    position = 0
    while position < len(window):
        table = scan(window, position, check_crc=True, max_bytes=SCAN_BYTES, decompress=decompressor())
        yield from table
        if table.stop not in (Status.OK, Status.LIMIT):
            raise CorruptRecordError(words(table.stop), file=file, position=table.end)
        position = table.end
