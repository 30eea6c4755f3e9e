"""`decode=` and `schemas=` of a scan: what keys and values are, and the decoders that follow from it.

Schemas are looked up when a scan is used first: the type of a column is that of one schema, the newest one of the
topic's subject, or the one that was given.
"""
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.frames.typed.avro import AvroDecoder
from seglog.frames.typed.avro_schema import AvroSchema, Names, definitions_in, union_of
from seglog.frames.typed.column_decoder import (
    ColumnDecoder,
    Decoder,
    FrameFunction,
    OnUndecodable,
    Read,
    confluent_frame,
    no_frame,
)
from seglog.frames.typed.columns import Struct, UndecodableValueError
from seglog.frames.typed.json_schema import JsonSchema
from seglog.frames.typed.protobuf import ProtobufSchema
from seglog.frames.typed.schema_folder import SchemaFolder
from seglog.frames.typed.schema_source import (
    DEFAULT_CONTEXT,
    SchemaSource,
    SchemaType,
    StoredSchema,
    context_of,
    is_registry_url,
)
from seglog.frames.typed.schemas_topic import DIRECTORY, TOPIC, SchemasTopic
from seglog.late_import import late

Kind = Literal["avro", "protobuf", "json"]
Frame = Literal["confluent", "none"] | FrameFunction
Schemas = str | os.PathLike[str] | SchemaSource | None

_TYPES: dict[str, SchemaType] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
_FRAMES: dict[str, FrameFunction] = {"confluent": confluent_frame, "none": no_frame}


