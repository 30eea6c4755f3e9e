"""A server as an object: `with seglog.serve("data") as server:` runs it in a thread with its own loop, `async with` in
the current loop."""
import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import Bell
from seglog.config import Fsync
from seglog.endpoint.faults import Fault, PlannedFault, PlannedFaults, error_named
from seglog.endpoint.server import Server, ServerOptions
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.fs.lock import EXCLUSIVE, Lock, lock_file
from seglog.late_import import late
from seglog.log.log import Log
from seglog.log.open_dir import LogDir

# How often to look whether the server has started or ended, if another thread was woken instead.
_LOOK_S = 0.1


def _run_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` in a new loop, uvloop's if it is installed: pip install seglog[serve]."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        late("uvloop")
        from uvloop import new_event_loop
        loop_factory = new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work())


def lock_server(fs: FileSystem, log_dir: Path) -> Lock:
    """Only one server may use a log dir: with two, neither would know the other's groups, transactions and users. (The
    log dir's `.lock` excludes brokers, but seglog's writers of other partitions share it.)
    Raises LogLockedError."""
    try:
        return lock_file(fs, log_dir / names.SERVER_LOCK, EXCLUSIVE)
    except LogLockedError as error:
        raise LogLockedError(
            f"another server uses this log dir: {error.what}", file=error.file,
            hint="stop that server, or connect your clients to it",
        ) from error


def _closed() -> InvalidArgumentError:
    return InvalidArgumentError(
        "the server is closed", hint="use it within its `with` block, or start a new one: seglog.serve(path)")


class LocalServer:
    """The result of `seglog.serve`. `with` or `async with` starts it, once."""

    def __init__(
        self, open_log_dir: Callable[[], LogDir], fs: FileSystem, fsync: Fsync, options: ServerOptions
    ) -> None:
        self._open_log_dir = open_log_dir
        self._fs = fs
        self._fsync = fsync
        self._options = options
        self._log_dir: LogDir | None = None
        self._lock: Lock | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_interrupted = self._is_closed = False
        self._bell = Bell()             # rings when the thread has started the server, and when it has ended
        self._has_started = self._has_ended = False
        self._failures: list[BaseException] = []        # exceptions that ended the thread

    def __repr__(self) -> str:
        if self._is_closed:
            return "<LocalServer closed>"
        return f"<LocalServer {self.bootstrap_servers if self._server else 'not started'}>"

    # --- where it is -----------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The address of the first listener, for clients: "127.0.0.1:41234"."""
        return next(iter(self.listeners.values()))

    @property
    def listeners(self) -> dict[str, str]:
        """The address of each listener by its name, in the order that they were given: `{"PLAINTEXT":
        "127.0.0.1:41234"}`."""
        return {
            one.listener.name: f"[{one.host}]:{one.port}" if ":" in one.host else f"{one.host}:{one.port}"
            for one in self._running().listening
        }

    @property
    def host(self) -> str:
        """The host of the first listener."""
        return self._running().listening[0].host

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self._running().listening[0].port

    @property
    def path(self) -> Path:
        """The log dir."""
        self._running()
        assert self._log_dir is not None
        return self._log_dir.path

    @property
    def http_address(self) -> str | None:
        """Host and port of the web page and the metrics, or None if they are not served."""
        page = self._running().page
        return None if page is None else f"{page.host}:{page.port}"

    @property
    def requests_bytes(self) -> int:
        """The memory of requests that are being read or handled, in bytes."""
        return self._running().requests_bytes

    def _running(self) -> Server:
        if self._is_closed:
            raise _closed()
        if self._server is None:
            raise InvalidArgumentError("the server is not running", hint="with seglog.serve(path) as server: ...")
        return self._server

    # --- faults ----------------------------------------------------------------------------------

    @property
    def _faults(self) -> PlannedFaults:
        return self._running().requests.faults

    def fail_next(self, api: str, error: str | int, *, times: int = 1, client_id: str | None = None) -> PlannedFault:
        """Answer the next `times` requests of an API with an error, without handling them; with `client_id`, only
        those of this client. The error is a name or Kafka's code, and is where a broker has it: of the request, or of
        each topic or partition.

            fault = server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
            ...
            assert fault.happened == 1

        Raises InvalidArgumentError for names that Kafka does not have.
        """
        return self._faults.plan(api, Fault(error=error_named(error)), times, client_id)

    def delay_next(
        self, api: str, delay_s: float, *, times: int = 1, client_id: str | None = None
    ) -> PlannedFault:
        """Delay the next `times` requests of an API before they are handled; with `client_id`, only those of this
        client. Later requests on the same connection wait too. Raises InvalidArgumentError."""
        if not isinstance(delay_s, int | float) or not delay_s >= 0:
            raise InvalidArgumentError(
                f"delay_s must be a non-negative number of seconds, not {delay_s!r}", hint="half a second is 0.5")
        return self._faults.plan(api, Fault(delay_s=delay_s), times, client_id)

    def drop_next(
        self, api: str, *, after: bool = False, times: int = 1, client_id: str | None = None
    ) -> PlannedFault:
        """Close the connection at the next `times` requests of an API: before the request is handled, or with `after`
        once it is, so that it takes effect but the client gets no answer. With `client_id`, only those of this client.
        Raises InvalidArgumentError."""
        return self._faults.plan(api, Fault(drops_before=not after, drops_after=after), times, client_id)

    def clear_faults(self) -> None:
        """Cancel the planned faults that have not happened yet."""
        self._faults.clear()

    # --- topics ----------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: dict[str, object] | None = None) -> None:
        """Create a topic. From the event loop of `async with`, call it in another thread:

            await asyncio.to_thread(server.create_topic, "orders")

        Raises InvalidArgumentError if it exists, InvalidConfigError, StorageError."""
        topics = self._running().topics
        self._call(
            lambda: topics.create(name, partitions, config or {}),
            f"await asyncio.to_thread(server.create_topic, {name!r})")

    def log(self, topic: str, partition: int = 0) -> Log | None:
        """The open log of a partition, to read and to append to, or None if there is no such partition. Raises
        InvalidArgumentError if `partition` is not a number."""
        if not isinstance(partition, SupportsIndex):      # an int, or one of numpy's
            raise InvalidArgumentError(
                f"a partition is a number, not {partition!r:.50}", hint="the first partition is 0")
        return self._running().topics.log(topic, partition)

    def _call(self, work: Callable[[], Coroutine[Any, Any, Any]], instead: str) -> Any:
        """Run `work` in the server's loop, and wait for it. `instead`: what to write in that loop itself."""
        loop = self._loop
        assert loop is not None
        with contextlib.suppress(RuntimeError):     # no loop runs here
            if asyncio.get_running_loop() is loop:
                raise InvalidArgumentError(
                    "this call would block your event loop, in which the server runs", hint=instead)
        if not loop.is_running():       # only one of `async with`: it would never answer
            raise InvalidArgumentError(
                "the event loop in which the server was started does not run", hint=f"call it while it runs: {instead}")
        coroutine = work()
        try:
            result = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:        # the loop was closed in between
            coroutine.close()
            raise _closed() from None
        while not result.done() and not loop.is_closed():       # a loop that ends may have dropped it
            concurrent.futures.wait([result], _LOOK_S)
        if not result.done() or result.cancelled():
            raise _closed()
        return result.result()

    # --- in a thread -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin()
        self._failures.clear()      # of an earlier start
        self._has_started = self._has_ended = self._is_interrupted = False
        try:
            # An exception in Thread.start can leave a thread that runs, or a caller that waits forever.
            shielded(self._start_thread)
            self._await_start()
        except BaseException:       # ^C: the block is not entered, so nothing else closes the server
            shielded(self._interrupt)
            self._await_start()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                self.close()
            raise
        if self._failures:
            self.close()
        return self

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run_in_thread, name="seglog-serve", daemon=True)
        self._thread.start()

    def _await_start(self) -> None:
        """Wait until the server runs, or has failed; if there is a thread to start it."""
        while self._thread is not None and not self._has_started:
            self._bell.wait(_LOOK_S)

    def _told_start(self) -> None:
        self._has_started = True
        self._bell.ring()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server, and close the log dir. Idempotent; if ^C interrupted it, call it again to wait for the end.
        """
        thread = self._thread
        if thread is None:
            return
        self._is_closed = self._server is not None
        shielded(self._tell_to_stop)
        # Not by `join` alone: if ^C interrupts that, Python 3.11 takes the thread for ended (bpo-45274).
        while not self._has_ended:
            self._bell.wait(_LOOK_S)
        thread.join()
        self._thread = None
        if self._failures:
            raise self._failures[0]

    def _tell_to_stop(self) -> None:
        if not self._failures:      # otherwise its loop has ended
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):     # likewise
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _run_in_thread(self) -> None:
        try:
            _run_loop(self._run)
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._has_ended = True
            self._told_start()

    def _interrupt(self) -> None:
        """Let a start that is going on end."""
        self._is_interrupted = True
        if self._loop is not None and self._starting is not None:
            with contextlib.suppress(RuntimeError):     # the loop has ended
                self._loop.call_soon_threadsafe(self._starting.cancel)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._starting = self._loop.create_task(self._start())
        if self._is_interrupted:
            self._starting.cancel()
        await self._starting
        self._told_start()
        await self._stopping.wait()
        await self._stop()

    # --- in the loop that runs -------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._begin()
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def _begin(self) -> None:
        if self._server is not None:
            raise InvalidArgumentError("the server was already started", hint="make a new one with seglog.serve(path)")

    async def _start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._open_log_dir)
        try:
            log_dir = await asyncio.shield(opening)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await loop.run_in_executor(None, self._close, await opening)
            raise
        try:
            self._lock = lock_server(self._fs, log_dir.path)
            server = Server(log_dir, self._fs, self._fsync, self._options)
            await server.start()
        except BaseException:
            await loop.run_in_executor(None, self._close, log_dir)
            raise
        self._log_dir, self._server = log_dir, server

    async def _stop(self) -> None:
        assert self._server is not None
        assert self._log_dir is not None
        self._is_closed = True
        await self._server.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._close, self._log_dir)

    def _close(self, log_dir: LogDir) -> None:
        try:
            log_dir.close()
        finally:
            if self._lock is not None:
                self._lock.release()
