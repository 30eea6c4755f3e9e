"""A batch as the payload of an entry: messages one after another, compressed as a whole.

Read and written through protobuf; `entry.Entry.opened_payload` decompresses. Layout: docs/formats/pulsar_entry.md.
"""
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.format.payload_compression import PayloadCodec, compress_payload
from seglog.ledger.entry import Entry, build_entry, parse_message, pulsar_pb

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata

_MAX_INT32 = (1 << 31) - 1
# The size of its metadata, and their one required field: payload_size.
_MESSAGE_BYTES_MIN = 4 + 2
HINT_OF_NUMBER = "encode it as text: str(number)"
HINT_OF_VALUE = "encode text by value.encode(), and other values by json.dumps(value).encode()"


@dataclass(frozen=True, slots=True)
class BatchedMessage:
    """`value`: a view of the decompressed batch. With metadata.compacted_out it is a removed message's placeholder."""

    metadata: "SingleMessageMetadata"
    value: memoryview


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """`trailing_bytes`: those after the last message. Pulsar ignores them."""

    messages: list[BatchedMessage]
    trailing_bytes: int


def read_batch(opened: "Buffer", count: int) -> MessageBatch:
    """Parse the `count` messages (num_messages_in_batch) of a decompressed payload.

    Raises CorruptRecordError if the bytes do not contain them; `position` is that in the payload, `offset` the
    message's number in the batch.
    """
    if count < 1:
        raise CorruptRecordError(f"invalid batch of {count} messages")
    data = memoryview(opened).cast("B")
    kind = pulsar_pb().SingleMessageMetadata
    if count > max(len(data) // _MESSAGE_BYTES_MIN, 1):
        raise _short(0, 0, count, f"{len(data)} bytes are too few for so many messages")
    messages: list[BatchedMessage] = []
    pos = 0
    while len(messages) < count:
        size = int.from_bytes(data[pos : pos + 4], "big")
        begin = pos + 4
        if size > len(data) - begin:
            raise _short(pos, len(messages), count, f"metadata of {size} bytes, but {len(data) - begin} are left")
        try:
            metadata: SingleMessageMetadata = parse_message(kind, data[begin : begin + size])
        except CorruptRecordError as e:
            e.position, e.offset = begin, len(messages)
            raise
        begin += size
        if not 0 <= metadata.payload_size <= len(data) - begin:
            found = f"a value of {metadata.payload_size} bytes, but {len(data) - begin} are left"
            raise _short(pos, len(messages), count, found)
        messages.append(BatchedMessage(metadata, data[begin : begin + metadata.payload_size]))
        pos = begin + metadata.payload_size
    return MessageBatch(messages, len(data) - pos)


def _short(pos: int, number: int, count: int, found: str) -> CorruptRecordError:
    return CorruptRecordError(f"message {number} of {count} in a batch: {found}", position=pos, offset=number)


def batch_of(entry: Entry, limit_bytes: int = LogConfig().max_decompressed_message_bytes) -> MessageBatch:
    """Return the messages of an entry whose payload is a batch.

    Raises InvalidArgumentError if it is not one, and what Entry.opened_payload and read_batch raise.
    """
    fields = entry.fields()
    if not fields.is_batch:
        raise InvalidArgumentError("the entry is a single message, not a batch: its value is opened_payload()")
    return read_batch(entry.opened_payload(limit_bytes), fields.num_messages)


def write_batch(messages: "Iterable[tuple[SingleMessageMetadata, Buffer]]") -> bytes:
    """Encode messages as an uncompressed payload. Sets `payload_size` in a copy of each metadata."""
    parts: list[Buffer] = []
    for given, value in messages:
        value = contiguous(value)
        size = memoryview(value).nbytes
        if size > _MAX_INT32:
            raise InvalidArgumentError(f"a message's value can have at most 2 ** 31 - 1 bytes, not {size}")
        metadata = pulsar_pb().SingleMessageMetadata()
        metadata.CopyFrom(given)
        metadata.payload_size = size
        serialized = metadata.SerializeToString()
        parts += (len(serialized).to_bytes(4, "big"), serialized, value)
    return b"".join(parts)


def build_batch_entry(
    metadata: "MessageMetadata",
    messages: "Iterable[tuple[SingleMessageMetadata, Buffer]]",
    codec: int = PayloadCodec.NONE,
    *,
    checksum: bool = True,
) -> bytes:
    """Encode an entry with a batch. Sets, in a copy of `metadata`: num_messages_in_batch, uncompressed_size and, if it
    is compressed, compression.

    Raises InvalidArgumentError for a batch without messages, and what build_entry raises.
    """
    listed = list(messages)
    if not listed:
        raise InvalidArgumentError("a batch must have at least one message")
    opened = write_batch(listed)
    whole = pulsar_pb().MessageMetadata()
    whole.CopyFrom(metadata)
    whole.num_messages_in_batch = len(listed)
    return encode_in_place(whole, opened, codec, checksum)


def build_message_entry(
    metadata: "MessageMetadata", value: "Buffer", codec: int = PayloadCodec.NONE, *, checksum: bool = True
) -> bytes:
    """Encode an entry with one message that is not a batch; otherwise like build_batch_entry."""
    if metadata.HasField("num_messages_in_batch"):
        raise InvalidArgumentError("num_messages_in_batch makes it a batch: use build_batch_entry")
    whole = pulsar_pb().MessageMetadata()
    whole.CopyFrom(metadata)
    return encode_in_place(whole, value, codec, checksum)


def encode_in_place(
    metadata: "MessageMetadata", opened: "Buffer", codec: int = PayloadCodec.NONE, checksum: bool = True
) -> bytes:
    """Encode an entry with a payload that is not compressed yet; fills in the fields of `metadata` that say so."""
    codec = PayloadCodec.of(codec)
    opened = contiguous(opened)
    metadata.ClearField("compression")
    if codec is not PayloadCodec.NONE:
        metadata.compression = pulsar_pb().CompressionType.Value(codec.name)
    metadata.uncompressed_size = memoryview(opened).nbytes
    return build_entry(metadata, compress_payload(codec, opened), checksum=checksum)


def contiguous(value: "Buffer") -> "Buffer":
    """The value; a copy if its bytes are not one after another, as those of a slice with a step are."""
    try:
        return value if type(value) is bytes or memoryview(value).c_contiguous else bytes(value)
    except TypeError:
        raise InvalidArgumentError(
            f"the value must be bytes-like, not {type(value).__name__}",
            hint=HINT_OF_VALUE) from None
