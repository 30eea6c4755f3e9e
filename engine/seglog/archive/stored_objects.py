"""The objects of a backup store, looked at before a run relies on them.

What has not changed since the last snapshot is not copied, and not even looked at one by one: its pieces are only named
again. They may be gone, with a disk of the store, or with whoever removed them by hand. So one listing tells which are
there, and what is not is copied again.
"""
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from seglog.archive.checking import object_files
from seglog.backups.manifest import LedgerBackup, PartitionBackup, SnapshotLedger, SnapshotPartition, named_pieces
from seglog.backups.pieces import ZSTD_SUFFIX, Piece, PieceStore
from seglog.backups.repository import Repository
from seglog.errors import SeglogError
from seglog.stores.store import StoredFile

_SIZE_BYTES = 4

AnyBackup = TypeVar("AnyBackup", PartitionBackup, LedgerBackup)


class StoredObjects:
    """Nothing is listed before the first question.

    missing     digests of pieces that were asked for, and are gone, or shorter than they were
    """

    def __init__(self, repository: Repository) -> None:
        self.missing: set[str] = set()
        self._repository = repository
        # Digest and size; of a compressed one, whose size does not tell, only the digest. A store has many.
        self._found: set[bytes] | None = None
        self._whole: set[tuple[Piece, ...]] = set()     # lists of files, all of which are there

    def has(self, piece: Piece, pieces: PieceStore) -> bool:
        """Whether the store has a piece, by its name and size. Raises StorageError."""
        try:
            return self._has(piece, pieces)
        except SeglogError:
            pieces.failed = True        # not the fault of what is being backed up
            raise

    def _has(self, piece: Piece, pieces: PieceStore) -> bool:
        if self._found is None:
            self._found = set(map(_key, object_files(self._repository)))
        digest = bytes.fromhex(piece.digest)
        whole = digest + piece.size_bytes.to_bytes(_SIZE_BYTES, "big")
        if whole in self._found or digest in self._found:
            return True
        if piece.digest in self.missing:
            return False
        # A listing may lack what was put just now.
        at_last = pieces.find(piece.digest)
        if at_last is None or _key(at_last) not in (whole, digest):
            self.missing.add(piece.digest)
            return False
        self._found.add(_key(at_last))
        return True

    def has_all(self, part: SnapshotPartition | SnapshotLedger, pieces: PieceStore) -> bool:
        """Whether the store has all files of a partition, queue or ledger in a snapshot. Raises StorageError,
        CorruptBackupError if their list is damaged."""
        if part.pieces in self._whole:
            return True
        if not all(self.has(piece, pieces) for piece in part.pieces):
            return False
        raw = self._repository.list_of(part, pieces)
        if self._lacks(named_pieces(raw), pieces):
            return False
        self._whole.add(part.pieces)
        return True

    def without_missing(self, backed: AnyBackup, pieces: PieceStore) -> AnyBackup:
        """A partition, queue or ledger with only those files of which the store has all pieces."""
        files = tuple(file for file in backed.files if not self._lacks(file.pieces, pieces))
        if len(files) == len(backed.files):
            return backed
        if isinstance(backed, PartitionBackup):
            return replace(backed, files=files, tail=None)
        left = {file.name for file in files}
        return replace(backed, files=files, tails={name: tail for name, tail in backed.tails.items() if name in left})

    def _lacks(self, named: Iterable[Piece], pieces: PieceStore) -> int:
        """How many of these pieces are gone."""
        return sum(not self.has(piece, pieces) for piece in named)


def _key(file: StoredFile) -> bytes:
    digest = file.name.removesuffix(ZSTD_SUFFIX)
    return bytes.fromhex(digest) + (file.size_bytes.to_bytes(_SIZE_BYTES, "big") if digest == file.name else b"")
