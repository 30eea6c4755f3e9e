"""What stands beside the records of a partition and belongs to their offsets: producer snapshots, aborted
transactions, leader epochs, the topic id. Carried over from the source, computed where it has none.

Offsets do not change in a conversion, so that every line of the source stays true. A line that the source
lacks, or that contradicts its log, is computed as Kafka does when it recovers a log, and `notes` says so.
"""
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from seglog._kernels.batch_survey import first_of_later_epoch, first_with_producer
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptCheckpointError, CorruptIndexError, CorruptSnapshotError, UnsupportedVersionError
from seglog.format import names
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.log.leader_epochs import EpochStart, LeaderEpochs
from seglog.log.partition import Partition
from seglog.log.producer_snapshot import ProducerSnapshot
from seglog.log.producer_state import ProducerState
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction

Write = Callable[[str, bytes], None]
"""Makes a file of this name and these bytes in the target."""


class ConversionState(Protocol):
    """Follows the conversion from segment to segment, and writes what belongs there.

    begin_segment, [begin_part,] add ... for each source segment; finish at the end.
    """

    notes: list[str]

    def begin_segment(self, segment: Segment, next_offset: int) -> None:
        """Before the first batch of a source segment, which ends before `next_offset`."""

    def begin_part(self, base_offset: int) -> None:
        """Where a source segment is split: before the first batch of the next part."""

    def add(self, table: BatchTable, first: int, stop: int) -> None:
        """Learn from the batches [first, stop) of the target."""

    def aborted_before(self, offset: int) -> Iterable[AbortedTransaction]:
        """The aborted transactions whose marker lies below `offset`; each is given once."""
        ...

    def finish(self, log_end_offset: int) -> None:
        """After the last batch."""


