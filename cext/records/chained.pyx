"""Iterators one after another, as itertools.chain.from_iterable, for iterators that several threads may meet.

chain drops its source when a second thread's call raises (a generator's "already executing"), while the first is still
in it: that ends the interpreter. Here the second thread is refused before it reaches anything.

A generator that is dropped before its end runs what it has in `finally`. An interrupt that comes meanwhile, ^C or what
PyThreadState_SetAsyncExc sends, would be printed by its finalizer, and the program would go on. Here it is raised once
the iterator is gone.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_DECREF

from .one_at_a_time cimport Use, begin_alone, end_alone
from .record_batch cimport Record, RecordIterator


from types import GeneratorType


cdef extern from "Python.h":
    PyObject* PyIter_Next(object iterator) except? NULL
    Py_ssize_t Py_REFCNT(PyObject* obj)
    int PyThreadState_SetAsyncExc(unsigned long thread, object kind)


@cython.final
cdef class Chained:
    """Chained(iterables, lost=()): the items of each iterable, which is asked for when the one before it has ended.

    An error of `iterables` itself ends the iteration; after an error of one of them, its next item is asked for.
    `lost`: a sequence to which the iterables add what they skip.
    """
    cdef object source              # None at the end
    cdef object active              # None before the next one is requested
    cdef object skipped
    cdef Use use

    def __init__(self, iterables, lost=()):
        self.source = iter(iterables)
        self.skipped = lost

    def __del__(self):
        cdef PyObject* source = <PyObject*>self.source
        if type(<object>source) is not GeneratorType or Py_REFCNT(source) > 1:
            return      # or somebody else has it, and goes on
        try:
            (<object>source).close()
        except Exception:
            raise
        except BaseException as interrupt:
            PyThreadState_SetAsyncExc(<unsigned long>PyThread_get_thread_ident(), type(interrupt))

    def __repr__(self):
        return f"<an iterator; list() shows its items{'' if self.source is not None else ': it has ended'}>"

    @property
    def lost(self):
        """What was skipped so far, with on_corrupt="skip": a tuple of `LostRange`."""
        return () if self.skipped is None else tuple(self.skipped)

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordIterator records
        cdef Record record = None
        cdef PyObject* item = NULL
        begin_alone(&self.use, self)
        try:
            if type(self.active) is RecordIterator:
                # Fast path: nearly all that is chained is records.
                records = <RecordIterator>self.active
                begin_alone(&records.use, records)
                try:
                    record = records.advance()
                finally:
                    end_alone(&records.use)
            if record is None:
                item = self.advance()
        finally:
            end_alone(&self.use)
        if record is not None:
            return record
        if item == NULL:
            raise StopIteration
        given = <object>item
        Py_DECREF(given)            # the reference that `advance` gave
        return given

    cdef PyObject* advance(self) except? NULL:
        """A new reference to the next item; NULL at the end."""
        cdef PyObject* item
        while True:
            if self.active is None:
                if self.source is None:
                    return NULL
                try:
                    item = PyIter_Next(self.source)
                    if item == NULL:
                        self.source = None
                        return NULL
                    iterable = <object>item
                    Py_DECREF(iterable)
                    self.active = iter(iterable)
                except BaseException:
                    self.source = None
                    raise
            item = PyIter_Next(self.active)
            if item != NULL:
                return item
            self.active = None
