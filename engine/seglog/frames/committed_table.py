"""A table with commits of its own: each adds rows, and says in the same step up to which offsets the table has them.

So a run that was killed leaves nothing to complete: the next one continues where the last commit ends. Subclasses know
the format of the table.
"""
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from seglog.frames.lake_types import LakeTypes
from seglog.frames.libraries import library
from seglog.frames.row_losses import RowLosses
from seglog.frames.rows import RowScan, parts_in
from seglog.frames.table_parts import (
    Partition,
    Place,
    WrittenRange,
    check_end,
    checked_file_bytes,
    checked_partition_by,
    distinct_places,
)
from seglog.fs.files import FileSystem, checked_fs

_DEFAULT_PARTITION_BY = ("topic", "partition")


@dataclass(slots=True)
class CommitPiece:
    """Rows of one partition, for one commit."""

    place: Partition
    start_offset: int
    stop_offset: int = 0
    missing_offsets: int = 0
    tables: list[Any] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


class CommittedTable(ABC):
    """Adds records to one table. `types`: what it can store. `commit_bytes`: how much is written at once by default, so
    that a run takes less than 256 MiB: writing takes four to ten times as much memory."""

    types: LakeTypes
    commit_bytes: int

    def __init__(
        self, partition_by: Sequence[str] | None, *, file_bytes: int | None, compression: str | None,
        fs: FileSystem | None,
    ) -> None:
        self._pyarrow = library("pyarrow")
        # None: as the table is partitioned; a new table, by topic and partition.
        self._chosen = checked_partition_by(partition_by)
        self._commit_bytes = self.commit_bytes if file_bytes is None else checked_file_bytes(file_bytes)
        self._compression = compression
        self._fs = checked_fs(fs)
        self._table: Any = None

    @property
    def _chosen_or_default(self) -> tuple[str, ...]:
        return _DEFAULT_PARTITION_BY if self._chosen is None else self._chosen

    def add(self, scan: RowScan) -> Iterator[WrittenRange]:
        """Write the scan's records that the table does not have yet. Yields each range once it is committed."""
        places = distinct_places(scan)
        schema = self.types.schema(self._pyarrow.schema(scan))
        with self._opened(schema):
            yield from self._add(scan, places, schema)

    def _add(self, scan: RowScan, places: Sequence[Place], schema: Any) -> Iterator[WrittenRange]:
        pyarrow = self._pyarrow
        pieces: list[CommitPiece] = []
        size = 0
        for place in places:
            where = place.topic, place.partition
            start = self._end(where)
            if start:
                check_end(place, start, self)
            losses = RowLosses(parts_in(scan, place, start), scan)
            piece = None
            for rows in losses.batches():
                table = pyarrow.Table.from_batches([pyarrow.record_batch(rows)]).cast(schema, safe=False)
                if piece is None:
                    piece = CommitPiece(where, rows.first_offset)
                    pieces.append(piece)
                piece.tables.append(table)
                piece.stop_offset = rows.last_offset + 1
                size += table.nbytes
                if size >= self._commit_bytes:
                    piece.missing_offsets = losses.before(piece.stop_offset)
                    yield from self._committed(pieces)
                    pieces, piece, size = [], None, 0
            if piece is not None:
                piece.missing_offsets = losses.before(piece.stop_offset)
        if pieces:
            yield from self._committed(pieces)

    def _committed(self, pieces: Sequence[CommitPiece]) -> Iterator[WrittenRange]:
        self._commit(pieces)
        written = [
            WrittenRange(*piece.place, piece.start_offset, piece.stop_offset, piece.rows, (), piece.missing_offsets)
            for piece in pieces
        ]
        for piece in pieces:
            piece.tables.clear()
        self._pyarrow.default_memory_pool().release_unused()
        yield from written

    @abstractmethod
    def __str__(self) -> str:
        """What messages call it."""

    @abstractmethod
    def _opened(self, schema: Any) -> AbstractContextManager[None]:
        """Make the table if there is none, and add the columns that it lacks; nobody else writes to it meanwhile.

        Raises InvalidArgumentError if it has other types or directories, LogLockedError, StorageError.
        """

    @abstractmethod
    def _end(self, place: Partition) -> int:
        """The offset up to which the table has a partition; 0 if it has nothing of it."""

    @abstractmethod
    def _commit(self, pieces: Sequence[CommitPiece]) -> None:
        """Add these rows. Raises LogLockedError if another run has added some meanwhile, StorageError."""
