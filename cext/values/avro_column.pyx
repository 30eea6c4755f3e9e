"""Decodes a column of Avro values to the buffers of Arrow arrays, without the GIL.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding. Rows share one layout: a tree of nodes, one for each
Arrow array that the column consists of, in preorder (a list's items and a map's entries are nodes of their own; the
children of the entries are key and value). Each writer's schema has a program, whose instructions read what that schema
wrote and append to the nodes what the reader's schema makes of it (engine/seglog/frames/typed/avro_program.py makes
them). An instruction refers to instructions before it only, so a program ends; the last one reads a value.

A row whose bytes are not a value is taken out of all nodes again, and is null. Lengths and counts in the bytes reserve
nothing: memory follows the bytes that were read, and what the reader's schema adds by itself (nulls of a fixed,
defaults). That may be any number of times as much, so a column ends before a row when it has ROOM_BYTES, and a row that
takes more than ROW_BYTES is not decoded.

Fresh memory costs more than decoding into it: a column may be filled again once no view of it is left.
"""
cimport cython
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from .one_at_a_time cimport begin_alone, end_alone
from .output cimport Output, OutputChunk, ensure_room, grow_output, trim_output
from .span cimport load_u32
from .status cimport BAD_COUNT, BAD_SIZE, BAD_VARINT, LIMIT, NO_MEMORY, OK, SHORT, TRAILING_BYTES

cdef extern from "seg_rows.h" nogil:
    bint seg_is_utf8(const uint8_t* p, int64_t size)

cdef enum:
    MAX_DEPTH = 256
    FRAME_BYTES = 5
    NODE_KINDS = 6
    INSTRUCTIONS = 29

cpdef enum NodeKind:
    NULL_NODE = 0
    BOOL_NODE = 1
    FIXED_NODE = 2
    VAR_NODE = 3
    LIST_NODE = 4
    STRUCT_NODE = 5

# An instruction is its number, the node that it appends to (-1: none), and:
cpdef enum Instruction:
    FAIL = 0                    # reason                the two schemas do not fit here
    NOTHING = 1                 # -                     null, of no bytes
    BOOLEAN = 2
    INT = 3
    LONG = 4
    LONG_TO_FLOAT = 5           # also of an int
    LONG_TO_DOUBLE = 6
    FLOAT = 7
    FLOAT_TO_DOUBLE = 8
    DOUBLE = 9
    BYTES = 10
    STRING = 11
    FIXED = 12                  # size
    DECIMAL = 13                # size (-1: before the bytes), where 10 ** precision is in the constants, precision
    UUID = 14                   # -                     text
    ENUM = 15                   # n, n of the reader's numbers (-1: it has no such symbol)
    RECORD = 16                 # n, n instructions
    LIST = 17                   # instruction of an item
    MAP = 18                    # instruction of a value, one that passes by a value
    UNION = 19                  # n, n instructions
    MEMBER = 20                 # number of the member, its instruction
    DEFAULT = 21                # where its bytes are in the constants, their end, instruction
    SKIP_LONG = 22
    SKIP_BYTES = 23
    SKIP_FIXED = 24             # size
    SKIP_LIST = 25              # instruction of an item
    SKIP_MAP = 26               # instruction of a value
    SKIP_STRING = 27
    SKIP_ENUM = 28              # n

# Why a row is not decoded, beside the kernels' statuses.
cpdef enum Problem:
    NOT_IN_FRAME = -101         # it does not begin as Confluent's serializers have it
    NO_PROGRAM = -102           # its schema cannot be read
    MISMATCH = -103             # detail: the reason that the program gives
    BAD_INDEX = -104            # of a union or an enum; detail: the index
    NO_SYMBOL = -105            # the reader's enum has no such symbol; detail: the writer's number of it
    NOT_UTF8 = -106
    NOT_UUID = -107
    TOO_MANY_DIGITS = -108      # detail: how many a decimal may have
    NOT_BOOLEAN = -109
    NOT_INT = -110
    TOO_LARGE = -111            # the row takes more than ROW_BYTES; or an array 2 ** 31 items or bytes

cdef enum:
    ITEM = 1                    # next_item: there is one
    TWICE = -200                # a map has a key twice: read the row again, carefully
    FULL = -201                 # the row has no room beside those before it

cdef enum:
    # Of the memory of a column; outputs begin with NODE_BYTES a node.
    ROOM_BYTES = 64 << 20
    ROW_BYTES = 256 << 20       # or ROW_FACTOR times the bytes of the row, if those are more
    ROW_FACTOR = 16
    NODE_BYTES = 3 * 4096


# --- layouts and programs -----------------------------------------------------------------------------

