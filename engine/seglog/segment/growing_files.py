"""Limits how many growing segments of a process have descriptors: an idle one gives its descriptors back, and takes
them again for its next append. For logs and ledgers alike.

A growing segment has a descriptor for its .log and for each index. Together they may take half of what the process is
allowed (`ulimit -n`); beyond that, the segment whose last append is (about) the oldest gives its own back. Before that,
its data is synced by the descriptor that wrote it: a later descriptor might not learn that the disk failed. So a
segment without descriptors has nothing to lose, and when it takes them again, each file must be the same as before.

A log takes descriptors under its own lock, and waits for no other log's: a log in use keeps its descriptors. After an
interrupt between two steps, a segment may be listed here twice, but an open one is never missing.
"""
import contextlib
import errno
import os
import resource
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import ref

from seglog.errors import LogFailedError, SeglogError, StorageError
from seglog.segment.appender import SegmentAppender

# .log, .index, .timeindex and .time.index.
_FILES_EACH = 4
_SEGMENTS_MIN, _DESCRIPTORS_MAX = 8, 1 << 17


def segments_allowed() -> int:
    """Return how many growing segments may have descriptors at a time: with half of those of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _DESCRIPTORS_MAX:
        soft = _DESCRIPTORS_MAX
    return max(_SEGMENTS_MIN, soft // 2 // _FILES_EACH)


class GrowingSegment(Protocol):
    """The owner of a growing segment: the end of a log (LogTail) or of a ledger (EntryWriter)."""

    active: SegmentAppender
    refusal: Callable[[], BaseException] | None
    number: int             # of appends
    is_told: bool

    @property
    def failure(self) -> BaseException | None: ...

    def changing(self) -> AbstractContextManager[object]:
        """A block that changes it."""

    def alone_at_once(self, section: Callable[..., object], *args: Any) -> bool:
        """Call `section` with the lock and alone with the files, if both are free now. Return whether it was called."""

    def write_entries(self) -> None:
        """Write what waits in memory. With the lock, and alone with the files."""

    def sync_all(self) -> None:
        """Do the same, and sync everything that is written."""

    def settle(self, error: BaseException) -> None:
        """Handle `error`, which left it read-only, without the lock. Raises LogFailedError."""


class _Slot:
    """A segment that has descriptors, and how many appends its owner had when the hand last passed."""

    __slots__ = ("key", "number", "owner")

    def __init__(self, owner: GrowingSegment) -> None:
        self.key = id(owner)
        self.owner = ref(owner)
        self.number = owner.number


class GrowingFiles:
    """Lets `limit()` growing segments have their files open; more only if they are in use at the same time.

    Second chance, like OpenSegments: a segment that was appended to since the hand last passed, or that has something
    to sync, stays for another round. No lock: each step is one operation of a dict or a deque.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self.limit = limit
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Forget all segments: in a forked child, none of them grows."""
        self._slots: dict[int, _Slot] = {}
        self._ring: deque[_Slot] = deque()      # the hand is at its left end

    def appender_of(self, owner: GrowingSegment) -> SegmentAppender:
        """Return the owner's active segment with open files. Needs its lock. After StorageError nothing has changed."""
        active = owner.active
        if active.is_given_back:
            self.opened(owner)      # first, so that after an interrupt below it is still known here
            try:
                active.take_back()
            except StorageError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.leave(len(self._ring) // 2)
                active.take_back()
        return active

    def opened(self, owner: GrowingSegment) -> None:
        """Note that `owner` has descriptors, or is about to; needs its lock."""
        slot = self._slots.get(id(owner))
        if slot is not None and slot.owner() is owner:
            return
        slot = _Slot(owner)
        self._ring.append(slot)
        self._slots[id(owner)] = slot
        limit = self.limit()
        if len(self._ring) > limit:
            self.leave(limit)

    def leave(self, limit: int) -> None:
        """Reduce to `limit` segments, as far as others are idle."""
        ring = self._ring
        chances = busy = len(ring)
        while len(ring) > limit and busy > 0:
            try:
                slot = ring[0]
            except IndexError:      # other threads took them
                return
            owner = slot.owner()
            if owner is None or owner.refusal is not None or owner.failure is not None:     # it closes them, or did
                self._drop(slot)
            elif chances > 0 and (owner.number != slot.number or owner.active.unsynced):
                chances -= 1
                slot.number = owner.number
                self._pass(slot)
            elif not self._gave_back(slot, owner):
                busy -= 1
                self._pass(slot)

    def _pass(self, slot: _Slot) -> None:
        """Move the hand on, unless another thread has moved it meanwhile."""
        if self._ring and self._ring[0] is slot:
            self._ring.rotate(-1)

    def _gave_back(self, slot: _Slot, owner: GrowingSegment) -> bool:
        try:
            return owner.alone_at_once(self._give_back, slot, owner)
        except SeglogError as error:
            with contextlib.suppress(LogFailedError):
                owner.settle(error)
            owner.is_told = False       # the caller is another log: the error is for this log's own next caller
            return True

    def _give_back(self, slot: _Slot, owner: GrowingSegment) -> None:
        with owner.changing():      # after an interrupt from here on, it is read again from the disk
            self._drop(slot)        # before the rest: if that fails, it is not tried again
            owner.write_entries()
            if owner.active.unsynced:
                owner.sync_all()
            owner.active.give_back()

    def _drop(self, slot: _Slot) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
        with contextlib.suppress(ValueError):       # another thread removed it
            self._ring.remove(slot)


GROWING_FILES = GrowingFiles(segments_allowed)
