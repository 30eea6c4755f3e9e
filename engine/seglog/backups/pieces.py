"""Pieces: the bytes of backed up files, at most 16 MiB at a time, stored once under the SHA-256 of their content.

A piece is in memory as a whole when it is hashed and when it is written, so an object holds what its name says, also
if the source changes meanwhile.
"""
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from seglog.backups.buffers import Buffers
from seglog.errors import (
    CorruptBackupError,
    CorruptRecordError,
    InvalidArgumentError,
    RecordTooLargeError,
    SeglogError,
)
from seglog.format.compression import Codec, compress, decompress
from seglog.format.foreign_names import judged_size
from seglog.stores.side_by_side import side_by_side
from seglog.stores.store import Store, StoredFile

PIECE_BYTES = 16 << 20
ZSTD_SUFFIX = ".zst"
COMPRESSIONS = ("none", "zstd")
# Compress a piece only if that saves at least an eighth of it. The first bytes tell.
_SAMPLE_BYTES, _WORTH = 256 << 10, 8
_DIGEST = re.compile("[0-9a-f]{64}")
_V2 = 2
# Hashing, syncs and requests run beside each other. Each has a piece in memory, and as many results wait.
_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: the SHA-256 of its bytes, in hexadecimal digits, and their number."""

    digest: str
    size_bytes: int

    @classmethod
    def of(cls, data: "bytes | memoryview") -> "Piece":
        return cls(hashlib.sha256(data).hexdigest(), len(data))


def parse_pieces(told: Any, file: str) -> tuple[Piece, ...]:
    """From [digest, bytes, digest, bytes, ...]. Raises ValueError, CorruptBackupError."""
    if not isinstance(told, list) or len(told) % 2:
        raise ValueError("a list of pieces is not one")
    pieces = []
    for digest, size_bytes in zip(told[::2], told[1::2], strict=True):
        if not is_digest(digest):
            raise ValueError(f"{ascii(digest)[:80]} is not a SHA-256 in hexadecimal digits")
        if not 0 < judged_size(size_bytes, file, CorruptBackupError) <= PIECE_BYTES:
            raise ValueError(f"a piece of {size_bytes} bytes")
        pieces.append(Piece(digest, size_bytes))
    return tuple(pieces)


def pieces_to_json(pieces: Iterable[Piece]) -> list[str | int]:
    return [part for piece in pieces for part in (piece.digest, piece.size_bytes)]


def is_digest(text: object) -> bool:
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


class PieceStore:
    """The objects of a backup store: `objects/<first two digits>/<digest>`, with `.zst` if it is compressed.
    `dry_run`: none is written. `reread`: an object that is there is read, and written again if it is damaged.

    failed        the store failed: that is no fault of the file that is being backed up
    stored, stored_bytes    objects that were written, and their sizes
    buffers       for the bytes that are given to `put_each`, which gives them back
    """

    def __init__(
        self, store: Store, path: str, compression: str, *, dry_run: bool = False, reread: bool = False
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidArgumentError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
        self._store = store
        self._path = f"{path}/objects"
        self._compression = compression
        self._is_dry_run = dry_run
        self._rereads = reread
        self._synced: set[str] = set()      # directories of objects that were there before
        self.buffers = Buffers(PIECE_BYTES)
        self.failed = False
        self.stored = self.stored_bytes = 0

    def path_of(self, digest: str, suffix: str = "") -> str:
        return f"{self._path}/{digest[:2]}/{digest}{suffix}"

    def put(self, data: bytes) -> Piece:
        """Store a piece, durably, unless there is a whole object with its name. Raises StorageError."""
        return next(iter(self.put_each([data])))

    def put_each(self, data: "Iterable[bytes | memoryview]") -> Iterator[Piece]:
        """The same for several, in order. What is in one of the `buffers` is given back."""
        for piece, stored_bytes in side_by_side(self._put, data, _AT_A_TIME):
            if stored_bytes is not None:
                self.stored += 1
                self.stored_bytes += stored_bytes
            yield piece

    def _put(self, data: "bytes | memoryview") -> tuple[Piece, int | None]:
        """The piece, and the size of its object if it was written."""
        try:
            return self._store_piece(data)
        finally:
            self.buffers.give_back(data)

    def _store_piece(self, data: "bytes | memoryview") -> tuple[Piece, int | None]:
        piece = Piece.of(data)
        try:
            suffix, is_whole = self._found(piece)
            if is_whole:
                return piece, None
            stored: bytes | memoryview = data
            # A damaged plain object is replaced by a plain one: a reader takes it before a compressed one.
            if suffix != "" and self._compression == "zstd" and (packed := _compressed(data)) is not None:
                suffix, stored = ZSTD_SUFFIX, packed
            else:
                suffix = ""
            if not self._is_dry_run:
                self._store.write(self.path_of(piece.digest, suffix), stored)
        except SeglogError:
            self.failed = True
            raise
        return piece, len(stored)

    def _found(self, piece: Piece) -> tuple[str | None, bool]:
        """The suffix of the object with a piece's name, None if there is none, and whether it is whole."""
        found = self._store.file(self.path_of(piece.digest))
        if found is not None:
            suffix, is_whole = "", found.size_bytes == piece.size_bytes     # otherwise it is written again
        elif self._compression == "zstd" and self._store.file(self.path_of(piece.digest, ZSTD_SUFFIX)) is not None:
            suffix, is_whole = ZSTD_SUFFIX, True
        else:
            return None, False
        if is_whole and self._rereads:
            is_whole = self._is_sound(piece.digest + suffix)
        if is_whole and not self._is_dry_run and piece.digest[:2] not in self._synced:
            # A run that was killed may have left it without its name on the disk.
            self._store.sync(self.path_of(piece.digest).rpartition("/")[0])
            self._synced.add(piece.digest[:2])
        return suffix, is_whole

    def find(self, digest: str) -> StoredFile | None:
        """The object with a piece's bytes, as it is now; None if there is none."""
        path = self.path_of(digest)
        return self._store.file(path) or self._store.file(path + ZSTD_SUFFIX)

    def _is_sound(self, name: str) -> bool:
        try:
            self.check(name)
        except CorruptBackupError:
            return False
        return True

    def get(self, piece: Piece) -> bytes:
        """The bytes of a piece. Raises CorruptBackupError if they are damaged or gone, StorageError."""
        path = self.path_of(piece.digest)
        data = self._read(path)
        if data is None:
            path += ZSTD_SUFFIX
            packed = self._read(path)
            if packed is None:
                raise CorruptBackupError("an object of the backup is gone", file=path.removesuffix(ZSTD_SUFFIX))
            data = _decompressed(packed, piece.size_bytes, path)
        if len(data) != piece.size_bytes or Piece.of(data) != piece:
            raise CorruptBackupError(
                f"an object of the backup is damaged: {len(data)} bytes with another SHA-256 than its name", file=path
            )
        return data

    def _read(self, path: str) -> bytes | None:
        try:
            return self._store.read(path)
        except SeglogError:
            self.failed = True
            raise

    def check(self, name: str) -> None:
        """Compare the object with this name with the digest in it. Raises CorruptBackupError, StorageError."""
        digest = name.removesuffix(ZSTD_SUFFIX)
        path = self.path_of(digest, name[len(digest) :])
        data = self._store.read(path)
        if data is None:
            raise CorruptBackupError("an object of the backup is gone", file=path)
        if name != digest:
            data = _decompressed(data, PIECE_BYTES, path)
        if Piece.of(data).digest != digest:
            raise CorruptBackupError("the SHA-256 of an object of the backup is not that of its name", file=path)

    def get_each(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """The bytes of each piece, in order."""
        return side_by_side(self.get, pieces, _AT_A_TIME)


def _compressed(data: "bytes | memoryview") -> bytes | None:
    """The data compressed, or None if that saves too little."""
    sample = data[:_SAMPLE_BYTES]
    if len(bytes(compress(Codec.ZSTD, _V2, sample, 1))) > len(sample) - len(sample) // _WORTH:
        return None
    packed = bytes(compress(Codec.ZSTD, _V2, data, 3))
    return packed if len(packed) <= len(data) - len(data) // _WORTH else None


def _decompressed(packed: bytes, size_bytes: int, path: str) -> bytes:
    try:
        return bytes(decompress(Codec.ZSTD, _V2, packed, size_bytes))
    except (CorruptRecordError, RecordTooLargeError) as error:
        raise CorruptBackupError(f"an object of the backup does not decompress: {error.what}", file=path) from error
