"""Mirroring into several logs, the partitions of a topic: which of them each batch goes to.

    without keys        whole, round robin
    with keys           split, each record where Kafka's producers send its key
    a control batch     to all of them: its transaction may have records in any
    without records     left out

Headers in Kafka's formats do not say whether there are keys, so every batch is opened, except a set of tagged messages
that says it (tag 65). Only split batches and v0 wrappers, which hold their offsets in compressed bytes, are compressed
again.
"""
from collections.abc import Sequence
from dataclasses import replace

from seglog._kernels.batch_mover import moves_unopened, says_no_keys
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import SeglogError
from seglog.log.log import Log
from seglog.log.mirror_run import Mirrored, MirrorTarget, put_whole


class BatchRouter:
    """Routes batches to several logs, table by table. What `done` counts has been appended."""

    def __init__(self, targets: Sequence[Log], from_offset: int, close_gaps: bool, is_steady: bool) -> None:
        self.done = self._reached = Mirrored(next_offset=from_offset)
        self._targets = [MirrorTarget(log, is_steady) for log in targets]
        self._closes = close_gaps
        # Not always the first target: with --follow, each run may bring only one batch.
        self._turn = min(range(len(targets)), key=lambda i: self._targets[i].next_offset)

    def add(self, table: BatchTable) -> None:
        """Raises what `mirror` raises; everything before the batch in question is appended."""
        try:
            for slot in range(max(table.find_offset(self._reached.next_offset), 0), len(table)):
                counts = self._route(table, slot)
                batch = table[slot]
                self._reached = replace(
                    self._reached.counting(batches=1, size_bytes=batch.size_bytes, **counts),
                    next_offset=batch.last_offset + 1,
                )
        except SeglogError:
            self._flush()
            raise
        self._flush()

    def _flush(self) -> None:
        for target in self._targets:
            target.flush()
        self.done = self._reached

    def _route(self, table: BatchTable, slot: int) -> dict[str, int]:
        batch = table[slot]
        if batch.magic == 2 and batch.count == 0:
            return {"left_out_batches": 1}
        if batch.is_control:
            for target in self._targets:
                target.move(table, slot, slot + 1, batch.base_offset - 1)
            return {}
        if batch.magic < 0 and says_no_keys(table, slot) and moves_unopened(table, slot):
            self._next_in_turn().move(table, slot, slot + 1, -1)
            return {"keyless_batches": 1}
        pieces = BatchPieces(table, slot)
        if not pieces.has_keys:
            rebuilt = put_whole(self._next_in_turn(), table, slot, pieces, self._closes)
            return {"opened_batches": 1, "rebuilt_batches": rebuilt, "keyless_batches": 1}
        records = [
            (i, count) for i, count in enumerate(pieces.route(len(self._targets), self._turn)) if count
        ]
        if len(records) == 1:
            pieces.route(1, 0)
            rebuilt = put_whole(self._targets[records[0][0]], table, slot, pieces, self._closes)
        else:
            rebuilt = 1
            self._split(batch, pieces, records)
        return {"opened_batches": 1, "rebuilt_batches": rebuilt, "keyed_batches": 1}

    def _next_in_turn(self) -> MirrorTarget:
        target = self._targets[self._turn]
        self._turn = (self._turn + 1) % len(self._targets)
        return target

    def _split(self, batch: RecordBatch, pieces: BatchPieces, records: list[tuple[int, int]]) -> None:
        """Split a batch. All pieces are made before the first one is put: one may be too large."""
        why = "a piece of a batch that was split by keys"
        made = [self._targets[i].made(batch, pieces, i, count, why) for i, count in records]
        for (i, count), piece in zip(records, made, strict=True):
            self._targets[i].put_made(batch, piece, count)
