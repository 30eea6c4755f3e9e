"""Converts unknown tags to record headers, and back: the header `seglog.tag.<id>` has the tag's value.

So a message keeps all its tags through v2 and back. A header with such a name stays an ordinary header, and gives no
tag, if its value has a width other than the id's, or if the batch itself stores the tag with that id.
"""
from libc.stdint cimport int64_t

from .output cimport Output
from .record_view cimport RecordView

# The tags that a v2 record's headers stand for, one after another; of two with the same name the first.
# OK or NO_MEMORY. Adds to `left_out` the number of headers that are no tags.
cdef int tags_of_headers(const RecordView* record, Output* others, int64_t* left_out) noexcept nogil

# Give a parsed tagged message the v2 headers that its unknown tags stand for, written to `headers`. OK, NO_MEMORY or
# BAD_TAG.
cdef int headers_of_tags(RecordView* record, Output* headers) noexcept nogil
