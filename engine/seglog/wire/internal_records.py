"""Records of Kafka's internal topics: their keys and values as messages, and as JSON.

The framing is in docs/formats/coordinator_topics.md and cluster_metadata.md, the fields in proto/kafka/records.txt.
"""
from typing import Any

from seglog.errors import ProtocolError, UnsupportedVersionError
from seglog.named_tuple import NamedTuple
from seglog.wire.codec import Frame, decode_at, decode_versioned, encode_message
from seglog.wire.coders import read_uvarint
from seglog.wire.definitions import snake_case
from seglog.wire.json_form import json_form
from seglog.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from seglog.wire.stored_records import (
    CONTROL,
    KEYS,
    METADATA,
    VALUES,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitValue,
)
from seglog.wire.structs import KafkaMessage

# AbstractApiMessageSerde. Kafka 2.8, whose preview of KRaft cannot be upgraded, wrote 0.
_FRAME_VERSION = 1
_TYPE_BYTES = 2


class Stored(NamedTuple):
    """One record: the message that is its key or value, the version in which it was written, and its type."""

    type: int
    version: int
    message: KafkaMessage


def encode_key(key: KafkaMessage) -> bytes:
    """The bytes of a key of the coordinators' topics: its type, then its fields."""
    return key.API_KEY.to_bytes(_TYPE_BYTES, "big") + encode_message(key, key.MIN_VERSION)


def decode_key(topic: str, data: Frame) -> Stored:
    """Decode a key of the coordinators' topics. Raises UnsupportedVersionError for an unknown type, ProtocolError."""
    kind = _type_of(data)
    message = KEYS[topic].get(kind)
    if message is None:
        raise UnsupportedVersionError(f"unknown type {kind} of a key in {topic}")
    return Stored(kind, message.MIN_VERSION, decode_at(message, message.MIN_VERSION, data, _TYPE_BYTES))


def decode_value(topic: str, kind: int, data: Frame) -> Stored:
    """Decode the value of a key of type `kind`. Raises UnsupportedVersionError, ProtocolError."""
    # Kafka 0.8 to 3.9 wrote the same values for both types of offset keys.
    is_legacy = KEYS[topic].get(kind) is LegacyOffsetCommitKey
    message = OffsetCommitValue if is_legacy else VALUES[topic].get(kind)
    if message is None:
        raise UnsupportedVersionError(f"unknown type {kind} of a value in {topic}")
    version, value = decode_versioned(message, data)
    return Stored(kind, version, value)


def decode_metadata(topic: str, data: Frame) -> Stored:
    """Decode a value of __cluster_metadata or __remote_log_metadata. Raises UnsupportedVersionError, ProtocolError."""
    try:
        frame_version, position = read_uvarint(data, 0)
        if frame_version != _FRAME_VERSION:
            raise UnsupportedVersionError(f"unknown frame {frame_version} in {topic}; expected {_FRAME_VERSION}")
        kind, position = read_uvarint(data, position)
        version, position = read_uvarint(data, position)
    except IndexError as error:
        raise ProtocolError(f"a record of {topic} ends after {len(data)} bytes, in its frame") from error
    message = METADATA[topic].get(kind)
    if message is None:
        raise UnsupportedVersionError(f"unknown type {kind} of a record in {topic}")
    return Stored(kind, version, decode_at(message, version, data, position))


def decode_control(key: Frame, value: Frame) -> Stored:
    """Decode a control record of KRaft, such as SNAPSHOT_HEADER. Raises UnsupportedVersionError, ProtocolError."""
    if len(key) < 2 * _TYPE_BYTES:
        raise ProtocolError(f"a control record's key has {len(key)} bytes; expected version and type")
    kind, version = _type_of(key[_TYPE_BYTES:]), _type_of(value)
    message = CONTROL.get(kind)
    if message is None:
        raise UnsupportedVersionError(f"unknown type {kind} of a control record")
    # The value begins with its version, which is a field of it.
    return Stored(kind, version, decode_at(message, version, value, 0))


# --- as JSON -----------------------------------------------------------------------------


def key_form(topic: str, key: Frame) -> dict[str, Any]:
    """As `InternalRecords.key`."""
    if topic not in KEYS:
        raise UnsupportedVersionError(f"records of {topic} have no keys")
    stored = decode_key(topic, key)
    return {"type": str(stored.type), "data": json_form(stored.message, stored.version)}


def value_form(topic: str, key: Frame | None, value: Frame) -> dict[str, Any]:
    """As `InternalRecords.value`."""
    if topic not in KEYS:
        stored = decode_metadata(topic, value)
        name = snake_case(type(stored.message).__name__).upper()
        return {"type": name, "version": stored.version, "data": json_form(stored.message, stored.version)}
    stored = decode_value(topic, _type_of(b"" if key is None else key), value)
    data = json_form(stored.message, stored.version)
    if isinstance(stored.message, GroupMetadataValue) and stored.message.protocol_type == "consumer":
        for member, shown in zip(stored.message.members, data["members"], strict=True):
            _show_inside(shown, "subscription", ConsumerProtocolSubscription, member.subscription)
            _show_inside(shown, "assignment", ConsumerProtocolAssignment, member.assignment)
    return {"version": str(stored.version), "data": data}


def control_form(key: Frame, value: Frame) -> dict[str, Any]:
    """The value of a control record of KRaft. Raises UnsupportedVersionError, ProtocolError."""
    stored = decode_control(key, value)
    return json_form(stored.message, stored.version)


def _show_inside(shown: dict[str, Any], name: str, kind: type[KafkaMessage], data: bytes) -> None:
    """Show the message in a field of bytes; as Kafka's tool, leave the bytes if they are none."""
    try:
        version = max(kind.MIN_VERSION, min(_type_of(data), kind.MAX_VERSION))
        message = decode_at(kind, version, data, _TYPE_BYTES, trailing=True)
    except ProtocolError:
        return
    shown[name] = json_form(message, version)


def _type_of(data: Frame) -> int:
    if len(data) < _TYPE_BYTES:
        raise ProtocolError(f"{len(data)} bytes are too few for a type or a version", position=0)
    return int.from_bytes(data[:_TYPE_BYTES], "big", signed=True)
