"""The records of one opened batch, and the batches made of them for other logs: one without offset gaps, or one for
each partition that its keys belong to. batch_mover.pyx cannot do this, because it reads only headers.

    a piece of         keeps                                            gets
    a v2 batch         codec, producer and epoch, transaction bit,      contiguous offsets, the records' own base and
                       timestamp type, delete horizon, headers          largest timestamp, a sequence (below)
    a wrapper          version, codec, timestamp type                   the same, except the sequence
    a tagged set       codec, all tags of its messages, its own except  contiguous offsets
                       those that describe its contents

A piece with all records of a batch keeps the sequence of the batch's last record, from which its producer continues. A
piece with some of them has no sequence, and keeps the producer only in a transaction, so that the marker applies to it.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from seglog.errors import InvalidArgumentError

from .append_result cimport check_room
from .batch_builder cimport (
    append_bytes, append_inner_messages, append_record, append_wrapper, begin_batch, end_batch, store_batch_crcs,
)
from .batch_header cimport (
    CODEC_NONE, CONTROL_BIT, DELETE_HORIZON_BIT, TAGGED_MAGIC, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, V2_HEADER_SIZE,
    BatchHeader, codec_of,
)
from .batch_payload cimport open_records, raise_batch
from .batch_source cimport Source, check_last, count_records, next_in_order
from .one_at_a_time cimport Use, begin_alone, end_alone
from .output cimport Output
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .status cimport OK, TRAILING_BYTES
from .tagged_set cimport append_set, copy_messages
from .window cimport Window, check_whole

cdef enum:
    PARTITIONS_MAX = 1 << 20
    V2_ATTRIBUTES = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT


# --- the partition of a key ---------------------------------------------------------------------

cdef uint32_t murmur2(const uint8_t* p, int64_t size) noexcept nogil:
    """Kafka's Utils.murmur2. It reads little-endian words on every machine."""
    cdef uint32_t h = <uint32_t>0x9747b28c ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= <uint32_t>0x5bd1e995
        k = (k ^ k >> 24) * <uint32_t>0x5bd1e995
        h = h * <uint32_t>0x5bd1e995 ^ k
        p += 4
        size -= 4
    if size:
        if size == 3:
            h ^= <uint32_t>p[2] << 16
        if size >= 2:
            h ^= <uint32_t>p[1] << 8
        h = (h ^ p[0]) * <uint32_t>0x5bd1e995
    h = (h ^ h >> 13) * <uint32_t>0x5bd1e995
    return h ^ h >> 15


cdef inline int32_t partition_of(const uint8_t* key, int64_t size, int32_t partitions) noexcept nogil:
    return <int32_t>((murmur2(key, size) & 0x7fffffff) % <uint32_t>partitions)


def partition_for_key(const uint8_t[::1] key not None, Py_ssize_t partitions):
    """The partition to which Kafka's producers send a record with this key (BuiltInPartitioner.partitionForKey)."""
    check_partitions(partitions)
    return partition_of(&key[0] if key.shape[0] else NULL, key.shape[0], <int32_t>partitions)


cdef int check_partitions(Py_ssize_t partitions) except -1:
    if not 0 < partitions <= PARTITIONS_MAX:
        raise InvalidArgumentError(f"{partitions} partitions; expected 1 to {PARTITIONS_MAX}")
    return 0


# --- the records ----------------------------------------------------------------------------------

