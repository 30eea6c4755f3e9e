"""The followers, calls of `follow`, cursors and shared logs that a process has open: log.log_metrics reports them."""
import weakref
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from seglog.counters import Counter

Reader = TypeVar("Reader")


class OpenReaders(Generic[Reader]):
    """The readers of one kind that the process has open, and how many it has opened."""

    def __init__(self) -> None:
        self.all = Counter()
        self._open: dict[int, weakref.ref[Reader]] = {}     # not a WeakSet: log.log says why

    def opened(self, reader: Reader) -> None:
        self.all.add()
        self._open[id(reader)] = weakref.ref(reader)

    def closed(self, reader: Reader) -> None:
        self._open.pop(id(reader), None)

    def now(self) -> list[Reader]:
        """The open readers, without those that were dropped without being closed."""
        open_readers = []
        for number, found in self._open.copy().items():      # not list(items()): see LogCleaner
            reader = found()
            if reader is not None:
                open_readers.append(reader)
            elif self._open.get(number) is found:
                del self._open[number]
        return open_readers


class EndingLog(Protocol):
    """What this module needs of a log that is followed."""

    path: Path

    @property
    def log_end_offset(self) -> int: ...


class FollowCall(Protocol):
    """A call of `follow`."""

    @property
    def log(self) -> EndingLog: ...

    position: int


class NamedCursor(Protocol):
    """A LogCursor."""

    name: str

    @property
    def path(self) -> Path: ...

    @property
    def position(self) -> int: ...

    @property
    def lag(self) -> int: ...


class AnySharedLog(Protocol):
    """A log that was opened with attach=True."""

    path: Path

    @property
    def is_owner(self) -> bool: ...


FOLLOWERS: OpenReaders[object] = OpenReaders()
FOLLOW_CALLS: OpenReaders[FollowCall] = OpenReaders()
CURSORS: OpenReaders[NamedCursor] = OpenReaders()
SHARED_LOGS: OpenReaders[AnySharedLog] = OpenReaders()
