"""An Iceberg table of a topic: `seglog.write_table(topic, dst, format="iceberg")`.

`dst` is a table of any catalog of pyiceberg, or a directory, which is then the table, as in a Hadoop catalog:

    dst/metadata/v3.metadata.json, version-hint.text       the number counts commits; the largest one counts
    dst/data/...                                           as pyiceberg names them

Each commit has the property `seglog.offsets` in its snapshot and in the table: {"<topic>-<partition>": the offset after
the last row} of all partitions. The newest ancestor of the current snapshot that has it says where to go on, so a
rollback of the table takes back the offsets, too. The table's property counts once all snapshots that had it have
expired.
"""
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from seglog.errors import InvalidArgumentError, LogLockedError, MissingLibraryError, StorageError
from seglog.frames.committed_table import CommitPiece, CommittedTable
from seglog.frames.lake_types import LakeTypes, check_fits
from seglog.frames.libraries import library
from seglog.frames.table_parts import Partition, locked, refuse_other_files, times_in_calendar
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals

OFFSETS_KEY = "seglog.offsets"
COMMIT_KEY = "seglog.commit"
_BY_TIME = ("year", "month", "day", "hour")
_METADATA = re.compile(r"v(\d{1,9})\.metadata\.json")
_HINT = "version-hint.text"


class IcebergTable(CommittedTable):
    """A table of a catalog, or a directory with a table. `target`: a pyiceberg Table, or the directory."""

    types = LakeTypes("an Iceberg table", has_time=True, has_fixed=True)
    commit_bytes = 24 << 20

    def __init__(
        self, target: Any, partition_by: Sequence[str] | None, *, file_bytes: int | None, compression: str | None,
        fs: FileSystem | None = None,
    ) -> None:
        super().__init__(partition_by, file_bytes=file_bytes, compression=compression, fs=fs)
        library("pyiceberg")
        self._target = target
        self._ends: dict[str, int] = {}

    def __str__(self) -> str:
        return str(self._target) if isinstance(self._target, Path) else ".".join(self._target.name())

    # --- opening ---------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, schema: Any) -> Iterator[None]:
        with ExitStack() as stack:
            if isinstance(self._target, Path):
                stack.enter_context(locked(self._fs, self._target))
            with self._refusals("open"):
                if isinstance(self._target, Path):
                    self._table = self._in_directory(schema)
                else:
                    self._table = self._target.refresh()
                self._check_spec()
                self._fit(schema)
                self._ends = ends_of(self._table.metadata, str(self))
            yield

    def _in_directory(self, schema: Any) -> Any:
        assert isinstance(self._target, Path)
        directory = TableDirectory(self._target, self._fs)
        if directory.version():
            directory.correct_hint()
            return directory.load_table()
        refuse_other_files(self._target, "Iceberg", lambda name: name.startswith(".") or name == "metadata")
        return directory.create(schema, self._chosen_or_default, {
            "write.parquet.compression-codec": self._compression or "uncompressed",
        })

    def _check_spec(self) -> None:
        if self._chosen is None:
            return
        table = self._table
        held = {(table.schema().find_column_name(one.source_id), str(one.transform)) for one in table.spec().fields}
        if held != {(source, transform) for source, transform, _ in _transforms(self._chosen)}:
            raise InvalidArgumentError(
                f"the table {self} is partitioned in another way than by {', '.join(self._chosen) or 'nothing'}: "
                f"{', '.join(f'{transform}({source})' for source, transform in sorted(held)) or 'not at all'}",
                hint="leave partition_by out, or choose another table",
            )

    def _fit(self, schema: Any) -> None:
        held = self.types.schema(self._table.schema().as_arrow())
        missing = [name for name in held.names if name not in schema.names]
        required = [name for name in missing if self._table.schema().find_field(name).required]
        if required:
            raise InvalidArgumentError(
                f"the table {self} needs a value for the column {required[0]}, which this run does not write",
                hint="make it optional, or choose another table",
            )
        if not check_fits(str(self), held, schema):
            with self._table.update_schema() as update:
                update.union_by_name(schema)

    # --- adding ----------------------------------------------------------------------------------

    def _end(self, place: Partition) -> int:
        return self._ends.get(f"{place[0]}-{place[1]}", 0)

    def _commit(self, pieces: Sequence[CommitPiece]) -> None:
        rows = self._pyarrow.concat_tables([table for piece in pieces for table in piece.tables])
        if any(str(one.transform) in _BY_TIME for one in self._table.spec().fields):
            # pyiceberg cannot name the day of such a time. A file has only rows of one day, or without one.
            at = rows.schema.get_field_index("timestamp")
            rows = rows.set_column(at, rows.schema.field(at), times_in_calendar(rows["timestamp"]))
        ends = self._ends | {f"{piece.place[0]}-{piece.place[1]}": piece.stop_offset for piece in pieces}
        told, commit = json.dumps(ends), uuid4().hex
        table = self._table
        with self._refusals("commit to"):
            guarded = type(table)(
                table._identifier, table.metadata, table.metadata_location, table.io,
                _GuardedCatalog(table.catalog, str(self), self._ends, commit), table.config,
            )
            with guarded.transaction() as transaction:
                transaction.append(rows, snapshot_properties={OFFSETS_KEY: told, COMMIT_KEY: commit})
                transaction.set_properties({OFFSETS_KEY: told})
            table.refresh()
        self._ends = ends

    @contextmanager
    def _refusals(self, doing: str) -> Iterator[None]:
        """Errors of pyiceberg as ours."""
        errors = library("pyiceberg.exceptions")
        file = self._target if isinstance(self._target, Path) else None
        try:
            yield
        except (errors.CommitFailedException, errors.CommitStateUnknownException) as error:
            raise LogLockedError(
                f"another run has written to the table {self} meanwhile: {error}", file=file, hint="run it again"
            ) from error
        except (ValueError, NotImplementedError) as error:
            raise InvalidArgumentError(f"cannot {doing} the Iceberg table {self}: {error}", file=file) from error
        except errors.NotInstalledError as error:
            raise MissingLibraryError(str(error), hint="pip install 'seglog[iceberg]'") from error
        except Exception as error:
            if not isinstance(error, OSError) and not type(error).__module__.startswith("pyiceberg."):
                raise
            raise StorageError(f"cannot {doing} the Iceberg table {self}: {error}", file=file) from error


