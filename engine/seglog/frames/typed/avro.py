"""Decodes Avro's binary encoding with fastavro: bytes to the values of a column, by the writer's schema and ours."""
from collections.abc import Callable
from io import BytesIO
from typing import Any

from seglog.frames.libraries import library
from seglog.frames.typed.avro_schema import AvroSchema, branches_of, logical_mismatch
from seglog.frames.typed.columns import UndecodableValueError

Read = Callable[[bytes, int], Any]      # of (bytes, position) the value


class AvroFormat:
    """Reads values as the schema `reader` has them. Can be pickled."""

    def __init__(self, reader: AvroSchema) -> None:
        self._reader = reader
        self.column = reader.column

    def read_from(self, writer: AvroSchema) -> Read:
        """A function that reads what was written with `writer`. Raises UndecodableValueError if ours cannot have it."""
        fastavro = library("fastavro")
        mismatch = logical_mismatch(writer, self._reader)
        if mismatch is not None:
            raise UndecodableValueError(mismatch)
        try:
            wrote = fastavro.parse_schema(writer.plain)
            reads = None if writer.plain == self._reader.plain else fastavro.parse_schema(self._reader.plain)
        except Exception as error:      # fastavro has a class for each reason, and some are plain ones
            raise UndecodableValueError(f"fastavro refuses the schema: {error}") from error
        read_one, marks = fastavro.schemaless_reader, self._reader.has_unions
        branches = _Branches(self._reader) if marks else None

        def read(raw: bytes, position: int) -> Any:
            stream = BytesIO(raw)
            stream.seek(position)
            try:
                value = read_one(stream, wrote, reads, return_named_type=marks)
            except RecursionError as error:
                raise UndecodableValueError("nested too deeply") from error
            except Exception as error:  # as above
                raise UndecodableValueError(f"not a value of its schema: {error or type(error).__name__}") from error
            left = len(raw) - stream.tell()
            if left:
                raise UndecodableValueError(f"{left} bytes follow the value")
            return value if branches is None else branches.numbered(value, self._reader.definition)

        return read


class _Branches:
    """Puts the number of its type beside each value of a union: what fastavro tells of it is its name, for named types,
    and Python's type, for others."""

    def __init__(self, schema: AvroSchema) -> None:
        self._names = schema.names

    def numbered(self, value: Any, schema: Any) -> Any:
        schema = self._names.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            if value is None:
                return None
            branches = branches_of(schema)
            if len(branches) == 1:
                return self.numbered(_unmarked(value), branches[0])
            number = self._branch_of(value, branches)
            return number, self.numbered(_unmarked(value), branches[number])
        if not isinstance(schema, dict):
            return value
        match schema["type"]:
            case "record":
                return {f["name"]: self.numbered(value[f["name"]], f["type"]) for f in schema["fields"]}
            case "array":
                return [self.numbered(item, schema["items"]) for item in value]
            case "map":
                return {key: self.numbered(item, schema["values"]) for key, item in value.items()}
        return value

    def _branch_of(self, value: Any, branches: list[Any]) -> int:
        for number, branch in enumerate(branches):
            branch = self._names.get(branch, branch) if isinstance(branch, str) else branch
            kind = branch["type"] if isinstance(branch, dict) else branch
            if isinstance(value, tuple):
                if isinstance(branch, dict) and branch.get("name") == value[0]:
                    return number
            elif kind in _PYTHON and type(value) is _PYTHON[kind]:
                return number
        raise UndecodableValueError(f"no type of the union has the value {value!r}")


# (A value of a union of int and long, or of float and double, counts as one of the first of them.)
_PYTHON = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes, "string": str,
    "array": list, "map": dict,
}


def _unmarked(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value