@cython.final
cdef class AvroLayout:
    """`nodes`: (NodeKind, width, number of children) in preorder. Never changes."""

    def __cinit__(self, nodes):
        cdef list given = list(nodes)
        cdef int i
        if not given or len(given) > INT32_MAX // 2:
            raise ValueError("a layout needs nodes")
        self.size = <int>len(given)
        self.nodes = <Node*>calloc(self.size, sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        for i in range(self.size):
            self.nodes[i].first_child = self.nodes[i].next_sibling = -1
        if self.place(given) != self.size:
            raise ValueError("the nodes are not one tree")

    def __dealloc__(self):
        free(self.nodes)

    cdef int place(self, list given) except -2:
        """Link the nodes; return where the first tree ends, -1 if it does not."""
        cdef list open_nodes = []       # [node, children left, last child]
        cdef int i = 0
        cdef Node* node
        while i < self.size:
            kind, width, children = given[i]
            node = &self.nodes[i]
            node.kind, node.width = kind, width
            if not (0 <= node.kind < NODE_KINDS and node.width >= 0):
                raise ValueError(f"no such node: {given[i]!r}")
            if children < 0 or (children != 0 if node.kind < LIST_NODE else node.kind == LIST_NODE and children != 1):
                raise ValueError(f"a node of this kind has not {children} children")
            if open_nodes:
                above = open_nodes[len(open_nodes) - 1]
                above[1] -= 1
                if above[2] < 0:
                    self.nodes[above[0]].first_child = i
                else:
                    self.nodes[above[2]].next_sibling = i
                above[2] = i
            if children:
                open_nodes.append([i, children, -1])
            while open_nodes and open_nodes[len(open_nodes) - 1][1] == 0:
                open_nodes.pop()
            i += 1
            if not open_nodes:
                break
        return i if not open_nodes else -1

    cdef int children_of(self, int node) noexcept:
        cdef int child = self.nodes[node].first_child
        cdef int count = 0
        while child >= 0:
            count += 1
            child = self.nodes[child].next_sibling
        return count


cdef bint takes(const Node* node, int64_t instruction) noexcept:
    """Whether the instruction may append to a node of this kind."""
    if instruction == INT or instruction == LONG_TO_FLOAT or instruction == FLOAT or instruction == ENUM:
        return node.kind == FIXED_NODE and node.width == 4
    if (instruction == LONG or instruction == LONG_TO_DOUBLE or instruction == FLOAT_TO_DOUBLE
            or instruction == DOUBLE):
        return node.kind == FIXED_NODE and node.width == 8
    if instruction == BOOLEAN:
        return node.kind == BOOL_NODE
    if instruction == BYTES or instruction == STRING:
        return node.kind == VAR_NODE
    if instruction == FIXED:
        return node.kind == FIXED_NODE
    if instruction == DECIMAL:
        return node.kind == FIXED_NODE and (node.width == 16 or node.width == 32)
    if instruction == UUID:
        return node.kind == FIXED_NODE and node.width == 16
    if instruction == RECORD or instruction == MEMBER:
        return node.kind == STRUCT_NODE
    if instruction == LIST or instruction == MAP:
        return node.kind == LIST_NODE
    return True


# How many operands each instruction has; -1: the first one says how many follow.
cdef int[INSTRUCTIONS] OPERANDS
OPERANDS[:] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, -1, -1, 1, 2, -1, 2, 3, 0, 0, 1, 1, 1, 0, 1]


@cython.final
cdef class AvroProgram:
    """Reads what a writer's schema wrote into the nodes of a layout. Never changes. Raises ValueError if it is none."""

    def __cinit__(self, AvroLayout layout not None, code, bytes constants not None):
        cdef list given = list(code)
        cdef int64_t i
        self.layout, self.constants, self.root = layout, constants, -1
        self.code_size = len(given)
        self.code = <int64_t*>malloc(8 * self.code_size + 8)
        if self.code == NULL:
            raise MemoryError
        for i in range(self.code_size):
            self.code[i] = given[i]
        self.check()

    def __dealloc__(self):
        free(self.code)

    cdef int check(self) except -1:
        """Check each instruction, so that no program leads outside of the nodes, the constants and itself."""
        cdef int64_t at = 0
        cdef int64_t instruction, node_at, operands, first, i
        cdef const int64_t* o
        cdef dict depths = {}
        while at < self.code_size:
            if self.code_size - at < 2:
                raise ValueError("the program ends inside an instruction")
            instruction, node_at, o = self.code[at], self.code[at + 1], &self.code[at + 2]
            if not (0 <= instruction < INSTRUCTIONS and -1 <= node_at < self.layout.size):
                raise ValueError(f"no such instruction: {instruction} of node {node_at}")
            operands, first = OPERANDS[instruction], 0
            if operands == -1 and self.code_size - at > 2 and o[0] >= 0:
                operands, first = min(o[0], self.code_size) + 1, 1
            if not 0 <= operands <= self.code_size - at - 2:
                raise ValueError("the program ends inside an instruction")
            needs_node = BOOLEAN <= instruction <= MAP and instruction != RECORD or instruction == MEMBER
            if node_at < 0 and needs_node:
                raise ValueError("an instruction without its node")
            if node_at >= 0 and not takes(&self.layout.nodes[node_at], instruction):
                raise ValueError(f"instruction {instruction} does not fit its node")
            depth = 0
            if instruction == FIXED and o[0] != self.layout.nodes[node_at].width:
                raise ValueError("a fixed of another size than its node's")
            if instruction == SKIP_FIXED and o[0] < 0:
                raise ValueError("an instruction that goes back")
            if (instruction == SKIP_FIXED or instruction == DECIMAL) and not -1 <= o[0] <= INT32_MAX:
                raise ValueError("no such size")
            if instruction == DECIMAL and not 0 <= o[1] <= len(self.constants) - self.layout.nodes[node_at].width:
                raise ValueError("a limit outside of the constants")
            if instruction == DEFAULT and not 0 <= o[0] <= o[1] <= len(self.constants):
                raise ValueError("a default outside of the constants")
            if instruction == MEMBER and not 0 <= o[0] < self.layout.children_of(node_at):
                raise ValueError("no such member")
            if instruction == MAP and (
                    self.layout.nodes[node_at + 1].kind != STRUCT_NODE or self.layout.children_of(node_at + 1) != 2
                    or self.layout.nodes[node_at + 2].kind != VAR_NODE):
                raise ValueError("a map whose entries are not keys and values")
            for i in range(first, operands):
                refers = (instruction in (RECORD, LIST, MAP, UNION, SKIP_LIST, SKIP_MAP)
                          or instruction == MEMBER and i == 1 or instruction == DEFAULT and i == 2)
                if refers:
                    if o[i] not in depths:
                        raise ValueError("an instruction refers to none before it")
                    depth = max(depth, 1 + depths[o[i]])
                if instruction == ENUM and not -1 <= o[i] <= INT32_MAX:
                    raise ValueError("no such number of a symbol")
            if depth > MAX_DEPTH:
                raise ValueError("nested too deeply")
            depths[at] = depth
            self.root = at
            at += 2 + operands
        if self.root < 0:
            raise ValueError("an empty program")
        return 0


