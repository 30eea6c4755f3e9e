"""Where readers of a growing segment stop.

One writer puts the end forward, many readers take it: five numbers that change in one step, so that neither side
waits. What lies behind the end may be half a batch, and is never looked at. The end goes back only where a
segment is cut, and then under a new file (fs.aside.shorten): who took the old one keeps its map.
"""
from typing import NamedTuple

from seglog._kernels.growing_end import GrowingEnd


class End(NamedTuple):
    """The published end of a segment, taken at one moment."""

    position: int           # bytes of .log that hold whole batches
    next_offset: int        # one past the last offset in them
    offset_entries: int = 0     # entries of .index that lead into them
    time_entries: int = 0       # entries of .timeindex
    minute_entries: int = 0     # entries of .time.index, where there is one


class PublishedEnd(GrowingEnd):
    """The end of one segment. `at` is read without a lock, and put by whoever appends."""

    __slots__ = ()
    at: End
