"""Values in JSON: a JSON Schema as the Arrow column of its values.

    object with properties          struct of these; others are left out
    object with additionalProperties alone      map from strings
    array with items                list
    integer, number, boolean        int64, float64, bool
    string                          string; by format: timestamp in us UTC (date-time), date32 (date), arrow.uuid (uuid)
    enum of strings                 dictionary of strings
    type with null, anyOf or oneOf with null    the other type
    anything else                   its JSON as text: several types, no type, a schema within itself
"""
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library
from seglog.frames.typed.columns import (
    Column,
    EnumColumn,
    MapColumn,
    Number,
    Plain,
    Repeated,
    Struct,
    UndecodableValueError,
    UuidColumn,
)

Read = Callable[[bytes, int], Any]
Take = Callable[[Any], Any]         # of a parsed value its column's value
_Made = tuple[Column, Take]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class JsonSchema:
    """A JSON Schema. Raises InvalidArgumentError if it is none. Can be pickled."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._load()

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.text = state["text"]
        self._load()

    def _load(self) -> None:
        try:
            schema = json.loads(self.text)
            if not isinstance(schema, dict | bool):
                raise ValueError("expected an object")
            self.column, self._take = _Columns(schema).of(schema, ())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidArgumentError(
                f"not a JSON Schema that columns can be made of: {why}", hint="correct the schema"
            ) from error

    def read(self, raw: bytes, position: int) -> Any:
        """The value at a position. Raises UndecodableValueError."""
        try:
            value = json.loads(raw[position:], parse_constant=_not_json)
        except (ValueError, RecursionError) as error:       # includes UnicodeDecodeError
            raise UndecodableValueError(f"not JSON: {error}") from error
        try:
            return self._take(value)
        except RecursionError as error:
            raise UndecodableValueError("nested too deeply") from error


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


class _Columns:
    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, schema: Any, above: tuple[str, ...]) -> _Made:
        """`above`: the references around this schema."""
        if not isinstance(schema, dict):
            return _text()
        reference = schema.get("$ref")
        if reference is not None:
            found = self._referenced(reference)
            return _text() if found is None or reference in above else self.of(found, (*above, reference))
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                others = [one for one in schema[word] if one != {"type": "null"}]
                return self.of(others[0], above) if len(others) == 1 else _text()
        kinds = schema.get("type")
        kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if not kinds:
            return Plain(library("pyarrow").null()), _only(type(None), "null")
        return self._of_kind(kinds[0], schema, above) if len(kinds) == 1 else _text()

    def _referenced(self, reference: Any) -> Any:
        """The schema in this file that a reference names; None for one elsewhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._root
        for step in reference[1:].split("/")[1:]:
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found

    def _of_kind(self, kind: Any, schema: dict[str, Any], above: tuple[str, ...]) -> _Made:
        pyarrow = library("pyarrow")
        match kind:
            case "object":
                return self._object(schema, above)
            case "array" if isinstance(schema.get("items"), dict):
                column, take = self.of(schema["items"], above)
                is_list = _only(list, "a list")
                return Repeated(column), lambda value: None if value is None else [take(one) for one in is_list(value)]
            case "string":
                return self._string(schema)
            case "boolean":
                return Plain(pyarrow.bool_()), _only(bool, "true or false")
            case "integer":
                return Plain(pyarrow.int64()), _integer
            case "number":
                return Plain(pyarrow.float64()), _number
        return _text()

    def _object(self, schema: dict[str, Any], above: tuple[str, ...]) -> _Made:
        is_object = _only(dict, "an object")
        properties = schema.get("properties")
        if properties:
            made = {name: self.of(one, above) for name, one in properties.items()}

            def fields(value: Any) -> Any:
                value = is_object(value)
                return None if value is None else {name: take(value.get(name)) for name, (_, take) in made.items()}

            return Struct([(name, column) for name, (column, _) in made.items()]), fields
        rest = schema.get("additionalProperties")
        if not isinstance(rest, dict):
            return _text()
        column, take = self.of(rest, above)

        def entries(value: Any) -> Any:
            value = is_object(value)
            return None if value is None else {name: take(one) for name, one in value.items()}

        return MapColumn(Plain(library("pyarrow").string()), column), entries

    def _string(self, schema: dict[str, Any]) -> _Made:
        pyarrow, is_string = library("pyarrow"), _only(str, "text")
        symbols = schema.get("enum")
        if symbols and all(isinstance(symbol, str) for symbol in symbols):
            return EnumColumn(list(dict.fromkeys(symbols))), is_string
        match schema.get("format"):
            case "date-time":
                return Number(pyarrow.int64(), pyarrow.timestamp("us", "UTC")), lambda value: _time(is_string(value))
            case "date":
                return Number(pyarrow.int32(), pyarrow.date32()), lambda value: _date(is_string(value))
            case "uuid":
                return UuidColumn(), is_string
        return Plain(pyarrow.string()), is_string


def _text() -> _Made:
    """A column of JSON text, for what has no type of its own."""
    return Plain(library("pyarrow").string()), lambda value: (
        None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )


def _only(kind: type, words: str) -> Take:
    def take(value: Any) -> Any:
        if value is not None and type(value) is not kind:
            raise UndecodableValueError(f"expected {words}, found {json.dumps(value)[:60]}")
        return value

    return take


def _integer(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():     # 1.0 is an integer to JSON Schema
        value = int(value)
    value = _only(int, "a whole number")(value)
    if value is not None and not -(1 << 63) <= value < 1 << 63:
        raise UndecodableValueError(f"{value} has no place in 64 bits")
    return value


def _number(value: Any) -> Any:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise UndecodableValueError("a number has no place in a double") from error
    return _only(float, "a number")(value)


def _time(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise UndecodableValueError(f"not a date-time: {value[:60]!r}: {error}") from error


def _date(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return dt.date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
    except ValueError as error:
        raise UndecodableValueError(f"not a date: {value[:60]!r}") from error
