"""What the next start of a broker, or an opening with seglog, repairs by itself: such findings are notes.

After kill -9 of a broker, its active segments have preallocated indexes that lack their last entries, and there are
files of deletions in progress. The start after an unclean stop recovers the segments from the recovery point on, and so
rebuilds their indexes from the log (LogLoader.recoverLog, LogSegment.recover). Every start removes `.deleted` and
`.cleaned` files (LogLoader.removeTempFilesAndCollectSwapFiles). No record is affected. But the start after a clean stop
trusts the indexes, and no start rebuilds those of segments before the recovery point. The metadata log of KRaft is
recovered from its beginning by every start (KafkaMetadataLog: lastShutdownClean = false, recoveryPoint = 0).
"""
import enum
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.mapping import read_file
from seglog.fs.partition_locks import names_of
from seglog.state.checkpoints import TopicPartition, parse_offsets_or_none
from seglog.state.clean_marks import TAKEN_MARK
from seglog.state.clean_partitions import CleanPartitions
from seglog.verification.findings import Finding

# Of indexes that are rebuilt from the log.
_REBUILT = frozenset((
    "index_missing", "index_corrupt", "index_misleads", "index_zero_tail", "index_too_large", "index_empty",
    "timeindex_missing", "timeindex_corrupt", "timeindex_empty", "timeindex_misleads", "timeindex_behind",
))
# In the last segment, all that is left of a broker that died; also in a copy that was made while it ran.
_UNFINISHED = frozenset(("index_zero_tail", "timeindex_empty"))
# Files of a log dir that a broker or a seglog writer has used.
_LOG_DIR_FILES = (
    names.CLEAN_SHUTDOWN, TAKEN_MARK, names.META_PROPERTIES, names.RECOVERY_POINT_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)


class Stop(enum.Enum):
    """How the last process that wrote to a partition stopped."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    UNKNOWN = "unknown"         # the directory above it is no log dir: it is a copy


class NextStart:
    """The next start on a partition directory that no process has open. `bases`: of its segments, in order."""

    def __init__(self, directory: Path, bases: Sequence[int]) -> None:
        self._place = next(
            (place for place in names_of(directory) if any((place.parent / file).exists() for file in _LOG_DIR_FILES)),
            None,
        )
        self._bases = bases

    def repairs(self, finding: Finding) -> bool:
        """Whether it repairs what was found."""
        parsed = names.parse_file_name(os.path.basename(finding.file))
        if parsed is None:
            return False
        if finding.code == "leftover":
            # Also after a clean stop: a broker does not wait for file.delete.delay.ms.
            return parsed.state == names.DELETED_SUFFIX or (
                parsed.state == names.CLEANED_SUFFIX and self.stop is Stop.UNCLEAN
            )
        if finding.code == "orphan_index":
            return self.stop is Stop.UNCLEAN
        if finding.code not in _REBUILT or self.stop is Stop.CLEAN or not self._bases:
            return False
        if self.stop is Stop.UNKNOWN:
            return finding.code in _UNFINISHED and parsed.offset == self._bases[-1]
        return parsed.offset >= self._first_recovered

    @cached_property
    def stop(self) -> Stop:
        """How the last process stopped."""
        if self._place is None:
            return Stop.UNKNOWN
        if self._is_metadata_log:
            return Stop.UNCLEAN
        is_clean = CleanPartitions(OsFileSystem(), self._place.parent).is_clean(self._place)
        return Stop.CLEAN if is_clean else Stop.UNCLEAN

    @property
    def _is_metadata_log(self) -> bool:
        assert self._place is not None
        parsed = names.parse_partition_dir(self._place.name)
        return parsed is not None and parsed.topic == names.METADATA_TOPIC

    @cached_property
    def _first_recovered(self) -> int:
        """The base offset of the segment with the recovery point: an unclean start recovers from it on."""
        slot = bisect_right(self._bases, self._recovery_point) - 1
        return self._bases[max(slot, 0)]

    @property
    def _recovery_point(self) -> int:
        """The offset that the log dir's checkpoint says; 0, as in Kafka, if it does not say it or cannot be read."""
        assert self._place is not None
        parsed = names.parse_partition_dir(self._place.name)
        if parsed is None or self._is_metadata_log:
            return 0
        path = self._place.parent / names.RECOVERY_POINT_CHECKPOINT
        try:
            offsets = _parsed(read_file(path), path)
        except (FileNotFoundError, StorageError):
            return 0
        return offsets.get((parsed.topic, parsed.partition), 0)


@lru_cache(2)       # of each partition of a log dir it is the same file
def _parsed(raw: bytes, path: Path) -> dict[TopicPartition, int]:
    return parse_offsets_or_none(raw, path) or {}
