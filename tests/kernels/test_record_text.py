"""Rows of `seglog dump` by the kernel, against the obvious Python, byte by byte."""
import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.record_batch import Record
from seglog._kernels.record_text import TemplateText, TextRows
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from seglog.format.compression import decompressor
from seglog.tools.records import headers_shown, value_shown
from seglog.tools.report import moment
from support import plain_format as plain
from support.golden import golden_cases, unpack

DIRECTIVES = "oTkKsSRh"
LIMIT_BYTES = 1 << 30

texts = st.text("ab\"\\ =,{}\n\r\t\x00\x7fä語", max_size=30).map(str.encode)
fields = st.none() | texts | st.binary(max_size=40) | st.integers(0, 600).map(lambda n: b"k" * n)
names = st.text("name \"=,{}\nä", max_size=4).map(str.encode) | st.binary(max_size=3)
headers = st.lists(st.tuples(names, fields), max_size=3)
# At the ends of the calendar's days, months, years and centuries, too; 253402300800000 is the year 10000.
times = st.sampled_from([
    -2**63, -2, -1, 0, 86_399_999, 86_400_000, 951_782_399_999, 951_868_800_000, 4_107_542_399_999, 4_107_542_400_000,
    253_402_300_799_999, 253_402_300_800_000, 2**63 - 1,
]) | st.integers(0, 253_402_300_799_999) | st.integers(-2**63, 2**63 - 1)


class PlainRows:
    """TextRows, as one would write it."""

    def __init__(self, shown, offset_width):
        self.shown = shown
        self.offset_width = offset_width
        self.key_width = 6

    def text(self, records, *, is_control):
        return "".join(self._row(record, is_control) for record in records)

    def _row(self, record, is_control):
        key, value = self.shown(record, is_control)
        self.key_width = max(self.key_width, min(len(key), 24))
        headers = f"  {headers_shown(record.headers)}" if record.headers else ""
        return (
            f"{record.offset:>{self.offset_width}}  {moment(record.timestamp):<24}  {key:<{self.key_width}}  "
            f"{value}{headers}\n"
        )


def plain_template(parts, record):
    made = b""
    for part in parts:
        if isinstance(part, bytes):
            made += part
        elif callable(part):
            made += part(record)
        else:
            made += plain_directive(part, record)
    return made


def plain_directive(letter, record):
    key_size = -1 if record.key is None else len(record.key)
    value_size = -1 if record.value is None else len(record.value)
    return {
        "o": b"%d" % record.offset, "T": b"%d" % record.timestamp, "k": record.key or b"", "s": record.value or b"",
        "K": b"%d" % key_size, "S": b"%d" % value_size, "R": struct.pack(">i", value_size),
        "h": b",".join(
            name.encode(errors="surrogateescape") + b"=" + (b"NULL" if field is None else field)
            for name, field in record.headers
        ),
    }[letter]


def shown_of(value_bytes_max):
    def shown(record, is_control):
        if is_control:
            return "", f"a marker of {len(record.value or b'')} bytes"
        return value_shown(record.key, None), value_shown(record.value, value_bytes_max)
    return shown


@st.composite
def batches(draw):
    if draw(st.booleans()):
        message = st.builds(
            plain.message, st.integers(0, 2**63 - 1), fields, fields, magic=st.sampled_from([0, 1]), timestamp=times)
        return draw(message)
    made = [
        plain.record_v2(n, draw(st.integers(-3, 3000)), draw(fields), draw(fields), draw(headers))
        for n in range(draw(st.integers(0, 8)))
    ]
    attributes = draw(st.sampled_from([0, 0, plain.LOG_APPEND_TIME, plain.CONTROL]))
    body = b"".join(made)
    if draw(st.booleans()):
        attributes, body = attributes | plain.GZIP, gzip.compress(body, 1)
    return plain.batch_v2(
        body, count=len(made), attributes=attributes, base_offset=draw(st.integers(0, 2**62)),
        base_timestamp=draw(times), max_timestamp=draw(times),
    )


