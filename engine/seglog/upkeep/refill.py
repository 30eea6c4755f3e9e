"""Fills damaged stretches of a partition directory from its replicas: batches, byte for byte.

A replica has the same batches at the same offsets, as far as both have the same leaders. So a batch is taken only if

    the topic ids are equal, if both directories have one
    both have the same leader epochs below the stretch, and the batch has the epoch that this log has at its offset
    the batches beside the stretch are the same, byte for byte
    its CRC is correct, and its offsets follow those before it without a hole
    the stretch is not where a cleaner has been: another copy may hold keys that were deleted since

Several replicas take turns: each continues where the one before it is damaged, too. What none of them has stays as it
is, for the recovery to judge (upkeep.recover). The start of the log does not change.
"""
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import scan
from seglog.config import LogConfig
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, SeglogError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import KAFKA, dialect_of_config
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping as FileMapping
from seglog.named_tuple import NamedTuple
from seglog.reading.gaps import is_told_compacted
from seglog.reading.partition import Partition
from seglog.segment.batches import first_offset_of
from seglog.segment.positions import LostRange
from seglog.segment.recovery import check_segments
from seglog.segment.roll import RELATIVE_OFFSET_MAX
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.leftovers import survey
from seglog.state.partition_metadata import PartitionMetadata
from seglog.verification.log_dir_checkpoints import LogDirCheckpoints

# A position in a .log is an int32.
_LOG_BYTES_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FilledRange:
    """Offsets that were taken from a replica, or would be. `file`: the .log that has them then; both offsets included.
    """

    file: str
    first_offset: int
    last_offset: int
    size_bytes: int
    source: Path


class _Piece(NamedTuple):
    """Batches that follow each other in a .log of a replica."""

    segment: Segment
    start: int
    stop: int
    first_offset: int
    last_offset: int
    source: Path


class _Replica(NamedTuple):
    """A replica that may be asked. `cleaned_before`: the offset below which a cleaner may have been, in it or here."""

    partition: Partition
    epochs: LeaderEpochs | None
    cleaned_before: int
    has_our_topic_id: bool


@dataclass(slots=True)
class _Stretch:
    """Offsets that segment `slot` lacks, from `first` to `last`; if that is None, as far as a replica has them.
    `damage`: the damage at that place, or None if it is after the last batch, where the files show nothing."""

    slot: int
    first: int
    last: int | None
    damage: int | None
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.pieces[-1].last_offset + 1 if self.pieces else self.first

    @property
    def is_filled(self) -> bool:
        return bool(self.pieces) and (self.last is None or self.next_offset > self.last)


