"""`partition.metadata`: the topic id of a partition directory (KIP-516, Kafka 2.8). docs/formats/partition_metadata.md.

Two lines, `version: 0` and `topic_id: <base64url uuid, no padding>`, the second without a line end
(PartitionMetadata.encode). A conversion copies it; seglog never invents one: a broker refuses a directory with the id
of another topic.
"""
import base64
import binascii
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seglog.errors import CorruptCheckpointError
from seglog.format.names import PARTITION_METADATA
from seglog.fs.mapping import read_file
from seglog.state.text_files import decode, parse_int

VERSION = 0


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    topic_id: uuid.UUID

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """From the bytes of the file; a newer version is read as this one, as Kafka does.

        Raises CorruptCheckpointError.
        """
        fields = {}
        for line in decode(raw, file).splitlines():
            name, colon, value = line.partition(": ")
            if not colon:
                raise CorruptCheckpointError(f"{line[:80]!r} is not `<name>: <value>`", file=file)
            fields[name] = value
        if {"version", "topic_id"} - fields.keys():
            raise CorruptCheckpointError("`version` or `topic_id` is missing", file=file)
        version = parse_int(fields["version"], file, 1)
        if version < VERSION:
            raise CorruptCheckpointError(f"invalid version {version}, expected {VERSION} or later", file=file)
        topic_id = parse_topic_id(fields["topic_id"], file)
        if topic_id.int == 0:
            raise CorruptCheckpointError("the topic id is zero, which is not a valid id", file=file)
        return cls(topic_id)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.parse(read_file(path), file=path)

    def to_bytes(self) -> bytes:
        return f"version: {VERSION}\ntopic_id: {format_topic_id(self.topic_id)}".encode()


def parse_topic_id(text: str, file: str | os.PathLike[str] | None = None) -> uuid.UUID:
    """Kafka's Uuid.fromString."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16:
        raise CorruptCheckpointError(f"{text[:80]!r} is not a topic id (base64url of 16 bytes)", file=file)
    return uuid.UUID(bytes=raw)


def id_of_topic(directory: Path) -> bytes:
    """The topic id of a partition directory; zeros if it has none."""
    try:
        return PartitionMetadata.read(directory / PARTITION_METADATA).topic_id.bytes
    except (FileNotFoundError, CorruptCheckpointError):
        return bytes(16)


def format_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's Uuid.toString."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
