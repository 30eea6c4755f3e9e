"""A Delta table of a topic: `seglog.write_table(topic, dst, format="delta")`.

    dst/_delta_log/00000000000000000001.json
    dst/topic=orders/partition=0/seglog-<32 hex digits>.parquet

Each commit has an application transaction for each partition whose rows it adds: the id is `seglog:<topic>-<partition>`
and the version the offset after the last row. Files are synced before they are committed; one that a killed run left is
in no commit, so no reader sees it, and VACUUM removes it. `date` and `hour` are columns, by which the table may be
partitioned.
"""
import datetime as dt
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.frames.committed_table import CommitPiece, CommittedTable
from seglog.frames.lake_types import LakeTypes, check_fits
from seglog.frames.libraries import library
from seglog.frames.sink import new_file
from seglog.frames.table_parts import (
    Partition,
    checked_partition_by,
    group_rows,
    locked,
    refuse_other_files,
    split_by_time,
    time_values,
)
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem
from seglog.fs.removal import remove_files

_LOG = "_delta_log"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SCRATCH = re.compile(rf"\.seglog-[0-9a-f]{{32}}\.parquet{re.escape(SCRATCH_SUFFIX)}")
# Years outside of these have no text in Delta's statistics.
_YEAR_1, _YEAR_10000 = (
    dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
)


