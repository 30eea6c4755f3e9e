"""The transaction index of one segment (.txnindex): docs/formats/transaction_index.md.

It has one entry for each aborted transaction whose marker is in the segment; Kafka creates the file only if there is
one. (Kafka's AbortedTxn, TransactionIndex.)
"""
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.transaction_search import TransactionSearch
from seglog.errors import CorruptIndexError, UnsupportedVersionError
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from array import array

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size        # 34


class AbortedTransaction(NamedTuple):
    """An aborted transaction: offsets of its first data record and of its marker, and the last stable offset then."""

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

    Raises CorruptIndexError if the size is not a multiple of the entry size, a transaction ends before it began, or
    markers go back (TransactionIndex.sanityCheck); UnsupportedVersionError for a newer entry.
    """

    def __init__(self, raw: bytes, *, path: str | Path | None = None) -> None:
        self.path = path
        self._search = TransactionSearch()
        self.extend(raw)

    def extend(self, raw: bytes) -> None:
        """Add the entries that were appended to the file. Raises what making the index raises."""
        before = len(self._search)
        taken = self._search.extend(raw)
        if (taken + 1) * ENTRY_SIZE <= len(raw):
            raise self._refusal(before + taken, raw[taken * ENTRY_SIZE :])
        if len(raw) % ENTRY_SIZE:
            size_bytes = before * ENTRY_SIZE + len(raw)
            raise CorruptIndexError(
                f"{size_bytes} bytes are not a multiple of the {ENTRY_SIZE}-byte entry", file=self.path,
                position=size_bytes - size_bytes % ENTRY_SIZE,
            )

    def _refusal(self, slot: int, raw: bytes) -> CorruptIndexError | UnsupportedVersionError:
        """Make the error for the entry with which `raw` begins."""
        version, _, first, last, _ = _ENTRY.unpack_from(raw)
        position = slot * ENTRY_SIZE
        if version > VERSION:
            return UnsupportedVersionError(
                f"entry {slot} has version {version}; this release reads {VERSION}", file=self.path, position=position
            )
        if version < 0:
            return CorruptIndexError(f"entry {slot} has version {version}", file=self.path, position=position)
        marker = self[slot - 1].last_offset if slot else -1
        return CorruptIndexError(
            f"entry {slot} aborts offsets {first} to {last}, but follows a marker at {marker}",
            file=self.path, position=position,
        )

    def __len__(self) -> int:
        return len(self._search)

    def __getitem__(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction(*self._search.entry(slot + len(self) if slot < 0 else slot))

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return (self[slot] for slot in range(len(self)))

    def aborted_between(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return those that overlap [from_offset, to_offset), and whether later segments cannot add any.

        If an entry's last stable offset is at or above `to_offset`, everything before it was decided when its marker
        was written. (TransactionIndex.collectAbortedTxns)
        """
        slots, is_complete = self._search.between(from_offset, to_offset)
        return [self[slot] for slot in slots], is_complete

    def put_between(self, from_offset: int, to_offset: int, fields: "array[int]") -> bool:
        """Do the same for `BatchTable.without`: append producer id, first offset and marker of each to `fields`."""
        return self._search.put_between(from_offset, to_offset, fields)

    def decides(self, to_offset: int) -> bool:
        """Whether all before `to_offset` was decided when the last marker was written: later segments add none."""
        return len(self) > 0 and self[-1].last_stable_offset >= to_offset

    def size_up_to(self, end_offset: int) -> int:
        """Return the bytes of entries to keep if the log is cut at `end_offset`: their markers stay (truncateTo)."""
        return self._search.slot_of(end_offset) * ENTRY_SIZE


class HeldTransactionIndex:
    """The index of a file that may grow, kept between reads: only what was appended since is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: tuple[int, int, int] | None = None       # inode, size and time of the file when it was read
        self._index: TransactionIndex | None = None
        self._lock = threading.Lock()       # guards both: one thread extends at a time

    def now(self) -> TransactionIndex | None:
        """Return the index as of now; None without a file. Raises what TransactionIndex raises, and StorageError."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError:
            return TransactionIndex(read_file(self._path), path=self._path)     # which raises the error
        key = (status.st_ino, status.st_size, status.st_mtime_ns)
        with self._lock:
            if key != self._key:
                self._index, self._key = self._read(status.st_ino), key
            return self._index

    def _read(self, inode: int) -> TransactionIndex | None:
        index = self._index
        try:
            if index is not None and self._key is not None and self._key[0] == inode and len(index):
                # From the last known entry on: a file that was truncated and grew again has another entry there.
                last = index[-1].to_bytes()
                tail = read_file(self._path, (len(index) - 1) * ENTRY_SIZE)
                if tail.startswith(last):
                    self._key = None        # until this succeeds
                    index.extend(tail[ENTRY_SIZE:])
                    return index
            return TransactionIndex(read_file(self._path), path=self._path)
        except FileNotFoundError:
            return None


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of a .txnindex."""
    return b"".join(entry.to_bytes() for entry in entries)
