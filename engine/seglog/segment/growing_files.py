"""Which logs of a process have descriptors: an idle one gives its own back, and takes them again for its next append.

A growing segment has a descriptor for its .log and for each index. They may take half of what the process is allowed
(`ulimit -n`); one log more, and the one that nobody appended to for longest (about) gives its own back. What it wrote
is synced before that, by the descriptor that wrote it: a later one need not learn that the disk failed. So a log that
gave its descriptors back has nothing to lose, and when it takes them again, each file must be the one that it was.

A log takes descriptors under its own lock, and waits for no other log's: one that is in use keeps its descriptors.
"""
import errno
import logging
import os
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import ref

from seglog.errors import SeglogError, StorageError
from seglog.segment.appender import SegmentAppender

_LOG = logging.getLogger(__name__)

# .log, .index, .timeindex and .time.index.
_FILES_A_LOG = 4
_LOGS_MIN, _DESCRIPTORS_MAX = 8, 1 << 17


def logs_allowed() -> int:
    """How many logs may have their descriptors at a time: with half of those of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _DESCRIPTORS_MAX:
        soft = _DESCRIPTORS_MAX
    return max(_LOGS_MIN, soft // 2 // _FILES_A_LOG)


class LogEnd(Protocol):
    """The end of a log (LogTail), as it is seen here."""

    path: Path
    active: SegmentAppender
    refusal: Callable[[], BaseException] | None
    number: int             # of appends
    is_changing: bool
    is_told: bool

    @property
    def failure(self) -> BaseException | None: ...

    def alone_at_once(self, section: Callable[..., object], *args: Any) -> bool:
        """Call it with the lock and alone with the files, if both are free now. Whether it was called."""

    def write_entries(self) -> None:
        """With the lock: the index files lead up to the end."""

    def sync(self) -> int:
        """All that is written is on the disk."""

    def cover(self, number: int) -> None:
        """Nobody need wait for the appends up to there."""


class _Slot:
    """A log that has descriptors, and how many appends it had when the hand last passed."""

    __slots__ = ("key", "number", "tail")

    def __init__(self, tail: LogEnd) -> None:
        self.key = id(tail)
        self.tail = ref(tail)
        self.number = tail.number


class LogFiles:
    """The files of growing logs: `limit()` logs have theirs open; in use at the same time, they may be more.

    Second chance, as OpenSegments: a log that was appended to since the hand last passed, or has something to sync,
    stays for another round. No lock: each step is one operation of a dict or a deque.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.limit = limit
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """In a child of a fork, where none of them grows."""
        self._slots: dict[int, _Slot] = {}
        self._ring: deque[_Slot] = deque()

    def appender_of(self, tail: LogEnd) -> SegmentAppender:
        """With the lock of `tail`: its active segment, with its files open. Raises StorageError; nothing is changed."""
        active = tail.active
        if active.is_given_back:
            try:
                active.take_back()
            except StorageError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.leave(len(self._ring) // 2)
                active.take_back()
            self.opened(tail)
        return active

    def opened(self, tail: LogEnd) -> None:
        """With the lock of `tail`: it has descriptors."""
        slot = self._slots.get(id(tail))
        if slot is not None and slot.tail() is tail:
            return
        self._slots[id(tail)] = slot = _Slot(tail)
        self._ring.append(slot)
        limit = self.limit()
        if len(self._ring) > limit:
            self.leave(limit)

    def leave(self, limit: int) -> None:
        """Have so many left, as far as the others are idle."""
        ring = self._ring
        chances = busy = len(ring)
        while len(ring) > limit and busy > 0:
            try:
                slot = ring.popleft()
            except IndexError:      # other threads took them
                return
            tail = slot.tail()
            if tail is None or tail.refusal is not None or tail.failure is not None:     # it closes them, or did
                self._drop(slot)
            elif chances > 0 and (tail.number != slot.number or tail.active.unsynced):
                chances -= 1
                slot.number = tail.number
                ring.append(slot)
            elif not self._gave_back(slot, tail):
                busy -= 1
                ring.append(slot)

    def _gave_back(self, slot: _Slot, tail: LogEnd) -> bool:
        try:
            return tail.alone_at_once(self._give_back, slot, tail)
        except SeglogError as error:
            tail.is_told = False        # its next caller gets the error
            _LOG.error("%s is read-only until it is opened again: %s", tail.path, error)
            return True

    def _give_back(self, slot: _Slot, tail: LogEnd) -> None:
        self._drop(slot)        # first: if the rest fails, it is not tried again
        tail.is_changing = True
        tail.write_entries()
        if tail.active.unsynced:
            tail.cover(tail.sync())
        tail.active.give_back()

    def _drop(self, slot: _Slot) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]


OPEN_LOGS = LogFiles(logs_allowed)