@dataclass(frozen=True, slots=True)
class Typed:
    """How the keys or values of a topic are encoded: for `decode={"value": Typed("avro", ...)}` of `seglog.scan`.

    kind: "avro", "protobuf", or "json" with a JSON Schema. schema: the text of the schema to read with, in place of one
    of the subject's. subject: by default the topic with "-value" or "-key" behind it; it may name a context
    (":.prod:orders-value"). reader: "latest" reads with the subject's newest version; "union" adds the fields that only
    earlier versions have. frame: "confluent", a zero byte and the schema's id before the value; "none", the bytes are
    the value, written with `schema`, or with the newest version; or a function of the bytes that returns the schema's
    id, or None, and where the value begins. message: of "protobuf", the full name of the message; by default the first
    one of the schema.

    Raises InvalidArgumentError.
    """

    kind: Kind
    schema: str | None = None
    subject: str | None = None
    reader: Literal["latest", "union"] = "latest"
    frame: Frame = "confluent"
    message: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in _TYPES:
            raise InvalidArgumentError(f"unknown encoding {self.kind!r}; expected one of {', '.join(_TYPES)}")
        for name in ("schema", "subject", "message"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidArgumentError(
                    f"{name} must be text, not {getattr(self, name)!r}",
                    hint="of a file: Path(...).read_text(); of a dict: json.dumps(...)" if name == "schema" else None,
                )
        if self.reader not in ("latest", "union"):
            raise InvalidArgumentError(f'reader must be "latest" or "union", not {self.reader!r}')
        if self.reader == "union" and self.schema is not None:
            raise InvalidArgumentError('give either a schema to read with, or reader="union"')
        if self.kind != "avro" and self.reader == "union":
            raise InvalidArgumentError('reader="union" is for "avro"')
        if self.kind != "protobuf" and self.message is not None:
            raise InvalidArgumentError('message is for "protobuf"')
        if not callable(self.frame) and self.frame not in _FRAMES:
            raise InvalidArgumentError(f'frame must be "confluent", "none" or a function, not {self.frame!r}')


class PartitionPlace(Protocol):
    """A partition that is read."""

    @property
    def topic(self) -> str: ...

    @property
    def path(self) -> object: ...


class Decoding:
    """The typed columns of a scan. The decoders are made at the first use, and kept. Can be pickled.

    `beside`: finds the schemas of partitions, if `source` is None.
    """

    def __init__(
        self, typed: Mapping[str, Typed], source: SchemaSource | None,
        beside: Callable[[Sequence[PartitionPlace]], SchemaSource | None], on_undecodable: OnUndecodable,
    ) -> None:
        if on_undecodable not in ("fail", "null", "raw"):
            raise InvalidArgumentError(f'on_undecodable must be "fail", "null" or "raw", not {on_undecodable!r}')
        self.typed = dict(typed)
        self._source = source
        self._beside = beside
        self.on_undecodable = on_undecodable
        self._decoders: dict[str, Decoder] | None = None

    def decoders(self, places: Callable[[], Sequence[PartitionPlace]]) -> dict[str, Decoder]:
        """{column: decoder}. `places`: the partitions that are read.

        Raises InvalidArgumentError, SchemaNotFoundError, StorageError.
        """
        if self._decoders is None:
            found = places()
            source = self._source or self._beside(found)
            topics = sorted({place.topic for place in found})
            self._decoders = {name: self._decoder(name, typed, topics, source) for name, typed in self.typed.items()}
        return self._decoders

    def _decoder(
        self, name: str, typed: Typed, topics: Sequence[str], source: SchemaSource | None
    ) -> Decoder:
        context = DEFAULT_CONTEXT if typed.subject is None else context_of(typed.subject)
        if typed.schema is None:
            reader = self._reader(name, typed, topics, source)
        else:
            reader = _parsed(typed, StoredSchema(-1, _TYPES[typed.kind], typed.schema), source)
        if self.on_undecodable == "raw" and not isinstance(reader.column, Struct):
            raise InvalidArgumentError(
                f'on_undecodable="raw" needs a schema of records, which the {name} does not have',
                hint='use "null" or "fail"',
            )
        frame = typed.frame if callable(typed.frame) else _FRAMES[typed.frame]
        writers = _Writers(typed, reader, source, context)
        if isinstance(reader, AvroSchema):
            return AvroDecoder(reader, writers.avro, frame, self.on_undecodable)
        return ColumnDecoder(reader.column, writers, frame, self.on_undecodable)

    def _reader(
        self, name: str, typed: Typed, topics: Sequence[str], source: SchemaSource | None
    ) -> "ParsedSchema":
        if source is None:
            raise InvalidArgumentError(
                f"no schemas were given for the {name}, and there is no topic {TOPIC} beside the topic", hint=_GIVE
            )
        if typed.subject is not None:
            subjects = [typed.subject]
        else:
            subjects = [f"{topic}-{name}" for topic in topics]
        made: dict[str, ParsedSchema] = {}
        for subject in subjects:
            versions = source.versions(subject) if typed.reader == "union" else [source.latest(subject)]
            parsed = [_parsed(typed, version, source) for version in versions if version is not None]
            if not parsed:
                raise InvalidArgumentError(
                    f"found no schema of the subject {subject} in {source!r}",
                    hint=f'name the subject: decode={{"{name}": seglog.Typed("{typed.kind}", subject=...)}}',
                )
            made[subject] = parsed[0] if typed.reader == "latest" else union_of(
                [schema for schema in parsed if isinstance(schema, AvroSchema)]
            )
        if not made:
            raise NotALogError("there is no partition whose topic would name a schema")
        first, *others = made.items()
        for subject, schema in others:
            if schema.column.type != first[1].column.type:
                raise InvalidArgumentError(
                    f"the subjects {first[0]} and {subject} have different schemas: one scan has one type of column",
                    hint="scan these topics one by one, or name one subject or schema for all",
                )
        return first[1]


ParsedSchema = AvroSchema | ProtobufSchema | JsonSchema


class _Writers:
    """Gives the schema that values were written with, and the function that reads them."""

    def __init__(self, typed: Typed, reader: ParsedSchema, source: SchemaSource | None, context: str) -> None:
        self._typed = typed
        self._reader = reader
        self._source = source
        self._context = context

    def avro(self, schema_id: int) -> AvroSchema:
        """The schema with this id."""
        writer = self._writer(schema_id)
        assert isinstance(writer, AvroSchema)
        return writer

    def __call__(self, schema_id: int | None) -> Read:
        if isinstance(self._reader, JsonSchema):        # JSON is read without the schema that it was written with
            return self._reader.read
        writer = self._reader if schema_id is None else self._writer(schema_id)
        assert isinstance(self._reader, ProtobufSchema)
        assert isinstance(writer, ProtobufSchema)
        return self._reader.read_from(writer, has_indexes=self._typed.frame == "confluent")

    def _writer(self, schema_id: int) -> ParsedSchema:
        if self._source is None:
            raise InvalidArgumentError(
                f"the bytes name the schema {schema_id}, but no schemas were given", hint=_GIVE
            )
        try:
            return _parsed(self._typed, self._source.by_id(schema_id, self._context), self._source, is_writer=True)
        except InvalidArgumentError as error:
            raise UndecodableValueError(str(error)) from error


_GIVE = 'schemas="https://registry:8081", a folder of schemas, the directory _schemas-0, or seglog.Typed(schema=text)'


def _parsed(
    typed: Typed, stored: StoredSchema, source: SchemaSource | None, *, is_writer: bool = False
) -> ParsedSchema:
    """A schema with all that it refers to. Raises InvalidArgumentError, SchemaNotFoundError, StorageError."""
    kind = _TYPES[typed.kind]
    with _named(stored):
        if stored.type != kind:
            raise InvalidArgumentError(f"schema {stored.id} is one of {stored.type}, not of {kind}")
        if kind == "JSON":
            return JsonSchema(stored.text)
    referenced = [] if source is None else list(source.referenced(stored))
    if kind == "PROTOBUF":
        imports = {name: schema.text for name, schema in referenced}
        # Of a writer's schema only the names and the order of its messages count.
        with _named(stored):
            return ProtobufSchema(stored.text, imports, None if is_writer else typed.message)
    named: Names = {}
    for _, schema in referenced:
        with _named(schema):
            named |= definitions_in(schema.text, named)
    with _named(stored):
        return AvroSchema(stored.text, named)


@contextmanager
def _named(schema: StoredSchema) -> Iterator[None]:
    """Errors of this schema say where it was found."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.file is None:
            error.file, error.offset = schema.file, schema.offset
        raise


def source_of(schemas: Schemas) -> SchemaSource | None:
    """The source that `schemas=` names: a registry's URL, a folder, `_schemas-0` or the log dir that it is in.

    Raises InvalidArgumentError.
    """
    if schemas is None or isinstance(schemas, SchemaSource):
        return schemas
    if not isinstance(schemas, str | os.PathLike) or not isinstance(os.fspath(schemas), str):
        raise InvalidArgumentError(f"schemas must be a URL or a path, not {schemas!r}")
    text = os.fspath(schemas)
    if is_registry_url(text):
        # (http.client and ssl take longer to import than most scans.)
        late("seglog.frames.typed.schema_registry")
        from seglog.frames.typed.schema_registry import SchemaRegistry

        return SchemaRegistry(text)
    path = Path(text)
    if not path.is_dir():
        raise InvalidArgumentError(
            "schemas: a file, not a directory" if path.exists() else "schemas: no such directory", file=path,
            hint="pass a registry's URL, a folder of .avsc or .proto files, or the directory _schemas-0",
        )
    if names.has_segments(path):
        return SchemasTopic(path)
    return SchemasTopic(path / DIRECTORY) if (path / DIRECTORY).is_dir() else SchemaFolder(path)


def schemas_beside(places: Sequence[PartitionPlace]) -> SchemaSource | None:
    """The topic of a registry on the same disk."""
    for path in sorted({str(place.path) for place in places}):
        directory = Path(path).parent / DIRECTORY
        if directory.is_dir():
            return SchemasTopic(directory)
    return None