# --- nodes --------------------------------------------------------------------------------------------

cdef int grow(Room* room, Output* out, int64_t more) noexcept nogil:
    """Enlarge by at least `more` bytes, if the row may have them."""
    cdef int64_t before = out.capacity
    cdef int status
    if more > room.limit - room.bytes:
        return TOO_LARGE
    status = grow_output(out, more)
    room.bytes += out.capacity - before
    return status


cdef inline int reserve(Node* node, Output* out, int64_t more) noexcept nogil:
    return OK if more <= out.capacity - out.size else grow(node.room, out, more)


cdef int write_bit(Node* node, Output* out, int64_t at, bint bit) noexcept nogil:
    cdef int64_t size = (at >> 3) + 1
    cdef int status
    if size > out.capacity:
        status = grow(node.room, out, size - out.size)
        if status != OK:
            return status
    if size > out.size:
        out.first[size - 1] = 0
        out.size = size
    if bit:
        out.first[at >> 3] |= <uint8_t>(1 << (at & 7))
    else:
        out.first[at >> 3] &= <uint8_t>~(1 << (at & 7))
    return OK


cdef int begin_nulls(Node* node) noexcept nogil:
    """The first null: all before it are valid."""
    cdef int64_t size = (node.length >> 3) + 1
    cdef int status = reserve(node, node.validity, size - node.validity.size)
    if status != OK:
        return status
    memset(node.validity.first, 0xFF, size)
    node.validity.size = size
    node.has_nulls = True
    return OK


cdef inline int append_valid(Node* node) noexcept nogil:
    """Count a value that was written, or whose children were."""
    cdef int status
    if node.has_nulls:
        status = write_bit(node, node.validity, node.length, True)
        if status != OK:
            return status
    node.length += 1
    return OK


cdef inline int append_offset(Node* node, int64_t end) noexcept nogil:
    cdef int status = TOO_LARGE if end > INT32_MAX else reserve(node, node.offsets, 4)
    if status != OK:
        return status
    (<int32_t*>(node.offsets.first + node.offsets.size))[0] = <int32_t>end
    node.offsets.size += 4
    return OK


cdef inline int64_t last_offset(const Node* node) noexcept nogil:
    return (<int32_t*>node.offsets.first)[node.length]


cdef inline int append_fixed(Node* node, const void* value, int64_t width) noexcept nogil:
    cdef int status = reserve(node, node.data, width)
    if status != OK:
        return status
    if width > 0:               # else there may be no memory yet
        memcpy(node.data.first + node.data.size, value, width)
        node.data.size += width
    return append_valid(node)


cdef inline int append_bytes(Node* node, const uint8_t* p, int64_t size) noexcept nogil:
    cdef int status = reserve(node, node.data, size)
    if status != OK:
        return status
    status = append_offset(node, node.data.size + size)
    if status != OK:
        return status
    if size > 0:                # else there may be no memory yet
        memcpy(node.data.first + node.data.size, p, size)
        node.data.size += size
    return append_valid(node)


cdef int append_null(Node* nodes, int at) noexcept nogil:
    cdef Node* node = &nodes[at]
    cdef int status = OK
    cdef int child
    if node.kind == NULL_NODE:
        node.length += 1
        return OK
    if not node.has_nulls:
        status = begin_nulls(node)
    if status == OK:
        status = write_bit(node, node.validity, node.length, False)
    if status != OK:
        return status
    if node.kind == BOOL_NODE:
        status = write_bit(node, node.data, node.length, False)
    elif node.kind == FIXED_NODE:
        status = reserve(node, node.data, node.width)
        if status == OK and node.width > 0:
            memset(node.data.first + node.data.size, 0, node.width)
            node.data.size += node.width
    elif node.kind == STRUCT_NODE:
        child = node.first_child
        while child >= 0:
            status = append_null(nodes, child)
            if status != OK:
                return status
            child = nodes[child].next_sibling
    else:
        status = append_offset(node, last_offset(node))
    if status == OK:
        node.length += 1
    return status


cdef void truncate(Node* nodes, int at, int64_t length) noexcept nogil:
    """Take out what was appended behind the first `length` values, also if the last append ended early."""
    cdef Node* node = &nodes[at]
    cdef int child = node.first_child
    node.length = length
    if node.has_nulls:
        node.validity.size = min(node.validity.size, (length + 7) >> 3)
    if node.kind == BOOL_NODE:
        node.data.size = min(node.data.size, (length + 7) >> 3)
    elif node.kind == FIXED_NODE:
        node.data.size = length * node.width
    elif node.kind == VAR_NODE:
        node.offsets.size = 4 * (length + 1)
        node.data.size = last_offset(node)
    elif node.kind == LIST_NODE:
        node.offsets.size = 4 * (length + 1)
        truncate(nodes, child, last_offset(node))
    elif node.kind == STRUCT_NODE:
        while child >= 0:
            truncate(nodes, child, length)
            child = nodes[child].next_sibling


# --- bytes --------------------------------------------------------------------------------------------

cdef int read_long(Reader* r, int64_t* out) noexcept nogil:
    cdef const uint8_t* p = r.p
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p == r.end:
            return SHORT
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return BAD_VARINT
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    r.p = p
    return OK


cdef inline int read_size(Reader* r, int64_t* out) noexcept nogil:
    """The size of the bytes that follow it, all of which are there."""
    cdef int status = read_long(r, out)
    if status != OK:
        return status
    if out[0] < 0:
        return BAD_SIZE
    return OK if out[0] <= r.end - r.p else SHORT


cdef inline int read_index(Reader* r, int64_t count, int64_t* out) noexcept nogil:
    cdef int status = read_long(r, out)
    if status != OK:
        return status
    if 0 <= out[0] < count:
        return OK
    r.detail = out[0]
    return BAD_INDEX


