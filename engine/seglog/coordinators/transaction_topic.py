"""__transaction_state: transactional ids as records, as a broker writes them.

    TransactionLogKey 0 ── TransactionLogValue 0     the new state of a transactional id
                        ── TransactionLogValue 1     the same, of a producer that gets an epoch with each EndTxn
                        ── no value                  it has expired
"""
from collections.abc import Callable

from seglog.coordinators.held import Held
from seglog.coordinators.internal_topic import APPEND_ERRORS, InternalTopic
from seglog.coordinators.transaction import (
    NO_EPOCH,
    WITH_EPOCHS,
    Transaction,
    TransactionState,
    TransactionStep,
)
from seglog.errors import SeglogError
from seglog.logger import Logger
from seglog.wire.codec import decode_versioned, encode_versioned
from seglog.wire.error_codes import Errors
from seglog.wire.internal_records import encode_key
from seglog.wire.internal_topics import TRANSACTIONS_TOPIC
from seglog.wire.stored_records import TransactionLogKey, TransactionLogValue

_LOG = Logger(__name__)

# Brokers before 3.5 do not know version 1, so it is only used for what version 0 has no field for.
_VERSION, _VERSION_WITH_EPOCHS = 0, 1


class TransactionTopic:
    """Writes transactional ids, and reads them when the coordinator starts."""

    def __init__(self, topic: InternalTopic) -> None:
        self.topic = topic
        self.held = Held()      # by all transactional ids

    def store(self, transaction: Transaction, step: TransactionStep, done: Callable[[Errors], None]) -> None:
        """Write a prepared step, and complete it when it is durable; if it cannot be written, give it up."""
        held = self.held

        def appended(error: Errors, log_offset: int | None) -> None:
            if error is Errors.NONE:
                held.transactions -= transaction.size_bytes
                transaction.complete(step)
                held.transactions += transaction.size_bytes
            else:
                transaction.give_up()
            done(APPEND_ERRORS.get(error, error))

        key = transaction.transactional_id
        self.topic.append(key, [(transaction_key(key), transaction_value(step))], appended)

    def remove(self, transactional_id: str, done: Callable[[Errors], None]) -> None:
        self.topic.append(
            transactional_id, [(transaction_key(transactional_id), None)],
            lambda error, log_offset: done(APPEND_ERRORS.get(error, error)),
        )

    def load(self) -> dict[str, Transaction]:
        """The transactions by transactional id. Raises what reading the logs raises."""
        found: dict[str, Transaction] = {}
        for batches in self.topic.partitions():
            for batch in batches:
                for record in [] if batch.is_control else batch:
                    try:
                        key = decode_versioned(TransactionLogKey, bytes(record.key or b""))[1].transactional_id
                        if record.value is None:
                            found.pop(key, None)
                        else:
                            found[key] = read_transaction(key, bytes(record.value))
                    except (SeglogError, ValueError) as error:
                        _LOG.warning("%s: ignored record %d, whose format is not Kafka's: %s",
                                     TRANSACTIONS_TOPIC, record.offset, error)
        return found


def transaction_key(transactional_id: str) -> bytes:
    return encode_key(TransactionLogKey(transactional_id=transactional_id))


def transaction_value(step: TransactionStep) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(step.partitions):
        by_topic.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=step.producer_id, producer_epoch=step.producer_epoch, transaction_timeout_ms=step.timeout_ms,
        transaction_status=step.state, transaction_last_update_timestamp_ms=step.update_ms,
        transaction_start_timestamp_ms=step.start_ms,
        transaction_partitions=None if step.state is TransactionState.EMPTY else [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in by_topic.items()
        ],
    )
    if step.client_version < WITH_EPOCHS:
        return encode_versioned(value, _VERSION)
    value.previous_producer_id, value.next_producer_id = step.last_producer_id, step.next_producer_id
    value.client_transaction_version = step.client_version
    return encode_versioned(value, _VERSION_WITH_EPOCHS)


def read_transaction(transactional_id: str, raw: bytes) -> Transaction:
    """Decode a transaction. Raises ProtocolError, UnsupportedVersionError, ValueError for an unknown state."""
    value = decode_versioned(TransactionLogValue, raw)[1]
    return Transaction(
        transactional_id, value.producer_id, value.transaction_timeout_ms, value.transaction_last_update_timestamp_ms,
        producer_epoch=value.producer_epoch, last_producer_id=value.previous_producer_id, last_producer_epoch=NO_EPOCH,
        client_version=value.client_transaction_version, next_producer_id=value.next_producer_id,
        state=TransactionState(value.transaction_status),
        partitions=frozenset(
            (row.topic, partition) for row in value.transaction_partitions or () for partition in row.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
    )
