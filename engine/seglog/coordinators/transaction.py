"""The transactions of one transactional id: its producer, its state, and how each step changes them.

    EMPTY ── AddPartitions ── ONGOING ── EndTxn ── PREPARE_COMMIT ── markers ── COMPLETE_COMMIT ── AddPartitions ...
                                 ├── EndTxn ─────── PREPARE_ABORT ─── markers ── COMPLETE_ABORT ── AddPartitions ...
                                 └── InitProducerId of another producer, or time: PREPARE_ABORT with the next epoch

A step is prepared (`prepare_*`), written to __transaction_state, and done (`complete`). Only one step can be under way
at a time (`pending`). With transaction.version 2 (KIP-890) each EndTxn gives the producer its next epoch, so that
nothing that comes late is taken for a part of the next transaction. Kafka's TransactionMetadata, 3.9's and 4's.
"""
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.held import text_bytes
from seglog.wire.error_codes import Errors

NO_PRODUCER_ID = -1
NO_EPOCH = -1
_MAX_EPOCH = 2**15 - 1
# The transaction.version of clients to whom each EndTxn gives an epoch, and that of all others.
WITH_EPOCHS, WITHOUT_EPOCHS = 2, 0
_NO_TIME = -1


class TransactionState(enum.IntEnum):
    """Kafka's numbers, as in __transaction_state."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As administrators see it: "PrepareCommit"."""
        return self.name.title().replace("_", "")


