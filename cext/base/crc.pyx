# distutils: sources = cext/base/seg_crc.c
"""CRC-32 and CRC-32C at the fastest level of this machine, chosen once, at import.

SEGLOG_CRC=table|sse42|avx512|armv8 forces a level; forcing one that this machine lacks is an
ImportError, never a silent fallback: it is used for measuring, or to find a bug in a level.
"""
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "seg_crc.h" nogil:
    ctypedef uint32_t (*seg_crc_function)(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil

    ctypedef struct seg_crc_level:
        const char* name
        int (*is_supported)() noexcept nogil
        seg_crc_function crc32
        seg_crc_function crc32c

    const seg_crc_level* seg_crc_levels
    void seg_crc_init()


cdef enum:
    # Below this, releasing and taking the GIL costs more than other threads gain.
    GIL_WORTHY_BYTES = 64 * 1024

# Written here at import and never again: threads share it without a lock.
cdef const seg_crc_level* chosen = NULL


cdef const seg_crc_level* find_level(str name) except NULL:
    """Return the level of that name, or the fastest for None."""
    cdef const seg_crc_level* level = seg_crc_levels
    cdef const seg_crc_level* found = NULL
    while level.name != NULL:
        if level.is_supported() and (name is None or level.name.decode() == name):
            found = level
        level += 1
    if found == NULL:
        import platform

        raise ImportError(
            f"SEGLOG_CRC={name}: this machine ({platform.machine()}) lacks this level, only {', '.join(levels())}"
        )
    return found


cdef uint32_t update_crc32(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil:
    return chosen.crc32(value, bytes, size)


cdef uint32_t update_crc32c(uint32_t value, const uint8_t* bytes, size_t size) noexcept nogil:
    return chosen.crc32c(value, bytes, size)


cdef uint32_t of_buffer(seg_crc_function update, object data, uint32_t value) except? 0:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < GIL_WORTHY_BYTES:
        value = update(value, <const uint8_t*>view.buf, <size_t>view.len)
    else:
        with nogil:
            value = update(value, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


def crc32(data, uint32_t value=0):
    """Return the CRC-32 (IEEE) of a contiguous buffer, like zlib.crc32; `value` continues an earlier one."""
    return of_buffer(chosen.crc32, data, value)


def crc32c(data, uint32_t value=0):
    """Return the CRC-32C (Castagnoli) of a contiguous buffer; `value` continues an earlier one."""
    return of_buffer(chosen.crc32c, data, value)


def level():
    """Return the name of the level in use."""
    return chosen.name.decode()


def levels():
    """Return the names of all levels that this machine has, slowest first."""
    cdef const seg_crc_level* each = seg_crc_levels
    names = []
    while each.name != NULL:
        if each.is_supported():
            names.append(each.name.decode())
        each += 1
    return tuple(names)


def crc32_at(str level not None, data, uint32_t value=0):
    """Do `crc32` at one of `levels()`, for tests and benchmarks."""
    return of_buffer(find_level(level).crc32, data, value)


def crc32c_at(str level not None, data, uint32_t value=0):
    """Do `crc32c` at one of `levels()`, for tests and benchmarks."""
    return of_buffer(find_level(level).crc32c, data, value)


seg_crc_init()
chosen = find_level(os.environ.get("SEGLOG_CRC") or None)
