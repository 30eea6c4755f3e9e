"""The one thread of a process that syncs for whoever does not wait, and calls back.

    WriteGate.when ── queue ── for each gate: one sync for all of its callers ── callbacks, in the order of the calls

Each caller is answered exactly once, in this thread and without any lock: with None, or with the error because of which
its append will never be on the disk. While a disk syncs, callers of every log queue up, and the next sync of a log
covers all of its own. Threads that wait (`WriteGate.wait`) lead their own syncs and need none of this.
"""
import logging
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from seglog.segment.process_queue import ProcessQueue

_LOG = logging.getLogger(__name__)

Callback = Callable[[BaseException | None], None]


class Synced(Protocol):
    """A write gate, as the thread sees it."""

    path: Path

    @property
    def committed(self) -> int: ...

    def reach(self, number: int) -> None:
        """Return when the appends up to `number` are on the disk; raise if they never will be."""


Call = tuple[Synced, int, Callback]


def _run(calls: "queue.SimpleQueue[Call]") -> None:
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


# (gate, number, callback): call back when the appends of the gate up to that number are on the disk, or never will be.
# A gate is kept alive only until it has answered.
SYNC_CALLS = ProcessQueue[Call](_run)