cdef int read_block(Reader* r, int64_t* count) noexcept nogil:
    """How many items follow; 0 ends them. A block may have its size in bytes behind a negative count."""
    cdef int64_t ignored
    cdef int status = read_long(r, count)
    if status != OK or count[0] >= 0:
        return status
    if count[0] == INT64_MIN:
        return BAD_COUNT
    count[0] = -count[0]
    return read_long(r, &ignored)


cdef inline int next_item(Reader* r, int64_t* left) noexcept nogil:
    """ITEM if another item of a list or map follows; OK at its end. `left`: of the block; 0 before the first."""
    cdef int status
    if left[0] == 0:
        status = read_block(r, left)
        if status != OK or left[0] == 0:
            return status
    left[0] -= 1
    return ITEM


cdef int read_decimal(Reader* r, Node* node, int64_t size, const uint8_t* limit) noexcept nogil:
    """A big-endian number in two's complement, of any size, that is nearer to 0 than the limit."""
    cdef uint8_t number[32]
    cdef uint8_t magnitude[32]
    cdef int width = 16 if node.width == 16 else 32
    cdef int i
    cdef int carry = 1
    cdef const uint8_t* p
    cdef uint8_t sign
    cdef int status
    if size < 0:
        status = read_size(r, &size)
        if status != OK:
            return status
    elif size > r.end - r.p:
        return SHORT
    p = r.p
    r.p += size
    sign = 0xFF if size > 0 and p[0] & 0x80 else 0
    while size > width:
        if p[0] != sign:
            return TOO_MANY_DIGITS
        p += 1
        size -= 1
    for i in range(width):
        number[i] = p[size - 1 - i] if i < size else sign
    if (number[width - 1] & 0x80) != (sign & 0x80):
        return TOO_MANY_DIGITS
    for i in range(width):
        if sign:
            carry += <uint8_t>~number[i]
            magnitude[i] = <uint8_t>carry
            carry >>= 8
        else:
            magnitude[i] = number[i]
    i = width - 1
    while i >= 0 and magnitude[i] == limit[i]:
        i -= 1
    if i < 0 or magnitude[i] > limit[i]:
        return TOO_MANY_DIGITS
    return append_fixed(node, number, width)


cdef inline int hex_of(uint8_t letter) noexcept nogil:
    if c'0' <= letter <= c'9':
        return letter - c'0'
    letter |= 0x20
    return letter - c'a' + 10 if c'a' <= letter <= c'f' else -1


cdef int read_uuid(Reader* r, Node* node) noexcept nogil:
    """The text of a UUID: 32 hexadecimal digits, with hyphens anywhere, in braces, or behind urn:uuid:."""
    cdef uint8_t made[16]
    cdef int64_t size
    cdef int digits = 0
    cdef int digit
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status = read_size(r, &size)
    if status != OK:
        return status
    p, end = r.p, r.p + size
    r.p = end
    if end - p >= 4 and memcmp(p, <const char*>b"urn:", 4) == 0:
        p += 4
    if end - p >= 5 and memcmp(p, <const char*>b"uuid:", 5) == 0:
        p += 5
    while p < end and (p[0] == c'{' or p[0] == c'}'):
        p += 1
    while p < end and ((end - 1)[0] == c'{' or (end - 1)[0] == c'}'):
        end -= 1
    while p < end:
        if p[0] != c'-':
            digit = hex_of(p[0])
            if digit < 0 or digits == 32:
                return NOT_UUID
            if digits & 1:
                made[digits >> 1] |= <uint8_t>digit
            else:
                made[digits >> 1] = <uint8_t>(digit << 4)
            digits += 1
        p += 1
    if digits != 32:
        return NOT_UUID
    return append_fixed(node, made, 16)


# --- maps ---------------------------------------------------------------------------------------------

cdef int by_key(const void* a, const void* b) noexcept nogil:
    """In the order of the keys; equal ones in the order of the bytes."""
    cdef const Entry* x = <const Entry*>a
    cdef const Entry* y = <const Entry*>b
    cdef int order
    if x.key_size != y.key_size:
        return -1 if x.key_size < y.key_size else 1
    order = memcmp(x.key, y.key, x.key_size) if x.key_size > 0 else 0
    if order == 0:
        order = -1 if x.number < y.number else 1
    return order


cdef int by_number(const void* a, const void* b) noexcept nogil:
    cdef int64_t x = (<const Entry*>a).number
    cdef int64_t y = (<const Entry*>b).number
    return (x > y) - (x < y)        # (-1 stands several times)


cdef bint same_key(const Entry* x, const Entry* y) noexcept nogil:
    return x.key_size == y.key_size and (x.key_size == 0 or memcmp(x.key, y.key, x.key_size) == 0)


cdef int push_entry(Output* entries, const Entry* entry) noexcept nogil:
    if ensure_room(entries, sizeof(Entry)) != OK:
        return NO_MEMORY
    memcpy(entries.first + entries.size, entry, sizeof(Entry))
    entries.size += sizeof(Entry)
    return OK


cdef int has_key_twice(Reader* r, const Node* keys, int64_t first) noexcept nogil:
    """1 if one of the keys [first, length) is there twice, 0 if none; or NO_MEMORY."""
    cdef int64_t count = keys.length - first
    cdef int64_t base = r.entries.size
    cdef int64_t i
    cdef Entry entry
    cdef Entry* entries
    cdef const int32_t* offsets
    cdef bint found = False
    if count < 2:
        return 0
    offsets = <const int32_t*>keys.offsets.first + first
    for i in range(count):
        entry.key = keys.data.first + offsets[i]
        entry.key_size = offsets[i + 1] - offsets[i]
        entry.value = NULL
        entry.number = i
        if push_entry(r.entries, &entry) != OK:
            return NO_MEMORY
    entries = <Entry*>(r.entries.first + base)
    qsort(entries, count, sizeof(Entry), by_key)
    for i in range(1, count):
        if same_key(&entries[i - 1], &entries[i]):
            found = True
            break
    r.entries.size = base
    return found


