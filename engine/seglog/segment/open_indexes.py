"""The index files of a segment to be continued: where they end, and whether they are what the rule makes of the log.

Only the ends are checked, so that opening a log costs the same however long it is: from the batch of the last offset
entry on, the headers are read to the end of the log, and the entries that they make must match the files. A broker that
restarted its count when it opened the log, or decided once for each append (before 3.9.1), is noticed if the ends
differ: then the files are rebuilt from the whole log. Earlier entries may differ and are valid all the same.
"""
import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptIndexError, CorruptRecordError, StorageError
from seglog.format import names
from seglog.format.compression import Decompress, decompressor
from seglog.format.dialect import dialect_of
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping, read_small
from seglog.named_tuple import NamedTuple
from seglog.segment.batches import SCAN_BATCHES
from seglog.segment.index_file import MINUTE_MS
from seglog.segment.indexes import index_bytes_of

_SMALL_BYTES = 4096
_TIME_ENTRY = struct.Struct(">qi")
_TAGGED_TIME = struct.Struct(">4xq4x")


class OpenIndexes(NamedTuple):
    """What an appender continues with."""

    builder: IndexBuilder
    next_offset: int            # one past the last batch; the base offset if there is none
    closing_entry: bytes        # after the builder's entries in the time index; empty if there is none


def open_indexes(
    fs: FileSystem, path: Path, base_offset: int, config: LogConfig, window: Window
) -> OpenIndexes:
    """Return the indexes of the .log at `path`, all of whose bytes are in `window`; wrong ones are rebuilt.

    Raises CorruptRecordError if the log does not consist of complete batches, InvalidArgumentError if its indexes would
    exceed segment.index.bytes.
    """
    resumed = _resumed_tagged if dialect_of(path).is_tagged else _resumed
    try:
        return resumed(path, base_offset, config, window)
    except (CorruptIndexError, FileNotFoundError):
        _rebuild(fs, path, base_offset, config, window)
        return resumed(path, base_offset, config, window)


def _rebuild(fs: FileSystem, path: Path, base_offset: int, config: LogConfig, window: Window) -> None:
    dialect = dialect_of(path)
    right = index_bytes_of(_tables(window, 0, path, _decompress(config)), base_offset, config, dialect=dialect)
    stem = dialect.stem(path)
    for suffix, raw in right.files(config, dialect):
        index = stem + suffix
        if not os.path.exists(index) or read_small(index, len(raw)) != raw:
            write_atomically(fs, index, raw)


def _decompress(config: LogConfig) -> Decompress:
    return decompressor(config.max_decompressed_message_bytes)


def _tables(
    window: Window, position: int, path: Path, decompress: Decompress | None = None
) -> Iterator[BatchTable]:
    """Yield the headers from `position` to the end of the log. Raises CorruptRecordError for anything else."""
    while position < len(window):
        table = scan(window, position, max_batches=SCAN_BATCHES, decompress=decompress)
        if table.stop not in (Status.OK, Status.LIMIT):
            raise CorruptRecordError(words(table.stop), file=path, position=table.end)
        yield table
        position = table.end


def _resumed(path: Path, base_offset: int, config: LogConfig, window: Window) -> OpenIndexes:
    """Read the ends. Raises FileNotFoundError or CorruptIndexError if the files are not what the log makes."""
    dialect = dialect_of(path)
    stem = dialect.stem(path)
    offsets = _Entries(stem + dialect.offset_index, struct.Struct(dialect.offset_entry))
    times = _Entries(stem + dialect.time_index, _TIME_ENTRY)
    relative_offset, position = offsets.last if offsets.count else (-1, 0)
    if offsets.count and not 0 < position < len(window):
        raise offsets.wrong(f"points to position {position} of {len(window)}")
    # A time entry is made together with an offset entry and names no later batch; one that does came at the close.
    closing = times.last if times.count and times.last[1] > relative_offset else None
    if closing is not None:
        times.count -= 1
    timestamp, relative_of_timestamp = times.last if times.count else (-1, -1)
    if relative_of_timestamp > relative_offset or times.count > offsets.count:
        raise times.wrong("and others before it match no entry of the offset index")
    if times.count and times.last == (0, 0) and next(_tables(window, 0, path))[0].max_timestamp != 0:
        raise times.wrong("is zeros that were never overwritten")
    builder = dialect.index_builder(base_offset, config)
    minutes = _minute_entries(stem, times) if config.time_index_minute_enabled else 0
    builder.resume(
        offsets.count, (base_offset + relative_offset, position),
        times.count, (timestamp, base_offset + relative_of_timestamp if times.count else -1),
        minutes, timestamp,
    )
    next_offset = _added(builder, offsets, window, path, _decompress(config))
    if not times.count and offsets.count and next(_tables(window, 0, path))[0].max_timestamp >= 0:
        raise times.wrong("is missing")
    expected = closing_entry(builder, timestamp)
    if closing is not None and _TIME_ENTRY.pack(*closing) != expected:
        raise times.wrong("does not name the largest timestamp")
    return OpenIndexes(builder, next_offset, b"" if closing is None else expected)


