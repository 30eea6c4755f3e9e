"""Responses as plain values that two servers can be compared by: what differs from run to run has a name instead."""

import json

from seglog.format.compression import decompressor
from seglog.wire.messages import ZERO_UUID
from seglog.wire.structs import KafkaStruct, fields
from support import plain_format as plain

# The values of these fields, wherever they stand, are a server's own affair; that there is one is compared.
OWN = {
    "transaction_start_time_ms",
    "cluster_id",
    "host",
    "port",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "session_id",
    "error_message",
    "batch_index_error_message",
    "finalized_features_epoch",
    "message",
}
NAMED = {"topic_id", "member_id", "leader", "producer_id"}


# Fields that identify the elements of a list: the first that all of them have.
KEYS = (
    "name",
    "topic",
    "topic_id",
    "topic_name",
    "api_key",
    "partition_index",
    "index",
    "partition",
    "group_id",
    "resource_name",
    "user",
)


def by_name(values):
    """The elements of a list by their names; sorted, if they have none: servers keep them in hash tables, and their
    order says nothing."""
    for key in KEYS:
        names = [str(value.get(key, "")) for value in values if isinstance(value, dict)]
        if values and all(names) and len(set(names)) == len(values):
            return {
                name: {k: v for k, v in value.items() if k != key} for name, value in zip(names, values, strict=True)
            }
    return sorted(values, key=lambda one: json.dumps(one, sort_keys=True))


class Answers:
    """Makes plain values of responses. `names`: values that a server chose, and what they stand for."""

    def __init__(self):
        self.names = {}

    def name(self, value, meaning):
        self.names[value] = f"<{meaning}>"

    def plain(self, struct, version):
        return {
            field.attribute: self._value(field.attribute, getattr(struct, field.attribute), version)
            for field in fields(type(struct))
            if version in field.versions
        }

    def _value(self, name, value, version):
        if isinstance(value, KafkaStruct):
            return self.plain(value, version)
        if isinstance(value, list):
            return by_name([self._value(name, one, version) for one in value])
        if name == "records" and value is not None:
            return [self._batch(data) for data in plain.split_batches(bytes(value))]
        if isinstance(value, (bytes, memoryview)):
            value = bytes(value)
        if name in NAMED and value in self.names:
            return self.names[value]
        if name == "topic_id" and value != ZERO_UUID:
            return "<an id>"
        if name in OWN and value not in (None, "", 0, -1):
            return f"<{name}>"
        if isinstance(value, bytes):
            return "<zero>" if value == ZERO_UUID else value.hex()
        return value

    @staticmethod
    def _batch(data):
        """A batch: its bytes, or, since two libraries compress otherwise, its header and records."""
        codec = data[22] & 7 if data[16] == 2 else data[17] & 7
        if codec == 0:
            data = bytearray(data)
            if data[16] == 2 and data[43:51] != b"\xff" * 8:
                # A transactional producer's id is the server's choice, and so are the times of its markers.
                data[17:21], data[43:51] = bytes(4), bytes(8)
                if data[22] & plain.CONTROL:
                    data[27:43] = bytes(16)
            return data.hex()
        return [
            codec,
            *(
                [*record[:2], *(part and bytes(part).hex() for part in record[2:4])]
                for record in plain.decode_batch(data, decompressor(1 << 20))
            ),
        ]


def differences(theirs, ours, path=""):
    """(path, theirs, ours) of what differs in two plain values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from differences(theirs.get(key, "<nothing>"), ours.get(key, "<nothing>"), f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for n, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{path}[{n}]")
    elif theirs != ours:
        yield path, theirs, ours
