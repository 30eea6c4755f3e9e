"""A log's leader epochs, producers and aborted transactions, made to agree with its records when it is opened.

Kafka's LogSegment.recover, LeaderEpochFileCache and UnifiedLog.rebuildProducerState. The .log files are final here.
"""
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.batch_survey import first_of_later_epoch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog.errors import CorruptCheckpointError, CorruptSnapshotError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import dialect_of
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping, read_file
from seglog.named_tuple import NamedTuple
from seglog.segment import transaction_index
from seglog.segment.batches import SCAN_BATCHES
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.state.producer_snapshots import ProducerSnapshots, rebuild
from seglog.state.producer_state import ProducerState

if TYPE_CHECKING:
    from seglog.segment.recovery import SegmentCheck


class ReplaySegment(NamedTuple):
    """A segment of the log. `check`: what recovery found in it; None if it was not recovered."""

    directory: Path
    base_offset: int
    check: "SegmentCheck | None"
    log_suffix: str = names.LOG_SUFFIX

    @property
    def path(self) -> Path:
        return self.directory / names.file_name(self.base_offset, self.log_suffix)

    def tables(self, offset: int = 0, max_batches: int = SCAN_BATCHES) -> Iterator[BatchTable]:
        """Its batch headers from the batch that holds `offset` on; damage is skipped."""
        segment = Segment(self.path)
        try:
            found = segment.find_offset(offset) if offset > self.base_offset else None
            if found is None and offset > self.base_offset:
                return
            yield from segment.tables(
                found.position if found else 0, check_crc=False, max_batches=max_batches, on_lost=lambda _: None
            )
        finally:
            segment.close()

    def epochs(self) -> Iterator[tuple[int, int]]:
        """(leader epoch, offset of its first batch), in rising order."""
        if self.check is not None:
            yield from self.check.epochs
            return
        epoch = -1
        for table in self.tables():
            slot = first_of_later_epoch(table, epoch)
            while slot >= 0:
                epoch = table[slot].leader_epoch
                yield epoch, table[slot].base_offset
                slot = first_of_later_epoch(table, epoch, slot)

    def begins_without_epoch(self) -> bool:
        """Whether its first batch has no leader epoch, or there is no batch."""
        with Mapping(self.path) as whole:
            table = scan(dialect_of(self.path).window(whole), max_batches=1)
            if len(table):
                return table[0].leader_epoch < 0
        # Damage, perhaps with batches after it, or no batch.
        first = next(self.tables(max_batches=1), None)
        return first is None or len(first) == 0 or first[0].leader_epoch < 0


# --- leader epochs -----------------------------------------------------------------------------


class ReplaySegments(Sequence[ReplaySegment]):
    """The segments of a log, each made when the replay needs it: a log may have a hundred thousand."""

    @property
    @abstractmethod
    def base_offsets(self) -> list[int]:
        """The base offsets of all segments."""

    @property
    @abstractmethod
    def recovered(self) -> list[ReplaySegment]:
        """The segments that have a `check`."""


def put_leader_epochs(
    fs: FileSystem, directory: Path, segments: ReplaySegments, *,
    log_start_offset: int, next_offset: int, starts_empty: bool,
) -> LeaderEpochs:
    """Return the leader epochs of the log, and write them to their file durably. `starts_empty`: no segment is left.

    The epochs of a readable checkpoint and those that only recovered batches have; without one, those of all batches.
    Truncated at both ends of the log. A log without epochs gets no file.
    """
    path = directory / names.LEADER_EPOCH_CHECKPOINT
    raw, before = _read_epochs(path)
    if starts_empty:
        epochs, found = LeaderEpochs(), []
    elif before is None:
        epochs, found = LeaderEpochs(), _epochs_of_batches(segments)
    else:
        epochs, found = before, [epoch for segment in segments.recovered for epoch in segment.epochs()]
    for epoch, start_offset in found:
        if epochs.latest is None or epoch > epochs.latest:
            epochs = epochs.assign(epoch, start_offset)
    # In this order, an empty log keeps no epoch, whatever is below its start. (In Kafka's order, the epoch of batches
    # below the start of an empty log is there after every other recovery.)
    epochs = epochs.truncate_from_start(log_start_offset).truncate_from_end(next_offset)
    # (Kafka has an empty file if there are no epochs.)
    if epochs != (before or LeaderEpochs()) or (before is None and raw):
        write_atomically(fs, path, epochs.to_bytes())
    return epochs


def _read_epochs(path: Path) -> tuple[bytes, LeaderEpochs | None]:
    """The bytes of the checkpoint, and its epochs; None if there is no file or it is damaged."""
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return b"", None
    try:
        return raw, LeaderEpochs.parse(raw, file=path)
    except CorruptCheckpointError:
        return raw, None


