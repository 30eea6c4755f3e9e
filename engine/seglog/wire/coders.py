"""Readers and writers of messages, compiled for each version when it is first used.

    reader(cls, version)(buffer, position, end, elements_max) -> (message, position)
    writer(cls, version)(message, out, marks)      appends to `out`, a bytearray; `marks` gets the records to send
                                                   between its bytes, with their positions

They are compiled because a loop over the fields of every request costs ten times as much. Readers check each length
against the bytes that are left, and make at most `elements_max` list elements for a message, by default MAX_ELEMENTS,
which bounds the memory and the time for a frame of tiny elements. They raise ProtocolError, or, at the end of the
bytes, struct.error or IndexError, which codec.py turns into ProtocolError.
"""
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from seglog.errors import ProtocolError
from seglog.wire.definitions import Field
from seglog.wire.structs import KafkaMessage, KafkaStruct, fields

Reader = Callable[..., tuple[Any, int]]
Mark = tuple[int, Any]
Writer = Callable[[Any, bytearray, list[Mark]], None]

# In all lists of a message, nested ones included: 5 MB at 150 bytes an object, and 50 ms. A request about every
# partition of a broker has fewer: it has some thousands.
MAX_ELEMENTS = 1 << 15
# In a struct; KIP-482 has a handful in mind. Skipping one costs as much as reading an element.
MAX_TAGS = 64
# Records up to this size are copied, since a separate segment costs more.
MAX_COPIED_BYTES = 4096

# struct's letter and the size; a uuid is kept as 16 bytes.
FIXED = {
    "bool": ("?", 1), "int8": ("b", 1), "int16": ("h", 2), "uint16": ("H", 2), "int32": ("i", 4), "uint32": ("I", 4),
    "int64": ("q", 8), "float64": ("d", 8), "uuid": ("16s", 16),
}


class TooManyElementsError(ProtocolError):
    """The lists of a message have more elements than the caller of its reader allows."""


# --- what compiled code calls ------------------------------------------------------------


