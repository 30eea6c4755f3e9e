"""Cuts the bytes of a connection into frames: a length of four bytes, followed by that many bytes."""
import asyncio
import struct
from collections import deque

from seglog.errors import ProtocolError

# Most requests are smaller, and every idle connection has a buffer of this size. A connection that sends larger
# requests, such as a producer's, gets a larger buffer, up to the maximum: one call then reads a request without a copy.
_BUFFER_BYTES = 8 << 10
_BUFFER_BYTES_MAX = 64 << 10
# A claimed length alone allocates no more memory than this. Then there is room for so many times as much as has come.
_FIRST_BYTES = 16 << 10
_GROWTH = 4
REQUEST_BYTES_MIN = 8       # api key, version and correlation id
_SIZE = struct.Struct(">i")
_NO_ROOM = memoryview(b"")


class RequestMemory:
    """The memory of the requests of all connections: queued.max.request.bytes. Use it in the loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for some."""
        return bool(self._waiting)

    async def take(self, size_bytes: int) -> None:
        """Wait until some memory is left, then take `size_bytes`, even if less is left (as in SimpleMemoryPool)."""
        while 0 < self._limit_bytes <= self.used_bytes:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake()        # pass the turn to the next one
                raise
        self.used_bytes += size_bytes
        self._wake()

    def take_at_once(self, size_bytes: int) -> bool:
        """The same if nobody has to wait for it; False: nothing was taken."""
        if 0 < self._limit_bytes <= self.used_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def add(self, size_bytes: int) -> None:
        """Take it, whether there is so much or not."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting and not 0 < self._limit_bytes <= self.used_bytes:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class FrameReader:
    """The frames of one connection, one at a time: call `done` with each before you take the next one.

        room ── a stream reads into it ── came ── next ── a frame ── done

    is_empty        nothing came after the frame that was done: another `next` gives none
    limit_bytes     no frame may be larger
    least_bytes     nor smaller
    lacks_memory    `next` gives nothing before `reserve`
    """

    def __init__(self, memory: RequestMemory) -> None:
        self.limit_bytes, self.least_bytes = 0, REQUEST_BYTES_MIN
        self._memory = memory
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        self._needed_bytes = _SIZE.size     # after `_start`, before it is worth looking
        self._taken_bytes = 0
        self._lacking_bytes = 0
        self._is_lent = False               # a frame, until it is done
        self.is_empty = True
        # A frame that is larger than the buffer, how many bytes it has in the end, and how many have come.
        self._large: bytearray | None = None
        self._large_bytes = self._large_end = 0

    @property
    def lacks_memory(self) -> bool:
        return self._lacking_bytes > 0

    async def reserve(self) -> None:
        """Wait for the memory of the next frame."""
        await self._memory.take(self._lacking_bytes)
        self._taken_bytes, self._lacking_bytes = self._lacking_bytes, 0

    def next(self) -> memoryview | None:
        """The bytes of the next frame, valid until `done`, or None if it has not arrived yet or lacks memory.

        Raises ProtocolError for a length that no frame has.
        """
        if self._large is not None:
            if self._large_end < self._large_bytes:
                return None
            self._is_lent = True
            return memoryview(self._large)
        have, self._needed_bytes = self._end - self._start, _SIZE.size
        if have < _SIZE.size:
            return None
        size_bytes, = _SIZE.unpack_from(self._buffer, self._start)
        if not self.least_bytes <= size_bytes <= self.limit_bytes:
            raise ProtocolError(
                f"a request of {size_bytes} bytes; expected {self.least_bytes} to {self.limit_bytes}",
                hint="the client speaks another protocol, or socket.request.max.bytes is too small for it",
            )
        if not self._taken_bytes:
            if not self._memory.take_at_once(size_bytes):
                self._lacking_bytes = size_bytes
                return None
            self._taken_bytes = size_bytes
        self._needed_bytes += size_bytes
        if self._needed_bytes > len(self._buffer):
            self._begin_large(size_bytes)
            return None
        if have < self._needed_bytes:
            return None
        begin = self._start + _SIZE.size
        self._start = begin + size_bytes
        self._is_lent = True
        return memoryview(self._buffer)[begin : self._start]

    def done(self) -> None:
        """Give back the frame: neither it nor any view of it is used any more."""
        if self._taken_bytes:
            self._memory.give_back(self._taken_bytes)
            self._taken_bytes = 0
        if self._large is not None:
            self._large = None
            if self._large_bytes < _BUFFER_BYTES_MAX and len(self._buffer) < _BUFFER_BYTES_MAX:
                larger = bytearray(_BUFFER_BYTES_MAX)
                larger[self._start : self._end] = self._buffer[self._start : self._end]
                self._buffer = larger
        self._is_lent = False
        self.is_empty = self._start == self._end
        if self.is_empty:
            self._needed_bytes = _SIZE.size

    def room(self) -> memoryview:
        """Where the next bytes go; none until the last frame is done. What `_needed_bytes` counts fits into it."""
        if self._is_lent:
            return _NO_ROOM
        large = self._large
        if large is not None:
            if self._large_end == len(large):
                self._large = bytearray(min(self._large_bytes, _GROWTH * len(large)))
                self._large[: len(large)] = large
            return memoryview(self._large)[self._large_end :]       # type: ignore[arg-type]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + self._needed_bytes > len(self._buffer):
            rest = self._buffer[self._start : self._end]
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return memoryview(self._buffer)[self._end :]

    def came(self, count: int) -> bool:
        """So many bytes were read into the room. Returns whether `next` is worth a call."""
        if self._large is not None:
            self._large_end += count
            return self._large_end == self._large_bytes
        self._end += count
        return self._end - self._start >= self._needed_bytes

    def _begin_large(self, size_bytes: int) -> None:
        """The next frame comes into separate memory, which grows as the bytes arrive."""
        come = self._buffer[self._start + _SIZE.size : self._end]
        self._large = bytearray(min(size_bytes, max(_FIRST_BYTES, len(come))))
        self._large[: len(come)] = come
        self._large_bytes, self._large_end = size_bytes, len(come)
        self._start = self._end = 0