def ends_of(metadata: Any, name: str) -> dict[str, int]:
    """{"<topic>-<partition>": offset after the last row}. Raises StorageError."""
    told, snapshot = None, metadata.current_snapshot()
    while snapshot is not None and told is None:
        told = _told(snapshot, OFFSETS_KEY)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    if told is None and not any(_told(one, OFFSETS_KEY) for one in metadata.snapshots):     # they have expired
        told = metadata.properties.get(OFFSETS_KEY)
    try:
        ends = json.loads(told or "{}")
        if not all(type(end) is int and end >= 0 for end in ends.values()):
            raise ValueError(f"{ends!r}")
    except (ValueError, AttributeError) as error:
        raise StorageError(f"the property {OFFSETS_KEY} of the table {name} is damaged: {error}") from error
    return dict(ends)


def _told(snapshot: Any, key: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(key)


class _GuardedCatalog:
    """A catalog for one commit. pyiceberg repeats a commit that came second: not if rows were added meanwhile that
    may be the same."""

    def __init__(self, catalog: Any, name: str, ends: dict[str, int], commit: str) -> None:
        self._catalog, self._name, self._ends, self._commit = catalog, name, ends, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: Any) -> Any:
        table = self._catalog.load_table(identifier)
        is_ours = any(_told(one, COMMIT_KEY) == self._commit for one in table.metadata.snapshots)
        if not is_ours and ends_of(table.metadata, self._name) != self._ends:
            raise library("pyiceberg.exceptions").CommitFailedException("its offsets have changed")
        return table


