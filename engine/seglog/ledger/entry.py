"""An entry of a ledger: what a Pulsar broker stores for one message or one batch of messages.

An Entry borrows the bytes that it is made of and never changes them; `payload()` and the like are views. Sizes are read
when it is made, hot fields by a kernel on demand, all fields through protobuf, which is imported then. Layout:
docs/formats/pulsar_entry.md.
"""
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeVar

from seglog._kernels.crc import crc32c
from seglog._kernels.entry_frame import EntryFrame, MessageFields, put_broker_metadata
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, EncryptedPayloadError, InvalidArgumentError
from seglog.format.payload_compression import open_payload
from seglog.late_import import late

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

    from seglog.pulsar_pb.entry_pb2 import BrokerEntryMetadata, MessageMetadata

M = TypeVar("M", bound="Message")

CHECKSUM_MAGIC = b"\x0e\x01"


@cache
def pulsar_pb() -> ModuleType:
    """Import the classes of proto/pulsar/entry.proto. Importing protobuf costs more than most uses of an entry."""
    late("seglog.pulsar_pb.entry_pb2")
    from seglog.pulsar_pb import entry_pb2

    return entry_pb2


@cache
def _decode_error() -> type[Exception]:
    late("google.protobuf.message")
    from google.protobuf.message import DecodeError

    return DecodeError


def parse_message(kind: type[M], data: "Buffer", file: str | None = None) -> M:
    """Parse `data` as a protobuf message with all its required fields. Raises CorruptRecordError."""
    try:
        message = kind.FromString(bytes(data))
        missing = message.FindInitializationErrors()  # type: ignore[attr-defined]
    except (_decode_error(), UnicodeDecodeError) as e:
        raise CorruptRecordError(f"{kind.__name__} does not parse: {e}", file=file) from e
    if missing:
        raise CorruptRecordError(f"{kind.__name__} lacks required fields: {', '.join(missing)}", file=file)
    return message


class Entry(EntryFrame):
    """An entry as stored, with or without broker metadata.

    `fields()` is cheap and has what hot paths need; `metadata` and `broker_metadata` are complete protobuf messages,
    parsed at every call.
    """

    @property
    def metadata(self) -> "MessageMetadata":
        """The parsed MessageMetadata. Raises CorruptRecordError."""
        metadata: MessageMetadata = parse_message(pulsar_pb().MessageMetadata, self.metadata_bytes(), self.name)
        return metadata

    @property
    def broker_metadata(self) -> "BrokerEntryMetadata | None":
        """The parsed broker metadata; None if the entry has none. Raises CorruptRecordError."""
        if not self.has_broker_part:
            return None
        metadata: BrokerEntryMetadata = parse_message(pulsar_pb().BrokerEntryMetadata, self.broker_bytes(), self.name)
        return metadata

    def with_broker_metadata(self, broker_timestamp: int | None = None, index: int | None = None) -> "Self":
        """Return a new entry with broker metadata: time in ms since 1970, index of the entry's last message.

        Raises InvalidArgumentError if it already has some.
        """
        return type(self)(put_broker_metadata(self.raw(), broker_timestamp, index), self.name)

    def check_crc(self) -> None:
        """Check the stored checksum. Raises CorruptRecordError if it is wrong."""
        if not self.crc_is_valid():
            found = crc32c(self.without_broker_part()[len(CHECKSUM_MAGIC) + 4 :])
            raise CorruptRecordError(
                f"the entry's checksum is {self.checksum:#010x}, but that of its bytes is {found:#010x}",
                file=self.name,
                position=self.headers_pos,
            )

    def opened_payload(
        self, limit_bytes: int = LogConfig().max_decompressed_message_bytes, fields: MessageFields | None = None
    ) -> "Buffer":
        """Decompress the payload: a message's value, or a batch (message_batch.read_batch). `fields`: the entry's, if
        known.

        Raises EncryptedPayloadError, InvalidArgumentError for a chunk (a message is compressed before it is split), and
        what payload_compression.open_payload raises.
        """
        fields = fields or self.fields()
        if fields.is_encrypted:
            raise EncryptedPayloadError("the payload is encrypted: it can only be read as it is", file=self.name)
        if fields.is_chunk:
            raise InvalidArgumentError("the payload is a chunk: join all chunks of the message, then decompress them")
        return open_payload(fields.compression, self.payload(), fields.uncompressed_size, limit_bytes)

    @property
    def value(self) -> bytes:
        """Return a decompressed copy of the message's value. Raises as `opened_payload`; InvalidArgumentError for a
        batch: `message_batch.batch_of` returns its messages."""
        if self.fields().is_batch:
            raise InvalidArgumentError("the entry is a batch of messages", hint="use message_batch.batch_of")
        return bytes(self.opened_payload())

    def damage(self) -> tuple[str, ...]:
        """Return what is wrong with an entry whose parts fit together; empty if nothing is.

        Empty broker metadata is damage: no interceptor writes it, and it contains neither time nor index.
        """
        found = []
        if self.has_broker_part and len(self.broker_bytes()) == 0:
            found.append("the broker metadata is empty")
        for check in (self.broker_fields, self.fields, self.check_crc):
            try:
                check()
            except CorruptRecordError as e:
                found.append(str(e))
        return tuple(found)


def build_entry(metadata: "MessageMetadata", payload: "Buffer", *, checksum: bool = True) -> bytes:
    """Encode an entry as a producer sends it: without broker metadata, and with `payload` exactly as stored.

    Raises InvalidArgumentError if `metadata` lacks required fields.
    """
    missing = metadata.FindInitializationErrors()  # type: ignore[attr-defined]
    if missing:
        raise InvalidArgumentError(f"MessageMetadata lacks required fields: {', '.join(missing)}")
    serialized = metadata.SerializeToString()
    covered = b"".join((len(serialized).to_bytes(4, "big"), serialized, payload))
    if not checksum:
        return covered
    return b"".join((CHECKSUM_MAGIC, crc32c(covered).to_bytes(4, "big"), covered))
