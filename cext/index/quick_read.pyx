"""Reads one record of a log where all is at hand: nearly every read of a record by its offset or its time.

    ShownSegments ── the segment of the offset ── its open files ── PointReader

What is not at hand (files that are closed, or that have grown since) is opened by the Python classes above. In the
interpreter these few steps took twice as long as the search.
"""
from libc.stdint cimport int64_t

from .growing_end cimport GrowingEnd
from .header_walk cimport HeaderWalk
from .point_read cimport PointReader
from .record_batch cimport Record
from .window cimport Window

cdef extern from "Python.h":
    int PyLong_CheckExact(object number)
    long long PyLong_AsLongLong(object number) except? -1
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    # The least answer of PointReader.find_timestamp that is an offset, or says that there is none.
    NONE_IS_AS_LATE = -1


cdef class QuickFiles:
    """The open files of a segment, up to `end`; None for all of them. A subclass defines `open_reader`."""
    cdef public object end
    cdef public PointReader reader              # None before the first read
    cdef public PointReader walked_reader       # `reader`, after the headers were walked
    cdef public HeaderWalk walk
    cdef public Window time_entries


cdef class QuickSegment:
    """A segment, for reads of one record. Thread-safe: each takes the files once.

    A subclass defines `end_offset`; `_access`, for open_reader; `_open(files)`, which returns the files as of now;
    `_walk_on(files)`, which returns `walked_reader`; `_seek_slowly`.
    """
    cdef public GrowingEnd published
    cdef public QuickFiles _files
    cdef public bint _recently_used
    cdef public int64_t base_offset

    def get(self, int64_t offset):
        """Return the data record with this offset; None if there is none, or damage comes before it."""
        return self.find(offset)

    def seek(self, int64_t target, int64_t start_offset):
        """Like find_timestamp for 0 <= target: (timestamp, offset, leader epoch or -1); offset -1 if there is none."""
        cdef QuickFiles files = self.at_hand()
        cdef PointReader reader = files.walked_reader
        cdef tuple found
        if reader is None:
            reader = self._walk_on(files)
        found = reader.find_time(target, start_offset, files.walk, files.time_entries)
        if found[1] >= NONE_IS_AS_LATE:
            return found
        return self._seek_slowly(target, start_offset, found[1], files)

    cdef Record find(self, int64_t offset):
        cdef QuickFiles files = self.at_hand()
        cdef PointReader reader = files.reader
        if reader is None:
            reader = files.open_reader(self._access, self.end_offset)
        return reader.find(offset)

    cdef QuickFiles at_hand(self):
        cdef QuickFiles files = self._files
        # The end that it has given to `files` is the present one as long as it is the same tuple.
        if files is None or (self.published is not None and files.end is not self.published._at):
            return self._open(files)
        self._recently_used = True
        return files


cdef class ShownSegments:
    """What readers of a log see: `extent`, which is replaced as a whole, and None once the log is closed."""
    cdef object _extent
    # Of the extent. The lists may grow later: its own are the segments before `stop`.
    cdef list cells
    cdef list bases
    cdef Py_ssize_t stop
    cdef int64_t start

    @property
    def extent(self):
        return self._extent

    @extent.setter
    def extent(self, extent):
        if extent is None:
            self.cells = self.bases = None
            self.stop = 0
        else:
            segments = extent.segments
            self.cells, self.bases, self.stop = segments.cells, segments.bases, segments.stop
            self.start = extent.log_start_offset
        self._extent = extent

    def record(self, offset, /):
        """Return the data record with this offset; None if there is none, or the slow path is needed."""
        cdef QuickSegment segment
        cdef int64_t wanted
        cdef Py_ssize_t low = 0, high = self.stop, middle
        cdef int overflow = 0
        if high == 0 or not PyLong_CheckExact(offset):
            return None
        wanted = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if overflow or wanted < self.start:
            return None
        while low < high:
            middle = (low + high) >> 1
            if PyLong_AsLongLong(self.bases[middle]) <= wanted:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        segment = <QuickSegment?>self.cells[low - 1]
        return segment.find(wanted)

    def seek(self, int64_t timestamp, /):
        """Do `QuickSegment.seek` in the only segment, from the log start offset on; None if there are several, or
        none."""
        cdef QuickSegment segment
        if self.stop != 1:
            return None
        segment = <QuickSegment?>self.cells[0]
        return segment.seek(timestamp, self.start)
