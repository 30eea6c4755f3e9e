"""The one thread of a process that syncs for whoever does not wait, and calls back.

    WriteGate.when ── queue ── for each gate: one sync for all of its callers ── callbacks, in the order of the calls

Each caller is answered exactly once, in this thread and without any lock: with None, or with the error because of which
its append will never be on the disk. While a disk syncs, callers of every log queue up, and the next sync of a log
covers all of its own. Threads that wait (`WriteGate.wait`) lead their own syncs and need none of this.
"""
import logging
import queue
from collections.abc import Callable
from operator import itemgetter
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
_NUMBER = itemgetter(1)


def _run(calls: "queue.SimpleQueue[Call]") -> None:
    while True:
        call = calls.get()
        waiting = {id(call[0]): [call]}
        while not calls.empty():    # nobody else takes from it
            call = calls.get()
            callers = waiting.get(id(call[0]))
            if callers is None:
                waiting[id(call[0])] = [call]
            else:
                callers.append(call)
            del callers
        del call
        while waiting:
            _answer(waiting.popitem()[1])


def _answer(callers: list[Call]) -> None:
    """Of one gate."""
    gate = callers[0][0]
    error: BaseException | None = None
    try:
        gate.reach(max(map(_NUMBER, callers)))
    except BaseException as failure:
        error = failure
    for _, number, callback in callers:
        try:
            callback(None if error is None or number <= gate.committed else error)
        except BaseException:       # also SystemExit: the thread is everybody's
            _LOG.exception("a callback of %s raised", gate.path)


# (gate, number, callback): call back when the appends of the gate up to that number are on the disk, or never will be.
# A gate is kept alive only until it has answered.
SYNC_CALLS = ProcessQueue[Call](_run)
