"""A chunk of rows whose keys or values are decoded: an Arrow record batch in place of the kernel's rows."""
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seglog._kernels.topic_rows import TopicRows
from seglog.errors import SeglogError, UndecodableRecordError
from seglog.frames.libraries import library

if TYPE_CHECKING:
    from seglog.frames.typed.column_decoder import Decoder, Failed

Decoders = Mapping[str, "Decoder"]


class TypedRows:
    """As TopicRows. `undecodable`: how many keys and values of these rows could not be decoded, by column."""

    def __init__(self, batch: Any, first_offset: int, last_offset: int, undecodable: Mapping[str, int]) -> None:
        self.batch = batch
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.undecodable = undecodable

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.batch.nbytes)

    def __arrow_c_schema__(self) -> object:
        return self.batch.schema.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        made: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return made


def decoded(
    rows: TopicRows, decoders: Decoders, columns: tuple[str, ...], file: str
) -> tuple[list[TypedRows], SeglogError | None]:
    """The rows with these columns, in one piece unless they take much memory, and the error that ended them early.

    `rows` have the column offset, whether it is in `columns` or not.
    """
    batch = library("pyarrow").record_batch(rows)
    offsets = batch.column("offset")
    schema = schema_of(batch.schema, decoders, columns)
    done: list[TypedRows] = []
    error: SeglogError | None = None
    made: dict[str, Any] = {}           # what is decoded of the rows from `start` on
    start, stop = 0, len(offsets)
    while start < stop:
        counts: dict[str, int] = {}
        end = stop
        for name, decoder in decoders.items():
            if name not in columns:
                continue
            if not len(made.get(name, ())):
                raw = batch.column(name).slice(start, stop - start)
                made[name], counts[name], failed = decoder.array(raw)
                if failed is not None:
                    stop = start + failed.row
                    error = error_of(name, failed, file, offsets[stop].as_py())
                    if start == stop:
                        return done, error
            end = min(end, stop, start + len(made[name]))
        arrays = [
            made[name].slice(0, end - start) if name in made else batch.column(name).slice(start, end - start)
            for name in columns
        ]
        done.append(TypedRows(
            library("pyarrow").RecordBatch.from_arrays(arrays, schema=schema), offsets[start].as_py(),
            offsets[end - 1].as_py(), counts | (dict(rows.undecodable) if start == 0 else {}),
        ))
        made = {name: array.slice(end - start) for name, array in made.items()}
        start = end
    return done, error


def error_of(name: str, failed: "Failed", file: str, offset: int) -> SeglogError:
    """What is raised for a key or value that cannot be decoded."""
    problem = failed.problem
    error = problem if isinstance(problem, SeglogError) else UndecodableRecordError(
        f"the {name} cannot be decoded: {problem}", file=file, offset=offset
    )
    if error.offset is None:
        # The record is in the log, not in what the schemas are in.
        what = error.what if error.file is None else f"{error.what}: {error.file}"
        return type(error)(what, file=file, offset=offset, hint=error.hint)
    return error


def schema_of(plain: Any, decoders: Decoders, columns: tuple[str, ...]) -> Any:
    """The pyarrow.Schema of typed rows. `plain`: that of the kernel's."""
    pyarrow = library("pyarrow")
    return pyarrow.schema([
        pyarrow.field(name, decoders[name].type) if name in decoders else plain.field(name) for name in columns
    ])