def _epochs_of_batches(segments: Sequence[ReplaySegment]) -> list[tuple[int, int]]:
    """The epochs of a log without a checkpoint. Epochs came with v2: before a segment without any, there are none."""
    if not segments or (segments[-1].check is None and segments[-1].begins_without_epoch()):
        return []
    slot = len(segments) - 1
    while slot > 0 and not segments[slot].begins_without_epoch():
        slot -= 1
    return [epoch for segment in segments[slot:] for epoch in segment.epochs()]


# --- producers ---------------------------------------------------------------------------------


def producers_before(directory: Path, base_offset: int) -> tuple[ProducerEntry, ...]:
    """The producers at the start of a log whose first segment has this base offset: a transaction may have begun in a
    segment that retention removed. Empty if there is no readable snapshot.
    """
    try:
        return producers_in(read_file(directory / names.file_name(base_offset, names.SNAPSHOT_SUFFIX)))
    except FileNotFoundError:
        return ()


def producers_in(snapshot: bytes | None) -> tuple[ProducerEntry, ...]:
    """The producers of a .snapshot file; empty if there is none, or if it cannot be read."""
    try:
        return () if snapshot is None else ProducerSnapshot.parse(snapshot).producers
    except (CorruptSnapshotError, UnsupportedVersionError):
        return ()


def put_producers(
    fs: FileSystem, snapshots: ProducerSnapshots, segments: ReplaySegments, *, clean: bool,
    last_bases: Sequence[int], log_start_offset: int, next_offset: int, now_ms: int, expiration_ms: int,
    rewrites: bool = False,
) -> ProducerState:
    """The producers as of the end of the log; `snapshots` and the .txnindex of recovered segments are made to agree.

    `clean`: nothing was recovered. Otherwise the replay begins at the newest snapshot at or below the first recovered
    segment, and later snapshots are taken again: at both ends of each recovered segment, and at `last_bases`, those of
    the last two segments before anything was truncated (LogLoader.recoverSegment). `rewrites`: even a correct .txnindex
    is written, because it may not be on the disk.
    """
    bases = segments.base_offsets
    snapshots.remove_strays(bases)
    if clean:
        return rebuild(
            snapshots, bases, lambda offset: _tables_from(segments, offset), log_start_offset=log_start_offset,
            log_end_offset=next_offset, now_ms=now_ms, expiration_ms=expiration_ms, clean=True,
        )
    recovered = next((segment.base_offset for segment in segments.recovered), next_offset)
    state, offset = snapshots.load(log_start_offset, min(recovered, next_offset), now_ms, expiration_ms)
    taken: list[Path | None] = []
    for segment, end in zip(segments, [*bases[1:], next_offset], strict=True):
        if segment.check is None:
            if end > offset:
                if segment.base_offset in last_bases:
                    taken.append(snapshots.take(state, segment.base_offset, sync_names=False))
                for table in segment.tables(offset):
                    state.add_table(table)
            continue
        # Kafka loads the producers of the next segment from the snapshot taken here, so that expired ones are left out.
        # Of a segment that ends at or below the log start there is none: it is forgotten as if its records were gone.
        if segment.base_offset <= log_start_offset:
            state = ProducerState()
        taken.append(snapshots.take(state, segment.base_offset, sync_names=False))
        aborted: list[AbortedTransaction] = []
        if segment.check.has_producers:
            for table in segment.tables():
                aborted += state.add_table(table)
        _put_transaction_index(fs, segment.path, aborted, rewrites=rewrites)
        taken.append(snapshots.take(state, min(segment.check.next_offset, end), sync_names=False))
        state.remove_expired(now_ms, expiration_ms)
    taken.append(snapshots.take(state, next_offset, sync_names=False))
    if any(taken):
        fs.sync_directory(segments[0].path.parent)
    # Those at the end of a segment that the next one does not follow at once.
    snapshots.remove_strays(bases)
    return state


def _tables_from(segments: Sequence[ReplaySegment], offset: int) -> Iterator[BatchTable]:
    """The batches of all segments, from the one that holds `offset` on."""
    first = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    for segment in islice(segments, first, None):
        yield from segment.tables(offset)


def _put_transaction_index(
    fs: FileSystem, log: Path, aborted: Iterable[AbortedTransaction], *, rewrites: bool
) -> None:
    """Write these entries to the .txnindex; if there are none, remove the file."""
    path, raw = log.with_suffix(names.TRANSACTION_INDEX_SUFFIX), transaction_index.encode(aborted)
    if not path.exists():
        before = b""
    else:
        before = read_file(path)
        if not raw:
            fs.unlink(path)
            fs.sync_directory(path.parent)
    if raw and (rewrites or raw != before):
        write_atomically(fs, path, raw)
    elif raw:
        fs.sync_file(path)
