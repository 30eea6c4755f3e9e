"""Columns against the records that iteration gives, and against plain Python, on bytes of every making."""
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.arena import ArenaPool
from seglog._kernels.columns import chunks
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from support import plain_format as plain
from support.columns import columns_of, rows_of

fields = st.none() | st.binary(max_size=40) | st.integers(0, 600).map(bytes)
names = st.text(max_size=3).map(str.encode) | st.binary(max_size=3)
headers = st.lists(st.tuples(names, fields), max_size=3)
small = st.integers(-100, 100)
any_long = small | st.integers(-(2**63), 2**63 - 1)
any_int = small | st.integers(-(2**31), 2**31 - 1)
records_v2 = st.lists(st.builds(plain.record_v2, any_int, any_long, fields, fields, headers), max_size=12)


def opened(codec, magic, payload):
    if codec != plain.GZIP:
        raise OSError("a changed byte named another codec")
    return gzip.decompress(payload)


@st.composite
def batches_v2(draw):
    records = draw(records_v2)
    attributes = draw(st.sampled_from([0, plain.LOG_APPEND_TIME, plain.CONTROL]))
    body = b"".join(records)
    if draw(st.booleans()):
        attributes |= plain.GZIP
        body = gzip.compress(body, 1)
    return plain.batch_v2(
        body, count=len(records), attributes=attributes, base_offset=draw(any_long), base_timestamp=draw(any_long),
        max_timestamp=draw(any_long),
    )


@st.composite
def messages(draw):
    magic = draw(st.sampled_from([0, 1]))
    message = st.builds(plain.message, any_long, fields, fields, magic=st.just(magic), timestamp=any_long)
    if draw(st.booleans()):
        return draw(message)
    inner = b"".join(draw(st.lists(message, min_size=1, max_size=6)))
    attributes = plain.GZIP | draw(st.sampled_from([0, plain.LOG_APPEND_TIME]))
    return plain.message(
        draw(any_long), None, gzip.compress(inner, 1), magic=magic, timestamp=draw(any_long), attributes=attributes
    )


logs = st.lists(batches_v2() | messages(), max_size=6).map(b"".join)


def plain_rows(data):
    """Rows up to the first batch that plain Python refuses, and whether there is one."""
    rows = []
    last_offset = None
    for batch in plain.split_batches(data):
        try:
            decoded = plain.decode_batch(batch, opened)
        except plain.Malformed:
            return rows, True
        # (A bare message, and a v2 batch, are judged by the scan.)
        if last_offset is not None and batch[16] < 2 and batch[17] & 7 and decoded[0].offset <= last_offset:
            return rows, True
        rows += decoded
        last_offset = plain.last_offset(batch)
    return rows, False


def column_rows(data, chunk_bytes=0, **options):
    rows = []
    it = chunks(scan(Window(data), decompress=opened), ArenaPool(), chunk_bytes, **options)
    try:
        for columns in it:
            rows += rows_of(columns)
    except SeglogError:
        return rows, True
    return rows, False


def as_tuples(rows):
    return [tuple(row) for row in rows]


@given(logs, st.sampled_from([0, 1, 100, 5000]))
def test_columns_are_what_plain_python_decodes(data, chunk_bytes):
    rows, is_bad = plain_rows(data)
    assert column_rows(data, chunk_bytes) == (as_tuples(rows), is_bad)


@given(logs.filter(bool), st.data())
def test_changed_bytes_are_decoded_or_refused_by_both(data, draw):
    data = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        rows, is_bad = plain_rows(bytes(data))
    except (OSError, EOFError, gzip.zlib.error):
        return      # what the codec says to a bad stream is no matter of columns
    assert column_rows(bytes(data), check_crc=False) == (as_tuples(rows), is_bad)


def test_a_wrapper_has_no_offset_below_0_whatever_stands_before_it():
    before = plain.batch_v2(count=0, base_offset=-1 << 60)
    inside = plain.message(-1, b"k", b"v")
    data = before + plain.message(0, None, gzip.compress(inside), attributes=1)
    assert column_rows(data) == plain_rows(data) == ([], True)
    with pytest.raises(SeglogError):
        list(scan(Window(data), decompress=opened).records())


@pytest.mark.parametrize("room", range(70))
def test_the_end_of_the_bytes_may_be_near_or_far(room):
    # The fast path wants 64 bytes behind a record: each distance takes another mix of the two paths.
    records = [plain.record_v2(i, i, b"k" * (i % 3), b"v" * i, [(b"h", b"x")] * (i % 2)) for i in range(20)]
    whole = plain.batch_v2(b"".join(records), count=20)
    last = plain.batch_v2(plain.record_v2(value=bytes(room)), base_offset=20)
    message = plain.message(21, b"k", b"v" * room)
    columns = columns_of(whole + last + message)
    rows = plain.decode_batch(whole) + plain.decode_batch(last) + plain.decode_batch(message)
    assert rows_of(columns) == as_tuples(rows)
