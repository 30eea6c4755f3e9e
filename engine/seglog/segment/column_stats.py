"""The column statistics of a segment: for each run of bytes the smallest and largest timestamp and key, its offsets
(docs/formats/column_stats.md).

    .stats.index   ColumnStats   if `seglog index stats` was run

A query over a log as a table skips the runs that cannot contain matching records (`spans`), as Parquet's readers skip
row groups. Statistics are trusted only for the log that they were made from: its size and its last batch must match
those in the file. If the log was truncated, compacted, appended to or replaced, the file is ignored
(`column_stats_of`), as is a damaged one, or one of a newer version: then more is read, and the result is the same.
"""
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import lt
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.columns import ArenaPool, decode
from seglog._kernels.crc import crc32c
from seglog._kernels.mapping import file_part
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, CorruptRecordError, SeglogError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.dialect import beside
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeSpan

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A run is the unit that a query skips or reads. Smaller runs would skip more but cost more to check.
RUN_BYTES = 256 << 10
VERSION = 1
_MAGIC = 0x53474353     # "SGCS"
# magic, version, checksum; run bytes, runs, last checksum, base offset, next offset, log bytes, last position, reserved
_HEADER = struct.Struct(">IiI iiIqqqqq")
_CRC_FROM = 12
KEY_BYTES = 24          # of a key: longer ones are cut, shorter ones padded with zeros
_RUN = struct.Struct(f">qqqqii{KEY_BYTES}s{KEY_BYTES}s")
_NO_TIME = (2**63 - 1, -(2**63))
_OFFSET_MAX = 2**63 - 1
_DECOMPRESS = decompressor()
_POOL = ArenaPool(RUN_BYTES, 4 << 20)


class RunStats(NamedTuple):
    """Statistics of the batches from `position` up to the next run. A record without a timestamp counts as -1.

    `smallest_key`, `largest_key`: cut to KEY_BYTES or padded with zeros, which keeps their order; zeros if no record
    has a key. Control records are ignored.
    """

    position: int
    first_offset: int
    smallest: int
    largest: int
    records: int
    null_keys: int
    smallest_key: bytes
    largest_key: bytes


