"""The offset index of one segment (.index): docs/formats/offset_index.md."""
from seglog._kernels.index_search import OffsetIndexSearch
from seglog.segment.index_file import IndexFile


class OffsetIndex(IndexFile):
    """`OffsetIndex(buffer, base_offset)`: the entries of a .index as a sequence of (offset, position).

    The offset is the first or the last of the batch at the position, or the last of an append of several
    batches, as the Kafka version that wrote it had it (KAFKA-6264): a lower bound for a search in every
    case. `lookup(offset)` gives the last entry at or below it, (base_offset, 0) where there is none;
    `lookup_many` gives positions.
    """

    ENTRY_SIZE = 8      # relative offset int32, position int32
    _SEARCH = OffsetIndexSearch
