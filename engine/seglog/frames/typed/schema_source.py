"""Where schemas come from: the interface of a registry, of a folder, and of the topic `_schemas`."""
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from seglog.errors import InvalidArgumentError

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
DEFAULT_CONTEXT = "."
_REFERENCES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses, by the name that it has there."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema as a registry keeps it. `id`: -1 if it is not known. `file`, `offset`: where it was found, for messages.
    """

    id: int
    type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    file: str | None = field(default=None, compare=False)
    offset: int | None = field(default=None, compare=False)


def schema_of_json(body: Any, schema_id: int | None = None) -> StoredSchema:
    """A schema as a registry writes it. Raises KeyError, TypeError, ValueError or AttributeError."""
    kind: SchemaType = body.get("schemaType") or "AVRO"
    if kind not in ("AVRO", "PROTOBUF", "JSON"):
        raise ValueError(f"unknown schemaType {kind!r}")
    references = tuple(
        Reference(str(one["name"]), str(one["subject"]), int(one["version"])) for one in body.get("references") or ()
    )
    return StoredSchema(int(body["id"]) if schema_id is None else schema_id, kind, str(body["schema"]), references)


class SchemaSource(ABC):
    """Finds schemas. Can be pickled, and shared by threads.

    A subject may begin with a context, ":.name:orders-value": ids of another context are other schemas.
    """

    @abstractmethod
    def by_id(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> StoredSchema:
        """Raises SchemaNotFoundError, StorageError."""

    @abstractmethod
    def versions(self, subject: str) -> list[StoredSchema]:
        """Those of a subject that are not deleted, in order; empty if there are none. Raises StorageError."""

    @abstractmethod
    def version(self, subject: str, version: int) -> StoredSchema:
        """One of them, also if it was deleted softly. Raises SchemaNotFoundError, StorageError."""

    def latest(self, subject: str) -> StoredSchema | None:
        """The last one of a subject; None if there are none. Raises StorageError."""
        versions = self.versions(subject)
        return versions[-1] if versions else None

    def referenced(self, schema: StoredSchema) -> Iterator[tuple[str, StoredSchema]]:
        """(name, schema) of all schemas that this one uses, itself or through others; each before those that use it."""
        seen: set[tuple[str, int]] = set()
        # Those that are being followed, the innermost last: a chain may be longer than Python's stack is deep.
        open_ones: list[tuple[Iterator[Reference], tuple[str, StoredSchema] | None]] = [(iter(schema.references), None)]
        while open_ones:
            references, one = open_ones[-1]
            for reference in references:
                where = (reference.subject, reference.version)
                if where in seen:
                    continue
                seen.add(where)
                if len(seen) > _REFERENCES_MAX:
                    raise InvalidArgumentError(f"schema {schema.id} refers to more than {_REFERENCES_MAX} others")
                found = self.version(*where)
                open_ones.append((iter(found.references), (reference.name, found)))
                break
            else:
                open_ones.pop()
                if one is not None:
                    yield one


def is_registry_url(text: str) -> bool:
    """Whether `schemas=` names a registry, not a path or a URL of a store."""
    return text[:8].lower().startswith(("http://", "https://"))


def context_of(subject: str) -> str:
    """The context that a subject names."""
    if subject.startswith(":."):
        return subject[1:].partition(":")[0]
    return DEFAULT_CONTEXT
