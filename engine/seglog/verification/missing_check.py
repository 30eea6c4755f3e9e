"""Finds offsets that are gone at either end of a log: what is left of the log is in order, but other files know more.

    the end    ── the log dir's checkpoints (recovery point, high watermark, log start), the last leader epoch, and the
                  producer snapshots: none of them is ever above the log's end
    the start  ── the first leader epoch: removing the first segments moves it. Kafka renames the segments first
                  (UnifiedLog.deleteSegments), and removes them a minute later

Segments that are missing in between are `segment_gap` (verification.log_check).
"""
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seglog.format import names
from seglog.fs.refusals import refusals
from seglog.late_import import late
from seglog.state.leader_epochs import LeaderEpochs
from seglog.verification.findings import Finding
from seglog.verification.log_dir_checkpoints import LogDirCheckpoints

_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT,
)


class MissingCheck:
    """The check of one partition that no process has open: the writer of an open one knows what it has."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checkpoints = LogDirCheckpoints(directory)

    def find(self, bases: Sequence[int], epochs: LeaderEpochs | None, log_end_offset: int) -> list[Finding]:
        """`bases`: of the segments."""
        found = []
        if bases and (start := self._missing_start(bases[0], epochs)) is not None:
            found.append(start)
        ends = self._known_ends()
        if epochs is not None and len(epochs):
            ends[names.LEADER_EPOCH_CHECKPOINT] = epochs[-1].start_offset
        if max(ends.values(), default=0) > log_end_offset:
            found.append(self._missing_end(ends, log_end_offset))
        return found

    def _known_ends(self) -> dict[str, int]:
        """The offsets that the log had, and the names of the files that say so."""
        offsets = {name: self._checkpoints.offset(name) for name in _CHECKPOINTS}
        snapshots = [file.offset for file in self._files(names.SNAPSHOT_SUFFIX, "")]
        if snapshots:
            offsets[names.file_name(max(snapshots), names.SNAPSHOT_SUFFIX)] = max(snapshots)
        return {name: offset for name, offset in offsets.items() if offset is not None}

    def _files(self, suffix: str, state: str) -> Iterator[names.SegmentFile]:
        with refusals("list", self._directory):
            listed = os.listdir(self._directory)
        for name in listed:
            if name.endswith(suffix + state):
                file = names.parse_file_name(name)
                if file is not None and (file.suffix, file.state) == (suffix, state):
                    yield file

    def _missing_start(self, first: int, epochs: LeaderEpochs | None) -> Finding | None:
        if epochs is None or not len(epochs):
            return None
        log_start = self._checkpoints.offset(names.LOG_START_OFFSET_CHECKPOINT) or 0
        start = max(epochs[0].start_offset, log_start)
        if start >= first or self._is_being_deleted(first) or self._is_tiered():
            return None
        return Finding(
            "start_missing", str(self._directory), offset=start, last_offset=first - 1,
            found=f"the first segment begins at offset {first}",
            expected=f"at most {start}, by {names.LEADER_EPOCH_CHECKPOINT}",
        )

    def _is_being_deleted(self, first: int) -> bool:
        return any(
            file.offset < first for suffix in names.LOG_SUFFIXES for file in self._files(suffix, names.DELETED_SUFFIX)
        )

    def _is_tiered(self) -> bool:
        """Whether the first segments may be in remote storage; their epochs stay."""
        late("seglog.reading.topic_settings")       # the classes of Kafka's messages come with it
        from seglog.reading.topic_settings import DirectorySettings

        told = DirectorySettings().told(self._directory).get("remote.storage.enable")
        return told is not None and told.value == "true"

    def _missing_end(self, ends: Mapping[str, int], log_end_offset: int) -> Finding:
        highest = max(ends.values())
        above = ", ".join(f"{name} ({end})" for name, end in ends.items() if end > log_end_offset)
        return Finding(
            "end_missing", str(self._directory), offset=log_end_offset, last_offset=highest - 1,
            found=f"the log ends at offset {log_end_offset}", expected=f"at least {highest}, by {above}",
        )
