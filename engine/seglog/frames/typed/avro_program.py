"""Compiles a writer's and a reader's Avro schema into the program of a kernel: instructions for each value that was
written, by Avro's rules for two schemas (https://avro.apache.org/docs/1.12.0/specification/#schema-resolution).

Where two types do not fit, or a field without a default is missing, the program fails only if a value gets there: a
union may never have the type that does not fit.
"""
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from seglog._kernels.avro_column import AvroLayout, AvroProgram, Instruction, NodeKind
from seglog.frames.libraries import library
from seglog.frames.typed.avro_schema import AvroSchema, Schema, branches_of, fixed_size
from seglog.frames.typed.columns import (
    Column,
    DecimalColumn,
    EnumColumn,
    MapColumn,
    Repeated,
    Struct,
    UndecodableValueError,
    Union,
    UuidColumn,
)

_PROGRAM_MAX = 1_000_000
_CONSTANT_BYTES_MAX = 64 << 20
_NOT_OF_ITS_TYPE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error)
_NOT_THERE = object()

# What each primitive type becomes by itself, and what else it may be read as.
_READS = {
    ("boolean", "boolean"): Instruction.BOOLEAN, ("int", "int"): Instruction.INT, ("long", "long"): Instruction.LONG,
    ("int", "long"): Instruction.LONG, ("int", "float"): Instruction.LONG_TO_FLOAT,
    ("long", "float"): Instruction.LONG_TO_FLOAT, ("int", "double"): Instruction.LONG_TO_DOUBLE,
    ("long", "double"): Instruction.LONG_TO_DOUBLE, ("float", "float"): Instruction.FLOAT,
    ("float", "double"): Instruction.FLOAT_TO_DOUBLE, ("double", "double"): Instruction.DOUBLE,
    ("bytes", "bytes"): Instruction.BYTES, ("string", "string"): Instruction.STRING,
    ("bytes", "string"): Instruction.STRING, ("string", "bytes"): Instruction.BYTES,
}
_SKIPS = {
    "boolean": (Instruction.SKIP_FIXED, 1), "int": (Instruction.SKIP_LONG,), "long": (Instruction.SKIP_LONG,),
    "float": (Instruction.SKIP_FIXED, 4), "double": (Instruction.SKIP_FIXED, 8), "bytes": (Instruction.SKIP_BYTES,),
    "string": (Instruction.SKIP_STRING,),
}


# --- the nodes of a column ----------------------------------------------------------------------------


def layout_of(column: Column) -> AvroLayout:
    """The nodes of a column, in the order in which array_of takes their buffers."""
    nodes: list[tuple[int, int, int]] = []
    _add_nodes(column, nodes)
    return AvroLayout(nodes)


def _add_nodes(column: Column, nodes: list[tuple[int, int, int]]) -> None:
    parts = _parts(column)
    if isinstance(column, Struct):
        nodes.append((NodeKind.STRUCT_NODE, 0, len(parts)))
    elif isinstance(column, Repeated | MapColumn):
        nodes.append((NodeKind.LIST_NODE, 0, 1))
    else:
        nodes.append((*_plain_node(column), 0))
    for part in parts:
        _add_nodes(part, nodes)


def _parts(column: Column) -> list[Column]:
    """The columns whose nodes are children of the column's."""
    match column:
        case Struct():
            return [field for _, field in column.fields]
        case Repeated():
            return [column.items]
        case MapColumn():
            return [column.entries]
    return []


def _plain_node(column: Column) -> tuple[int, int]:
    match column:
        case UuidColumn():
            return NodeKind.FIXED_NODE, 16
        case EnumColumn():
            return NodeKind.FIXED_NODE, 4
    match str(column.type):
        case "null":
            return NodeKind.NULL_NODE, 0
        case "bool":
            return NodeKind.BOOL_NODE, 0
        case "binary" | "string":
            return NodeKind.VAR_NODE, 0
    return NodeKind.FIXED_NODE, column.type.bit_width // 8


Buffers = tuple[int, Any, Any, Any]      # length, validity, offsets, data


def array_of(column: Column, buffers: Sequence[Buffers]) -> Any:
    """The Arrow array of a column whose nodes have these buffers."""
    return _array(column, iter(buffers))