def compared(data, offset_width, value_bytes_max):
    """How many records were compared; up to a batch that cannot be opened."""
    shown = shown_of(value_bytes_max)
    rows = TextRows(
        shown, headers_shown, offset_width=offset_width, value_bytes_max=value_bytes_max, is_decoded=False)
    parts = [part for letter in DIRECTIVES for part in (letter, b"|")] + [lambda record: repr(record.key).encode()]
    plain_rows, template, count = PlainRows(shown, offset_width), TemplateText(parts), 0
    try:
        for batch in scan(Window(data), decompress=decompressor(LIMIT_BYTES)):
            records = list(batch)
            count += len(records)
            made = []
            rows.write(made.append, enumerate(records), is_control=batch.is_control)
            assert "".join(made) == plain_rows.text(records, is_control=batch.is_control)
            made = []
            template.write(made.append, enumerate(records))
            assert b"".join(made) == b"".join(plain_template(parts, record) for record in records)
    except SeglogError:
        pass
    return count


@given(st.lists(batches(), max_size=4).map(b"".join), st.integers(0, 20), st.sampled_from([0, 1, 20, 2**63 - 1]))
def test_rows_are_those_of_plain_python(data, offset_width, value_bytes_max):
    compared(data, offset_width, value_bytes_max)


def test_golden_records_have_the_rows_of_plain_python():
    count = 0
    for case in golden_cases():
        for log in sorted(case.glob("*/*.log")):
            count += compared(log.read_bytes(), 7, 4096)
    for log in sorted(unpack("kraft").rglob("*.log")):
        count += compared(log.read_bytes(), 3, 2**63 - 1)
    assert count > 10_000


def records_of(*fields):
    body = b"".join(plain.record_v2(n, n, b"%d" % n, field) for n, field in enumerate(fields))
    batch, = scan(Window(plain.batch_v2(body, count=len(fields))))
    return list(batch)


def text_rows(shown, **options):
    return TextRows(
        shown, headers_shown, **({"offset_width": 1, "value_bytes_max": 2**63 - 1, "is_decoded": False} | options))


def failing(record, is_control):
    raise ValueError(f"no text for {record.offset}")


def write_rows(write, records):
    text_rows(failing).write(write, enumerate(records), is_control=False)


def write_template(write, records):
    def part(record):
        return record.value if record.value.isascii() else failing(record, is_control=False)

    TemplateText(["o", b" ", part, b"\n"]).write(write, enumerate(records))


both = pytest.mark.parametrize("write", [write_rows, write_template])


@both
def test_rows_before_one_that_fails_are_written(write):
    made = []
    with pytest.raises(ValueError, match="no text for 2"):
        write(made.append, records_of(b"a", b"b", b"\xff", b"c"))
    assert [[int(row.split()[0]) for row in piece.splitlines()] for piece in made] == [[0, 1]]


@both
def test_a_large_batch_is_written_in_pieces_of_whole_rows(write):
    """A batch can open to gigabytes: its text is not gathered."""
    made = []
    write(made.append, records_of(*[b"v" * 400_000] * 10))
    assert [[int(row.split()[0]) for row in piece.splitlines()] for piece in made] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


@both
def test_a_stream_that_fails_is_written_to_once(write):
    calls = []

    def broken(piece):
        calls.append(len(piece))
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        write(broken, records_of(*[b"v" * 400_000] * 10))
    assert len(calls) == 1


def test_what_is_no_record_or_has_no_bytes_is_refused():
    record, = records_of(b"a")
    for wrong in (None, "text", object()):
        with pytest.raises(TypeError):
            text_rows(failing).write([].append, [(0, wrong)], is_control=False)
        with pytest.raises(TypeError):
            TemplateText(["o"]).write([].append, [(0, wrong)])
    with pytest.raises(TypeError, match="has no bytes"):
        text_rows(failing).write([].append, [(0, Record.__new__(Record))], is_control=False)
    with pytest.raises(TypeError, match="has no bytes"):
        TemplateText(["o"]).write([].append, [(0, Record.__new__(Record))])
    for wrong in ((b"key", "value"), ("key", 1), (None, "value"), ("key", None), None):
        with pytest.raises(TypeError):
            text_rows(lambda *_, wrong=wrong: wrong, is_decoded=True).write([].append, [(0, record)], is_control=False)
    for wrong in (None, "text", bytearray(b"text")):
        with pytest.raises(TypeError):
            TemplateText([lambda _, wrong=wrong: wrong]).write([].append, [(0, record)])
    with pytest.raises(ValueError, match="unknown directive 'x'"):
        TemplateText(["x"])
    with pytest.raises(ValueError, match="unknown directive 'oT'"):
        TemplateText(["oT"])
