"""`leader-epoch-checkpoint`: the offset at which each leader epoch began. docs/formats/leader_epoch_checkpoint.md.

Kafka has it since 0.11 (KIP-101). Both columns rise; KAFKA-16541 could leave a torn file, which a broker rebuilds from
the batches' own epochs.
"""
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from seglog.errors import CorruptCheckpointError, InvalidArgumentError
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple
from seglog.state.text_files import decode, format_checkpoint, parse_checkpoint, parse_int


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Where an epoch ends, exclusive: Kafka's answer to OffsetsForLeaderEpoch."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """A sequence of EpochStart, rising in both."""

    def __init__(self, entries: Iterable[EpochStart] = (), *, file: str | os.PathLike[str] | None = None) -> None:
        self._entries = tuple(entries)
        for before, entry in zip(self._entries, self._entries[1:], strict=False):
            if entry.epoch <= before.epoch or entry.start_offset < before.start_offset:
                raise CorruptCheckpointError(
                    f"epoch {entry.epoch} from offset {entry.start_offset} after "
                    f"epoch {before.epoch} from offset {before.start_offset}", file=file)
        if any(e.epoch < 0 or e.start_offset < 0 for e in self._entries):
            raise CorruptCheckpointError("a negative epoch or offset", file=file)

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """From the bytes of the file. Raises CorruptCheckpointError."""
        entries = []
        for number, line in enumerate(parse_checkpoint(decode(raw, file), file), start=3):
            fields = line.split(" ")
            if len(fields) != 2:
                raise CorruptCheckpointError(f"line {number}: {line[:80]!r} is not `<epoch> <start offset>`", file=file)
            entries.append(EpochStart(parse_int(fields[0], file, number), parse_int(fields[1], file, number)))
        return cls(entries, file=file)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.parse(read_file(path), file=path)

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[int, int]]) -> Self:
        """The epochs from (leader epoch, base offset) of batches in log order, as a broker's recovery builds them.

        Batches below v2, and converted ones, have -1 and are ignored. (LogSegment.recover)
        """
        entries: list[EpochStart] = []
        for epoch, base_offset in batches:
            if epoch >= 0 and (not entries or epoch > entries[-1].epoch):
                entries.append(EpochStart(epoch, base_offset))
        return cls(entries)

    def assign(self, epoch: int, start_offset: int) -> "LeaderEpochs":
        """With `epoch` from `start_offset` on; itself if that is not new.

        Entries that contradict the new one are dropped: those of its epoch or a later one, and those that do not begin
        earlier, because nothing was written in them. (LeaderEpochFileCache.assign)
        """
        if epoch < 0 or start_offset < 0:
            raise InvalidArgumentError(
                f"a leader epoch and its offset must not be negative: epoch {epoch} from offset {start_offset}")
        if self._entries and epoch == self._entries[-1].epoch and start_offset >= self._entries[-1].start_offset:
            return self
        kept = list(self._entries)
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept.pop()
        return LeaderEpochs([*kept, EpochStart(epoch, start_offset)])

    def truncate_from_end(self, end_offset: int) -> "LeaderEpochs":
        """For a log cut at `end_offset`: without the epochs that begin there or later; itself if none does."""
        kept = [e for e in self._entries if e.start_offset < end_offset]
        return LeaderEpochs(kept) if len(kept) < len(self) else self

    def truncate_from_start(self, start_offset: int) -> "LeaderEpochs":
        """For a log that now begins at `start_offset`: the epoch of that offset begins there; itself if it does."""
        slot = bisect_right(self._entries, start_offset, key=lambda e: e.start_offset)
        if slot == 0 or (slot == 1 and self._entries[0].start_offset == start_offset):
            return self
        return LeaderEpochs([EpochStart(self._entries[slot - 1].epoch, start_offset), *self._entries[slot:]])

    def to_bytes(self) -> bytes:
        return format_checkpoint([f"{e.epoch} {e.start_offset}" for e in self._entries]).encode()

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, slot: int) -> EpochStart:
        return self._entries[slot]

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return f"LeaderEpochs({list(self._entries)})"

    @property
    def latest(self) -> int | None:
        """The last epoch; None if there is none."""
        return self._entries[-1].epoch if self._entries else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which the offset was written; None before the first (LeaderEpochFileCache.epochForOffset)."""
        slot = bisect_right(self._entries, offset, key=lambda e: e.start_offset)
        return self._entries[slot - 1].epoch if slot else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """The largest epoch not above `epoch`, and its end offset: the furthest point up to which two logs that have it
        can agree.

        For an epoch below the first known one: where that one begins. None for an epoch above the last one, or if
        nothing is known (LeaderEpochFileCache.endOffsetFor, KIP-101).
        """
        if not self._entries or epoch < 0 or epoch > self._entries[-1].epoch:
            return None
        slot = bisect_right(self._entries, epoch, key=lambda e: e.epoch)
        if slot == len(self):
            return EpochEnd(epoch, log_end_offset)
        return EpochEnd(self._entries[slot - 1].epoch if slot else epoch, self._entries[slot].start_offset)


class LeaderEpochFileCache:
    """The leader epochs of a log that grows, and their file, which is always up to date.

    Each change is durable when the call returns: an epoch is assigned before its first batch is written, because a
    recovery can remove an epoch in which nothing was written, but cannot invent one. A log without epochs gets no file.
    Only the appending thread changes it; `epochs` is replaced whole, so that any thread may read it.
    """

    def __init__(self, fs: FileSystem, path: Path, epochs: LeaderEpochs | None = None) -> None:
        """`epochs`: the contents of the file; read from it if not given. Raises CorruptCheckpointError."""
        self._fs = fs
        self._path = path
        if epochs is None:
            epochs = LeaderEpochs.read(path) if path.exists() else LeaderEpochs()
        self.epochs = epochs

    @property
    def latest(self) -> int | None:
        """The last epoch; None if there is none."""
        return self.epochs.latest

    def assign(
        self, epoch: int, start_offset: int, write: Callable[[Mapping[Path, bytes]], None] | None = None
    ) -> None:
        """Batches from `start_offset` on are of `epoch`. `write`: writes the file durably, if the caller has more to
        write with it. Raises StorageError; then nothing has changed."""
        self._put(self.epochs.assign(epoch, start_offset), write)

    def truncate_from_end(self, end_offset: int) -> None:
        """The log is cut at `end_offset`. Raises StorageError; then nothing has changed."""
        self._put(self.epochs.truncate_from_end(end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """The log begins at `start_offset` now. Raises StorageError; then nothing has changed."""
        self._put(self.epochs.truncate_from_start(start_offset))

    def _put(self, epochs: LeaderEpochs, write: Callable[[Mapping[Path, bytes]], None] | None = None) -> None:
        if epochs is not self.epochs:
            if write is None:
                write_atomically(self._fs, self._path, epochs.to_bytes())
            else:
                write({self._path: epochs.to_bytes()})
            self.epochs = epochs
