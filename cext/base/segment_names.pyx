"""Sorts the names of a directory's files into those of segments, by suffix, and all others.

<20 digits><suffix>: a log with a hundred thousand segments has half a million names, and opening checks each.
"""
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    const unsigned char* PyUnicode_1BYTE_DATA(object)

cdef enum:
    DIGITS = 20
    SUFFIXES_MAX = 16

cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef bint _offset_of(const unsigned char* p, uint64_t* offset) noexcept nogil:
    """Whether the DIGITS bytes from `p` on are the digits of a possible offset."""
    cdef uint64_t found = 0
    cdef unsigned int digit
    cdef int n
    for n in range(DIGITS):
        digit = <unsigned int>p[n] - 48
        if digit > 9 or found > (OFFSET_MAX - digit) // 10:
            return False
        found = found * 10 + digit
    offset[0] = found
    return True


def sorted_names(list listed not None, tuple suffixes not None):
    """Return (the offsets in the names of segments' files, a set for each of `suffixes`; the other names).

    Raises ValueError for more than 16 suffixes, or one that is not ASCII text.
    """
    cdef const unsigned char* starts[SUFFIXES_MAX]
    cdef Py_ssize_t sizes[SUFFIXES_MAX]
    cdef list found = [], others = []
    cdef Py_ssize_t count = len(suffixes), size
    cdef Py_ssize_t slot = 0, _tried
    cdef const unsigned char* p
    cdef uint64_t offset = 0
    if count > SUFFIXES_MAX:
        raise ValueError(f"{count} suffixes, expected at most {SUFFIXES_MAX}")
    for n, suffix in enumerate(suffixes):
        if not PyUnicode_Check(suffix) or not PyUnicode_IS_COMPACT_ASCII(suffix):
            raise ValueError(f"invalid suffix {suffix!r}")
        starts[n], sizes[n] = PyUnicode_1BYTE_DATA(suffix), PyUnicode_GET_LENGTH(suffix)
        found.append(set())
    for name in listed:
        if not PyUnicode_Check(name) or not PyUnicode_IS_COMPACT_ASCII(name):
            others.append(name)
            continue
        size = PyUnicode_GET_LENGTH(name) - DIGITS
        p = PyUnicode_1BYTE_DATA(name)
        for _tried in range(count):
            # (They come in no order, but usually one kind follows the same other kind.)
            slot = slot + 1 if slot + 1 < count else 0
            if size == sizes[slot] and memcmp(p + DIGITS, starts[slot], <size_t>size) == 0:
                break
        else:
            others.append(name)
            continue
        if _offset_of(p, &offset):
            (<set>found[slot]).add(offset)
        else:
            others.append(name)
    return found, others
