"""The logs that this process has open for writing: readers of the same partition ask them first for their end."""
import weakref
from collections.abc import Iterator

from seglog.reading.following import Followable

# By id, and not a WeakSet: that runs Python code on collection, in which ^C is lost.
OPEN_LOGS: dict[int, weakref.ref[Followable]] = {}


def open_logs() -> Iterator[Followable]:
    """The logs that this process has open. A forked child forgets those of its parent."""
    for found in list(OPEN_LOGS.values()):
        log = found()
        if log is not None:
            yield log
