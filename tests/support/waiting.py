"""Waiting for what another thread does."""
import time


def wait_for(what, seconds=30):
    """Return when `what()` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
