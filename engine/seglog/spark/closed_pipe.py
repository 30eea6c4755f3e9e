"""Lets a Spark worker end quietly once its rows are no longer wanted.

`limit(n)` closes the pipe as soon as it has enough rows. Then the worker's next write fails, and Spark's daemon prints
the traceback of a BrokenPipeError on stderr, which looks like an error but is none.
"""
import os
import signal
from types import FrameType

_SPARKS = ("/pyspark/", "/pyspark.zip/", "/py4j", "/pyarrow/")


def end_with_closed_pipe() -> None:
    """Make this worker end, like a command piped into `head`, when Spark closes the pipe for its rows.

    Other pipes and sockets (of a user's function that runs later in this worker) fail as before.
    """
    if signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN:      # Python's own setting
        try:
            signal.signal(signal.SIGPIPE, _ended)
        except ValueError:      # not the main thread, so not a worker of Spark's daemon
            return


def _ended(number: int, frame: FrameType | None) -> None:
    """Signal handler. It runs before the write raises, so the writing function is still on the stack."""
    is_worker = False
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        is_sparks = any(part in file for part in _SPARKS)
        if not is_sparks and not file.startswith("<frozen") and not file.endswith(("/traceback.py", "/contextlib.py")):
            return
        is_worker = is_worker or (is_sparks and file.endswith("/daemon.py") and name in ("worker", "manager"))
        if is_worker and name == "manager":
            break
        frame = frame.f_back
    if is_worker:
        os._exit(0)
