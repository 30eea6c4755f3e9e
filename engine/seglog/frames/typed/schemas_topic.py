"""Schemas from the topic `_schemas`, in which a registry keeps them: read from the partition's files, without it.

Keys and values are JSON. The topic is compacted; the last value of a key counts.

    {"keytype": "SCHEMA", "subject": "orders-value", "version": 2, "magic": 1}
        {"subject": ..., "version": 2, "id": 7, "schemaType": "PROTOBUF", "references": [...], "schema": "...",
         "deleted": false}      without schemaType: Avro. null: deleted permanently. deleted: softly, still found by id
    {"keytype": "DELETE_SUBJECT", "subject": "orders-value", "magic": 0}
        {"subject": ..., "version": 3}      versions up to 3 are deleted softly

Other kinds of keys (CONFIG, MODE, NOOP, CLEAR_SUBJECT, ...) say nothing of schemas. Ids count in each context.
"""
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from seglog.errors import CorruptRecordError, SchemaNotFoundError
from seglog.frames.typed.schema_source import (
    DEFAULT_CONTEXT,
    SchemaSource,
    StoredSchema,
    context_of,
    schema_of_json,
)
from seglog.reading.partition import open_partition

TOPIC = "_schemas"
DIRECTORY = f"{TOPIC}-0"


Entry = tuple[bytes | None, int, bytes | None]      # key, offset and value of a record


class Entries(Protocol):
    """The records of a partition directory."""

    def end_offset(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...


class _LocalEntries:
    """Those of a mounted one."""

    def __init__(self, path: str) -> None:
        self._path = path

    def end_offset(self) -> int:
        with open_partition(self._path) as partition:
            return partition.log_end_offset

    def __iter__(self) -> Iterator[Entry]:
        with open_partition(self._path) as partition:
            for record in partition.read():
                yield record.key, record.offset, record.value


@dataclass(frozen=True, slots=True)
class _Version:
    schema: StoredSchema
    is_deleted: bool


class SchemasTopic(SchemaSource):
    """The schemas in a partition directory of `_schemas`. It is read again when an id is not found. `entries`: its
    records, if it is not on this machine."""

    def __init__(self, path: str | os.PathLike[str], entries: Entries | None = None) -> None:
        self.path = os.fspath(path)
        self._entries = _LocalEntries(self.path) if entries is None else entries
        self._end_offset = -1
        self._subjects: dict[str, dict[int, _Version]] = {}
        self._by_id: dict[tuple[str, int], StoredSchema] = {}

    def __repr__(self) -> str:
        return f"SchemasTopic({self.path!r})"

    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> StoredSchema:
        found = self._by_id.get((context, schema_id))
        if found is None:
            self._read()
            found = self._by_id.get((context, schema_id))
        if found is None:
            raise SchemaNotFoundError(f"the topic {TOPIC} has no schema with the id {schema_id}", file=self.path)
        return found

    def versions(self, subject: str) -> list[StoredSchema]:
        self._read()
        found = self._subjects.get(subject, {})
        return [found[version].schema for version in sorted(found) if not found[version].is_deleted]

    def version(self, subject: str, version: int) -> StoredSchema:
        self._read()
        found = self._subjects.get(subject, {}).get(version)
        if found is None:
            raise SchemaNotFoundError(f"the topic {TOPIC} has no version {version} of {subject}", file=self.path)
        return found.schema

    def _read(self) -> None:
        """Read the topic, if it has grown. Raises StorageError, CorruptRecordError."""
        end_offset = self._entries.end_offset()
        if end_offset == self._end_offset:
            return
        last: dict[bytes, tuple[int, bytes | None]] = {}
        for key, offset, value in self._entries:
            if key is not None:
                last.pop(key, None)     # in the order of the last ones
                last[key] = offset, value
        subjects, by_id = _folded(last.items(), self.path)
        # A schema stays known by its id, even if its subject is deleted permanently later.
        self._subjects, self._by_id, self._end_offset = subjects, self._by_id | by_id, end_offset


def _folded(
    records: Iterable[tuple[bytes, tuple[int, bytes | None]]], path: str
) -> tuple[dict[str, dict[int, _Version]], dict[tuple[str, int], StoredSchema]]:
    subjects: dict[str, dict[int, _Version]] = {}
    by_id: dict[tuple[str, int], StoredSchema] = {}
    for raw_key, (offset, raw_value) in records:
        try:
            key = json.loads(raw_key)
            kind = key.get("keytype") if isinstance(key, dict) else None
            if raw_value is None or kind not in ("SCHEMA", "DELETE_SUBJECT"):
                continue
            value = json.loads(raw_value)
            subject, version = str(value["subject"]), int(value["version"])
            if kind == "DELETE_SUBJECT":
                for earlier, one in subjects.get(subject, {}).items():
                    if earlier <= version:
                        subjects[subject][earlier] = _Version(one.schema, is_deleted=True)
                continue
            schema = replace(schema_of_json(value), file=path, offset=offset)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptRecordError(
                f"not a record of a schema registry: {error!r}", file=path, offset=offset,
                hint="name the partition directory of the registry's own topic, or another source of schemas",
            ) from error
        subjects.setdefault(subject, {})[version] = _Version(schema, is_deleted=value.get("deleted") is True)
        by_id.setdefault((context_of(subject), schema.id), schema)
    return subjects, by_id
