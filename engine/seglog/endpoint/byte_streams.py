"""Byte streams of a connection: a plain socket, and TLS over one. For one task at a time.

Without TLS, bytes of a log go from file to socket in the kernel (os.sendfile, woken by add_writer, because uvloop does
not implement sock_sendfile). TLS is the standard library's, with memory BIOs; the encrypted bytes use the same socket.
"""
import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING, Protocol

from seglog.log.fetched import FetchSlice

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TLS_PIECE_BYTES = 64 << 10
_PIECE_BYTES_MAX = 1 << 20


class ByteStream(Protocol):
    """moved_at: when the other side last took bytes, by time.monotonic(). has_waited: the stream has waited for the
    other side, so other tasks had their turn; the caller that checks it resets it."""

    moved_at: float
    has_waited: bool

    async def receive_into(self, view: memoryview) -> int:
        """Receive into `view`, and return the number of bytes; 0: the other side has stopped sending."""

    async def send(self, data: "Buffer", *, more: bool = False) -> None:
        """Send all of `data`. `more`: other bytes follow at once. Raises OSError."""

    async def send_slice(self, slice: FetchSlice) -> None:
        """Send a slice of a log. Raises OSError, also if the file was truncated."""

    def close(self) -> None: ...


class PlainStream:
    """A non-blocking socket."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sock
        self._loop = loop
        self._number = sock.fileno()
        self.moved_at = time.monotonic()
        self.has_waited = False
        # The pending receive, and where its bytes go. The loop keeps watching the socket between two requests: to start
        # and stop watching costs more than the call that reads.
        self._wanted: tuple[asyncio.Future[int], memoryview] | None = None
        self._is_watched = False

    async def receive_into(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            pass
        self.has_waited = True
        future: asyncio.Future[int] = self._loop.create_future()
        self._wanted = future, view
        if not self._is_watched:
            self._loop.add_reader(self._number, self._came)
            self._is_watched = True
        try:
            return await future
        finally:
            self._wanted = None

    def _came(self) -> None:
        """The socket is readable. If no receive is pending, stop watching it: the loop would call this repeatedly."""
        wanted = self._wanted
        if wanted is None or wanted[0].done():
            self._stop_watching()
            return
        try:
            wanted[0].set_result(self._socket.recv_into(wanted[1]))
        except BlockingIOError:
            pass
        except OSError as error:
            wanted[0].set_exception(error)

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

    async def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                data = self._tls.read(len(view))
                view[: len(data)] = data
                return len(data)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0

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
        count = await self._stream.receive_into(memoryview(self._buffer))
        if count == 0:
            self._in.write_eof()
            return False
        self._in.write(memoryview(self._buffer)[:count])
        return True

    async def _flush(self, *, more: bool = False) -> None:
        if self._out.pending:
            await self._stream.send(self._out.read(), more=more)

    def close(self) -> None:
        self._stream.close()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
