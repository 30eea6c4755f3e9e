"""Reads frames from a byte stream: a length of four bytes, followed by that many bytes."""
import asyncio
import struct
import time
from collections import deque
from typing import Protocol

from seglog.endpoint.byte_streams import ByteStream
from seglog.errors import ProtocolError

# Most requests are smaller, and every idle connection has a buffer of this size. A connection that sends larger
# requests, such as a producer's, gets a larger buffer, up to the maximum: one call then reads a request without a copy.
_BUFFER_BYTES = 8 << 10
_BUFFER_BYTES_MAX = 64 << 10
# A claimed length alone allocates no more memory than this at first; the rest follows as the bytes arrive.
_STEP_BYTES = 256 << 10
# For so long the requests of one connection are handled in one turn of the loop, if more of them have come.
_TURN_S = 0.002
_FRAME_BYTES_MIN = 8        # api key, version and correlation id
_SIZE = struct.Struct(">i")


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

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._wake()

    def _wake(self) -> None:
        while self._waiting and not 0 < self._limit_bytes <= self.used_bytes:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class FrameTaker(Protocol):
    """Takes requests in the event loop callback that reads them, so that a request needs no task and no extra turn of
    the loop."""

    @property
    def is_waiting(self) -> bool:
        """Whether the answer to a frame that it took is pending. Until then, no other frame is handled."""

    def take(self, frame: memoryview) -> bool:
        """Handle it. False: nothing was done, and the caller of `FrameReader.next` has to handle it."""

    def settle(self) -> bool:
        """Send the answers that are ready. False: the socket does not take them now, so call `drain`."""

    async def drain(self) -> None: ...


class FrameReader:
    """The frames of one connection, one at a time: call `done` with each before you read the next one."""

    def __init__(self, stream: ByteStream, memory: RequestMemory, taker: FrameTaker) -> None:
        self._stream = stream
        self._memory = memory
        self._taker = taker
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        self._needed_bytes = 0      # after `_start`, before it is worth looking
        self._taken_bytes = 0
        self._limit_bytes = self._least_bytes = 0
        self._is_stopped = False

    async def next(self, limit_bytes: int, least_bytes: int = _FRAME_BYTES_MIN) -> memoryview | None:
        """The bytes of a frame that the taker does not take, good until `done`; None: the other side sends no more.

        Raises ProtocolError for a length that no frame has, OSError, what the taker raises.
        """
        self._limit_bytes, self._least_bytes = limit_bytes, least_bytes
        while True:
            self.serve()
            await self._taker.drain()
            if self._is_stopped:
                break
            if not await self._stream.receive(self._room, self._came):
                return None
        size_bytes, = _SIZE.unpack_from(self._buffer, self._start)
        if not least_bytes <= size_bytes <= limit_bytes:
            raise ProtocolError(
                f"a request of {size_bytes} bytes; expected {least_bytes} to {limit_bytes}",
                hint="the client speaks another protocol, or socket.request.max.bytes is too small for it",
            )
        if not self._taken_bytes:
            await self._memory.take(size_bytes)
            self._taken_bytes = size_bytes
        self._start += _SIZE.size
        if size_bytes + _SIZE.size > len(self._buffer):
            return await self._large(size_bytes)
        self._needed_bytes = size_bytes
        while self._end - self._start < size_bytes:
            if not await self._stream.receive(self._room, self._has_come):
                return None
        frame = memoryview(self._buffer)[self._start : self._start + size_bytes]
        self._start += size_bytes
        return frame

    def done(self) -> None:
        """Give back the frame: neither it nor any view of it is used any more."""
        if self._taken_bytes:
            self._memory.give_back(self._taken_bytes)
            self._taken_bytes = 0

    def serve(self) -> bool:
        """Give the taker the whole frames that came. Returns whether the caller of `next` has something to do."""
        try:
            self._is_stopped = self._serve()
        finally:
            is_settled = self._taker.settle()
        return self._is_stopped or not is_settled

    def _serve(self) -> bool:
        """Whether it stopped before a frame, or the beginning of one, that is for `next`."""
        taker, buffer = self._taker, self._buffer
        until_s = time.monotonic() + _TURN_S
        while not taker.is_waiting:
            have = self._end - self._start
            self._needed_bytes = _SIZE.size
            if have < _SIZE.size:
                return False
            size_bytes, = _SIZE.unpack_from(buffer, self._start)
            end = self._start + _SIZE.size + size_bytes
            if not self._least_bytes <= size_bytes <= self._limit_bytes or end - self._start > len(buffer):
                return True
            if not self._taken_bytes:
                if not self._memory.take_at_once(size_bytes):
                    return True
                self._taken_bytes = size_bytes
            self._needed_bytes += size_bytes
            if self._end < end:
                return False
            if not taker.take(memoryview(buffer)[self._start + _SIZE.size : end]):
                return True
            self._start = end
            if not taker.is_waiting:
                self.done()
                if self._end - self._start >= _SIZE.size and time.monotonic() > until_s:
                    return True     # the next one goes the long way, and others have their turn
        return False

    def _came(self, count: int) -> bool:
        return self._has_come(count) and self.serve()

    def _has_come(self, count: int) -> bool:
        self._end += count
        return self._end - self._start >= self._needed_bytes

    def _room(self) -> memoryview:
        """Where the next bytes go; what `_needed_bytes` counts fits into the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + self._needed_bytes > len(self._buffer):
            rest = self._buffer[self._start : self._end]
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return memoryview(self._buffer)[self._end :]

    async def _large(self, size_bytes: int) -> memoryview | None:
        """Read a frame into separate memory, which grows as the bytes arrive."""
        frame = bytearray(min(size_bytes, _STEP_BYTES))
        have = self._end - self._start
        frame[:have] = self._buffer[self._start : self._end]
        self._start = self._end = 0
        if size_bytes < _BUFFER_BYTES_MAX:
            self._buffer = bytearray(_BUFFER_BYTES_MAX)

        def room() -> memoryview:
            nonlocal frame
            if have == len(frame):
                larger = bytearray(min(size_bytes, 2 * len(frame)))
                larger[:have] = frame
                frame = larger
            return memoryview(frame)[have:]

        def came(count: int) -> bool:
            nonlocal have
            have += count
            return have == size_bytes

        if have < size_bytes and not await self._stream.receive(room, came):
            return None
        return memoryview(frame)
