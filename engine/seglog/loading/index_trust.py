"""What can be trusted of a segment without reading its log: its index files by their sizes, its end by the last entry.

Kafka trusts the index files of a log that was closed cleanly and of segments below the recovery point (KAFKA-7283),
and gives wrong answers if they are wrong. Here, if a size is implausible, the last entry is read, and decides. The cost
does not grow with the log. Readers detect what only reading the log would show: they do not trust an entry that does
not lead to its batch.
"""
import struct

from seglog._kernels.batch_survey import first_disorder
from seglog._kernels.segment_scan import scan
from seglog._kernels.status import Status
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of, dialect_of_config
from seglog.fs.mapping import Mapping, read_part
from seglog.state.leftovers import File, FoundSegment


def indexes_are_sound(files: FoundSegment, config: LogConfig) -> bool:
    """Whether the index files can be used as they are. Otherwise they must be rebuilt from the log.

    They cannot if one is missing, its size is not a multiple of the entry size, it ends in preallocated zeros, leads
    past the end of the log, or is empty although the log needs an entry. If minute indexes are configured, one must
    exist, with a size that is possible beside the time index: Kafka may have rewritten the segment without it.
    """
    index_interval_bytes = config.index_interval_bytes
    found = files.by_suffix
    dialect = dialect_of_config(config)
    log, offset_index, time_index = found[dialect.log], found.get(dialect.offset_index), found.get(dialect.time_index)
    if offset_index is None or time_index is None:
        return False
    offset_entries, rest = divmod(offset_index.size_bytes, dialect.offset_entry_bytes)
    time_entries, rest_of_times = divmod(time_index.size_bytes, dialect.time_entry_bytes)
    if rest or rest_of_times:
        return False
    log_bytes = log.size_bytes
    # Entries are further apart than the interval. (It may have been another one when they were written: then this costs
    # one read.)
    if offset_entries * index_interval_bytes >= log_bytes and offset_entries:
        relative_offset, position = last_entry(offset_index)
        if relative_offset <= 0 or not 0 < position < log_bytes:
            return False
    # At most one with each offset entry, and one from closing the segment.
    if time_entries > offset_entries + 1 and not any(_tail(time_index, dialect.time_entry_bytes)):
        return False
    if config.time_index_minute_enabled and not dialect.has_one_index:
        minute_index = found.get(names.MINUTE_INDEX_SUFFIX)
        if minute_index is None:
            return False
        minute_entries, rest = divmod(minute_index.size_bytes, dialect.time_entry_bytes)
        # Each is also in the time index, and was made with an offset entry, as all time entries but the closing one.
        most = time_entries if offset_entries else 0
        if rest or minute_entries > most or (minute_entries == 0 and most > 1):
            return False
    if log_bytes == 0:
        return offset_entries == time_entries == 0
    return bool(offset_entries and time_entries) or not _wants_entries(
        log, wants_offset=not offset_entries, wants_time=not (time_entries or dialect.has_one_index),
        interval=index_interval_bytes,
    )


def _wants_entries(log: File, *, wants_offset: bool, wants_time: bool, interval: int) -> bool:
    """Whether the first batches of a log need entries that an empty index does not have."""
    if not wants_time and log.size_bytes <= interval:
        return False        # no batch is beyond the interval: the log need not be opened
    with Mapping(log.location) as mapping:
        # Up to the first batch beyond the interval, which gets an entry.
        table = scan(dialect_of(log.name).window(mapping), max_bytes=interval + 1)
        if wants_offset and table.stop == Status.LIMIT and table.end < len(mapping):
            return True
        return wants_time and table.max_timestamp >= 0


def sound_end(files: FoundSegment, config: LogConfig) -> int | None:
    """The next offset of a segment, from the headers after its last index entry; None if the index or the end is wrong.

    Kafka's LogSegment.readNextOffset, which accepts whatever it finds: for a log with a torn tail, too low an offset.
    """
    next_offset, position, entry_offset = files.base_offset, 0, -1
    dialect = dialect_of(files.log.name)
    # The end of a set of tagged messages may be inside it.
    decompress = decompressor(config.max_decompressed_message_bytes) if dialect.is_tagged else None
    offset_index = files.by_suffix[dialect.offset_index]
    if offset_index.size_bytes:
        relative_offset, position = last_entry(offset_index)
        entry_offset = files.base_offset + relative_offset
        if relative_offset <= 0 or not 0 < position < files.log.size_bytes:
            return None
    if not files.log.size_bytes:
        return next_offset
    with Mapping(files.log.location) as mapping:
        window = dialect.window(mapping, files.log.location)
        if position and not _leads_to(window, position, entry_offset):
            return None
        while position < len(window):
            table = scan(window, position, decompress=decompress)
            if table.stop != Status.OK or first_disorder(table, next_offset) >= 0:
                return None
            position, next_offset = table.end, table[-1].last_offset + 1
    return next_offset


def _leads_to(window: Window, position: int, offset: int) -> bool:
    """Whether a batch at `position` matches an index entry with `offset`.

    The offset is the batch's last (Kafka since 2.0, and seglog's), its first (before), or the last of an append of
    several batches (2.8): then the CRC must prove that it is a batch at all.
    """
    table = scan(window, position, max_batches=1)
    if not table:
        return False
    batch = table[0]
    return batch.last_offset == offset or (batch.last_offset - max(batch.last_offset_delta, 0) <= offset
                                           and batch.crc_is_valid())


def last_entry(offset_index: File) -> tuple[int, int]:
    """(relative offset, position) of the last entry of an offset index that has one."""
    dialect = dialect_of(offset_index.name)
    relative_offset, position = struct.unpack(
        dialect.offset_entry, _tail(offset_index, dialect.offset_entry_bytes))
    return relative_offset, position


def _tail(file: File, size_bytes: int) -> bytes:
    return read_part(file.location, file.size_bytes - size_bytes, size_bytes)
