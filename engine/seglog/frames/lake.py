"""`seglog.write_table`: writes a topic's records, incrementally, as Parquet files in directories for lake engines.

    dst/topic=orders/partition=0/00000000000000000000-00000000000000120000-orders-0.parquet

Each file's footer says, under `seglog.range`, which offsets it holds, so the next run continues after them without a
separate list. A range of offsets may be in several files, one for each day; it is complete when all of them exist. If
some are missing, because a run was killed, the next one writes only rows that are in none of them: a file is never
replaced, since the topic may have lost records that it holds. Each file is written under a name that readers ignore,
synced, and renamed. `.seglog.lock` excludes other runs.
"""
import datetime as dt
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError, StorageError
from seglog.frames.libraries import library
from seglog.frames.row_losses import RowLosses
from seglog.frames.rows import RowScan, parts_in
from seglog.frames.sink import new_file
from seglog.frames.table_parts import (
    Partition,
    Place,
    WrittenRange,
    check_end,
    checked_file_bytes,
    checked_partition_by,
    distinct_places,
    group_rows,
    locked,
    split_by_time,
    time_values,
)
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.refusals import storage_error
from seglog.fs.removal import remove_files
from seglog.named_tuple import NamedTuple

RANGE_KEY = b"seglog.range"
RANGE_VERSION = 1
FILE_BYTES = 32 << 20     # of Arrow's memory: a run takes up to seven times as much
# Hive's name for the directory of rows without a value.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_SCRATCH = re.compile(rf"\.\d{{20}}-\d{{20}}-.*\.parquet{re.escape(SCRATCH_SUFFIX)}", re.DOTALL)
# Of Arrow's types without a schema. Views differ in memory only.
_FORMS = {
    "binary": "bytes", "large_binary": "bytes", "binary_view": "bytes", "string": "text", "large_string": "text",
    "string_view": "text", "arrow.json": "JSON",
}
_NAME_BYTES = 255 - len(f".{SCRATCH_SUFFIX}")       # of a file's name, which is longer while it is written



class _Told(NamedTuple):
    """What a file's footer says about it."""

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    files: int


@dataclass(slots=True)
class _Held:
    """The files of one range that exist. `needed`: how many it has if it is complete. `forms`: how keys and values are
    stored, by column and form: one of the files."""

    files: list[Path] = field(default_factory=list)
    needed: int = 0
    forms: dict[tuple[str, str], Path] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return len(self.files) >= self.needed


Ranges = dict[Partition, dict[tuple[int, int], _Held]]


