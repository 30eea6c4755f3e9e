"""The result of converting one source segment, and what the rest of the partition must know of it.

It is small, and a plain value: it travels between processes and machines as JSON. The files beside the records of a
partition are made from these, in offset order (state_fold).
"""
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from seglog._kernels.batch_survey import first_of_later_epoch, first_with_producer
from seglog._kernels.segment_scan import BatchTable
from seglog.conversion.proof import RecordsDigest, SegmentProof
from seglog.errors import CorruptCheckpointError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import Shape, judged
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.leader_epochs import EpochStart
from seglog.state.producer_state import EndMarker, ProducerBatch

VERSION = 1
_FORMAT = "seglog-converted-segment"


@dataclass(frozen=True, slots=True)
class ConvertedPart:
    """One target segment. `size_bytes`: the size of its .log.

    `epochs`: the leader epochs that begin in it, for a reader that knows of none before. `producers`: the batches that
    determine the state of producers after it, in offset order.
    decide what is known of producers behind it, in offset order.
    """

    file: str
    base_offset: int
    size_bytes: int
    epochs: tuple[EpochStart, ...]
    producers: tuple[ProducerBatch, ...]


@dataclass(frozen=True, slots=True)
class ConvertedSegment:
    """One source segment: the file `source`, its batches from `base_offset` to below `next_offset`.

    `size_bytes`: of its complete batches. `aborted`: the lines of its .txnindex; None if they must be computed.
    `larger_batches`: the number of result batches above max.message.bytes. `notes`: what was wrong in the source.
    """

    source: str
    base_offset: int
    next_offset: int
    size_bytes: int
    parts: tuple[ConvertedPart, ...]
    aborted: tuple[AbortedTransaction, ...] | None
    larger_batches: int
    notes: tuple[str, ...]
    proof: SegmentProof

    def to_json(self) -> bytes:
        """Format it as one line: format.checked_json."""
        told = asdict(self)
        for part in told["parts"]:
            part["epochs"] = [start._asdict() for start in part["epochs"]]
        if self.aborted is not None:
            told["aborted"] = [line._asdict() for line in self.aborted]
        return format_json(_FORMAT, VERSION, **told)

    @classmethod
    def of_json(cls, text: bytes | str) -> "ConvertedSegment":
        """Parse the line. Raises CorruptCheckpointError if it is inconsistent, UnsupportedVersionError."""
        return parse_json(text, _FORMAT, VERSION, None, _segment_of)


class EpochTrail:
    """Collects where leader epochs begin, from batches in log order."""

    def __init__(self) -> None:
        self.starts: list[EpochStart] = []

    def add(self, table: BatchTable, first: int, stop: int) -> None:
        """Learn from the batches [first, stop)."""
        slot = first_of_later_epoch(table, self.starts[-1].epoch if self.starts else -1, first)
        while 0 <= slot < stop:
            self.starts.append(EpochStart(table[slot].leader_epoch, table[slot].base_offset))
            slot = first_of_later_epoch(table, self.starts[-1].epoch, slot)


class ProducerTrail:
    """Collects, from batches in log order, those that determine the state of producers after them.

    These are markers; and of a producer's data batches up to its next marker the first one of a transaction, and the
    last. Those in between are superseded by the last one (ProducerAppendInfo.appendDataBatch), except for the last five
    batches of each producer, which are in no snapshot either.
    """

    def __init__(self) -> None:
        self._batches: dict[int, ProducerBatch] = {}        # by base offset, in log order
        self._last: dict[int, int] = {}                     # producer id -> base offset of a droppable batch
        self._in_transaction: set[int] = set()

    def add(self, table: BatchTable, first: int, stop: int) -> None:
        """Learn from the batches [first, stop)."""
        slot = first_with_producer(table, first)
        while 0 <= slot < stop:
            batch = ProducerBatch.of(table[slot])
            if batch is not None:
                self._add(batch)
            slot = first_with_producer(table, slot + 1)

    def _add(self, batch: ProducerBatch) -> None:
        producer_id = batch.producer_id
        self._batches[batch.base_offset] = batch
        if batch.marker is not None:
            self._last.pop(producer_id, None)
            self._in_transaction.discard(producer_id)
            return
        before = self._last.pop(producer_id, None)
        if before is not None:
            del self._batches[before]
        if batch.is_transactional and producer_id not in self._in_transaction:
            self._in_transaction.add(producer_id)
        else:
            self._last[producer_id] = batch.base_offset

    def batches(self) -> Iterable[ProducerBatch]:
        """Return the collected batches, in log order."""
        return self._batches.values()


def _segment_of(body: dict[str, Any]) -> ConvertedSegment:
    del body["format"], body["version"]
    return ConvertedSegment(
        parts=tuple(_part_of(part) for part in body.pop("parts")),
        aborted=_lines_of(body.pop("aborted")),
        notes=tuple(body.pop("notes")),
        proof=_proof_of(body.pop("proof")),
        **body,
    )


def _part_of(body: dict[str, Any]) -> ConvertedPart:
    epochs = tuple(EpochStart(**fields) for fields in body.pop("epochs"))
    producers = tuple(
        ProducerBatch._make([*fields, None if marker is None else EndMarker._make(marker)])
        for *fields, marker in body.pop("producers")
    )
    judged(body["file"], Shape.FILE, None, CorruptCheckpointError)
    return ConvertedPart(epochs=epochs, producers=producers, **body)


def _lines_of(lines: list[dict[str, Any]] | None) -> tuple[AbortedTransaction, ...] | None:
    return None if lines is None else tuple(AbortedTransaction(**fields) for fields in lines)


def _proof_of(body: dict[str, dict[str, Any]]) -> SegmentProof:
    source, target = (
        RecordsDigest(files=tuple(body[side].pop("files")), **body[side]) for side in ("source", "target")
    )
    return SegmentProof(source, target)
