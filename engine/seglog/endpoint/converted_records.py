"""Records that are converted for an old client while they are sent: only one piece of them is in memory at a time.

Their size must be sent before they are converted. As in LazyDownConversionRecordsSend, it is the size on disk, or the
size of the first piece if that is larger. If the conversion produces more, the rest is cut off; if it produces less,
the beginning of an incomplete message fills the gap. A client skips an incomplete message at the end, and requests it
again.
"""
import struct
from collections.abc import Iterator

from seglog.format.batch_layout import V2_HEADER_SIZE
from seglog.reading.fetch_result import ConvertedFetch

_HEAD = struct.Struct(">qi")        # offset and size of a message
_CLAIMED_BYTES_MIN = V2_HEADER_SIZE     # the smallest size that the filling message claims
_FILLING_BYTES = 512 << 10


class ConvertedRecords:
    """A value for the `records` field of an answer: `len` is the number of bytes that `pieces` yields."""

    def __init__(self, fetched: ConvertedFetch) -> None:
        self._pieces = iter(fetched)
        self._first = next(self._pieces, memoryview(b""))
        self._size_bytes = max(fetched.size_bytes, len(self._first))

    def __len__(self) -> int:
        return self._size_bytes

    def pieces(self) -> Iterator[memoryview]:
        """Yield the converted bytes, once. Each step converts, so run it in a thread, not in the loop."""
        left = self._size_bytes
        piece: memoryview | None = self._first
        while piece is not None and left:
            yield piece[:left]
            left -= min(left, len(piece))
            piece = next(self._pieces, None)
        if left:
            yield from _filling(left)


def cut_message(limit_bytes: int) -> bytes:
    """An incomplete message, for a client whose limit is smaller than the batch: with an empty answer it would ask
    forever, from this one it learns the reason."""
    return b"".join(_filling(max(_HEAD.size, min(limit_bytes, _CLAIMED_BYTES_MIN))))


def _filling(size_bytes: int) -> Iterator[memoryview]:
    """The beginning of a message that claims more bytes than follow."""
    head = _HEAD.pack(-1, max(size_bytes + 1, _CLAIMED_BYTES_MIN))[:size_bytes]
    yield memoryview(head)
    left = size_bytes - len(head)
    zeros = memoryview(bytes(min(left, _FILLING_BYTES)))
    while left:
        yield zeros[:left]
        left -= min(left, len(zeros))