cdef int append_map(Reader* r, int at, int64_t value, int64_t skip) noexcept nogil:
    cdef Node* node = &r.nodes[at]
    cdef Node* entries = &r.nodes[at + 1]
    cdef Node* keys = &r.nodes[at + 2]
    cdef int64_t first = entries.length
    cdef int64_t left = 0
    cdef int64_t size
    cdef int status
    if r.is_careful:
        return append_map_carefully(r, at, value, skip)
    while True:
        status = next_item(r, &left)
        if status != ITEM:
            break
        status = read_size(r, &size)
        if status != OK:
            return status
        status = append_entry(r, at, r.p, size, r.p + size, value)
        if status != OK:
            return status
    if status != OK:
        return status
    status = has_key_twice(r, keys, first)
    if status != 0:
        return TWICE if status == 1 else status
    status = append_offset(node, entries.length)
    return append_valid(node) if status == OK else status


cdef int append_entry(
    Reader* r, int at, const uint8_t* key, int64_t key_size, const uint8_t* value, int64_t instruction
) noexcept nogil:
    cdef int status
    if not seg_is_utf8(key, key_size):
        return NOT_UTF8
    status = append_bytes(&r.nodes[at + 2], key, key_size)
    if status != OK:
        return status
    r.p = value
    status = run(r, instruction)
    return append_valid(&r.nodes[at + 1]) if status == OK else status


cdef int append_map_carefully(Reader* r, int at, int64_t value, int64_t skip) noexcept nogil:
    """A key that is there twice has its first place and its last value, as in a Python dict."""
    cdef Node* node = &r.nodes[at]
    cdef int64_t base = r.entries.size
    cdef int64_t i, group, length
    cdef int64_t left = 0
    cdef int64_t n = 0
    cdef const uint8_t* value_at
    cdef int status
    cdef Entry entry
    cdef Entry* entries
    cdef const uint8_t* end
    while True:
        status = next_item(r, &left)
        if status != ITEM:
            break
        status = read_size(r, &entry.key_size)
        if status != OK:
            return status
        entry.key = r.p
        entry.value = r.p = r.p + entry.key_size
        entry.number = n
        if push_entry(r.entries, &entry) != OK:
            return NO_MEMORY
        n += 1
        status = run(r, skip)
        if status != OK:
            return status
    if status != OK:
        return status
    end = r.p
    entries = <Entry*>(r.entries.first + base)
    if n > 1:
        qsort(entries, n, sizeof(Entry), by_key)
        group = 0
        for i in range(1, n):
            if same_key(&entries[group], &entries[i]):
                value_at = entries[group].value
                entries[group].value = entries[i].value
                entries[i].value = value_at
                entries[i].number = -1
            else:
                group = i
        qsort(entries, n, sizeof(Entry), by_number)
    for i in range(n):
        entry = (<Entry*>(r.entries.first + base))[i]       # (values may have entries, too: the stack may move)
        length = r.nodes[at + 1].length
        status = append_entry(r, at, entry.key, entry.key_size, entry.value, value)
        if status != OK:
            return status
        if entry.number < 0:
            truncate(r.nodes, at + 1, length)
    r.entries.size = base
    r.p = end
    status = append_offset(node, r.nodes[at + 1].length)
    return append_valid(node) if status == OK else status


# --- instructions -------------------------------------------------------------------------------------

cdef int append_list(Reader* r, int at, int64_t item) noexcept nogil:
    cdef Node* node = &r.nodes[at]
    cdef int64_t left = 0
    cdef int status
    while True:
        status = next_item(r, &left)
        if status != ITEM:
            break
        status = run(r, item)
        if status != OK:
            return status
    if status != OK:
        return status
    status = append_offset(node, r.nodes[node.first_child].length)
    return append_valid(node) if status == OK else status


cdef int skip_blocks(Reader* r, int64_t instruction, bint has_keys) noexcept nogil:
    cdef int64_t left = 0
    cdef int64_t size
    cdef int status
    while True:
        status = next_item(r, &left)
        if status != ITEM:
            return status
        if has_keys:
            status = read_size(r, &size)
            if status != OK:
                return status
            if not seg_is_utf8(r.p, size):
                return NOT_UTF8
            r.p += size
        status = run(r, instruction)
        if status != OK:
            return status


cdef int append_default(Reader* r, const int64_t* o) noexcept nogil:
    """A field that the writer did not have: its default is in the constants, encoded by the reader's schema."""
    cdef const uint8_t* p = r.p
    cdef const uint8_t* end = r.end
    cdef int status
    r.p, r.end = r.program.constants + o[0], r.program.constants + o[1]
    status = run(r, o[2])
    r.p, r.end = p, end
    return status


cdef int append_member(Reader* r, int at, int64_t member, int64_t instruction) noexcept nogil:
    """A value of one of the types of a union: all other members are null."""
    cdef int child = r.nodes[at].first_child
    cdef int64_t number = 0
    cdef int status
    while child >= 0:
        status = run(r, instruction) if number == member else append_null(r.nodes, child)
        if status != OK:
            return status
        child = r.nodes[child].next_sibling
        number += 1
    return append_valid(&r.nodes[at])