def _array(column: Column, buffers: Iterator[Buffers]) -> Any:
    pyarrow = library("pyarrow")

    def made(type_: Any, children: Sequence[Column] = ()) -> Any:
        length, *parts = next(buffers)
        if pyarrow.types.is_null(type_):
            return pyarrow.nulls(length)
        validity, offsets, data = (None if part is None else pyarrow.py_buffer(part) for part in parts)
        found = [validity, *([offsets] if offsets is not None else []), *([data] if data is not None else [])]
        arrays = [_array(child, buffers) for child in children]
        return pyarrow.Array.from_buffers(
            type_, length, found, null_count=-1 if validity is not None else 0, children=arrays)

    match column:
        case UuidColumn():
            return pyarrow.ExtensionArray.from_storage(column.type, made(pyarrow.binary(16)))
        case EnumColumn():
            return pyarrow.DictionaryArray.from_arrays(
                made(pyarrow.int32()), pyarrow.array(column.symbols, pyarrow.string()))
    return made(column.type, _parts(column))


# --- programs -----------------------------------------------------------------------------------------


class Compiler:
    """Makes the programs of a reader's schema: one for each schema that values were written with."""

    def __init__(self, reader: AvroSchema, layout: AvroLayout) -> None:
        self._reader = reader
        self._layout = layout

    def program(self, writer: AvroSchema) -> tuple[AvroProgram, list[str]]:
        """The program, and the reasons that its failures have numbers of. Raises UndecodableValueError."""
        made = _Program(writer, self._reader)
        try:
            made.read(writer.definition, self._reader.definition, self._reader.column, 0)
            return AvroProgram(self._layout, made.code, bytes(made.constants)), made.reasons
        except (RecursionError, ValueError) as error:
            raise UndecodableValueError(f"its schema cannot be read: {error}") from error


