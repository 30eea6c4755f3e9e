"""The thread of the process that syncs for callers that do not wait, and calls them back.

    WriteGate.when ── queue ── for each gate: one sync for all of its callers ── callbacks, in the order of the calls

Each caller is called back exactly once, in this thread and without any lock: with None, or with the error because of
which its append will never be on the disk. While a disk syncs, callers of every log queue up, and the next sync of a
log covers all of its own.

Callers that a sync has released usually return at once with their next appends. A sync that begins with the first of
them covers few, and every second sync would be like that. So after a sync that covered several appends of a log, the
next one of the same log begins after the same time again, at most a millisecond. If another log's caller comes first,
it does not wait; one that comes while the thread pauses waits until the pause is over.

Threads that wait (`WriteGate.wait`) lead their own syncs and need none of this.
"""
import queue
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from seglog.logger import Logger
from seglog.threads.process_queue import ProcessQueue

_LOG = Logger(__name__)

Callback = Callable[[BaseException | None], None]


class SyncGate(Protocol):
    """What the thread needs of a write gate."""

    path: Path

    @property
    def committed(self) -> int: ...

    def reach(self, number: int) -> None:
        """Return when the appends up to `number` are on the disk; raise if they never will be."""


Call = tuple[SyncGate, int, Callback]
_NUMBER = itemgetter(1)


_REST_S_MAX = 0.001


def _run(calls: "queue.SimpleQueue[Call | None]") -> None:
    rests, rests_until = 0, 0.0         # id of the gate
    call = calls.get()
    while call is not None:
        if id(call[0]) == rests and (left_s := rests_until - time.monotonic()) > 0:
            time.sleep(left_s)
        waiting = {id(call[0]): [call]}
        while not calls.empty():    # no other thread takes from it
            call = calls.get()
            if call is None:
                calls.put(None)     # seen again after this round
                break
            callers = waiting.get(id(call[0]))
            if callers is None:
                waiting[id(call[0])] = [call]
            else:
                callers.append(call)
            del callers
        del call
        rests = next(iter(waiting)) if len(waiting) == 1 else 0     # several: calls of each gathered meanwhile
        while waiting:
            rest_s = _answer(waiting.popitem()[1])
        rests_until = time.monotonic() + rest_s
        call = calls.get()


def _answer(callers: list[Call]) -> float:
    """Call back the callers of one gate. Return how long to wait before its next sync."""
    gate = callers[0][0]
    error: BaseException | None = None
    before, began = gate.committed, time.monotonic()
    try:
        gate.reach(max(map(_NUMBER, callers)))
    except BaseException as failure:
        error = failure
    took_s = time.monotonic() - began
    for _, number, callback in callers:
        try:
            callback(None if error is None or number <= gate.committed else error)
        except BaseException:       # also SystemExit: all logs share the thread
            _LOG.exception("a callback of %s raised", gate.path)
    return min(took_s, _REST_S_MAX) if gate.committed - before > 1 else 0.0


# (gate, number, callback): call back when the gate's appends up to that number are on the disk, or never will be. A
# gate is kept alive only until it has called back.
SYNC_CALLS = ProcessQueue[Call](_run)
