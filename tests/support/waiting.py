"""Waiting for what another thread or process does."""
import threading
import time


def wait_for(what, seconds=120):
    """Return when `what()` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


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
