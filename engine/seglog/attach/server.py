"""The owner's side: a socket in the directory, and a thread for each connection.

    connection "holder"     one for each process that is attached; its end is the end of the process
    connection "calls"      as many as threads of that process call at once: a frame, then its answer

A thread waits in the queue itself for a job, and in the log for the disk, as one of this process does.
"""
import errno
import os
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.shield import start_thread, work_in_background
from seglog.attach.channel import VERSION, Channel, GoneError, Header
from seglog.attach.errors_sent import error_sent
from seglog.errors import ProtocolError, SeglogError, UnsupportedVersionError
from seglog.fs import local_socket
from seglog.logger import Logger
from seglog.process_end import PROCESS_END

logger = Logger("seglog")

# How long a new connection may take to say who it is.
_HELLO_S = 30.0
_CONNECTIONS_MAX = 4096


class AnyDesk(Protocol):
    """What answers the calls of the others: attach.desk of a queue, attach.log_desk of a log. Thread-safe."""

    def greeting(self) -> Header:
        """What a process is told that attaches: `owner`, the id of this process, `options`, to be compared, and more.
        """

    def answer(self, holder: str, header: Header, values: list[bytes]) -> tuple[Header, list[bytes]]:
        """Do what a frame asks for. Raises ProtocolError for one that no seglog sends, and what the call raises."""

    def adopt(self, holder: str, held: object) -> None:
        """A process is here, and says what it has. Raises ProtocolError."""

    def drop(self, holder: str) -> None:
        """A process is gone."""

    def release_unsent(self, holder: str, header: Header) -> None:
        """This answer to a `get` could not be sent."""

    def end_unheard(self, holder: str, ids: Sequence[str]) -> None:
        """A connection ended after these jobs were sent by it."""


class DeskServer:
    """Listens from the beginning until `stop`."""

    def __init__(self, directory: Path, socket_name: str, desk: AnyDesk) -> None:
        self._directory = directory
        self._socket_name = socket_name
        self._desk = desk
        self._pid = os.getpid()
        self._listener, self._socket = local_socket.listen(directory, socket_name)
        self._is_stopped = False
        self._connections_max = _connections_max()
        # Guards the two below.
        self._lock = QuickLock()
        self._channels: set[Channel] = set()
        self._threads = 0
        PROCESS_END.add(self)
        self._begin(self._accept)

    def _begin(self, work: object, *args: object) -> None:
        with self._lock:
            self._threads += 1
        try:
            start_thread(self._run, (work, args))
        except BaseException:
            self._threads -= 1
            raise

    def _run(self, work: object, args: tuple[object, ...]) -> None:
        work_in_background()
        try:
            work(*args)     # type: ignore[operator]
        except Exception:
            if not self._is_stopped:
                logger.exception("%s: a thread that serves attached processes failed", self._directory)
        finally:
            with self._lock:
                self._threads -= 1

    # --- connections -------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_stopped:
            try:
                connection = local_socket.noted(self._listener.accept()[0])
            except OSError as error:
                if self._is_stopped or error.errno not in (
                    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR,
                ):
                    return
                time.sleep(0.05)        # until descriptors are free
                continue
            channel = Channel(connection)
            with self._lock:
                is_welcome = not self._is_stopped and len(self._channels) < self._connections_max
                if is_welcome:
                    self._channels.add(channel)
            if not is_welcome:
                channel.close()
                continue
            try:
                self._begin(self._serve, channel)
            except RuntimeError:        # the system has no thread left
                self._end(channel)

    def _end(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)
            channel.close()

    def _serve(self, channel: Channel) -> None:
        try:
            channel.check_peer()
            holder, is_main = self._welcome(channel)
            if is_main:
                self._watch(channel, holder)
            else:
                self._answer_calls(channel, holder)
        except (GoneError, TimeoutError, OSError):
            pass
        except ProtocolError as error:
            logger.warning("%s: an attached process is disconnected: %s", self._directory, error)
            with suppress(GoneError, TimeoutError):
                channel.send({"error": error_sent(error)}, deadline=time.monotonic() + 1)
        finally:
            self._end(channel)

    def _welcome(self, channel: Channel) -> tuple[str, bool]:
        deadline = time.monotonic() + _HELLO_S
        hello, _ = channel.receive(deadline)
        holder = hello.get("holder")
        if hello.get("hello") != "seglog" or not isinstance(holder, str) or not 1 <= len(holder) <= 64:
            raise ProtocolError("not the first frame of a seglog process")
        if hello.get("version") != VERSION:
            error = UnsupportedVersionError(
                f"the owner speaks version {VERSION}, not {repr(hello.get('version'))[:20]}",
                file=self._directory, hint="run the same version of seglog in all processes that share it",
            )
            channel.send({"error": error_sent(error)}, deadline=deadline)
            raise GoneError
        if hello.get("is_main") is True:
            self._desk.adopt(holder, hello.get("held", []))
        channel.send({**self._desk.greeting(), "version": VERSION}, deadline=deadline)
        return holder, hello.get("is_main") is True

    def _watch(self, channel: Channel, holder: str) -> None:
        """Wait for the end of the process."""
        try:
            channel.receive()
            raise ProtocolError("a frame came where none is expected")
        finally:
            if not self._is_stopped:
                self._desk.drop(holder)

    def _answer_calls(self, channel: Channel, holder: str) -> None:
        # What was sent and not heard of since.
        unheard: list[str] = []
        try:
            while True:
                header, values = channel.receive()
                unheard = []
                answer, values = self._answer(holder, header, values)
                is_get = header.get("call") == "get"
                try:
                    channel.send(answer, values)
                except GoneError:
                    if is_get:
                        self._desk.release_unsent(holder, answer)
                    raise
                if is_get:
                    unheard = [sent["id"] for sent in answer.get("jobs", ())]
        finally:
            if unheard and not self._is_stopped:
                self._desk.end_unheard(holder, unheard)

    def _answer(self, holder: str, header: Header, values: list[bytes]) -> tuple[Header, list[bytes]]:
        try:
            return self._desk.answer(holder, header, values)
        except ProtocolError:
            raise
        except SeglogError as error:
            return {"error": error_sent(error)}, []
        except Exception as error:
            logger.exception("%s: a call of an attached process failed", self._directory)
            return {"error": error_sent(error)}, []

    # --- the end -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Listen no more, and end all connections. Idempotent. In a forked child it leaves the parent's alone."""
        if self._is_stopped:
            return
        self._is_stopped = True
        PROCESS_END.remove(self)
        if self._pid != os.getpid():
            return
        local_socket.remove(self._directory, self._socket_name, self._socket)
        self._end_connections()

    def _end_connections(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for channel in self._channels:
                channel.end()

    def close(self) -> None:
        """After `stop`, once the queue is closed: return when no thread is left."""
        if self._pid == os.getpid():
            self.await_end(5.0)
            self._listener.close()

    def write_out(self) -> None:
        """Nothing is kept in memory."""

    def end_soon(self) -> None:
        """At the end of the process: attached processes take over."""
        self._is_stopped = True
        self._end_connections()

    def await_end(self, timeout_s: float) -> None:
        """Return when no thread is left, but after `timeout_s` at the latest."""
        ends = time.monotonic() + timeout_s
        while self._threads and time.monotonic() < ends:
            time.sleep(0.001)


def _connections_max() -> int:
    """So many that half of the process's descriptors are left for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(min(_CONNECTIONS_MAX, soft // 2), 1)
