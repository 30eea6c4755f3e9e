"""An entry with its position in the topic, as a compacted ledger stores it. (RawMessage.serialize)

    record := size:uint32 MessageIdData[size] size:uint32 entry[size]

docs/formats/compacted_ledger.md
"""
from typing import TYPE_CHECKING

from seglog.errors import CorruptRecordError
from seglog.ledger.compacted.batch import PLACEHOLDERS, Payload
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import EntryView

if TYPE_CHECKING:
    from typing_extensions import Buffer

# MessageIdData: partition 3 and batch_index 4 are -1, which as an int32 is a varint of ten bytes.
_NEITHER = b"\x18" + b"\xff" * 9 + b"\x01" + b"\x20" + b"\xff" * 9 + b"\x01"


class CompactedEntry(EntryView):
    """An entry of a compacted ledger, with its position in the topic. `payload_form`: of its batch, if it is one."""

    __slots__ = ("payload_form",)

    def __init__(self, position: Position, data: memoryview, payload_form: Payload = PLACEHOLDERS) -> None:
        super().__init__(position, data)
        self.payload_form = payload_form


def raw_message(position: Position, entry: "Buffer") -> bytes:
    """Encode a record of a compacted ledger."""
    message_id = b"\x08" + _uvarint(position.ledger_id) + b"\x10" + _uvarint(position.entry_id) + _NEITHER
    size = memoryview(entry).nbytes
    return b"".join((len(message_id).to_bytes(4, "big"), message_id, size.to_bytes(4, "big"), entry))


def read_raw_message(record: "Buffer", name: str | None = None) -> tuple[Position, memoryview]:
    """Parse a record: the entry's position in the topic, and its bytes. Raises CorruptRecordError."""
    data = memoryview(record).cast("B")
    size = int.from_bytes(data[:4], "big")
    begin = 8 + size
    if begin > len(data):
        raise CorruptRecordError(f"a MessageIdData of {size} bytes does not fit in a record of {len(data)}", file=name)
    entry_size = int.from_bytes(data[begin - 4 : begin], "big")
    if entry_size != len(data) - begin:
        raise CorruptRecordError(
            f"an entry of {entry_size} bytes, but {len(data) - begin} are left", file=name, position=begin
        )
    return _position(bytes(data[4 : 4 + size]), name), data[begin:]


def message_id_bytes(position: Position) -> bytes:
    """Encode a position like MessageIdImpl.toByteArray, as Pulsar puts it into a ledger's metadata."""
    return b"\x08" + _uvarint(position.ledger_id) + b"\x10" + _uvarint(position.entry_id) + b"\x30\x00"


def _position(message_id: bytes, name: str | None) -> Position:
    found = {}
    pos = 0
    while pos < len(message_id):
        tag, pos = _read_uvarint(message_id, pos, name)
        if tag & 7 == 0:
            found[tag >> 3], pos = _read_uvarint(message_id, pos, name)
        elif tag & 7 == 2:
            size, pos = _read_uvarint(message_id, pos, name)
            pos += size
        else:
            raise CorruptRecordError(f"MessageIdData does not parse: tag {tag}", file=name)
    ledger_id, entry_id = found.get(1, -1), found.get(2, -1)
    if pos > len(message_id) or not (0 <= ledger_id < 1 << 63 and 0 <= entry_id < 1 << 63):
        raise CorruptRecordError("MessageIdData does not parse, or does not name an entry", file=name)
    return Position(ledger_id, entry_id)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_uvarint(data: bytes, pos: int, name: str | None) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if pos == len(data):
            break
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, pos
    raise CorruptRecordError("MessageIdData does not parse: an unterminated number", file=name)
