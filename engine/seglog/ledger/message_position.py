"""The position of a single message: in a ledger, an entry, a batch. And which message of an entry is the last.

    field 31 (compacted_batch_indexes) ── its last number          from the metadata alone
    encrypted                          ── the last of the batch    from the metadata alone
    neither                            ── the last that compacted_out does not mark: decompresses the payload

This follows PIP-429. The third line is for batches compacted before it, by Pulsar up to 4.0.
"""
from typing import ClassVar

from seglog._kernels.batched_messages import BatchedMessages
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.ledger.entry import Entry
from seglog.ledger.position import Position
from seglog.named_tuple import NamedTuple


class _Fields(NamedTuple):
    ledger_id: int
    entry_id: int
    batch_index: int
    publish_time: int


class MessagePosition(_Fields):
    """A message's position. `batch_index` -1: it is not in a batch. `publish_time`: that of its entry, in ms.

    EARLIEST: before every message.
    """

    __slots__ = ()

    # There is no message.
    EARLIEST: ClassVar["MessagePosition"]

    @property
    def position(self) -> Position:
        """The position of its entry."""
        return Position(self.ledger_id, self.entry_id)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


MessagePosition.EARLIEST = MessagePosition(-1, -1, 0, 0)


def last_message(
    position: Position, entry: Entry, limit_bytes: int = LogConfig().max_decompressed_message_bytes
) -> MessagePosition | None:
    """Return the last message of an entry that compaction left in it; None if a batch of the old form has none.

    Raises CorruptRecordError for metadata that does not parse and for numbers that the batch does not have,
    RecordTooLargeError, MissingCodecError. A payload of the old form that cannot be read was kept unchanged: its last
    message is the last of the batch.
    """
    fields = entry.fields()
    count = fields.num_messages
    index: int | None
    if count <= 1:
        index = -1
    elif indexes := fields.compacted_indexes:
        index = max(indexes)
        if min(indexes) < 0 or index >= count:
            raise CorruptRecordError(
                f"invalid compacted_batch_indexes {indexes} in a batch of {count} messages", file=entry.name
            )
    elif fields.is_encrypted:
        index = count - 1
    else:
        index = _last_live(entry, count, limit_bytes)
    if index is None:
        return None
    ledger_id, entry_id = position
    # One step in C: the class's own __new__ is Python code.
    return tuple.__new__(MessagePosition, (ledger_id, entry_id, index, fields.publish_time))


def _last_live(entry: Entry, count: int, limit_bytes: int) -> int | None:
    try:
        found = BatchedMessages(entry.opened_payload(limit_bytes), count, entry.name).last_live()
    except CorruptRecordError:
        return count - 1
    return None if found < 0 else found
