"""The clock seam: who needs the time takes a Clock, so that a test can move it.

Whoever sleeps until some time of day has to hear when the clock is set. A clock that tells has `listen` and `unlisten`,
as those here have; with any other clock, `listen` below answers False, and the sleeper has to look again now and then.
"""
import os
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from seglog._kernels.clock_steps import ClockSteps

Listener = Callable[[], None]


class Clock(Protocol):
    """Time as logs record it. It may step back: a clock is set by people and by NTP."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; never steps back. For durations and retries."""
        ...


@runtime_checkable
class TellingClock(Protocol):
    """A clock that tells when it was set."""

    def listen(self, listener: Listener) -> bool:
        """Call `listener` each time that the clock was set: in any thread, so it must be quick and never raise. False
        if the clock cannot tell."""
        ...

    def unlisten(self, listener: Listener) -> None:
        """Call it once less; nothing if it is not called."""
        ...


def listen(clock: Clock, listener: Listener) -> bool:
    """Whether `listener` is called each time that the clock was set. If so, `unlisten` is due some time."""
    return isinstance(clock, TellingClock) and clock.listen(listener)


def unlisten(clock: Clock, listener: Listener) -> None:
    if isinstance(clock, TellingClock):
        clock.unlisten(listener)


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def listen(self, listener: Listener) -> bool:
        return _SYSTEM_STEPS.listen(listener)

    def unlisten(self, listener: Listener) -> None:
        _SYSTEM_STEPS.unlisten(listener)


class _SystemSteps:
    """Tells everybody in this process when the system's clock was set: one thread, which sleeps until then."""

    def __init__(self) -> None:
        # Guards the watching. Of the listeners each change is one step.
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._process_id = 0        # that of the thread: a forked child has none
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
                start_new_thread(self._tell, (ClockSteps(),))
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
    """Stands still until it is set; for tests and for replaying a run."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ns = 0
        self._listeners: list[Listener] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def set(self, now_ms: int) -> None:
        """Let it be `now_ms`, earlier or later than before."""
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
        """Let `ms` milliseconds pass."""
        self.set(self._now_ms + ms)

    def advance_monotonic(self, ms: int) -> None:
        """Let time pass that the wall clock does not show."""
        self._monotonic_ns += ms * 1_000_000
