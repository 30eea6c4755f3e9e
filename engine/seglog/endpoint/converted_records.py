"""Records that are converted for an old client while they are sent: only one piece of them is in memory at a time.

Their size must be sent before they are converted. As in LazyDownConversionRecordsSend, it is the size on disk, or the
size of the first piece if that is larger. If the conversion produces more, the rest is cut off; if it produces less,
the beginning of an incomplete message fills the gap. A client skips an incomplete message at the end, and requests it
again.
"""
import struct
import threading
from collections import deque
from collections.abc import Iterator

from seglog.format.batch_layout import V2_HEADER_SIZE
from seglog.reading.fetch_result import ConvertedFetch

_HEAD = struct.Struct(">qi")        # offset and size of a message
_CLAIMED_BYTES_MIN = V2_HEADER_SIZE     # the smallest size that the filling message claims
_FILLING_BYTES = 512 << 10


class FirstPieces:
    """The memory of first pieces that wait to be sent, of all connections: one request has one for each partition, and
    clients may take them slowly. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._given_back: deque[int] = deque()

    def take(self, size_bytes: int) -> bool:
        """Whether there was so much left, which is now taken."""
        with self._lock:
            while self._given_back:
                self._used_bytes -= self._given_back.popleft()
            if self._used_bytes + size_bytes > self._limit_bytes:
                return False
            self._used_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Takes no lock: the garbage collector may call it in a thread that holds the lock."""
        self._given_back.append(size_bytes)


class ConvertedRecords:
    """A value for the `records` field of an answer: `len` is the number of bytes that `pieces` yields."""

    def __init__(self, fetched: ConvertedFetch, memory: FirstPieces) -> None:
        """`memory`: of first pieces. If it is short, this one is dropped, and converted again when it is sent."""
        self._fetched = fetched
        self._memory = memory
        self._held_bytes = 0
        pieces = iter(fetched)
        first = next(pieces, memoryview(b""))
        self._size_bytes = max(fetched.size_bytes, len(first))
        self._kept: tuple[memoryview, Iterator[memoryview]] | None = None
        if memory.take(len(first)):
            self._held_bytes, self._kept = len(first), (first, pieces)

    def __del__(self) -> None:
        self._give_back()

    def __len__(self) -> int:
        return self._size_bytes

    def _give_back(self) -> None:
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._memory.give_back(held_bytes)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the converted bytes, once. Each step converts, so run it in a thread, not in the loop."""
        left = self._size_bytes
        if self._kept is None:
            pieces = iter(self._fetched)
        else:
            first, pieces = self._kept
            self._kept = None
            yield first[:left]
            left -= min(left, len(first))
            del first
            self._give_back()
        while left:
            piece = next(pieces, None)
            if piece is None:
                break
            yield piece[:left]
            left -= min(left, len(piece))
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
