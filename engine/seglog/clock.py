"""The clock seam: code that needs the time takes a Clock, so that a test can move it.

Code that sleeps until a time of day must learn when the clock is set. A clock that reports this has `listen` and
`unlisten`, as the clocks here have. With any other clock, `listen` below returns False, and the sleeper must read the
clock again now and then.
"""
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from seglog._kernels.clock_steps import ClockSteps
from seglog._kernels.shield import start_thread
from seglog.errors import InvalidArgumentError

Listener = Callable[[], None]


class Clock(Protocol):
    """Time as logs record it. It may step back when a person or NTP sets the clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; never steps back. For durations and retries."""
        ...


@runtime_checkable
class TellingClock(Protocol):
    """A clock that reports when it is set."""

    def listen(self, listener: Listener) -> bool:
        """Call `listener` each time the clock is set: in any thread, so it must be quick and never raise. Returns False
        if the clock cannot tell."""
        ...

    def unlisten(self, listener: Listener) -> None:
        """Undo one `listen`; does nothing if there was none."""
        ...


def listen(clock: Clock, listener: Listener) -> bool:
    """Call `listener` each time the clock is set, until `unlisten`. Returns False if the clock cannot tell."""
    return isinstance(clock, TellingClock) and clock.listen(listener)


def unlisten(clock: Clock, listener: Listener) -> None:
    if isinstance(clock, TellingClock):
        clock.unlisten(listener)


def now_ns(clock: Clock) -> int:
    """The time as exactly as the clock knows it: now_ms() is rounded down, so a delay counted from it ends early."""
    return clock.now_ns() if isinstance(clock, SystemClock) else clock.now_ms() * 1_000_000


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def listen(self, listener: Listener) -> bool:
        return _SYSTEM_STEPS.listen(listener)

    def unlisten(self, listener: Listener) -> None:
        _SYSTEM_STEPS.unlisten(listener)


def checked_clock(clock: Clock | None) -> Clock:
    """The clock that a caller gave; the system's for None. Raises InvalidArgumentError if it is none."""
    if clock is None:
        return SystemClock()
    are_methods = [callable(getattr(clock, name, None)) for name in ("now_ms", "monotonic_ns")]
    if isinstance(clock, type) or not all(are_methods):
        raise InvalidArgumentError(
            f"a clock must have now_ms() and monotonic_ns(), not {repr(clock)[:80]}",
            hint="leave it out for the system's; for tests pass seglog.clock.ManualClock(now_ms)",
        )
    return clock


class _SystemSteps:
    """Tells all listeners of this process when the system's clock is set: one thread, which sleeps until then."""

    def __init__(self) -> None:
        # Guards the start of the thread. Each change of the list of listeners is one atomic step.
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._process_id = 0        # the process that has the thread: a forked child has none
        self._is_told = True

    def listen(self, listener: Listener) -> bool:
        if self._process_id != os.getpid():
            self._watch()
        if self._is_told:
            self._listeners.append(listener)
        return self._is_told

    def unlisten(self, listener: Listener) -> None:
        with suppress(ValueError):
            self._listeners.remove(listener)

    def _watch(self) -> None:
        with self._lock:
            if self._process_id == os.getpid():
                return
            try:
                start_thread(self._tell, (ClockSteps(),))
            except OSError:     # not Linux, or no descriptor is left
                self._is_told = False
            self._process_id = os.getpid()

    def _tell(self, steps: ClockSteps) -> None:
        while True:
            steps.wait()
            for listener in tuple(self._listeners):
                listener()


_SYSTEM_STEPS = _SystemSteps()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SYSTEM_STEPS.__init__)  # type: ignore[misc]


class ManualClock:
    """A clock that stands still until it is set; for tests and for replaying a run."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = 0
        self._listeners: list[Listener] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def set(self, now_ms: int) -> None:
        """Set the time to `now_ms`, earlier or later than before."""
        self.advance_monotonic(max(now_ms - self._now_ms, 0))
        self._now_ms = now_ms
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Listener) -> bool:
        self._listeners.append(listener)
        return True

    def unlisten(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        self.set(self._now_ms + ms)

    def advance_monotonic(self, ms: int) -> None:
        """Let `ms` milliseconds pass on the monotonic clock only."""
        self._monotonic_ns += ms * 1_000_000
