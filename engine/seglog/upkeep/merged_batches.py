"""Merges small neighbouring batches that remain after compaction: `seglog.compaction.merge.bytes`.

open_batch.pxd says which v2 batches may be merged, message_packer.pyx which wrappers of v0 and v1. Messages of v0 and
v1 without a codec stay as they are: only a wrapper can have several.
"""
from collections.abc import Callable

from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_survey import first_with_producer, next_magic
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.packer import Packer
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.format.compression import Decompress, compress


class MergedBatches:
    """Call `add` with batches in log order and write what `take` returns; `finish` at the end of a segment.

    `stays_alone`: called for each batch with a producer.
    """

    def __init__(self, merge_bytes: int, decompress: Decompress, stays_alone: Callable[[RecordBatch], bool]) -> None:
        self._merge_bytes = merge_bytes
        self._decompress = decompress
        self._stays_alone = stays_alone
        self._packers: dict[int, Packer] = {}
        self._magic = 2
        self._done: list[bytes] = []

    def add(self, batches: memoryview) -> None:
        """Add consecutive batches, whose bytes are needed only during this call."""
        if len(batches):
            table = scan(Window(batches))
            slot = 0
            while slot < len(table):
                stop = next_magic(table, slot)
                self._turn_to(table[slot].magic)
                self._add(table, slot, stop)
                slot = stop

    def _add(self, table: BatchTable, slot: int, stop: int) -> None:
        """Add batches of one format."""
        packer = self._packer()
        found = first_with_producer(table, slot)
        while 0 <= found < stop:
            if self._stays_alone(table[found]):
                packer.add(table, slot, found)
                packer.finish()
                packer.add(table, found, found + 1)
                packer.finish()
                slot = found + 1
            found = first_with_producer(table, found + 1)
        packer.add(table, slot, stop)

    def take(self) -> bytes:
        """Return the batches that no later one can join."""
        self._collect()
        done = b"".join(self._done)
        self._done.clear()
        return done

    def finish(self) -> bytes:
        """Return the rest."""
        self._packer().finish()
        return self.take()

    def _turn_to(self, magic: int) -> None:
        if magic != self._magic:
            self._packer().finish()
            self._collect()
            self._magic = magic

    def _collect(self) -> None:
        with self._packer().take() as made:
            if len(made):
                self._done.append(bytes(made))

    def _packer(self) -> Packer:
        magic = self._magic
        if magic not in self._packers:
            self._packers[magic] = self._new_packer(magic)
        return self._packers[magic]

    def _new_packer(self, magic: int) -> Packer:
        def pack(codec: int, payload: bytes) -> "bytes | memoryview":
            return compress(codec, magic, payload)      # type: ignore[return-value]

        if magic == 2:
            return BatchPacker(
                repack_bytes=self._merge_bytes, decompress=self._decompress, compress=pack, check_crc=False
            )
        return MessagePacker(
            magic, repack_bytes=self._merge_bytes, decompress=self._decompress, compress=pack, check_crc=False
        )
