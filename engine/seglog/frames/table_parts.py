"""What all kinds of tables that a topic is written to share: ranges, places, directories by time, the lock."""
import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.frames.libraries import library
from seglog.frames.plan import PartitionSource, end_of
from seglog.frames.rows import RowScan, places_of_scan
from seglog.frames.stored import StoredPartition
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.fs.lock import EXCLUSIVE, lock_file
from seglog.fs.refusals import refusals

PARTITION_BY = ("topic", "partition", "date", "hour")
LOCK_NAME = ".seglog.lock"
_GROUP_BYTES, _GROUP_ROWS_MAX = 16 << 20, 1 << 20
# 0001-01-01 and 9999-12-31 in days since 1970: other days are no dates in SQL, and Hive's directory cannot name them.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
Partition = tuple[str, int]
Place = PartitionSource | StoredPartition


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """A partition's records with start_offset <= offset < stop_offset, and the files that hold them.

    `missing_offsets`: how many offsets the source has lost between the range before and the end of this one. No segment
    holds them, although the topic is not compacted: files of the source are missing; or they were in damage that
    on_corrupt="skip" skipped. `files`: those of Parquet and Delta tables; a Delta table may have rows of several ranges
    in one file. Iceberg names its files itself.
    """

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    rows: int
    files: tuple[Path, ...]
    missing_offsets: int = 0


def distinct_places(scan: RowScan) -> list[Place]:
    """The partitions that a scan reads. Raises InvalidArgumentError if one is in two places."""
    places = places_of_scan(scan)
    for one, other in pairwise(places):
        if (one.topic, one.partition) == (other.topic, other.partition):
            raise InvalidArgumentError(
                f"{one.topic}-{one.partition} is in two places, {one.path} and {other.path}; a table holds each "
                "offset of a partition once", hint="write them to two directories",
            )
    return places


def check_end(place: Place, start: int, table: object) -> None:
    """Raise InvalidArgumentError if the table's rows reach beyond the end of the log."""
    end = end_of(place)
    if end is not None and end < start:
        raise InvalidArgumentError(
            f"the table {table} holds {place.topic}-{place.partition} with offsets up to {start - 1}, but the log ends "
            f"at offset {end}: it was truncated, or the topic was created again", file=place.path,
            hint="choose another directory, or remove the rows of this partition from the table",
        )


@contextmanager
def locked(fs: FileSystem, path: Path) -> Iterator[None]:
    """Make the directory, and exclude other runs. Raises LogLockedError."""
    make_directories(fs, path)
    try:
        lock = lock_file(fs, path / LOCK_NAME, EXCLUSIVE)
    except LogLockedError as error:
        raise LogLockedError(
            "another run writes to this table", file=path, hint="wait for it, then run again"
        ) from error
    with lock:
        yield


def refuse_other_files(path: Path, kind: str, is_own: Callable[[str], bool]) -> None:
    """Raise InvalidArgumentError if the directory for a new table has files that are not the table's."""
    with refusals("list", path), os.scandir(path) as entries:
        others = [entry.name for entry in entries if not is_own(entry.name)]
    if others:
        raise InvalidArgumentError(
            f"the directory has files, such as {min(others)}, but no {kind} table", file=path,
            hint="choose an empty directory",
        )


def split_by_time(table: Any, names: Sequence[str]) -> dict[dt.datetime | None, Any]:
    """The rows of each day or hour (UTC), in order, by its beginning; all rows under None if `names` has neither.

    None also has rows without a time, or with one in no calendar.
    """
    if "date" not in names:
        return {None: table}
    pyarrow, compute = library("pyarrow"), library("pyarrow.compute")
    moment = pyarrow.timestamp("us")
    times = times_in_calendar(table["timestamp"].cast(moment))
    starts = compute.floor_temporal(times, unit="hour" if "hour" in names else "day")
    found = {}
    for start in sorted(compute.unique(starts).to_pylist(), key=str):
        is_of = compute.is_null(starts) if start is None else compute.equal(starts, pyarrow.scalar(start, moment))
        found[start] = table.filter(is_of)
    return found


def times_in_calendar(times: Any) -> Any:
    """Timestamps in microseconds, with null for those in no calendar."""
    pyarrow, compute = library("pyarrow"), library("pyarrow.compute")
    int32 = pyarrow.int32()
    days = times.cast(pyarrow.timestamp("us")).cast(pyarrow.date32(), safe=False).cast(int32)
    is_date = compute.and_(
        compute.greater_equal(days, pyarrow.scalar(_FIRST_DAY, int32)),
        compute.less_equal(days, pyarrow.scalar(_LAST_DAY, int32)),
    )
    return compute.if_else(is_date, times, pyarrow.scalar(None, times.type))


def time_values(names: Sequence[str], start: dt.datetime | None) -> dict[str, str | None]:
    """The values of date and hour, as far as `names` has them."""
    values = {
        "date": None if start is None else start.date().isoformat(), "hour": None if start is None else str(start.hour)
    }
    return {name: values[name] for name in names if name in values}


def group_rows(table: Any) -> int:
    """How many rows of the table make a row group of Parquet, whose pages the writer holds in memory."""
    return max(1, min(_GROUP_ROWS_MAX, _GROUP_BYTES * int(table.num_rows) // max(int(table.nbytes), 1)))


def checked_partition_by(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Raises InvalidArgumentError."""
    if names is None:
        return None
    try:
        chosen = () if isinstance(names, str) else tuple(names)
    except TypeError:
        chosen = ("",)
    if isinstance(names, str) or not all(name in PARTITION_BY for name in chosen) or len(set(chosen)) != len(chosen):
        raise InvalidArgumentError(
            f"partition_by must name some of {', '.join(PARTITION_BY)}, each once, not {names!r}"
        )
    if "hour" in chosen and "date" not in chosen:
        raise InvalidArgumentError('partition_by="hour" needs "date" beside it: an hour is one of a day')
    return chosen


def checked_file_bytes(file_bytes: int) -> int:
    """Raises InvalidArgumentError."""
    if isinstance(file_bytes, bool) or not isinstance(file_bytes, int) or file_bytes < 1:
        raise InvalidArgumentError(f"file_bytes must be at least 1, not {file_bytes!r}")
    return file_bytes