cdef int run(Reader* r, int64_t pc) noexcept nogil:
    """Read what the instruction says. Returns a status; `r.p` is then where it failed."""
    cdef const int64_t* o = r.program.code + pc + 2
    cdef int64_t instruction = r.program.code[pc]
    cdef int at = <int>r.program.code[pc + 1]
    cdef Node* node = r.nodes + at if at >= 0 else NULL
    cdef int status
    cdef int64_t number, i
    cdef int32_t narrow
    cdef float single
    cdef double real
    if instruction == RECORD:
        for i in range(1, o[0] + 1):
            status = run(r, o[i])
            if status != OK:
                return status
        return append_valid(node) if node != NULL else OK
    if instruction == INT:
        status = read_long(r, &number)
        if status != OK:
            return status
        if not INT32_MIN <= number <= INT32_MAX:
            return NOT_INT
        narrow = <int32_t>number
        return append_fixed(node, &narrow, 4)
    if instruction == LONG:
        status = read_long(r, &number)
        return append_fixed(node, &number, 8) if status == OK else status
    if instruction == STRING or instruction == BYTES:
        status = read_size(r, &number)
        if status != OK:
            return status
        if instruction == STRING and not seg_is_utf8(r.p, number):
            return NOT_UTF8
        status = append_bytes(node, r.p, number)
        r.p += number
        return status
    if instruction == UNION:
        status = read_index(r, o[0], &number)
        return run(r, o[1 + number]) if status == OK else status
    if instruction == NOTHING:
        return append_null(r.nodes, at) if node != NULL else OK
    if instruction == DOUBLE or instruction == FLOAT:
        i = 8 if instruction == DOUBLE else 4
        if r.end - r.p < i:
            return SHORT
        r.p += i
        return append_fixed(node, r.p - i, i)
    if instruction == BOOLEAN:
        if r.p == r.end:
            return SHORT
        if r.p[0] > 1:
            return NOT_BOOLEAN
        status = write_bit(node, node.data, node.length, r.p[0])
        r.p += 1
        return append_valid(node) if status == OK else status
    if instruction == ENUM:
        status = read_index(r, o[0], &number)
        if status != OK:
            return status
        narrow = <int32_t>o[1 + number]
        if narrow < 0:
            r.detail = number
            return NO_SYMBOL
        return append_fixed(node, &narrow, 4)
    if instruction == FIXED:
        if r.end - r.p < o[0]:
            return SHORT
        r.p += o[0]
        return append_fixed(node, r.p - o[0], o[0])
    if instruction == DECIMAL:
        r.detail = o[2]
        return read_decimal(r, node, o[0], r.program.constants + o[1])
    if instruction == UUID:
        return read_uuid(r, node)
    if instruction == LIST:
        return append_list(r, at, o[0])
    if instruction == MAP:
        return append_map(r, at, o[0], o[1])
    if instruction == MEMBER:
        return append_member(r, at, o[0], o[1])
    if instruction == DEFAULT:
        return append_default(r, o)
    if instruction == LONG_TO_FLOAT or instruction == LONG_TO_DOUBLE:
        status = read_long(r, &number)
        if status != OK:
            return status
        real = <double>number
        if instruction == LONG_TO_DOUBLE:
            return append_fixed(node, &real, 8)
        single = <float>real
        return append_fixed(node, &single, 4)
    if instruction == FLOAT_TO_DOUBLE:
        if r.end - r.p < 4:
            return SHORT
        memcpy(&single, r.p, 4)
        r.p += 4
        real = <double>single
        return append_fixed(node, &real, 8)
    if instruction == SKIP_LONG:
        return read_long(r, &number)
    if instruction == SKIP_BYTES or instruction == SKIP_STRING:
        status = read_size(r, &number)
        if status != OK:
            return status
        if instruction == SKIP_STRING and not seg_is_utf8(r.p, number):
            return NOT_UTF8
        r.p += number
        return OK
    if instruction == SKIP_ENUM:
        return read_index(r, o[0], &number)
    if instruction == SKIP_FIXED:
        if r.end - r.p < o[0]:
            return SHORT
        r.p += o[0]
        return OK
    if instruction == SKIP_LIST or instruction == SKIP_MAP:
        return skip_blocks(r, o[0], instruction == SKIP_MAP)
    r.detail = o[0]
    return MISMATCH


# --- columns ------------------------------------------------------------------------------------------

cdef struct Bad:
    int64_t row
    int64_t status
    int64_t position            # in the row's bytes
    int64_t detail
    int64_t id


