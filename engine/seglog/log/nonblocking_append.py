"""Appends that run at once or not at all: for an event loop, which must not wait for a roll, a mark or a disk.

    written = at_once.append(...)       NOT_AT_ONCE: nothing was done, have a thread append
    if at_once.is_due(written): ...     `Log.append` would have waited for the disk here
"""
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.reading.times import Time

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record


class NonblockingAppend:
    """The appends of one log. Each raises what the method of `Log` raises."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tail = log._tail
        self._appender = log._appender

    @property
    def committed(self) -> int:
        """The appends up to this number are on the disk."""
        return self._tail.committed

    def is_due(self, written: PendingAppend[Any]) -> bool:
        """Whether `Log.append` would still wait for this to be on the disk."""
        tail = self._tail
        if tail.flush_messages:
            return tail.next_offset - tail.durable_offset >= tail.flush_messages
        return tail.publishes_synced and written.number > tail.committed

    def append(
        self, value: "Buffer | None", key: "Buffer | str | None", headers: "Headers | None", timestamp: "Time | None"
    ) -> PendingAppend[int]:
        written = self._appender.append(value, key, headers, timestamp, None)
        assert isinstance(written, PendingAppend)
        return written

    def append_later(
        self, value: "Buffer | None", key: "Buffer | str | None", headers: "Headers | None", timestamp: "Time | None"
    ) -> PendingAppend[int]:
        """The same by a thread that may wait."""
        return self._log.append(value, key=key, headers=headers, timestamp=timestamp, wait=False)

    def append_many(self, records: "Iterable[Record]", atomic: bool) -> PendingAppend[int]:
        written = self._appender.append_many(records, atomic, None)
        assert isinstance(written, PendingAppend)
        return written

    def append_many_later(self, records: "Iterable[Record]", atomic: bool) -> PendingAppend[int]:
        """The same by a thread that may wait."""
        return self._log.append_many(records, atomic=atomic, wait=False)
