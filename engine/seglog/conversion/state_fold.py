"""The files beside the records of a partition: producer snapshots, aborted transactions, leader epochs, the topic id,
the stored settings. Copied from the source, or computed if it has none.

A conversion does not change offsets, so every line of the source stays valid. A line that is missing in the source, or
contradicts its log, is computed as Kafka does when it recovers a log, and `notes` says so.
"""
from collections.abc import Callable
from pathlib import Path

from seglog.conversion.converted_segment import ConvertedSegment
from seglog.errors import CorruptCheckpointError, CorruptSettingsError, CorruptSnapshotError, UnsupportedVersionError
from seglog.format import names
from seglog.format.conversion_profile import TO_TAGGED
from seglog.format.dialect import TAGGED
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.segment import transaction_index
from seglog.state.directory_dialect import DIALECT_SETTING
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.kept_settings import parse_settings, settings_to_bytes
from seglog.state.leader_epochs import EpochStart, LeaderEpochs
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_state import ProducerState

_FORMAT_VERSION = "message.format.version"

Read = Callable[[str], bytes | None]
"""Returns the bytes of a small file of the source directory, None if there is none."""

Write = Callable[[str, bytes], None]
"""Creates a file with this name and these bytes in the target."""


class StateFold:
    """Takes converted segments in offset order, and writes the files beside them. Call `finish` at the end.

    Holds the producers and the leader epochs of one partition. `notes`: what was wrong in the source.

    Below v2 there are no epochs, producers or transactions, and no files of them. (A broker whose topics have such a
    format deletes a leader-epoch-checkpoint that it finds: UnifiedLog.maybeCreateLeaderEpochCache.) A log of messages
    with tags has epochs but no producers; it keeps them if batches keep their formats.
    `keeps_format`: the highest version in the source if batches keep theirs, or None if they are converted to `to`.
    """

    def __init__(self, read: Read, write: Write, *, to: int, keeps_format: int | None = None) -> None:
        self.notes: list[str] = []
        self._read = read
        self._write = write
        self._to = to
        self._keeps_format = keeps_format is not None
        # (A broker that knows v2 also keeps these files for an older format.)
        self._has_epochs = to == 2 if keeps_format is None else (
            keeps_format == 2 or read(names.LEADER_EPOCH_CHECKPOINT) is not None)
        self._has_producers = self._has_epochs and to != TO_TAGGED
        self._producers = ProducerState()
        self._snapshot_at = -1
        self._epochs: list[EpochStart] = []

    def add(self, segment: ConvertedSegment) -> None:
        """Add the next segment of the log."""
        if not self._has_producers:
            return
        self.notes += segment.notes
        lines = list(segment.aborted or ())
        ends = [*(part.base_offset for part in segment.parts[1:]), segment.next_offset]
        for part, end_offset in zip(segment.parts, ends, strict=True):
            self._take_snapshot(part.base_offset)
            latest = self._epochs[-1].epoch if self._epochs else -1
            self._epochs += (start for start in part.epochs if start.epoch > latest)
            for batch in part.producers:
                aborted = self._producers.replay(batch)
                if aborted is not None and segment.aborted is None:
                    lines.append(aborted)
            here = [line for line in lines if line.last_offset < end_offset]
            lines = lines[len(here) :]
            if here:
                path = names.file_name(part.base_offset, names.TRANSACTION_INDEX_SUFFIX)
                self._write(path, transaction_index.encode(here))

    def finish(self, log_end_offset: int) -> None:
        """Write the remaining files, after the last segment."""
        if self._has_producers:
            self._take_snapshot(log_end_offset)
        if self._has_epochs:
            self._write(names.LEADER_EPOCH_CHECKPOINT, self._leader_epochs(log_end_offset))
        self._carry_settings()

    # --- settings --------------------------------------------------------------------------------

    def _carry_settings(self) -> None:
        """Copy the stored settings except the format: the next append to the result must not write the old one."""
        raw = self._read(SETTINGS_FILE)
        settings: dict[str, str] = {}
        if raw is not None:
            try:
                settings = parse_settings(raw, Path(SETTINGS_FILE))
            except (CorruptSettingsError, UnsupportedVersionError) as e:
                self.notes.append(f"{SETTINGS_FILE} is not copied: {e.what}")
                raw = None
        # The dialect is that of the result, whatever the source was.
        settings.pop(DIALECT_SETTING, None)
        if self._to == TO_TAGGED:
            settings[DIALECT_SETTING] = TAGGED.name
            if settings.pop(_FORMAT_VERSION, None) is not None:
                self.notes.append(f"{_FORMAT_VERSION} in {SETTINGS_FILE} is left out: the result is tagged")
        if raw is None and not settings:
            return
        kept = settings.get(_FORMAT_VERSION)
        if kept is not None and kept != str(self._to) and not self._keeps_format:
            self.notes.append(f"{_FORMAT_VERSION} in {SETTINGS_FILE} is {self._to} from now on; it was {kept}")
            settings[_FORMAT_VERSION] = str(self._to)
        self._write(SETTINGS_FILE, settings_to_bytes(settings))

    # --- producers -------------------------------------------------------------------------------

    def _take_snapshot(self, offset: int) -> None:
        """Write the snapshot of everything below `offset`: the source's own, if it belongs to this log."""
        is_first = self._snapshot_at < 0
        if offset == self._snapshot_at:
            return
        self._snapshot_at = offset
        found = self._snapshot_of_source(offset)
        if found is not None:
            # It may know more than the log: producers whose batches were deleted.
            self._producers = ProducerState(found.producers)
            self._write(names.file_name(offset, names.SNAPSHOT_SUFFIX), found.to_bytes())
        elif not is_first:
            # None at the start of the log: a broker has none there, and it would say that there are no producers.
            snapshot = ProducerSnapshot(self._producers.entries())
            self._write(names.file_name(offset, names.SNAPSHOT_SUFFIX), snapshot.to_bytes())

    def _snapshot_of_source(self, offset: int) -> ProducerSnapshot | None:
        name = names.file_name(offset, names.SNAPSHOT_SUFFIX)
        raw = self._read(name)
        if raw is None:
            return None
        try:
            snapshot = ProducerSnapshot.parse(raw)
        except (CorruptSnapshotError, UnsupportedVersionError) as e:
            self.notes.append(f"{name} is recomputed: {e.what}")
            return None
        why = self._producers.contradiction(snapshot.producers, offset)
        if why is not None:
            self.notes.append(f"{name} is recomputed: {why}")
            return None
        return snapshot

    # --- leader epochs ---------------------------------------------------------------------------

    def _leader_epochs(self, log_end_offset: int) -> bytes:
        """Return the source's checkpoint unchanged, or compute it from the batches (LogSegment.recover)."""
        name = names.LEADER_EPOCH_CHECKPOINT
        raw = self._read(name)
        if raw is None:
            if self._epochs:
                self.notes.append(f"{name} is computed: the source has none")
            return LeaderEpochs(self._epochs).to_bytes()
        try:
            epochs = LeaderEpochs.parse(raw)
        except (CorruptCheckpointError, UnsupportedVersionError) as e:
            self.notes.append(f"{name} is recomputed: {e.what}")
            return LeaderEpochs(self._epochs).to_bytes()
        kept = [entry for entry in epochs if entry.start_offset <= log_end_offset]
        if len(kept) < len(epochs):
            self.notes.append(f"{name} loses entries that begin after the log end offset {log_end_offset}")
            return LeaderEpochs(kept).to_bytes()
        return raw


def reader(directory: Path) -> Read:
    """Return the reader of small files in a directory. It raises StorageError."""

    def read(name: str) -> bytes | None:
        path = directory / name
        if not path.exists():
            return None
        with refusals("read", path):
            return read_file(path)

    return read
