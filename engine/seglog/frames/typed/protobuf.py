"""Values in Protocol Buffers: a schema as the Arrow column of a message, and messages as the values of that column.

    int32, sint32, sfixed32; ...64      int32; int64
    uint32, fixed32; uint64, fixed64    uint32; uint64
    float, double, bool, string, bytes  float, double, bool, string, binary
    enum                                dictionary of strings; a number without a name is its digits
    message, repeated, map              struct, list, map
    google.protobuf.Timestamp, Duration timestamp in ns, UTC; duration in ns
    ...Value (wrappers)                 the type that is wrapped; null without one
    Struct, Value, ListValue            their JSON as text

A field that tracks its presence (a message, `optional`, one of a oneof) is null if it is not set; any other has its
default.
"""
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library
from seglog.frames.typed.columns import (
    Column,
    MapColumn,
    Number,
    OpenEnum,
    Plain,
    Repeated,
    Struct,
    UndecodableValueError,
)
from seglog.frames.typed.proto_text import parse_proto

Read = Callable[[bytes, int], Any]
Take = Callable[[Any], Any]         # of a field's value its column's value

_NAME = "schema.proto"
# What the Java serializers know without a reference. The second one matters to options alone.
_BUILT_IN = {
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    "confluent/meta.proto": 'syntax = "proto3"; package confluent;',
}
_WELL_KNOWN = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
               "wrappers", "descriptor")
_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_JSON = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}
_NANOS = 1_000_000_000
_INDEXES_MAX = 100


class ProtobufSchema:
    """A .proto file. `imports`: the text of those that it refers to, by path. `message`: the full name of the message
    to read; by default the first one. Can be pickled.

    Raises InvalidArgumentError if it is not a schema, or has no Arrow type.
    """

    def __init__(self, text: str, imports: Mapping[str, str] | None = None, message: str | None = None) -> None:
        self.text = text
        self._imports = dict(imports or {})
        self._asked = message
        self._load()

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "_imports": self._imports, "_asked": self._asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    def _load(self) -> None:
        with _refused():
            self._file = _pool(self.text, self._imports).FindFileByName(_NAME)
            self.descriptor = self._message(self._asked)
        self._class = library("google.protobuf.message_factory").GetMessageClass(self.descriptor)
        self._made: tuple[Column, Take] | None = None

    @property
    def column(self) -> Column:
        """The column of the message. Raises InvalidArgumentError if it has none."""
        return self._columns()[0]

    def _columns(self) -> tuple[Column, Take]:
        if self._made is None:
            with _refused():
                self._made = _message(self.descriptor, ())
        return self._made

    def _message(self, name: str | None) -> Any:
        if name is None:
            if not self._file.message_types_by_name:
                raise ValueError("it has no message")
            return next(iter(self._file.message_types_by_name.values()))
        try:
            return self._file.pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(f"it has no message {name}") from None

    def named_by(self, indexes: list[int]) -> str:
        """The full name of the message that a frame names by its place in the file. Raises UndecodableValueError."""
        found: Any = None
        try:
            for index in indexes:
                there = self._file.message_types_by_name.values() if found is None else [
                    one for one in found.nested_types if not one.GetOptions().map_entry
                ]
                found = list(there)[index]
        except IndexError:
            raise UndecodableValueError(f"the schema has no message at {indexes}") from None
        return str(found.full_name)

    def read_from(self, writer: "ProtobufSchema", *, has_indexes: bool) -> Read:
        """A function that reads messages whose frame names one of `writer`: fields count by their numbers."""
        ours, take, decode = self.descriptor.full_name, self._columns()[1], self._class
        error_class = library("google.protobuf.message").DecodeError

        def read(raw: bytes, position: int) -> Any:
            if has_indexes:
                indexes, position = _indexes(raw, position)
                name = writer.named_by(indexes)
                if name != ours:
                    raise UndecodableValueError(f"it is a {name}, not a {ours}")
            message = decode()
            try:
                message.ParseFromString(raw[position:])
            except (error_class, RecursionError) as error:
                raise UndecodableValueError(f"not a {ours}: {error}") from error
            return take(message)

        return read


@contextmanager
def _refused() -> Iterator[None]:
    """Raise InvalidArgumentError for what is wrong with a schema."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
        raise InvalidArgumentError(
            f"not a Protobuf schema that columns can be made of: {why.strip()}", hint="correct the schema"
        ) from error


def _indexes(raw: bytes, position: int) -> tuple[list[int], int]:
    """Which message it is, by Confluent's serializers: the number of indexes, then them; 0 stands for the first."""
    count, position = _zigzag(raw, position)
    if count == 0:
        return [0], position
    if not 0 < count <= _INDEXES_MAX:
        raise UndecodableValueError(f"the frame names a message by {count} indexes")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(raw, position)
        if index < 0:
            raise UndecodableValueError(f"the frame has the message index {index}")
        indexes.append(index)
    return indexes, position


