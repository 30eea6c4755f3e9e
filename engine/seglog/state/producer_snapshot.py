"""`<20 digits>.snapshot`: the idempotent producers as of the offset in the name. docs/formats/producer_snapshot.md.

Written at each roll and clean close; the offset is exclusive (ProducerStateManager.java, ProducerSnapshot.json).
"""
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptSnapshotError
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple

VERSION = 1
_HEADER = struct.Struct(">hIi")         # version, CRC-32C of what follows it, count
_CRC_END = 6
_ENTRY = struct.Struct(">qhiqiqiq")     # 46 bytes
ENTRY_SIZE = _ENTRY.size


class ProducerEntry(NamedTuple):
    """One producer: its last batch (sequence, offset, offset delta, timestamp ms) and its open transaction.

    `last_sequence` and `last_offset` are -1 if it has only a marker; `coordinator_epoch` is -1 before its first marker;
    `current_txn_first_offset` is -1 outside a transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class ProducerSnapshot(NamedTuple):
    """The producers, in the order of the file (Kafka's order is that of a hash map, and has no meaning)."""

    producers: tuple[ProducerEntry, ...] = ()

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """From the bytes of the file. Raises CorruptSnapshotError, also for another version, which Kafka drops, too."""
        return cls(tuple(ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(checked_body(raw, file=file))))

    @classmethod
    def of(cls, producers: Iterable[ProducerEntry]) -> Self:
        return cls(tuple(producers))

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.parse(read_file(path), file=path)

    def to_bytes(self) -> bytes:
        body = struct.pack(">i", len(self.producers)) + self.body()
        return struct.pack(">hI", VERSION, crc32c(body)) + body

    def body(self) -> bytes:
        """The entries as they are in the file, after its header."""
        return b"".join([
            _ENTRY.pack(
                p.producer_id, p.producer_epoch, p.last_sequence, p.last_offset, p.offset_delta,
                p.timestamp, p.coordinator_epoch, p.current_txn_first_offset,
            )
            for p in self.producers
        ])


def checked_body(raw: bytes, *, file: str | os.PathLike[str] | None = None) -> memoryview:
    """The entries in the bytes of the file. Raises CorruptSnapshotError."""
    if len(raw) < _HEADER.size:
        raise CorruptSnapshotError(
            f"the file has {len(raw)} bytes, its header alone needs {_HEADER.size}", file=file, position=0)
    version, crc, count = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise CorruptSnapshotError(f"unknown version {version}; expected {VERSION}", file=file, position=0)
    computed = crc32c(memoryview(raw)[_CRC_END:])
    if crc != computed:
        raise CorruptSnapshotError(f"the CRC is {crc:08x}, the bytes give {computed:08x}", file=file, position=2)
    if count < 0 or len(raw) - _HEADER.size != count * ENTRY_SIZE:
        raise CorruptSnapshotError(
            f"{count} entries of {ENTRY_SIZE} bytes do not fit {len(raw)} bytes", file=file, position=_CRC_END)
    return memoryview(raw)[_HEADER.size:]