class Refill:
    """What replicas can fill of the partition in `directory`, a copy of `origin` or the same. Only `apply` writes. A
    context manager: it keeps the replicas open."""

    def __init__(self, directory: Path, origin: Path, sources: Sequence[Path], config: LogConfig) -> None:
        """Raises NotALogError, InvalidArgumentError for a replica that is the log itself, StorageError."""
        if dialect_of_config(config) is not KAFKA:
            raise InvalidArgumentError("tagged logs have no replicas to fill them from", file=origin)
        leftovers = survey(directory)
        if leftovers.swapped or leftovers.replaced:
            raise InvalidArgumentError(
                "an unfinished compaction is in the way", file=origin,
                hint="complete it first: `seglog recover --mode quarantine --apply`, without --from",
            )
        self._directory, self._origin, self._config = directory, origin, config
        self._logs = [segment.log.path for segment in leftovers.segments]
        self._bases = [segment.base_offset for segment in leftovers.segments]
        ends = [*self._bases[1:], names.MAX_OFFSET]
        self._checks = check_segments(list(zip(self._logs, self._bases, ends, strict=True)), config)
        self._epochs = _epochs_of(origin)
        self._topic_id = _topic_id(origin)
        self._checkpoints = LogDirCheckpoints(origin)
        self._stretches = self._find_stretches()
        # Why a replica filled less than was asked for.
        self.reasons: dict[Path, str] = {}
        self._exit = ExitStack()
        try:
            self._ask(sources)
        except BaseException:
            self._exit.close()
            raise

    def __enter__(self) -> "Refill":
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # --- what is missing -----------------------------------------------------------------------

    def _find_stretches(self) -> list[_Stretch]:
        found = []
        for slot, check in enumerate(self._checks):
            is_last = slot == len(self._checks) - 1
            end = None if is_last else self._bases[slot + 1]
            for number, damage in enumerate(check.damages):
                last: int | None = damage.last_offset
                if damage.stop == check.size_bytes:
                    last = None if end is None else end - 1
                if last is None or last >= damage.first_offset:
                    found.append(_Stretch(slot, damage.first_offset, last, number))
            if not check.damages or check.damages[-1].stop < check.size_bytes:
                end = self._known_end if end is None else end
                if check.next_offset < end:
                    found.append(_Stretch(slot, check.next_offset, end - 1, None))
        return found

    @property
    def _known_end(self) -> int:
        """The end that the log had at least, as the log dir's checkpoints know it."""
        told = (self._checkpoints.offset(name) for name in (
            names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT,
        ))
        return max((offset for offset in told if offset is not None), default=0)

    def _cleaned_before(self, source: Path) -> int:
        """The offset below which a cleaner may have been, here or in the replica."""
        cleaned = [
            LogDirCheckpoints(place).offset(names.CLEANER_CHECKPOINT) for place in (self._origin, source)
        ]
        known = max((offset for offset in cleaned if offset is not None), default=None)
        if known is None and (is_told_compacted(self._origin, self._config) or is_told_compacted(source, LogConfig())):
            return self._bases[-1] if self._bases else names.MAX_OFFSET     # no cleaner touches the active segment
        return known or 0

    # --- asking replicas -----------------------------------------------------------------------

    def _ask(self, sources: Sequence[Path]) -> None:
        opened = []
        for source in sources:
            if os.path.exists(source) and os.path.samefile(source, self._origin):
                raise InvalidArgumentError("the replica is the log itself", file=source)
            partition = self._exit.enter_context(Partition(source))
            topic_id = _topic_id(source)
            if self._topic_id and topic_id and self._topic_id != topic_id:
                self.reasons[source] = f"it has another topic id ({topic_id})"
            else:
                opened.append(_Replica(
                    partition, _epochs_of(partition.path), self._cleaned_before(partition.path),
                    self._topic_id == topic_id != "",
                ))
        for stretch in self._stretches:
            before = -1
            while before != stretch.next_offset and not (stretch.is_filled and stretch.last is not None):
                before = stretch.next_offset
                for replica in opened:
                    reason = self._take(stretch, replica)
                    if stretch.is_filled and stretch.last is not None:
                        break
                    if reason and not stretch.is_filled:
                        self.reasons.setdefault(replica.partition.path, reason)

    def _take(self, stretch: _Stretch, replica: _Replica) -> str:
        """Take from one replica what it has of the rest of a stretch. Returns why it does not have all of it."""
        first = stretch.next_offset
        if stretch.first < replica.cleaned_before:
            return (
                f"offset {stretch.first} is where the cleaner has been: another copy may hold keys that were deleted"
            )
        parts = self._epochs_part(replica, stretch.first)
        if parts is not None:
            return f"its leader epochs differ from offset {parts} on"
        try:
            reason = self._neighbours_differ(stretch, replica)
            if not reason:
                for piece in _batches_from(replica.partition, first, stretch.last, self._epochs):
                    if not _joined(stretch.pieces, piece):
                        stretch.pieces.append(piece)
                if not stretch.is_filled:
                    reason = f"it does not have offset {stretch.next_offset} whole, in the same batches"
        except SeglogError as error:
            reason = error.what
        return reason

    def _epochs_part(self, replica: _Replica, before: int) -> int | None:
        """The first offset below `before` at which both know another epoch."""
        theirs = replica.epochs
        if self._epochs is None or theirs is None:
            return None
        low = max(self._bases[0], replica.partition.segments[0].base_offset)
        starts = {one.start_offset for epochs in (self._epochs, theirs) for one in epochs}
        for offset in sorted({low, *(start for start in starts if low < start)}):
            pair = self._epochs.epoch_for_offset(offset), theirs.epoch_for_offset(offset)
            if offset < before and None not in pair and pair[0] != pair[1]:
                return offset
        return None

    def _neighbours_differ(self, stretch: _Stretch, replica: _Replica) -> str:
        """Why the batches beside the stretch do not show a copy of this log; empty if they do. Only the topic id can
        stand for them, if they are not in the replica."""
        is_shown = replica.has_our_topic_id
        for ours in self._neighbours(stretch):
            theirs = _batch_at(replica.partition, ours.last_offset)
            if theirs is not None and bytes(theirs.raw()) != bytes(ours.raw()):
                return f"its batch at offset {ours.last_offset} is another one"
            is_shown = is_shown or theirs is not None
        return "" if is_shown else "neither a topic id nor a batch shows that it is a copy of this log"

    def _neighbours(self, stretch: _Stretch) -> Iterator[RecordBatch]:
        """The batch before the stretch, and the one behind it."""
        check = self._checks[stretch.slot]
        at = check.size_bytes if stretch.damage is None else check.damages[stretch.damage].start
        slot = stretch.slot
        while at == 0 and slot > 0:
            slot -= 1
            at = self._checks[slot].size_bytes
        if at > 0:
            runs = [run for run in self._checks[slot].runs if run.stop == at]
            if runs:
                yield from _last_batch(self._logs[slot], runs[0].start, at)
        at = check.size_bytes if stretch.damage is None else check.damages[stretch.damage].stop
        slot = stretch.slot
        while slot < len(self._checks) and at == self._checks[slot].size_bytes:
            slot, at = slot + 1, 0
        if slot < len(self._checks) and any(run.start == at for run in self._checks[slot].runs):
            with FileMapping(self._logs[slot]) as mapping:
                yield from scan(KAFKA.window(mapping, self._logs[slot]), at, max_batches=1)

    # --- the result --------------------------------------------------------------------------------

    def filled(self) -> tuple[FilledRange, ...]:
        """What is filled, in order of the offsets."""
        return tuple(
            FilledRange(
                str(self._origin / self._target(stretch, piece)), piece.first_offset, piece.last_offset,
                piece.stop - piece.start, piece.source,
            )
            for stretch in self._stretches for piece in stretch.pieces
        )

    def still_lost(self, lost: Sequence[LostRange]) -> tuple[LostRange, ...]:
        """Of the ranges that a recovery would lose, those that no replica has, or not to their end."""
        places = {
            (self._logs[s.slot].name, self._checks[s.slot].damages[s.damage].start): s
            for s in self._stretches if s.damage is not None
        }
        left = []
        for one in lost:
            stretch = places.get((Path(one.file).name, one.position))
            if stretch is None or not stretch.pieces:
                left.append(one)
            elif not stretch.is_filled:
                left.append(LostRange(
                    one.file, one.position, one.size_bytes, stretch.next_offset, one.last_offset, one.reason
                ))
        return tuple(left)

    @property
    def log_end_offset(self) -> int:
        """The end of the log if what is filled is in it, and nothing else follows."""
        return max((stretch.next_offset for stretch in self._stretches if stretch.pieces), default=0)

    def _target(self, stretch: _Stretch, piece: _Piece) -> str:
        """The .log that a piece goes to: behind the last batch of a segment, one that begins a segment of the replica
        begins one here, too."""
        slot = stretch.slot
        is_behind = stretch.damage is None or (
            self._checks[slot].damages[stretch.damage].stop == self._checks[slot].size_bytes
        )
        base = piece.segment.base_offset
        if is_behind and self._bases[slot] < base and stretch.first <= base:
            return names.file_name(base, names.LOG_SUFFIX)
        return self._logs[slot].name

    def apply(self, fs: FileSystem) -> None:
        """Write the segments that change, each in one step, and without their indexes: a recovery builds these. Raises
        InvalidArgumentError if a segment would become too large, StorageError."""
        contents = self._contents()
        for name, (slot, pieces) in contents.items():
            base = names.parse_base_offset(name)
            last = max((piece.last_offset for piece in pieces), default=base)
            grown = sum(piece.stop - piece.start for piece in pieces) + (self._checks[slot].size_bytes)
            if last - base > RELATIVE_OFFSET_MAX or grown > _LOG_BYTES_MAX:
                raise InvalidArgumentError(
                    "the segment would become too large for its indexes", file=self._directory / name,
                    hint="copy the replica's directory instead",
                )
        for name, (slot, pieces) in contents.items():
            path = self._directory / name
            if path.name != self._logs[slot].name:
                write_atomically(fs, path, *(_bytes_of(piece) for piece in pieces), like=self._logs[slot])
                continue
            for suffix in names.INDEX_SUFFIXES:
                if os.path.lexists(index := path.with_suffix(suffix)):
                    fs.unlink(index)
            fs.sync_directory(self._directory)
            with FileMapping(path) as whole:
                write_atomically(fs, path, *self._rewritten(slot, memoryview(whole)))

    def _contents(self) -> Mapping[str, tuple[int, list[_Piece]]]:
        contents: dict[str, tuple[int, list[_Piece]]] = {}
        for stretch in self._stretches:
            for piece in stretch.pieces:
                contents.setdefault(self._target(stretch, piece), (stretch.slot, []))[1].append(piece)
        return contents

    def _rewritten(self, slot: int, raw: memoryview) -> Iterator[memoryview]:
        """The bytes of a segment: its intact batches, what is filled between them, and damage that stays."""
        check = self._checks[slot]
        mine = {s.damage: s for s in self._stretches if s.slot == slot}
        parts: list[tuple[int, int, int | None]] = [(run.start, run.stop, None) for run in check.runs]
        parts += [(damage.start, damage.stop, number) for number, damage in enumerate(check.damages)]
        for start, stop, number in sorted(parts):
            stretch = mine.get(number) if number is not None else None
            if stretch is None:
                yield raw[start:stop]
                continue
            yield from self._pieces_here(stretch)
            if not stretch.is_filled:
                yield raw[start:stop]
        if None in mine:
            yield from self._pieces_here(mine[None])

    def _pieces_here(self, stretch: _Stretch) -> Iterator[memoryview]:
        name = self._logs[stretch.slot].name
        for piece in stretch.pieces:
            if self._target(stretch, piece) == name:
                yield _bytes_of(piece)


