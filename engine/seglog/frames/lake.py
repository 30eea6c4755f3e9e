"""`seglog.write_table`: writes a topic's records, incrementally, as Parquet files in directories for lake engines.

    dst/topic=orders/partition=0/00000000000000000000-00000000000000120000-orders-0.parquet

Each file's footer says, under `seglog.range`, which offsets it holds, so the next run continues after them without a
separate list. A range of offsets may be in several files, one for each day; it is complete when all of them exist. If
some are missing, because a run was killed, the next one writes only rows that are in none of them: a file is never
replaced, since the topic may have lost records that it holds. Each file is written under a name that readers ignore,
synced, and renamed. `.seglog.lock` excludes other runs.
"""
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from seglog._kernels.topic_rows import TopicRows
from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.frames.libraries import library
from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.frames.plan import PartitionSource, end_of
from seglog.frames.rows import RowScan, parts_in, places_of_scan
from seglog.frames.sink import new_file
from seglog.frames.stored import StoredPartition
from seglog.frames.typed.typed_rows import TypedRows
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import EXCLUSIVE, lock_file
from seglog.fs.refusals import storage_error
from seglog.fs.removal import remove_files
from seglog.logger import Logger
from seglog.segment.positions import LostRange

_LOG = Logger(__name__)

RANGE_KEY = b"seglog.range"
RANGE_VERSION = 1
DIRECTORIES = ("topic", "partition", "date")
FILE_BYTES = 256 << 20
# Hive's name for the directory of rows without a value.
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
# 0001-01-01 and 9999-12-31 in days since 1970: other days are no dates in SQL, and Hive's directory cannot name them.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_LOCK_NAME = ".seglog.lock"
_SCRATCH = re.compile(rf"\.\d{{20}}-\d{{20}}-.*\.parquet{re.escape(SCRATCH_SUFFIX)}", re.DOTALL)
# Of Arrow's types without a schema. Views differ in memory only.
_FORMS = {
    "binary": "bytes", "large_binary": "bytes", "binary_view": "bytes", "string": "text", "large_string": "text",
    "string_view": "text", "arrow.json": "JSON",
}
_NAME_BYTES = 255 - len(f".{SCRATCH_SUFFIX}")       # of a file's name, which is longer while it is written
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """A partition's records with start_offset <= offset < stop_offset, and the files that hold them.

    `missing_offsets`: how many offsets the source has lost between the range before and the end of this one. No segment
    holds them, although the topic is not compacted: files of the source are missing; or they were in damage that
    on_corrupt="skip" skipped.
    """

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    rows: int
    files: tuple[Path, ...]
    missing_offsets: int = 0


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
        self._directories = _checked_directories(directories)
        if isinstance(file_bytes, bool) or not isinstance(file_bytes, int) or file_bytes < 1:
            raise InvalidArgumentError(f"file_bytes must be at least 1, not {file_bytes!r}")
        self._file_bytes = file_bytes
        self._fs = fs or OsFileSystem()
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
        places = places_of_scan(scan)
        for one, other in pairwise(places):
            if (one.topic, one.partition) == (other.topic, other.partition):
                raise InvalidArgumentError(
                    f"{one.topic}-{one.partition} is in two places, {one.path} and {other.path}; a table holds each "
                    "offset of a partition once", hint="write them to two directories",
                )
        with self._locked():
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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_directories(self._fs, self.path)
        try:
            lock = lock_file(self._fs, self.path / _LOCK_NAME, EXCLUSIVE)
        except LogLockedError as error:
            raise LogLockedError(
                "another run writes to this table", file=self.path, hint="wait for it, then run again"
            ) from error
        with lock:
            yield

    def _add_all(
        self, scan: RowScan, place: PartitionSource | StoredPartition, ranges: dict[tuple[int, int], _Held]
    ) -> Iterator[WrittenRange]:
        start = max((stop for _, stop in ranges), default=0)
        end = end_of(place) if ranges else None
        if end is not None and end < start:
            raise InvalidArgumentError(
                f"the table {self.path} holds {place.topic}-{place.partition} with offsets up to {start - 1}, but the "
                f"log ends at offset {end}: it was cut, or the topic was created again", file=place.path,
                hint="choose another directory, or remove the files of this partition from the table",
            )
        for (first, stop), held in sorted(ranges.items()):
            if not held.is_whole:
                losses = _Losses(parts_in(scan, place, first, stop), scan)
                yield from self._complete(place, losses, (first, stop), held)
        yield from self._add(place, _Losses(parts_in(scan, place, start), scan))

    def _add(self, place: PartitionSource | StoredPartition, losses: "_Losses") -> Iterator[WrittenRange]:
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
        self, place: PartitionSource | StoredPartition, losses: "_Losses", offsets: tuple[int, int], held: _Held
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
        self, place: PartitionSource | StoredPartition, table: Any, offsets: tuple[int, int],
        held: _Held | None = None, missing: int = 0,
    ) -> WrittenRange:
        """Write a range, or the rest of one of which `held` exists."""
        there = (place.topic, place.partition)
        pieces = self._by_date(table) if "date" in self._directories else {None: table}
        files = len(pieces) if held is None else max(held.needed, len(held.files) + len(pieces))
        told = {"version": RANGE_VERSION, **_Told(*there, *offsets, files)._asdict()}
        made: list[tuple[Path, Path]] = []
        with ExitStack() as unused:
            for date, piece in pieces.items():
                made.append(self._write_file(self._directory(there, date) / _name(there, offsets), piece, told))
                unused.callback(self._discard, made[-1][0])
            for scratch, path in made:
                self._fs.replace(scratch, path)
                self._fs.sync_directory(path.parent)
            unused.pop_all()
        return WrittenRange(*there, *offsets, table.num_rows, tuple(path for _, path in made), missing)

    def _discard(self, scratch: Path) -> None:
        if os.path.lexists(scratch):        # not renamed before the error
            self._fs.unlink(scratch)

    def _directory(self, place: Partition, date: str | None) -> Path:
        values = {"topic": place[0], "partition": str(place[1]), "date": date or _NO_DATE}
        return self.path.joinpath(*(f"{name}={values[name]}" for name in self._directories))

    def _by_date(self, table: Any) -> dict[str | None, Any]:
        """The rows of each day (UTC), in order. None: rows without a time, or with one in no calendar."""
        compute, int32 = library("pyarrow.compute"), self._pyarrow.int32()
        days = table["timestamp"].cast(self._pyarrow.timestamp("us")).cast(self._pyarrow.date32(), safe=False)
        numbers = days.cast(int32)
        is_date = compute.and_(
            compute.greater_equal(numbers, self._pyarrow.scalar(_FIRST_DAY, int32)),
            compute.less_equal(numbers, self._pyarrow.scalar(_LAST_DAY, int32)),
        )
        days = compute.if_else(is_date, days, self._pyarrow.scalar(None, self._pyarrow.date32()))
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
        path = _unused(path)
        scratch = path.with_name(f".{path.name}{SCRATCH_SUFFIX}")
        with new_file(self._fs, scratch) as file, self._pyarrow.PythonFile(file, mode="w") as sink:
            self._parquet.write_table(table, sink, **self._options)
        return scratch, path


