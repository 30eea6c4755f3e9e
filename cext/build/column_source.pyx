"""Takes records as columns: Arrow arrays by the C data interface, or plain buffers. Copies nothing.

    a struct array (a RecordBatch, our own Columns)     its fields key, value, timestamp, headers
    a mapping with these names; each column:
        key, value    None, (offsets, data) or (offsets, data, validity), or an Arrow array; a list of bytes-like or
                      None; a 2-D buffer of bytes, a row a record
        timestamp     an int, a buffer of int64, or an Arrow array of timestamp[ms] or int64
        headers       an Arrow array: list or map of struct<key, value>; a list of what encode_one takes

Offsets of buffers are int32 or int64, one more than rows; a validity bitmap is Arrow's, in bytes. Arrow arrays of byte
strings are binary, large_binary, string or large_string. Of Arrow's type null, any column has a null in each row. The
field `offset` is passed by: a log numbers records itself.

The interface tells no sizes of buffers: an Arrow producer is trusted with them, as by every consumer. Offsets are
not: neither its nor anybody's.
"""
import array as arrays
from collections.abc import Iterable, Mapping

cimport cython
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from seglog.errors import InvalidArgumentError

from .arrow_c cimport ArrowArray, ArrowSchema
from .field cimport Field, hold_field, release_field

_NAMES = ("key", "value", "timestamp", "headers")


cdef object refused(str name, object why):
    return InvalidArgumentError(f"the column {name}: {why}")


cdef bint is_aligned(const void* p, size_t size) noexcept:
    return <size_t>p % size == 0


# --- Arrow arrays ------------------------------------------------------------------------------------

cdef int check_array(str name, const ArrowSchema* schema, const ArrowArray* array, int64_t n_buffers,
                     int64_t n_children, int64_t first, int64_t rows) except -1:
    """Check that it has what its format says, and the rows [first, first + rows)."""
    if array.release == NULL or schema.release == NULL:
        raise refused(name, "an Arrow array that was released")
    if schema.dictionary != NULL:
        raise TypeError(f"the column {name} is dictionary-encoded: decode it first")
    if array.n_buffers < n_buffers or array.n_children != n_children or schema.n_children != n_children:
        raise refused(name, f"an Arrow array with {array.n_buffers} buffers and {array.n_children} children")
    if array.offset < 0 or array.length < 0 or first < 0 or rows > array.length - first:
        raise refused(name, f"{array.length} rows, but {first} + {rows} were announced")
    return 0


cdef str name_of(const ArrowSchema* schema):
    return "" if schema.name == NULL else schema.name.decode()


cdef const uint8_t* validity_of(const ArrowArray* array) noexcept:
    if array.null_count == 0:
        return NULL
    return <const uint8_t*>array.buffers[0]


cdef int take_offsets(str name, const ArrowArray* array, int64_t first, int64_t rows, bint is_wide,
                      const int32_t** narrow, const int64_t** wide) except -1:
    cdef const void* offsets = array.buffers[1]
    if rows == 0:
        return 0
    if offsets == NULL or not is_aligned(offsets, 8 if is_wide else 4):
        raise refused(name, "the offsets are missing or not aligned")
    if is_wide:
        wide[0] = <const int64_t*>offsets + array.offset + first
    else:
        narrow[0] = <const int32_t*>offsets + array.offset + first
    return 0


cdef int take_binary(str name, BinarySource* out, const ArrowSchema* schema, const ArrowArray* array,
                     int64_t first, int64_t rows) except -1:
    cdef bytes format_ = schema.format
    if format_ == b"n":
        return 0
    if format_ not in (b"z", b"u", b"Z", b"U"):
        raise TypeError(f"the column {name} must be binary or string, in Arrow z, Z, u or U, not {format_.decode()}")
    check_array(name, schema, array, 3, 0, first, rows)
    take_offsets(name, array, first, rows, format_ in (b"Z", b"U"), &out.narrow, &out.wide)
    out.validity = validity_of(array)
    out.validity_from = array.offset + first
    out.data = <const uint8_t*>array.buffers[2]
    if out.narrow != NULL:
        out.data_bytes = out.narrow[rows]
    elif out.wide != NULL:
        out.data_bytes = out.wide[rows]
    if out.data == NULL and out.data_bytes > 0:
        raise refused(name, f"{out.data_bytes} bytes of data are missing")
    return 0


