"""The transaction index of one segment (.txnindex): docs/formats/transaction_index.md.

One entry an aborted transaction whose marker lies in the segment; Kafka makes the file only where
there is one. Small: read whole. (Kafka's AbortedTxn, TransactionIndex.)
"""
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from seglog.errors import CorruptIndexError, UnsupportedVersionError

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size        # 34


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Offsets are those of the first data record, of the abort marker, and the last stable offset at that moment."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    version: int = VERSION

    def to_bytes(self) -> bytes:
        return _ENTRY.pack(
            self.version, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class TransactionIndex:
    """`TransactionIndex(bytes)`: a sequence of AbortedTransaction, in the order of their markers.

    Raises CorruptIndexError where the size is no multiple of the entry size, a transaction ends before
    it began, or markers go back (TransactionIndex.sanityCheck); UnsupportedVersionError for a newer entry.
    """

    def __init__(self, raw: bytes, *, path: str | Path | None = None) -> None:
        if len(raw) % ENTRY_SIZE:
            raise CorruptIndexError(
                f"{len(raw)} bytes are no multiple of the {ENTRY_SIZE}-byte entry", file=path,
                position=len(raw) - len(raw) % ENTRY_SIZE,
            )
        self.path = path
        self._entries: list[AbortedTransaction] = []
        marker = -1
        for slot, (version, producer_id, first, last, stable) in enumerate(_ENTRY.iter_unpack(raw)):
            position = slot * ENTRY_SIZE
            if version > VERSION:
                raise UnsupportedVersionError(
                    f"entry {slot} has version {version}, this release reads {VERSION}", file=path, position=position
                )
            if not 0 <= first <= last or last <= marker:
                raise CorruptIndexError(
                    f"entry {slot} aborts offsets {first} to {last} after a marker at {marker}",
                    file=path, position=position,
                )
            marker = last
            self._entries.append(AbortedTransaction(producer_id, first, last, stable, version))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, slot: int) -> AbortedTransaction:
        return self._entries[slot]

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def aborted_between(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that reach into [from_offset, to_offset), and whether later segments can add none.

        An entry's last stable offset at or above `to_offset` says that all before it was decided when its marker was
        written. (TransactionIndex.collectAbortedTxns)
        """
        found = []
        for entry in self._entries:
            if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                found.append(entry)
            if entry.last_stable_offset >= to_offset:
                return found, True
        return found, False

    def size_up_to(self, end_offset: int) -> int:
        """Bytes of the entries to keep where the log is cut at `end_offset`: those whose marker stays (truncateTo)."""
        kept = bisect_left(self._entries, end_offset, key=lambda e: e.last_offset)
        return kept * ENTRY_SIZE


def aborted_transactions(
    indexes: Iterable[TransactionIndex | None], from_offset: int, to_offset: int
) -> list[AbortedTransaction]:
    """Those that reach into [from_offset, to_offset), in the order of their markers.

    `indexes` are those of the segment that holds `from_offset` and of all after it, None where one has none; no more
    of them are taken than needed. (LocalLog.collectAbortedTransactions)
    """
    found: list[AbortedTransaction] = []
    for index in indexes:
        if index is None:
            continue
        some, complete = index.aborted_between(from_offset, to_offset)
        found += some
        if complete:
            break
    return found


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a .txnindex."""
    return b"".join(entry.to_bytes() for entry in entries)
