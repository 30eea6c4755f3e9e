"""`seglog.write_parquet`: writes a topic's records, incrementally, as Parquet files in directories for lake engines.

    dst/topic=orders/partition=0/00000000000000000000-00000000000000120000-orders-0.parquet

Each file's footer says, under `seglog.range`, which offsets it holds, so the next run continues after them without a
separate list. A range of offsets may be in several files, one for each day; it is complete when all of them exist. Each
file is written under a name that readers ignore, synced, and renamed.
"""
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError, StorageError
from seglog.frames.libraries import library
from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.frames.rows import RowScan
from seglog.frames.sink import new_file
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, OsFileSystem

RANGE_KEY = b"seglog.range"
RANGE_VERSION = 1
DIRECTORIES = ("topic", "partition", "date")
FILE_BYTES = 256 << 20
# Hive's name for the directory of rows without a value.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """A partition's records with start_offset <= offset < stop_offset, and the files that hold them."""

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    rows: int
    files: tuple[Path, ...]


class ParquetTable:
    """A directory of Parquet files: lists the ranges that it holds, and adds more. One writer at a time."""

    def __init__(
        self, path: Path, directories: Sequence[str], *, file_bytes: int, fs: FileSystem | None = None, **options: Any
    ) -> None:
        self._pyarrow, self._parquet = library("pyarrow"), library("pyarrow.parquet")
        self.path = path
        self._directories = tuple(directories)
        if not set(self._directories) <= set(DIRECTORIES) or len(set(self._directories)) != len(self._directories):
            raise InvalidArgumentError(
                f"partition_by must name some of {', '.join(DIRECTORIES)}, each once, not {directories!r}"
            )
        if file_bytes < 1:
            raise InvalidArgumentError(f"file_bytes must be at least 1, not {file_bytes}")
        self._file_bytes = file_bytes
        self._fs = fs or OsFileSystem()
        self._options = options

    # --- existing files --------------------------------------------------------------------------

    def ranges(self) -> dict[Partition, list[tuple[int, int, bool]]]:
        """The ranges (start, stop, whole) of each partition, in order, from the footers of the files."""
        found: dict[Partition, dict[tuple[int, int], list[int]]] = {}
        for path in sorted(self.path.rglob("*.parquet")) if self.path.is_dir() else ():
            if path.name.startswith((".", "_")):
                continue
            topic, partition, start, stop, files = self._range_of(path)
            held = found.setdefault((topic, partition), {}).setdefault((start, stop), [0, files])
            held[0] += 1
        return {
            place: [(start, stop, held >= files) for (start, stop), (held, files) in sorted(ranges.items())]
            for place, ranges in found.items()
        }

    def _range_of(self, path: Path) -> tuple[str, int, int, int, int]:
        try:
            metadata = self._parquet.read_metadata(path).metadata or {}
        except Exception as error:
            raise StorageError(
                f"not a Parquet file: {error}", file=path, hint="remove it, or choose another directory"
            ) from error
        try:
            told = json.loads(metadata[RANGE_KEY])
            if told["version"] != RANGE_VERSION:
                raise ValueError(f"version {told['version']}")
            return told["topic"], told["partition"], told["start_offset"], told["stop_offset"], told["files"]
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"a Parquet file does not record which offsets it holds: {error}", file=path,
                hint="use a separate directory: it may contain only files that write_parquet wrote",
            ) from error

    # --- adding ----------------------------------------------------------------------------------

    def add(self, scan: RowScan) -> Iterator[WrittenRange]:
        """Write the scan's records that the directory does not have yet. Yields each range once it is written."""
        known = self.ranges()
        for place, parts in groupby(scan.parts(OFFSET_MAX), key=lambda part: (part.topic, part.partition)):
            start = 0
            listed = list(parts)
            for first, stop, is_whole in known.get(place, ()):
                if not is_whole:        # killed between two renames: write the same range again, with the same names
                    yield from self._add(place, _within(listed, first, stop), first, stop)
                start = max(start, stop)
            yield from self._add(place, _within(listed, start, OFFSET_MAX), start, None)

    def _add(
        self, place: Partition, parts: Sequence[ScanPart], start: int, stop: int | None
    ) -> Iterator[WrittenRange]:
        """Write the rows of these parts in ranges of about file_bytes, or in one range up to `stop`, if given."""
        batches = (rows for part in parts for rows in part.batches())
        held: list[Any] = []
        size, end, first = 0, start, None
        for rows in batches:
            held.append(self._pyarrow.record_batch(rows))
            size += rows.nbytes
            first = rows.first_offset if first is None else first
            end = rows.last_offset + 1
            if size >= self._file_bytes and stop is None:
                yield self._write(place, held, first, end)
                held, size, first = [], 0, None
        if held and first is not None:
            yield self._write(place, held, first if stop is None else start, end if stop is None else stop)

    def _write(self, place: Partition, batches: Sequence[Any], start: int, stop: int) -> WrittenRange:
        table = self._pyarrow.Table.from_batches(batches)
        pieces = self._by_date(table) if "date" in self._directories else {None: table}
        told = {"version": RANGE_VERSION, "topic": place[0], "partition": place[1], "start_offset": start,
                "stop_offset": stop, "files": len(pieces)}
        name = f"{start:020d}-{stop:020d}-{place[0]}-{place[1]}.parquet"
        made = [
            self._write_file(self._directory(place, date) / name, piece, told)
            for date, piece in pieces.items()
        ]
        for scratch, path in made:
            self._fs.replace(scratch, path)
            self._fs.sync_directory(path.parent)
        return WrittenRange(*place, start, stop, table.num_rows, tuple(path for _, path in made))

    def _directory(self, place: Partition, date: str | None) -> Path:
        values = {"topic": place[0], "partition": str(place[1]), "date": date or _NO_DATE}
        return self.path.joinpath(*(f"{name}={values[name]}" for name in self._directories))

    def _by_date(self, table: Any) -> dict[str | None, Any]:
        """The rows of each day (UTC), in order."""
        compute = library("pyarrow.compute")
        days = table["timestamp"].cast(self._pyarrow.timestamp("us")).cast(self._pyarrow.date32(), safe=False)
        found = {}
        for day in sorted(compute.unique(days).to_pylist(), key=str):
            is_of_day = compute.is_null(days) if day is None else compute.equal(days, self._pyarrow.scalar(day))
            found[None if day is None else day.isoformat()] = table.filter(is_of_day)
        return found

    def _write_file(self, path: Path, table: Any, told: dict[str, object]) -> tuple[Path, Path]:
        """Write and sync a file under a name that readers ignore. Returns that path and the final one."""
        table = table.drop_columns([name for name in self._directories if name in table.column_names])
        table = table.replace_schema_metadata({RANGE_KEY: json.dumps(told)})
        make_directories(self._fs, path.parent)
        scratch = path.with_name(f".{path.name}{SCRATCH_SUFFIX}")
        if scratch.exists():            # from a run that was killed
            self._fs.unlink(scratch)
        with new_file(self._fs, scratch) as file, self._pyarrow.PythonFile(file, mode="w") as sink:
            self._parquet.write_table(table, sink, **self._options)
        return scratch, path


def _within(parts: Sequence[ScanPart], start: int, stop: int) -> list[ScanPart]:
    """The parts, cut to the offsets [start, stop)."""
    return [
        replace(part, start_offset=max(part.start_offset, start), stop_offset=min(part.stop_offset, stop))
        for part in parts if part.start_offset < stop and part.stop_offset > start
    ]


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """The directory to write to. Raises InvalidArgumentError for a URL, and for a file."""
    if "://" in os.fspath(path):
        raise InvalidArgumentError("Parquet files can only be written to a mounted path", file=path)
    if Path(path).is_file():
        raise InvalidArgumentError("expected a directory, found a file", file=path)
    return Path(path)

