"""Offsets in the middle of a log that no segment holds: files are missing, unless a compaction left the gap.

A broker begins each segment where the one before it ends. Only compaction takes the last records of a segment away, or
all of them. A gap is therefore no damage where the topic is compacted, and records are lost everywhere else. A
partition directory does not say which topic is compacted, so we look for traces:

    cleanup.policy              in the given configuration, or among the settings that seglog keeps with the log
    cleaner-offset-checkpoint   names the partition: the cleaner was here
    a topic of the broker       __consumer_offsets and its like are always compacted
    a gap inside a segment      a batch with fewer records than offsets, or that does not follow the batch before it
"""
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from seglog._kernels.batch_survey import first_hole, tally
from seglog._kernels.segment_scan import BatchTable
from seglog.config import LogConfig
from seglog.errors import (
    CorruptRecordError,
    CorruptSettingsError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.reading.extent import OFFSET_LIMIT, Extent
from seglog.segment.batches import UNREADABLE
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.state.checkpoints import offsets_or_none
from seglog.state.kept_settings import read_settings

_POLICY = "cleanup.policy"


def is_told_compacted(directory: Path, config: LogConfig) -> bool:
    """Whether something beside the records says that the log in this partition directory is compacted."""
    where = names.parse_partition_dir(directory.name)
    if config.is_compacted or (where is not None and where.topic in names.BROKER_TOPICS):
        return True
    try:
        if is_compaction(read_settings(directory)):
            return True
    except (CorruptSettingsError, UnsupportedVersionError, StorageError):
        pass        # verify reports it
    try:
        cleaned = offsets_or_none(directory.parent / names.CLEANER_CHECKPOINT)
    except StorageError:
        return False
    return cleaned is not None and where is not None and (where.topic, where.partition) in cleaned


def is_compaction(settings: Mapping[str, str]) -> bool:
    """Whether the settings kept with a log make it a compacted one."""
    return "compact" in settings.get(_POLICY, "")


class GapFinder:
    """Finds the gaps of a log as it is in `extent`. Looks for traces of a compaction only if there is one."""

    def __init__(self, directory: Path, config: LogConfig, extent: Extent) -> None:
        self._directory, self._config, self._extent = directory, config, extent
        self._is_compacted: bool | None = None

    def gaps(self, start: int, stop: int | None = None) -> Iterator[LostRange]:
        """All gaps within [start, stop), in order."""
        for before, after in pairwise(self._extent.segments_from(start)):
            if stop is not None and before.base_offset >= stop:
                return
            gap = self.between(before, after, start, stop)
            if gap is not None:
                yield gap

    def between(self, before: Segment, after: Segment, start: int, stop: int | None = None) -> LostRange | None:
        """The offsets within [start, stop) between two segments that follow each other; None if there are none, if a
        compaction left the gap, or if the end of `before` is damaged: readers report that.
        """
        try:
            end = before.next_offset
        except (CorruptRecordError, OffsetOutOfRangeError, StorageError):
            return None
        first = max(end, start, self._extent.log_start_offset)
        last = min(after.base_offset, OFFSET_LIMIT if stop is None else stop) - 1
        if first > last or self.is_compacted:
            return None
        return missing_segments(str(after.path), first, last)

    @property
    def is_compacted(self) -> bool:
        if self._is_compacted is None:
            self._is_compacted = is_told_compacted(self._directory, self._config) or any(
                has_hole(segment, self._extent.log_start_offset) for segment in self._extent.segments
            )
        return self._is_compacted


def missing_segments(after: str, first: int, last: int) -> LostRange:
    """The range that is missing before the segment with the path `after`: no bytes are left of it."""
    return LostRange(
        after, 0, 0, first, last,
        f"no segment holds offsets {first} to {last}: files before this one are missing or were cut short",
    )


def has_hole(segment: Segment, log_start_offset: int, begin: int = 0) -> bool:
    """Whether compaction has removed a record of the segment, from position `begin` on. Wrappers are opened: their
    headers hide it."""
    next_offset, position = -1 if begin else max(segment.base_offset, log_start_offset), begin
    try:
        for table in segment.tables(begin, check_crc=False, on_lost=lambda _: None):
            # (Behind damage, a gap is not the cleaner's.)
            expected = next_offset if table[0].position == position else -1
            if first_hole(table, expected) >= 0 or _has_hole_in_wrapper(table, expected):
                return True
            next_offset, position = table[-1].last_offset + 1, table.end
    except (OffsetOutOfRangeError, StorageError):
        pass
    return False


def _has_hole_in_wrapper(table: BatchTable, next_offset: int) -> bool:
    if not any(magic in (0, 1) and codec for magic, codec in tally(table)):
        return False
    for batch in table:
        if batch.magic in (0, 1) and batch.codec:
            try:
                offsets = [record.offset for record in batch]
            except UNREADABLE:
                next_offset = -1
                continue
            if offsets and (0 <= next_offset < offsets[0] or offsets[-1] - offsets[0] >= len(offsets)):
                return True
        next_offset = batch.last_offset + 1
    return False


def missing_offsets(gaps: Iterable[LostRange]) -> int:
    """How many offsets these gaps have."""
    return sum(gap.last_offset - gap.first_offset + 1 for gap in gaps)
