"""What a queue and a log that several processes have open have in common: which of them owns it, and how that changes.

    owner       what is opened ── desk ── DeskServer ── socket
    attached    Client ── socket

The first process that opens it owns it, the others attach to it by a socket in its directory. When the owner closes it
or dies, its connections end. A thread of each attached process waits for that: one of them gets the lock of the
directory and is the owner then, the others attach to that one. Calls that were under way are made again.
"""
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog._kernels.shield import shielded, start_thread, work_in_background
from seglog.attach.channel import GoneError, Header
from seglog.attach.client import Client
from seglog.attach.server import AnyDesk, DeskServer
from seglog.errors import (
    ForkedHandleError,
    LogClosedError,
    LogLockedError,
    SeglogError,
    StorageError,
)
from seglog.fs import local_socket
from seglog.fs.lock import PARTITION_LOCK, writer_of
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.process_end import PROCESS_END
from seglog.threads.late_close import close_in_order

logger = Logger("seglog")

# How long an opening, and a takeover, wait for a process that has the lock and neither listens nor is about to.
OPENING_S, TAKEOVER_S = 5.0, 60.0
LOOK_AGAIN_S = 0.01
# When a call is made again whose connection ended, though the owner has not.
_RETRY_S = 0.5


class Ownable(Protocol):
    """What a process owns."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Ownable)


class Owner(NamedTuple, Generic[Opened]):
    """The role of the process that owns it: what it has open, and what answers the others."""

    opened: Opened
    desk: AnyDesk
    server: DeskServer

    def close(self) -> None:
        """Another process that is attached takes over."""
        self.server.stop()
        try:
            self.opened.close()
        finally:
            self.server.close()


class SharedHandle(Generic[Opened]):
    """One process's part of it. Thread-safe.

    A class below says what it is (`noun`, `socket_name`), opens it (`_open_owned`), and is begun by `_share`; if that
    raises, or an interrupt comes as it returns, by `_give_up` it is over.
    """

    path: Path
    noun: ClassVar[str]
    socket_name: ClassVar[str]

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._holder = os.urandom(16).hex()
        # Guards `_role`; calls wait on it while there is none.
        self._guard = QuickLock()
        self._changed_role = LockCondition(self._guard)
        # Held while it is closed, so that a second `close` returns after the first.
        self._closing = QuickLock()
        self._role: Owner[Opened] | Client | SeglogError | None = None
        # While it is opened.
        self._looking: _Looking[Opened] | None = None
        self._is_closed = self._is_ending = False
        self._has_thread = False

    def _share(self) -> None:
        """Attach, or be the owner: at the end of the constructor. Waits while another process opens it, so as to share
        it. Raises what opening raises."""
        looking = self._looking = _Looking(self, OPENING_S)
        # (Not shielded as a whole: an interrupt ends the wait, also that for an owner that is stopped.)
        while not shielded(self._begin, looking, looking.attach()):
            time.sleep(LOOK_AGAIN_S)
        self._looking = None

    def _give_up(self) -> None:
        self._is_closed = True
        shielded(self._close_all)

    def _close_all(self) -> None:
        if self._looking is not None:
            self._looking.drop()
        self._close_role()

    @property
    def is_owner(self) -> bool:
        """Whether it is this process that does the work of all."""
        return isinstance(self._role, Owner)

    # --- what a class below does ------------------------------------------------------------------

    def _open_owned(self, gone: str | None) -> Owner[Opened]:
        """Open it for this process. `gone`: the owner that this process was attached to. Raises LogLockedError."""
        raise NotImplementedError

    def _compare(self, client: Client) -> None:
        """This process has attached: look at what the owner said."""

    def _presented(self) -> list[list[object]]:
        """What this process tells a new owner of itself."""
        return []

    # --- roles -----------------------------------------------------------------------------------

    def _begin(self, looking: "_Looking[Opened]", client: Client | None) -> bool:
        self._role = role = client or looking.own()
        looking.client = None
        if isinstance(role, Client):
            self._has_thread = True
            PROCESS_END.add(self)
            start_thread(self._stay, (role,))
        return role is not None

    def _explain(self, error: LogLockedError) -> None:
        error.hint = (
            "the process that has it must open it with attach=True as well, as the same user and on the same machine, "
            "and must not be stopped"
        )

    def _found_role(self, patience_s: float, gone: str | None) -> "Owner[Opened] | Client":
        looking = _Looking(self, patience_s, gone)
        while (role := looking.attach() or looking.own()) is None:
            if self._is_ending:
                raise LogClosedError(f"the {self.noun} was closed", file=self.path)
            time.sleep(LOOK_AGAIN_S)
        return role

    def _stay(self, client: Client) -> None:
        """The thread of an attached process: wait for the end of the owner, take over or attach again."""
        work_in_background()
        try:
            while True:
                client.wait_for_end()
                if self._is_ending:
                    return
                self._set_role(None)
                client.end()
                client.close()
                try:
                    role: Owner[Opened] | Client | SeglogError = self._found_role(TAKEOVER_S, client.owner)
                except SeglogError as error:
                    role = error
                except Exception as error:
                    logger.exception("%s: the %s could not be taken over", self.path, self.noun)
                    role = StorageError(f"the {self.noun} could not be taken over: {error!r}", file=self.path)
                if not self._set_role(role):
                    # It was closed meanwhile.
                    if isinstance(role, Owner):
                        role.close()
                    elif isinstance(role, Client):
                        role.end()
                        role.close()
                    return
                if not isinstance(role, Client):
                    return
                client = role
        finally:
            client.close()
            PROCESS_END.remove(self)
            with self._guard:
                self._has_thread = False
                self._changed_role.notify()

    def _set_role(self, role: "Owner[Opened] | Client | SeglogError | None") -> bool:
        """False: it was closed."""
        with self._guard:
            if self._is_ending:
                return False
            self._role = role
            self._changed_role.notify()
            return True

    def _role_now(self, deadline: float | None, gone: "Client | None" = None) -> "Owner[Opened] | Client":
        """The role, once there is one that is not the `gone`. Raises TimeoutError."""
        if self._pid != os.getpid():
            raise ForkedHandleError(
                f"the {self.noun} belongs to process {self._pid}, which forked this one", file=self.path
            )
        with self._changed_role:
            while True:
                seen = self._changed_role.number
                if self._is_closed:
                    raise LogClosedError(f"the {self.noun} was closed", file=self.path)
                role = self._role
                if isinstance(role, SeglogError):
                    raise role.with_traceback(None)
                if role is not None and role is not gone:
                    return role
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError
                self._changed_role.wait(seen, left_s)

    def _role_after(self, gone: Client, deadline: float | None) -> "Owner[Opened] | Client":
        """The role after a connection ended. If the owner is still there, it has too many for now: the same."""
        soon = time.monotonic() + _RETRY_S
        try:
            return self._role_now(soon if deadline is None else min(soon, deadline), gone)
        except TimeoutError:
            return self._role_now(deadline)

    def _owned(self) -> Opened | None:
        """What is open, if this process owns it. Waits while that is being settled."""
        role = self._role
        if not isinstance(role, Owner) or self._is_closed:
            try:
                role = self._role_now(None)
            except TimeoutError:
                raise AssertionError from None
        return role.opened if isinstance(role, Owner) else None

    def _ask(
        self, header: Callable[[], Header] | Header, values: "list[bytes] | None" = None,
        deadline: float | None = None,
    ) -> tuple[Header, list[bytes]]:
        """Ask the owner, or the desk if this process owns it by now. If the owner goes meanwhile, ask the next one, and
        say that it is asked again. Raises TimeoutError after `deadline`."""
        gone: Client | None = None
        while True:
            role = self._role_now(deadline) if gone is None else self._role_after(gone, deadline)
            asked = header() if callable(header) else header
            if gone is not None:
                asked = {**asked, "is_again": True}
            if isinstance(role, Owner):
                return role.desk.answer(self._holder, asked, values or [])
            try:
                return role.ask(asked, values or [], deadline)
            except GoneError:
                gone = role

    # --- the end ---------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Close it: if this process owns it, another one that is attached takes over. Calls that wait raise
        LogClosedError. Idempotent. A signal's handler may call it: then it is closed right after the call that the
        signal interrupts."""
        self._is_closed = True
        self._changed_role.notify()
        close_in_order(self._close_role, self.path)

    def _close_role(self) -> None:
        if self._pid != os.getpid():
            role = self._role
            if isinstance(role, Owner):
                role.server.stop()
                role.opened.close()
            return
        with self._closing:
            with self._guard:
                self._is_ending = True
                role, self._role = self._role, None
                self._changed_role.notify()
            if isinstance(role, Owner):
                role.close()
            elif isinstance(role, Client):
                role.end()
            self.await_end(30.0)

    def write_out(self) -> None:
        """At the end of the process. Nothing is kept in memory."""

    def end_soon(self) -> None:
        """At the end of the process: the thread of an attached one ends."""
        self._is_ending = True
        role: Any = self._role
        if isinstance(role, Client):
            role.end()

    def await_end(self, timeout_s: float) -> None:
        """Return when the thread of an attached process has ended, but after `timeout_s` at the latest."""
        ends = time.monotonic() + timeout_s
        while self._has_thread and time.monotonic() < ends:
            time.sleep(0.001)