# --- reading a log and its replicas ---------------------------------------------------------------


def _bytes_of(piece: _Piece) -> memoryview:
    return memoryview(piece.segment.window)[piece.start : piece.stop]


def _joined(pieces: list[_Piece], piece: _Piece) -> bool:
    """Whether a batch was added to the last piece, which it follows in the same file."""
    if pieces and pieces[-1].segment is piece.segment and pieces[-1].stop == piece.start:
        pieces[-1] = pieces[-1]._replace(stop=piece.stop, last_offset=piece.last_offset)
        return True
    return False


def _batches_from(
    partition: Partition, first: int, last: int | None, epochs: LeaderEpochs | None
) -> Iterator[_Piece]:
    """The intact batches with the offsets from `first` on, without a hole, up to `last` or the end."""
    next_offset = first
    for segment in partition._current().segments_from(first):
        position = segment.position_near(next_offset) if next_offset > segment.base_offset else 0
        for table in segment.tables(position, on_lost=lambda _: None):
            for batch in table:
                if batch.last_offset < next_offset:
                    continue
                known = None if epochs is None else epochs.epoch_for_offset(next_offset)
                if (
                    first_offset_of(batch) != next_offset or (last is not None and batch.last_offset > last)
                    or (known is not None and 0 <= batch.leader_epoch != known)
                ):
                    return
                yield _Piece(
                    segment, batch.position, batch.position + batch.size_bytes, next_offset, batch.last_offset,
                    partition.path,
                )
                next_offset = batch.last_offset + 1
                if last is not None and next_offset > last:
                    return


