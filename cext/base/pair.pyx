"""Named pairs of numbers: positions, and leases."""
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t

cdef extern from *:
    """
    /* Through tuple's own __new__, which alone knows all fields of a tuple; without the checks of its wrapper. */
    static PyObject* seg_tuple_of(PyObject* kind, PyObject* items)
    {
        PyObject *args, *made;
        if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject*)kind, &PyTuple_Type)) {
            PyErr_Format(PyExc_TypeError, "a class of tuples, not %R", kind);
            return NULL;
        }
        args = PyTuple_Pack(1, items);
        if (args == NULL)
            return NULL;
        made = PyTuple_Type.tp_new((PyTypeObject*)kind, args, NULL);
        Py_DECREF(args);
        return made;
    }
    """
    object seg_tuple_of(object kind, object items)


cdef object new_pair(object kind, int64_t first, int64_t second):
    return seg_tuple_of(kind, (first, second))


cdef bint is_pair(object pair, int64_t first, int64_t second) except -1:
    return (
        PyTuple_Check(pair) and PyTuple_GET_SIZE(pair) == 2
        and <object>PyTuple_GET_ITEM(pair, 0) == first and <object>PyTuple_GET_ITEM(pair, 1) == second
    )
