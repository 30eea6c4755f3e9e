"""Tags that have no meaning here, as headers of a record, and back: `seglog.tag.<id>` has the tag's value as its own.

So a message comes through v2 and back with all its tags. A header of that name whose value has another width than the
id says, or whose id is one that the batch itself says, is a header like any other: it has no place among tags.
"""
from libc.stdint cimport int64_t

from .output cimport Output
from .record_view cimport RecordView

# The tags that a v2 record's headers are, one behind the other; of two of one name the first. OK or NO_MEMORY.
# `left_out` counts up the headers that are none.
cdef int tags_of_headers(const RecordView* record, Output* others, int64_t* left_out) noexcept nogil

# Give a tagged message, as it was parsed, the headers of v2 that its unknown tags are, written into `headers`: OK,
# NO_MEMORY or BAD_TAG.
cdef int headers_of_tags(RecordView* record, Output* headers) noexcept nogil
