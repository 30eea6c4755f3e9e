"""One connection: its requests are handled one after another, each when the answer to the one before it is known.

    bytes ── FrameReader ── a frame ── Requests.answer ── done ── the socket
                                              └── has to wait, or the socket takes no more ── the task goes on

A request is handled in the callback of the loop that reads its last byte, so that most need neither a task nor another
turn of the loop. While the task has something to do, nothing is read: so the server stops reading from a client that
does not take its answers, and other clients are not affected.
"""
import asyncio
import ssl
import struct
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from seglog.endpoint.authentication import Authentication
from seglog.endpoint.byte_streams import ByteStream, PlainStream
from seglog.endpoint.converted_records import ConvertedRecords
from seglog.endpoint.frame_reader import REQUEST_BYTES_MIN, FrameReader, RequestMemory
from seglog.endpoint.peer import Peer
from seglog.endpoint.requests import Answer, DroppedError, PendingResponse, Requests
from seglog.endpoint.settings import ServerConfig
from seglog.errors import ProtocolError, SeglogError
from seglog.logger import Logger
from seglog.loop.begun import Begun
from seglog.reading.fetch_result import FetchSlice

if TYPE_CHECKING:
    from seglog.endpoint.server_metrics import ServerCounters

_LOG = Logger(__name__)

