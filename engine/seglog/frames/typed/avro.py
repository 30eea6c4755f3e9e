"""Decodes a column of values in Avro's binary encoding, by the schemas that they were written with and the one to read
with. A kernel reads the bytes, without the interpreter's lock: see avro_program.py."""
import array as arrays
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from seglog._kernels.avro_column import AvroColumn, AvroProgram, Problem
from seglog._kernels.status import Status
from seglog.errors import SchemaNotFoundError
from seglog.frames.libraries import library
from seglog.frames.typed.avro_program import Compiler, array_of, layout_of
from seglog.frames.typed.avro_schema import AvroSchema, logical_mismatch
from seglog.frames.typed.column_decoder import (
    Failed,
    FrameFunction,
    OnUndecodable,
    confluent_frame,
    no_frame,
    with_raw,
    with_raw_of,
)
from seglog.frames.typed.columns import UndecodableValueError

# In place of the id of a schema: values of the schema that was given; ids are in the frame; a row without one.
_OWN, _IN_FRAME, _NO_FRAME = -1, -2, -3

# Of the columns that were filled last, the memory is used again: those of the chunks that threads make ahead, unless
# their rows take many times the memory of most.
_KEPT_COLUMNS = 10
_KEPT_BYTES = 8 << 20

_WORDS: dict[int, str] = {
    Status.SHORT: "it ends too early", Status.BAD_VARINT: "a number has more than 64 bits",
    Status.BAD_SIZE: "a size is negative", Status.BAD_COUNT: "a count is negative",
    Problem.BAD_INDEX: "{} is no number of a type or symbol",
    Problem.NO_SYMBOL: "the enum to read with does not have the symbol with the number {}, and no default",
    Problem.NOT_UTF8: "text is not UTF-8", Problem.NOT_BOOLEAN: "a boolean is neither 0 nor 1",
    Problem.NOT_INT: "an int has more than 32 bits",
}
_Bad = tuple[int, int, int, int, int]       # row, problem, position, detail, schema id


class AvroDecoder:
    """The Decoder for Avro. `writer_of`: the schema with this id; it raises UndecodableValueError for one that is none,
    SchemaNotFoundError, StorageError."""

    def __init__(
        self, reader: AvroSchema, writer_of: Callable[[int], AvroSchema], frame: FrameFunction,
        on_undecodable: OnUndecodable,
    ) -> None:
        self._reader = reader
        self._writer_of = writer_of
        self._frame = frame
        self._on_undecodable = on_undecodable
        self.type = reader.column.type if on_undecodable != "raw" else with_raw(reader.column.type)
        self._begin()

    def _begin(self) -> None:
        self._layout = layout_of(self._reader.column)
        self._compiler = Compiler(self._reader, self._layout)
        # By schema id: the program and the reasons for its failures, or why there is none.
        self._programs: dict[int, tuple[AvroProgram, list[str]] | Exception] = {}
        # Threads append and take; while one of them has a column, it is not in here.
        self._columns: deque[AvroColumn] = deque(maxlen=_KEPT_COLUMNS)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_layout", "_compiler", "_programs", "_columns")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def array(self, raw: Any) -> tuple[Any, int, Failed | None]:
        """As Decoder has it."""
        column, bad = self._column(), list[_Bad]()
        stops = self._on_undecodable == "fail"
        row = 0
        if raw.type != (binary := library("pyarrow").binary()):
            raw = raw.cast(binary)      # (views, as polars has them)
        validity, offsets, data = raw.buffers()
        arguments = self._frames(raw)
        while row < len(raw) and not (stops and bad) and not column.is_full:
            row, more = column.decode(
                offsets, data, validity if raw.null_count else None, raw.offset, row, len(raw), stops=stops, **arguments
            )
            bad += more
            if row < len(raw) and not (stops and bad) and not column.is_full:
                program = self._program(column.wanted)
                column.add(column.wanted, None if isinstance(program, Exception) else program[0])
        made = array_of(self._reader.column, column.buffers())
        if column.nbytes <= _KEPT_BYTES:
            self._columns.append(column)
        if stops and bad:
            return made.slice(0, bad[0][0]), 0, Failed(bad[0][0], self._error(bad[0], raw))
        if self._on_undecodable == "raw":
            made = with_raw_of(made, {row for row, *_ in bad}, raw.slice(0, row), self.type)
        return made, len(bad), None

    def _column(self) -> AvroColumn:
        """One without rows, in the memory of one that nobody uses any more, if there is one."""
        like = None
        for _ in range(len(self._columns)):
            try:
                like = self._columns.popleft()
            except IndexError:              # another thread has it
                break
            if like.begin_again():
                return like
            self._columns.append(like)
        return AvroColumn(self._layout, like)

    def _frames(self, raw: Any) -> dict[str, Any]:
        """How the kernel finds the id of each row."""
        if self._frame is confluent_frame:
            return {"schema_id": _IN_FRAME}
        if self._frame is no_frame:
            return {"schema_id": _OWN}
        ids, positions = arrays.array("q"), arrays.array("q")
        for one in raw.to_pylist():
            try:
                schema_id, position = (None, 0) if one is None else self._frame(one)
            except UndecodableValueError:
                schema_id, position = _NO_FRAME, 0
            ids.append(_OWN if schema_id is None else schema_id)
            positions.append(position)
        return {"ids": ids, "positions": positions}

    def _program(self, schema_id: int) -> tuple[AvroProgram, list[str]] | Exception:
        found = self._programs.get(schema_id)
        if found is None:
            try:
                writer = self._reader if schema_id == _OWN else self._writer_of(schema_id)
                mismatch = logical_mismatch(writer, self._reader)
                if mismatch is not None:
                    raise UndecodableValueError(mismatch)
                found = self._compiler.program(writer)
            except (UndecodableValueError, SchemaNotFoundError) as error:
                found = error
            self._programs[schema_id] = found
        return found

    def _error(self, bad: _Bad, raw: Any) -> Exception:
        row, problem, position, detail, schema_id = bad
        if problem == Problem.NOT_IN_FRAME:
            try:
                _, position = self._frame(raw[row].as_py())
            except UndecodableValueError as error:
                return error
            return UndecodableValueError(f"its frame says that the value begins at byte {position}")
        program = self._programs[schema_id]
        if isinstance(program, Exception):
            return program
        where = "" if schema_id == _OWN else f" (schema id {schema_id})"
        return UndecodableValueError(f"{_reason(problem, position, detail, program[1], self._reader)}{where}")


def _reason(problem: int, position: int, detail: int, reasons: Sequence[str], reader: AvroSchema) -> str:
    match problem:
        case Status.TRAILING_BYTES:
            return f"{detail} bytes follow the value"
        case Problem.MISMATCH:
            return f"it cannot be read by the schema: {reasons[detail]}"
        case Problem.NOT_UUID:
            return f"not a UUID: the text before byte {position}"
        case Problem.TOO_MANY_DIGITS:
            return f"a decimal has more than {detail} digits, before byte {position}"
        case Problem.TOO_LARGE:
            return "its columns would take more than 256 MiB of memory, and 16 times its bytes"
    return f"not a value of its schema: {_WORDS[problem].format(detail)}, at byte {position}"
