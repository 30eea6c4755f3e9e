"""Checks a partition directory against its checksums, its indexes, its checkpoints and itself. Only reads.

Finds what a broker's clean start trusts blindly and its unclean start repairs, with file, byte and offset, without
changing anything. Memory use does not grow with the log.

Beside a broker or a seglog writer, each segment is checked as it was at one moment (verification.moving_files): its
indexes are read before its .log is mapped, so that the batches of their entries are in the map. A segment that was
removed meanwhile is skipped.
"""
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.config import LogConfig
from seglog.errors import (
    CorruptCheckpointError,
    CorruptSettingsError,
    InvalidArgumentError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.fs.lock import is_locked
from seglog.late_import import late
from seglog.reading.gaps import GapFinder
from seglog.reading.listing import settled_log_files
from seglog.reading.partition import Partition
from seglog.reading.settings import LogSettings
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.quarantine import DIRECTORY as QUARANTINE
from seglog.state.quarantine import INDEX_FILE, QuarantinedRange, read_quarantine
from seglog.verification.findings import Finding, Report
from seglog.verification.index_check import IndexCheck
from seglog.verification.log_check import Level, LogWalk
from seglog.verification.missing_check import MissingCheck
from seglog.verification.moving_files import LOOKS, MovingFiles, identity_of_segment, size_of
from seglog.verification.next_start import NextStart
from seglog.verification.other_files import find_in_other_files, wrote_no_time_indexes
from seglog.verification.transaction_check import TransactionCheck

if TYPE_CHECKING:
    from seglog.verification.witness_check import WitnessCheck

LEVELS = ("headers", "crc", "deep")

# A running broker preallocates the active segment's indexes, and its .log if configured; a roll trims both.
_OF_A_RUNNING_BROKER = frozenset(("zero_tail", "index_zero_tail", "timeindex_empty"))

_INTERVAL = "index.interval.bytes"

Progress = Callable[[int, int], None]


def verify(
    path: str | Path,
    *,
    level: Level = "crc",
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
    witness_every: int = 0,
) -> Report:
    """Check a partition directory; `report.ok` says whether it is clean, `report.findings` lists the problems.

    level: "headers" reads only batch headers; "crc" also verifies every checksum; "deep" also decodes every record.
    config: the broker's (`segment.index.bytes`, `index.interval.bytes`, …), which a directory does not record. Settings
    that `Log.configure` has kept with the log are used unless `config` names them.
    progress: called with (bytes done, total bytes).
    witness_every: read every n-th segment, and the last one, a second time by plain Python, which shares no code with
    the kernels, and compare; 0: none. Slow (some MB/s), and needs the `witness` extra.
    Raises NotALogError, InvalidConfigError, StorageError if the directory cannot be listed. Damage is a finding, never
    an exception, and so is a file that cannot be read.
    """
    with Partition(path, config=config) as partition:
        return verify_partition(partition, level=level, progress=progress, given=config, witness_every=witness_every)


def verify_partition(
    partition: Partition, *, level: Level = "crc", progress: Progress | None = None,
    given: Mapping[str, object] | LogConfig | None = None, witness_every: int = 0,
) -> Report:
    """Do the same for an open partition, narrowed to its segments. `given`: the settings that it was opened with."""
    if level not in LEVELS:
        raise InvalidArgumentError(f"unknown level {level!r}", hint=f"expected one of {', '.join(LEVELS)}")
    check = _PartitionCheck(partition, level, progress, given, witness_every)
    check.see([(segment.path, segment.is_last) for segment in partition.segments])
    for _ in range(LOOKS):
        logs = list(settled_log_files(partition.path))
        if check.report.segments or not logs or partition.only is not None:
            break
        # Retention was faster than the walk: the log now has other segments.
        check.see([(log, log is logs[-1]) for log in logs])
    check.finish()
    return check.report


class _PartitionCheck:
    """The check of one partition: the report, and the state carried from segment to segment."""

    def __init__(
        self, partition: Partition, level: Level, progress: Progress | None,
        given: Mapping[str, object] | LogConfig | None, witness_every: int,
    ) -> None:
        self.report = Report(str(partition.path), level)
        self._partition = partition
        self._directory = partition.path
        self._progress = progress
        self._config, self._interval_given = _settings_of(partition, given)
        self._witness_every = witness_every
        self._moving = MovingFiles(partition.path, live=is_locked(Path(os.path.realpath(partition.path)).parent))
        self._bases: list[int] = []     # of the segments seen
        self._active = ""       # the name of the last segment, without its suffix
        self._epochs: LeaderEpochs | None = None
        self._walk = LogWalk(level, self._config, None, [], partition.log_start_offset)
        self._transactions = TransactionCheck([], partition.log_start_offset)
        self._quarantined: Sequence[QuarantinedRange] = ()
        self._finder = GapFinder(partition.path, self._config, partition._current())
        self._tell(self._read_epochs)

    # --- segments ----------------------------------------------------------------------------

    def see(self, logs: Sequence[tuple[Path, bool]]) -> None:
        """Check segments in order: (path of the .log, whether it is the last one of the log)."""
        total = sum(size_of(log) for log, _ in logs)
        for log, is_last in logs:
            self._see_segment(log, is_last, total)

    def _see_segment(self, log: Path, is_last: bool, total: int) -> None:
        segment = Segment(log, is_last=is_last, decompress=self._partition._decompress)
        before, transactions_before = self._walk, self._transactions
        walk, transactions = before, transactions_before
        looks = size_bytes = 0

        def look() -> list[Finding]:
            nonlocal walk, transactions, looks, size_bytes
            if looks:
                self._read_epochs()         # which may have been older than the log
                segment._let_go()            # so that the .log is mapped as it is now
            looks += 1
            found: list[Finding] = []
            walk = replace(before, findings=found, epochs=self._epochs)
            transactions = transactions_before.again(found)
            try:
                self._walk_through(segment, walk, transactions, found, total)
                size_bytes = segment.size_bytes
            except StorageError as e:
                if not os.path.lexists(log):
                    return []
                found.append(Finding("unreadable", e.file or str(log), found=e.what))
            return found

        found = self._moving.standing_findings(look, lambda: identity_of_segment(log), is_growing=is_last)
        segment.close()
        if not os.path.lexists(log):
            # Removed meanwhile: its findings no longer matter, and what follows it has nothing to follow.
            self._walk = replace(self._walk, knows_end=False)
            return
        if is_last:
            self._active = f"{segment.base_offset:020d}"
        self._walk, self._transactions = walk, transactions
        self.report.findings += found
        self.report.witnessed += self._is_witnessed(is_last)
        self.report.segments += 1
        self.report.size_bytes += size_bytes
        self._bases.append(segment.base_offset)

    def _is_witnessed(self, is_last: bool) -> bool:
        """Whether the current segment is read a second time."""
        every = self._witness_every
        return every > 0 and (is_last or self.report.segments % every == 0)

    def _witness(self, segment: Segment, found: list[Finding]) -> "WitnessCheck | None":
        if not self._is_witnessed(segment.is_last):
            return None
        late("seglog.verification.witness_check")       # OpenSSL comes with it
        from seglog.verification.witness_check import WitnessCheck

        return WitnessCheck(segment, found)

    def _walk_through(
        self, segment: Segment, walk: LogWalk, transactions: TransactionCheck, found: list[Finding], total: int
    ) -> None:
        indexes = IndexCheck(
            segment, self._config, found, interval_given=self._interval_given,
            deep=self._walk.level == "deep",
        )
        transactions.begin(segment)
        witness = self._witness(segment, found)
        for table in walk.tables(segment):
            indexes.see(table)
            transactions.see(table)
            if witness is not None:
                witness.see(table)
            if self._progress is not None:
                done = min(self.report.size_bytes + table.end, total)
                self._progress(done, total)
        indexes.finish(walk.lost)
        transactions.finish(is_damaged=bool(walk.lost))

    # --- the rest ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Check the other files, and fill in the report."""
        report, walk = self.report, self._walk
        report.batches, report.records = walk.batches, walk.records
        report.log_start_offset = max(self._partition.log_start_offset, *self._bases[:1], 0)
        report.log_end_offset = walk.next_offset
        report.findings[:] = map(walk.judge_epoch, report.findings)
        self._tell(self._read_quarantine)
        self._judge_gaps()
        self._tell(lambda: find_in_other_files(
            self._directory, expects_epochs=walk.seen_epoch, foreign=self._partition._foreign_files))
        if self._moving.live or self._moving.has_moved():
            report.findings[:] = [finding for finding in report.findings if not self._is_in_progress(finding)]
        else:
            if self._partition.only is None and walk.knows_end:
                report.findings += MissingCheck(self._directory).find(self._bases, self._epochs, walk.next_offset)
            start = NextStart(self._directory, self._bases)
            report.findings[:] = [
                replace(finding, is_repaired=True) if start.repairs(finding) else finding for finding in report.findings
            ]
        if not walk.seen_v2 and wrote_no_time_indexes(self._directory):
            missing = [finding for finding in report.findings if finding.code == "timeindex_missing"]
            if missing:
                report.findings[:] = [finding for finding in report.findings if finding not in missing]
                report.findings.append(Finding("timeindex_none", str(self._directory)))

    def _read_quarantine(self) -> list[Finding]:
        index = self._directory / QUARANTINE / INDEX_FILE
        try:
            self._quarantined = ranges = read_quarantine(self._directory)
        except StorageError as e:
            return [Finding("unreadable", str(index), found=e.what)]
        except (CorruptCheckpointError, UnsupportedVersionError) as e:
            return [Finding("quarantine_corrupt", str(index), found=e.what)]
        return [
            Finding("quarantined", str(index.with_name(one.file)), offset=one.first_offset, size_bytes=one.size_bytes,
                    last_offset=None if one.last_offset < 0 else one.last_offset,
                    found=f"{one.size_bytes} bytes of {one.segment}: {one.reason}")
            for one in ranges
        ]

    def _judge_gaps(self) -> None:
        """What is in quarantine explains its gap. In a compacted log, gaps between segments are what compaction leaves:
        one note for all of them."""
        self.report.findings[:] = [
            finding for finding in self.report.findings
            if finding.code != "segment_gap" or not self._is_quarantined(finding)
        ]
        gaps = [finding for finding in self.report.findings if finding.code == "segment_gap"]
        if gaps and (self._walk.seen_hole or self._finder.is_compacted):
            self.report.findings[:] = [finding for finding in self.report.findings if finding.code != "segment_gap"]
            self.report.findings.append(replace(
                gaps[0], code="segment_gap_compacted", file=str(self._directory), found=_gaps_in_words(gaps)
            ))

    def _is_quarantined(self, gap: Finding) -> bool:
        """Whether all offsets of the gap are those of ranges in quarantine."""
        next_offset = gap.offset or 0
        for one in sorted(self._quarantined, key=lambda one: one.first_offset):
            if one.first_offset <= next_offset:
                next_offset = max(next_offset, one.last_offset + 1)
        return next_offset > (gap.last_offset or 0)

    def _is_in_progress(self, finding: Finding) -> bool:
        """Whether it is a writer's work in progress: writers remove leftovers of crashes at opening."""
        is_active = os.path.basename(finding.file).partition(".")[0] == self._active
        return finding.code == "leftover" or (is_active and finding.code in _OF_A_RUNNING_BROKER)

    def _tell(self, look: Callable[[], list[Finding]]) -> None:
        self.report.findings += self._moving.standing_findings(look, self._moving.identity, is_growing=True)

    def _read_epochs(self) -> list[Finding]:
        path = self._directory / names.LEADER_EPOCH_CHECKPOINT
        try:
            self._epochs = self._partition.leader_epochs
            return []
        except FileNotFoundError:
            return []
        except StorageError as e:
            return [Finding("unreadable", str(path), found=e.what)]
        except (CorruptCheckpointError, UnsupportedVersionError) as e:
            return [Finding("epochs_corrupt", str(path), found=e.what)]


def _settings_of(partition: Partition, given: Mapping[str, object] | LogConfig | None) -> tuple[LogConfig, bool]:
    """The configuration, with the settings that are kept with the log; and whether it has the topic's
    index.interval.bytes, not the default."""
    is_given = isinstance(given, LogConfig) or _INTERVAL in (given or {})
    try:
        settings = LogSettings(partition.path, given, partition.config)
    except (CorruptSettingsError, InvalidConfigError, UnsupportedVersionError, StorageError):
        return partition.config, is_given       # find_in_other_files reports it
    return settings.config, is_given or settings[_INTERVAL].source != "default"


def _gaps_in_words(gaps: Sequence[Finding]) -> str:
    offsets = sum((gap.last_offset or 0) - (gap.offset or 0) + 1 for gap in gaps)
    return f"{offsets} offsets in {len(gaps)} gap{'s' if len(gaps) > 1 else ''}"
