"""Reads frames from a byte stream: a length of four bytes, followed by that many bytes."""
import asyncio
from collections import deque

from seglog.endpoint.byte_streams import ByteStream
from seglog.errors import ProtocolError

# Most requests are smaller, and every idle connection has a buffer of this size. A connection that sends larger
# requests, such as a producer's, gets a larger buffer, up to the maximum: one call then reads a request without a copy.
_BUFFER_BYTES = 8 << 10
_BUFFER_BYTES_MAX = 64 << 10
# A claimed length alone allocates no more memory than this at first; the rest follows as the bytes arrive.
_STEP_BYTES = 256 << 10
_FRAME_BYTES_MIN = 8        # api key, version and correlation id


class RequestMemory:
    """The memory of the requests of all connections: queued.max.request.bytes. Use it in the loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

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

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._wake()

    def _wake(self) -> None:
        while self._waiting and not 0 < self._limit_bytes <= self.used_bytes:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class FrameReader:
    """The frames of one connection, one at a time: call `done` with each before you read the next one."""

    def __init__(self, stream: ByteStream, memory: RequestMemory) -> None:
        self._stream = stream
        self._memory = memory
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        self._taken_bytes = 0

    async def next(self, limit_bytes: int, least_bytes: int = _FRAME_BYTES_MIN) -> memoryview | None:
        """Read a frame; the bytes are valid until `done`. None: the other side has stopped sending.

        Raises ProtocolError for a length that is not allowed, OSError.
        """
        if not await self._have(4):
            return None
        size_bytes = int.from_bytes(self._buffer[self._start : self._start + 4], "big", signed=True)
        if not least_bytes <= size_bytes <= limit_bytes:
            raise ProtocolError(
                f"a request of {size_bytes} bytes; expected {least_bytes} to {limit_bytes}",
                hint="the client speaks another protocol, or socket.request.max.bytes is too small for it",
            )
        await self._memory.take(size_bytes)
        self._taken_bytes = size_bytes
        self._start += 4
        if size_bytes > len(self._buffer):
            return await self._large(size_bytes)
        if not await self._have(size_bytes):
            return None
        frame = memoryview(self._buffer)[self._start : self._start + size_bytes]
        self._start += size_bytes
        return frame

    def done(self) -> None:
        """Give back the frame: neither it nor any view of it is used any more."""
        if self._taken_bytes:
            self._memory.give_back(self._taken_bytes)
            self._taken_bytes = 0

    async def _have(self, count: int) -> bool:
        """Read until the buffer has `count` bytes, which must fit into it; False: the stream ended before."""
        while self._end - self._start < count:
            if self._start == self._end:
                self._start = self._end = 0
            elif self._start + count > len(self._buffer):
                rest = self._buffer[self._start : self._end]
                self._buffer[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            came = await self._stream.receive_into(memoryview(self._buffer)[self._end :])
            if came == 0:
                return False
            self._end += came
        return True

    async def _large(self, size_bytes: int) -> memoryview | None:
        """Read a frame into separate memory, which grows as the bytes arrive."""
        frame = bytearray(min(size_bytes, _STEP_BYTES))
        have = self._end - self._start
        frame[:have] = self._buffer[self._start : self._end]
        self._start = self._end = 0
        if size_bytes < _BUFFER_BYTES_MAX:
            self._buffer = bytearray(_BUFFER_BYTES_MAX)
        while have < size_bytes:
            if have == len(frame):
                larger = bytearray(min(size_bytes, 2 * len(frame)))
                larger[:have] = frame
                frame = larger
            came = await self._stream.receive_into(memoryview(frame)[have:])
            if came == 0:
                return None
            have += came
        return memoryview(frame)
