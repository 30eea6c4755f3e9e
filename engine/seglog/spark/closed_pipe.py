"""A worker of Spark's whose rows nobody takes any more ends quietly.

`limit(n)` closes the pipe as soon as it has enough. The worker's next write fails then, and Spark's daemon prints the
traceback of a BrokenPipeError on stderr, which looks like a fault and is none.
"""
import os
import signal
from types import FrameType

_SPARKS = ("/pyspark/", "/pyspark.zip/", "/py4j", "/pyarrow/")


def end_with_closed_pipe() -> None:
    """In a worker: end as a command does before `head`, when Spark closes the pipe that rows are written to.

    A pipe or socket of somebody else (a function of the user's, later in this worker) fails as it did before.
    """
    if signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN:      # Python's own setting
        try:
            signal.signal(signal.SIGPIPE, _ended)
        except ValueError:      # not the main thread: no worker of the daemon's
            return


def _ended(number: int, frame: FrameType | None) -> None:
    """Told before the error of the write is heard of: who wrote is on the stack."""
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