class ParquetTable:
    """A directory of Parquet files: lists the ranges that it holds, and adds more. One writer at a time."""

    def __init__(
        self, path: Path, directories: Sequence[str], *, file_bytes: int, fs: FileSystem | None = None, **options: Any
    ) -> None:
        self._pyarrow, self._parquet = library("pyarrow"), library("pyarrow.parquet")
        self.path = path
        self._directories = checked_partition_by(directories) or ()
        self._file_bytes = checked_file_bytes(file_bytes)
        self._fs = checked_fs(fs)
        self._options = options

    # --- existing files --------------------------------------------------------------------------

    def _ranges(self) -> Ranges:
        """The ranges of each partition, from the footers of the files."""
        found: Ranges = {}
        for path in _files_below(self.path):
            if path.name.endswith(".parquet") and not path.name.startswith((".", "_")):
                told, forms = self._footer(path)
                ranges = found.setdefault((told.topic, told.partition), {})
                held = ranges.setdefault((told.start_offset, told.stop_offset), _Held())
                held.files.append(path)
                held.needed = max(held.needed, told.files)
                held.forms.update(((column, form), path) for column, form in forms.items())
        return found

    def _footer(self, path: Path) -> tuple[_Told, dict[str, str]]:
        """The range of a file, and the form of its keys and values."""
        try:
            if not path.is_file():      # or pyarrow waits for who writes to a pipe
                raise ValueError("not a regular file")
            footer = self._parquet.read_metadata(path)
            metadata = footer.metadata or {}
        except Exception as error:
            raise StorageError(
                f"not a Parquet file: {error}", file=path, hint="remove it, or choose another directory"
            ) from error
        try:
            told = json.loads(metadata[RANGE_KEY])
            if told["version"] != RANGE_VERSION:
                raise ValueError(f"version {told['version']}")
            told = _Told(*(told[name] for name in _Told._fields))
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"a Parquet file does not record which offsets it holds: {error}", file=path,
                hint="use a separate directory: it may contain only files that write_table wrote",
            ) from error
        return told, _forms(footer.schema.to_arrow_schema())

    # --- adding ----------------------------------------------------------------------------------

    def add(self, scan: RowScan) -> Iterator[WrittenRange]:
        """Write the scan's records that the directory does not have yet. Yields each range once it is written."""
        places = distinct_places(scan)
        with locked(self._fs, self.path):
            # From a run that was killed.
            remove_files(self._fs, self.path, lambda name: _SCRATCH.fullmatch(name) is not None)
            known = self._ranges()
            self._check_forms(scan, {place.topic for place in places}, known)
            for place in places:
                yield from self._add_all(scan, place, known.get((place.topic, place.partition), {}))

    def _check_forms(self, scan: RowScan, topics: set[str], known: Ranges) -> None:
        """Raise InvalidArgumentError if the scan decodes keys or values in another way than a file of its topics."""
        held = [
            (topic, *form, path) for (topic, _), ranges in known.items() if topic in topics
            for files in ranges.values() for form, path in files.forms.items()
        ]
        forms = _forms(self._pyarrow.schema(scan)) if held else {}
        for topic, column, form, path in held:
            if forms.get(column, form) != form:
                raise InvalidArgumentError(
                    f"the table {self.path} holds the column {column} of {topic} as {form}, but this run writes it as "
                    f"{forms[column]}", file=path,
                    hint="pass the decode= of the runs before, or choose another directory",
                )

    def _add_all(
        self, scan: RowScan, place: Place, ranges: dict[tuple[int, int], _Held]
    ) -> Iterator[WrittenRange]:
        start = max((stop for _, stop in ranges), default=0)
        if ranges:
            check_end(place, start, self.path)
        for (first, stop), held in sorted(ranges.items()):
            if not held.is_whole:
                losses = RowLosses(parts_in(scan, place, first, stop), scan)
                yield from self._complete(place, losses, (first, stop), held)
        yield from self._add(place, RowLosses(parts_in(scan, place, start), scan))

    def _add(self, place: Place, losses: RowLosses) -> Iterator[WrittenRange]:
        """Write the rows of these parts in ranges of about file_bytes."""
        held: list[Any] = []
        size, end, first = 0, 0, 0
        for rows in losses.batches():
            first = first if held else rows.first_offset
            held.append(self._pyarrow.record_batch(rows))
            size += rows.nbytes
            end = rows.last_offset + 1
            if size >= self._file_bytes:
                table = self._pyarrow.Table.from_batches(held)
                yield self._write(place, table, (first, end), missing=losses.before(end))
                held, size = [], 0
        if held:
            yield self._write(place, self._pyarrow.Table.from_batches(held), (first, end), missing=losses.before(end))

    def _complete(
        self, place: Place, losses: RowLosses, offsets: tuple[int, int], held: _Held
    ) -> Iterator[WrittenRange]:
        """Write the rows of a range that none of its files holds: a run was killed between two renames."""
        batches = [self._pyarrow.record_batch(rows) for rows in losses.batches()]
        if not batches:
            return
        table = self._pyarrow.Table.from_batches(batches)
        written = self._pyarrow.concat_arrays([
            chunk for path in held.files
            for chunk in self._parquet.ParquetFile(path).read(columns=["offset"])["offset"].chunks
        ])
        compute = library("pyarrow.compute")
        missing = table.filter(compute.invert(compute.is_in(table["offset"], value_set=written)))
        if missing.num_rows:
            yield self._write(place, missing, offsets, held, losses.before(offsets[1]))

    def _write(
        self, place: Place, table: Any, offsets: tuple[int, int],
        held: _Held | None = None, missing: int = 0,
    ) -> WrittenRange:
        """Write a range, or the rest of one of which `held` exists."""
        there = (place.topic, place.partition)
        pieces = split_by_time(table, self._directories)
        files = len(pieces) if held is None else max(held.needed, len(held.files) + len(pieces))
        told = {"version": RANGE_VERSION, **_Told(*there, *offsets, files)._asdict()}
        made: list[tuple[Path, Path]] = []
        with ExitStack() as unused:
            for start, piece in pieces.items():
                made.append(self._write_file(self._directory(there, start) / _name(there, offsets), piece, told))
                unused.callback(self._discard, made[-1][0])
            for scratch, path in made:
                self._fs.replace(scratch, path)
                self._fs.sync_directory(path.parent)
            unused.pop_all()
        return WrittenRange(*there, *offsets, table.num_rows, tuple(path for _, path in made), missing)

    def _discard(self, scratch: Path) -> None:
        if os.path.lexists(scratch):        # not renamed before the error
            self._fs.unlink(scratch)

    def _directory(self, place: Partition, start: dt.datetime | None) -> Path:
        values: dict[str, str | None] = {"topic": place[0], "partition": str(place[1])}
        values |= time_values(self._directories, start)
        return self.path.joinpath(*(f"{name}={values[name] or _NO_DATE}" for name in self._directories))

    def _write_file(self, path: Path, table: Any, told: dict[str, object]) -> tuple[Path, Path]:
        """Write and sync a file under a name that readers ignore. Returns that path and the final one."""
        table = table.drop_columns([name for name in self._directories if name in table.column_names])
        table = table.replace_schema_metadata({RANGE_KEY: json.dumps(told)})
        make_directories(self._fs, path.parent)
        path = _unused(path)
        scratch = path.with_name(f".{path.name}{SCRATCH_SUFFIX}")
        with new_file(self._fs, scratch) as file, self._pyarrow.PythonFile(file, mode="w") as sink:
            self._parquet.write_table(table, sink, row_group_size=group_rows(table), **self._options)
        return scratch, path


