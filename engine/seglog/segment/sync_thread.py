"""The one thread of a process that syncs for whoever does not wait, and calls back.

    WriteGate.when ── queue ── for each gate: one sync for all of its callers ── callbacks, in the order of the calls

Each caller is answered exactly once, in this thread and without any lock: with None, or with the error because of which
its append will never be on the disk. While a disk syncs, callers of every log queue up, and the next sync of a log
covers all of its own. Threads that wait (`WriteGate.wait`) lead their own syncs and need none of this.
"""
import logging
import os
import queue
import threading
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_LOG = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], None]


class Synced(Protocol):
    """A write gate, as the thread sees it."""

    path: Path

    @property
    def committed(self) -> int: ...

    def reach(self, number: int) -> None:
        """Return when the appends up to `number` are on the disk; raise if they never will be."""


class SyncThread:
    """Begins with the first caller, and again in a forked child. It keeps a gate alive only until it has answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()       # guards the start
        self._queue: queue.SimpleQueue[tuple[Synced, int, Callback]] = queue.SimpleQueue()
        self._process_id = 0

    def add(self, gate: Synced, number: int, callback: Callback) -> None:
        """Call `callback` when the appends of `gate` up to `number` are on the disk, or never will be."""
        if self._process_id != os.getpid():
            self._start()
        self._queue.put((gate, number, callback))

    def _start(self) -> None:
        with self._lock:
            if self._process_id != os.getpid():
                # Not by threading.Thread, whose start can wait for ever if it is interrupted (bpo-45274).
                start_new_thread(_run, (self._queue,))
                self._process_id = os.getpid()


def _run(calls: "queue.SimpleQueue[tuple[Synced, int, Callback]]") -> None:
    while True:
        gate, number, callback = calls.get()
        waiting = {id(gate): (gate, [(number, callback)])}
        del callback
        while not calls.empty():    # nobody else takes from it
            gate, number, callback = calls.get()
            waiting.setdefault(id(gate), (gate, []))[1].append((number, callback))
            del callback
        del gate
        while waiting:
            _answer(*waiting.popitem()[1])


def _answer(gate: Synced, callers: list[tuple[int, Callback]]) -> None:
    error: BaseException | None = None
    try:
        gate.reach(max(number for number, _ in callers))
    except BaseException as failure:
        error = failure
    for number, callback in callers:
        try:
            callback(None if error is None or number <= gate.committed else error)
        except BaseException:       # also SystemExit: the thread is everybody's
            _LOG.exception("a callback of %s raised", gate.path)


SYNC_THREAD = SyncThread()
# The parent's callers are answered in the parent.
os.register_at_fork(after_in_child=SYNC_THREAD.__init__)  # type: ignore[misc]