@cython.final
cdef class BatchPieces:
    """BatchPieces(table, slot, *, decompress=None): all records of a batch, checked.

    count           the number of records
    first_offset    of the first record; the batch's first offset if it has no records
    last_offset     of the last record; -1 if there is none
    is_dense        the records fill the offsets from the batch's first to its last: it can be moved through its header.
                    (A wrapper does not store its first offset, so its first record's counts.)
    has_keys        at least one record has a key

    Raises CorruptRecordError, and what `decompress`, or the table's if that is None, raises.
    """
    cdef Window window              # keeps the batch's own bytes alive
    cdef Window opened              # keeps alive what the views borrow
    cdef BatchHeader row
    cdef RecordView* records        # owned
    cdef RecordView* chosen         # owned: the records of a piece
    cdef int32_t* targets           # owned: the target of each record
    cdef const uint8_t* readable_end
    cdef int32_t target_count
    cdef Use use
    cdef readonly int64_t count
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly bint is_dense
    cdef readonly bint has_keys

    def __cinit__(self, BatchTable table not None, Py_ssize_t slot, *, decompress=None):
        cdef Source source
        cdef int status
        if not 0 <= slot < table.n:
            raise InvalidArgumentError(f"batch {slot} of a table of {table.n}")
        self.row = table.rows[slot]
        self.window = table.window
        source.row = &self.row
        source.raw = table.window.base + self.row.position
        self.opened = open_records(
            table.window, &self.row, table.decompress if decompress is None else decompress, &source.records)
        self.readable_end = source.readable_end = self.opened.base + self.opened.size
        status = count_records(&source)
        if status == OK:
            self.count = source.left
            self.records = <RecordView*>malloc(max(self.count, 1) * sizeof(RecordView))
            self.chosen = <RecordView*>malloc(max(self.count, 1) * sizeof(RecordView))
            self.targets = <int32_t*>malloc(max(self.count, 1) * sizeof(int32_t))
            if self.records == NULL or self.chosen == NULL or self.targets == NULL:
                raise MemoryError
            with nogil:
                status = self.parse(&source)
        if status != OK:
            raise_batch(status, table.window, &self.row)
        check_whole(table.window)

    def __dealloc__(self):
        free(self.records)
        free(self.chosen)
        free(self.targets)

    cdef int parse(self, Source* source) noexcept nogil:
        cdef int64_t last = -1
        cdef int64_t i
        cdef int status
        for i in range(self.count):
            status = next_in_order(source, i, last, &self.records[i])
            if status != OK:
                return status
            last = self.records[i].offset
            self.targets[i] = 0
            self.has_keys |= self.records[i].key_size >= 0
        if source.records.p != source.records.end:
            return TRAILING_BYTES
        self.target_count = 1
        self.first_offset = self.records[0].offset if self.count else self.row.base_offset
        self.is_dense = self.count > 0 and last - self.first_offset == self.count - 1
        self.last_offset = last
        if self.row.magic == 2:
            self.is_dense &= self.first_offset == self.row.base_offset and last == self.row.last_offset
            return OK
        if self.row.magic == TAGGED_MAGIC:      # it may cover offsets after its last message
            self.is_dense &= self.first_offset == self.row.base_offset and last >= self.row.last_offset
        return check_last(&self.row, last)

    def route(self, Py_ssize_t targets, Py_ssize_t keyless):
        """Choose one of `targets` targets for each record: by its key, as Kafka's producers do; without key `keyless`.

        Returns how many records each target gets.
        """
        cdef int64_t i
        begin_alone(&self.use, self)
        try:
            check_partitions(targets)
            if not 0 <= keyless < targets:
                raise InvalidArgumentError(f"target {keyless} of {targets}")
            counts = [0] * targets
            self.target_count = <int32_t>targets
            for i in range(self.count):
                self.targets[i] = (
                    <int32_t>keyless if self.records[i].key_size < 0
                    else partition_of(self.records[i].key, self.records[i].key_size, self.target_count)
                )
                counts[self.targets[i]] += 1
            return counts
        finally:
            end_alone(&self.use)

    def piece(
        self, Py_ssize_t target, int64_t base_offset, compress, *, int32_t leader_epoch=-1, log_append_time=None
    ):
        """The records of one target as a batch of the same format and codec, at the offsets from `base_offset` on.

        compress: Callable[[codec, bytes], bytes-like]. log_append_time: ms; replaces the timestamp, as in batch_mover.
        Raises InvalidArgumentError if the target has no records, RecordTooLargeError, and what `compress` raises.
        """
        begin_alone(&self.use, self)
        try:
            return self.made_piece(target, base_offset, compress, leader_epoch, log_append_time)
        finally:
            end_alone(&self.use)

    cdef bytes made_piece(
        self, Py_ssize_t target, int64_t base_offset, compress, int32_t leader_epoch, log_append_time
    ):
        cdef int64_t count = self.choose(target)
        cdef Output out
        cdef Output inner
        if self.row.magic < 2 and codec_of(&self.row) == CODEC_NONE:
            raise InvalidArgumentError("a bare message is moved by its header", position=self.row.position)
        check_room(base_offset, count)
        memset(&out, 0, sizeof(Output))
        memset(&inner, 0, sizeof(Output))
        try:
            if self.row.magic == 2:
                self.write_batch(&out, count, base_offset, compress, leader_epoch, log_append_time)
            elif self.row.magic == TAGGED_MAGIC:
                self.write_set(&out, &inner, count, base_offset, compress)
            else:
                self.write_wrapper(&out, &inner, count, base_offset, compress, log_append_time)
            check_whole(self.window)
            return PyBytes_FromStringAndSize(<const char*>out.first, out.size)
        finally:
            free(out.first)
            free(inner.first)

    cdef int64_t choose(self, Py_ssize_t target) except -1:
        cdef int64_t count = 0
        cdef int64_t i
        for i in range(self.count):
            if self.targets[i] == target:
                self.chosen[count] = self.records[i]
                count += 1
        if count == 0:
            raise InvalidArgumentError(f"no record goes to target {target} of {self.target_count}")
        return count

    cdef int write_batch(
        self, Output* out, int64_t count, int64_t base_offset, compress, int32_t leader_epoch, log_append_time
    ) except -1:
        cdef BatchHeader header = self.row
        cdef int64_t i
        cdef int status
        header.attributes = <int16_t>(self.row.attributes & V2_ATTRIBUTES)
        header.base_offset = base_offset
        header.leader_epoch = leader_epoch
        if header.attributes & DELETE_HORIZON_BIT == 0:
            header.base_timestamp = self.chosen[0].timestamp
        if log_append_time is not None:
            header.attributes = <int16_t>(header.attributes | TIMESTAMP_TYPE_BIT)
            header.max_timestamp = log_append_time
        elif header.attributes & TIMESTAMP_TYPE_BIT == 0:
            header.max_timestamp = -1       # append_record raises it
        if count < self.count:
            header.base_sequence = -1
            if header.attributes & TRANSACTIONAL_BIT == 0:
                header.producer_id = header.producer_epoch = -1
        elif header.base_sequence >= 0:
            header.base_sequence = <int32_t>(
                (<uint64_t>header.base_sequence + <uint64_t>(self.row.last_offset - self.row.base_offset + 1 - count))
                & 0x7fffffff)
        with nogil:
            status = begin_batch(out, &header)
            for i in range(count):
                if status != OK:
                    break
                self.chosen[i].offset = base_offset + i
                status = append_record(out, &header, &self.chosen[i], self.readable_end)
        self.raise_status_of(status)
        if codec_of(&self.row) != CODEC_NONE:
            compressed = compress(
                codec_of(&self.row),
                PyBytes_FromStringAndSize(<const char*>out.first + V2_HEADER_SIZE, out.size - V2_HEADER_SIZE))
            header.attributes = <int16_t>(header.attributes | codec_of(&self.row))
            out.size = V2_HEADER_SIZE
            append_bytes(out, compressed)
        self.raise_status_of(end_batch(out, &header))
        store_batch_crcs(out, 0, out.size)
        return 0

    cdef int write_wrapper(
        self, Output* out, Output* inner, int64_t count, int64_t base_offset, compress, log_append_time
    ) except -1:
        cdef int8_t magic = self.row.magic
        cdef uint8_t attributes = 0
        cdef int64_t max_timestamp = -1
        cdef int64_t i
        cdef int status
        cdef Window compressed
        if magic == 1:
            attributes = <uint8_t>(self.row.attributes & TIMESTAMP_TYPE_BIT)
            if log_append_time is not None:
                attributes = TIMESTAMP_TYPE_BIT
        with nogil:
            for i in range(count):
                self.chosen[i].offset = base_offset + i
            status = append_inner_messages(
                inner, magic, attributes, self.chosen, count, base_offset if magic == 1 else 0, self.readable_end,
                &max_timestamp)
        self.raise_status_of(status)
        if log_append_time is not None:
            max_timestamp = log_append_time
        elif attributes:
            max_timestamp = self.row.max_timestamp
        compressed = Window(
            compress(codec_of(&self.row), PyBytes_FromStringAndSize(<const char*>inner.first, inner.size)))
        self.raise_status_of(append_wrapper(
            out, magic, <uint8_t>(attributes | codec_of(&self.row)), base_offset + count - 1, max_timestamp,
            compressed.base, compressed.size))
        return 0

    cdef int write_set(self, Output* out, Output* inner, int64_t count, int64_t base_offset, compress) except -1:
        """Write tagged messages, each unchanged except for its offset."""
        cdef Output others
        cdef Window compressed
        cdef int64_t i
        cdef int status
        memset(&others, 0, sizeof(Output))
        with nogil:
            for i in range(count):
                self.chosen[i].offset = base_offset + i
            status = copy_messages(inner, self.chosen, count)
        self.raise_status_of(status)
        compressed = Window(
            compress(codec_of(&self.row), PyBytes_FromStringAndSize(<const char*>inner.first, inner.size)))
        with nogil:
            status = append_set(
                out, &self.row, self.window.base + self.row.position, self.chosen, count, base_offset + count - 1,
                compressed.base, compressed.size, &others)
        free(others.first)
        self.raise_status_of(status)
        return 0

    cdef int raise_status_of(self, int status) except -1:
        return 0 if status == OK else raise_batch(status, self.opened, &self.row)