class StateBelowV2:
    """Of a log of format v0 or v1: there are no epochs, producers or transactions in it, and no files of them.

    A broker whose topics have such a format deletes a leader-epoch-checkpoint that it finds.
    (UnifiedLog.maybeCreateLeaderEpochCache)
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin_segment(self, segment: Segment, next_offset: int) -> None:
        """Nothing to carry over."""

    def begin_part(self, base_offset: int) -> None:
        """No snapshot of no producers."""

    def add(self, table: BatchTable, first: int, stop: int) -> None:
        """Nothing to learn."""

    def aborted_before(self, offset: int) -> Iterable[AbortedTransaction]:
        """No transactions."""
        return ()

    def finish(self, log_end_offset: int) -> None:
        """No files."""


class StateOfV2:
    """What Kafka keeps beside a log of format v2. See ConversionState."""

    def __init__(self, source: Partition, write: Write) -> None:
        self.notes: list[str] = []
        self._source = source
        self._write = write
        self._producers = ProducerState()
        self._snapshot_at = -1
        self._aborted: list[AbortedTransaction] = []
        self._aborted_is_known = False
        self._epochs: list[EpochStart] = []

    def begin_segment(self, segment: Segment, next_offset: int) -> None:
        """Before the first batch of a source segment, which ends before `next_offset`."""
        self._take_snapshot(segment.base_offset)
        known = self._transactions_of(segment, next_offset)
        self._aborted_is_known = known is not None
        self._aborted = known or []

    def begin_part(self, base_offset: int) -> None:
        """Where a source segment is split: before the first batch of the next part."""
        self._take_snapshot(base_offset)

    def add(self, table: BatchTable, first: int, stop: int) -> None:
        """Learn from the batches [first, stop) of the target."""
        slot = first_of_later_epoch(table, self._epochs[-1].epoch if self._epochs else -1, first)
        while 0 <= slot < stop:
            self._epochs.append(EpochStart(table[slot].leader_epoch, table[slot].base_offset))
            slot = first_of_later_epoch(table, self._epochs[-1].epoch, slot)
        slot = first_with_producer(table, first)
        while 0 <= slot < stop:
            aborted = self._producers.add(table[slot])
            if aborted is not None and not self._aborted_is_known:
                self._aborted.append(aborted)
            slot = first_with_producer(table, slot + 1)

    def aborted_before(self, offset: int) -> Iterator[AbortedTransaction]:
        """The aborted transactions whose marker lies below `offset`; each is given once."""
        while self._aborted and self._aborted[0].last_offset < offset:
            yield self._aborted.pop(0)

    def finish(self, log_end_offset: int) -> None:
        """After the last batch."""
        self._take_snapshot(log_end_offset)
        self._write(names.LEADER_EPOCH_CHECKPOINT, self._leader_epochs(log_end_offset))

    # --- producers -------------------------------------------------------------------------------

    def _take_snapshot(self, offset: int) -> None:
        """Write the snapshot of all that lies below `offset`: the source's own, where it is one of this log."""
        is_first = self._snapshot_at < 0
        if offset == self._snapshot_at:
            return
        self._snapshot_at = offset
        found = self._snapshot_of_source(offset)
        if found is not None:
            # It may know more than the log: of producers whose batches are gone.
            self._producers = ProducerState(found.producers)
            self._write(names.file_name(offset, names.SNAPSHOT_SUFFIX), found.to_bytes())
        elif not is_first:
            # None at the start of the log: a broker has none there, and would say that there are no producers.
            snapshot = ProducerSnapshot(self._producers.entries())
            self._write(names.file_name(offset, names.SNAPSHOT_SUFFIX), snapshot.to_bytes())

    def _snapshot_of_source(self, offset: int) -> ProducerSnapshot | None:
        path = self._source.path / names.file_name(offset, names.SNAPSHOT_SUFFIX)
        if not path.exists():
            return None
        try:
            snapshot = ProducerSnapshot.parse(read(path), file=path)
        except (CorruptSnapshotError, UnsupportedVersionError) as e:
            self.notes.append(f"{path.name} is computed anew: {e.what}")
            return None
        why = self._producers.contradiction(snapshot.producers, offset)
        if why is not None:
            self.notes.append(f"{path.name} is computed anew: {why}")
            return None
        return snapshot

    # --- transactions ----------------------------------------------------------------------------

    def _transactions_of(self, segment: Segment, next_offset: int) -> list[AbortedTransaction] | None:
        """The lines of the segment's .txnindex; None where they have to be computed."""
        try:
            index = segment.transaction_index
        except (CorruptIndexError, UnsupportedVersionError) as e:
            self.notes.append(f"{segment.path.stem}{names.TRANSACTION_INDEX_SUFFIX} is computed anew: {e.what}")
            return None
        if index is None:
            return None
        lines = list(index)
        if any(not segment.base_offset <= line.last_offset < next_offset for line in lines):
            self.notes.append(
                f"{segment.path.stem}{names.TRANSACTION_INDEX_SUFFIX} is computed anew: a marker outside of the segment"
            )
            return None
        return lines

    # --- leader epochs ---------------------------------------------------------------------------

    def _leader_epochs(self, log_end_offset: int) -> bytes:
        """The source's checkpoint as it stands; else what the batches tell (LogSegment.recover)."""
        path = self._source.path / names.LEADER_EPOCH_CHECKPOINT
        if not path.exists():
            if self._epochs:
                self.notes.append(f"{path.name} is computed: the source has none")
            return LeaderEpochs(self._epochs).to_bytes()
        raw = read(path)
        try:
            epochs = LeaderEpochs.parse(raw, file=path)
        except (CorruptCheckpointError, UnsupportedVersionError) as e:
            self.notes.append(f"{path.name} is computed anew: {e.what}")
            return LeaderEpochs(self._epochs).to_bytes()
        kept = [entry for entry in epochs if entry.start_offset <= log_end_offset]
        if len(kept) < len(epochs):
            self.notes.append(f"{path.name} loses what begins behind the end of the log, offset {log_end_offset}")
            return LeaderEpochs(kept).to_bytes()
        return raw


def read(path: Path) -> bytes:
    """A small file whole. Raises StorageError."""
    with refusals("read", path):
        return read_file(path)
