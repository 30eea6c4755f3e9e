"""Byte streams of a connection: a plain socket, and TLS over one. For one task at a time.

Without TLS, bytes of a log go from file to socket in the kernel (os.sendfile, woken by add_writer, because uvloop does
not implement sock_sendfile). TLS is the standard library's, with memory BIOs; the encrypted bytes use the same socket.
"""
import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from seglog.reading.fetch_result import FetchSlice

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TLS_PIECE_BYTES = 64 << 10
_PIECE_BYTES_MAX = 1 << 20
# Of the parts of a subject (RFC 2253).
_SHORT_NAMES = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "localityName": "L",
    "stateOrProvinceName": "ST", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
}


class ByteStream(Protocol):
    """moved_at: when the other side last took bytes, by time.monotonic(). has_waited: the stream has waited for the
    other side, so other tasks had their turn; the caller that checks it resets it."""

    moved_at: float
    has_waited: bool

    async def receive(self, room: Callable[[], memoryview], came: Callable[[int], bool]) -> bool:
        """Read into what `room` gives, tell `came` how many bytes that were, perhaps in a callback of the loop, and so
        on until it says True, or there is no room. False: the other side sends no more. Raises OSError, what `came`
        raises."""

    async def send(self, data: "Buffer", *, more: bool = False) -> None:
        """Send all of `data`. `more`: other bytes follow at once. Raises OSError."""

    async def send_slice(self, slice: FetchSlice) -> None:
        """Send a slice of a log. Raises OSError, also if the file was truncated."""


class PlainStream:
    """A non-blocking socket."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sock
        self._loop = loop
        self._number = sock.fileno()
        self.moved_at = time.monotonic()
        self.has_waited = False
        # The receive that waits. The loop keeps watching the socket between two requests: to begin and end that costs
        # more than the call that reads.
        self._receiving: tuple[asyncio.Future[bool], Callable[[], memoryview], Callable[[int], bool]] | None = None
        self._is_watched = False

    async def receive(self, room: Callable[[], memoryview], came: Callable[[int], bool]) -> bool:
        # While the socket is watched, the loop tells of what comes.
        if not self._is_watched:
            view = room()
            if not view:
                return True
            try:
                count = self._socket.recv_into(view)
            except BlockingIOError:
                pass
            else:
                if count == 0:
                    return False
                if came(count):
                    return True
        self.has_waited = True
        future: asyncio.Future[bool] = self._loop.create_future()
        self._receiving = future, room, came
        self._watch()
        try:
            return await future
        finally:
            self._receiving = None

    def wake(self) -> None:
        """Let a receive that waits return as if `came` had said True."""
        if self._receiving is not None and not self._receiving[0].done():
            self._receiving[0].set_result(True)

    def send_at_once(self, data: "Buffer") -> int:
        """How many bytes it takes now. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _came(self) -> None:
        """The socket is readable. If no receive is pending, stop watching it: the loop would call this repeatedly."""
        receiving = self._receiving
        if receiving is None or receiving[0].done():
            self._stop_watching()
            return
        future, room, came = receiving
        try:
            view = room()
            if not view:
                future.set_result(True)
                return
            count = self._socket.recv_into(view)
            if count == 0 or came(count):
                future.set_result(count > 0)
        except BlockingIOError:
            pass
        except Exception as error:      # raised by `receive`
            if not future.done():
                future.set_exception(error)

    def _watch(self) -> None:
        if not self._is_watched:
            self._loop.add_reader(self._number, self._came)
            self._is_watched = True

    def _stop_watching(self) -> None:
        if self._is_watched:
            self._loop.remove_reader(self._number)
            self._is_watched = False

    async def send(self, data: "Buffer", *, more: bool = False) -> None:
        view = memoryview(data).cast("B")
        flags = socket.MSG_MORE if more and hasattr(socket, "MSG_MORE") else 0
        while view:
            try:
                sent = self._socket.send(view, flags)
            except BlockingIOError:
                await self._writable()
                continue
            view = view[sent:]
            self.moved_at = time.monotonic()

    async def send_slice(self, slice: FetchSlice) -> None:
        at, size_bytes = 0, slice.size_bytes
        while at < size_bytes:
            try:
                # In pieces, so that one client cannot occupy the loop for a slice of many MB.
                sent = slice.sendfile(self._number, at, _PIECE_BYTES_MAX)
            except BlockingIOError:
                await self._writable()
                continue
            if sent == 0:
                raise OSError("the file was truncated while it was sent")
            at += sent
            self.moved_at = time.monotonic()
            if at < size_bytes:
                await asyncio.sleep(0)

    async def _writable(self) -> None:
        self.has_waited = True
        future = self._loop.create_future()
        self._loop.add_writer(self._number, _wake, future)
        try:
            await future
        finally:
            self._loop.remove_writer(self._number)

    def close(self) -> None:
        self._stop_watching()
        self._socket.close()


class TlsStream:
    """TLS over a PlainStream. It never sends while it waits to receive, and never receives while it sends."""

    def __init__(self, stream: PlainStream, context: ssl.SSLContext) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._buffer = bytearray(_TLS_PIECE_BYTES)

    @property
    def moved_at(self) -> float:
        return self._stream.moved_at

    @moved_at.setter
    def moved_at(self, now: float) -> None:
        self._stream.moved_at = now

    @property
    def has_waited(self) -> bool:
        return self._stream.has_waited

    @has_waited.setter
    def has_waited(self, has_waited: bool) -> None:
        self._stream.has_waited = has_waited

    async def shake_hands(self) -> None:
        """Complete the TLS handshake. Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    raise ConnectionError("the client left during the TLS handshake") from None
            else:
                await self._flush()
                return

    def subject(self) -> str | None:
        """The subject of the client's certificate, as Kafka writes it ("CN=alice,O=example"), or None."""
        found = (self._tls.getpeercert() or {}).get("subject")
        if not found:
            return None
        pairs: list[tuple[str, str]] = [pair for names in reversed(cast("Any", found)) for pair in names]
        return ",".join(f"{_SHORT_NAMES.get(name, name)}={value}" for name, value in pairs)

    async def receive(self, room: Callable[[], memoryview], came: Callable[[int], bool]) -> bool:
        while True:
            view = room()
            if not view:
                return True
            try:
                data = self._tls.read(len(view))
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    return False
                continue
            except ssl.SSLZeroReturnError:
                return False
            if not data:
                return False
            view[: len(data)] = data
            if came(len(data)):
                return True

    async def send(self, data: "Buffer", *, more: bool = False) -> None:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _TLS_PIECE_BYTES):
            piece = view[at : at + _TLS_PIECE_BYTES]
            while piece:
                piece = piece[self._tls.write(piece) :]     # writes to memory: never blocks
            await self._flush(more=more or at + _TLS_PIECE_BYTES < len(view))

    async def send_slice(self, slice: FetchSlice) -> None:
        await self.send(slice.view())

    async def _feed(self) -> bool:
        if await self._stream.receive(lambda: memoryview(self._buffer), self._fed):
            return True
        self._in.write_eof()
        return False

    def _fed(self, count: int) -> bool:
        self._in.write(memoryview(self._buffer)[:count])
        return True

    async def _flush(self, *, more: bool = False) -> None:
        if self._out.pending:
            await self._stream.send(self._out.read(), more=more)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
