"""The stream that proof digests are computed over."""
import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.arena import ArenaPool
from seglog._kernels.canonical import canonical_bytes, update_digest
from seglog.errors import InvalidArgumentError
from support.columns import columns_of, rows_of
from support.plain_format import batch_v2, message, record_v2

fields = st.none() | st.binary(max_size=70)
headers = st.lists(st.tuples(st.text(max_size=3).map(str.encode), fields), max_size=4)
records = st.lists(st.tuples(st.integers(-(2**40), 2**40), fields, fields, headers), max_size=20)


def plain_bytes(field):
    return struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field


def plain_stream(rows):
    """The definition, in the most obvious Python."""
    out = b""
    for offset, timestamp, key, value, headers in rows:
        out += struct.pack(">qq", offset, timestamp) + plain_bytes(key) + plain_bytes(value)
        out += struct.pack(">i", len(headers))
        for name, field in headers:
            out += plain_bytes(name.encode("utf-8", "surrogateescape")) + plain_bytes(field)
    return out


def batch_of(records):
    body = b"".join(record_v2(i, *record) for i, record in enumerate(records))
    return batch_v2(body, count=len(records), base_offset=1 << 33)


def test_one_record_in_hex():
    stream = canonical_bytes(columns_of(batch_v2(record_v2(0, 2, b"k", None, [(b"h", b"v")]), base_offset=258)))
    assert bytes(stream).hex(" ") == (
        "00 00 00 00 00 00 01 02 00 00 00 00 00 00 00 02 "      # offset, timestamp
        "00 00 00 01 6b ff ff ff ff "                           # key, value
        "00 00 00 01 00 00 00 01 68 00 00 00 01 76"             # headers
    )


@given(records)
def test_the_stream_is_what_its_definition_says(records):
    columns = columns_of(batch_of(records))
    assert canonical_bytes(columns) == plain_stream(rows_of(columns))


@given(records, st.booleans(), st.booleans())
def test_what_an_older_format_cannot_hold_may_be_left_out(records, with_time, with_headers):
    columns = columns_of(batch_of(records))
    rows = [
        (offset, timestamp if with_time else -1, key, value, headers if with_headers else ())
        for offset, timestamp, key, value, headers in rows_of(columns)
    ]
    assert canonical_bytes(columns, with_time=with_time, with_headers=with_headers) == plain_stream(rows)
    hasher = hashlib.sha256()
    update_digest(columns, hasher, with_time=with_time, with_headers=with_headers)
    assert hasher.digest() == hashlib.sha256(plain_stream(rows)).digest()


@given(records, st.data())
def test_any_rows_make_their_part_of_the_stream(records, data):
    columns = columns_of(batch_of(records))
    first = data.draw(st.integers(0, len(records)))
    last = data.draw(st.integers(first, len(records)))
    assert canonical_bytes(columns, first, last) == plain_stream(rows_of(columns)[first:last])


def test_the_format_makes_no_difference():
    old = columns_of(message(5, b"k", b"v", timestamp=9) + message(6, None, b"", timestamp=-1))
    new = columns_of(batch_v2(record_v2(0, 9, b"k", b"v") + record_v2(1, -1, None, b""), count=2, base_offset=5))
    assert canonical_bytes(old) == canonical_bytes(new)


@pytest.mark.parametrize("value_size", [0, 100, 3000, 300_000, 3_000_000])
def test_the_digest_is_sha256_of_the_stream_however_it_is_sliced(value_size):
    records = [(i, b"%d" % i, bytes([i]) * value_size, [(b"h", None)] * (i % 3)) for i in range(20)]
    columns = columns_of(batch_of(records))
    hasher = hashlib.sha256()
    update_digest(columns, hasher)
    assert hasher.hexdigest() == hashlib.sha256(canonical_bytes(columns)).hexdigest()


def test_slices_are_about_a_quarter_of_a_mebibyte():
    columns = columns_of(batch_of([(0, None, bytes(1000), [])] * 1000))
    sizes = []

    class Hasher:
        def update(self, data):
            sizes.append(len(data))

    update_digest(columns, Hasher())
    assert sum(sizes) == len(canonical_bytes(columns))
    assert all(260_000 < size <= 262_144 for size in sizes[:-1])


def test_a_slice_that_the_hasher_keeps_stays_as_it_was():
    columns = columns_of(batch_of([(0, None, bytes([i]) * 200_000, []) for i in range(8)]))
    kept = []

    class Hasher:
        def update(self, data):
            kept.append(data)

    update_digest(columns, Hasher())
    assert b"".join(kept) == canonical_bytes(columns)


def test_the_stream_goes_back_to_the_pool_and_needs_its_columns_no_more():
    pool = ArenaPool()
    stream = canonical_bytes(columns_of(batch_of([(0, b"k", b"v", [])]), pool))
    assert 0 < pool.used_bytes < pool.arena_bytes
    assert bytes(stream)[-4 - 5:] == b"\0\0\0\1v\0\0\0\0"
    del stream
    assert pool.used_bytes == 0


def test_no_records_are_an_empty_stream():
    assert canonical_bytes(columns_of(b"")) == b""


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (1, 0), (0, 2)])
def test_rows_that_are_not_there_are_refused(first, last):
    with pytest.raises(InvalidArgumentError, match="rows"):
        canonical_bytes(columns_of(batch_v2(record_v2())), first, last)
