"""Arrow data as the kernels take it: record batches of plain byte strings.

What column_source takes goes to it as it is, without any library. The rest is for pyarrow: streams (a Table, a
RecordBatchReader, a DataFrame), views, dictionaries, times in other units than ms.
"""
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from seglog.errors import InvalidArgumentError


def plain_columns(columns: object) -> Iterator[object]:
    """`columns` in one piece or in several, which encode_columns takes. Raises InvalidArgumentError without pyarrow.

    Whatever is no Arrow data is given back as it is.
    """
    if isinstance(columns, Mapping):
        yield {name: _plain_array(name, column) if _is_arrow(column) else column for name, column in columns.items()}
    elif hasattr(columns, "__arrow_c_array__"):
        yield _plain_batch(columns)
    elif hasattr(columns, "__arrow_c_stream__"):
        for batch in _pyarrow("a stream of batches").RecordBatchReader.from_stream(columns):
            if batch.num_rows:
                yield _plain_batch(batch)
    else:
        yield columns


def _is_arrow(column: object) -> bool:
    return hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")


def _plain_batch(batch: Any) -> object:
    if not hasattr(batch, "schema") or not hasattr(batch, "columns"):
        return batch        # our own Columns, or of a library other than pyarrow
    columns = [_plain_array(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    if all(plain is column for plain, column in zip(columns, batch.columns, strict=True)):
        return batch
    made: object = _pyarrow("a record batch").record_batch(columns, names=batch.schema.names)
    return made


def _plain_array(name: str, column: Any) -> object:
    """The column, or another one with the same values that is binary, timestamp[ms], or a list of plain headers."""
    if not hasattr(column, "__arrow_c_array__"):
        chunks = _pyarrow(f"the column {name} in chunks").chunked_array(column)
        column = chunks.combine_chunks()
    if not hasattr(column, "type"):
        return column       # of another library: the kernel says what it does not take
    pa = _pyarrow(f"the column {name}")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if name in ("key", "value") and kind in (pa.binary_view(), pa.string_view()):
        return column.cast(pa.large_binary() if kind == pa.binary_view() else pa.large_string())
    if name == "timestamp" and pa.types.is_timestamp(kind) and kind.unit != "ms":
        return _in_ms(pa, column)
    if name == "headers" and pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return _plain_headers(pa, column)
    return column


def _in_ms(pa: Any, times: Any) -> object:
    """Times of another unit. What is finer than a ms is cut off: Kafka's times have no more."""
    kind = times.type
    if kind.unit != "s":
        return times.cast(pa.timestamp("ms", kind.tz), safe=False)
    try:
        return times.cast(pa.timestamp("ms", kind.tz))
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"the column timestamp: {error}", hint="a timestamp in ms has 64 bits") from error


def _plain_headers(pa: Any, column: Any) -> object:
    kind = column.type.value_type
    plain = pa.struct([field.with_type(_plain_type(pa, field.type)) for field in kind])
    return column if plain == kind else column.cast(pa.list_(plain))


def _plain_type(pa: Any, kind: Any) -> Any:
    if kind == pa.binary_view():
        return pa.large_binary()
    return pa.large_string() if kind == pa.string_view() else kind


def _pyarrow(what: str) -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise InvalidArgumentError(
            f"{what}: pyarrow is needed to read it", hint="pip install seglog[arrow], or give record batches"
        ) from error
