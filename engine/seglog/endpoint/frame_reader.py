"""Frames out of a stream of bytes: a length of four bytes, and as many bytes as it says."""
import asyncio
from collections import deque

from seglog.endpoint.byte_streams import ByteStream
from seglog.errors import ProtocolError

# Most requests are smaller; a thousand idle connections hold as many of these. One that sends larger requests, as a
# producer does, gets a larger buffer, up to the second number: a request is then read by one call, and not copied.
_BUFFER_BYTES = 8 << 10
_BUFFER_BYTES_MAX = 64 << 10
# A length is believed for so much memory at once: the rest is taken as the bytes come.
_STEP_BYTES = 256 << 10
_FRAME_BYTES_MIN = 8        # api key, version and correlation id


class RequestMemory:
    """What the requests of all connections take together: queued.max.request.bytes. In the loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, size_bytes: int) -> None:
        """As SimpleMemoryPool has it: whoever finds any memory left gets all that it asks for."""
        while 0 < self._limit_bytes <= self.used_bytes:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake()        # its turn is for the next one
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
    """The frames of one connection, one at a time: the next one is read when the last one was given back."""

    def __init__(self, stream: ByteStream, memory: RequestMemory) -> None:
        self._stream = stream
        self._memory = memory
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        self._taken_bytes = 0

    async def next(self, limit_bytes: int, least_bytes: int = _FRAME_BYTES_MIN) -> memoryview | None:
        """The bytes of a frame, good until `done`; None: the other side sends no more.

        Raises ProtocolError for a length that no frame has, OSError.
        """
        if not await self._have(4):
            return None
        size_bytes = int.from_bytes(self._buffer[self._start : self._start + 4], "big", signed=True)
        if not least_bytes <= size_bytes <= limit_bytes:
            raise ProtocolError(
                f"a request of {size_bytes} bytes, where {least_bytes} to {limit_bytes} are allowed",
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
        """The frame, and all that looks into it, is not needed any more."""
        if self._taken_bytes:
            self._memory.give_back(self._taken_bytes)
            self._taken_bytes = 0

    async def _have(self, count: int) -> bool:
        """Whether so many bytes came; `count` fits into the buffer."""
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
        """A frame with memory of its own, which grows with what came."""
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
