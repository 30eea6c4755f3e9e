"""Translates the engine's exceptions into Kafka's error codes."""
from seglog import errors
from seglog.format import names
from seglog.log.transactions import CoordinatorFencedError
from seglog.wire.error_codes import Errors

# The first class that matches counts, so a class comes before its bases. (Errors.forException of a broker's exceptions)
_CODES: tuple[tuple[type[BaseException], Errors], ...] = (
    (errors.CorruptRecordError, Errors.CORRUPT_MESSAGE),
    (errors.OffsetOutOfRangeError, Errors.OFFSET_OUT_OF_RANGE),
    (errors.RecordTooLargeError, Errors.MESSAGE_TOO_LARGE),
    (errors.InvalidTimestampError, Errors.INVALID_TIMESTAMP),
    (errors.InvalidRecordError, Errors.INVALID_RECORD),
    (errors.OutOfOrderSequenceError, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.InvalidProducerEpochError, Errors.INVALID_PRODUCER_EPOCH),
    (CoordinatorFencedError, Errors.TRANSACTION_COORDINATOR_FENCED),
    (errors.InvalidTxnStateError, Errors.INVALID_TXN_STATE),
    (errors.UnsupportedCompressionTypeError, Errors.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.MissingCodecError, Errors.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.UnsupportedForMessageFormatError, Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (errors.UnsupportedVersionError, Errors.UNSUPPORTED_VERSION),
    (errors.TopicExistsError, Errors.TOPIC_ALREADY_EXISTS),
    (errors.TooManyPartitionsError, Errors.POLICY_VIOLATION),
    (errors.InvalidTopicError, Errors.INVALID_TOPIC_EXCEPTION),
    (errors.InvalidConfigError, Errors.INVALID_CONFIG),
    (errors.InvalidArgumentError, Errors.INVALID_REQUEST),
    (errors.StorageError, Errors.KAFKA_STORAGE_ERROR),
    (errors.LogLockedError, Errors.KAFKA_STORAGE_ERROR),    # clients try again: the other process may end
)


def error_of(error: BaseException) -> Errors:
    """The error code of an exception; UNKNOWN_SERVER_ERROR for an unexpected one."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Errors.UNKNOWN_SERVER_ERROR)


def unknown_topic(name: str) -> Errors:
    """The error for a topic that does not exist: its name is invalid, or it is unknown."""
    return Errors.UNKNOWN_TOPIC_OR_PARTITION if names.topic_fault(name) is None else Errors.INVALID_TOPIC_EXCEPTION


def message_of(error: BaseException) -> str:
    """The message of an exception for clients, without paths of this machine."""
    return error.what if isinstance(error, errors.SeglogError) else type(error).__name__
