"""Records that are converted for an old client while they are sent: no more than a piece of them is in memory.

How many bytes they will be is said before they are made. As LazyDownConversionRecordsSend does it, that is the number
of bytes on disk, or of the first piece where that is more: what would pass it is cut off, and where less comes, the
head of a message that is not whole fills the rest. A client passes over a last message that is cut, and asks for it
again.
"""
import struct
from collections.abc import Iterator

from seglog.log.fetched import ConvertedFetch

_HEAD = struct.Struct(">qi")        # offset and size of a message
# The size that the filling message claims, at least: DefaultRecordBatch.RECORD_BATCH_OVERHEAD.
_CLAIMED_BYTES_MIN = 61
_FILLING_BYTES = 512 << 10


class ConvertedRecords:
    """What a `records` field of an answer may hold: `len` says how many bytes `pieces` gives."""

    def __init__(self, fetched: ConvertedFetch) -> None:
        self._pieces = iter(fetched)
        self._first = next(self._pieces, memoryview(b""))
        self._size_bytes = max(fetched.size_bytes, len(self._first))

    def __len__(self) -> int:
        return self._size_bytes

    def pieces(self) -> Iterator[memoryview]:
        """Once. Each step converts: it belongs into another thread than that of the loop."""
        left = self._size_bytes
        piece: memoryview | None = self._first
        while piece is not None and left:
            yield piece[:left]
            left -= min(left, len(piece))
            piece = next(self._pieces, None)
        if left:
            yield from _filling(left)


def cut_message(limit_bytes: int) -> bytes:
    """For a client in whose limit no batch fits: with nothing at all, it would ask forever; by this it knows why."""
    return b"".join(_filling(max(_HEAD.size, min(limit_bytes, _CLAIMED_BYTES_MIN))))


def _filling(size_bytes: int) -> Iterator[memoryview]:
    """The beginning of a message that claims more bytes than there are."""
    head = _HEAD.pack(-1, max(size_bytes + 1, _CLAIMED_BYTES_MIN))[:size_bytes]
    yield memoryview(head)
    left = size_bytes - len(head)
    zeros = memoryview(bytes(min(left, _FILLING_BYTES)))
    while left:
        yield zeros[:left]
        left -= min(left, len(zeros))