def _forms(schema: Any) -> dict[str, str]:
    """What keys and values are in an Arrow schema. Fields of a schema may change with it: that is one form."""
    found = {}
    for column in ("key", "value"):
        if column in schema.names:
            stored = schema.field(column).type
            found[column] = _FORMS.get(getattr(stored, "extension_name", str(stored)), "what a schema says")
    return found


def _files_below(path: Path) -> Iterator[Path]:
    """All files of a directory and those below it, also behind symbolic links. Raises StorageError."""
    seen: set[str] = set()

    def refuse(error: OSError) -> None:
        raise storage_error(error, "list", error.filename)

    if not path.is_dir():
        return
    for directory, below, files in os.walk(path, onerror=refuse, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:            # links that form a loop, or lead to one directory twice
            below.clear()
            continue
        seen.add(real)
        below.sort()
        yield from (Path(directory, name) for name in sorted(files))


def _name(place: Partition, offsets: tuple[int, int]) -> str:
    """The name of a file; of a topic with a long name a hash."""
    topic, partition = place
    start, stop = offsets
    name = f"{start:020d}-{stop:020d}-{topic}-{partition}.parquet"
    if len(os.fsencode(name)) > _NAME_BYTES:
        digest = hashlib.sha256(os.fsencode(topic)).hexdigest()
        name = f"{start:020d}-{stop:020d}-{digest}-{partition}.parquet"
    return name


def _unused(path: Path) -> Path:
    """This path, or one with a number if it is in use: a file with other rows of its range is never replaced."""
    free, number = path, 1
    while os.path.lexists(free):
        free, number = path.with_name(f"{path.stem}.{number}{path.suffix}"), number + 1
    return free


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """The directory to write to. Raises InvalidArgumentError for a URL, and for a file."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or not os.fspath(path):
        raise InvalidArgumentError(f"dst must be the path of a directory, not {path!r}")
    if "://" in os.fspath(path):
        raise InvalidArgumentError("Parquet files can only be written to a mounted path", file=path)
    if Path(path).is_file():
        raise InvalidArgumentError("expected a directory, found a file", file=path)
    return Path(path)


def checked_compression(name: str | None) -> str | None:
    """A codec of pyarrow's Parquet writer; None or "none": no compression. Raises InvalidArgumentError."""
    codecs = library("pyarrow").Codec
    try:
        is_known = name is None or name.lower() == "none" or codecs.is_available(name)
    except Exception:       # pyarrow raises ValueError or ArrowException for a name that it does not know
        is_known = False
    if not is_known:
        raise InvalidArgumentError(
            f"unknown compression {name!r}", hint='expected "zstd", "snappy", "gzip", "lz4", "brotli" or "none"'
        )
    return name
