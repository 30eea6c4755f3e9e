"""A column of Avro values, decoded to the buffers of Arrow arrays."""
from libc.stdint cimport int64_t, uint8_t

from .one_at_a_time cimport Use
from .output cimport Output


cdef struct Room:               # of a column
    int64_t bytes               # that its outputs can take
    int64_t limit               # that they may be able to take after the row that is being read


cdef struct Node:
    int kind                    # NodeKind
    int width                   # bytes of a value, of FIXED_NODE
    int first_child             # -1: none
    int next_sibling            # -1: the last one of its parent
    bint has_nulls              # else `validity` is not written
    int64_t length
    Output* validity            # one bit a value
    Output* data                # values of FIXED_NODE, bits of BOOL_NODE, bytes of VAR_NODE
    Output* offsets             # int32, one more than values, of VAR_NODE and LIST_NODE
    Room* room                  # that of its column


cdef struct Entry:              # of a map
    const uint8_t* key
    int64_t key_size
    const uint8_t* value
    int64_t number              # in the order of the bytes; -1: another one with its key stands for it


cdef struct Known:              # a schema id, and the program for its values
    int64_t id
    const int64_t* code         # NULL: there is none
    int64_t root
    const uint8_t* constants
    const uint8_t* constants_end


cdef struct Reader:
    const uint8_t* p
    const uint8_t* end
    const Known* program
    Node* nodes
    Output* entries             # a stack of Entry
    bint is_careful             # maps are looked through for keys that stand twice before their values are read
    int64_t detail              # of the failure, if its words need a number


cdef class AvroLayout:
    cdef readonly int size
    cdef Node* nodes            # owned; without outputs

    cdef int place(self, list given) except -2
    cdef int children_of(self, int node) noexcept


cdef class AvroProgram:
    cdef readonly AvroLayout layout
    cdef int64_t* code          # owned
    cdef int64_t code_size
    cdef int64_t root
    cdef bytes constants

    cdef int check(self) except -1


cdef class AvroColumn:
    cdef readonly AvroLayout layout
    cdef Use use
    cdef bint is_done           # its memory is that of the buffers
    cdef Node* nodes            # owned
    cdef list chunks            # what the outputs of the nodes belong to
    cdef Output entries         # owned
    cdef Room room
    cdef int64_t allowed        # with more than this no further row is begun
    cdef readonly bint is_full
    cdef Known* known           # owned: by id, rising
    cdef int64_t known_count
    cdef int64_t known_capacity
    cdef list programs          # keeps those that `known` points into
    cdef readonly int64_t wanted

    cdef int reserve_like(self, Node* node, const Node* like) except -1
    cdef int empty(self) except -1
    cdef int begin(self) except -1
    cdef int check(self) except -1