class ColumnStats:
    """The statistics in a file. Raises CorruptIndexError, and UnsupportedVersionError for a file of a newer seglog."""

    def __init__(self, raw: bytes, path: Path) -> None:
        if len(raw) < _HEADER.size:
            raise CorruptIndexError(f"{len(raw)} bytes are less than the header of {_HEADER.size}", file=path)
        (
            magic, version, checksum, self.run_bytes, runs, self.last_checksum, self.base_offset, self.next_offset,
            self.log_bytes, self.last_position, _,
        ) = _HEADER.unpack_from(raw)
        if magic != _MAGIC:
            raise CorruptIndexError(f"begins with {magic:08x}, expected {_MAGIC:08x}", file=path, position=0)
        if version != VERSION:
            raise UnsupportedVersionError(
                f"column statistics of version {version}; this seglog reads {VERSION}", file=path, position=4
            )
        if crc32c(raw[_CRC_FROM:]) != checksum:
            raise CorruptIndexError("wrong checksum", file=path, position=8)
        if runs < 0 or self.run_bytes < 1 or len(raw) != _HEADER.size + runs * _RUN.size:
            raise CorruptIndexError(f"{len(raw)} bytes do not match {runs} runs", file=path, position=16)
        # In columns: a query checks the statistics of each segment, with a few steps for all its runs.
        self._columns = tuple(zip(*_RUN.iter_unpack(raw[_HEADER.size :]), strict=True)) or ((),) * len(RunStats._fields)
        positions, offsets = self._columns[:2]
        places = (0, positions, self.log_bytes), (self.base_offset, offsets, self.next_offset)
        if runs and not all(_all_rise(*place) for place in places):
            slot = next(slot for slot in range(runs) if not all(
                (numbers[slot - 1] < numbers[slot] if slot else numbers[0] == first) and numbers[slot] < below
                for first, numbers, below in places
            ))
            raise CorruptIndexError(
                f"run {slot} cannot begin at byte {positions[slot]} with offset {offsets[slot]}", file=path,
                position=_HEADER.size + slot * _RUN.size,
            )

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def runs(self) -> list[RunStats]:
        return list(map(RunStats._make, zip(*self._columns, strict=True)))

    def describes(self, window: Window, base_offset: int) -> bool:
        """Whether the file was made from this log. `window`: all bytes of the log."""
        return self.is_of(base_offset, len(window), lambda position, _: memoryview(window)[position:])

    def is_of(self, base_offset: int, log_bytes: int, part: "Callable[[int, int], Buffer]") -> bool:
        """The same for a log of `log_bytes`; `part(position, size)` returns some of them."""
        if self.base_offset != base_offset or self.log_bytes != log_bytes:
            return False
        if not len(self):
            return not log_bytes
        if not 0 <= self.last_position < log_bytes:
            return False
        size = log_bytes - self.last_position
        try:
            table = scan(Window(part(self.last_position, size)), max_batches=1, decompress=_DECOMPRESS)
        except SeglogError:
            return False
        if len(table) != 1 or table.end != size:
            return False
        return (table[0].last_offset + 1, table[0].crc) == (self.next_offset, self.last_checksum)

    def spans(
        self, smallest: int, largest: int, *, smallest_key: bytes | None = None, largest_key: bytes | None = None,
        start_offset: int = 0, stop_offset: int = _OFFSET_MAX,
    ) -> Iterator[TimeSpan]:
        """Return where matching records may be: with a time in [smallest, largest], a key in [smallest_key,
        largest_key] and an offset in [start_offset, stop_offset). None are elsewhere. Consecutive runs form one span.

        A key bound of None means unbounded; without both, records without a key match, too.
        """
        if not len(self):
            return
        low = None if smallest_key is None else padded(smallest_key)
        high = None if largest_key is None else padded(largest_key)
        positions, offsets, smallest_times, largest_times, records, nulls, smallest_keys, largest_keys = self._columns
        if (low is not None and max(largest_keys) < low) or (high is not None and min(smallest_keys) > high):
            return
        has_keys = low is not None or high is not None
        begun = -1
        for slot, end_offset in enumerate((*offsets[1:], self.next_offset)):
            is_wanted = (
                (low is None or largest_keys[slot] >= low) and (high is None or smallest_keys[slot] <= high)
                and largest_times[slot] >= smallest and smallest_times[slot] <= largest
                and offsets[slot] < stop_offset and end_offset > start_offset
                and (not has_keys or records[slot] > nulls[slot])
            )
            if is_wanted and begun < 0:
                begun = slot
            elif not is_wanted and begun >= 0:
                yield TimeSpan(offsets[begun], offsets[slot], positions[begun], positions[slot])
                begun = -1
        if begun >= 0:
            yield TimeSpan(offsets[begun], self.next_offset, positions[begun], self.log_bytes)


def _all_rise(first: int, numbers: Sequence[int], below: int) -> bool:
    """Whether the numbers rise strictly, begin with `first`, and end below `below`."""
    return numbers[0] == first and all(map(lt, numbers, (*numbers[1:], below)))


def padded(key: bytes) -> bytes:
    """Cut or pad a key as in the statistics. Two keys keep their order, or become equal."""
    return key[:KEY_BYTES].ljust(KEY_BYTES, b"\0")


def column_stats_path(log: Path) -> Path:
    """Return the path for a .log file. (A .tlog has none.)"""
    return beside(log, names.COLUMN_STATS_SUFFIX)


def read_column_stats(log: Path) -> ColumnStats:
    """Read the file beside the .log at `log`, without checking whether it was made from this log.

    Raises FileNotFoundError, StorageError, CorruptIndexError and UnsupportedVersionError.
    """
    path = column_stats_path(log)
    return ColumnStats(read_file(path), path)


