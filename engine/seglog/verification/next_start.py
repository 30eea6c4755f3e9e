"""What the next start of a broker, or an opening with seglog, repairs by itself: such findings are notes.

After kill -9 of a broker, its active segments have preallocated indexes that lack their last entries, and there are
files of deletions in progress. The start after an unclean stop recovers the segments from the recovery point on, and so
rebuilds their indexes from the log (LogLoader.recoverLog, LogSegment.recover). Every start removes `.deleted` and
`.cleaned` files (LogLoader.removeTempFilesAndCollectSwapFiles). No record is affected. But the start after a clean stop
trusts the indexes, and no start rebuilds those of segments before the recovery point. The metadata log of KRaft is
recovered from its beginning by every start (KafkaMetadataLog: lastShutdownClean = false, recoveryPoint = 0).

Likewise with damage: a start truncates the log only at damage that it looks at, so not below the recovery point, and
not after a clean stop. One exception: a segment without its .index is recovered by every start, alone, and later ones
stay (LogLoader.loadSegmentFiles, recoverSegment). tests/oracle/test_recovery.py compares with real Kafka.
"""
import enum
import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from seglog.config import LogConfig
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.late_import import late
from seglog.segment.positions import LostRange
from seglog.state.clean_partitions import CleanPartitions
from seglog.verification.findings import Finding
from seglog.verification.log_dir_checkpoints import LogDirCheckpoints

# Of indexes that are rebuilt from the log.
_REBUILT = frozenset((
    "index_missing", "index_corrupt", "index_misleads", "index_zero_tail", "index_too_large", "index_empty",
    "timeindex_missing", "timeindex_corrupt", "timeindex_empty", "timeindex_misleads", "timeindex_behind",
))
# The codes of findings that the next start may repair, which are notes then.
REPAIRABLE = _REBUILT | {"leftover", "orphan_index"}
# In the last segment, all that is left of a broker that died; also in a copy that was made while it ran.
_UNFINISHED = frozenset(("index_zero_tail", "timeindex_empty"))


class Stop(enum.Enum):
    """How the last process that wrote to a partition stopped."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    UNKNOWN = "unknown"         # the directory above it is no log dir: it is a copy


class NextStart:
    """The next start on a partition directory that no process has open. `bases`: of its segments, in order."""

    def __init__(self, directory: Path, bases: Sequence[int]) -> None:
        self._directory = directory
        self._checkpoints = LogDirCheckpoints(directory)
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
        place = self._checkpoints.place
        if place is None:
            return Stop.UNKNOWN
        if self._checkpoints.is_metadata_log:
            return Stop.UNCLEAN
        return Stop.CLEAN if CleanPartitions(OsFileSystem(), place.parent).is_clean(place) else Stop.UNCLEAN

    @property
    def checks_from(self) -> int | None:
        """The offset from which on it checks every batch: the base of a segment. None after a clean stop: it checks
        none. A copy is checked from its beginning, as by a broker whose log dir has no line for it."""
        if self.stop is Stop.CLEAN:
            return None
        return self._first_recovered if self._bases else 0

    def cuts(self, config: LogConfig) -> Sequence[LostRange]:
        """What a broker's start would remove from the .log files. Only reads. Raises StorageError.

        First, each segment without its .index is cut at its own damage, whatever the recovery point
        (LogLoader.loadSegmentFiles). Then the first damage that is left in the segments that an unclean start recovers
        ends the log (recoverLog).
        """
        late("seglog.loading.loader")       # only for damage: twelve modules come with it
        from seglog.loading.loader import AFTER_TRUNCATION, plan_load

        plan = plan_load(
            self._directory, config.replace(recovery_mode="quarantine"), clean=self.stop is Stop.CLEAN,
            recovery_point=self._recovery_point,
            log_start_offset=self._checkpoints.offset(names.LOG_START_OFFSET_CHECKPOINT) or 0,
        )
        cuts: list[LostRange] = []
        ended = False
        for segment in plan.segments:
            check, size_bytes = segment.check, segment.files.log.size_bytes
            is_recovered = segment.is_recovered and self.stop is not Stop.CLEAN
            if ended:
                end = -1 if check is None or not check.runs else check.next_offset - 1
                cuts.append(LostRange(str(segment.path), 0, size_bytes, segment.base_offset, end, AFTER_TRUNCATION))
            elif check is not None and check.damages:
                stands_alone = names.OFFSET_INDEX_SUFFIX not in segment.files.indexes
                if not (stands_alone or is_recovered):
                    continue
                damage = check.damages[0]
                end = max(damage.last_offset, check.next_offset - 1) if check.has_run_behind_damage else (
                    check.damages[-1].last_offset)
                cuts.append(LostRange(
                    str(segment.path), damage.start, size_bytes - damage.start, damage.first_offset, end, damage.reason
                ))
                ended = not stands_alone
        # (Behind an unfinished write: segments without a whole batch.)
        cuts += [LostRange(str(one.path), 0, one.log.size_bytes, one.base_offset, -1, AFTER_TRUNCATION)
                 for one in plan.removed if one.log.size_bytes]
        return [cut for cut in cuts if cut.size_bytes]

    @cached_property
    def _recovery_point(self) -> int:
        """As in Kafka, 0 if the log dir's checkpoint does not say it, and for the metadata log."""
        return self._checkpoints.offset(names.RECOVERY_POINT_CHECKPOINT) or 0

    @cached_property
    def _first_recovered(self) -> int:
        """The base offset of the segment with the recovery point: an unclean start recovers from it on."""
        slot = bisect_right(self._bases, self._recovery_point) - 1
        return self._bases[max(slot, 0)]