def _added(
    builder: IndexBuilder, offsets: "_Entries", window: Window, path: Path, decompress: Decompress
) -> int:
    """Pass the batches from the last entry of `offsets` on to the builder, which continues there; return the next
    offset.

    Raises CorruptIndexError if that entry is not the last one that the log makes.
    """
    base_offset = next_offset = builder.base_offset
    relative_offset, position = offsets.last if offsets.count else (-1, 0)
    try:
        for table in _tables(window, position, path, decompress):
            next_offset = table[-1].last_offset + 1
            first = table[0]
            if first.position == position and offsets.count and first.last_offset != base_offset + relative_offset:
                raise offsets.wrong(f"points to a batch that ends with offset {first.last_offset}")
            builder.add(table, 0, len(table), first.position)
    except CorruptRecordError as error:
        raise offsets.wrong("does not point to a batch") from error
    if builder.offset_entries != offsets.count:
        raise offsets.wrong("is not the last one that the log makes")
    return next_offset


def _resumed_tagged(path: Path, base_offset: int, config: LogConfig, window: Window) -> OpenIndexes:
    """The same if one index has offsets and times; it has no closing entry.

    The timestamp of the last entry is trusted if it is neither below that of the entry before nor below its batch's.
    """
    dialect = dialect_of(path)
    offsets = _Entries(dialect.stem(path) + dialect.offset_index, struct.Struct(dialect.offset_entry))
    relative_offset, position = offsets.last if offsets.count else (-1, 0)
    if offsets.count and not 0 < position < len(window):
        raise offsets.wrong(f"points to position {position} of {len(window)}")
    timestamp = offsets.field(offsets.count - 1, _TAGGED_TIME) if offsets.count else -1
    if offsets.count:
        table = scan(window, position, max_batches=1)
        before = offsets.field(offsets.count - 2, _TAGGED_TIME) if offsets.count > 1 else -1
        if len(table) != 1 or timestamp < max(before, table[0].max_timestamp):
            raise offsets.wrong("does not have the largest timestamp up to it")
    builder = dialect.index_builder(base_offset, config)
    builder.resume(
        offsets.count, (base_offset + relative_offset, position), offsets.count,
        (timestamp, base_offset + relative_offset if offsets.count else -1), 0, -1,
    )
    return OpenIndexes(builder, _added(builder, offsets, window, path, _decompress(config)), b"")


def closing_entry(builder: IndexBuilder, last_timestamp: int) -> bytes:
    """Make the closing entry for a time index that ends with `last_timestamp`; empty if no timestamp is later."""
    if builder.max_timestamp <= last_timestamp:
        return b""
    return _TIME_ENTRY.pack(builder.max_timestamp, builder.offset_of_max_timestamp - builder.base_offset)


def _minute_entries(stem: str, times: "_Entries") -> int:
    """Count the minute index's entries, if it reaches as far as the time index, of which it is a subset."""
    minutes = _Entries(stem + names.MINUTE_INDEX_SUFFIX, _TIME_ENTRY)
    if minutes.count and times.count:
        minute = minutes.last[0] // MINUTE_MS
        slot = times.first_slot_at(minute * MINUTE_MS)
        if slot < times.count and times[slot] == minutes.last and times.last[0] // MINUTE_MS == minute:
            return minutes.count
    elif minutes.count == times.count:
        return 0
    raise minutes.wrong("does not match the time index's last minute")


class _Entries:
    """The entries of one index file, the first `count` of them."""

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._path = path
        self._entry = entry
        try:
            small = read_small(path, _SMALL_BYTES)      # a map costs two more system calls and a page fault
            self._bytes = memoryview(Mapping(path) if small is None else small)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(path) from error
            if error.errno == errno.EFBIG:
                raise CorruptIndexError(error.what, file=path) from error
            raise
        self.count, rest = divmod(len(self._bytes), entry.size)
        if rest:
            raise self.wrong(f"is followed by {rest} bytes, which are not an entry")

    def __getitem__(self, slot: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(self._bytes, slot * self._entry.size)
        return first, second

    def field(self, slot: int, field: struct.Struct) -> int:
        """Return another field of an entry."""
        found: int = field.unpack_from(self._bytes, slot * self._entry.size)[0]
        return found

    @property
    def last(self) -> tuple[int, int]:
        return self[self.count - 1]

    def first_slot_at(self, key: int) -> int:
        """Return the first slot whose key is at or above `key`."""
        return bisect_left(range(self.count), key, key=lambda slot: self[slot][0])

    def wrong(self, how: str) -> CorruptIndexError:
        return CorruptIndexError(
            f"the last entry {how}", file=self._path, position=max(self.count - 1, 0) * self._entry.size
        )
