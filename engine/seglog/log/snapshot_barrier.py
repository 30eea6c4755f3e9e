"""Changes of a log that need its producer snapshots on the disk first.

A snapshot of many producers is written in the background. Appends continue meanwhile, also while a change waits.
"""
from collections.abc import Callable
from typing import Any, TypeVar

from seglog.log.tail import LogTail

Made = TypeVar("Made")

# How often a change gives way to snapshots that are being written. After that, a log that rolls too quickly must wait.
_GIVES_WAY = 10
_LATER = object()


def change_settled(tail: LogTail, change: Callable[..., Made], *args: object) -> Made:
    """As `tail.change`, but when no snapshot is being written. Waits for that without the lock."""
    for _ in range(_GIVES_WAY):
        tail.snapshots.wait()
        made = tail.change(_if_settled, tail, change, args)
        if made is not _LATER:
            return made
    return tail.change(change, *args)


def _if_settled(tail: LogTail, change: Callable[..., Made], args: tuple[object, ...]) -> Made | Any:
    return _LATER if tail.snapshots.is_busy else change(*args)
