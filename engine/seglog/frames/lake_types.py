"""The types of a topic's columns in Delta and Iceberg tables, and what a table that exists can take."""
from dataclasses import dataclass
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library

_DECIMAL_DIGITS = 38
# By the names of Arrow's types: bytes and text in other layouts, and whole numbers that tables store wider.
_SAME = {
    "bool": "bool_", "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64", "uint8": "int32",
    "uint16": "int32", "uint32": "int64", "halffloat": "float32", "float": "float32", "double": "float64",
    "date32[day]": "date32", "string": "string", "large_string": "string", "string_view": "string", "null": "string",
    "binary": "binary", "large_binary": "binary", "binary_view": "binary", "duration[ns]": "int64",
}


@dataclass(frozen=True, slots=True)
class LakeTypes:
    """What a kind of table can store. `has_time`: times of day; otherwise they are numbers, as in Spark's Avro.
    `has_fixed`: bytes of a fixed length, and UUIDs; otherwise they are bytes."""

    table: str
    has_time: bool
    has_fixed: bool

    def schema(self, columns: Any) -> Any:
        """The pyarrow.Schema to write for the columns of a scan. Raises InvalidArgumentError for a type without one."""
        pyarrow = library("pyarrow")
        return pyarrow.schema([pyarrow.field(one.name, self._type(one.type, one.name)) for one in columns])

    def _type(self, of: Any, name: str) -> Any:
        pyarrow = library("pyarrow")
        types = pyarrow.types
        if str(of) in _SAME:
            return getattr(pyarrow, _SAME[str(of)])()
        if isinstance(of, pyarrow.BaseExtensionType):
            if of.extension_name == "arrow.uuid" and self.has_fixed:
                return of
            return self._type(of.storage_type, name)
        if types.is_dictionary(of):
            return self._type(of.value_type, name)
        if types.is_fixed_size_binary(of):
            return of if self.has_fixed else pyarrow.binary()
        if types.is_decimal(of) and of.precision <= _DECIMAL_DIGITS:
            return pyarrow.decimal128(of.precision, of.scale)
        if types.is_uint64(of):
            return pyarrow.decimal128(20, 0)
        if types.is_timestamp(of):
            return pyarrow.timestamp("us", tz=of.tz)
        if types.is_time(of):
            return pyarrow.time64("us") if self.has_time else getattr(pyarrow, f"int{of.bit_width}")()
        if types.is_struct(of) and of.num_fields:
            return pyarrow.struct([pyarrow.field(one.name, self._type(one.type, f"{name}.{one.name}")) for one in of])
        if types.is_map(of):
            return pyarrow.map_(self._type(of.key_type, f"{name}.key"), self._type(of.item_type, f"{name}.value"))
        if types.is_list(of) or types.is_large_list(of):
            return pyarrow.list_(pyarrow.field("element", self._type(of.value_type, f"{name}.element")))
        raise InvalidArgumentError(
            f"{self.table} cannot store the column {name}, which is {of}",
            hint="read with a schema that leaves this field out: decode={...: seglog.Typed(..., schema=...)}",
        )


def check_fits(table: str, held: Any, new: Any) -> bool:
    """Whether all columns and fields of `new` are in `held`. Raises InvalidArgumentError if one has another type there.

    Both are a pyarrow.Schema, or types of structs.
    """
    known = {one.name: one.type for one in held}
    is_whole = True
    for one in new:
        if one.name not in known or not _type_fits(table, one.name, known[one.name], one.type):
            is_whole = False
    return is_whole


def _type_fits(table: str, name: str, held: Any, new: Any) -> bool:
    types = library("pyarrow").types
    if types.is_struct(held) and types.is_struct(new):
        return check_fits(table, held, new)
    if types.is_map(held) and types.is_map(new):
        keys = _type_fits(table, name, held.key_type, new.key_type)
        return _type_fits(table, name, held.item_type, new.item_type) and keys
    if types.is_list(held) and types.is_list(new):
        return _type_fits(table, name, held.value_type, new.value_type)
    if held != new:
        raise InvalidArgumentError(
            f"the table {table} holds {name} as {held}, but this run writes it as {new}",
            hint="pass the decode= and the schema of the runs before, or choose another table",
        )
    return True
