"""One connection: it reads a frame, and sends the answer before it reads the next one.

So the server stops reading from a client that does not take its answers, and other clients are not affected.
"""
import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from seglog.endpoint.authentication import Authentication
from seglog.endpoint.byte_streams import ByteStream, PlainStream
from seglog.endpoint.converted_records import ConvertedRecords
from seglog.endpoint.frame_reader import FrameReader, RequestMemory
from seglog.endpoint.peer import Peer
from seglog.endpoint.requests import DroppedError, Requests
from seglog.endpoint.settings import ServerConfig
from seglog.errors import ProtocolError, SeglogError
from seglog.logger import Logger
from seglog.reading.fetch_result import FetchSlice

if TYPE_CHECKING:
    from seglog.endpoint.server_metrics import ServerCounters

_LOG = Logger(__name__)

# For so long a client may take nothing of its answer while others wait for the memory that it has.
_STUCK_S = 5.0


class Connection:
    """A client's connection, from its first byte on. `run` returns when it ends."""

    def __init__(
        self, stream: ByteStream, requests: Requests, config: ServerConfig, memory: RequestMemory,
        converters: Executor, traffic: "ServerCounters", authentication: Authentication, client_host: str,
        address: tuple[str, int], peer: Peer, logged_in: Callable[[], object],
    ) -> None:
        """`address`: the server's address, as this client sees it. `logged_in`: called when it is authenticated."""
        self._stream = stream
        self._requests = requests
        self._config = config
        # Where answers can be sent at once; under TLS it takes a task.
        self._plain = stream if isinstance(stream, PlainStream) else None
        self._frames = FrameReader(stream, memory, self)
        self._converters = converters
        self._traffic = traffic
        self._authentication = authentication
        self._client_host = client_host
        self._host, self._port = address
        self.peer = peer
        self._answers_memory = requests.answers
        self._logged_in = logged_in
        # Whether it waits to read or to send, and since when: neither may take forever.
        self._reads_since: float | None = time.monotonic()
        self._is_sending = False
        # Of requests that were handled at once: answers that are to be sent, and what of them the socket did not take.
        self._answers: list[Any] = []
        self._rest: memoryview | None = None
        self.is_waiting = self._is_taking = False
        self._has_ended = False

    def is_stuck(self, now: float) -> bool:
        """Whether the client takes nothing of an answer."""
        return self._is_sending and now - self._stream.moved_at > _STUCK_S

    def idle_s(self, now: float) -> float:
        """How long the server has waited for the client to send, or to take, something."""
        if self._is_sending:
            return now - self._stream.moved_at
        return 0.0 if self._reads_since is None else now - self._reads_since

    async def run(self) -> None:
        """Serve the connection until it ends. Raises nothing but CancelledError."""
        try:
            while await self._serve_one():
                # Otherwise a client that sends without a pause would block the loop for the others.
                if not self._stream.has_waited:
                    await asyncio.sleep(0)
                self._stream.has_waited = False
        except DroppedError:
            pass
        except ProtocolError as error:
            self._requests.security.refused(self._client_host, error)
        except (OSError, ssl.SSLError):
            pass        # the client left
        except SeglogError as error:        # a file that cannot be read while it is sent
            _LOG.error("closed the connection of %s: %s", self._client_host, error)
        finally:
            self._has_ended = True
            self._frames.done()

    async def _serve_one(self) -> bool:
        """Read and answer one request. Returns whether another one may follow."""
        authentication, config = self._authentication, self._config
        limit = config.socket_request_max_bytes
        if not authentication.is_done:
            limit = min(limit, config.sasl_server_max_receive_size)
        self._reads_since = time.monotonic()
        if authentication.takes_tokens:
            token = await self._frames.next(limit, least_bytes=0)
            if token is None:
                return False
            is_taken = authentication.takes(bytes(token))
            self._frames.done()
            await self._note_login()
            if is_taken:
                await self._send([b"\0\0\0\0"])
            return is_taken
        frame = await self._frames.next(limit)
        if frame is None:
            return False
        self._reads_since = None
        self._traffic.received_bytes += len(frame) + 4
        is_login = not authentication.is_done
        segments, held_bytes = await self._requests.answer(
            frame, authentication, self._client_host, self._host, self._port, self.peer)
        del frame
        self._frames.done()
        if is_login:
            await self._note_login()
        try:
            if segments is not None:
                await self._send(segments)
        finally:
            if held_bytes:
                self._answers_memory.give_back(held_bytes)
        return not authentication.has_failed

    # --- at once (FrameTaker) --------------------------------------------------------------------

    def take(self, frame: memoryview) -> bool:
        if self._plain is None or self._rest is not None:
            return False
        self.is_waiting = self._is_taking = True
        try:
            is_taken = self._requests.answer_at_once(
                frame, self._authentication, self._client_host, self._host, self._port, self._give)
        except BaseException:
            self.is_waiting = False
            raise
        finally:
            self._is_taking = False
        if not is_taken:
            self.is_waiting = False
            return False
        self._traffic.received_bytes += len(frame) + 4
        if self.is_waiting:
            self._reads_since = None
            self._plain.pause()
        else:
            self._reads_since = time.monotonic()
        return True

    def _give(self, segments: list[Any] | None) -> None:
        """The answer to a request that was taken."""
        self.is_waiting = False
        if segments is not None:
            self._answers += segments
        plain = self._plain
        if plain is None or self._is_taking or self._has_ended:
            return      # `take` goes on with it, or nobody is there any more
        self._reads_since = time.monotonic()
        self._frames.done()
        try:
            has_work = self._frames.serve()
        except Exception as error:      # for the task
            plain.fail(error)
            return
        if not self.is_waiting:
            plain.resume()
        if has_work:
            plain.wake()

    def settle(self) -> bool:
        answers = self._answers
        if self._rest is None and answers:
            assert self._plain is not None
            data = answers[0] if len(answers) == 1 else b"".join(answers)
            answers.clear()
            sent = self._plain.send_at_once(data)
            self._traffic.sent_bytes += sent
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
        return self._rest is None

    async def drain(self) -> None:
        while self._rest is not None:
            await self._send([self._rest])
            self._rest = None
            self.settle()

    # --- in its task -----------------------------------------------------------------------------

    async def _note_login(self) -> None:
        """After a request before authentication: tell who has logged in, and delay the answer to a wrong password."""
        authentication, security = self._authentication, self._requests.security
        if authentication.is_done:
            security.logged_in(self._client_host, authentication.principal)
            self._logged_in()
        elif authentication.has_failed:
            security.login_failed(self._client_host, authentication.tried)
            await asyncio.sleep(self._config.connection_failed_authentication_delay_ms / 1000)

    async def _send(self, segments: list[Any]) -> None:
        stream, traffic = self._stream, self._traffic
        self._is_sending = True
        stream.moved_at = time.monotonic()
        last = len(segments) - 1
        try:
            for n, segment in enumerate(segments):
                if isinstance(segment, FetchSlice):
                    await stream.send_slice(segment)
                    traffic.zero_copy_bytes += len(segment)
                elif isinstance(segment, ConvertedRecords):
                    await self._send_converted(segment)
                else:
                    await stream.send(segment, more=n < last)
                traffic.sent_bytes += len(segment)
        finally:
            self._is_sending = False

    async def _send_converted(self, records: ConvertedRecords) -> None:
        pieces = records.pieces()
        loop = asyncio.get_running_loop()
        while True:
            piece = await loop.run_in_executor(self._converters, next, pieces, None)
            if piece is None:
                return
            await self._stream.send(piece, more=True)
            self._traffic.converted_bytes += len(piece)