cdef int take_header_lists(str name, HeaderSource* out, const ArrowSchema* schema, const ArrowArray* array,
                           int64_t first, int64_t rows) except -1:
    cdef const ArrowSchema* item
    cdef const ArrowArray* items
    cdef bytes format_ = schema.format
    if format_ == b"n":
        return 0
    if format_ not in (b"+l", b"+L", b"+m"):
        raise TypeError(f"the column {name} must be a list or map of struct<key, value>, not {format_.decode()}")
    check_array(name, schema, array, 2, 1, first, rows)
    take_offsets(name, array, first, rows, format_ == b"+L", &out.narrow, &out.wide)
    out.validity = validity_of(array)
    out.validity_from = array.offset + first
    item = schema.children[0]
    items = array.children[0]
    format_ = item.format
    if format_ != b"+s":
        raise TypeError(f"the column {name} must be a list or map of struct<key, value>, not of {format_.decode()}")
    check_array(name, item, items, 1, 2, 0, items.length)
    # Maps may use any field names; those of a list's struct must match, so that key and value are not mixed up.
    if schema.format[1] != b"m" and (name_of(item.children[0]), name_of(item.children[1])) != ("key", "value"):
        raise TypeError(f"the column {name} must be a list or map of struct<key, value>, in this order")
    if items.null_count > 0:
        raise refused(name, "a header that is null")
    out.rows = items.length
    take_binary("headers.key", &out.key, item.children[0], items.children[0], items.offset, out.rows)
    take_binary("headers.value", &out.value, item.children[1], items.children[1], items.offset, out.rows)
    return 0


# --- all of them -------------------------------------------------------------------------------------

