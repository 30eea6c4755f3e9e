"""A signal's handler that closes in the middle of a call of its thread, at chosen moments of the engine's own code.

For a process of its own, which a test starts with `run_closing`: a thread that waits for ever ends it, with the stacks
of all threads.
"""
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

from seglog.errors import LogClosedError
from support.crash import interrupts

# Every so many instructions.
STEP = 97 if os.environ.get("SEGLOG_TORTURE") else 1499
_numbers = itertools.count()


class _Closer(interrupts.Interrupter):
    """Closes before the n-th instruction, once."""

    def __init__(self, at, close):
        super().__init__(at)
        self._close = close

    def _before_instruction(self, code, offset, frame):
        try:
            super()._before_instruction(code, offset, frame)
        except interrupts.Interrupted:
            self._close()


def new_path():
    """A path that nothing has, for a log, too."""
    return f"{sys.argv[1]}{next(_numbers)}-0"


def at_each_opcode(opened, action, step=STEP):
    """Call `action(opened())` again and again, closed before another instruction each time."""
    at, is_reached = 0, True
    while is_reached:
        it = opened()
        closer = _Closer(at, it.close)
        with closer._monitoring() if interrupts.BY_MONITORING else closer._tracing():
            try:
                action(it)
            except LogClosedError:
                assert closer.where
        it.close()
        is_reached = closer.where is not None
        at += step


def while_it_waits(it, wait):
    """Close `it` while `wait()` waits."""
    signal.signal(signal.SIGALRM, lambda *_: it.close())
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        wait()
    except LogClosedError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    it.close()
    assert it.closed


def run_closing(script, directory):
    """Run a script in a process of its own, which has the names above; its `new_path` is below `directory`."""
    head = f"import faulthandler, seglog; faulthandler.dump_traceback_later(20, exit=True); from {__name__} import *\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script, str(directory / "home")], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
