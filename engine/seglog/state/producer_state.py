"""The producers of a log: which batches to refuse, which are duplicates, and which transactions are still open.

Kafka's ProducerStateManager and ProducerAppendInfo in memory; the files are in `seglog.state.producer_snapshots`. An
append calls `prepare` before it writes, which changes nothing, and passes the result to `apply` after the write. A
replay calls `add` with the batches in log order, and nothing is refused, because the log was accepted once already.
Both use only v2 batches with a producer id; a batch is opened only if it is a transaction marker.

A log that retention or compaction has shortened does not tell everything: begin with the snapshot at its start, and if
a broker's own snapshot agrees with the log (`contradiction`), prefer it.
"""
import enum
import os
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from seglog._kernels.batch_survey import first_with_producer
from seglog._kernels.producer_table import FrozenProducers, ProducerTable
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from seglog.named_tuple import NamedTuple
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.open_transactions import Transactions
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot, checked_body

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Control record: key = version int16, type int16; value of an end marker = version int16,
# coordinator epoch int32 (ControlRecordType.java, EndTransactionMarker.java).
_ABORT, _COMMIT = 0, 1
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")

_NONE = -1      # Kafka's NO_TIMESTAMP, NO_SEQUENCE, NO_PRODUCER_EPOCH, and "no offset"

# How many batches of a producer are remembered (ProducerStateEntry.NUM_BATCHES_TO_RETAIN): as many as a producer may
# have in flight.
BATCHES_REMEMBERED = 5
_SEQUENCES = 1 << 31
_ALL = 2**63 - 1


class Origin(enum.Enum):
    """The origin of an append, which decides what is checked: Kafka's AppendOrigin."""

    CLIENT = "client"               # epoch, sequence, duplicates
    COORDINATOR = "coordinator"     # epoch: a coordinator's batches have no sequences
    REPLICATION = "replication"     # nothing: it was checked where it was first written


class Duplicate(NamedTuple):
    """An append that is in the log already: its offsets, and the largest timestamp of its last batch (ms)."""

    first_offset: int
    last_offset: int
    timestamp: int


class _Batch(NamedTuple):
    """One batch of a producer: Kafka's BatchMetadata."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """DefaultRecordBatch.decrementSequence: sequences wrap at 2^31."""
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


_NO_BATCH = _Batch(_NONE, _NONE, 0, _NONE)


class _Producer(NamedTuple):
    """One producer: Kafka's ProducerStateEntry. Never changed: an append replaces it whole."""

    producer_epoch: int = _NONE
    batches: tuple[_Batch, ...] = ()        # the last five of this epoch
    timestamp: int = _NONE
    coordinator_epoch: int = _NONE
    current_txn_first_offset: int = _NONE

    @property
    def last_batch(self) -> _Batch:
        return self.batches[-1] if self.batches else _NO_BATCH

    def _batches_of(self, epoch: int) -> tuple[_Batch, ...]:
        """ProducerStateEntry.maybeUpdateProducerEpoch: batches of another epoch are forgotten."""
        return self.batches if epoch == self.producer_epoch else ()

    def after_data(self, batch: "RecordBatch | ProducerBatch") -> "_Producer":
        """ProducerAppendInfo.appendDataBatch, after its checks."""
        last_offset = batch.last_offset
        added = _Batch(batch.last_sequence, last_offset, last_offset - batch.base_offset, batch.max_timestamp)
        first_offset = self.current_txn_first_offset
        if first_offset < 0 and batch.is_transactional:
            first_offset = batch.base_offset
        return _Producer(
            batch.producer_epoch,
            (*self._batches_of(batch.producer_epoch), added)[-BATCHES_REMEMBERED:],
            added.timestamp,
            self.coordinator_epoch,
            first_offset,
        )

    def after_marker(self, epoch: int, coordinator_epoch: int, timestamp: int) -> "_Producer":
        """ProducerAppendInfo.appendEndTxnMarker, after its checks: no transaction is open."""
        return _Producer(epoch, self._batches_of(epoch), timestamp, coordinator_epoch)


class EndMarker(NamedTuple):
    """The marker that ends a transaction; `timestamp` in ms."""

    is_abort: bool
    coordinator_epoch: int
    timestamp: int


