"""One timer for all members, rebalances and transactions: it calls functions when they are due.

It has a heap of due times and one sleeping task. It uses only the clock's `monotonic_ns`, so setting the system clock
ends no session. Tests advance a ManualClock and call `run_due`.
"""
import asyncio
import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from seglog.clock import Clock
from seglog.logger import Logger

_LOG = Logger(__name__)

# For so long what has many steps runs before the loop goes on.
_STEP_S = 0.002


class Paced:
    """Something with many steps, which lets the loop go on from time to time."""

    _until_s = 0.0

    async def pause(self) -> None:
        """Let the loop go on, if this has had it for long enough."""
        now_s = time.monotonic()
        if now_s > self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + _STEP_S


class Due:
    """A call that is due at a certain time, unless it is cancelled."""

    __slots__ = ("_call", "at_ms", "number")

    def __init__(self, at_ms: int, number: int, call: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.number = number
        self._call: Callable[[], None] | None = call

    def __lt__(self, other: "Due") -> bool:
        return (self.at_ms, self.number) < (other.at_ms, other.number)

    @property
    def is_waiting(self) -> bool:
        return self._call is not None

    def cancel(self) -> None:
        """Idempotent."""
        self._call = None

    def take(self) -> Callable[[], None] | None:
        """The function to call; None if it was taken or cancelled before."""
        call, self._call = self._call, None
        return call


class Timer:
    """Belongs to one event loop: it calls functions there, and other threads may not call its methods."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[Due] = []
        self._number = 0
        self._changed: asyncio.Event | None = None

    def now_ms(self) -> int:
        """Milliseconds since an arbitrary moment. Never goes back."""
        return self._clock.monotonic_ns() // 1_000_000

    def call_in(self, ms: int, call: Callable[[], None]) -> Due:
        self._number += 1
        due = Due(self.now_ms() + max(ms, 0), self._number, call)
        heapq.heappush(self._heap, due)
        if self._heap[0] is due and self._changed is not None:
            self._changed.set()
        return due

    def in_pieces(self, steps: Iterator[object]) -> None:
        """Take these steps, as many now as do not block the loop for long, and then the others."""
        until_s = time.monotonic() + _STEP_S
        for _ in steps:
            if time.monotonic() > until_s:
                self.call_in(0, partial(self.in_pieces, steps))
                return

    def run_due(self, until_s: float = math.inf) -> int | None:
        """Make the calls that are due, until `time.monotonic` is past `until_s`. Returns the ms until the next one, or
        None if none is waiting."""
        heap = self._heap
        while heap:
            if time.monotonic() > until_s:
                return 0
            if heap[0].is_waiting and heap[0].at_ms > self.now_ms():
                return heap[0].at_ms - self.now_ms()
            call = heapq.heappop(heap).take()
            if call is None:
                continue
            try:
                call()
            except Exception:       # an error in one group must not stop the sessions of all others
                _LOG.exception("a call of the timer failed")
        return None

    async def run(self) -> None:
        """Make the calls when they are due, until this task is cancelled."""
        changed = self._changed = asyncio.Event()
        try:
            while True:
                left_ms = self.run_due(time.monotonic() + _STEP_S)
                changed.clear()
                if left_ms == 0:
                    await asyncio.sleep(0)
                    continue
                # A quarter of a millisecond more, so that a rounding clock does not wake it up twice.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if left_ms is None else left_ms / 1000 + 0.00025):
                        await changed.wait()
        finally:
            self._changed = None
