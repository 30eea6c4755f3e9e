"""A fetch as a broker answers it: bytes of one segment from the batch that holds an offset, for a client that knows
record formats up to some version.

    the client knows what is on disk    a FetchSlice: nothing is copied or decoded; the last batch may be incomplete
    it does not                         whole batches up to the first unknown one; if that is first, a ConvertedFetch

Kafka's LocalLog.read and, for older clients, KafkaApis with FileRecords.downConvert. One difference: if a read holds
both, Kafka converts all of it; here the batches that the client knows are sent as they are, and the next fetch
continues after them.

Tagged messages have no version: a fetch that names one gets them converted to it, any other gets them as they are.
"""
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from seglog._kernels.batch_survey import first_above
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, UnsupportedVersionError
from seglog.format.compression import Decompress
from seglog.format.conversion_profile import compressor, version_words
from seglog.named_tuple import NamedTuple
from seglog.reading.extent import Extent
from seglog.reading.fetch_result import Conversion, ConvertedFetch, Fetched, FetchSlice, LogEnds
from seglog.reading.format_counters import FormatCounters
from seglog.segment.open_files import SegmentFiles, replaced
from seglog.segment.segment import Segment
from seglog.state.checked_aborts import checked_aborts

LATEST_FORMAT = 2
# At most this many headers are examined for a client that knows an older format: a table of them takes some MB.
_HEADERS_MAX = 1 << 16
_NO_BYTES = Window(b"")


class FetchSource(Protocol):
    """The log that is fetched from."""

    path: Path
    config: LogConfig
    _decompress: Decompress
    format_counters: FormatCounters

    @property
    def last_stable_offset(self) -> int: ...


class _Range(NamedTuple):
    """Bytes of one segment that a fetch may return."""

    segment: Segment
    files: SegmentFiles
    position: int       # of the first batch
    end: int            # after as many bytes as were asked for, but after at least one batch if min_one


class LogFetch:
    """One fetch of a log as it is at one moment."""

    def __init__(
        self, log: FetchSource, extent: Extent, *, magic: int | None, max_bytes: int, min_one: bool, is_committed: bool
    ) -> None:
        self._log = log
        self._extent = extent
        self._magic = LATEST_FORMAT if magic is None else magic
        self._is_tagged = extent.segments[0].dialect.is_tagged
        # Nothing is converted if no version was named, or the latest one for a log in Kafka's dialect.
        self._knows_all = magic is None or (magic == LATEST_FORMAT and not self._is_tagged)
        self._max_bytes = max_bytes
        self._min_one = min_one
        self._is_committed = is_committed
        self._high_watermark = extent.log_end_offset
        # (For a closed directory this reads the whole log.)
        self._stable = min(log.last_stable_offset, self._high_watermark) if is_committed else -1

    def at(self, offset: int) -> Fetched:
        """The answer to a fetch from `offset`, which must be within the log. Raises what LogReader.fetch raises."""
        asked = offset
        while True:
            found = self._range_at(offset)
            if found is None:
                return FetchSlice(None, _NO_BYTES, asked, 0, 0, self._ends(offset, offset))
            if self._knows_all:
                return self._slice(asked, found, found.end)
            table = scan(
                found.files.window, found.position, found.end, max_batches=_HEADERS_MAX,
                decompress=self._log._decompress,
            )
            if len(table) == 0:
                return self._incomplete(asked, found, table)
            slot = 0 if self._is_tagged else first_above(table, self._magic)
            if slot != 0:
                return self._slice(asked, found, table.end if slot < 0 else table[slot].position)
            converted = self._converted(offset, found.segment, table)
            if not converted.is_empty:
                return converted
            # It holds nothing for this client. Kafka sends it all the same, and the client makes no progress.
            offset = max(converted.next_offset, table[-1].last_offset + 1)

    def _range_at(self, offset: int) -> _Range | None:
        """Where the batch with this offset is, or the next one after it; None if that may not be read yet."""
        stop = self._stable if self._is_committed else self._high_watermark
        for segment in self._extent.segments_from(offset):
            if offset >= stop or segment.base_offset >= stop:
                return None
            files, first = segment.locate(offset)
            if first is None:
                continue
            end = segment.end_position if files.end is None else files.end.position
            if self._is_committed and stop < segment.next_offset:
                undecided = segment.locate(stop)[1]
                end = end if undecided is None else min(end, undecided.position)
            size = max(self._max_bytes, first.size_bytes) if self._min_one else self._max_bytes
            if first.position < end:
                return _Range(segment, files, first.position, min(end, first.position + size))
        return None

    def _slice(self, offset: int, found: _Range, end: int) -> FetchSlice:
        descriptor = found.files.log.descriptor()
        if descriptor is None:      # the segment was truncated or removed since its files were opened
            raise replaced(found.segment.path)
        size_bytes = end - found.position
        self._log.format_counters.fetch_zero_copy_bytes[self._magic].add(size_bytes)
        return FetchSlice(
            descriptor, found.files.window, offset, found.position, size_bytes,
            self._ends(offset, found.segment.end_offset),
        )

    def _incomplete(self, offset: int, found: _Range, table: BatchTable) -> FetchSlice:
        """The bytes that were asked for do not hold one whole batch, or do not begin with a batch."""
        if table.stop not in (Status.SHORT, Status.OK, Status.LIMIT):
            raise CorruptRecordError(
                words(table.stop), file=found.segment.path, position=found.position, offset=offset
            )
        return FetchSlice(None, _NO_BYTES, offset, 0, 0, self._ends(offset, offset))

    def _converted(self, offset: int, segment: Segment, table: BatchTable) -> ConvertedFetch:
        log = self._log
        if not log.config.message_downconversion_enable:
            raise UnsupportedVersionError(
                f"the client knows record formats up to v{self._magic}, the batch has format "
                f"{version_words(table[0].magic)}, and message.downconversion.enable is false",
                file=segment.path, position=table[0].position,
                offset=offset, hint="upgrade the client, or set message.downconversion.enable=true",
            )
        if self._is_committed:
            # Such a client knows no transactions: aborted records are not sent.
            aborted = checked_aborts(self._extent.segments_from(offset), table[-1].last_offset + 1)
            table = aborted.left_out_of(table)
        conversion = Conversion(
            self._magic, self._is_tagged, log._decompress, compressor(log.config, self._magic), log.format_counters
        )
        return ConvertedFetch(table, conversion, offset, self._ends(offset, offset))

    def _ends(self, offset: int, end_offset: int) -> LogEnds:
        aborted: tuple[tuple[int, int], ...] = ()
        if self._is_committed and self._magic == LATEST_FORMAT:
            aborted = tuple(aborted_transactions(self._extent, offset, min(self._stable, end_offset)))
        return LogEnds(self._extent.log_start_offset, self._high_watermark, self._stable, aborted)


def aborted_transactions(extent: Extent, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions that reach into [start, stop), in the order of their
    markers (LocalLog.collectAbortedTransactions)."""
    if start >= stop:
        return
    for transaction in checked_aborts(extent.segments_from(start), stop).between(start, stop):
        yield transaction.producer_id, transaction.first_offset
