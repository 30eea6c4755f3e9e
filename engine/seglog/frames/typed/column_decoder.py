"""Decodes the bytes of one column: takes off the frame, finds the writer's schema by its id, reads, makes an array."""
from collections.abc import Callable, Collection
from typing import Any, Literal, Protocol

from seglog.errors import SchemaNotFoundError
from seglog.frames.libraries import library
from seglog.frames.typed.columns import Column, Struct, UndecodableValueError
from seglog.named_tuple import NamedTuple

OnUndecodable = Literal["fail", "null", "raw"]
# Takes the bytes; returns the schema's id, or None for the schema that was given, and where the value begins.
FrameFunction = Callable[[bytes], tuple[int | None, int]]
Read = Callable[[bytes, int], Any]

# The field of a struct that holds the bytes that could not be decoded.
RAW_FIELD = "_undecodable"
_CONFLUENT_BYTES = 5


class Failed(NamedTuple):
    """The first row that could not be decoded, and why."""

    row: int
    problem: Exception


class Decoder(Protocol):
    """Makes a typed column from one of bytes. Can be pickled, if its frame can."""

    @property
    def type(self) -> Any:
        """The pyarrow.DataType of the column."""

    def array(self, raw: Any) -> tuple[Any, int, Failed | None]:
        """The Arrow array for one of bytes, how many values could not be decoded, and, with on_undecodable="fail", the
        first of these: the array ends before it. An array that would take much memory ends earlier, after one row at
        least. Raises StorageError, if schemas cannot be fetched."""


def confluent_frame(raw: bytes) -> tuple[int | None, int]:
    """A zero byte and the schema's id in four bytes, big-endian."""
    if len(raw) < _CONFLUENT_BYTES or raw[0]:
        raise UndecodableValueError(
            "it does not begin with a zero byte and a schema id, as Confluent's serializers write"
        )
    return int.from_bytes(raw[1:_CONFLUENT_BYTES], "big"), _CONFLUENT_BYTES


def no_frame(_: bytes) -> tuple[int | None, int]:
    """The bytes are the value, written with the schema that was given."""
    return None, 0


class ColumnDecoder:
    """The Decoder for values that Python reads one by one.

    `reader_of`: a function for values that were written with the schema of this id, or with our own (None); it raises
    UndecodableValueError for a schema that ours cannot read, SchemaNotFoundError, StorageError.
    """

    def __init__(
        self, column: Column, reader_of: Callable[[int | None], Read], frame: FrameFunction,
        on_undecodable: OnUndecodable,
    ) -> None:
        self._column = column
        self._reader_of = reader_of
        self._frame = frame
        self._on_undecodable = on_undecodable
        self._readers: dict[int | None, Read | Exception] = {}
        self.type = column.type
        if on_undecodable == "raw":
            assert isinstance(column, Struct)
            self.type = with_raw(column.type)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_readers": {}}

    def array(self, raw: Any) -> tuple[Any, int, Failed | None]:
        """As Decoder has it."""
        values: list[Any] = []
        bad: dict[int, Exception] = {}
        for row, one in enumerate(raw.to_pylist()):
            if one is None:
                values.append(None)
                continue
            try:
                schema_id, position = self._frame(one)
                values.append(self._read(schema_id, one, position))
            except (UndecodableValueError, SchemaNotFoundError) as error:
                if self._on_undecodable == "fail":
                    array, _, failed = self._made(values, {})
                    return array, 0, failed or Failed(row, error)
                bad[row] = error
                values.append(None)
        return self._made(values, bad, raw)

    def _made(
        self, values: list[Any], bad: dict[int, Exception], raw: Any = None
    ) -> tuple[Any, int, Failed | None]:
        try:
            array = self._column.array(values)
        except UndecodableValueError:
            # One of the values has no place in the column: find which.
            for row, value in enumerate(values):
                try:
                    self._column.array([value])
                except UndecodableValueError as error:
                    if self._on_undecodable == "fail":
                        return self._column.array(values[:row]), 0, Failed(row, error)
                    bad[row], values[row] = error, None
            array = self._column.array(values)
        if self._on_undecodable == "raw":
            array = with_raw_of(array, bad, raw, self.type)
        return array, len(bad), None

    def _read(self, schema_id: int | None, raw: bytes, position: int) -> Any:
        reader = self._readers.get(schema_id)
        if reader is None:
            try:
                reader = self._reader_of(schema_id)
            except (UndecodableValueError, SchemaNotFoundError) as error:
                reader = error
            self._readers[schema_id] = reader
        if isinstance(reader, Exception):
            raise reader
        try:
            return reader(raw, position)
        except UndecodableValueError as error:
            if schema_id is None:
                raise
            raise UndecodableValueError(f"{error} (schema id {schema_id})") from error


def with_raw(type_: Any) -> Any:
    """The struct type with one more field, for the bytes of rows that could not be decoded."""
    pyarrow = library("pyarrow")
    return pyarrow.struct([*type_, pyarrow.field(RAW_FIELD, pyarrow.binary())])


def with_raw_of(array: Any, bad: Collection[int], raw: Any, type_: Any) -> Any:
    """The structs with one more field; a row that could not be decoded has its bytes there, and nothing else."""
    pyarrow = library("pyarrow")
    kept = pyarrow.array(
        [one.as_py() if row in bad else None for row, one in enumerate(raw)] if bad else [None] * len(raw),
        pyarrow.binary(),
    )
    return pyarrow.StructArray.from_arrays([*array.flatten(), kept], fields=list(type_), mask=raw.is_null())
