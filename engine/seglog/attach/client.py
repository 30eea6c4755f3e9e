"""The side of a process that is attached: a connection that tells when the owner ends, and others for calls.

A call takes a connection that no other has, sends a frame and waits for the answer. If it is interrupted in between, it
closes the connection: the owner takes back what it sent.
"""
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from seglog.attach.channel import VERSION, Channel, GoneError, Header
from seglog.attach.errors_sent import error_received
from seglog.errors import ForkedHandleError, LogClosedError, LogFailedError, ProtocolError
from seglog.fs import local_socket

# How long the owner may take to accept a connection.
HELLO_S = 30.0


class Client:
    """The connections to one owner. Thread-safe."""

    def __init__(self, directory: Path, socket_name: str, holder: str) -> None:
        self._directory = directory
        self._socket_name = socket_name
        self._holder = holder
        self._is_ended = False
        self._spare: list[Channel] = []
        self._busy: set[Channel] = set()
        # The process id of the owner.
        self._pid = 0
        self._main: Channel | None = None

    def attach(self, held: list[list[object]]) -> None:
        """`held`: the jobs of this process: [id, attempt, seconds that the lease lasts]. Raises OSError if nobody
        listens, GoneError, TimeoutError, ProtocolError, UnsupportedVersionError: call `end` and `close` then, and after
        an interrupt."""
        self._main, hello = self._connect(None, is_main=True, held=held)
        self._busy.discard(self._main)
        owner = hello.get("owner")
        if not isinstance(owner, str):
            raise ProtocolError("not the answer of a seglog process")
        # Its id, as a holder of jobs.
        self.owner = owner
        # All that it said of itself.
        self.greeting = hello
        # Its options; none from a process of a version that does not send them.
        options = hello.get("options")
        self.options: dict[str, object] = options if isinstance(options, dict) else {}

    def _connect(
        self, until: float | None, *, is_main: bool, held: list[list[object]] | None = None
    ) -> tuple[Channel, Header]:
        now = time.monotonic()
        deadline = now + HELLO_S if is_main else until
        # (Never without a limit: an owner that is stopped accepts nothing, and then no `end` would be seen.)
        timeout_s = HELLO_S if deadline is None else max(deadline - now, 0.001)
        channel = Channel(local_socket.connect(self._directory, self._socket_name, timeout_s))
        self._busy.add(channel)     # from here on `end` ends it
        try:
            if self._is_ended:
                raise GoneError
            self._pid = channel.check_peer()
            channel.send(
                {"hello": "seglog", "version": VERSION, "holder": self._holder, "is_main": is_main, "held": held or []},
                deadline=deadline,
            )
            hello, _ = channel.receive(deadline)
            if "error" in hello:
                raise error_received(hello["error"])
            if hello.get("version") != VERSION:
                raise ProtocolError("not the answer of a seglog process")
        except BaseException:
            self._drop(channel)
            raise
        return channel, hello

    def wait_for_end(self) -> None:
        """Return when the owner has ended, or this was ended."""
        assert self._main is not None
        with suppress(GoneError, ProtocolError):
            self._main.receive()

    def ask(
        self, header: Header, values: list[bytes], deadline: float | None,
        heard: Callable[[Header, list[bytes]], None] | None = None,
    ) -> tuple[Header, list[bytes]]:
        """The answer. `heard`: called with it; if it does not return, the owner learns that it was not heard. Raises
        GoneError if the owner went; TimeoutError after `deadline` (monotonic seconds); and what the owner's queue
        raised."""
        channel = self._taken(deadline)
        try:
            channel.send(header, values, deadline)
            answer, found = channel.receive(deadline)
            error = error_received(answer["error"]) if "error" in answer else None
            if heard is not None and error is None:
                heard(answer, found)
        except BaseException:
            self._drop(channel)
            raise
        self._busy.discard(channel)
        # (Kept, however many: closing it would say that the answer was not heard.)
        if self._is_ended or isinstance(error, ProtocolError):
            channel.close()
        else:
            self._spare.append(channel)
        if isinstance(error, LogClosedError | ForkedHandleError):
            raise GoneError     # it is closing
        if isinstance(error, LogFailedError):
            error.hint = error.hint_beside(self._pid)
        if error is not None:
            raise error
        return answer, found

    def _taken(self, deadline: float | None) -> Channel:
        try:
            channel = self._spare.pop()
        except IndexError:
            try:
                channel = self._connect(deadline, is_main=False)[0]
            except TimeoutError:
                if deadline is None:
                    raise GoneError from None
                raise
            except OSError:
                raise GoneError from None
        self._busy.add(channel)
        if self._is_ended:
            self._drop(channel)
            raise GoneError
        return channel

    def _drop(self, channel: Channel) -> None:
        self._busy.discard(channel)
        channel.close()

    def end(self) -> None:
        """End all connections: calls that wait get GoneError. The owner gives this process's jobs to others."""
        self._is_ended = True
        if self._main is not None:
            self._main.end()
        for channel in list(self._busy):
            channel.end()
        while self._spare:
            self._spare.pop().close()

    def close(self) -> None:
        """After `end`, and when `wait_for_end` has returned."""
        if self._main is not None:
            self._main.close()