@cython.final
cdef class AvroColumn:
    """Collects the rows of one Arrow array. For one thread at a time. `like`: one of the same layout that was filled
    before; as much memory is reserved at once."""

    def __cinit__(self, AvroLayout layout not None, AvroColumn like=None):
        cdef int i
        cdef OutputChunk chunk
        cdef Node* node
        if like is not None and like.layout is not layout:
            raise ValueError("a column of another layout")
        self.layout, self.chunks, self.programs = layout, [], []
        self.room.limit = self.allowed = ROOM_BYTES + layout.size * <int64_t>NODE_BYTES
        self.nodes = <Node*>calloc(layout.size, sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        memcpy(self.nodes, layout.nodes, layout.size * sizeof(Node))
        for i in range(layout.size):
            node = &self.nodes[i]
            parts = [OutputChunk(), OutputChunk(), OutputChunk()]
            self.chunks.append(parts)
            chunk = parts[0]
            node.validity = &chunk.out
            chunk = parts[1]
            node.data = &chunk.out
            chunk = parts[2]
            node.offsets = &chunk.out
            node.room = &self.room
            if like is not None:
                self.reserve_like(node, &like.nodes[i])
        self.empty()

    cdef int reserve_like(self, Node* node, const Node* like) except -1:
        """Reserve what the other one has, and some more. If there is no room, that is found out later."""
        reserve(node, node.validity, like.validity.size + like.validity.size // 8)
        reserve(node, node.data, like.data.size + like.data.size // 8)
        reserve(node, node.offsets, like.offsets.size + like.offsets.size // 8)
        return 0

    cdef int empty(self) except -1:
        """Begin with no rows, in the memory that there is."""
        cdef int i
        cdef Node* node
        self.room.bytes, self.room.limit, self.is_done, self.is_full = 0, self.allowed, False, False
        for i in range(self.layout.size):
            node = &self.nodes[i]
            node.length, node.has_nulls = 0, False
            node.validity.size = node.data.size = node.offsets.size = 0
            self.room.bytes += node.validity.capacity + node.data.capacity + node.offsets.capacity
            if node.kind == VAR_NODE or node.kind == LIST_NODE:
                if append_offset(node, 0) != OK:
                    raise MemoryError
        return 0

    def begin_again(self):
        """Take out all rows, and keep the memory and the programs; False, and nothing is changed, if `buffers` are
        still used."""
        cdef OutputChunk chunk
        begin_alone(&self.use, self)
        try:
            for parts in self.chunks:
                for part in parts:
                    chunk = part
                    if chunk.exports > 0:
                        return False
            self.empty()
            return True
        finally:
            end_alone(&self.use)

    def __dealloc__(self):
        free(self.nodes)
        free(self.known)
        free(self.entries.first)

    def __len__(self):
        return self.nodes[0].length

    @property
    def nbytes(self):
        """The memory that it has, whatever is in it."""
        return self.room.bytes

    def add(self, int64_t schema_id, AvroProgram program):
        """Take the program for what was written with this schema; None: it cannot be read."""
        cdef int64_t at
        cdef Known* known
        if program is not None and program.layout is not self.layout:
            raise ValueError("a program of another layout")
        self.begin()
        try:
            at = place_of(self.known, self.known_count, schema_id)
            if at < self.known_count and self.known[at].id == schema_id:
                raise ValueError(f"schema {schema_id} was added before")
            if self.known_count == self.known_capacity:
                known = <Known*>realloc(self.known, (2 * self.known_capacity + 8) * sizeof(Known))
                if known == NULL:
                    raise MemoryError
                self.known, self.known_capacity = known, 2 * self.known_capacity + 8
            if program is not None:
                self.programs.append(program)
            known = &self.known[at]
            memmove(known + 1, known, (self.known_count - at) * sizeof(Known))
            self.known_count += 1
            known.id = schema_id
            known.code, known.root, known.constants, known.constants_end = NULL, 0, NULL, NULL
            if program is not None:
                known.code, known.root = program.code, program.root
                known.constants = program.constants
                known.constants_end = known.constants + len(program.constants)
        finally:
            end_alone(&self.use)

    def decode(self, offsets not None, data, validity, int64_t first, int64_t start, int64_t stop, *,
               int64_t schema_id=-1, ids=None, positions=None, bint stops=False):
        """Append the rows [start, stop) of a binary array whose row 0 is item `first` of the buffers.

        schema_id: that of all rows; -2: each begins with Confluent's frame. ids, positions: int64, for each row the id
        (-3: the row cannot be decoded) and where the value begins. stops: the first row that cannot be decoded ends it.

        Returns (the row that it ended before, [(row, problem, position, detail, schema id)]). If a row's schema has not
        been added it ends before that row, and `wanted` is the id. If the column has no room for another row, it ends
        before that, and `is_full`: another column has to take the rest. There is always room for one.
        """
        cdef const uint8_t[::1] offset_bytes = memoryview(offsets).cast("B")
        cdef const uint8_t[::1] bytes_of_rows = memoryview(b"\0" if data is None or not len(data) else data).cast("B")
        cdef const uint8_t[::1] bits = memoryview(b"\0" if validity is None else validity).cast("B")
        cdef const uint8_t[::1] id_bytes = memoryview(b"\0" if ids is None else ids).cast("B")
        cdef const uint8_t[::1] position_bytes = memoryview(b"\0" if positions is None else positions).cast("B")
        cdef const int32_t* ends
        cdef const uint8_t* base = &bytes_of_rows[0]
        cdef const uint8_t* valid = NULL
        cdef const int64_t* each = NULL
        cdef const int64_t* begins = NULL
        cdef int64_t size = 0 if data is None else len(data)
        cdef int64_t row = start
        cdef int64_t bad_count = 0
        cdef Reader reader
        cdef Output bad
        cdef Bad* one
        cdef int status = OK
        if first < 0 or not 0 <= start <= stop or stop > INT32_MAX or first > INT32_MAX:
            raise ValueError("no such rows")
        if offset_bytes.shape[0] < 4 * (first + stop + 1):
            raise ValueError("fewer offsets than rows")
        ends = <const int32_t*>&offset_bytes[0] + first
        if validity is not None:
            if 8 * bits.shape[0] < first + stop:
                raise ValueError("a validity bitmap of fewer rows")
            valid = &bits[0]
        if (ids is None) != (positions is None):
            raise ValueError("ids and positions are given together")
        if ids is not None:
            if id_bytes.shape[0] < 8 * stop or position_bytes.shape[0] < 8 * stop:
                raise ValueError("fewer ids or positions than rows")
            each, begins = <const int64_t*>&id_bytes[0], <const int64_t*>&position_bytes[0]
        if <size_t>ends % 4 or <size_t>each % 8 or <size_t>begins % 8:
            raise ValueError("a buffer is not aligned")
        memset(&bad, 0, sizeof(Output))
        memset(&reader, 0, sizeof(Reader))
        self.begin()
        try:
            reader.nodes, reader.entries = self.nodes, &self.entries
            with nogil:
                while row < stop:
                    if self.room.bytes > self.allowed and self.nodes[0].length > 0:
                        status = FULL
                    else:
                        status = decode_row(
                            self, &reader, ends, base, size, valid, first, row, schema_id, each, begins, &bad
                        )
                    if status == FULL:
                        self.is_full = True
                        break
                    if status == LIMIT or status == NO_MEMORY or (status != OK and stops):
                        break
                    row += 1
            if status == NO_MEMORY:
                raise MemoryError
            found = []
            for bad_count in range(<int64_t>(bad.size // <int64_t>sizeof(Bad))):
                one = &(<Bad*>bad.first)[bad_count]
                found.append((one.row, one.status, one.position, one.detail, one.id))
            return row, found
        finally:
            free(bad.first)
            end_alone(&self.use)

    cdef int begin(self) except -1:
        if self.is_done:
            raise ValueError("the buffers of this column were taken")
        return begin_alone(&self.use, self)

    cdef int check(self) except -1:
        """Check that all arrays have as many values as those above them say."""
        cdef int i, child
        cdef int64_t length
        cdef Node* node
        for i in range(self.layout.size):
            node = &self.nodes[i]
            if node.kind < LIST_NODE:
                continue
            length = node.length if node.kind == STRUCT_NODE else last_offset(node)
            child = node.first_child
            while child >= 0:
                if self.nodes[child].length != length:
                    raise ValueError(f"node {child} has {self.nodes[child].length} values, not {length}")
                child = self.nodes[child].next_sibling
        return 0

    def buffers(self):
        """For each node (length, validity, offsets, data); nothing can be appended after that before `begin_again`.
        None: a buffer that the node does not have, or, for validity, one without a null."""
        cdef int i
        cdef Node* node
        cdef list made = []
        self.begin()
        try:
            self.check()
            self.is_done = True
            self.room.bytes = 0
            for i in range(self.layout.size):
                node = &self.nodes[i]
                trim(node.validity)
                trim(node.data)
                trim(node.offsets)
                self.room.bytes += node.validity.capacity + node.data.capacity + node.offsets.capacity
                validity, data, offsets = self.chunks[i]
                made.append((
                    node.length, validity if node.has_nulls else None,
                    offsets if node.kind == VAR_NODE or node.kind == LIST_NODE else None,
                    data if BOOL_NODE <= node.kind <= VAR_NODE else None,
                ))
            return made
        finally:
            end_alone(&self.use)


cdef void trim(Output* out) noexcept nogil:
    """Give back memory, if that is much of it: a caller may keep the buffers. Without any memory there is no buffer."""
    if out.first == NULL or out.capacity - out.size > out.size // 4:
        trim_output(out)


cdef int64_t place_of(const Known* known, int64_t count, int64_t schema_id) noexcept nogil:
    """Where the id is, or belongs."""
    cdef int64_t low = 0
    cdef int64_t high = count
    cdef int64_t middle
    while low < high:
        middle = (low + high) >> 1
        if known[middle].id < schema_id:
            low = middle + 1
        else:
            high = middle
    return low


cdef int decode_row(
    AvroColumn column, Reader* r, const int32_t* ends, const uint8_t* base, int64_t size, const uint8_t* valid,
    int64_t first, int64_t row, int64_t schema_id, const int64_t* each, const int64_t* begins, Output* bad
) noexcept nogil:
    """OK, the problem of the row, which is null then; LIMIT: its schema is needed; FULL; NO_MEMORY."""
    cdef int64_t begin = ends[row]
    cdef int64_t end = ends[row + 1]
    cdef int64_t length = column.nodes[0].length
    cdef int64_t at
    cdef const uint8_t* value
    cdef int status = OK
    column.room.limit = column.room.bytes + ROW_BYTES + column.layout.size * <int64_t>NODE_BYTES
    if valid != NULL and not valid[(first + row) >> 3] >> ((first + row) & 7) & 1:
        return append_null_row(column, OK)
    if not 0 <= begin <= end <= size:
        if failed(bad, row, BAD_SIZE, 0, 0, -1) != OK:
            return NO_MEMORY
        return append_null_row(column, BAD_SIZE)
    if end - begin > ROW_BYTES // ROW_FACTOR:
        column.room.limit += ROW_FACTOR * (end - begin) - ROW_BYTES
    value = base + begin
    r.p, r.end, r.detail = value, base + end, 0
    if each != NULL:
        schema_id = each[row]
        if schema_id == -3 or not 0 <= begins[row] <= end - begin:
            status = NOT_IN_FRAME
        else:
            r.p += begins[row]
    elif schema_id == -2:
        if end - begin < FRAME_BYTES or value[0] != 0:
            status = NOT_IN_FRAME
        else:
            schema_id = load_u32(value + 1)
            r.p += FRAME_BYTES
    if status == OK:
        if r.program == NULL or r.program.id != schema_id:
            at = place_of(column.known, column.known_count, schema_id)
            if at == column.known_count or column.known[at].id != schema_id:
                column.wanted = schema_id
                return LIMIT
            r.program = &column.known[at]
        status = NO_PROGRAM if r.program.code == NULL else read_row(column, r)
    if status == OK or status == NO_MEMORY:
        return status
    truncate(column.nodes, 0, length)
    if status == TOO_LARGE and length > 0:
        return FULL
    if failed(bad, row, status, r.p - value, r.detail, schema_id) != OK:
        return NO_MEMORY
    return append_null_row(column, status)


cdef int append_null_row(AvroColumn column, int status) noexcept nogil:
    """The status, or NO_MEMORY. There is room for one in each column: see avro_schema.py."""
    # A row that is taken out leaves the memory that it had.
    column.room.limit = column.room.bytes + ROW_BYTES + column.layout.size * <int64_t>NODE_BYTES
    return NO_MEMORY if append_null(column.nodes, 0) != OK else status


cdef int failed(
    Output* bad, int64_t row, int64_t status, int64_t position, int64_t detail, int64_t schema_id
) noexcept nogil:
    cdef Bad* one
    if ensure_room(bad, sizeof(Bad)) != OK:
        return NO_MEMORY
    one = <Bad*>(bad.first + bad.size)
    one.row, one.status, one.position, one.detail, one.id = row, status, position, detail, schema_id
    bad.size += sizeof(Bad)
    return OK


cdef int read_row(AvroColumn column, Reader* r) noexcept nogil:
    cdef const uint8_t* begin = r.p
    cdef int64_t length = column.nodes[0].length
    cdef int status
    r.is_careful, r.entries.size = False, 0
    status = run(r, r.program.root)
    if status == TWICE:
        truncate(column.nodes, 0, length)
        r.p, r.is_careful, r.entries.size = begin, True, 0
        status = run(r, r.program.root)
    if status == OK and r.p != r.end:
        r.detail = r.end - r.p
        return TRAILING_BYTES
    return status
