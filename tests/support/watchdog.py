"""Shows where a test hangs: the stacks of all threads on stderr, when no test has begun for five minutes.

pytest's `faulthandler_timeout` does the same by a thread that it starts and ends for each test: on a busy machine that
takes longer than most tests do. Here a test restarts the timer only if that was not done in the last ten seconds.
"""
import faulthandler
import math
import os
import time

import pytest

HANGS_AFTER_S = 300
AGAIN_S = 10


class Watchdog:
    """A plugin of pytest."""

    of_this_process = None

    def __init__(self, stderr=2, hangs_after_s=HANGS_AFTER_S):
        Watchdog.of_this_process = self
        self._file = os.fdopen(os.dup(stderr), "w")     # which pytest does not capture
        self._hangs_after_s = hangs_after_s
        self._started_s = -math.inf

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        self.wait_again()

    def wait_again(self):
        now = time.monotonic()
        if now - self._started_s > AGAIN_S:
            self._started_s = now
            faulthandler.dump_traceback_later(self._hangs_after_s, file=self._file)

    def pytest_enter_pdb(self):
        self._stop()

    def pytest_unconfigure(self):
        self._stop()
        self._file.close()

    def _stop(self):
        faulthandler.cancel_dump_traceback_later()
        self._started_s = -math.inf


def goes_on():
    """Call it in a test that takes longer than that, wherever it is a step further."""
    if Watchdog.of_this_process is not None:
        Watchdog.of_this_process.wait_again()
