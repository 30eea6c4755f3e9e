"""Callbacks in this process when readers may see more of a log, called by one thread for all of its logs.

    an append, or a sync ── announce (_kernels.quiet_tail) ── queue ── the thread ── LogTail.tell_growth ── callbacks

While a log is announced already, an append only reads one field. The thread serves each log at most once every few
milliseconds: several appends are then one call, and the first append after a quiet moment is reported at once.
"""
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from seglog.errors import InvalidArgumentError
from seglog.logger import Logger
from seglog.reading.extent import Shown
from seglog.threads.process_queue import ProcessQueue

_LOG = Logger(__name__)

# Between two rounds. More frequent calls would make a busy appender hand over the interpreter all the time.
_PAUSE_S = 0.005

Listener = Callable[[int | None], None]


class GrowthSource(Protocol):
    """What the thread needs of the end of a log."""

    announcements: "queue.SimpleQueue[Any] | None"
    is_announced: bool

    def announce(self) -> None:
        """Have the thread call `tell_growth`."""

    def tell_growth(self) -> None:
        """Tell the listeners how far readers see the log now."""


class Listening:
    """What `Log.on_published` returns: the callback is called until this is cancelled."""

    __slots__ = ("_callback", "_listeners")

    def __init__(self, listeners: "Listeners", callback: Listener) -> None:
        self._listeners = listeners
        self._callback = callback

    def cancel(self) -> None:
        """No call begins after this returns; one that is running in the thread continues. Idempotent."""
        self._listeners.remove(self)

    def __call__(self, end: int | None) -> None:
        self._callback(end)


class Listeners:
    """The listeners of one log. The tuple is replaced as a whole, so that the thread needs no lock."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lock = threading.Lock()       # guards changes of _all
        self._all: tuple[Listening, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, callback: Listener, log: GrowthSource) -> Listening:
        """Have `callback` called while `log` is open; if it is closed already, it is called with None."""
        log.announcements = NOTICES.started()
        listening = Listening(self, callback)
        with self._lock:
            self._all = (*self._all, listening)
        if self._shown.extent is None:      # perhaps since before `add`: then nothing else announces it
            log.announce()
        return listening

    def end(self, log: GrowthSource) -> None:
        """The log was closed: announce that, if there are listeners. (One that comes later announces it itself.)"""
        if self._all:
            log.announce()

    def remove(self, listening: Listening) -> None:
        with self._lock:
            self._all = tuple(one for one in self._all if one is not listening)

    def tell(self) -> None:
        """Call all of them with the log end offset; the last time, when the log is closed, with None."""
        extent = self._shown.extent
        end = None if extent is None else extent.log_end_offset
        for listening in self._all:
            try:
                if listening in self._all:      # otherwise another callback cancelled it
                    listening(end)
            except BaseException:       # also SystemExit: all logs share the thread
                _LOG.exception("a callback of on_published raised")
            if end is None:
                self.remove(listening)


def checked_callback(callback: Callable[[Any], None]) -> Callable[[Any], None]:
    if not callable(callback):
        raise InvalidArgumentError(f"a callback must be a function of one argument, not {callback!r}")
    return callback


def checked_token(token: object, first: int, latest: int, path: Path) -> int:
    """The number in a token of the log, whose appends have numbers from `first` to `latest`."""
    number = getattr(token, "number", None)
    if type(number) is not int or not first <= number <= latest + 1:        # latest + 1: its records linger
        raise InvalidArgumentError(
            f"{token!r} is not a token of this log", file=path,
            hint="use one that an append with wait=False returned; it is valid until the log is closed",
        )
    return number


def _run(announced: "queue.SimpleQueue[GrowthSource | None]") -> None:
    told_at = -_PAUSE_S
    while (log := announced.get()) is not None:
        # Sleep here, not after each round: a sleep may last too long, and would delay the first append after a pause.
        left_s = told_at + _PAUSE_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        while log is not None:
            log.is_announced = False        # before the look: later growth is announced again
            try:
                log.tell_growth()
            except BaseException:
                _LOG.exception("the listeners of a log could not be called")
            if announced.empty():
                break
            log = announced.get()
        else:
            return
        del log
        told_at = time.monotonic()


# A log puts itself in this queue to have its listeners called.
NOTICES = ProcessQueue[GrowthSource](_run, ends_last=True)
