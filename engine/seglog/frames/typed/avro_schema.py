"""An Avro schema as the Arrow column of its values.

https://avro.apache.org/docs/1.12.0/specification/. Values come as Avro stores them, without logical types: a timestamp
is an integer, a decimal its bytes, so nothing is lost on the way (Python's datetime ends with the year 9999, and has no
nanoseconds).

    boolean, int, long, float, double, bytes, string    bool, int32, int64, float, double, binary, string
    record, array, map, fixed           struct, list, map, fixed-size binary
    enum                                dictionary of strings
    [null, X]                           X
    [X, Y]                              struct with member0, member1, as Spark's Avro has it
    decimal, date, uuid                 decimal128 or decimal256, date32, arrow.uuid
    time-millis, time-micros            time32 in ms, time64 in us
    timestamp-millis, -micros, -nanos   timestamp in UTC; local-timestamp-...: without a time zone
"""
import json
from collections.abc import Iterator, Mapping
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library
from seglog.frames.typed.columns import (
    Column,
    DecimalColumn,
    EnumColumn,
    MapColumn,
    Number,
    Plain,
    Repeated,
    Struct,
    Union,
    UuidColumn,
)

Schema = Any            # parsed JSON
Names = dict[str, Schema]

_NAMED = {"record", "error", "enum", "fixed"}
_COLUMNS_MAX = 100_000
_DEPTH_MAX = 200                    # the program of a kernel is nested a little deeper, and at most 256
_BRANCHES_MAX = 1000                # each of a writer's union is compared with each of the reader's
_FIXED_BYTES_MAX = (1 << 28) - 1    # Arrow counts the bits of a value in an int32; of all that are in one null
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


class AvroSchema:
    """A parsed schema. `named`: the definitions of names that it uses and does not define, from its references.

    Raises InvalidArgumentError if it is not a schema, or has no Arrow type.
    """

    def __init__(self, text: str, named: Names | None = None) -> None:
        self.text = text
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refused(f"not JSON: {error}") from error
        try:
            # Every definition is where its name is used first, so that the schema stands by itself.
            self.definition: Schema = _Inlined(named or {}).of(given, "")
            self.names: Names = dict(_definitions(self.definition))
            self.column: Column = _Columns(self.names).of(self.definition)
            if (size := _null_bytes(self.column)) > _FIXED_BYTES_MAX:
                raise ValueError(f"a null of it takes {size} bytes")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _refused(str(error) or type(error).__name__) from error
        except RecursionError as error:
            raise _refused("it is nested too deeply, or in itself: such a type has no columns") from error

    @property
    def plain(self) -> Schema:
        """The same without logical types."""
        return _plain(self.definition)


def _refused(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"not an Avro schema that columns can be made of: {why}", hint="correct the schema")


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """The name of a definition with its namespace."""
    name = schema["name"]
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name")
    if "." in name:
        return name
    space = schema.get("namespace", namespace)
    return f"{space}.{name}" if space else name


class _Inlined:
    """Copies a schema with full names, and with each foreign definition where it is used first."""

    def __init__(self, named: Names, *, merges: bool = False) -> None:
        """`merges`: a name that is defined again means what it meant first."""
        self._named = named
        self._merges = merges
        self._seen: set[str] = set()

    def of(self, schema: Schema, namespace: str) -> Schema:
        if isinstance(schema, str):
            return self._of_name(schema, namespace)
        if isinstance(schema, list):
            return [self.of(branch, namespace) for branch in schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):       # {"type": {"type": ...}}
            return self.of(kind, namespace)
        copy = dict(schema)
        if kind in _NAMED:
            name = full_name(schema, namespace)
            if name in self._seen and self._merges:
                return name
            if name in self._seen:
                raise ValueError(f"{name} is defined twice")
            self._seen.add(name)
            copy["name"], namespace = name, name.rpartition(".")[0]
            copy["aliases"] = [_in_namespace(alias, namespace) for alias in _texts_of(schema, "aliases", [])]
            copy.pop("namespace", None)
        if kind in ("record", "error"):
            copy["type"] = "record"
            copy["fields"] = [
                field | {"type": self.of(field["type"], namespace), "aliases": _texts_of(field, "aliases", [])}
                for field in schema["fields"]
            ]
        elif kind == "enum":
            _texts_of(schema, "symbols")
            if not isinstance(schema.get("default", ""), str):
                raise ValueError(f"{schema['default']!r} is not a symbol")
        elif kind == "array":
            copy["items"] = self.of(schema["items"], namespace)
        elif kind == "map":
            copy["values"] = self.of(schema["values"], namespace)
        elif kind not in _NAMED and kind not in _PRIMITIVES:
            return self._of_name(kind, namespace)
        return copy

    def _of_name(self, name: str, namespace: str) -> Schema:
        if name in _PRIMITIVES:
            return name
        for candidate in (_in_namespace(name, namespace), name):
            if candidate in self._seen:
                return candidate
            if candidate in self._named:
                return self.of(self._named[candidate], "")
        raise ValueError(f"unknown type {name!r}")


