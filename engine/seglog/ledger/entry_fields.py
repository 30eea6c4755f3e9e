"""Represents an entry as JSON values, by Pulsar's field names. Only set fields appear; bytes are hexadecimal.

Transaction ids are decimal strings: JSON readers keep 53 bits of a number.
"""
from typing import TYPE_CHECKING, Any

from seglog._kernels.entry_frame import entry_timestamp
from seglog.config import LogConfig
from seglog.ledger.entry import Entry
from seglog.ledger.message_batch import read_batch

if TYPE_CHECKING:
    from google.protobuf.message import Message

_DECIMAL = {"txnid_least_bits", "txnid_most_bits"}


def entry_fields(entry: Entry, limit_bytes: int = LogConfig().max_decompressed_message_bytes) -> dict[str, Any]:
    """Return all contents of an entry. The payload is `messages` for a batch, `value` for a message; an unopened one is
    `chunk` or, if encrypted, `payload`.

    Raises CorruptRecordError if the entry does not parse; for a wrong checksum, `checksum_ok` is false.
    """
    metadata = entry.metadata
    serialized = entry.metadata_bytes()
    out: dict[str, Any] = {"size": len(entry)}
    broker = entry.broker_metadata
    if broker is not None:
        out["broker_entry_metadata"] = message_fields(broker)
    out |= {"headers_offset": entry.headers_pos, "has_checksum": entry.checksum is not None}
    if entry.checksum is not None:
        out |= {"checksum": entry.checksum, "checksum_ok": entry.crc_is_valid()}
    out |= {
        "entry_timestamp": entry_timestamp(entry.raw()),
        "metadata_size": len(serialized),
        "metadata_canonical": metadata.SerializeToString() == serialized,
        "metadata": message_fields(metadata),
        "payload_offset": entry.payload_pos,
        "payload_size": len(entry.payload()),
    }
    return out | _payload_fields(entry, limit_bytes)


def _payload_fields(entry: Entry, limit_bytes: int) -> dict[str, Any]:
    fields = entry.fields()
    if fields.is_encrypted:
        return {"payload": entry.payload().hex()}
    if fields.is_chunk:
        return {"chunk": entry.payload().hex()}
    opened = memoryview(entry.opened_payload(limit_bytes))
    if not fields.is_batch:
        return {"value": opened.hex()}
    batch = read_batch(opened, fields.num_messages)
    messages = [{"single": message_fields(m.metadata), "value": m.value.hex()} for m in batch.messages]
    return {"messages": messages, "trailing": batch.trailing_bytes}


def message_fields(message: "Message") -> dict[str, Any]:
    """Return the set fields of a protobuf message. Key-value messages are pairs."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        many = isinstance(value, list) or (hasattr(value, "MergeFrom") and not hasattr(value, "ListFields"))
        out[field.name] = [_json(field, item) for item in value] if many else _json(field, value)
    return out


def _json(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.message_type is not None:
        if field.message_type.name == "KeyValue":
            return [_text(value.key), _text(value.value)]
        return message_fields(value)
    if field.cpp_type == field.CPPTYPE_STRING:
        return value.hex() if field.type == field.TYPE_BYTES else _text(value)
    return str(value) if field.name in _DECIMAL else value


def _text(value: str | bytes) -> str:
    """Return text; protobuf gives bytes for a string that is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