class DeltaTable(CommittedTable):
    """A directory with a Delta table."""

    types = LakeTypes("a Delta table", has_time=False, has_fixed=False)
    commit_bytes = 48 << 20

    def __init__(
        self, path: Path, partition_by: Sequence[str] | None, *, file_bytes: int | None, compression: str | None,
        fs: FileSystem | None = None,
    ) -> None:
        super().__init__(partition_by, file_bytes=file_bytes, compression=compression, fs=fs)
        self.path = path
        self._deltalake = library("deltalake")
        self._directories: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.path)

    # --- opening ---------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, schema: Any) -> Iterator[None]:
        with locked(self._fs, self.path):
            remove_files(self._fs, self.path, lambda name: _SCRATCH.fullmatch(name) is not None)     # of a killed run
            with self._refusals("open"):
                if self._deltalake.DeltaTable.is_deltatable(str(self.path)):
                    self._table = self._deltalake.DeltaTable(str(self.path))
                    self._fit(schema)
                else:
                    self._create(schema)
            yield

    def _create(self, schema: Any) -> None:
        refuse_other_files(self.path, "Delta", lambda name: name.startswith((".", "_")))
        self._directories = self._chosen_or_default
        self._check_columns(schema)
        self._table = self._deltalake.DeltaTable.create(
            str(self.path), self._deltalake.Schema.from_arrow(self._with_time_columns(schema)),
            partition_by=list(self._directories), mode="error",
        )
        self._sync_log()

    def _fit(self, schema: Any) -> None:
        held = self._pyarrow.schema(self._table.schema().to_arrow())
        columns = list(self._table.metadata().partition_columns)
        if self._chosen is not None and sorted(self._chosen) != sorted(columns):
            raise InvalidArgumentError(
                f"the table {self} is partitioned by {', '.join(columns) or 'nothing'}, not by "
                f"{', '.join(self._chosen) or 'nothing'}", hint="leave partition_by out, or choose another directory",
            )
        self._directories = checked_partition_by(columns) or ()
        self._check_columns(schema)
        wanted = self._with_time_columns(schema)
        if not check_fits(str(self), self.types.schema(held), wanted):
            self._deltalake.write_deltalake(
                self._table, wanted.empty_table(), mode="append", schema_mode="merge"
            )
            self._table.update_incremental()
            self._sync_log()

    def _check_columns(self, schema: Any) -> None:
        for name in self._directories:
            if name in ("topic", "partition") and name not in schema.names:
                raise InvalidArgumentError(
                    f"the table {self} is partitioned by {name}, which is not among the columns",
                    hint=f"add {name!r} to columns, or choose another partition_by",
                )

    def _with_time_columns(self, schema: Any) -> Any:
        types = {"date": self._pyarrow.date32(), "hour": self._pyarrow.int32()}
        for name in self._directories:
            if name in types:
                schema = schema.append(self._pyarrow.field(name, types[name]))
        return schema

    # --- adding ----------------------------------------------------------------------------------

    def _end(self, place: Partition) -> int:
        return int(self._table.transaction_version(_app_id(place)) or 0)

    def _commit(self, pieces: Sequence[CommitPiece]) -> None:
        deltalake = self._deltalake
        actions = [self._written(rows, values) for values, rows in self._by_directory(pieces)]
        transactions = [deltalake.Transaction(_app_id(piece.place), piece.stop_offset) for piece in pieces]
        with self._refusals("commit to"):
            self._table.create_write_transaction(
                actions, mode="append", schema=self._table.schema(), partition_by=list(self._directories),
                commit_properties=deltalake.CommitProperties(app_transactions=transactions),
            )
            self._table.update_incremental()
        self._sync_log()

    def _by_directory(self, pieces: Sequence[CommitPiece]) -> Iterator[tuple[dict[str, str | None], Any]]:
        """The rows of each directory, and its values."""
        found: dict[tuple[str | None, ...], list[Any]] = {}
        for piece in pieces:
            there: dict[str, str | None] = {"topic": piece.place[0], "partition": str(piece.place[1])}
            table = self._pyarrow.concat_tables(piece.tables)
            for start, rows in split_by_time(table, self._directories).items():
                values = there | time_values(self._directories, start)
                found.setdefault(tuple(values[name] for name in self._directories), []).append(rows)
        for key, tables in found.items():
            yield dict(zip(self._directories, key, strict=True)), self._pyarrow.concat_tables(tables)

    def _written(self, rows: Any, values: dict[str, str | None]) -> Any:
        """Write and sync a file. Returns what adds it to the table."""
        rows = rows.drop_columns([name for name in values if name in rows.column_names])
        where = [f"{name}={quote(value or _NO_VALUE, safe='')}" for name, value in values.items()]
        path = self.path.joinpath(*where, f"seglog-{uuid4().hex}.parquet")
        make_directories(self._fs, path.parent)
        scratch = path.with_name(f".{path.name}{SCRATCH_SUFFIX}")
        with new_file(self._fs, scratch) as file, self._pyarrow.PythonFile(file, mode="w") as sink:
            library("pyarrow.parquet").write_table(
                rows, sink, compression=self._compression, row_group_size=group_rows(rows),
            )
        self._fs.replace(scratch, path)
        self._fs.sync_directory(path.parent)
        return library("deltalake.transaction").AddAction(
            path=quote(str(path.relative_to(self.path)), safe="/="), size=path.stat().st_size, partition_values=values,
            modification_time=time.time_ns() // 1_000_000, data_change=True, stats=json.dumps(self._stats(rows)),
        )

    def _stats(self, rows: Any) -> dict[str, Any]:
        """Smallest and largest offset and time, by which engines leave files out; times in milliseconds, which reach a
        little further."""
        compute = library("pyarrow.compute")
        smallest, largest, nulls = {}, {}, {}
        for name in ("offset", "timestamp", "partition"):
            if name not in rows.column_names:
                continue
            bounds = compute.min_max(rows[name])
            least, most = bounds["min"], bounds["max"]
            nulls[name] = rows[name].null_count
            if not least.is_valid:
                continue
            if name == "timestamp":
                try:
                    low, high = least.as_py(), most.as_py()
                except (OverflowError, ValueError):     # in no calendar
                    continue
                if low < _YEAR_1 or high >= _YEAR_10000:
                    continue
                smallest[name] = _moment(low)
                largest[name] = _moment(high + dt.timedelta(microseconds=-high.microsecond % 1000))
            else:
                smallest[name], largest[name] = least.as_py(), most.as_py()
        return {"numRecords": rows.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}

    def _sync_log(self) -> None:
        log = self.path / _LOG
        self._fs.sync_file(log / f"{self._table.version():020d}.json")
        self._fs.sync_directory(log)
        self._fs.sync_directory(self.path)

    @contextmanager
    def _refusals(self, doing: str) -> Iterator[None]:
        """Errors of deltalake as ours."""
        errors = library("deltalake.exceptions")
        try:
            yield
        except errors.CommitFailedError as error:
            raise LogLockedError(
                f"another run has written to this table meanwhile: {error}", file=self.path, hint="run it again"
            ) from error
        except (errors.DeltaError, OSError) as error:
            raise StorageError(f"cannot {doing} the Delta table: {error}", file=self.path) from error


def _app_id(place: Partition) -> str:
    return f"seglog:{place[0]}-{place[1]}"


def _moment(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"
