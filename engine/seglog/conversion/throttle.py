"""Limits the rate of long work, so that a shared disk has capacity for others."""
import time
from collections.abc import Callable

from seglog.clock import Clock, checked_clock

# Idle time gives credit for later only up to this much.
_CREDIT_NS = 1_000_000_000


class Throttle:
    """Call it with bytes of work done; it returns once this much is allowed. Not thread-safe.

    0 bytes a second: no limit. One call's work goes through at once, however much it is.
    """

    def __init__(
        self, bytes_per_s: int, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = checked_clock(clock)
        self._sleep = sleep
        self._paid_until_ns = self._clock.monotonic_ns()

    def __call__(self, size_bytes: float) -> None:
        if not self._bytes_per_s:
            return
        now_ns = self._clock.monotonic_ns()
        self._paid_until_ns = max(self._paid_until_ns, now_ns - _CREDIT_NS)
        self._paid_until_ns += round(size_bytes * 1_000_000_000 / self._bytes_per_s)
        if self._paid_until_ns > now_ns:
            self._sleep((self._paid_until_ns - now_ns) / 1_000_000_000)

    def progress(self, then: Callable[[int, int], None] | None = None) -> Callable[[int, int], None]:
        """Return a progress callable (bytes done, total bytes) that is held to the rate, and calls `then`."""
        before = 0

        def paced(done: int, total: int) -> None:
            nonlocal before
            if then is not None:
                then(done, total)
            self(done - before)
            before = done

        return paced
