"""Waiting for what another thread or process does."""
import queue
import signal
import threading
import time
from contextlib import contextmanager


class HangsError(AssertionError):
    """A call did not return in time."""


def wait_for(what, seconds=120):
    """Return when `what()` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def in_time(call, seconds=30, where=""):
    """What `call` returns or raises, in a thread of its own; HangsError if it takes longer. `where`: for messages."""
    answers = queue.SimpleQueue()

    def run():
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise HangsError(f"hangs for {seconds} s {where}") from None
    if error is not None:
        error.add_note(where)
        raise error
    return answer


@contextmanager
def signals_meanwhile(most=100):
    """A signal each 50 ms in this block, as a program's own timer sends them, at most so many: a list, one element for
    each that came."""
    signals = []

    def handle(*_):
        signals.append(None)
        if len(signals) == most:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        yield signals
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def line_of(process, seconds=180):
    """The next line of the process's output. If none comes in time, kills the process and fails."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    words = process.stderr.read() if not line and process.stderr else ""
    assert line, f"the process ended, or wrote no line in {seconds} s and was killed: {words}"
    return line
