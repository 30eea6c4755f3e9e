"""Arrow columns from Python values, for the types that schemas have: a tree of columns, one for each type in a schema.

pyarrow could convert a list of dicts by itself, but not to every type (unions, UUIDs, decimals by their bytes), and not
faster. Every field may be null: a row that could not be decoded, or a null above it, has nothing there.
"""
from collections.abc import Sequence
from typing import Any

from seglog.frames.libraries import library
from seglog.late_import import late

Values = Sequence[Any]


class UndecodableValueError(ValueError):
    """A value that its column cannot hold."""


class Column:
    """Makes Arrow arrays of one type. Can be pickled."""

    type: Any           # a pyarrow.DataType

    def array(self, values: Values) -> Any:
        """The values as an Arrow array; None is null. Raises UndecodableValueError.

        Columns that only Avro has cannot: a kernel fills them.
        """
        raise NotImplementedError


class Plain(Column):
    """Values that pyarrow converts by itself."""

    def __init__(self, type_: Any) -> None:
        self.type = type_

    def array(self, values: Values) -> Any:
        pyarrow = library("pyarrow")
        try:
            return pyarrow.array(values, self.type)
        except (pyarrow.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            raise UndecodableValueError(str(error)) from error


class Number(Column):
    """Integers that mean a date, a time or a timestamp."""

    def __init__(self, stored: Any, type_: Any) -> None:
        self._stored = stored
        self.type = type_

    def array(self, values: Values) -> Any:
        return library("pyarrow").array(values, self._stored).view(self.type)


class DecimalColumn(Column):
    """Decimals: their unscaled numbers in 128 or 256 bits."""

    def __init__(self, precision: int, scale: int) -> None:
        pyarrow = library("pyarrow")
        if not 1 <= precision <= 76 or not 0 <= scale <= precision:
            raise ValueError(f"no decimal has precision {precision} and scale {scale}; the largest precision is 76")
        self.type = (pyarrow.decimal128 if precision <= 38 else pyarrow.decimal256)(precision, scale)


class UuidColumn(Column):
    """UUIDs from text, or from their 16 bytes."""

    def __init__(self) -> None:
        self.type = library("pyarrow").uuid()

    def array(self, values: Values) -> Any:
        late("uuid")
        import uuid

        pyarrow = library("pyarrow")
        try:
            raw = [uuid.UUID(value).bytes if isinstance(value, str) else value for value in values]
        except ValueError as error:
            raise UndecodableValueError(f"not a UUID: {error}") from error
        return pyarrow.ExtensionArray.from_storage(self.type, pyarrow.array(raw, pyarrow.binary(16)))


class EnumColumn(Column):
    """Symbols, dictionary-encoded: each array has all symbols in its dictionary."""

    def __init__(self, symbols: Sequence[str]) -> None:
        pyarrow = library("pyarrow")
        self.type = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        self.symbols = list(symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    def array(self, values: Values) -> Any:
        pyarrow, numbers = library("pyarrow"), self._numbers
        try:
            indices = [None if value is None else numbers[value] for value in values]
        except KeyError as error:
            raise UndecodableValueError(f"unknown symbol {error}") from error
        return pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(indices, pyarrow.int32()), pyarrow.array(self.symbols, pyarrow.string())
        )


class OpenEnum(EnumColumn):
    """The same, of an enum that may have other values in later versions: they are added to the dictionary."""

    def array(self, values: Values) -> Any:
        others = [value for value in dict.fromkeys(values) if value is not None and value not in self._numbers]
        return EnumColumn([*self.symbols, *others]).array(values) if others else super().array(values)


class Struct(Column):
    """Records, or anything else with named fields, as structs."""

    def __init__(self, fields: Sequence[tuple[str, Column]]) -> None:
        pyarrow = library("pyarrow")
        self.fields = list(fields)
        self.type = pyarrow.struct([pyarrow.field(name, column.type) for name, column in self.fields])

    def array(self, values: Values) -> Any:
        columns = []
        for name, column in self.fields:
            try:
                columns.append(column.array([None if value is None else value.get(name) for value in values]))
            except UndecodableValueError as error:
                raise UndecodableValueError(f"{name}: {error}") from error
        pyarrow = library("pyarrow")
        mask = pyarrow.array([value is None for value in values], pyarrow.bool_())
        if not columns:
            return pyarrow.Array.from_buffers(self.type, len(values), [_validity(values)])
        return pyarrow.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)


class Union(Struct):
    """Values of one of several types, as a struct with a field for each, of which one is set (as Spark's Avro does)."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__([(f"member{number}", column) for number, column in enumerate(columns)])


class Repeated(Column):
    """Lists."""

    def __init__(self, items: Column) -> None:
        self.items = items
        self.type = library("pyarrow").list_(items.type)

    def array(self, values: Values) -> Any:
        pyarrow = library("pyarrow")
        items = self.items.array([item for value in values if value is not None for item in value])
        return pyarrow.Array.from_buffers(
            self.type, len(values), [_validity(values), _offsets(values)], children=[items]
        )


class MapColumn(Column):
    """Maps, from dicts. A key that stands twice in the bytes has its last value."""

    def __init__(self, keys: Column, items: Column) -> None:
        self.keys = keys
        self.items = items
        self.type = library("pyarrow").map_(keys.type, items.type)

    @property
    def entries(self) -> Struct:
        """The keys and values of all maps, as they lie in the array."""
        entries = Struct([("key", self.keys), ("value", self.items)])
        entries.type = library("pyarrow").struct([self.type.key_field, self.type.item_field])
        return entries

    def array(self, values: Values) -> Any:
        pyarrow = library("pyarrow")
        there = [value for value in values if value is not None]
        entries = pyarrow.StructArray.from_arrays(
            [
                self.keys.array([key for value in there for key in value]),
                self.items.array([item for value in there for item in value.values()]),
            ],
            fields=[self.type.key_field, self.type.item_field],
        )
        return pyarrow.Array.from_buffers(
            self.type, len(values), [_validity(values), _offsets(values)], children=[entries]
        )


def _validity(values: Values) -> Any:
    """The bitmap of the values that are not null."""
    pyarrow = library("pyarrow")
    return pyarrow.array([value is not None for value in values], pyarrow.bool_()).buffers()[1]


def _offsets(values: Values) -> Any:
    """The ends of each value's items, in 32 bits. Raises UndecodableValueError."""
    pyarrow = library("pyarrow")
    ends, end = [0], 0
    for value in values:
        end += 0 if value is None else len(value)
        ends.append(end)
    if end >= 1 << 31:
        raise UndecodableValueError("more than 2 147 483 647 items in one chunk")
    return pyarrow.array(ends, pyarrow.int32()).buffers()[1]
