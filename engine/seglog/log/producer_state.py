"""What a broker remembers of each producer, computed from the batches of a log.

Kafka's ProducerStateManager and ProducerAppendInfo as they run when a log is replayed (origin
REPLICATION: nothing is refused, for the log was accepted once already). Feed it the batches in
log order and take a snapshot where a segment ends. It learns from v2 batches with a producer id
and passes over all others; it opens a batch only where that is a transaction marker.

A log that retention or compaction has shortened does not tell everything: begin with the
snapshot that lies at its start, and where a broker's own snapshot agrees with the log
(`contradiction`), prefer it.
"""
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from seglog._kernels.record_batch import RecordBatch
from seglog.errors import CorruptRecordError
from seglog.log.producer_snapshot import ProducerEntry
from seglog.segment.transaction_index import AbortedTransaction

# Control record: key = version int16, type int16; value of an end marker = version int16,
# coordinator epoch int32 (ControlRecordType.java, EndTransactionMarker.java).
_ABORT, _COMMIT = 0, 1
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")

_NONE = -1      # Kafka's NO_TIMESTAMP, NO_SEQUENCE, NO_PRODUCER_EPOCH, and "no offset"


@dataclass(slots=True)
class _Producer:
    """One producer's line of a snapshot, while it grows."""

    producer_epoch: int = _NONE
    last_sequence: int = _NONE
    last_offset: int = _NONE
    offset_delta: int = 0
    timestamp: int = _NONE
    coordinator_epoch: int = _NONE
    current_txn_first_offset: int = _NONE

    def take_epoch(self, epoch: int) -> None:
        """ProducerStateEntry.maybeUpdateProducerEpoch: batches of another epoch are forgotten."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.last_sequence = self.last_offset = _NONE
            self.offset_delta = 0


class ProducerState:
    """The producers of one partition up to a place in its log. Not thread-safe."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._producers = {
            e.producer_id: _Producer(
                e.producer_epoch, e.last_sequence, e.last_offset, e.offset_delta,
                e.timestamp, e.coordinator_epoch, e.current_txn_first_offset,
            )
            for e in entries
        }

    def add(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Learn from the next batch of the log; the transaction that it ends by an abort, else None.

        The result is the line that belongs into the .txnindex of the segment that holds the batch.
        Raises CorruptRecordError where a control batch does not hold a readable marker.
        """
        if batch.producer_id < 0:
            return None
        if batch.is_control:
            return self._end_transaction(batch)
        producer = self._producers.setdefault(batch.producer_id, _Producer())
        producer.take_epoch(batch.producer_epoch)
        producer.last_sequence = batch.last_sequence
        producer.last_offset = batch.last_offset
        producer.offset_delta = batch.last_offset - batch.base_offset
        producer.timestamp = batch.max_timestamp
        if batch.is_transactional and producer.current_txn_first_offset < 0:
            producer.current_txn_first_offset = batch.base_offset
        return None

    def _end_transaction(self, batch: RecordBatch) -> AbortedTransaction | None:
        marker = next(iter(batch), None)
        if marker is None:
            # Compaction removed the marker: the whole transaction had gone before it.
            return None
        key, value = marker.key, marker.value
        if key is None or len(key) < _CONTROL_KEY.size or value is None or len(value) < _END_MARKER.size:
            raise CorruptRecordError(
                "a control batch of a producer without a readable end-of-transaction marker",
                position=batch.position, offset=batch.base_offset,
            )
        _, kind = _CONTROL_KEY.unpack_from(key)
        _, coordinator_epoch = _END_MARKER.unpack_from(value)
        if kind not in (_ABORT, _COMMIT):
            raise CorruptRecordError(
                f"control record type {kind} with a producer id, expected {_ABORT} (abort) or {_COMMIT} (commit)",
                position=batch.position, offset=batch.base_offset,
            )
        producer = self._producers.setdefault(batch.producer_id, _Producer())
        first_offset = producer.current_txn_first_offset
        aborted = None
        if kind == _ABORT and first_offset >= 0:
            aborted = AbortedTransaction(
                producer_id=batch.producer_id,
                first_offset=first_offset,
                last_offset=batch.base_offset,
                last_stable_offset=self._stable_after(batch),
            )
        producer.take_epoch(batch.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = marker.timestamp
        producer.current_txn_first_offset = _NONE
        return aborted

    def _stable_after(self, marker: RecordBatch) -> int:
        """ProducerStateManager.lastStableOffset(completedTxn): the first transaction of others still open."""
        others = [
            p.current_txn_first_offset
            for producer_id, p in self._producers.items()
            if producer_id != marker.producer_id and p.current_txn_first_offset >= 0
        ]
        return min(others, default=marker.base_offset + 1)

    def entries(self) -> tuple[ProducerEntry, ...]:
        """The lines of a snapshot taken here, by producer id. (Kafka's order is that of a Java HashMap: no meaning.)"""
        return tuple(
            ProducerEntry(
                producer_id=producer_id,
                producer_epoch=p.producer_epoch,
                last_sequence=p.last_sequence,
                last_offset=p.last_offset,
                offset_delta=p.offset_delta,
                timestamp=p.timestamp,
                coordinator_epoch=p.coordinator_epoch,
                current_txn_first_offset=p.current_txn_first_offset,
            )
            for producer_id, p in sorted(self._producers.items())
        )

    def contradiction(self, entries: Iterable[ProducerEntry], end_offset: int) -> str | None:
        """Why a snapshot found at `end_offset` cannot be of this log up to there; None where it can.

        A broker's snapshot may know less (producers expire after a day) and more (batches that compaction
        removed, epochs bumped by a removed marker) than the log. It may not be behind the log in what it
        does tell, nor tell of offsets that are not before it.
        """
        for entry in entries:
            name = f"producer {entry.producer_id}"
            if entry.last_offset >= end_offset or entry.current_txn_first_offset >= end_offset:
                return f"{name} is past the snapshot's own end"
            known = self._producers.get(entry.producer_id)
            if known is None:
                continue
            if known.producer_epoch > entry.producer_epoch:
                return f"{name} has epoch {entry.producer_epoch}, the log {known.producer_epoch}"
            if known.producer_epoch < entry.producer_epoch:
                continue
            if known.last_offset > entry.last_offset:
                return f"{name} ends at offset {entry.last_offset}, the log's batch at {known.last_offset}"
            if known.last_offset == entry.last_offset >= 0 and known.last_sequence != entry.last_sequence:
                return f"{name} ends at sequence {entry.last_sequence}, the log at {known.last_sequence}"
        return None
