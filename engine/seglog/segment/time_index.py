"""The time index of one segment (.timeindex): docs/formats/time_index.md."""
from seglog._kernels.index_search import TimeIndexSearch
from seglog.segment.index_file import IndexFile


class TimeIndex(IndexFile):
    """`TimeIndex(buffer, base_offset)`: the entries of a .timeindex as a sequence of (timestamp ms, offset).

    An entry says that no record up to and with `offset` has a later timestamp; timestamps rise strictly.
    Empty for v0, which has no time. `lookup(timestamp)` gives the last entry at or below it,
    (-1, base_offset) where there is none; `lookup_many` gives offsets.
    """

    ENTRY_SIZE = 12     # timestamp int64, relative offset int32
    _SEARCH = TimeIndexSearch