def _batch_at(partition: Partition, last_offset: int) -> RecordBatch | None:
    """The intact batch that ends with this offset; None if there is none, such as in other batches."""
    for segment in partition._current().segments_from(last_offset):
        position = segment.position_near(last_offset) if last_offset > segment.base_offset else 0
        for table in segment.tables(position, on_lost=lambda _: None):
            for batch in table:
                if batch.last_offset >= last_offset:
                    return batch if batch.last_offset == last_offset else None
    return None


def _last_batch(log: Path, start: int, stop: int) -> Iterator[RecordBatch]:
    """The last of the intact batches in these bytes of a .log."""
    with FileMapping(log) as mapping:
        window = KAFKA.window(mapping, log)
        position, last = start, None
        while position < stop:
            table = scan(window, position, max_batches=4096)
            if not len(table):
                break
            for batch in table:
                if batch.position + batch.size_bytes == stop:
                    last = batch
            position = table.end
        if last is not None:
            yield last


def _epochs_of(directory: Path) -> LeaderEpochs | None:
    """Those of the checkpoint; None if there is none that can be read."""
    with suppress(FileNotFoundError, CorruptCheckpointError, UnsupportedVersionError):
        epochs = LeaderEpochs.read(directory / names.LEADER_EPOCH_CHECKPOINT)
        return epochs if len(epochs) else None
    return None


def _topic_id(directory: Path) -> str:
    with suppress(FileNotFoundError, CorruptCheckpointError, UnsupportedVersionError):
        return str(PartitionMetadata.read(directory / names.PARTITION_METADATA).topic_id)
    return ""