class TableDirectory:
    """A directory as the only table of a catalog: what pyiceberg's Table asks of its catalog."""

    def __init__(self, path: Path, fs: FileSystem) -> None:
        self._path = path.resolve()
        self._fs = fs
        self._metadata = self._path / "metadata"

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def properties(self) -> dict[str, str]:
        return {}

    def version(self) -> int:
        """How many commits there are; 0: there is no table."""
        if not self._metadata.is_dir():
            return 0
        with refusals("list", self._metadata):
            numbers = [int(found[1]) for name in os.listdir(self._metadata) if (found := _METADATA.fullmatch(name))]
        return max(numbers, default=0)

    def load_table(self, identifier: object = None) -> Any:
        """The table, a pyiceberg Table."""
        version = self.version()
        # Not by pyiceberg's IO, which waits for the writer of a pipe, and takes memory for a file of any size.
        raw = read_file(self._metadata / f"v{version}.metadata.json")
        metadata = library("pyiceberg.serializers").FromByteStream.table_metadata(BytesIO(raw))
        io = library("pyiceberg.io.pyarrow").PyArrowFileIO()
        return library("pyiceberg.table").Table((self._path.name,), metadata, self._location(version), io, self)

    def create(self, schema: Any, partition_by: Sequence[str], properties: dict[str, str]) -> Any:
        """Make the table."""
        converted = library("pyiceberg.catalog").Catalog._convert_schema_if_needed(schema)
        fresh = library("pyiceberg.schema").assign_fresh_schema_ids(converted)
        partitioning = library("pyiceberg.partitioning")
        parse = library("pyiceberg.transforms").parse_transform
        names = fresh.column_names
        transforms = _transforms(partition_by)
        for source, _, _ in transforms:
            if source not in names:
                raise InvalidArgumentError(
                    f"the table must be partitioned by {source}, which is not among the columns", file=self._path,
                    hint=f"add {source!r} to columns, or choose another partition_by",
                )
        spec = partitioning.PartitionSpec(*(
            partitioning.PartitionField(
                source_id=fresh.find_field(source).field_id, field_id=1000 + number, transform=parse(transform),
                name=name,
            ) for number, (source, transform, name) in enumerate(transforms)
        ))
        metadata = library("pyiceberg.table.metadata").new_table_metadata(
            fresh, spec, library("pyiceberg.table.sorting").UNSORTED_SORT_ORDER, f"file://{self._path}", properties
        )
        self._write(1, metadata)
        return self.load_table()

    def commit_table(self, table: Any, requirements: Sequence[Any], updates: Sequence[Any]) -> Any:
        """What pyiceberg calls to commit: all files of a new snapshot are synced first."""
        version = self.version()
        current = self.load_table()
        for requirement in requirements:
            requirement.validate(current.metadata)
        updated = library("pyiceberg.table.update").update_table_metadata(
            current.metadata, tuple(updates), False, current.metadata_location
        )
        self._sync_files(updated.current_snapshot(), current.metadata.current_snapshot(), current.io)
        self._write(version + 1, updated)
        return library("pyiceberg.table").CommitTableResponse(
            metadata=updated, metadata_location=self._location(version + 1)
        )

    def _delete_old_metadata(self, io: Any, base: Any, metadata: Any) -> None:
        library("pyiceberg.catalog").Catalog._delete_old_metadata(io, base, metadata)

    def _location(self, version: int) -> str:
        return f"file://{self._metadata}/v{version}.metadata.json"

    def _sync_files(self, new: Any, old: Any, io: Any) -> None:
        if new is None or (old is not None and new.snapshot_id == old.snapshot_id):
            return
        paths = {new.manifest_list}
        for manifest in new.manifests(io):
            if manifest.added_snapshot_id == new.snapshot_id:
                paths.add(manifest.manifest_path)
                paths.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
        local = [Path(path.removeprefix("file://")) for path in paths]
        directories = set()
        for path in local:
            self._fs.sync_file(path)
            below = path.parent
            while below != self._path and below not in directories:
                directories.add(below)
                below = below.parent
        for directory in sorted(directories, reverse=True):
            self._fs.sync_directory(directory)
        self._fs.sync_directory(self._path)

    def _write(self, version: int, metadata: Any) -> None:
        """Write a version that is not there yet."""
        make_directories(self._fs, self._metadata)
        path = self._metadata / f"v{version}.metadata.json"
        scratch = path.with_name(f".{path.name}{SCRATCH_SUFFIX}")
        write_atomically(self._fs, scratch, metadata.model_dump_json(exclude_none=True).encode())
        try:
            self._fs.link(scratch, path)
        except StorageError as error:
            if not os.path.lexists(path):
                raise
            raise library("pyiceberg.exceptions").CommitFailedException(f"{path} exists") from error
        finally:
            self._fs.unlink(scratch)
        self._fs.sync_directory(self._metadata)
        self.correct_hint()

    def correct_hint(self) -> None:
        """Let version-hint.text name the newest version, by which other readers find it: a killed run may have left an
        older one there."""
        path, version = self._metadata / _HINT, str(self.version()).encode()
        if not path.exists() or read_file(path) != version:
            write_atomically(self._fs, path, version)


def _transforms(partition_by: Sequence[str]) -> list[tuple[str, str, str]]:
    """(column, transform, name of the partition's field) of each. An hour has its day."""
    of = {
        "topic": ("topic", "identity", "topic"), "partition": ("partition", "identity", "partition"),
        "date": ("timestamp", "day", "timestamp_day"), "hour": ("timestamp", "hour", "timestamp_hour"),
    }
    return [of[name] for name in partition_by if name != "date" or "hour" not in partition_by]