def column_stats_of(log: Path) -> ColumnStats | None:
    """Return the statistics made from this log; None if there are none. Does not map the log."""
    try:
        stats = read_column_stats(log)
        size_bytes = log.stat().st_size
        is_ours = stats.is_of(
            names.parse_base_offset(log.name), size_bytes, lambda position, size: file_part(log, position, size)
        )
    except (OSError, StorageError, CorruptIndexError, UnsupportedVersionError):
        return None
    return stats if is_ours else None


class ColumnStatsBuilder:
    """Builds statistics: `add` the batches of a segment in order, then `finish`. A run ends when it is full."""

    def __init__(self, base_offset: int, run_bytes: int = RUN_BYTES) -> None:
        self._base_offset = self._next_offset = base_offset
        self._run_bytes = run_bytes
        self._runs: list[bytes] = []
        self._end = self._last_position = self._last_checksum = 0
        self._begin()

    def add(self, table: BatchTable) -> None:
        """Add the next batches, whose checksums have been checked. Raises what reading their records raises."""
        first, size_bytes = 0, self._end - self._position
        for slot, batch in enumerate(table):
            size_bytes += batch.size_bytes
            if size_bytes >= self._run_bytes:
                self._take(table, first, slot + 1)
                self._end_run()
                first, size_bytes = slot + 1, 0
        self._take(table, first, len(table))

    def finish(self) -> bytes:
        """Return the bytes of the file."""
        if self._end > self._position:
            self._end_run()
        body = b"".join(self._runs)
        header = _HEADER.pack(
            _MAGIC, VERSION, 0, self._run_bytes, len(self._runs), self._last_checksum, self._base_offset,
            self._next_offset, self._end, self._last_position, 0,
        )
        checksum = crc32c(header[_CRC_FROM:] + body)
        return header[:8] + struct.pack(">I", checksum) + header[_CRC_FROM:] + body

    def _begin(self) -> None:
        self._position, self._first_offset = self._end, self._next_offset
        self._smallest, self._largest = _NO_TIME
        self._records = self._null_keys = 0
        self._smallest_key: bytes | None = None
        self._largest_key: bytes | None = None

    def _take(self, table: BatchTable, first: int, stop: int) -> None:
        if first == stop:
            return
        columns = decode(table, first, stop, _POOL, check_crc=False, include_control=False)
        if len(columns):
            times, column = columns.timestamp, columns.key
            self._smallest = min(self._smallest, min(times))
            self._largest = max(self._largest, max(times))
            self._records += len(columns)
            self._null_keys += column.null_count
            keys = [key for row in range(len(column)) if (key := column[row]) is not None]
            if keys:
                low, high = min(keys), max(keys)
                self._smallest_key = low if self._smallest_key is None else min(self._smallest_key, low)
                self._largest_key = high if self._largest_key is None else max(self._largest_key, high)
        last = table[stop - 1]
        self._end = last.position + last.size_bytes
        self._next_offset = last.last_offset + 1
        self._last_position, self._last_checksum = last.position, last.crc

    def _end_run(self) -> None:
        self._runs.append(_RUN.pack(
            self._position, self._first_offset, self._smallest, self._largest, self._records, self._null_keys,
            padded(self._smallest_key or b""), padded(self._largest_key or b""),
        ))
        self._begin()


def column_stats_bytes(segment: Segment, *, run_bytes: int = RUN_BYTES) -> bytes:
    """Return the file's bytes for a segment that does not grow. Checks every batch and decompresses compressed ones.

    Raises CorruptRecordError if the log is damaged or ends with part of a batch, and what reading a batch raises.
    """
    builder, end = ColumnStatsBuilder(segment.base_offset, run_bytes), 0
    for table in segment.tables():
        builder.add(table)
        end = table.end
    if end != segment.size_bytes:
        raise CorruptRecordError("the log ends with part of a batch", file=segment.path, position=end)
    return builder.finish()