def read_uvarint(buffer: Any, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint is longer than five bytes", position=position)


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def skip_tags(buffer: Any, position: int, end: int) -> int:
    """Skip the tagged fields, and return the position after them."""
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGS:
        too_many_tags(count, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        if size > end - position:
            bad_length("a tagged field", size, position, end)
        position += size
    return position


def bad_length(name: str, length: int, position: int, end: int) -> NoReturn:
    if length < 0:
        raise ProtocolError(f"{name} is null, which this version does not allow", position=position)
    raise ProtocolError(f"{name} claims {length} bytes, but {end - position} are left", position=position)


def bad_count(name: str, count: int, size: int, position: int, end: int) -> NoReturn:
    if count < 0:
        raise ProtocolError(f"{name} is null, which this version does not allow", position=position)
    raise ProtocolError(
        f"{name} claims {count} elements of at least {size} bytes, but {end - position} bytes are left",
        position=position,
    )


def too_many(name: str, position: int) -> NoReturn:
    raise TooManyElementsError(f"the lists have more than {MAX_ELEMENTS} elements, at {name}", position=position)


def too_many_tags(count: int, position: int) -> NoReturn:
    raise ProtocolError(f"a struct has {count} tagged fields; expected at most {MAX_TAGS}", position=position)


def bad_tag(name: str, position: int) -> NoReturn:
    raise ProtocolError(f"the tagged field {name} does not end where its size says", position=position)


def records_size(value: Any) -> int:
    return sum(map(records_size, value)) if isinstance(value, list) else len(value)


def put_records(out: bytearray, marks: list[Mark], value: Any) -> None:
    if isinstance(value, list):
        for part in value:
            put_records(out, marks, part)
    elif isinstance(value, (bytes, bytearray, memoryview)) and len(value) <= MAX_COPIED_BYTES:
        out += value
    elif len(value):
        marks.append((len(out), value))


HELPERS = {
    helper.__name__: helper
    for helper in (
        read_uvarint, put_uvarint, skip_tags, bad_length, bad_count, too_many, too_many_tags, bad_tag, records_size,
        put_records,
    )
}


# --- compilers ---------------------------------------------------------------------------


class CoderSource:
    """The source lines of a function being generated for one version of a message."""

    def __init__(self, message: type[KafkaMessage], version: int) -> None:
        self.message = message
        self.version = version
        self.is_flexible = version >= message.FLEXIBLE_FROM
        self.names: dict[str, object] = {
            **HELPERS, "struct_pack": struct.pack, "struct_unpack_from": struct.unpack_from, "new": object.__new__,
            "MAX_ELEMENTS": MAX_ELEMENTS, "MAX_TAGS": MAX_TAGS,
        }
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0
        # Adjacent fields of fixed size, read or written by one call: (letter, size, expression).
        self._run: list[tuple[str, int, str]] = []

    def compiled(self, head: str) -> Any:
        code = compile("\n".join([head, *self._lines]), f"<{self.message.__name__} v{self.version}>", "exec")
        exec(code, self.names)
        return self.names["coder"]

    def line(self, text: str, deeper: int = 0) -> None:
        self._lines.append("    " * (self._depth + deeper) + text)

    def local(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def constant(self, value: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def struct_of(self, field: Field) -> type[KafkaStruct]:
        found: type[KafkaStruct] = getattr(self.message, field.type)
        return found

    def compact(self, field: Field) -> bool:
        return self.is_flexible and not field.is_rigid

    def present(self, of: type[KafkaStruct]) -> list[Field]:
        return [field for field in fields(of) if self.version in field.versions and not self.is_tagged(field)]

    def tagged(self, of: type[KafkaStruct]) -> list[Field]:
        found = [field for field in fields(of) if self.version in field.versions and self.is_tagged(field)]
        return sorted(found, key=lambda field: field.tag or 0)

    def is_tagged(self, field: Field) -> bool:
        return self.is_flexible and field.tag is not None

    @staticmethod
    def rigid_length(field: Field) -> tuple[str, int]:
        """struct's letter and the size of a length that is not compact, for a string, bytes or a list."""
        return ("h", 2) if field.type == "string" and not field.is_list else ("i", 4)

    def smallest(self, field: Field) -> int:
        """The fewest bytes that a field can take."""
        if field.type in FIXED and not field.is_list:
            return FIXED[field.type][1]
        if field.is_list or not field.is_struct:
            return 1 if self.compact(field) else self.rigid_length(field)[1]
        if self.version in field.nullable:
            return 1
        return sum(map(self.smallest, self.present(self.struct_of(field)))) + self.is_flexible


class ReaderSource(CoderSource):
    def compile(self) -> Reader:
        if self.records_inside(self.message):
            self.line("view = memoryview(buf)")
        self.read_struct(self.message, "o")
        self.line("return o, p")
        reader: Reader = self.compiled("def coder(buf, p, end, left=MAX_ELEMENTS):")
        return reader

    def records_inside(self, of: type[KafkaStruct]) -> bool:
        return any(
            field.type == "records" or (field.is_struct and self.records_inside(self.struct_of(field)))
            for field in self.present(of)
        )

    def flush(self) -> None:
        if self._run:
            unpack = self.constant(struct.Struct(">" + "".join(letter for letter, _, _ in self._run)).unpack_from)
            targets = "".join(f"{target}, " for _, _, target in self._run)
            self.line(f"{targets}= {unpack}(buf, p); p += {sum(size for _, size, _ in self._run)}")
            self._run.clear()

    def read_struct(self, of: type[KafkaStruct], var: str) -> None:
        self.line(f"{var} = new({self.constant(of)})")
        present = self.present(of)
        for field in fields(of):
            if field not in present:
                default = field.default_value()
                shown = "[]" if default == [] else repr(default)
                if field.is_null_or_struct and self.version in field.versions:
                    shown = f"{self.constant(self.struct_of(field))}()"
                self.line(f"{var}.{field.attribute} = {shown}")
        for field in present:
            self.read(field, f"{var}.{field.attribute}")
        self.flush()
        if self.is_flexible:
            self.read_tags(self.tagged(of), var)

    def read_tags(self, tagged: list[Field], var: str) -> None:
        self.line("if buf[p]:")
        self._depth += 1
        if not tagged:
            self.line("p = skip_tags(buf, p, end)")
        else:
            count, tag, stop = self.local(), self.local(), self.local()
            self.line(f"{count}, p = read_uvarint(buf, p)")
            self.line(f"if {count} > MAX_TAGS: too_many_tags({count}, p)")
            self.line(f"for _ in range({count}):")
            self._depth += 1
            self.line(f"{tag}, p = read_uvarint(buf, p); {stop}, p = read_uvarint(buf, p)")
            self.line(f"if {stop} > end - p: bad_length('a tagged field', {stop}, p, end)")
            self.line(f"{stop} += p")
            for n, field in enumerate(tagged):
                self.line(f"{'elif' if n else 'if'} {tag} == {field.tag}:")
                self._depth += 1
                self.read(field, f"{var}.{field.attribute}")
                self.flush()
                self.line(f"if p != {stop}: bad_tag({field.name!r}, p)")
                self._depth -= 1
            self.line(f"p = {stop}")
            self._depth -= 1
        self._depth -= 1
        self.line("else: p += 1")

    def read_length(self, field: Field) -> str:
        """Read the length of a string, bytes or a list, -1 for null; returns the variable that holds it."""
        length = self.local()
        if self.compact(field):
            self.flush()
            self.line(f"{length} = buf[p] - 1; p += 1")
            self.line(f"if {length} > 126: {length}, p = read_uvarint(buf, p - 1); {length} -= 1")
        else:
            self._run.append((*self.rigid_length(field), length))
            self.flush()
        return length

    def read(self, field: Field, target: str) -> None:
        if field.is_list:
            self.read_list(field, target)
        elif field.is_struct:
            self.flush()
            if self.version in field.nullable:
                if self.is_tagged(field):       # a varint there, a byte of -1 or 1 elsewhere
                    there = self.local()
                    self.line(f"{there}, p = read_uvarint(buf, p)")
                    self.line(f"if not {there}: {target} = None")
                else:
                    self.line("p += 1")
                    self.line(f"if buf[p - 1] > 127: {target} = None")
                self.line("else:")
                self._depth += 1
            inner = self.local()
            self.read_struct(self.struct_of(field), inner)
            self.line(f"{target} = {inner}")
            if self.version in field.nullable:
                self._depth -= 1
        elif field.type in FIXED:
            self._run.append((*FIXED[field.type], target))
        else:
            self.read_bytes(field, target)

    def read_bytes(self, field: Field, target: str) -> None:
        length = self.read_length(field)
        value = {
            "string": f"str(buf[p:p + {length}], 'utf-8', 'replace')",
            "bytes": f"bytes(buf[p:p + {length}])",
            "records": f"view[p:p + {length}]",
        }[field.type]
        self.line(f"if 0 <= {length} <= end - p: {target} = {value}; p += {length}")
        if self.version in field.nullable:
            self.line(f"elif {length} < 0: {target} = None")
        self.line(f"else: bad_length({field.name!r}, {length}, p, end)")

    def read_list(self, field: Field, target: str) -> None:
        count, size = self.read_length(field), max(1, self.smallest(field.element))
        self.line(f"if 0 <= {count} <= (end - p) // {size}:")
        self._depth += 1
        self.line(f"left -= {count}")
        self.line(f"if left < 0: too_many({field.name!r}, p)")
        if field.type in FIXED:
            letter, width = FIXED[field.type]
            if field.type == "uuid":
                self.line(f"{target} = [bytes(buf[i:i + 16]) for i in range(p, p + 16 * {count}, 16)]")
            else:
                self.line(f"{target} = list(struct_unpack_from('>%d{letter}' % {count}, buf, p))")
            self.line(f"p += {width} * {count}")
        else:
            items, item = self.local(), self.local()
            self.line(f"{target} = {items} = []")
            self.line(f"for _ in range({count}):")
            self._depth += 1
            if field.is_struct:
                self.read_struct(self.struct_of(field), item)
            else:
                self.read_bytes(field.element, item)
            self.line(f"{items}.append({item})")
            self._depth -= 1
        self._depth -= 1
        if self.version in field.nullable:
            self.line(f"elif {count} < 0: {target} = None")
        self.line(f"else: bad_count({field.name!r}, {count}, {size}, p, end)")


class WriterSource(CoderSource):
    def compile(self) -> Writer:
        self.write_struct(self.message, "o")
        self.line("return None")
        writer: Writer = self.compiled("def coder(o, out, marks):")
        return writer

    def flush(self) -> None:
        if self._run:
            pack = self.constant(struct.Struct(">" + "".join(letter for letter, _, _ in self._run)).pack)
            self.line(f"out += {pack}({', '.join(value for _, _, value in self._run)})")
            self._run.clear()

    def write_struct(self, of: type[KafkaStruct], var: str) -> None:
        for field in self.present(of):
            self.write(field, f"{var}.{field.attribute}")
        self.flush()
        if self.is_flexible:
            self.write_tags(self.tagged(of), var)

    def write_tags(self, tagged: list[Field], var: str) -> None:
        if not tagged:
            self.line("out.append(0)")
            return
        count, outer = self.local(), self.local()
        conditions = [self.is_set(field, f"{var}.{field.attribute}") for field in tagged]
        self.line(f"{count} = {' + '.join(f'({condition})' for condition in conditions)}")
        self.line(f"out.append({count})")
        self.line(f"if {count}:")
        self._depth += 1
        for field, condition in zip(tagged, conditions, strict=True):
            self.line(f"if {condition}:")
            self._depth += 1
            self.line(f"{outer} = out; out = bytearray()")
            self.write(field, f"{var}.{field.attribute}")
            self.flush()
            self.line(f"put_uvarint({outer}, {field.tag}); put_uvarint({outer}, len(out))")
            self.line(f"{outer} += out; out = {outer}")
            self._depth -= 1
        self._depth -= 1

    def is_set(self, field: Field, value: str) -> str:
        """The condition that a tagged field differs from its default; otherwise it is not written."""
        if field.is_struct and not field.is_list:
            if field.is_null_or_struct and self.version in field.nullable:
                return f"{value} != {self.constant(self.struct_of(field)())}"
            if self.version in field.nullable and field.default == "null":
                return f"{value} is not None"
            return f"{value} is not None and {value} != {self.constant(self.struct_of(field)())}"
        return f"{value} != {self.constant(field.default_value())}"

    def write_length(self, field: Field, length: str) -> None:
        if self.compact(field):
            self.flush()
            local = self.local()
            self.line(f"{local} = {length} + 1")
            self.line(f"if {local} < 128: out.append({local})")
            self.line(f"else: put_uvarint(out, {local})")
        else:
            self._run.append((*self.rigid_length(field), length))
            self.flush()

    def write_null(self, field: Field, value: str) -> bool:
        """Begin the branch for a value that is not null. Returns True if it began one."""
        if self.version not in field.nullable:
            return False
        self.flush()
        if field.is_struct and not field.is_list:
            null = "out.append(0)" if self.is_tagged(field) else "out.append(255)"
        elif self.compact(field):
            null = "out.append(0)"
        else:
            null = f"out += {bytes([255]) * self.rigid_length(field)[1]!r}"
        self.line(f"if {value} is None: {null}")
        self.line("else:")
        self._depth += 1
        return True

    def write(self, field: Field, value: str) -> None:
        if field.type in FIXED and not field.is_list:
            self._run.append((*FIXED[field.type], value))
            return
        local = self.local()
        self.line(f"{local} = {value}")
        has_branch = self.write_null(field, local)
        if field.is_list:
            self.write_list(field, local)
        elif field.is_struct:
            self.flush()
            if has_branch:
                self.line("out.append(1)")
            else:
                self.line(f"if {local} is None: {local} = {self.constant(self.struct_of(field)())}")
            self.write_struct(self.struct_of(field), local)
        else:
            self.write_bytes(field, local)
        if has_branch:
            self._depth -= 1

    def write_bytes(self, field: Field, local: str) -> None:
        if field.type == "records":
            self.write_length(field, f"records_size({local})")
            self.line(f"put_records(out, marks, {local})")
            return
        if field.type == "string":
            self.line(f"{local} = {local}.encode()")
        self.write_length(field, f"len({local})")
        self.line(f"out += {local}")

    def write_list(self, field: Field, local: str) -> None:
        self.write_length(field, f"len({local})")
        if field.type in FIXED:
            letter, _ = FIXED[field.type]
            if field.type == "uuid":
                self.line(f"out += struct_pack('>' + '16s' * len({local}), *{local})")
            else:
                self.line(f"out += struct_pack('>%d{letter}' % len({local}), *{local})")
            return
        item = self.local()
        self.line(f"for {item} in {local}:")
        self._depth += 1
        if field.is_struct:
            self.write_struct(self.struct_of(field), item)
            self.line("pass")
        else:
            self.write_bytes(field.element, item)
        self._depth -= 1


# One for each version used so far; the caller has checked that the version exists.
_readers: dict[tuple[type[KafkaMessage], int], Reader] = {}
_writers: dict[tuple[type[KafkaMessage], int], Writer] = {}


def reader(message: type[KafkaMessage], version: int) -> Reader:
    key = message, version
    return _readers.get(key) or _readers.setdefault(key, ReaderSource(message, version).compile())


def writer(message: type[KafkaMessage], version: int) -> Writer:
    key = message, version
    return _writers.get(key) or _writers.setdefault(key, WriterSource(message, version).compile())
