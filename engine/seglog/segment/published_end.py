"""Where readers of a growing segment stop.

One writer moves the end forward, many readers load it: five numbers that change in one step, so that neither side
waits. Bytes after the end may be half a batch, and are never read. The end moves back only if a segment is truncated,
and then under a new file (fs.aside.shorten): a reader that has the old file keeps its map.
"""

from seglog._kernels.growing_end import GrowingEnd
from seglog.named_tuple import NamedTuple


class End(NamedTuple):
    """The published end of a segment, taken at one moment."""

    position: int           # bytes of .log that are complete batches
    next_offset: int        # one past the last offset in them
    offset_entries: int = 0     # entries of .index that point into them
    time_entries: int = 0       # entries of .timeindex
    minute_entries: int = 0     # entries of .time.index, if there is one


class PublishedEnd(GrowingEnd):
    """The end of one segment. `at` is read without a lock, and set by the appender."""

    __slots__ = ()
    at: End
