"""Exports an iterator of record batches through the Arrow C stream interface, without an Arrow library.

A batch is any object with __arrow_c_array__; the iterator runs when the consumer pulls a batch, on the consumer's
thread. An exception of the iterator ends the stream, with the exception's message.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EIO
from libc.stdlib cimport calloc, free
from libc.string cimport strdup

from .arrow_c cimport ArrowArray, ArrowArrayStream, ArrowSchema, begin_call, end_call

cdef struct StreamBlock:
    PyObject* schema_of
    PyObject* batches
    char* error


cdef int get_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    if not begin_call():
        return EIO
    cdef int result = take_schema(<StreamBlock*>stream.private_data, out)
    end_call()
    return result


cdef int take_schema(StreamBlock* block, ArrowSchema* out) noexcept with gil:
    cdef ArrowSchema* made
    try:
        capsule = (<object>block.schema_of).__arrow_c_schema__()
        made = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
        out[0] = made[0]
        made.release = NULL             # moved
    except BaseException as error:
        return refuse(block, error)
    return 0


cdef int get_next(ArrowArrayStream* stream, ArrowArray* out) noexcept nogil:
    out.release = NULL                  # the end, or nothing to release
    if not begin_call():
        return EIO
    cdef int result = take_next(<StreamBlock*>stream.private_data, out)
    end_call()
    return result


cdef int take_next(StreamBlock* block, ArrowArray* out) noexcept with gil:
    cdef ArrowArray* made
    try:
        batch = next(<object>block.batches, None)
        if batch is not None:
            capsules = batch.__arrow_c_array__()
            made = <ArrowArray*>PyCapsule_GetPointer(capsules[1], "arrow_array")
            out[0] = made[0]
            made.release = NULL
    except BaseException as error:
        return refuse(block, error)
    return 0


cdef int refuse(StreamBlock* block, error) noexcept:
    free(block.error)
    block.error = NULL
    try:
        words = (str(error) or type(error).__name__).encode(errors="replace")
        block.error = strdup(words)
    except BaseException:
        pass                            # then without a message
    return EIO


cdef const char* get_last_error(ArrowArrayStream* stream) noexcept nogil:
    return (<StreamBlock*>stream.private_data).error


cdef void drop(StreamBlock* block) noexcept with gil:
    Py_DECREF(<object>block.schema_of)
    Py_DECREF(<object>block.batches)


cdef void release(ArrowArrayStream* stream) noexcept nogil:
    cdef StreamBlock* block = <StreamBlock*>stream.private_data
    if begin_call():
        drop(block)
        end_call()
    free(block.error)
    free(block)
    stream.release = NULL


cdef void drop_stream(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:          # NULL: a consumer moved it out
        stream.release(stream)
    free(stream)


def export_stream(schema_of not None, batches not None):
    """A capsule of the Arrow PyCapsule interface: `schema_of` has __arrow_c_schema__, `batches` is the iterator."""
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
    cdef StreamBlock* block = <StreamBlock*>calloc(1, sizeof(StreamBlock))
    if stream == NULL or block == NULL:
        free(stream)
        free(block)
        raise MemoryError
    Py_INCREF(schema_of)
    Py_INCREF(batches)
    block.schema_of = <PyObject*>schema_of
    block.batches = <PyObject*>batches
    stream.get_schema = get_schema
    stream.get_next = get_next
    stream.get_last_error = get_last_error
    stream.release = release
    stream.private_data = block
    return PyCapsule_New(stream, "arrow_array_stream", drop_stream)