def _zigzag(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(raw) and shift < 35:
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise UndecodableValueError("the frame ends within a message index")


def _pool(text: str, imports: Mapping[str, str]) -> Any:
    """A pool of descriptors with the file, and with all that it imports. Raises ValueError, TypeError."""
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    done: set[str] = set()

    def add(name: str, file: Any, above: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in above:
            raise ValueError(f"{name} imports itself")
        for path in file.dependency:
            add(path, _imported(path, imports), (*above, name))
        pool.AddSerializedFile(file.SerializeToString())
        done.add(name)

    add(_NAME, parse_proto(text, _NAME), ())
    return pool


def _imported(path: str, imports: Mapping[str, str]) -> Any:
    if path in imports:
        return parse_proto(imports[path], path)
    if path in _BUILT_IN:
        return parse_proto(_BUILT_IN[path], path)
    name = path.removeprefix("google/protobuf/").removesuffix(".proto")
    if name in _WELL_KNOWN and path == f"google/protobuf/{name}.proto":
        module = library(f"google.protobuf.{name}_pb2")
        file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        return file
    raise ValueError(f"it imports {path}, which is not among its references")


# --- columns, and what fills them ----------------------------------------------------------------


def _message(descriptor: Any, above: tuple[str, ...]) -> tuple[Column, Take]:
    name = descriptor.full_name
    known = _well_known(descriptor)
    if known is not None:
        return known
    if name in above:
        raise ValueError(f"{name} contains itself: such a type has no columns")
    columns, takers = [], []
    for field in descriptor.fields:
        column, take = _field(field, (*above, name))
        columns.append((field.name, column))
        takers.append((field.name, take, field.has_presence))

    def taken(message: Any) -> dict[str, Any]:
        return {
            name: None if tracked and not message.HasField(name) else take(getattr(message, name))
            for name, take, tracked in takers
        }

    return Struct(columns), taken


def _field(field: Any, above: tuple[str, ...]) -> tuple[Column, Take]:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        keys, take_key = _single(entry.fields_by_name["key"], above)
        items, take_item = _single(entry.fields_by_name["value"], above)
        return MapColumn(keys, items), lambda pairs: {
            take_key(key): take_item(pairs[key]) for key in pairs
        }
    column, take = _single(field, above)
    if field.is_repeated:
        return Repeated(column), lambda values: [take(value) for value in values]
    return column, take


def _single(field: Any, above: tuple[str, ...]) -> tuple[Column, Take]:
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return OpenEnum(list(dict.fromkeys(names.values()))), lambda number: names.get(number, str(number))
    return Plain(_scalar(field)), _same


def _scalar(field: Any) -> Any:
    pyarrow = library("pyarrow")
    return {
        field.CPPTYPE_INT32: pyarrow.int32(), field.CPPTYPE_INT64: pyarrow.int64(),
        field.CPPTYPE_UINT32: pyarrow.uint32(), field.CPPTYPE_UINT64: pyarrow.uint64(),
        field.CPPTYPE_DOUBLE: pyarrow.float64(), field.CPPTYPE_FLOAT: pyarrow.float32(),
        field.CPPTYPE_BOOL: pyarrow.bool_(),
        field.CPPTYPE_STRING: pyarrow.binary() if field.type == field.TYPE_BYTES else pyarrow.string(),
    }[field.cpp_type]


def _same(value: Any) -> Any:
    return value


def _well_known(descriptor: Any) -> tuple[Column, Take] | None:
    """A type of Google's that has a type of Arrow's; None for all others."""
    pyarrow = library("pyarrow")
    name = descriptor.full_name
    if name in _JSON:
        return Plain(pyarrow.string()), _json
    if name == "google.protobuf.Timestamp":
        return Number(pyarrow.int64(), pyarrow.timestamp("ns", "UTC")), _nanos
    if name == "google.protobuf.Duration":
        return Number(pyarrow.int64(), pyarrow.duration("ns")), _nanos
    if name in {f"google.protobuf.{wrapped}Value" for wrapped in _WRAPPERS}:
        return Plain(_scalar(descriptor.fields_by_name["value"])), lambda message: message.value
    return None


def _nanos(message: Any) -> int:
    nanos = message.seconds * _NANOS + message.nanos
    if not -(1 << 63) <= nanos < 1 << 63:
        raise UndecodableValueError(f"{message.seconds} seconds have no place in nanoseconds of 64 bits")
    return int(nanos)


def _json(message: Any) -> str:
    form = library("google.protobuf.json_format")
    try:
        return str(form.MessageToJson(message, indent=None, ensure_ascii=False))
    except (form.SerializeToJsonError, ValueError) as error:
        raise UndecodableValueError(f"it has no JSON: {error}") from error