class _Looking(Generic[Opened]):
    """Looks for the owner of what a handle shares, or for the place of one: `attach`, then `own`, until one of them
    returns something. Both raise what opening raises."""

    def __init__(self, handle: SharedHandle[Opened], patience_s: float, gone: str | None = None) -> None:
        """`gone`: the owner that the process was attached to."""
        self._handle = handle
        self._patience_s = patience_s
        self._gone = gone
        self._ends = time.monotonic() + patience_s
        self._is_silent = False
        # What `attach` found, until somebody takes it: an interrupt does not lose its sockets.
        self.client: Client | None = None

    def attach(self) -> Client | None:
        """Attach to the owner. None: there is none, or it does not answer in time."""
        handle = self._handle
        self.client = client = Client(handle.path, handle.socket_name, handle._holder)
        try:
            client.attach(handle._presented())
            handle._compare(client)
        except BaseException as error:
            self.drop()
            if not isinstance(error, OSError | GoneError):
                raise
            self._is_silent = isinstance(error, TimeoutError)
            return None
        return client

    def drop(self) -> None:
        """Close the connection that was found and not taken."""
        client, self.client = self.client, None
        if client is not None:
            client.end()
            client.close()

    def own(self) -> Owner[Opened] | None:
        """Be the owner. None: look again. Raises LogLockedError after the patience, if who has the lock does not share
        it."""
        handle, path, gone = self._handle, self._handle.path, self._gone
        if gone is not None and not os.path.isdir(path):
            # An opening would begin anew, at offset 0, what others believe to have.
            raise StorageError(
                "the directory was removed while processes shared it", file=path,
                hint=f"the owner had it open until now, and what it wrote is gone: open the {handle.noun} again to "
                "begin a new one",
            )
        with local_socket.turn_to_open(path) as is_mine:
            if not is_mine:
                # Another process opens it so, which may take a recovery; but whoever can read the directory can have
                # that turn, so it counts only while somebody has the lock.
                if writer_of(path) is not None:
                    self._ends = time.monotonic() + self._patience_s
                if time.monotonic() < self._ends:
                    return None
            try:
                return handle._open_owned(gone)
            except LogLockedError as error:
                if time.monotonic() >= self._ends or handle._is_ending:
                    handle._explain(error)
                    self._name_the_silent(error)
                    raise
                return None

    def _name_the_silent(self, error: LogLockedError) -> None:
        """Say who has it, if that shares it and does not answer."""
        if not self._is_silent or error.file is None or os.path.basename(error.file) != PARTITION_LOCK:
            return
        try:
            with local_socket.connect(self._handle.path, self._handle.socket_name, 1.0) as silent:
                pid, _ = local_socket.peer_of(silent)
        except OSError:     # it has ended meanwhile, or too many wait for it
            return
        if _is_stopped(pid):
            error.what = f"its owner, process {pid}, is stopped"
            error.hint = f"let it go on: `kill -CONT {pid}`; or end it, and one of the others takes over"
        else:
            error.what = f"its owner, process {pid}, does not answer"
            error.hint = "it is busy, or hangs: try again later, or end it, and one of the others takes over"


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP, ^Z or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
