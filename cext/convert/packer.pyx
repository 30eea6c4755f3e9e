"""The frame of a conversion: takes batches of a table, gives converted ones, most of the time without the GIL.

batch_packer.pyx and message_packer.pyx define the result for each batch. This file has the Python interface, the output
buffers, and the errors about batches that cannot be converted.
"""
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_FromObject
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from seglog.errors import InvalidArgumentError, RecordTooLargeError

from .batch_header cimport BatchHeader
from .batch_source cimport Source
from .one_at_a_time cimport begin_alone, end_alone
from .output cimport SPARE_BYTES, Output, OutputChunk, ensure_room, next_chunk, trim_output
from .batch_payload cimport open_records, raise_batch
from .segment_scan cimport BatchTable
from .status cimport BAD_SIZE, NO_MEMORY, OK
from .window cimport Window, check_whole


cdef class Packer:
    """Takes batches of a BatchTable, gives batches of format `magic`. One thread at a time.

    Each direction is a subclass: BatchPacker up to v2, MessagePacker down to v0 and v1.
    """

    def __cinit__(self, *_args, **_options):
        if type(self) is Packer:
            raise TypeError("a Packer is a BatchPacker or a MessagePacker")
        self.chunk = OutputChunk()

    def add(self, BatchTable table not None, Py_ssize_t start, Py_ssize_t stop):
        """Convert the batches [start, stop) of a table; `take` returns the result.

        Raises CorruptRecordError (position, offset) for a damaged batch, UnsupportedCompressionTypeError for a codec
        that the format does not have, and what `decompress` raises: all batches before that one are then converted, and
        nothing of that one. RecordTooLargeError: a batch would exceed 2 GiB. If `compress` raises, half a batch may
        have been written; the packer then refuses to continue.
        """
        cdef Py_ssize_t i = start
        cdef int status = OK
        if start < 0 or stop > table.n or start > stop:
            raise InvalidArgumentError(f"batches [{start}, {stop}) of a table of {table.n}")
        self.enter()
        try:
            while i < stop:
                with nogil:
                    status = self.add_plain(table, &i, stop)
                if status == OK:
                    break
                if status != NEEDS_GIL:
                    self.raise_status_of(status, table, &table.rows[i])
                self.add_with_codec(table, &table.rows[i])
                i += 1
            if table.window.torn[0]:
                self.is_broken = True
                check_whole(table.window)
        finally:
            self.leave()

    def finish(self):
        """End the open batch, if any. `take` then returns the last bytes."""
        self.enter()
        try:
            self.close()
        finally:
            self.leave()

    @property
    def ready_bytes(self):
        """How many bytes `take` would return. Call `take` before they exceed the memory you can spare."""
        return self.closed_end()

    @property
    def held_bytes(self):
        """The memory that it keeps for what comes next, besides the bytes that `take` has returned."""
        cdef int64_t spare = 0 if self.spare is None or self.spare.exports else self.spare.out.capacity
        return self.chunk.out.capacity + spare + self.inner_capacity()

    def take(self):
        """The batches finished since the last call, one after another, as a read-only memoryview.

        The view stays valid as long as you keep it. Release it before the next call: the packer then reuses its memory,
        which saves most of the cost of writing.
        """
        cdef OutputChunk full = self.chunk
        self.enter()
        try:
            self.settle()
            self.chunk = next_chunk(full, self.spare, self.closed_end())
            self.leave_chunk()
            self.spare = full if full.out.capacity <= SPARE_BYTES else None
            if self.spare is None:
                trim_output(&full.out)      # it may have held a batch before its compression
            return PyMemoryView_FromObject(full)
        finally:
            self.leave()

    # --- of each direction -------------------------------------------------------------------

    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil:
        i[0] = last
        return OK

    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1:
        return 0

    cdef int close(self) except -1:
        return 0

    cdef int64_t closed_end(self) noexcept nogil:
        return self.chunk.out.size

    cdef int64_t inner_capacity(self) noexcept nogil:
        return 0

    cdef void settle(self) noexcept nogil:
        pass

    cdef void leave_chunk(self) noexcept nogil:
        pass

    # --- of both -----------------------------------------------------------------------------

    cdef int copy(self, const uint8_t* raw, int64_t size) noexcept nogil:
        """Copy a batch unchanged, including its CRC."""
        cdef Output* out = &self.chunk.out
        if ensure_room(out, size) != OK:
            return NO_MEMORY
        memcpy(out.first + out.size, raw, size)
        out.size += size
        return OK

    cdef Window open_source(self, BatchTable table, const BatchHeader* row, Source* source):
        """Decompress the records of a batch. `source` borrows from the returned window."""
        cdef Window opened
        source.row = row
        source.raw = table.window.base + row.position
        opened = open_records(
            table.window, row, table.decompress if self.decompress is None else self.decompress, &source.records
        )
        source.readable_end = opened.base + opened.size
        return opened

    cdef Window compressed(self, int codec, const uint8_t* first, int64_t size, int64_t base_offset):
        """Compress these bytes, for the batch at `base_offset`."""
        if self.compress is None:
            raise InvalidArgumentError(
                f"codec {codec} and no compressor was given",
                offset=base_offset,
                hint=f"{type(self).__name__}(compress=...)",
            )
        cdef Window packed
        data = PyMemoryView_FromMemory(<char*>first, size, PyBUF_READ)
        try:
            packed = Window(self.compress(codec, data))
        finally:
            data.release()      # fails if the compressor keeps it: its memory is reused
        return packed

    cdef int enter(self) except -1:
        begin_alone(&self.use, self)
        if self.is_broken:
            end_alone(&self.use)
            raise InvalidArgumentError(
                f"an earlier error while compressing or reading left this {type(self).__name__} with half a batch"
            )
        return 0

    cdef void leave(self) noexcept:
        end_alone(&self.use)

    cdef int raise_status_of(self, int status, BatchTable table, const BatchHeader* row) except -1:
        if status == OK:
            return 0
        if status == BAD_SIZE and row.size_bytes >= INT32_MAX // 2:
            raise RecordTooLargeError(
                f"a record or batch is larger than the 32-bit sizes of v{self.magic} can say",
                file=table.window.name, position=row.position, offset=row.base_offset,
            )
        return raise_batch(status, table.window, row)
