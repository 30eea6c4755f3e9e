"""An entry of a ledger: what a Pulsar broker stores for one message or one batch of messages.

An Entry borrows the bytes that it is made of and never changes them; `payload()` and the like are views.
Sizes are read when it is made, hot fields by a kernel when asked for, all fields through protobuf, imported then.
Layout: docs/formats/pulsar_entry.md.
"""
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeVar

from seglog._kernels.crc import crc32c
from seglog._kernels.entry_frame import EntryFrame, MessageFields, put_broker_metadata
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, EncryptedPayloadError, InvalidArgumentError
from seglog.format.payload_compression import open_payload

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

    from seglog.pulsar_pb.entry_pb2 import BrokerEntryMetadata, MessageMetadata

M = TypeVar("M", bound="Message")

CHECKSUM_MAGIC = b"\x0e\x01"


def pulsar_pb() -> ModuleType:
    """The message classes of proto/pulsar/entry.proto. protobuf costs more to import than most uses of an entry."""
    from seglog.pulsar_pb import entry_pb2

    return entry_pb2


def parse_message(kind: type[M], data: "Buffer", file: str | None = None) -> M:
    """`data` as a protobuf message with all its required fields. Raises CorruptRecordError."""
    from google.protobuf.message import DecodeError

    try:
        message = kind.FromString(bytes(data))
        missing = message.FindInitializationErrors()  # type: ignore[attr-defined]
    except (DecodeError, UnicodeDecodeError) as e:
        raise CorruptRecordError(f"{kind.__name__} does not parse: {e}", file=file) from e
    if missing:
        raise CorruptRecordError(f"{kind.__name__} lacks required fields: {', '.join(missing)}", file=file)
    return message


class Entry(EntryFrame):
    """An entry as it is stored, with or without the broker's part.

    `fields()` is cheap and has what hot paths need; `metadata` and `broker_metadata` are whole protobuf messages,
    parsed at every call.
    """

    @property
    def metadata(self) -> "MessageMetadata":
        """Raises CorruptRecordError."""
        metadata: MessageMetadata = parse_message(pulsar_pb().MessageMetadata, self.metadata_bytes(), self.name)
        return metadata

    @property
    def broker_metadata(self) -> "BrokerEntryMetadata | None":
        """None where the entry has no broker's part. Raises CorruptRecordError."""
        if not self.has_broker_part:
            return None
        metadata: BrokerEntryMetadata = parse_message(pulsar_pb().BrokerEntryMetadata, self.broker_bytes(), self.name)
        return metadata

    def with_broker_metadata(self, broker_timestamp: int | None = None, index: int | None = None) -> "Self":
        """A new entry with the broker's part in front: time in ms since 1970, index of the entry's last message.

        Raises InvalidArgumentError where it has one already.
        """
        return type(self)(put_broker_metadata(self.raw(), broker_timestamp, index), self.name)

    def check_crc(self) -> None:
        """Raises CorruptRecordError where the checksum that stands there is not that of the bytes."""
        if not self.crc_is_valid():
            found = crc32c(self.without_broker_part()[len(CHECKSUM_MAGIC) + 4 :])
            raise CorruptRecordError(
                f"the entry's checksum is {self.checksum:#010x}, and its bytes have {found:#010x}",
                file=self.name,
                position=self.headers_pos,
            )

    def opened_payload(
        self, limit_bytes: int = LogConfig().max_decompressed_message_bytes, fields: MessageFields | None = None
    ) -> "Buffer":
        """The payload decompressed: the message's value, or a batch (message_batch.read_batch). `fields`: where they
        are known.

        Raises EncryptedPayloadError, InvalidArgumentError for a chunk (a message is compressed before it is cut), and
        what payload_compression.open_payload raises.
        """
        fields = fields or self.fields()
        if fields.is_encrypted:
            raise EncryptedPayloadError("the payload is encrypted: it is kept as it came", file=self.name)
        if fields.is_chunk:
            raise InvalidArgumentError("the payload is a chunk: put all chunks of the message together, then open them")
        return open_payload(fields.compression, self.payload(), fields.uncompressed_size, limit_bytes)

    @property
    def value(self) -> bytes:
        """What the message says, decompressed: a copy. Raises as `opened_payload`; InvalidArgumentError for a batch,
        whose messages `message_batch.batch_of` gives."""
        if self.fields().is_batch:
            raise InvalidArgumentError("the entry is a batch of messages", hint="use message_batch.batch_of")
        return bytes(self.opened_payload())

    def damage(self) -> tuple[str, ...]:
        """What is wrong with an entry whose parts fit into one another; empty where nothing is.

        An empty broker's part is damage: no interceptor writes one, and it says neither time nor index.
        """
        found = []
        if self.has_broker_part and len(self.broker_bytes()) == 0:
            found.append("the broker's part is empty")
        for check in (self.broker_fields, self.fields, self.check_crc):
            try:
                check()
            except CorruptRecordError as e:
                found.append(str(e))
        return tuple(found)


def build_entry(metadata: "MessageMetadata", payload: "Buffer", *, checksum: bool = True) -> bytes:
    """The bytes of an entry as a producer sends it: without a broker's part, `payload` as it is to be stored.

    Raises InvalidArgumentError where `metadata` lacks required fields.
    """
    missing = metadata.FindInitializationErrors()  # type: ignore[attr-defined]
    if missing:
        raise InvalidArgumentError(f"MessageMetadata lacks required fields: {', '.join(missing)}")
    serialized = metadata.SerializeToString()
    covered = b"".join((len(serialized).to_bytes(4, "big"), serialized, payload))
    if not checksum:
        return covered
    return b"".join((CHECKSUM_MAGIC, crc32c(covered).to_bytes(4, "big"), covered))
