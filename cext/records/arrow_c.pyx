"""Exports columns through the Arrow C data interface, without copying and without an Arrow library.

A consumer may release from a thread that does not hold the GIL, and may move a child out of its parent and release the
parent first. So each node keeps what it needs in a block of its own, with its own reference to the owner of the bytes.
"""
import atexit
import os

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from .column_decoder cimport seg_binary, seg_columns

cdef extern from *:
    """
    #include <time.h>

    /* Calls of consumers that take the GIL or wait for it, in any thread. */
    static int seg_calls = 0;
    /* Set when the interpreter begins to end: then a thread that waits for the GIL is ended by force, which aborts the
       process if C++ called it. */
    static int seg_is_ending = 0;
    static unsigned long seg_ending_thread = 0;

    static int seg_begin_call(void) {
        __atomic_add_fetch(&seg_calls, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&seg_is_ending, __ATOMIC_SEQ_CST))
            return 1;
        if (PyThread_get_thread_ident() == seg_ending_thread && PyGILState_GetThisThreadState() != NULL)
            return 1;                   /* the thread that ends the interpreter may take the GIL to the last */
        __atomic_sub_fetch(&seg_calls, 1, __ATOMIC_SEQ_CST);
        return 0;
    }

    static void seg_end_call(void) {
        __atomic_sub_fetch(&seg_calls, 1, __ATOMIC_SEQ_CST);
    }

    static void seg_set_ending(void) {
        seg_ending_thread = PyThread_get_thread_ident();
        __atomic_store_n(&seg_is_ending, 1, __ATOMIC_SEQ_CST);
    }

    static void seg_wait_for_calls(int milliseconds) {
        struct timespec pause = {0, 1000000};
        for (; milliseconds > 0 && __atomic_load_n(&seg_calls, __ATOMIC_SEQ_CST) > 0; milliseconds--)
            nanosleep(&pause, NULL);
    }

    static void seg_reset_calls(void) {
        __atomic_store_n(&seg_calls, 0, __ATOMIC_SEQ_CST);
    }
    """
    bint seg_begin_call() noexcept nogil
    void seg_end_call() noexcept nogil
    void seg_set_ending() noexcept
    void seg_wait_for_calls(int milliseconds) noexcept nogil
    void seg_reset_calls() noexcept

# How long the end of the interpreter waits for calls that have begun: longer than a chunk takes, but not for a store.
cdef int ENDING_WAIT_MS = 2000

cdef enum:
    MAX_BUFFERS = 4
    MAX_CHILDREN = 8

# What a node's private_data points to, until the node is released.
cdef struct SchemaBlock:
    ArrowSchema nodes[MAX_CHILDREN]
    ArrowSchema* children[MAX_CHILDREN]
    ArrowSchema dictionary

cdef struct ArrayBlock:
    PyObject* owner
    const void* buffers[MAX_BUFFERS]
    ArrowArray nodes[MAX_CHILDREN]
    ArrowArray* children[MAX_CHILDREN]
    ArrowArray dictionary


cdef bint begin_call() noexcept nogil:
    """Call before a consumer's call takes the GIL. False: the interpreter ends, and this thread must not take it."""
    return seg_begin_call()


cdef void end_call() noexcept nogil:
    """Call after the GIL was released again, if begin_call() returned True."""
    seg_end_call()


def _end_calls():
    seg_set_ending()
    with nogil:
        seg_wait_for_calls(ENDING_WAIT_MS)


def _forget_calls():
    """The calls of the parent's threads: they do not go on in a child."""
    seg_reset_calls()


atexit.register(_end_calls)
os.register_at_fork(after_in_child=_forget_calls)


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
    if schema.dictionary != NULL and schema.dictionary.release != NULL:
        schema.dictionary.release(schema.dictionary)
    free(schema.private_data)
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef int64_t i
    cdef ArrayBlock* block = <ArrayBlock*>array.private_data
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
    if array.dictionary != NULL and array.dictionary.release != NULL:
        array.dictionary.release(array.dictionary)
    if begin_call():                    # else the end of the process frees it
        with gil:
            Py_DECREF(<object>block.owner)
        end_call()
    free(block)
    array.release = NULL


cdef int fill_schema(ArrowSchema* out, const char* format, const char* name, bint nullable, int n_children) except -1:
    """Fill one column of a schema. `format` and `name` are literals, which are never freed."""
    cdef int i
    cdef SchemaBlock* block = <SchemaBlock*>calloc(1, sizeof(SchemaBlock))
    if block == NULL:
        raise MemoryError
    for i in range(n_children):
        block.children[i] = &block.nodes[i]
    out.format = format
    out.name = name
    out.flags = ARROW_FLAG_NULLABLE if nullable else 0
    out.n_children = n_children
    out.children = block.children
    out.private_data = block
    out.release = release_schema
    return 0


