"""The index files of a segment as a function of its log (Kafka's LogSegment.recover)."""
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.time_ranges import TimeRangesBuilder
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.format.dialect import KAFKA, Dialect, dialect_of
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from seglog.segment.segment import Segment

# Measured at 10^7 records (benches/README.md): with smaller runs, lookups by time are no quicker. With runs of 256 KiB,
# as column statistics have them, a lookup takes almost four times the CPU (22 us instead of 6).
TIME_RANGES_RUN_BYTES = 64 << 10


class IndexBytes(NamedTuple):
    """The contents of .index, .timeindex and .time.index. Includes the minute index even if it is not configured.

    In the tagged dialect the .tindex is the offset index, and the others are empty.
    """

    offset_index: bytes
    time_index: bytes
    minute_index: bytes

    def files(self, config: LogConfig, dialect: Dialect = KAFKA) -> list[tuple[str, bytes]]:
        """Return (suffix, bytes) of each index file that a segment has with this configuration."""
        files = dialect.index_files(
            self.offset_index, self.time_index, self.minute_index if config.time_index_minute_enabled else None
        )
        return [(suffix, raw) for suffix, raw in files.items() if raw is not None]


def index_bytes(
    segment: "Segment", config: LogConfig, *, progress: Callable[[int], None] | None = None
) -> IndexBytes:
    """Build the correct indexes of a closed segment, including the closing time entry.

    `progress` is called with the position reached. Raises CorruptRecordError if the log is damaged,
    InvalidArgumentError if the entries would exceed segment.index.bytes: a broker refuses such a file.
    """
    dialect = dialect_of(segment.path)
    return index_bytes_of(segment.tables(), segment.base_offset, config, dialect=dialect, progress=progress)


def index_bytes_of(
    tables: Iterable[BatchTable],
    base_offset: int,
    config: LogConfig,
    *,
    dialect: Dialect = KAFKA,
    progress: Callable[[int], None] | None = None,
) -> IndexBytes:
    """Build them from all the batches of a segment, in file order, each with its position in the file."""
    builder = dialect.index_builder(base_offset, config)
    taken = []
    for table in tables:
        if len(table):
            builder.add(table, 0, len(table), table[0].position)
            taken.append(take_entries(builder))
        if progress is not None:
            progress(table.end)
    builder.finish()
    taken.append(take_entries(builder))
    return IndexBytes(*map(b"".join, zip(*taken, strict=True)))


def take_entries(builder: IndexBuilder) -> IndexBytes:
    """Take what the builder made since its entries were last taken."""
    return IndexBytes(builder.take_offset_entries(), builder.take_time_entries(), builder.take_minute_entries())


def time_ranges_bytes(
    segment: "Segment", *, run_bytes: int = TIME_RANGES_RUN_BYTES, progress: Callable[[int], None] | None = None
) -> bytes:
    """Return the file's bytes for a segment that does not grow. Checks every batch and decompresses compressed ones.

    `progress` is called with the position reached. Raises CorruptRecordError if the log is damaged or ends with part of
    a batch, and what reading a batch raises.
    """
    builder = TimeRangesBuilder(segment.base_offset, run_bytes)
    end = 0
    for table in segment.tables():
        builder.add(table, segment.decompress)
        end = table.end
        if progress is not None:
            progress(end)
    if end != segment.size_bytes:
        raise CorruptRecordError(
            "the log ends with part of a batch", file=segment.path, position=end,
            hint="`seglog recover --mode quarantine --apply` removes it; time ranges can be built only from an intact "
            "log",
        )
    return builder.finish()