def _texts_of(schema: Mapping[str, Any], attribute: str, default: object = None) -> list[str]:
    """An attribute that is a list of texts."""
    texts = schema.get(attribute, default)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{attribute} are {texts!r}, not a list of texts")
    for text in texts:
        text.encode()               # Arrow holds no lone surrogates
    return texts


def _in_namespace(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def definitions_in(text: str, named: Names) -> Names:
    """The definitions in a schema that another one refers to. Raises InvalidArgumentError."""
    return AvroSchema(text, named).names


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schema and all that is in it."""
    yield schema
    if isinstance(schema, list):
        for branch in schema:
            yield from _parts(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield from _parts(field["type"])
        for name in ("items", "values"):
            if name in schema:
                yield from _parts(schema[name])


def _definitions(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for part in _parts(schema):
        if isinstance(part, dict) and part["type"] in _NAMED:
            yield part["name"], part


def branches_of(union: list[Schema]) -> list[Schema]:
    """The types of a union but null."""
    return [branch for branch in union if branch != "null"]


def _plain(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {name: value for name, value in schema.items() if name != "logicalType"}
    if "fields" in copy:
        copy["fields"] = [field | {"type": _plain(field["type"])} for field in copy["fields"]]
    for name in ("items", "values"):
        if name in copy:
            copy[name] = _plain(copy[name])
    return copy


class _Columns:
    """Makes the columns of a schema."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._open: list[str] = []      # the records around the current type
        self._count = 0
        self._depth = 0

    def of(self, schema: Schema) -> Column:
        if self._depth == _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")
        self._depth += 1
        made = self._of(schema)
        self._depth -= 1
        return made

    def _of(self, schema: Schema) -> Column:
        pyarrow = library("pyarrow")
        self._count += 1
        if self._count > _COLUMNS_MAX:
            # Thirty records, each with two fields of the one before it, would be 2^30 columns.
            raise ValueError(f"it has more than {_COLUMNS_MAX} columns")
        if isinstance(schema, list):
            branches = branches_of(schema)
            if not schema:
                raise ValueError("an empty union")
            if len(schema) > _BRANCHES_MAX:
                raise ValueError(f"a union of more than {_BRANCHES_MAX} types")
            if not branches:
                return Plain(pyarrow.null())
            columns = [self.of(branch) for branch in branches]
            return columns[0] if len(columns) == 1 else Union(columns)
        if isinstance(schema, str):
            return self.of(self._names[schema]) if schema in self._names else Plain(_primitives()[schema])
        kind = schema["type"]
        logical = logical_type(schema)
        if logical is not None:
            return _logical_column(schema, logical)
        match kind:
            case "record":
                name = schema["name"]
                if name in self._open:
                    raise ValueError(f"{name} contains itself: such a type has no columns")
                self._open.append(name)
                fields = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
                self._open.pop()
                if len({name for name, _ in fields}) < len(fields):
                    raise ValueError(f"{name} has two fields with the same name")
                return Struct(fields)
            case "enum":
                return EnumColumn(schema["symbols"])
            case "fixed":
                return Plain(pyarrow.binary(fixed_size(schema)))
            case "array":
                items = self.of(schema["items"])
                if self._may_be_empty(schema["items"]):
                    # A few bytes could claim 2^63 of them.
                    raise ValueError("an array of items that take no bytes")
                return Repeated(items)
            case "map":
                return MapColumn(Plain(pyarrow.string()), self.of(schema["values"]))
            case _:
                return Plain(_primitives()[kind])

    def _may_be_empty(self, schema: Schema) -> bool:
        """Whether its values take no bytes."""
        if isinstance(schema, str):
            if schema in self._open:
                return False            # refused elsewhere
            return schema == "null" or (schema in self._names and self._may_be_empty(self._names[schema]))
        if isinstance(schema, list):
            return False                # the number of the branch
        match schema["type"]:
            case "record":
                return all(self._may_be_empty(field["type"]) for field in schema["fields"])
            case "fixed":
                return fixed_size(schema) == 0
            case kind:
                return bool(kind == "null")


def fixed_size(schema: Schema) -> int:
    """The bytes of a fixed."""
    size = schema["size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _FIXED_BYTES_MAX:
        raise ValueError(f"a fixed of {size!r} bytes")
    return size


def _null_bytes(column: Column) -> int:
    """What a null takes of the columns that have a fixed width."""
    match column:
        case Struct():
            return sum(_null_bytes(field) for _, field in column.fields)
        case UuidColumn():
            return 16
    try:
        return 0 if isinstance(column, Repeated | MapColumn) else int(column.type.byte_width)
    except ValueError:              # bytes and text
        return 0


def _primitives() -> dict[str, Any]:
    pyarrow = library("pyarrow")
    return {
        "null": pyarrow.null(), "boolean": pyarrow.bool_(), "int": pyarrow.int32(), "long": pyarrow.int64(),
        "float": pyarrow.float32(), "double": pyarrow.float64(), "bytes": pyarrow.binary(), "string": pyarrow.string(),
    }


def logical_type(schema: Schema) -> tuple[Any, ...] | None:
    """The logical type with its attributes; None if it has none that the specification knows for its type: such ones
    are ignored."""
    if not isinstance(schema, dict):
        return None
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        match schema.get("precision"), schema.get("scale", 0):
            case (int(precision), int(scale)) if 0 <= scale <= precision and 0 < precision <= 76:
                return "decimal", precision, scale
        return None
    allowed = {
        "uuid": "string", "date": "int", "time-millis": "int", "time-micros": "long",
        **{f"{local}timestamp-{unit}": "long" for local in ("", "local-") for unit in _UNITS},
    }
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return ("uuid",)
    return (logical,) if isinstance(logical, str) and allowed.get(logical) == kind else None


def _logical_column(schema: Schema, logical: tuple[Any, ...]) -> Column:
    pyarrow = library("pyarrow")
    match logical:
        case ("decimal", precision, scale):
            return DecimalColumn(precision, scale)
        case ("uuid",):
            return UuidColumn()
        case ("date",):
            return Number(pyarrow.int32(), pyarrow.date32())
        case ("time-millis",):
            return Number(pyarrow.int32(), pyarrow.time32("ms"))
        case ("time-micros",):
            return Number(pyarrow.int64(), pyarrow.time64("us"))
        case (name,):
            zone = None if name.startswith("local-") else "UTC"
            return Number(pyarrow.int64(), pyarrow.timestamp(_UNITS[name.rpartition("-")[2]], zone))
    raise AssertionError(logical)


# --- two schemas -----------------------------------------------------------------------------------


def logical_mismatch(writer: AvroSchema, reader: AvroSchema) -> str | None:
    """Where a number of the writer would be read in another unit or scale, which Avro's rules do not forbid for all
    types; None if nowhere."""
    return _Mismatch(writer, reader).between(writer.definition, reader.definition, "")


class _Mismatch:
    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer
        self._reader = reader

    def between(self, writer: Schema, reader: Schema, path: str) -> str | None:
        writer, reader = self._writer.names.get(_key(writer), writer), self._reader.names.get(_key(reader), reader)
        if isinstance(writer, list) or isinstance(reader, list):
            theirs = branches_of(writer) if isinstance(writer, list) else [writer]
            ours = branches_of(reader) if isinstance(reader, list) else [reader]
            # Of several branches each must have one that reads it: only then it is known which one does.
            return self.between(theirs[0], ours[0], path) if len(theirs) == len(ours) == 1 else None
        wrote, reads = logical_type(writer), logical_type(reader)
        if wrote is not None and reads is not None and wrote != reads and _storage(writer) == _storage(reader):
            wrote_as, read_as = ("-".join(map(str, logical)) for logical in (wrote, reads))
            return f"{path or 'the value'} was written as {wrote_as}, and is read as {read_as}"
        if not isinstance(writer, dict) or not isinstance(reader, dict) or writer["type"] != reader["type"]:
            return None
        match writer["type"]:
            case "record":
                there = {field["name"]: field["type"] for field in writer["fields"]}
                for field in reader["fields"]:
                    name = next((n for n in (field["name"], *field.get("aliases", ())) if n in there), None)
                    found = None if name is None else self.between(
                        there[name], field["type"], f"{path}.{field['name']}" if path else field["name"]
                    )
                    if found is not None:
                        return found
            case "array":
                return self.between(writer["items"], reader["items"], f"{path}[]")
            case "map":
                return self.between(writer["values"], reader["values"], f"{path}{{}}")
        return None


def _key(schema: Schema) -> str:
    return schema if isinstance(schema, str) else ""


def _storage(schema: Schema) -> object:
    return schema if isinstance(schema, str) else schema["type"]


def union_of(schemas: list[AvroSchema]) -> AvroSchema:
    """The last schema, and behind its fields those that only earlier ones have, null in the records of others."""
    latest = schemas[-1].definition
    if not isinstance(latest, dict) or latest["type"] != "record":
        return schemas[-1]
    fields = {field["name"]: field for field in latest["fields"]}
    known = {name for field in latest["fields"] for name in (field["name"], *field.get("aliases", ()))}
    for schema in reversed(schemas[:-1]):
        if isinstance(schema.definition, dict) and schema.definition["type"] == "record":
            for field in schema.definition["fields"]:
                if field["name"] not in known and field["name"] not in fields:
                    kind = field["type"]
                    types = branches_of(kind) if isinstance(kind, list) else [kind]
                    fields[field["name"]] = {"name": field["name"], "type": ["null", *types], "default": None}
    named = {name: part for schema in schemas for name, part in schema.names.items()}
    merged = _Inlined(named, merges=True).of(latest | {"fields": list(fields.values())}, "")
    return AvroSchema(json.dumps(merged))