cdef int fill_array(ArrowArray* out, object owner, int64_t length, int64_t null_count,
                    int n_buffers, int n_children) except -1:
    """Fill one column of data. The caller sets its buffers, which are memory of `owner`."""
    cdef int i
    cdef ArrayBlock* block = <ArrayBlock*>calloc(1, sizeof(ArrayBlock))
    if block == NULL:
        raise MemoryError
    for i in range(n_children):
        block.children[i] = &block.nodes[i]
    Py_INCREF(owner)
    block.owner = <PyObject*>owner
    out.length = length
    out.null_count = null_count
    out.n_buffers = n_buffers
    out.buffers = block.buffers
    out.n_children = n_children
    out.children = block.children
    out.private_data = block
    out.release = release_array
    return 0


cdef ArrowSchema* new_schema() except NULL:
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError
    return schema


cdef ArrowArray* new_array() except NULL:
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError
    return array


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:      # NULL: a consumer moved it out
        schema.release(schema)
    free(schema)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef object new_schema_capsule(ArrowSchema** out):
    out[0] = new_schema()
    return PyCapsule_New(out[0], "arrow_schema", drop_schema)


cdef object new_array_capsule(ArrowArray** out):
    out[0] = new_array()
    return PyCapsule_New(out[0], "arrow_array", drop_array)


cdef ArrowSchema* dictionary_of_schema(ArrowSchema* out) noexcept:
    out.dictionary = &(<SchemaBlock*>out.private_data).dictionary
    return out.dictionary


cdef ArrowArray* dictionary_of_array(ArrowArray* out) noexcept:
    out.dictionary = &(<ArrayBlock*>out.private_data).dictionary
    return out.dictionary


# --- the columns --------------------------------------------------------------------------

cdef object export_schema():
    cdef ArrowSchema* schema = NULL
    cdef object capsule = new_schema_capsule(&schema)       # frees what is filled from here on
    cdef ArrowSchema* item
    fill_schema(schema, b"+s", b"", False, 5)
    fill_schema(schema.children[0], b"l", b"offset", False, 0)
    fill_schema(schema.children[1], b"tsm:UTC", b"timestamp", True, 0)
    fill_schema(schema.children[2], b"z", b"key", True, 0)
    fill_schema(schema.children[3], b"z", b"value", True, 0)
    fill_schema(schema.children[4], b"+l", b"headers", False, 1)
    item = schema.children[4].children[0]
    fill_schema(item, b"+s", b"item", False, 2)
    fill_schema(item.children[0], b"z", b"key", False, 0)
    fill_schema(item.children[1], b"z", b"value", True, 0)
    return capsule


cdef object export_array(object owner, const seg_columns* c,
                         const uint8_t* timestamp_validity, int64_t timestamp_nulls):
    cdef ArrowArray* array = NULL
    cdef object capsule = new_array_capsule(&array)
    cdef ArrowArray* child
    fill_array(array, owner, c.rows, 0, 1, 5)

    child = array.children[0]
    fill_array(child, owner, c.rows, 0, 2, 0)
    child.buffers[1] = c.offset

    child = array.children[1]
    fill_array(child, owner, c.rows, timestamp_nulls, 2, 0)
    if timestamp_nulls > 0:
        child.buffers[0] = timestamp_validity
    child.buffers[1] = c.timestamp

    fill_binary(array.children[2], owner, &c.key, c.rows)
    fill_binary(array.children[3], owner, &c.value, c.rows)

    child = array.children[4]
    fill_array(child, owner, c.rows, 0, 2, 1)
    child.buffers[1] = c.header_start
    child = child.children[0]
    fill_array(child, owner, c.header_rows, 0, 1, 2)
    fill_binary(child.children[0], owner, &c.header_key, c.header_rows)
    fill_binary(child.children[1], owner, &c.header_value, c.header_rows)
    return capsule


cdef int fill_binary(ArrowArray* array, object owner, const seg_binary* column, int64_t rows) except -1:
    fill_array(array, owner, rows, column.null_count, 3, 0)
    if column.null_count > 0:
        array.buffers[0] = column.validity
    array.buffers[1] = column.offsets
    array.buffers[2] = column.data
    return 0
