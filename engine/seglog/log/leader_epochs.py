"""`leader-epoch-checkpoint`: at which offset each leader epoch began. docs/formats/leader_epoch_checkpoint.md.

Of Kafka 0.11 and later (KIP-101). Both columns rise; KAFKA-16541 could leave a torn one, which a
broker rebuilds from the batches' own epochs.
"""
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seglog.errors import CorruptCheckpointError
from seglog.fs.mapping import read_file
from seglog.log.text_files import decode, format_checkpoint, parse_checkpoint, parse_int


@dataclass(frozen=True, slots=True)
class EpochStart:
    epoch: int
    start_offset: int


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
        """The epochs of (leader epoch, base offset) of batches in log order, as a broker's recovery makes them.

        Batches below v2, and converted ones, carry -1 and say nothing. (LogSegment.recover)
        """
        entries: list[EpochStart] = []
        for epoch, base_offset in batches:
            if epoch >= 0 and (not entries or epoch > entries[-1].epoch):
                entries.append(EpochStart(epoch, base_offset))
        return cls(entries)

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
        """The last epoch; None where there is none."""
        return self._entries[-1].epoch if self._entries else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which the offset was written; None before the first (LeaderEpochFileCache.epochForOffset)."""
        slot = bisect_right(self._entries, offset, key=lambda e: e.start_offset)
        return self._entries[slot - 1].epoch if slot else None
