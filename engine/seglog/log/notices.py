"""Who hears that readers may see more of a log: callbacks in this process, in one thread for all of its logs.

    an append, or a sync ── announce (_kernels.quiet_tail) ── queue ── the thread ── LogTail.tell_growth ── callbacks

An append of a log that is announced already pays for a look at one field. The thread tells each log at most once every
few milliseconds: several appends are then one call, and the first append after a quiet moment is told at once.
"""
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from seglog.errors import InvalidArgumentError
from seglog.log.extent import Shown
from seglog.segment.process_queue import ProcessQueue

_LOG = logging.getLogger(__name__)

# Between two rounds. Told more often, a busy appender would hand the interpreter over all the time.
_PAUSE_S = 0.005

Listener = Callable[[int | None], None]


class Announced(Protocol):
    """The end of a log, as the thread sees it."""

    announcements: "queue.SimpleQueue[Any] | None"
    is_announced: bool

    def announce(self) -> None:
        """Have `tell_growth` called by the thread."""

    def tell_growth(self) -> None:
        """Tell whoever listens up to where readers see the log now."""


class Listening:
    """What `Log.on_published` gives: as long as it is not cancelled, the callback is called."""

    __slots__ = ("_callback", "_listeners")

    def __init__(self, listeners: "Listeners", callback: Listener) -> None:
        self._listeners = listeners
        self._callback = callback

    def cancel(self) -> None:
        """No call begins after this returns; one that runs in the thread meanwhile goes on. Twice is fine."""
        self._listeners.remove(self)

    def __call__(self, end: int | None) -> None:
        self._callback(end)


class Listeners:
    """Those who listen to one log. Replaced as a whole, so that the thread needs no lock."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lock = threading.Lock()       # guards the change
        self._all: tuple[Listening, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, callback: Listener, log: Announced) -> Listening:
        """Have `callback` called, while `log` is open; if it is closed already, it hears that."""
        log.announcements = NOTICES.started()
        listening = Listening(self, callback)
        with self._lock:
            self._all = (*self._all, listening)
        if self._shown.extent is None:      # perhaps since before `add`, and nobody announces it any more
            log.announce()
        return listening

    def remove(self, listening: Listening) -> None:
        with self._lock:
            self._all = tuple(one for one in self._all if one is not listening)

    def tell(self) -> None:
        """Call all of them with the log end offset; the last time, when the log was closed, with None."""
        extent = self._shown.extent
        end = None if extent is None else extent.log_end_offset
        for listening in self._all:
            try:
                if listening in self._all:      # else another callback cancelled it
                    listening(end)
            except BaseException:       # also SystemExit: the thread is everybody's
                _LOG.exception("a callback of on_published raised")
            if end is None:
                self.remove(listening)


def checked_callback(callback: Callable[[Any], None]) -> Callable[[Any], None]:
    if not callable(callback):
        raise InvalidArgumentError(f"a callback is a function of one argument, not {callback!r}")
    return callback


def checked_token(token: object, first: int, latest: int, path: Path) -> int:
    """The number in a token of the log, whose appends have numbers from `first` to `latest`."""
    number = getattr(token, "number", None)
    if type(number) is not int or not first <= number <= latest + 1:        # one more: its records linger
        raise InvalidArgumentError(
            f"{token!r} is not a token of this log", file=path,
            hint="use one that an append with wait=False returned; it is valid until the log is closed",
        )
    return number


def _run(announced: "queue.SimpleQueue[Announced]") -> None:
    told_at = -_PAUSE_S
    while True:
        log = announced.get()
        # Slept here, not behind each round: a sleep may last too long, and would delay the first append after a pause.
        left_s = told_at + _PAUSE_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        while True:
            log.is_announced = False        # before the look: what comes later announces again
            try:
                log.tell_growth()
            except BaseException:
                _LOG.exception("what a log shows could not be told")
            if announced.empty():
                break
            log = announced.get()
        del log
        told_at = time.monotonic()


# A log puts itself there to have itself told of.
NOTICES = ProcessQueue[Announced](_run)