_State = TransactionState
_PREPARED = (_State.PREPARE_COMMIT, _State.PREPARE_ABORT)
# What a transactional id takes besides its name, and a partition of its transaction.
_ID_BYTES, _PARTITION_BYTES = 512, 128
_ENDED = (_State.EMPTY, _State.COMPLETE_COMMIT, _State.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """The state that a transactional id will have. Times in ms; -1: none. `client_version`: the transaction.version of
    the client; `next_producer_id`: the id that the producer gets at the end, because its epochs are used up."""

    state: TransactionState
    producer_id: int
    producer_epoch: int
    last_producer_id: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = _NO_TIME
    update_ms: int = _NO_TIME
    client_version: int = WITHOUT_EPOCHS
    next_producer_id: int = NO_PRODUCER_ID

    @property
    def after(self) -> tuple[int, int]:
        """The producer's id and epoch once a prepared transaction has ended."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch


class Fenced(Exception):
    """The transactional id now belongs to another producer."""


@dataclass(slots=True, eq=False)
class Transaction:
    """One transactional id. `last_producer_epoch`: the previous epoch, if the producer itself asked for the next one,
    or its transaction was aborted with that; it may ask again if the answer was lost."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    update_ms: int
    producer_epoch: int = NO_EPOCH
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    state: TransactionState = _State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = _NO_TIME
    client_version: int = WITHOUT_EPOCHS
    next_producer_id: int = NO_PRODUCER_ID
    pending: TransactionState | None = None

    # --- state -------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return self.size_with(len(self.partitions))

    def size_with(self, partitions: int) -> int:
        """What it would count for, with so many partitions."""
        return _ID_BYTES + text_bytes(self.transactional_id) + _PARTITION_BYTES * partitions

    @property
    def is_prepared(self) -> bool:
        return self.state in _PREPARED

    @property
    def is_in_a_step(self) -> bool:
        """Whether a step is under way. To Kafka the last one is, from the end's record until all markers are written.
        """
        return self.pending is not None or self.is_prepared

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no producer can get another epoch: the last one is reserved for fencing."""
        return is_exhausted(self.producer_epoch)

    def is_overdue(self, now_ms: int) -> bool:
        return self.state is _State.ONGOING and self.pending is None and self.start_ms + self.timeout_ms < now_ms

    def check_producer(self, producer_id: int, producer_epoch: int) -> Errors:
        """The error for a request that is not from its producer; NONE for others."""
        if producer_id != self.producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        return Errors.NONE if producer_epoch == self.producer_epoch else Errors.PRODUCER_FENCED

    def is_of_expected(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer that asks for its next epoch (KIP-360) may be the owner of this id."""
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.last_producer_id and is_exhausted(producer_epoch))
        )

    def check_end(self, producer_id: int, producer_epoch: int, commit: bool) -> tuple[Errors, bool]:
        """The error for an EndTxn that gives an epoch, and whether it is a repeated one, whose answer was lost: such a
        one has the epoch before. (The table in Kafka's TransactionCoordinator.endTransaction)"""
        if self.is_in_a_step:       # first: afterwards the producer may have another id and epoch
            return Errors.CONCURRENT_TRANSACTIONS, False
        has_new_id = producer_id == self.last_producer_id and self.producer_epoch == 0 and (
            producer_epoch == _MAX_EPOCH - 1)
        is_repeated = self.producer_epoch == producer_epoch + 1 or has_new_id
        if producer_id != self.producer_id and not has_new_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING, False
        may_be_repeated = self.state in (_State.COMPLETE_COMMIT, _State.COMPLETE_ABORT)
        if may_be_repeated and is_repeated:
            is_same = commit is (self.state is _State.COMPLETE_COMMIT)
            return (Errors.NONE, True) if is_same else (Errors.INVALID_TXN_STATE, False)
        if producer_epoch != self.producer_epoch or has_new_id:
            return Errors.PRODUCER_FENCED, False
        # An abort may come before the first partition: the producer wants another epoch.
        is_valid = self.state is _State.ONGOING or not commit
        return (Errors.NONE if is_valid else Errors.INVALID_TXN_STATE), False

    # --- steps -------------------------------------------------------------------------------------

    def prepare_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionStep:
        """Give the producer its next epoch. `expected_epoch`: the one that it believes it has. Raises Fenced."""
        epoch, last_epoch = self.producer_epoch + 1, NO_EPOCH
        if expected_epoch is not None:
            if self.producer_epoch in (NO_EPOCH, expected_epoch):
                last_epoch = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                raise Fenced
        return self._prepare(
            _State.EMPTY, producer_epoch=epoch, last_producer_epoch=last_epoch, timeout_ms=timeout_ms, update_ms=now_ms
        )

    def prepare_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last: bool
    ) -> TransactionStep:
        """Give the producer a new id, because the epochs of the old one are used up."""
        return self._prepare(
            _State.EMPTY, producer_id=producer_id, producer_epoch=0,
            last_producer_epoch=self.producer_epoch if keep_last else NO_EPOCH, timeout_ms=timeout_ms, update_ms=now_ms,
        )

    def prepare_partitions(
        self, added: Iterable[TopicPartition], now_ms: int, client_version: int
    ) -> TransactionStep:
        return self._prepare(
            _State.ONGOING, partitions=self.partitions.union(added), update_ms=now_ms,
            start_ms=now_ms if self.has_ended else self.start_ms, client_version=client_version,
        )

    def prepare_end(
        self, commit: bool, now_ms: int, client_version: int, next_producer_id: int = NO_PRODUCER_ID, *,
        fences: bool = False,
    ) -> TransactionStep:
        """`next_producer_id`: for a producer whose epochs are used up; `fences`: give the next epoch in any case."""
        state = _State.PREPARE_COMMIT if commit else _State.PREPARE_ABORT
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if fences or client_version >= WITH_EPOCHS:
            epoch, last_epoch = min(epoch + 1, _MAX_EPOCH), epoch
        return self._prepare(
            state, partitions=self.partitions, start_ms=now_ms if self.has_ended else self.start_ms, update_ms=now_ms,
            producer_epoch=epoch, last_producer_epoch=last_epoch, client_version=client_version,
            next_producer_id=next_producer_id,
        )

    def prepare_fence(self, now_ms: int, next_producer_id: int = NO_PRODUCER_ID) -> TransactionStep:
        """Abort with the next epoch, so that the old producer can no longer write. It may ask for that epoch as long
        as nobody else did. `next_producer_id`: for one that gets an epoch with each end, if they are used up."""
        return self.prepare_end(False, now_ms, self.client_version, next_producer_id, fences=True)

    def prepare_completion(self, now_ms: int) -> TransactionStep:
        """End the transaction, whose markers have all been written."""
        state = _State.COMPLETE_COMMIT if self.state is _State.PREPARE_COMMIT else _State.COMPLETE_ABORT
        if self.next_producer_id == NO_PRODUCER_ID:
            return self._prepare(state, start_ms=self.start_ms, update_ms=now_ms)
        return self._prepare(
            state, start_ms=self.start_ms, update_ms=now_ms, producer_id=self.next_producer_id, producer_epoch=0)

    def _prepare(
        self, state: TransactionState, *, update_ms: int, producer_id: int | None = None,
        producer_epoch: int | None = None, last_producer_epoch: int | None = None, timeout_ms: int | None = None,
        partitions: frozenset[TopicPartition] = frozenset(), start_ms: int = _NO_TIME,
        client_version: int | None = None, next_producer_id: int = NO_PRODUCER_ID,
    ) -> TransactionStep:
        assert self.pending is None, f"{self} has a step under way"
        self.pending = state
        return TransactionStep(
            state=state,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.producer_epoch if producer_epoch is None else producer_epoch,
            last_producer_id=self.producer_id,
            last_producer_epoch=self.last_producer_epoch if last_producer_epoch is None else last_producer_epoch,
            timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            partitions=partitions, start_ms=start_ms, update_ms=update_ms,
            client_version=self.client_version if client_version is None else client_version,
            next_producer_id=next_producer_id,
        )

    def complete(self, step: TransactionStep) -> None:
        """Apply a step that is durable."""
        assert self.pending is step.state
        self.pending = None
        self.state = step.state
        self.producer_id, self.producer_epoch = step.producer_id, step.producer_epoch
        self.last_producer_id, self.last_producer_epoch = step.last_producer_id, step.last_producer_epoch
        self.timeout_ms = step.timeout_ms
        self.partitions = step.partitions
        self.start_ms, self.update_ms = step.start_ms, step.update_ms
        self.client_version, self.next_producer_id = step.client_version, step.next_producer_id

    def give_up(self) -> None:
        """Drop a step that could not be written: nothing changes."""
        self.pending = None


def is_exhausted(epoch: int) -> bool:
    return epoch >= _MAX_EPOCH - 1