# For so long a client may take nothing of its answer while others wait for the memory that it has.
_STUCK_S = 5.0
# For so long requests are handled before the loop goes on, if more have come; the connections that send share it.
_TURN_S = 0.002
_SIZE = struct.Struct(">i")


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
        # Where answers can be sent in a callback; under TLS it takes the task.
        self._plain = stream if isinstance(stream, PlainStream) else None
        self._frames = FrameReader(memory)
        self._converters = converters
        self._traffic = traffic
        self._authentication = authentication
        self._set_limits()
        self._client_host = client_host
        self._host, self._port = address
        self.peer = peer
        self._answers_memory = requests.answers
        self._logged_in = logged_in
        # Whether it waits to read or to send, and since when: neither may take forever.
        self._reads_since: float | None = time.monotonic()
        self._answered_at = 0.0
        self._last_turn = requests.turns
        self._is_sending = False
        # The request that the task goes on with, or the answer that will be given to a callback or the task.
        self._begun: Begun[Answer | PendingResponse] | None = None
        self._pending: PendingResponse | None = None
        self._failure: Exception | None = None      # of a callback, for the task
        # The answer to send, whether only the task can send it, and how much memory for large answers it takes.
        self._answers: list[Any] = []
        self._has_files = False
        self._held_bytes = 0

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
            while await self._turn():
                # Otherwise a client that sends without a pause would block the loop for the others.
                if not self._stream.has_waited:
                    await asyncio.sleep(0)
                self._stream.has_waited = False
        except DroppedError:
            pass
        except ProtocolError as error:
            software = self._authentication.software
            self._requests.security.refused(self._client_host, f"{error}; it is {software}" if software else error)
        except (OSError, ssl.SSLError):
            pass        # the client left
        except SeglogError as error:        # a file that cannot be read while it is sent
            _LOG.error("closed the connection of %s: %s", self._client_host, error)
        finally:
            if self._begun is not None:
                self._begun.close()
            if self._pending is not None:
                self._pending.response.then(_nobody)
            self._give_back()
            self._frames.done()

    # --- in callbacks of the loop ----------------------------------------------------------------

    def _came(self, count: int) -> bool:
        return self._frames.came(count) and self._serve()

    def _serve(self) -> bool:
        """Handle the whole requests that have come. Returns whether there is something for the task to do. Raises
        ProtocolError, OSError."""
        frames, authentication = self._frames, self._authentication
        # How many connections had their turn since this one had it: each of them sends, too.
        turns = self._requests.turns = self._requests.turns + 1
        until_s = time.monotonic() + _TURN_S / (turns - self._last_turn)
        self._last_turn = turns
        is_stopped = False
        try:
            while (frame := frames.next()) is not None:
                self._traffic.received_bytes += len(frame) + 4
                answering = self._requests.answer(
                    frame, authentication, self._client_host, self._host, self._port, self.peer
                ) if authentication.is_done else self._login(frame)
                try:
                    waits_for = answering.send(None)
                except StopIteration as end:
                    answer: Answer | PendingResponse = end.value
                else:
                    self._begun, self._reads_since = Begun(answering, waits_for), None
                    break
                if isinstance(answer, PendingResponse):
                    self._pending, self._reads_since = answer, None
                    break
                self._answered(answer)
                is_stopped = self._answered_at > until_s or authentication.has_failed
                if is_stopped or frames.is_empty:
                    break
        finally:
            is_sent = self._send_at_once()
        if is_sent and self._pending is not None and self._plain is not None:
            self._pending.response.then(self._given)
            return False
        return (
            is_stopped or not is_sent or frames.lacks_memory or self._begun is not None or self._pending is not None)

    def _given(self, response: Any) -> None:
        """The response to a request, while the task receives."""
        assert self._plain is not None
        assert self._pending is not None
        try:
            self._answered(self._pending.encoded(response))
            has_work = self._serve()
        except Exception as error:
            self._failure, has_work = error, True
        if has_work:
            self._plain.wake()

    def _answered(self, answer: Answer) -> None:
        segments, held_bytes = answer
        self._pending = None
        self._frames.done()
        self._held_bytes += held_bytes
        if segments is not None:
            self._answers += segments
            if len(segments) > 1:
                self._has_files = True
        self._reads_since = self._answered_at = time.monotonic()

    def _send_at_once(self) -> bool:
        """Send the answers as far as the socket takes them now. Returns whether that is all of them."""
        answers = self._answers
        if not answers:
            return True
        if self._plain is None or self._has_files:
            return False
        data = answers[0] if len(answers) == 1 else b"".join(answers)
        sent = self._plain.send_at_once(data)
        self._traffic.sent_bytes += sent
        answers.clear()
        if sent == len(data):
            if self._held_bytes:
                self._give_back()
            return True
        answers.append(memoryview(data)[sent:])
        return False

    # --- in its task -----------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """Receive requests until one of them leaves something to do, and do it. Returns whether more may follow."""
        try:
            if not self._serve() and not await self._stream.receive(self._frames.room, self._came):
                return False
            if self._failure is not None:
                raise self._failure
        except (ProtocolError, DroppedError):
            await self._send()      # the answers to the requests before it
            raise
        answer: Answer | PendingResponse | None = self._pending
        if self._pending is not None:
            self._pending.response.then(_nobody)     # it is awaited below
        await self._send()
        if self._frames.lacks_memory:
            await self._frames.reserve()
        if self._begun is not None:
            answer = await self._begun
            self._begun = None
        if answer is not None:
            if isinstance(answer, PendingResponse):
                answer = answer.encoded(await answer.response)
            self._answered(answer)
            await self._send()
        return not self._authentication.has_failed

    def _set_limits(self) -> None:
        """How large a frame may be."""
        config = self._config
        self._frames.limit_bytes = config.socket_request_max_bytes
        self._frames.least_bytes = 0 if self._authentication.takes_tokens else REQUEST_BYTES_MIN
        if not self._authentication.is_done:
            self._frames.limit_bytes = min(self._frames.limit_bytes, config.sasl_server_max_receive_size)

    async def _login(self, frame: memoryview) -> Answer | PendingResponse:
        """Answer a request before authentication, tell who has logged in, and delay the answer to a wrong password."""
        authentication, security = self._authentication, self._requests.security
        if authentication.takes_tokens:
            token = authentication.take(bytes(frame))
            answer: Answer | PendingResponse = (None if token is None else [_SIZE.pack(len(token)) + token]), 0
        else:
            answer = await self._requests.answer(
                frame, authentication, self._client_host, self._host, self._port, self.peer)
        if authentication.is_done:
            security.logged_in(self._client_host, authentication.principal)
            self._logged_in()
        elif authentication.has_failed:
            security.login_failed(self._client_host, authentication.tried)
            await asyncio.sleep(self._config.connection_failed_authentication_delay_ms / 1000)
        self._set_limits()
        return answer

    async def _send(self) -> None:
        """Send the answers."""
        segments = self._answers
        if not segments:
            return
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
            self._give_back()

    def _give_back(self) -> None:
        """Drop the answers, and give back their memory."""
        self._answers.clear()
        self._has_files = False
        if self._held_bytes:
            self._answers_memory.give_back(self._held_bytes)
            self._held_bytes = 0

    async def _send_converted(self, records: ConvertedRecords) -> None:
        pieces = records.pieces()
        loop = asyncio.get_running_loop()
        while True:
            piece = await loop.run_in_executor(self._converters, next, pieces, None)
            if piece is None:
                return
            await self._stream.send(piece, more=True)
            self._traffic.converted_bytes += len(piece)


def _nobody(_: object) -> None:
    pass