class _Program:
    """`within`: the program that this one becomes a part of."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema, within: "_Program | None" = None) -> None:
        self._writer = writer
        self._reader = reader
        self.code: list[int] = [] if within is None else within.code
        self.constants: bytearray = bytearray() if within is None else within.constants
        self.reasons: list[str] = [] if within is None else within.reasons
        self._sizes: dict[int, int] = {} if within is None else within._sizes
        self._defaults: dict[tuple[int, int], int] = {}
        # Types that are equal stand for one another, whatever else one could be read as.
        self._is_same = writer.plain == reader.plain

    def _add(self, instruction: int, node: int = -1, *operands: int) -> int:
        at = len(self.code)
        if at > _PROGRAM_MAX or len(self.constants) > _CONSTANT_BYTES_MAX:
            raise ValueError("the program for it is too large")
        self.code += (instruction, node, *operands)
        return at

    def _fail(self, reason: str) -> int:
        self.reasons.append(reason)
        return self._add(Instruction.FAIL, -1, len(self.reasons) - 1)

    def read(self, wrote: Schema, reads: Schema, column: Column, node: int) -> int:
        """The instruction that reads what was written by the one type as the other, into the nodes of the column."""
        wrote, reads = _defined(wrote, self._writer), _defined(reads, self._reader)
        if isinstance(wrote, list):
            branches = [
                self._read_as_member(branch, reads, number, column, node)
                if self._is_same and isinstance(reads, list) else self.read(branch, reads, column, node)
                for number, branch in enumerate(wrote)
            ]
            return self._add(Instruction.UNION, -1, len(branches), *branches)
        if isinstance(reads, list):
            return self._read_as_union(wrote, reads, column, node)
        kinds = _kind(wrote), _kind(reads)
        if not self._fits(wrote, reads):
            return self._fail(f"a value of {_words(wrote)} cannot be read as one of {_words(reads)}")
        match kinds:
            case ("null", "null"):
                return self._add(Instruction.NOTHING, node)
            case ("record", "record"):
                assert isinstance(column, Struct)
                return self._record(wrote, reads, column, node)
            case ("array", "array"):
                assert isinstance(column, Repeated)
                item = self.read(wrote["items"], reads["items"], column.items, node + 1)
                return self._add(Instruction.LIST, node, item)
            case ("map", "map"):
                assert isinstance(column, MapColumn)
                value = self.read(wrote["values"], reads["values"], column.items, node + 3)
                return self._add(Instruction.MAP, node, value, self._skip(wrote["values"]))
            case ("enum", "enum"):
                return self._enum(wrote, reads, node)
        if isinstance(column, DecimalColumn):
            size = fixed_size(wrote) if kinds[0] == "fixed" else -1
            self.constants += (10**column.type.precision).to_bytes(width := column.type.bit_width // 8, "little")
            return self._add(Instruction.DECIMAL, node, size, len(self.constants) - width, column.type.precision)
        if kinds[0] == "fixed":
            return self._add(Instruction.FIXED, node, fixed_size(wrote))
        return self._add(Instruction.UUID if isinstance(column, UuidColumn) else _READS[kinds], node)

    def _read_as_union(self, wrote: Schema, reads: list[Schema], column: Column, node: int) -> int:
        number = next((n for n, branch in enumerate(reads) if self._fits(wrote, branch)), None)
        if number is None:
            return self._fail(f"the union of the schema to read with has no type that {_words(wrote)} can be read as")
        return self._read_as_member(wrote, reads, number, column, node)

    def _read_as_member(self, wrote: Schema, reads: list[Schema], number: int, column: Column, node: int) -> int:
        branch = reads[number]
        if _defined(branch, self._reader) == "null":
            return self._add(Instruction.NOTHING, node)
        if not isinstance(column, Union):
            return self.read(wrote, branch, column, node)
        member = len(branches_of(reads[:number]))
        at = node + 1 + sum(self._size(field) for _, field in column.fields[:member])
        return self._add(Instruction.MEMBER, node, member, self.read(wrote, branch, column.fields[member][1], at))

    def _size(self, column: Column) -> int:
        """How many nodes a column has."""
        if id(column) not in self._sizes:
            self._sizes[id(column)] = 1 + sum(map(self._size, _parts(column)))
        return self._sizes[id(column)]

    def _record(self, wrote: Schema, reads: Schema, column: Struct, node: int) -> int:
        places: dict[str, tuple[Schema, Column, int]] = {}
        at = node + 1
        for field, (_, part) in zip(reads["fields"], column.fields, strict=True):
            places[field["name"]] = field, part, at
            at += self._size(part)
        names = {alias: field["name"] for field in reads["fields"] for alias in field.get("aliases", ())}
        names |= {name: name for name in places}
        steps = []
        for field in wrote["fields"]:
            name = names.get(field["name"])
            if name in places:
                ours, part, at = places.pop(name)
                steps.append(self.read(field["type"], ours["type"], part, at))
            elif name is not None:
                steps.append(self._fail(f"two fields of {wrote['name']} are read as {name}"))
            else:
                steps.append(self._skip(field["type"]))
        for name, (field, part, at) in places.items():
            steps.append(self._default(field, part, at, reads["name"], name))
        return self._add(Instruction.RECORD, node, len(steps), *steps)

    def _default(self, field: Schema, column: Column, node: int, record: str, name: str) -> int:
        value = field.get("default", _NOT_THERE)
        if value is _NOT_THERE:
            return self._fail(f"it has no field {name}, for which {record} has no default")
        at = self._defaults.get((id(field), node))
        if at is not None:          # (a union's types may all lack the same field)
            return at
        try:
            raw = Encoder(self._reader).bytes_of(value, field["type"])
        except _NOT_OF_ITS_TYPE:
            return self._fail(f"the default {json.dumps(value)} of {record}.{name} is not of its type")
        self.constants += raw
        begin, end = len(self.constants) - len(raw), len(self.constants)
        own = _Program(self._reader, self._reader, self)
        at = self._add(Instruction.DEFAULT, -1, begin, end, own.read(field["type"], field["type"], column, node))
        self._defaults[id(field), node] = at
        return at

    def _enum(self, wrote: Schema, reads: Schema, node: int) -> int:
        numbers = {symbol: number for number, symbol in enumerate(reads["symbols"])}
        default = numbers.get(reads.get("default"), -1)
        symbols = [numbers.get(symbol, default) for symbol in wrote["symbols"]]
        return self._add(Instruction.ENUM, node, len(symbols), *symbols)

    def _fits(self, wrote: Schema, reads: Schema) -> bool:
        """Whether the one type can be read as the other, fields of records aside."""
        wrote, reads = _defined(wrote, self._writer), _defined(reads, self._reader)
        if isinstance(wrote, list):
            return True             # which of its types it is, is known with each value
        if isinstance(reads, list):
            return any(self._fits(wrote, branch) for branch in reads)
        kinds = _kind(wrote), _kind(reads)
        match kinds:
            case ("array", "array"):
                return self._fits(wrote["items"], reads["items"])
            case ("map", "map"):
                return self._fits(wrote["values"], reads["values"])
            case ("fixed", "fixed"):
                return fixed_size(wrote) == fixed_size(reads) and _same_name(wrote, reads)
            case ("record", "record") | ("enum", "enum"):
                return _same_name(wrote, reads)
        return kinds == ("null", "null") or kinds in _READS

    def _skip(self, wrote: Schema) -> int:
        """The instruction that passes by a value."""
        wrote = _defined(wrote, self._writer)
        if isinstance(wrote, list):
            branches = [self._skip(branch) for branch in wrote]
            return self._add(Instruction.UNION, -1, len(branches), *branches)
        match _kind(wrote):
            case "null":
                return self._add(Instruction.NOTHING)
            case "record":
                steps = [self._skip(field["type"]) for field in wrote["fields"]]
                return self._add(Instruction.RECORD, -1, len(steps), *steps)
            case "array":
                return self._add(Instruction.SKIP_LIST, -1, self._skip(wrote["items"]))
            case "map":
                return self._add(Instruction.SKIP_MAP, -1, self._skip(wrote["values"]))
            case "fixed":
                return self._add(Instruction.SKIP_FIXED, -1, fixed_size(wrote))
            case "enum":
                return self._add(Instruction.SKIP_ENUM, -1, len(wrote["symbols"]))
            case kind:
                instruction, *operands = _SKIPS[kind]
                return self._add(instruction, -1, *operands)


def _defined(schema: Schema, of: AvroSchema) -> Schema:
    return of.names.get(schema, schema) if isinstance(schema, str) else schema


def _kind(schema: Schema) -> str:
    kind: str = schema if isinstance(schema, str) else schema["type"]
    return kind


def _same_name(wrote: Schema, reads: Schema) -> bool:
    """Names count without their namespaces, also as aliases."""
    name = wrote["name"]
    short = name.rpartition(".")[2]
    aliases: Sequence[str] = reads.get("aliases", ())
    return short == reads["name"].rpartition(".")[2] or name in aliases or short in aliases


def _words(schema: Schema) -> str:
    kind = _kind(schema)
    return f"the {kind} {schema['name']}" if kind in ("record", "enum", "fixed") else f"type {kind}"


# --- defaults -----------------------------------------------------------------------------------------


class Encoder:
    """Encodes the JSON of defaults. Raises one of _NOT_OF_ITS_TYPE for another value."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def bytes_of(self, value: Any, schema: Schema) -> bytes:
        """The binary encoding of a value."""
        schema = _defined(schema, self._schema)
        if isinstance(schema, list):
            for number, branch in enumerate(schema):
                try:
                    return _long(number, 64) + self.bytes_of(value, branch)
                except _NOT_OF_ITS_TYPE:
                    continue
            raise ValueError("none of the union's types")
        kind = _kind(schema)
        match kind, value:
            case "null", None:
                return b""
            case "boolean", bool():
                return bytes([value])
            case "int" | "long", int() if not isinstance(value, bool):
                return _long(value, 32 if kind == "int" else 64)
            case "float" | "double", int() | float() if not isinstance(value, bool):
                return struct.pack("<f" if kind == "float" else "<d", value)
            case "string", str():
                return _sized(value.encode())
            case "bytes", str():
                return _sized(value.encode("latin-1"))
            case "fixed", str() if len(value) == fixed_size(schema):
                return value.encode("latin-1")
            case "enum", str():
                return _long(schema["symbols"].index(value), 32)
            case "array", list():
                items = b"".join(self.bytes_of(item, schema["items"]) for item in value)
                return (_long(len(value), 64) + items + b"\0") if value else b"\0"
            case "map", dict():
                items = b"".join(
                    _sized(key.encode()) + self.bytes_of(item, schema["values"]) for key, item in value.items()
                )
                return (_long(len(value), 64) + items + b"\0") if value else b"\0"
            case "record", dict():
                return b"".join(
                    self.bytes_of(value[field["name"]] if field["name"] in value else field["default"], field["type"])
                    for field in schema["fields"]
                )
        raise ValueError(f"not a value of {_words(schema)}")


def _long(number: int, bits: int) -> bytes:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"more than {bits} bits")
    rest = (number << 1) ^ (number >> 63)
    made = bytearray()
    while rest >= 0x80:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def _sized(raw: bytes) -> bytes:
    return _long(len(raw), 64) + raw
