"""See plain_bitmap.pxd."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset

from .status cimport BAD_COUNT, BAD_MAGIC, NO_MEMORY, OFFSET_BACK, OFFSET_RANGE, OK, SHORT

cdef extern from *:
    int count_bits "__builtin_popcountll"(unsigned long long) noexcept nogil


cdef inline uint32_t load_le16(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | (<uint32_t>p[1] << 8)


cdef inline uint32_t load_le32(const uint8_t* p) noexcept nogil:
    return load_le16(p) | (load_le16(p + 2) << 16)


# --- containers --------------------------------------------------------------------------

cdef Container* container_of(Numbers* numbers, uint32_t key) noexcept nogil:
    """The container of a key, created if missing. NULL: no memory."""
    cdef Container* grown
    cdef int32_t low = 0
    cdef int32_t high = numbers.n
    cdef int32_t half
    if numbers.last < numbers.n and numbers.containers[numbers.last].key == key:
        return &numbers.containers[numbers.last]
    while low < high:
        half = (low + high) >> 1
        if numbers.containers[half].key < key:
            low = half + 1
        else:
            high = half
    numbers.last = low
    if low < numbers.n and numbers.containers[low].key == key:
        return &numbers.containers[low]
    if numbers.n == numbers.room:
        grown = <Container*>realloc(numbers.containers, (2 * numbers.room + 1) * sizeof(Container))
        if grown == NULL:
            return NULL
        numbers.containers = grown
        numbers.room = 2 * numbers.room + 1
    memmove(numbers.containers + low + 1, numbers.containers + low, (numbers.n - low) * sizeof(Container))
    memset(numbers.containers + low, 0, sizeof(Container))
    numbers.containers[low].key = key
    numbers.n += 1
    return &numbers.containers[low]


cdef int into_bits(Container* container) noexcept nogil:
    cdef int32_t i
    if container.bits != NULL:
        return OK
    container.bits = <uint8_t*>calloc(BITSET_BYTES, 1)
    if container.bits == NULL:
        return NO_MEMORY
    for i in range(container.n):
        set_bit(container.bits, container.values[i])
    free(container.values)
    container.values = NULL
    container.n = container.room = 0
    return OK


cdef int make_room(Container* container, int32_t more) noexcept nogil:
    """Make room for this many more values; or become bits, which have room for any number."""
    cdef uint16_t* grown
    cdef int32_t room
    if container.bits != NULL or container.room - container.n >= more:
        return OK
    if container.n + more > MOST_IN_ARRAY:
        return into_bits(container)
    room = container.n + more
    if container.n:
        room = min(2 * room, <int32_t>MOST_IN_ARRAY)
    grown = <uint16_t*>realloc(container.values, room * sizeof(uint16_t))
    if grown == NULL:
        return NO_MEMORY
    container.values = grown
    container.room = room
    return OK


cdef inline void put_value(Container* container, uint32_t value) noexcept nogil:
    if container.bits != NULL:
        set_bit(container.bits, value)
    else:
        container.values[container.n] = <uint16_t>value
        container.n += 1


cdef int add_number(Numbers* numbers, uint32_t number) noexcept nogil:
    cdef Container* container = container_of(numbers, number >> 16)
    if container == NULL or make_room(container, 1) != OK:
        return NO_MEMORY
    put_value(container, number & 0xFFFF)
    return OK


cdef void forget_numbers(Numbers* numbers) noexcept nogil:
    cdef int32_t i
    for i in range(numbers.n):
        free(numbers.containers[i].values)
        free(numbers.containers[i].bits)
    free(numbers.containers)
    memset(numbers, 0, sizeof(Numbers))


# --- in ----------------------------------------------------------------------------------

cdef int add_array(Container* container, const uint8_t* p, int32_t n) noexcept nogil:
    cdef uint8_t* bits
    cdef int32_t i
    if make_room(container, n) != OK:
        return NO_MEMORY
    bits = container.bits
    if bits != NULL:
        for i in range(n):
            set_bit(bits, load_le16(p + 2 * i))
    else:
        for i in range(n):
            container.values[container.n + i] = <uint16_t>load_le16(p + 2 * i)
        container.n += n
    return OK


cdef int add_bitset(Container* container, const uint8_t* p) noexcept nogil:
    cdef int32_t i
    if into_bits(container) != OK:
        return NO_MEMORY
    for i in range(BITSET_BYTES):
        container.bits[i] |= p[i]
    return OK


cdef int add_runs(Container* container, const uint8_t* p, int32_t n) noexcept nogil:
    cdef uint32_t first, last, value
    cdef int32_t i
    for i in range(n):
        first = load_le16(p + 4 * i)
        last = first + load_le16(p + 4 * i + 2)
        if last > 0xFFFF:
            return OFFSET_RANGE
        if make_room(container, last - first + 1) != OK:
            return NO_MEMORY
        for value in range(first, last + 1):
            put_value(container, value)
    return OK


cdef int add_bitmap(Numbers* numbers, const uint8_t* bytes, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t* p = bytes
    cdef const uint8_t* end = bytes + size
    cdef const uint8_t* runs = NULL         # one bit per container: whether it consists of runs
    cdef const uint8_t* descriptor
    cdef Container* container
    cdef uint32_t cookie, key
    cdef int64_t n, i, count, last_key = -1
    cdef int rc
    if size < 4:
        return SHORT
    cookie = load_le32(p)
    p += 4
    if cookie & 0xFFFF == COOKIE_WITH_RUNS:
        n = (cookie >> 16) + 1
        if (n + 7) // 8 > end - p:
            return SHORT
        runs = p
        p += (n + 7) // 8
    elif cookie == COOKIE_WITHOUT_RUNS:
        if end - p < 4:
            return SHORT
        n = load_le32(p)
        p += 4
        if n > 0x10000:
            return BAD_COUNT
    else:
        return BAD_MAGIC
    descriptor = p
    # Keys and counts, then each container's offset, which is not needed, because containers are contiguous.
    count = (8 if runs == NULL or n >= NO_OFFSETS_BELOW else 4) * n
    if count > end - p:
        return SHORT
    p += count
    for i in range(n):
        key = load_le16(descriptor + 4 * i)
        count = load_le16(descriptor + 4 * i + 2) + 1
        if <int64_t>key <= last_key:
            return OFFSET_BACK
        last_key = key
        container = container_of(numbers, key)
        if container == NULL:
            return NO_MEMORY
        if runs != NULL and runs[i >> 3] >> (i & 7) & 1:
            if end - p < 2:
                return SHORT
            count = load_le16(p)
            p += 2
            if 4 * count > end - p:
                return SHORT
            rc = add_runs(container, p, <int32_t>count)
            p += 4 * count
        elif count <= MOST_IN_ARRAY:
            if 2 * count > end - p:
                return SHORT
            rc = add_array(container, p, <int32_t>count)
            p += 2 * count
        else:
            if BITSET_BYTES > end - p:
                return SHORT
            rc = add_bitset(container, p)
            p += BITSET_BYTES
        if rc != OK:
            return rc
    return OK


# --- out ---------------------------------------------------------------------------------

cdef int settle(Container* container) noexcept nogil:
    """Sort the values and remove duplicates, or turn many values into bits. `n` is then their number."""
    cdef uint64_t word
    cdef uint8_t bits[BITSET_BYTES]
    cdef uint8_t* counted = container.bits
    cdef uint32_t value
    cdef int32_t i, n = 0
    if container.bits == NULL:
        for i in range(1, container.n):
            if container.values[i] <= container.values[i - 1]:
                break
        else:
            return OK
        memset(bits, 0, BITSET_BYTES)
        for i in range(container.n):
            set_bit(bits, container.values[i])
        counted = bits
    for i in range(0, BITSET_BYTES, 8):
        memcpy(&word, counted + i, 8)
        n += count_bits(word)
    if n > MOST_IN_ARRAY:
        container.n = n         # bits; they had more values than fit the array
        return OK
    if container.bits != NULL:
        container.values = <uint16_t*>realloc(container.values, max(n, 1) * sizeof(uint16_t))
        if container.values == NULL:
            return NO_MEMORY
        container.room = n
    container.n = 0
    for i in range(0, BITSET_BYTES, 8):
        memcpy(&word, counted + i, 8)
        if word == 0:
            continue            # nearly all of them: value by value, a ledger of a few messages took 90 us
        for value in range(8 * i, 8 * i + 64):
            if counted[value >> 3] >> (value & 7) & 1:
                container.values[container.n] = <uint16_t>value
                container.n += 1
    free(container.bits)
    container.bits = NULL
    return OK


cdef bytes plain_bitmap(Numbers* numbers):
    cdef Container* container
    cdef bytes serialised
    cdef uint8_t* out
    cdef uint8_t* descriptor
    cdef uint8_t* offset
    cdef uint8_t* body
    cdef Py_ssize_t size = 8
    cdef int32_t i, j, n = 0
    cdef int rc = OK
    with nogil:
        for i in range(numbers.n):
            rc = settle(&numbers.containers[i])
            if rc != OK:
                break
            container = &numbers.containers[i]
            if container.n:
                n += 1
                size += 8 + (BITSET_BYTES if container.bits != NULL else 2 * container.n)
    if rc != OK:
        raise MemoryError
    serialised = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(serialised)
    store_le32(out, COOKIE_WITHOUT_RUNS)
    store_le32(out + 4, <uint32_t>n)
    descriptor = out + 8
    offset = descriptor + 4 * n
    body = offset + 4 * n
    for i in range(numbers.n):
        container = &numbers.containers[i]
        if container.n == 0:
            continue
        store_le16(descriptor, container.key)
        store_le16(descriptor + 2, <uint32_t>(container.n - 1))
        store_le32(offset, <uint32_t>(body - out))
        descriptor += 4
        offset += 4
        if container.bits != NULL:
            memcpy(body, container.bits, BITSET_BYTES)
            body += BITSET_BYTES
        else:
            for j in range(container.n):
                store_le16(body + 2 * j, container.values[j])
            body += 2 * container.n
    return serialised
