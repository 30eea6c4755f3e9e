"""Records as `seglog dump` prints them: rows for people, and rows by a template. See docs/commands/dump.md.

Keys, values and headers of printable ASCII, which most are, are formatted here; for all others there is one place that
knows the rules, in Python, and it is called.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from .output cimport Output, ensure_room
from .record_batch cimport Record, parse_record_header
from .span cimport Span, span_varint
from .status cimport BAD_HEADER, OK, raise_status
from .window cimport check_whole

cdef enum:
    # Kinds of bytes, as bits.
    ESCAPED = 1                 # with a backslash
    NOT_PRINTABLE = 2           # or not ASCII: left to Python
    NOT_IN_NAMES = 4            # a header's name that has it is in quotes
    KEY_WIDTH_FIRST = 6         # of the column of the keys,
    KEY_COLUMN_MAX = 24         # which grows no further than this
    MOMENT_SIZE = 24            # 2023-11-14 22:13:20.001Z
    SECOND_SIZE = 19            # without the fraction
    INT64_DIGITS = 20           # with the sign
    HEADERS_SIZE_MIN = 2        # a header count of 0 is one byte
    LITERAL = 0                 # kinds of a template's parts, besides the letters
    CALLED = 1
    PIECE_SIZE = 1 << 20        # of a batch's rows, what is written at once

cdef str DIRECTIVES = "oTkKsSRh"

cdef int64_t YEAR_10000 = 253402300800      # in seconds: the calendar ends there

cdef uint8_t[256] KINDS
cdef uint8_t[256] ESCAPES
memset(KINDS, NOT_PRINTABLE, 256)
memset(&KINDS[0x20], 0, 0x7F - 0x20)
for _sign, _letter in zip('\\"\n\r\t', '\\"nrt'):
    KINDS[<int>ord(_sign)] = ESCAPED
    ESCAPES[<int>ord(_sign)] = <uint8_t>ord(_letter)
for _sign in ' "=,{}\n\r\t':
    KINDS[<int>ord(_sign)] |= NOT_IN_NAMES


# --- pieces ----------------------------------------------------------------------------------

cdef inline int have_room(Output* out, int64_t more) except -1:
    if ensure_room(out, more) != OK:
        raise MemoryError
    return 0


cdef inline int put_byte(Output* out, uint8_t byte) except -1:
    have_room(out, 1)
    out.first[out.size] = byte
    out.size += 1
    return 0


cdef inline int put_bytes(Output* out, const void* data, int64_t size) except -1:
    have_room(out, size)
    if size > 0:
        memcpy(out.first + out.size, data, size)
        out.size += size
    return 0


cdef inline int put_spaces(Output* out, int64_t count) except -1:
    if count > 0:
        have_room(out, count)
        memset(out.first + out.size, c" ", count)
        out.size += count
    return 0


# Any text: a lone surrogate, which JSON can hold, stays one until the stream encodes it.
cdef int put_text(Output* out, str text) except -1:
    cdef Py_ssize_t size
    cdef const char* utf8
    if text is None:
        raise TypeError("a text, not None")
    if text.isascii():
        utf8 = PyUnicode_AsUTF8AndSize(text, &size)
        return put_bytes(out, utf8, size)
    data = text.encode("utf-8", "surrogatepass")
    return put_bytes(out, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


# In decimal, right-aligned in a column.
cdef inline int put_number(Output* out, int64_t number, int64_t width) except -1:
    cdef uint8_t[INT64_DIGITS] digits
    cdef uint64_t left = <uint64_t>number
    cdef int at = INT64_DIGITS
    if number < 0:
        left = 0 - left
    while True:
        at -= 1
        digits[at] = <uint8_t>(c"0" + left % 10)
        left //= 10
        if left == 0:
            break
    if number < 0:
        at -= 1
        digits[at] = c"-"
    put_spaces(out, width - (INT64_DIGITS - at))
    return put_bytes(out, &digits[at], INT64_DIGITS - at)


cdef inline void put_digits(uint8_t* to, uint32_t number, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        to[count - 1 - i] = <uint8_t>(c"0" + number % 10)
        number //= 10


# The second that was written last: consecutive records often fall in the same.
cdef struct Second:
    int64_t second
    uint8_t[SECOND_SIZE] text


# Days since 1970 to year, month and day: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms". From 1970 on.
cdef void write_second(Second* out, int64_t second) noexcept nogil:
    cdef uint32_t days = <uint32_t>(second // 86400) + 719468       # since 0000-03-01
    cdef uint32_t of_day = <uint32_t>(second % 86400)
    cdef uint32_t era = days // 146097
    cdef uint32_t of_era = days - era * 146097
    cdef uint32_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef uint32_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef uint32_t month = (5 * of_year + 2) // 153                  # from March
    cdef uint32_t day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year += era * 400 + (month <= 2)
    memcpy(out.text, b"0000-00-00 00:00:00", SECOND_SIZE)
    put_digits(out.text, year, 4)
    put_digits(out.text + 5, month, 2)
    put_digits(out.text + 8, day, 2)
    put_digits(out.text + 11, of_day // 3600, 2)
    put_digits(out.text + 14, of_day // 60 % 60, 2)
    put_digits(out.text + 17, of_day % 60, 2)
    out.second = second


# As tools.report.moment shows it, left-aligned in its column.
cdef inline int put_moment(Output* out, int64_t timestamp_ms, Second* last) except -1:
    cdef int64_t start = out.size
    cdef int64_t second = timestamp_ms // 1000
    cdef uint8_t* to
    if timestamp_ms == -1:
        put_byte(out, c"-")
    elif timestamp_ms < 0:
        put_number(out, timestamp_ms, 0)
    elif second >= YEAR_10000:
        put_number(out, timestamp_ms, 0)
        put_bytes(out, b" ms", 3)
    else:
        if last.second != second:
            write_second(last, second)
        have_room(out, MOMENT_SIZE)
        to = out.first + out.size
        memcpy(to, last.text, SECOND_SIZE)
        to[SECOND_SIZE] = c"."
        put_digits(to + SECOND_SIZE + 1, <uint32_t>(timestamp_ms % 1000), 3)
        to[MOMENT_SIZE - 1] = c"Z"
        out.size += MOMENT_SIZE
    return put_spaces(out, MOMENT_SIZE - (out.size - start))


# As tools.records.shown shows it. 1, or 0 without a change if that is left to Python.
cdef inline int put_shown(Output* out, const uint8_t* data, int64_t size) except -1:
    cdef uint8_t kinds = 0
    cdef uint8_t* to
    cdef int64_t i
    if size < 0:
        put_bytes(out, b"null", 4)
        return 1
    for i in range(size):
        kinds |= KINDS[data[i]]
    if kinds & NOT_PRINTABLE:
        return 0
    have_room(out, 2 * size + 2)
    to = out.first + out.size
    to[0] = c'"'
    to += 1
    if kinds & ESCAPED:
        for i in range(size):
            if KINDS[data[i]] & ESCAPED:
                to[0] = c"\\"
                to[1] = ESCAPES[data[i]]
                to += 2
            else:
                to[0] = data[i]
                to += 1
    else:
        memcpy(to, data, size)
        to += size
    to[0] = c'"'
    out.size = to + 1 - out.first
    return 1


# A cdef function takes None for any class.
cdef inline int check_record(Record record) except -1:
    if record is None:
        raise TypeError("a record, not None")
    if record.window is None:
        raise TypeError("made by __new__, not by a scan: it has no bytes")
    return 0


# The count of a record's headers, and in `s` what follows it: 0 if it has none.
cdef inline int32_t headers_of(Record record, Span* s) noexcept:
    cdef int32_t count = 0
    if record.tail_size < HEADERS_SIZE_MIN:
        return 0
    s.p = record.value_ + max(record.value_size, 0)
    s.end = s.p + record.tail_size
    span_varint(s, &count)
    return count


cdef int next_header(
    Record record, Span* s, const uint8_t** key, int32_t* key_size, const uint8_t** value, int32_t* value_size
) except -1:
    if parse_record_header(s, key, key_size, value, value_size) != OK:
        # They were checked; only a writable buffer can change since.
        raise_status(BAD_HEADER, -1, record.offset_, record.window.name)
    return 0


# As tools.records.headers_shown shows them, two spaces before. 1, or 0 without a change if that is left to Python.
cdef int put_headers(Output* out, Record record, Span s, int32_t count) except -1:
    cdef int64_t start = out.size
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int32_t key_size = 0
    cdef int32_t value_size = 0
    cdef uint8_t kinds
    cdef int32_t n
    cdef int32_t i
    put_bytes(out, b"  {", 3)
    for n in range(count):
        next_header(record, &s, &key, &key_size, &value, &value_size)
        kinds = 0
        for i in range(key_size):
            kinds |= KINDS[key[i]]
        if n:
            put_bytes(out, b", ", 2)
        if key_size == 0 or kinds & (NOT_PRINTABLE | NOT_IN_NAMES):
            out.size = start
            return 0
        put_bytes(out, key, key_size)
        put_byte(out, c"=")
        if not put_shown(out, value, value_size):
            out.size = start
            return 0
    put_byte(out, c"}")
    return 1


# --- rows ------------------------------------------------------------------------------------

cdef class Rows:
    """Writes records as rows, whatever a row is: the classes below say it."""

    def write(self, write, records, *, bint is_control=False):
        """Give `write` the rows of (index, Record) pairs, in pieces of whole rows; before an error, those before it.

        `is_control`: the records are markers of transactions.
        """
        cdef Output out
        cdef int64_t done = 0
        memset(&out, 0, sizeof(out))
        try:
            for _, record in records:
                if done >= PIECE_SIZE:
                    piece = self.piece(<const char*>out.first, done)
                    out.size = done = 0
                    write(piece)
                self.put_row(&out, record, is_control)
                done = out.size
        finally:
            try:
                if done:
                    write(self.piece(<const char*>out.first, done))
            finally:
                free(out.first)

    cdef int put_row(self, Output* out, Record record, bint is_control) except -1:
        raise NotImplementedError

    cdef object piece(self, const char* first, int64_t size):
        raise NotImplementedError


@cython.final
cdef class TextRows(Rows):
    """Writes records as rows for people: offset, time, key, value, headers.

    `shown(record, is_control)` gives the texts of a key and of a value that are not printable ASCII or null, of values
    above `value_bytes_max`, and if `is_decoded` of all; `headers_shown` those of headers that are not printable ASCII.
    The column of the keys widens as longer ones come.
    """
    cdef object shown
    cdef object headers_shown
    cdef int64_t offset_width
    cdef int64_t key_width
    cdef int64_t value_bytes_max
    cdef bint is_decoded
    cdef Second last

    def __cinit__(self, shown, headers_shown, *, int64_t offset_width, int64_t value_bytes_max, bint is_decoded):
        self.shown = shown
        self.headers_shown = headers_shown
        self.offset_width = offset_width
        self.key_width = KEY_WIDTH_FIRST
        self.value_bytes_max = value_bytes_max
        self.is_decoded = is_decoded
        self.last.second = -1

    cdef object piece(self, const char* first, int64_t size):
        return PyUnicode_DecodeUTF8(first, size, b"surrogatepass")

    cdef int put_row(self, Output* out, Record record, bint is_control) except -1:
        cdef int64_t key_start
        cdef int64_t key_width = -1         # in characters; -1: left to Python
        cdef Span headers
        cdef int32_t header_count
        check_record(record)
        put_number(out, record.offset_, self.offset_width)
        put_spaces(out, 2)
        put_moment(out, record.timestamp_, &self.last)
        put_spaces(out, 2)
        key_start = out.size
        if not is_control and not self.is_decoded and record.value_size <= self.value_bytes_max:
            if put_shown(out, record.key_, record.key_size):
                key_width = out.size - key_start
                self.pad_key(out, key_width)
                if not put_shown(out, record.value_, record.value_size):
                    key_width = -1
        if key_width < 0:
            out.size = key_start
            key, value = self.shown(record, is_control)
            put_text(out, key)
            self.pad_key(out, len(key))
            put_text(out, value)
        header_count = headers_of(record, &headers)
        if header_count > 0 and not put_headers(out, record, headers, header_count):
            put_spaces(out, 2)
            put_text(out, self.headers_shown(record.headers))
        put_byte(out, c"\n")
        check_whole(record.window)
        return 0

    cdef int pad_key(self, Output* out, int64_t width) except -1:
        self.key_width = max(self.key_width, min(width, KEY_COLUMN_MAX))
        return put_spaces(out, max(self.key_width - width, 0) + 2)


@cython.final
cdef class TemplateText(Rows):
    """Writes records by a template, as bytes.

    Its parts: bytes as they are; the letters o, T, k, K, s, S, R, h of `seglog dump --format`, all bytes as stored; and
    functions that give the bytes for a record.
    """
    cdef tuple parts
    cdef bytes letters                  # of the same parts: a letter, LITERAL or CALLED

    def __cinit__(self, parts):
        letters = bytearray()
        for part in parts:
            if isinstance(part, bytes):
                letters.append(LITERAL)
            elif isinstance(part, str):
                if len(part) != 1 or part not in DIRECTIVES:
                    raise ValueError(f"unknown directive {part!r}")
                letters.append(ord(part))
            else:
                letters.append(CALLED)
        self.parts = tuple(parts)
        self.letters = bytes(letters)

    cdef object piece(self, const char* first, int64_t size):
        return PyBytes_FromStringAndSize(first, size)

    cdef int put_row(self, Output* out, Record record, bint is_control) except -1:
        cdef uint8_t[4] size
        cdef const uint8_t* letters = <const uint8_t*>PyBytes_AS_STRING(self.letters)
        cdef uint8_t letter
        cdef Py_ssize_t n
        check_record(record)
        for n in range(PyBytes_GET_SIZE(self.letters)):
            letter = letters[n]
            if letter == LITERAL:
                put_bytes(out, PyBytes_AS_STRING(self.parts[n]), PyBytes_GET_SIZE(self.parts[n]))
            elif letter == c"o":
                put_number(out, record.offset_, 0)
            elif letter == c"T":
                put_number(out, record.timestamp_, 0)
            elif letter == c"k":
                put_bytes(out, record.key_, record.key_size)
            elif letter == c"s":
                put_bytes(out, record.value_, record.value_size)
            elif letter == c"K":
                put_number(out, record.key_size, 0)
            elif letter == c"S":
                put_number(out, record.value_size, 0)
            elif letter == c"R":
                store_size(size, record.value_size)
                put_bytes(out, size, 4)
            elif letter == c"h":
                put_plain_headers(out, record)
            else:
                made = self.parts[n](record)
                if not isinstance(made, bytes):
                    raise TypeError(f"bytes, not {made!r}")
                put_bytes(out, PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))
        check_whole(record.window)
        return 0


cdef inline void store_size(uint8_t* to, int32_t size) noexcept:
    cdef uint32_t bits = <uint32_t>size
    to[0] = <uint8_t>(bits >> 24)
    to[1] = <uint8_t>(bits >> 16)
    to[2] = <uint8_t>(bits >> 8)
    to[3] = <uint8_t>bits


# name=value,name=value
cdef int put_plain_headers(Output* out, Record record) except -1:
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int32_t key_size = 0
    cdef int32_t value_size = 0
    cdef Span s
    cdef int32_t n
    for n in range(headers_of(record, &s)):
        next_header(record, &s, &key, &key_size, &value, &value_size)
        if n:
            put_byte(out, c",")
        put_bytes(out, key, key_size)
        put_byte(out, c"=")
        if value_size < 0:
            put_bytes(out, b"NULL", 4)
        else:
            put_bytes(out, value, value_size)
    return 0