class ProducerBatch(NamedTuple):
    """The part of a v2 batch that concerns its producer, without the batch's bytes. `marker`: of a control batch."""

    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    last_sequence: int
    max_timestamp: int
    is_transactional: bool
    marker: EndMarker | None = None

    @classmethod
    def of(cls, batch: RecordBatch) -> "ProducerBatch | None":
        """None if the batch concerns no producer: it has no producer id, or compaction removed the marker.

        Raises CorruptRecordError if a control batch does not hold a readable marker, or the batch ends before it
        begins: only a walk that checks the order of offsets refuses that itself.
        """
        if batch.producer_id < 0:
            return None
        if batch.last_offset < batch.base_offset:
            raise CorruptRecordError(
                f"the batch ends at offset {batch.last_offset}, before it begins",
                position=batch.position, offset=batch.base_offset,
            )
        marker = read_marker(batch) if batch.is_control else None
        if batch.is_control and marker is None:
            return None
        return cls(
            batch.producer_id, batch.producer_epoch, batch.base_offset, batch.last_offset, batch.last_sequence,
            batch.max_timestamp, batch.is_transactional, marker,
        )


class _Begun(NamedTuple):
    producer_id: int
    first_offset: int


class _Completed(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int
    is_aborted: bool


class Update:
    """The changes that `prepare` found for an append. Valid for one `apply`, of the state that made it."""

    __slots__ = ("producers", "transactions")

    def __init__(self) -> None:
        self.producers: dict[int, _Producer] = {}
        self.transactions: list[_Begun | _Completed] = []

    @property
    def begun(self) -> list[tuple[int, int]]:
        """Producer id and first offset of each transaction that begins."""
        return [(step.producer_id, step.first_offset) for step in self.transactions if isinstance(step, _Begun)]


class ProducerState:
    """The producers of one partition up to an offset of its log.

    Not thread-safe, except for `last_stable_offset` and `first_undecided_offset`.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._begin(ProducerSnapshot.of(entries).body())

    def _begin(self, body: "Buffer") -> None:
        # All producers, as in a snapshot.
        self._table = ProducerTable()
        self._table.load(body)
        # Those that have written since, with more than their last batch.
        self._producers: dict[int, _Producer] = {}
        # The last epochs that were given to producers, even if nothing was written with them yet.
        self.fences: Mapping[int, int] = {}
        self._transactions = Transactions(self._table.open_transactions())

    @classmethod
    def from_snapshot(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """The state in a snapshot. Raises CorruptSnapshotError."""
        self = cls.__new__(cls)
        self._begin(checked_body(raw, file=file))
        return self

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, producer_id: int) -> bool:
        return self._table.get(producer_id) is not None

    def _known(self, producer_id: int) -> _Producer | None:
        producer = self._producers.get(producer_id)
        if producer is None and (fields := self._table.get(producer_id)) is not None:
            producer = _from_fields(*fields)
        return producer

    # --- an append -------------------------------------------------------------------------------

    def prepare(self, batches: Iterable[RecordBatch], origin: Origin = Origin.CLIENT) -> Update | Duplicate:
        """What appending `batches` would change, or where in the log they are already. Changes nothing.

        The batches have the offsets that they will have in the log. A Duplicate (only for a client) says that each of
        them is among the last five of its producer: nothing must be written. Control batches have no sequences to
        check.

        Raises OutOfOrderSequenceError, InvalidProducerEpochError; InvalidTxnStateError for a plain batch while the
        producer has a transaction open, and for a marker of a fenced coordinator; CorruptRecordError for a control
        batch without a readable marker.
        """
        batches = list(batches)
        if origin is Origin.CLIENT and (duplicate := self._find_duplicate(batches)):
            return duplicate
        update = Update()
        for batch in batches:
            if batch.producer_id < 0:
                continue
            producer = update.producers.get(batch.producer_id) or self._known(batch.producer_id) or _Producer()
            if batch.is_control:
                self._prepare_marker(update, producer, batch, origin)
            else:
                self._prepare_data(update, producer, batch, origin)
        return update

    def check_epoch(self, producer_id: int, epoch: int, offset: int) -> None:
        """Raises InvalidProducerEpochError if a later epoch has written, or was given out. (checkProducerEpoch)"""
        self._check_epoch(self._known(producer_id) or _Producer(), producer_id, epoch, offset)

    def apply(self, update: Update) -> list[AbortedTransaction]:
        """Record an append that was written. Returns the entries for the .txnindex of its segment."""
        self._producers.update(update.producers)
        for producer_id, p in update.producers.items():
            last = p.last_batch
            self._table.put(
                producer_id, p.producer_epoch, last.last_sequence, last.last_offset, last.offset_delta, p.timestamp,
                p.coordinator_epoch, p.current_txn_first_offset,
            )
        ended = []
        for step in update.transactions:
            if isinstance(step, _Begun):
                self._transactions.begin(step.producer_id, step.first_offset)
                continue
            stable = self._transactions.complete(step.producer_id, step.marker_offset)
            if step.is_aborted:
                ended.append(AbortedTransaction(step.producer_id, step.first_offset, step.marker_offset, stable))
        return ended

    def add(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Record the next batch of a log that readers see. Returns the transaction that it aborts, or None.

        The result is the entry for the .txnindex of the segment that holds the batch. Raises CorruptRecordError if a
        control batch does not hold a readable marker.
        """
        found = ProducerBatch.of(batch)
        return None if found is None else self.replay(found)

    def replay(self, batch: ProducerBatch) -> AbortedTransaction | None:
        """As `add`, from the kept part of a batch."""
        producer = self._known(batch.producer_id) or _Producer()
        update = Update()
        if batch.marker is None:
            _note_data(update, producer, batch)
        else:
            _note_marker(update, producer, batch, batch.marker)
        ended = self.apply(update)
        self._transactions.on_high_watermark_updated(batch.last_offset + 1)
        return ended[0] if ended else None

    def add_table(self, table: BatchTable) -> list[AbortedTransaction]:
        """`add` the batches of a table; those without a producer cost next to nothing."""
        ended = []
        slot = first_with_producer(table)
        while slot >= 0:
            aborted = self.add(table[slot])
            if aborted is not None:
                ended.append(aborted)
            slot = first_with_producer(table, slot + 1)
        return ended

    def _find_duplicate(self, batches: list[RecordBatch]) -> Duplicate | None:
        """Where the batches were appended before (ProducerStateEntry.findDuplicateBatch); None if one was not.

        A broker takes one batch at a time from a producer. If several are appended at once, all must be duplicates: in
        a mix of old and new ones, the old ones are out of sequence.
        """
        found = []
        for batch in batches:
            producer = self._known(batch.producer_id)
            if producer is None or batch.is_control or batch.producer_epoch != producer.producer_epoch:
                return None
            known = [
                b for b in producer.batches
                if b.first_sequence == batch.base_sequence and b.last_sequence == batch.last_sequence
            ]
            if not known:
                return None
            found.append(known[0])
        return Duplicate(found[0].first_offset, found[-1].last_offset, found[-1].timestamp) if found else None

    def _check_epoch(self, producer: _Producer, producer_id: int, epoch: int, offset: int) -> None:
        last = max(producer.producer_epoch, self.fences.get(producer_id, _NONE))
        if epoch < last:
            raise InvalidProducerEpochError(
                f"producer {producer_id} writes with epoch {epoch}, but its last epoch is {last}", offset=offset)

    def _prepare_data(self, update: Update, producer: _Producer, batch: RecordBatch, origin: Origin) -> None:
        if origin is not Origin.REPLICATION:
            self._check_epoch(producer, batch.producer_id, batch.producer_epoch, batch.base_offset)
            if origin is Origin.CLIENT:
                _check_sequence(producer, batch)
            if producer.current_txn_first_offset >= 0 and not batch.is_transactional:
                raise InvalidTxnStateError(
                    f"producer {batch.producer_id} writes a plain batch while its transaction from offset "
                    f"{producer.current_txn_first_offset} is open", offset=batch.base_offset)
        _note_data(update, producer, batch)

    def _prepare_marker(self, update: Update, producer: _Producer, batch: RecordBatch, origin: Origin) -> None:
        marker = read_marker(batch)
        if marker is None:
            return
        if origin is not Origin.REPLICATION:
            self._check_epoch(producer, batch.producer_id, batch.producer_epoch, batch.base_offset)
            if marker.coordinator_epoch < producer.coordinator_epoch:
                raise InvalidTxnStateError(
                    f"the marker for producer {batch.producer_id} has coordinator epoch {marker.coordinator_epoch}, "
                    f"below the last one, {producer.coordinator_epoch}", offset=batch.base_offset)
        _note_marker(update, producer, batch, marker)

    # --- what is decided -------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """One past the last offset that readers of committed data see, if others see up to `high_watermark`."""
        return self._transactions.last_stable_offset(high_watermark)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Readers see the log up to `high_watermark`: markers below it need not be remembered."""
        self._transactions.on_high_watermark_updated(high_watermark)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if there is none."""
        return self._transactions.first_undecided_offset

    # --- the whole of it -------------------------------------------------------------------------

    def remove_expired(self, now_ms: int, expiration_ms: int, at_most: int = _ALL) -> None:
        """Forget producers that wrote nothing for `expiration_ms` and have no transaction open (removeExpiredProducers)

        `at_most`: the most to forget in this call; the rest go in later calls.
        """
        for producer_id in self._table.expire(max(now_ms - expiration_ms, -(2**63)), at_most):
            self._producers.pop(producer_id, None)

    def frozen(self) -> FrozenProducers:
        """A snapshot of the current state, which any thread may encode at any time: later changes do not affect it."""
        return self._table.freeze()

    def to_snapshot(self) -> bytes:
        """The bytes of a snapshot of the current state, by producer id."""
        return self.frozen().encode()

    def entries(self) -> tuple[ProducerEntry, ...]:
        """The entries of a snapshot of the current state, by producer id. (Kafka's order, a Java HashMap's, has no
        meaning.)"""
        return tuple(ProducerEntry(*fields) for fields in self.frozen().rows())

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """The entry of one producer; None if it is unknown."""
        fields = self._table.get(producer_id)
        return None if fields is None else ProducerEntry(*fields)

    def open_transactions(self) -> list[ProducerEntry]:
        """The producers with an open transaction, in the order in which the transactions began."""
        entries = (self.entry(producer_id) for producer_id in self._transactions.producer_ids)
        return [entry for entry in entries if entry is not None]

    def contradiction(self, entries: Iterable[ProducerEntry], end_offset: int) -> str | None:
        """Why a snapshot found at `end_offset` cannot belong to this log up to there; None if it can.

        A broker's snapshot may know less (producers expire after a day) and more (batches that compaction removed,
        epochs bumped by a removed marker) than the log. But what it says must not be older than the log, nor be about
        offsets at or past its end.
        """
        for entry in entries:
            name = f"producer {entry.producer_id}"
            if entry.last_offset >= end_offset or entry.current_txn_first_offset >= end_offset:
                return f"{name} is past the snapshot's own end"
            known = self._known(entry.producer_id)
            if known is None:
                continue
            if known.producer_epoch > entry.producer_epoch:
                return f"{name} has epoch {entry.producer_epoch}, the log {known.producer_epoch}"
            if known.producer_epoch < entry.producer_epoch:
                continue
            last = known.last_batch
            if last.last_offset > entry.last_offset:
                return f"{name} ends at offset {entry.last_offset}, the log's batch at {last.last_offset}"
            if last.last_offset == entry.last_offset >= 0 and last.last_sequence != entry.last_sequence:
                return f"{name} ends at sequence {entry.last_sequence}, the log at {last.last_sequence}"
        return None


def _from_fields(
    producer_id: int, producer_epoch: int, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int,
    coordinator_epoch: int, current_txn_first_offset: int,
) -> _Producer:
    """A producer as in a snapshot: with only its last batch."""
    batches = (_Batch(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
    return _Producer(producer_epoch, batches, timestamp, coordinator_epoch, current_txn_first_offset)


def _check_sequence(producer: _Producer, batch: RecordBatch) -> None:
    """ProducerAppendInfo.checkSequence.

    An unknown producer may begin anywhere: its batches may have been deleted, and it may have expired. A known one
    begins each epoch at 0, and continues with the sequence after its last.
    """
    if producer.producer_epoch == _NONE:
        return
    if batch.producer_epoch == producer.producer_epoch:
        expected = (producer.last_batch.last_sequence + 1) % _SEQUENCES
    else:
        expected = 0
    if batch.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} writes sequence {batch.base_sequence} of epoch {batch.producer_epoch}, "
            f"expected {expected}; its last is {producer.last_batch.last_sequence} of epoch {producer.producer_epoch}",
            offset=batch.base_offset)


def _note_data(update: Update, producer: _Producer, batch: RecordBatch | ProducerBatch) -> None:
    after = update.producers[batch.producer_id] = producer.after_data(batch)
    if after.current_txn_first_offset != producer.current_txn_first_offset:
        update.transactions.append(_Begun(batch.producer_id, after.current_txn_first_offset))


def _note_marker(
    update: Update, producer: _Producer, batch: RecordBatch | ProducerBatch, marker: EndMarker
) -> None:
    # A marker without data before it decides nothing: only the producer's entry changes.
    if producer.current_txn_first_offset >= 0:
        update.transactions.append(_Completed(
            batch.producer_id, producer.current_txn_first_offset, batch.base_offset, marker.is_abort))
    update.producers[batch.producer_id] = producer.after_marker(
        batch.producer_epoch, marker.coordinator_epoch, marker.timestamp)


def read_marker(batch: RecordBatch) -> EndMarker | None:
    """The end-of-transaction marker of a control batch (EndTransactionMarker.deserialize).

    None if compaction removed it: the whole transaction was removed before it.
    """
    record = next(iter(batch), None)
    if record is None:
        return None
    key, value = record.key, record.value
    if key is None or len(key) < _CONTROL_KEY.size or value is None or len(value) < _END_MARKER.size:
        raise CorruptRecordError(
            "the control batch of a producer has no readable end-of-transaction marker",
            position=batch.position, offset=batch.base_offset,
        )
    _, kind = _CONTROL_KEY.unpack_from(key)
    _, coordinator_epoch = _END_MARKER.unpack_from(value)
    if kind not in (_ABORT, _COMMIT):
        raise CorruptRecordError(
            f"unknown control record type {kind} with a producer id; expected {_ABORT} (abort) or {_COMMIT} (commit)",
            position=batch.position, offset=batch.base_offset,
        )
    return EndMarker(kind == _ABORT, coordinator_epoch, record.timestamp)