@cython.final
cdef class ColumnSource:
    """Columns of equally many rows, checked as far as their shape goes, and what keeps their memory."""

    def __cinit__(self, columns):
        self._owners = [columns]
        self.key.width = self.value.width = self.headers.key.width = self.headers.value.width = -1
        if isinstance(columns, Mapping):
            self._take_mapping(columns)
        elif hasattr(columns, "__arrow_c_array__"):
            self._take_struct(columns.__arrow_c_array__())
        else:
            raise TypeError(
                f"columns must be a RecordBatch or a mapping of {', '.join(_NAMES)}, not {type(columns).__name__}")
        if not self._has_rows:
            raise InvalidArgumentError("the columns need a key or a value")

    @property
    def timestamp(self):
        """The one timestamp of all rows, or None where each has its own or none is given."""
        return self._timestamp

    def __len__(self):
        return self.rows

    cdef int64_t content_bytes(self) noexcept:
        """About how many bytes all keys and values have, and no more than a batch can."""
        return (min(max(self.key.data_bytes, self.key.content_bytes), INT32_MAX)
                + min(max(self.value.data_bytes, self.value.content_bytes), INT32_MAX))

    cdef int _take_mapping(self, object columns) except -1:
        for name, column in columns.items():
            if name == "offset":
                continue
            if name not in _NAMES:
                raise InvalidArgumentError(f"no column is called {name!r}: there are {', '.join(_NAMES)}, and offset")
            if column is not None:
                self._take_column(name, column)
        return 0

    cdef int _take_struct(self, object capsules) except -1:
        cdef const ArrowSchema* schema = schema_in(self, capsules)
        cdef const ArrowArray* array = array_in(capsules)
        cdef bytes format_ = schema.format
        cdef int64_t i
        cdef set seen = set()
        if format_ != b"+s":
            raise TypeError(f"an Arrow array of columns must be a struct, as a RecordBatch gives, not {format_.decode()}")
        check_array("of all", schema, array, 1, array.n_children, 0, array.length)
        if validity_of(array) != NULL:
            raise InvalidArgumentError("the struct of columns must not have null rows")
        for i in range(array.n_children):
            name = name_of(schema.children[i])
            if name in seen:
                raise InvalidArgumentError(f"there are two columns {name!r}")
            seen.add(name)
            if name in _NAMES:
                self._take_child(name, schema.children[i], array.children[i], array.offset, array.length)
            elif name != "offset":
                raise InvalidArgumentError(f"no column is called {name!r}: there are {', '.join(_NAMES)}, and offset")
        return 0

    cdef int _take_column(self, str name, object column) except -1:
        cdef const ArrowSchema* schema
        cdef const ArrowArray* array
        if hasattr(column, "__arrow_c_array__"):
            capsules = column.__arrow_c_array__()
            schema = schema_in(self, capsules)
            array = array_in(capsules)
            return self._take_child(name, schema, array, 0, array.length)
        if name == "timestamp":
            return self._take_timestamps(column)
        if name == "headers":
            return self._take_lists(column)
        if isinstance(column, list):
            return self._take_objects(name, &self.key if name == "key" else &self.value, column)
        if isinstance(column, tuple) and len(column) in (2, 3):
            return self._take_buffers(name, &self.key if name == "key" else &self.value, column)
        try:
            view = memoryview(column)
        except (TypeError, ValueError, BufferError):
            raise TypeError(
                f"the column {name} is a list, a 2-D array of bytes, (offsets, data[, validity]) or Arrow array, "
                f"not {type(column).__name__}") from None
        return self._take_matrix(name, &self.key if name == "key" else &self.value, view)

    cdef int _take_child(self, str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first,
                         int64_t rows) except -1:
        cdef bytes format_
        if name == "headers":
            take_header_lists(name, &self.headers, schema, array, first, rows)
        elif name == "timestamp":
            format_ = schema.format
            if format_ == b"n":
                self._timestamp = -1
                return self._agree(name, rows)
            if format_ != b"l" and not format_.startswith(b"tsm:"):
                raise TypeError(f"the column timestamp must be timestamp[ms] or int64, not {format_.decode()}")
            check_array(name, schema, array, 2, 0, first, rows)
            if rows > 0 and (array.buffers[1] == NULL or not is_aligned(array.buffers[1], 8)):
                raise refused(name, "the values are missing or not aligned")
            self.timestamps = <const int64_t*>array.buffers[1] + array.offset + first if rows > 0 else NULL
            self.timestamp_validity = validity_of(array)
            self.timestamp_validity_from = array.offset + first
        else:
            take_binary(name, &self.key if name == "key" else &self.value, schema, array, first, rows)
        return self._agree(name, rows)

    cdef int _take_buffers(self, str name, BinarySource* out, tuple column) except -1:
        cdef const Py_buffer* offsets = self._borrow(f"{name} offsets", column[0])
        cdef const Py_buffer* data = self._borrow(f"{name} data", column[1])
        cdef const Py_buffer* validity
        cdef int64_t rows = offsets.len // offsets.itemsize - 1
        check_ints(f"{name} offsets", offsets)
        if rows < 0:
            raise refused(name, "there must be one more offset than rows, but there is none")
        if offsets.itemsize == 4:
            out.narrow = <const int32_t*>offsets.buf
        else:
            out.wide = <const int64_t*>offsets.buf
        out.data = <const uint8_t*>data.buf
        out.data_bytes = data.len
        if len(column) == 3 and column[2] is not None:
            validity = self._borrow(f"{name} validity", column[2])
            if validity.itemsize != 1 or (validity.format != NULL and validity.format[0] == b"?"):
                raise refused(name, "a validity bitmap must be bytes, a bit for each row")
            if validity.len < (rows + 7) // 8:
                raise refused(name, f"a validity bitmap of {validity.len} bytes for {rows} rows")
            out.validity = <const uint8_t*>validity.buf
        return self._agree(name, rows)

    cdef int _take_matrix(self, str name, BinarySource* out, object view) except -1:
        """Rows of equally many bytes, in one run."""
        if view.ndim != 2 or view.itemsize != 1 or view.format not in ("B", "b", "c"):
            raise TypeError(
                f"the column {name} as an array must have two dimensions of bytes, a row for each record, not "
                f"{view.format!r} in {view.ndim}")
        if not view.c_contiguous:
            raise InvalidArgumentError(
                f"the column {name}: the array must be contiguous", hint="numpy.ascontiguousarray(array)")
        rows, width = view.shape
        if width > INT32_MAX:
            raise refused(name, f"rows of {width} bytes: formats allow {INT32_MAX}")
        self._owners.append(view)
        out.data = <const uint8_t*>PyMemoryView_GET_BUFFER(view).buf
        out.data_bytes = view.nbytes
        out.width = width
        return self._agree(name, rows)

    cdef int _take_objects(self, str name, BinarySource* out, object column) except -1:
        """Bytes-like objects, or None: pointers to their bytes, which are not copied."""
        cdef tuple objects = tuple(column)      # so that none can be removed meanwhile
        cdef Py_ssize_t rows = PyTuple_GET_SIZE(objects)
        cdef Py_ssize_t row
        cdef Field field
        cdef bytes table
        table = PyBytes_FromStringAndSize(NULL, rows * (sizeof(void*) + sizeof(int32_t)))
        self._owners += (table, objects)
        out.pointers = <const uint8_t**><char*>table
        out.sizes = <int32_t*>(out.pointers + rows)
        out.content_bytes = 0
        for row in range(rows):
            item = <object>PyTuple_GET_ITEM(objects, row)
            if item is not None and not PyBytes_CheckExact(item):
                item = self._lent(name, row, item)
            hold_field(&field, item, b"", row)
            out.pointers[row] = field.bytes
            out.sizes[row] = field.size
            out.content_bytes += max(field.size, 0)
            release_field(&field)       # `item` is bytes, or None, and stays in `objects` or `_owners`
        return self._agree(name, rows) if name in _NAMES else 0

    def _lent(self, str name, Py_ssize_t row, item):
        """The bytes of another kind of buffer, or of a key that is text: a copy, because a buffer may change."""
        try:
            made = item.encode() if name == "key" and isinstance(item, str) else bytes(memoryview(item).cast("B"))
        except UnicodeEncodeError as e:
            raise InvalidArgumentError(
                f"the key of row {row} is not valid text: {e.reason}", hint="pass its bytes") from None
        except TypeError:
            raise TypeError(f"the {name} of row {row} must be bytes-like or None, not {type(item).__name__}") from None
        self._owners.append(made)
        return made

    cdef int _take_lists(self, object column) except -1:
        """Headers of each row: pairs of str and bytes-like or None, or None."""
        starts = arrays.array("q", [0])
        keys = []
        values = []
        if not isinstance(column, list):
            raise TypeError(f"the column headers must be a list or an Arrow list array, not {type(column).__name__}")
        for row, headers in enumerate(column):
            if headers is not None and (isinstance(headers, (str, bytes, dict)) or not isinstance(headers, Iterable)):
                raise TypeError(
                    f"the headers of row {row} must be a sequence of (str, bytes-like or None), not "
                    f"{type(headers).__name__}")
            for pair in headers or ():
                if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
                    raise TypeError(
                        f"a header of row {row} must be a pair of str and bytes-like or None, not {pair!r:.60}")
                try:
                    keys.append(pair[0].encode("utf-8", "surrogateescape"))
                except UnicodeEncodeError as error:
                    raise InvalidArgumentError(
                        f"a header key of row {row} cannot be written as UTF-8: {error}") from None
                values.append(pair[1])
            starts.append(len(keys))
        self._take_objects("header key", &self.headers.key, keys)
        self._take_objects("header value", &self.headers.value, values)
        self.headers.wide = <const int64_t*>self._borrow("headers", starts).buf
        self.headers.rows = len(keys)
        return self._agree("headers", len(column))

    cdef int _take_timestamps(self, object column) except -1:
        cdef const Py_buffer* values
        if isinstance(column, int) and not isinstance(column, bool):
            self._timestamp = column
            return 0
        values = self._borrow("timestamp", column)
        check_ints("timestamp", values)
        if values.itemsize != 8:
            raise TypeError(f"the column timestamp must be int64, not of {values.itemsize} bytes")
        self.timestamps = <const int64_t*>values.buf
        return self._agree("timestamp", values.len // 8)

    cdef int _agree(self, str name, int64_t rows) except -1:
        if self._has_rows and rows != self.rows:
            raise refused(name, f"{rows} rows, but other columns have {self.rows}")
        self.rows = rows
        self._has_rows = True
        return 0

    cdef const Py_buffer* _borrow(self, str what, object data) except NULL:
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(f"the column {what} must be a buffer, not {type(data).__name__}") from None
        except (ValueError, BufferError) as error:      # numpy's datetime64; what cannot be lent now
            raise TypeError(f"the column {what} cannot be read as a buffer: {error}") from None
        if view.ndim != 1 or not view.c_contiguous:
            raise refused(what, "it must be contiguous")
        self._owners.append(view)
        return PyMemoryView_GET_BUFFER(view)


cdef int check_ints(str what, const Py_buffer* ints) except -1:
    """Signed, of this machine's order, 4 or 8 bytes each, and aligned."""
    cdef bytes format_ = b"B" if ints.format == NULL else <bytes>ints.format
    if format_.lstrip(b"@=<") not in (b"i", b"l", b"q") or ints.itemsize not in (4, 8):
        raise TypeError(f"the column {what} must be a buffer of int32 or int64, not of format {format_.decode()}")
    if ints.len and not is_aligned(ints.buf, ints.itemsize):
        raise refused(what, "it must be aligned")
    return 0


cdef const ArrowSchema* schema_in(ColumnSource source, object capsules) except NULL:
    source._owners.append(capsules)
    return <const ArrowSchema*>PyCapsule_GetPointer(capsules[0], "arrow_schema")


cdef const ArrowArray* array_in(object capsules) except NULL:
    return <const ArrowArray*>PyCapsule_GetPointer(capsules[1], "arrow_array")
