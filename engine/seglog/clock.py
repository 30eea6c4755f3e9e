"""The clock seam: who needs the time takes a Clock, so that a test can move it."""
import time
from typing import Protocol


class Clock(Protocol):
    """Time as logs record it. It may step back: a clock is set by people and by NTP."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; never steps back. For durations and retries."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """Stands still until it is set; for tests and for replaying a run."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def set(self, now_ms: int) -> None:
        """Let it be `now_ms`, earlier or later than before."""
        self.advance_monotonic(max(now_ms - self._now_ms, 0))
        self._now_ms = now_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self.set(self._now_ms + ms)

    def advance_monotonic(self, ms: int) -> None:
        """Let time pass that the wall clock does not show."""
        self._monotonic_ns += ms * 1_000_000
