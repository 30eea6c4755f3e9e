"""`seglog dump --format`: write records as a table, for other programs to read. Rows are written batch by batch."""
import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library
from seglog.frames.sink import new_file
from seglog.fs.files import OsFileSystem

from .decoding import plain

if TYPE_CHECKING:
    from seglog.frames.scan import TopicScan

_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400_000_000
_YEAR_2000, _CYCLE = 10_957 * _DAY, 146_097 * _DAY

FORMATS = ("parquet", "arrow", "csv", "jsonl")


def write(scan: "TopicScan", kind: str, output: Path | None) -> int:
    """Write the rows to a file or to stdout; return their number. Raises what reading raises, and StorageError."""
    with opened(output) as file:
        return _WRITERS[kind](scan, file)


@contextmanager
def opened(output: Path | None) -> Iterator[Any]:
    """Open the new file to write to, or stdout."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_file(OsFileSystem(), output) as file:
        yield file


def _parquet(scan: "TopicScan", file: Any) -> int:
    parquet = library("pyarrow.parquet")
    reader = scan.to_reader()
    with library("pyarrow").PythonFile(file, mode="w") as sink, parquet.ParquetWriter(
        sink, reader.schema, compression="zstd"
    ) as writer:
        return _all(reader, writer.write_batch)


def _arrow(scan: "TopicScan", file: Any) -> int:
    pyarrow = library("pyarrow")
    reader = scan.to_reader()
    with pyarrow.PythonFile(file, mode="w") as sink, pyarrow.ipc.new_stream(sink, reader.schema) as writer:
        return _all(reader, writer.write_batch)


def _all(reader: Any, write_batch: Callable[[Any], object]) -> int:
    rows = 0
    for batch in reader:
        write_batch(batch)
        rows += batch.num_rows
    return rows


def _csv(scan: "TopicScan", file: Any) -> int:
    """Write RFC 4180; null is an empty field, an empty string is ""."""
    file.write((",".join(scan.columns) + "\r\n").encode())
    rows = 0
    for row in _rows(scan):
        rows += 1
        file.write((",".join(map(_field, row)) + "\r\n").encode())
    return rows


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return '"' + text.replace('"', '""') + '"'


def _jsonl(scan: "TopicScan", file: Any) -> int:
    rows = 0
    for row in _rows(scan):
        rows += 1
        file.write((json.dumps(dict(zip(scan.columns, row, strict=True)), ensure_ascii=False) + "\n").encode())
    return rows


def _rows(scan: "TopicScan") -> Iterator[Iterable[object]]:
    """Return rows of JSON values: bytes in base64, times in ISO 8601."""
    forms: dict[str, Callable[[Any], object]] = {
        "key": plain, "value": plain, "timestamp": _time,
        "headers": lambda headers: [{"key": h["key"], "value": _text(h["value"])} for h in headers],
    }
    for batch in scan.to_reader():
        columns = []
        for name in scan.columns:
            # Times as microseconds: Python's datetime ends with the year 9999.
            try:
                values = (batch[name].cast("int64") if name == "timestamp" else batch[name]).to_pylist()
            except (OverflowError, ValueError) as error:
                raise InvalidArgumentError(
                    f"the column {name} has a time that text has no form for: {error}",
                    hint="use --format parquet or arrow",
                ) from error
            columns.append(list(map(forms[name], values)) if name in forms else values)
        yield from zip(*columns, strict=True)


def _text(value: bytes | str | None) -> str | None:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _time(micros: int | None) -> str | None:
    """A time in ISO 8601; after the year 9999 with as many digits as the year has."""
    if micros is None:
        return None
    # The calendar repeats every 400 years.
    cycles = max(0, (micros - _YEAR_2000) // _CYCLE)
    moment = _EPOCH + timedelta(microseconds=micros - cycles * _CYCLE)
    return f"{moment.year + 400 * cycles:04d}-{moment:%m-%dT%H:%M:%S.%f}Z"


_WRITERS = {"parquet": _parquet, "arrow": _arrow, "csv": _csv, "jsonl": _jsonl}