class _Losses:
    """Reads the rows of parts, and warns of what their source has lost of the offsets asked for."""

    def __init__(self, parts: Sequence[ScanPart], scan: RowScan) -> None:
        self._parts = parts
        self._scan = scan
        self._spans: list[tuple[int, int]] = []     # first and stop offset, in order; not yet counted

    def batches(self) -> Iterator[TopicRows | TypedRows]:
        """The rows of all parts. `scan.lost` gets what is lost."""
        for part in self._parts:
            found: list[LostRange] = []
            for rows in part.batches(found):
                self._take(part, found)
                yield rows
            self._take(part, found)

    def before(self, stop: int) -> int:
        """How many offsets below `stop` are lost that were not counted yet."""
        count, counted = 0, 0
        for first, end in self._spans:
            count += max(0, min(end, stop) - max(first, counted))
            counted = max(counted, min(end, stop))
        self._spans = [(max(first, stop), end) for first, end in self._spans if end > stop]
        return count

    def _take(self, part: ScanPart, found: list[LostRange]) -> None:
        for lost in found:
            first, stop = lost.first_offset, lost.last_offset + 1
            if lost.size_bytes:     # a scan that skips damage walks the whole segment
                stop = part.stop_offset if lost.last_offset < 0 else min(stop, part.stop_offset)
                first = max(first, part.start_offset)
            if first >= stop:
                continue
            reason = lost.reason
            if lost.size_bytes:
                named = f"offsets {first} to {stop - 1}" if stop < OFFSET_MAX else f"the offsets from {first} on"
                reason = f"{named} were skipped at byte {lost.position}: {reason}"
            _LOG.warning("%s: %s; the table lacks them", lost.file, reason)
            self._scan._lost.append(lost)
            self._spans.append((first, stop))
        found.clear()


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


def _checked_directories(names: Sequence[str]) -> tuple[str, ...]:
    try:
        chosen = () if isinstance(names, str) else tuple(names)
    except TypeError:
        chosen = ("",)
    if isinstance(names, str) or not all(name in DIRECTORIES for name in chosen) or len(set(chosen)) != len(chosen):
        raise InvalidArgumentError(
            f"partition_by must name some of {', '.join(DIRECTORIES)}, each once, not {names!r}"
        )
    return chosen


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
