"""Closing in the middle of a call of the same thread: in a signal's handler, or where Python collects an object.

The call has locks that closing needs, and goes on only when the handler returns. So a thread of its own closes then, as
soon as the call has ended; the process ends after that (process_end).
"""
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from seglog._kernels.shield import shielded, start_thread, work_in_background
from seglog._kernels.write_gate import Bell
from seglog.logger import Logger
from seglog.process_end import PROCESS_END

_LOG = Logger(__name__)

_PACKAGE = __name__.partition(".")[0] + "."
# The packages whose calls hold locks while Python code of theirs runs.
_LOCKING = ("attach", "ledger", "log", "queue", "topic")


def close_in_order(close: Callable[[], None], path: Path) -> None:
    """Call `close`, which nothing interrupts; return when it has. In the middle of a call of this thread, return at
    once: see above. `path`: for the log, which gets the error then."""
    if _is_in_a_call():
        late = _LateClose(close, path)
        PROCESS_END.add(late)
        start_thread(late.run, ())
    else:
        shielded(close)


def _is_in_a_call() -> bool:
    """Whether this thread is in a call of ours, and a handler or a finalizer that nobody called closes."""
    frame: FrameType | None = sys._getframe(1)
    others: list[FrameType] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_PACKAGE):
            others.append(frame)
        elif others and module.split(".")[1] in _LOCKING and any(map(_was_not_called, others)):
            return True
        frame = frame.f_back
    return False


def _was_not_called(frame: FrameType) -> bool:
    """Whether Python called this function between two instructions: a signal's handler gets the interrupted frame, as
    (signal, frame); finalizers have a name. A callback, or somebody's wrapper of `close`, is called by code of ours."""
    if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") == "weakref":
        return True
    # (A list: those of a module change while other threads run. And only of frames in front of a call of ours: a frame
    # keeps what is asked for here, so that `del log` would not let go of a log.)
    return any(
        type(one) is FrameType
        for value in list(frame.f_locals.values()) for one in (value if type(value) is tuple else (value,))
    )


class _LateClose:
    """A thread that closes."""

    def __init__(self, close: Callable[[], None], path: Path) -> None:
        self._close = close
        self._path = path
        self._done = Bell()

    def run(self) -> None:
        work_in_background()
        try:
            self._close()
        except Exception as error:
            _LOG.error("%s, closed in the middle of a call: %s", self._path, error)
        finally:
            PROCESS_END.remove(self)
            self._done.ring()

    def write_out(self) -> None:
        """At the end of the process. Closing does it."""

    def end_soon(self) -> None:
        """At the end of the process. Nothing can hasten it."""

    def await_end(self, timeout_s: float) -> None:
        """Return when it is closed, but after `timeout_s` at the latest."""
        self._done.wait(timeout_s)
