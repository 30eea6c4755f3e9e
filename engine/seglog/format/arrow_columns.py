"""Turns columns into what the kernels accept: record batches of plain byte strings, lists and arrays of bytes, ms.

What column_source accepts is passed on as it is, without any library. Everything else needs pyarrow: streams (a Table,
a RecordBatchReader, a DataFrame), views, dictionaries, times in other units than ms.
"""
import datetime as dt
import operator
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.late_import import late

_SIMPLE = ("key", "value", "timestamp")
_NAT = -(2**63)     # numpy's "not a time"


def plain_columns(columns: object, time_of: Callable[[object], int] | None = None) -> Iterator[object]:
    """Return `columns` in one or more pieces that encode_columns accepts. Raises InvalidArgumentError without pyarrow.

    time_of: converts a time that is not an int to ms; if it is None, times must be ints. Anything but Arrow data, times
    and arrays of objects is returned unchanged.
    """
    if isinstance(columns, Mapping):
        yield {name: _plain_column(name, column, time_of) for name, column in columns.items()}
    elif hasattr(columns, "__arrow_c_array__"):
        yield _plain_batch(columns)
    elif hasattr(columns, "__arrow_c_stream__"):
        for batch in _pyarrow("a stream of batches").RecordBatchReader.from_stream(columns):
            if batch.num_rows:
                yield _plain_batch(batch)
    else:
        yield columns


def _plain_column(name: str, column: Any, time_of: Callable[[object], int] | None) -> object:
    if _is_arrow(column):
        return _plain_array(name, column)
    if getattr(getattr(column, "dtype", None), "kind", "") == "O":
        column = column.tolist()        # numpy's
    return _plain_times(column, time_of) if name == "timestamp" and column is not None else column


def _plain_times(times: Any, time_of: Callable[[object], int] | None) -> object:
    """Return one time for all rows, or a buffer of int64. None and numpy's NaT become -1 (no time)."""
    kind = getattr(getattr(times, "dtype", None), "kind", "")
    if kind == "M" and times.ndim == 1:
        in_ms = times.astype("datetime64[ms]").view("int64")
        in_ms[in_ms == _NAT] = -1       # astype made a copy, so this changes no data of the caller
        return in_ms
    if kind in ("i", "u") and getattr(times, "ndim", 0) == 1 and (times.dtype.itemsize != 8 or kind == "u"):
        return times.astype("int64")
    if isinstance(times, list):
        try:
            return array("q", times)
        except TypeError:
            return array("q", [_time(row, when, time_of) for row, when in enumerate(times)])
        except OverflowError:
            raise InvalidArgumentError("the column timestamp: a time must fit 64 bits, in ms since 1970") from None
    if isinstance(times, str | dt.datetime):
        return _time(None, times, time_of)
    return times


def _time(row: int | None, when: object, time_of: Callable[[object], int] | None) -> int:
    if when is None:
        return -1
    if type(when) is int:
        return when
    where = "" if row is None else f" of row {row}"
    if time_of is None:
        raise TypeError(f"the timestamp{where} must be an int (ms since 1970) or None, not {type(when).__name__}")
    try:
        return time_of(when)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the timestamp{where}: {error.what}", hint=error.hint) from None


def _is_arrow(column: object) -> bool:
    return hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")


def _plain_batch(batch: Any) -> object:
    if not hasattr(batch, "schema") or not hasattr(batch, "columns"):
        return batch        # our own Columns, or an object of another library
    names, columns = batch.schema.names, batch.columns      # pyarrow builds both again at each access
    plain = list(map(_plain_array, names, columns))
    if all(map(operator.is_, plain, columns)):
        return batch
    made: object = _pyarrow("a record batch").record_batch(plain, names=names)
    return made


def _plain_array(name: str, column: Any) -> object:
    """Return the column, or one with the same values that is binary, timestamp[ms], or a list of plain headers."""
    if not hasattr(column, "__arrow_c_array__"):
        chunks = _pyarrow(f"the column {name} in chunks").chunked_array(column)
        column = chunks.combine_chunks()
    if not hasattr(column, "type"):
        return column       # from another library: the kernel refuses what it cannot take
    kind = column.type
    if name in _SIMPLE and kind.id in _plain_ids():
        return column       # the usual case, without a look at what else it might be
    pa = _pyarrow(f"the column {name}")
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
    """Convert times to ms. Fractions of a ms are dropped: Kafka's times are whole ms."""
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


@cache
def _plain_ids() -> frozenset[int]:
    """pyarrow's numbers of the types that keys, values and integer times may have as they are."""
    lib = _pyarrow("columns").lib
    return frozenset((lib.Type_BINARY, lib.Type_LARGE_BINARY, lib.Type_STRING, lib.Type_LARGE_STRING, lib.Type_INT64))


def _pyarrow(what: str) -> Any:
    try:
        late("pyarrow")
        return sys.modules["pyarrow"]
    except ImportError as error:
        raise InvalidArgumentError(
            f"reading {what} needs pyarrow", hint="pip install seglog[arrow], or pass record batches"
        ) from error
