"""Kafka's internal topics: __consumer_offsets, __transaction_state, __cluster_metadata and others.

`InternalRecords` decodes the records of one of them. What decodes them (`internal_records`) is imported for the first
one: Kafka's messages take a fifth of the time in which a command starts.
"""
from typing import TYPE_CHECKING, Any

from seglog.late_import import late

if TYPE_CHECKING:
    from seglog.wire.codec import Frame

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
TOPICS = frozenset((
    OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", "__cluster_metadata", "__remote_log_metadata",
))


class InternalRecords:
    """Keys and values of one internal topic as JSON, as kafka-dump-log prints them: types and versions of the
    coordinators' records are text."""

    def __init__(self, topic: str) -> None:
        late("seglog.wire.internal_records")
        from seglog.wire.internal_records import key_form, value_form

        self.topic = topic
        self._key_form = key_form
        self._value_form = value_form

    @classmethod
    def of(cls, topic: str) -> "InternalRecords | None":
        """The decoder for a topic of this name, or None if it is not an internal one."""
        return cls(topic) if topic in TOPICS else None

    def key(self, key: "Frame") -> dict[str, Any]:
        """Raises UnsupportedVersionError, ProtocolError: show the bytes."""
        return self._key_form(self.topic, key)

    def value(self, key: "Frame | None", value: "Frame") -> dict[str, Any]:
        """`key`: that of the same record. Raises UnsupportedVersionError, ProtocolError: show the bytes."""
        return self._value_form(self.topic, key, value)
