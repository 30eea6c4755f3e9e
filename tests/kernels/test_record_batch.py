"""Records of format v2, as lazy objects."""
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.record_batch import Record, RecordBatch, RecordIterator
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    RecordTooLargeError,
    SeglogError,
    UnsupportedCompressionTypeError,
)
from support import plain_format as plain

BIG = 100       # more bytes than a parser's fast path needs behind a record
PADDING = plain.record_v2(1, value=bytes(BIG))


def stored(codec, magic, payload):
    """A decompressor of codecs that do not compress."""
    return bytes(payload)


def only_batch(data, decompress=stored):
    [batch] = scan(Window(data, "00000000000000000000.log"), decompress=decompress)
    return batch


def fields(record):
    return plain.PlainRecord(record.offset, record.timestamp, record.key, record.value, record.headers)


def refused(payload, *, count=1, words, **header):
    """Both of the parser's paths refuse the payload: with bytes behind it, and at the end of the bytes."""
    for data, decompress in [
        (plain.batch_v2(payload, count=count, **header), None),
        (plain.batch_v2(b"?", count=count, **header, attributes=plain.LZ4), lambda *_: payload),
        (plain.batch_v2(payload + PADDING, count=count + 1, **header), None),
    ]:
        with pytest.raises(CorruptRecordError, match=words) as e:
            list(only_batch(data, decompress))
        assert (e.value.file, e.value.position) == ("00000000000000000000.log", 0)


# --- fields ----------------------------------------------------------------------------------------


def test_a_record_gives_its_fields():
    headers = (("name", b"field"), ("", b""), ("again", None), ("again", b"2"))
    [first, second] = only_batch(plain.batch_v2(
        plain.record_v2(0, 0, b"key", b"value")
        + plain.record_v2(7, -30, None, None, [(name.encode(), field) for name, field in headers]),
        count=2, base_offset=1000, last_offset_delta=7, base_timestamp=50, max_timestamp=50,
    ))
    assert fields(first) == (1000, 50, b"key", b"value", ())
    assert fields(second) == (1007, 20, None, None, headers)
    assert (first.timestamp_type, first.sequence) == (0, -1)
    assert (first.key_view, first.value_view) == (b"key", b"value")
    assert (second.key_view, second.value_view) == (None, None)


def test_an_empty_field_is_not_a_null():
    [record] = only_batch(plain.batch_v2(plain.record_v2(key=b"", value=b"")))
    assert (record.key, record.value, bytes(record.key_view), bytes(record.value_view)) == (b"", b"", b"", b"")


def test_a_size_below_minus_one_is_null_as_in_kafka():
    body = bytes([0]) + plain.varint(0) * 2 + plain.varint(-7) + plain.varint(-(2**31)) + plain.varint(0)
    for behind in b"", PADDING:
        record = next(iter(only_batch(
            plain.batch_v2(plain.varint(len(body)) + body + behind, count=2 if behind else 1))))
        assert (record.key, record.value) == (None, None)


def test_the_size_of_a_record_has_its_length_field():
    for value in b"", bytes(70), bytes(9000):
        encoded = plain.record_v2(value=value)
        [record] = only_batch(plain.batch_v2(encoded))
        assert record.size_bytes == len(encoded)


def test_log_append_time_is_the_largest_timestamp_for_all():
    payload = plain.record_v2(0, 5) + plain.record_v2(1, -9)
    batch = only_batch(plain.batch_v2(
        payload, count=2, attributes=plain.LOG_APPEND_TIME, base_timestamp=100, max_timestamp=777))
    assert [(r.timestamp, r.timestamp_type) for r in batch] == [(777, 1), (777, 1)]


def test_record_times_stand_on_the_delete_horizon_where_there_is_one():
    batch = only_batch(plain.batch_v2(
        plain.record_v2(0, -400), attributes=plain.DELETE_HORIZON, base_timestamp=1000, max_timestamp=600))
    assert batch.delete_horizon_ms == 1000
    assert [r.timestamp for r in batch] == [600]


def test_sequences_count_by_offset_and_wrap():
    payload = plain.record_v2(0) + plain.record_v2(1) + plain.record_v2(3)
    batch = only_batch(plain.batch_v2(payload, count=3, base_sequence=2**31 - 2, last_offset_delta=3, producer_id=1))
    assert [r.sequence for r in batch] == [2**31 - 2, 2**31 - 1, 1]


def test_timestamp_deltas_that_overflow_wrap_as_in_java():
    payload = plain.record_v2(0, 2**63 - 1) + plain.record_v2(2**31 - 2, -(2**63))
    for behind in b"", PADDING:
        batch = only_batch(plain.batch_v2(
            payload + behind, count=3 if behind else 2, last_offset_delta=2**31 - 1, base_timestamp=2**63 - 1))
        records = iter(batch)
        first, second = next(records), next(records)
        assert (first.offset, first.timestamp) == (0, -2)
        assert (second.offset, second.timestamp) == (2**31 - 2, -1)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (-1, 0), (0, 2), (2**31 - 1, -(2**31))])
def test_offsets_that_do_not_increase_within_the_batch_are_refused(deltas):
    for behind in b"", PADDING:
        payload = b"".join(map(plain.record_v2, deltas))
        batch = only_batch(plain.batch_v2(payload + behind, count=3 if behind else 2, last_offset_delta=1))
        with pytest.raises(CorruptRecordError, match=r"an offset (out of range|at or below the one before it)"):
            list(batch)


def test_header_names_that_are_not_utf8_survive():
    [record] = only_batch(plain.batch_v2(plain.record_v2(headers=[(b"\xff\x00", b"")])))
    [(name, _)] = record.headers
    assert name.encode("utf-8", "surrogateescape") == b"\xff\x00"


def test_a_batch_emptied_by_the_cleaner_has_no_records():
    batch = only_batch(plain.batch_v2(count=0, base_offset=5, last_offset_delta=9, base_timestamp=-1))
    assert (batch.base_offset, batch.last_offset, batch.count, list(batch)) == (5, 14, 0, [])


def test_an_empty_batch_with_codec_bits_is_not_opened():
    def never(codec, magic, payload):
        raise AssertionError

    assert list(only_batch(plain.batch_v2(count=0, attributes=plain.ZSTD), never)) == []


def test_a_batch_can_be_read_again():
    batch = only_batch(plain.batch_v2(plain.record_v2(value=b"v"), attributes=plain.GZIP))
    assert [r.value for r in batch] == [r.value for r in batch] == [b"v"]


# --- compressed ------------------------------------------------------------------------------------


def test_the_decompressor_is_told_codec_magic_and_payload():
    calls = []

    def decompress(codec, magic, payload):
        calls.append((codec, magic, bytes(payload)))
        return bytearray(plain.record_v2(value=b"v"))

    [record] = only_batch(plain.batch_v2(b"squeezed", attributes=plain.ZSTD), decompress)
    assert record.value == b"v"
    assert calls == [(plain.ZSTD, 2, b"squeezed")]


def test_without_a_decompressor_a_compressed_batch_is_refused():
    batch = only_batch(plain.batch_v2(b"squeezed", attributes=plain.ZSTD, base_offset=3), None)
    with pytest.raises(InvalidArgumentError) as e:
        list(batch)
    assert (e.value.position, e.value.offset) == (0, 3)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codec_bits_that_name_none_are_refused(codec):
    with pytest.raises(UnsupportedCompressionTypeError):
        list(only_batch(plain.batch_v2(b"?", attributes=codec)))


def test_an_error_of_the_decompressor_learns_where_it_was():
    def too_large(codec, magic, payload):
        raise RecordTooLargeError("a bomb")

    with pytest.raises(RecordTooLargeError) as e:
        list(only_batch(plain.batch_v2(b"?", attributes=plain.GZIP, base_offset=4), too_large))
    assert (e.value.file, e.value.position, e.value.offset) == ("00000000000000000000.log", 0, 4)


def test_other_errors_of_the_decompressor_pass_through_and_end_the_iteration():
    def broken(codec, magic, payload):
        raise ZeroDivisionError

    records = iter(only_batch(plain.batch_v2(b"?", attributes=plain.GZIP), broken))
    with pytest.raises(ZeroDivisionError):
        next(records)
    assert list(records) == []


def test_a_decompressor_must_give_bytes():
    with pytest.raises(TypeError):
        list(only_batch(plain.batch_v2(b"?", attributes=plain.GZIP), lambda *_: None))


# --- Tests of all the error paths follow: one for each return that is not OK -----------------------


def test_a_length_that_does_not_end_is_refused():
    refused(b"\xff" * 10, words="does not end")


def test_a_length_below_the_least_is_refused():
    for length in (-1, 0, 5):
        refused(plain.varint(length) + bytes(8), words="a size that is impossible")


def test_a_record_longer_than_its_batch_is_refused():
    refused(plain.varint(2**31 - 1) + bytes(8), words="end before")


def test_a_batch_that_ends_inside_a_length_is_refused():
    with pytest.raises(CorruptRecordError, match="end before"):
        list(only_batch(plain.batch_v2(plain.record_v2(value=b"abcd") + b"\xff" * 3, count=2)))


@pytest.mark.parametrize("field", range(5))
def test_a_varint_that_does_not_end_is_refused(field):
    body = bytes([0]) + b"".join(
        b"\xff" * 11 if n == field else plain.varint(-1 if n in (2, 3) else 0) for n in range(5)
    )
    refused(plain.varint(len(body)) + body, words="does not end")


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_varint_cut_off_by_the_end_of_its_record_is_refused(kept):
    body = (bytes([0]) + plain.varint(0) * 2 + plain.varint(-1) * 2)[:kept]
    body += b"\xff" * (6 - len(body))
    refused(plain.varint(len(body)) + body, words="end before|does not end|cannot hold|impossible")


def test_a_key_larger_than_its_record_is_refused():
    for size in (4, 2**31 - 1):
        body = bytes(3) + plain.varint(size) + b"abc"
        refused(plain.varint(len(body)) + body, words="key size")


def test_a_value_larger_than_its_record_is_refused():
    for size in (4, 2**31 - 1):
        body = bytes(3) + plain.varint(-1) + plain.varint(size) + b"abc"
        refused(plain.varint(len(body)) + body, words="value size")


def test_a_key_that_begins_past_its_record_is_refused():
    body = bytes(1) + b"\x80" * 4 + b"\x80"     # timestamp delta runs over the end
    refused(plain.varint(len(body)) + body, words="end before|does not end|cannot|impossible")


@pytest.mark.parametrize("count", [-1, -(2**31), 3, 2**31 - 1])
def test_a_header_count_that_the_record_cannot_hold_is_refused(count):
    body = bytes(3) + plain.varint(-1) * 2 + plain.varint(count) + bytes(4)
    refused(plain.varint(len(body)) + body, words="a header that")


@pytest.mark.parametrize("headers", [
    b"\x01\x00",                    # a null key
    b"\x06ab",                      # a key larger than the record
    b"\x02a\x06ab",                 # a value larger than the record
    b"\x02a\x04ab\x00",             # a byte left over
    b"\x02a\xff",                   # a value size cut off
    b"\xff\xff\xff\xff\xff\xff",    # a key size that does not end
])
def test_headers_that_do_not_fill_the_record_are_refused(headers):
    body = bytes(3) + plain.varint(-1) * 2 + plain.varint(1) + headers
    refused(plain.varint(len(body)) + body, words="a header that")


def test_bytes_left_over_in_a_record_are_refused():
    body = bytes(3) + plain.varint(-1) * 2 + plain.varint(0) + b"?"
    refused(plain.varint(len(body)) + body, words="a size that is impossible")


def test_bytes_left_over_in_a_batch_are_refused_before_its_last_record():
    batch = only_batch(plain.batch_v2(plain.record_v2() + b"??", count=1))
    with pytest.raises(CorruptRecordError, match="left over after the last record: 2 of them"):
        next(iter(batch))


def test_bytes_in_an_empty_batch_are_refused():
    for codec in plain.NONE, plain.GZIP:
        with pytest.raises(CorruptRecordError, match="left over"):
            list(only_batch(plain.batch_v2(b"?", count=0, attributes=codec)))


def test_a_count_that_the_decompressed_bytes_cannot_hold_is_refused_before_any_record():
    payload = plain.record_v2() * 2
    batch = only_batch(plain.batch_v2(payload, count=3, attributes=plain.GZIP))
    with pytest.raises(CorruptRecordError, match=r"a count .*: 3 records in 14 bytes"):
        next(iter(batch))


def test_an_error_ends_the_iteration():
    records = iter(only_batch(plain.batch_v2(plain.record_v2(value=b"abcd") + bytes(9), count=2)))
    assert next(records).value == b"abcd"
    with pytest.raises(CorruptRecordError, match=r"record 2 of 2, 9 bytes before"):
        next(records)
    assert list(records) == []


# --- many batches ----------------------------------------------------------------------------------


def three_batches():
    control = plain.batch_v2(plain.record_v2(key=bytes(4)), base_offset=2, attributes=plain.CONTROL)
    return scan(Window(
        plain.batch_v2(plain.record_v2() + plain.record_v2(1), count=2, base_offset=0)
        + control
        + plain.batch_v2(count=0, base_offset=3, last_offset_delta=1)
        + plain.batch_v2(plain.record_v2() + plain.record_v2(2), count=2, base_offset=5, last_offset_delta=2)
        + plain.message(9) + plain.message(11)
    ))


def test_a_table_gives_the_records_of_all_its_batches():
    table = three_batches()
    assert [r.offset for r in table.records()] == [r.offset for b in table for r in b] == [0, 1, 2, 5, 7, 9, 11]
    assert [r.offset for r in table.records(include_control=False)] == [0, 1, 5, 7, 9, 11]


def test_a_table_gives_the_records_of_a_range():
    table = three_batches()
    offsets = [r.offset for r in table.records()]
    for first in range(-1, 14):
        for stop in range(-1, 14):
            assert [r.offset for r in table.records(first, stop)] == [n for n in offsets if first <= n < stop]


def test_a_range_does_not_open_batches_outside_of_it():
    table = scan(Window(
        plain.batch_v2(b"?", attributes=plain.GZIP, base_offset=0)
        + plain.batch_v2(plain.record_v2(), base_offset=1)
        + plain.batch_v2(b"?", attributes=plain.GZIP, base_offset=2)
    ))
    assert [r.offset for r in table.records(1, 2)] == [1]


# --- the twin --------------------------------------------------------------------------------------

ANY_BYTES = st.none() | st.binary(max_size=5) | st.binary(min_size=60, max_size=300)
ANY_RECORD = st.tuples(
    st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 200),
    ANY_BYTES,
    ANY_BYTES,
    st.lists(st.tuples(st.binary(max_size=6), ANY_BYTES), max_size=3),
)


@given(
    st.lists(ANY_RECORD, max_size=6),
    st.sampled_from([0, plain.LOG_APPEND_TIME, plain.GZIP, plain.ZSTD | plain.DELETE_HORIZON]),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3),
)
def test_the_kernel_reads_and_refuses_what_plain_python_does(records, attributes, base_timestamp, changes):
    data = bytearray(plain.batch_v2(
        b"".join(plain.record_v2(*r) for r in records), count=len(records), attributes=attributes,
        base_offset=min(base_timestamp, 2**63 - 10), base_timestamp=base_timestamp, max_timestamp=3,
    ))
    for position, byte in changes:
        if 61 + position < len(data):
            data[61 + position] = byte
    try:
        expected = plain.decode_batch(bytes(data), stored)
    except plain.Malformed:
        expected = None
    try:
        found = [fields(r) for r in only_batch(data)]
    except CorruptRecordError:
        found = None
    assert found == expected


# --- objects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Record, RecordBatch, RecordIterator, BatchTable])
def test_objects_come_from_a_scan_only(kind):
    with pytest.raises(TypeError, match="comes from"):
        kind()


def test_an_object_made_behind_the_back_is_empty_and_harmless():
    record, batch, records, table = (kind.__new__(kind) for kind in (Record, RecordBatch, RecordIterator, BatchTable))
    assert (record.key, record.value, record.headers, record.offset) == (b"", b"", (), 0)
    assert (list(records), list(table), list(table.records()), list(batch)) == ([], [], [], [])
    assert batch.crc_is_valid() is False
    for use in (
        lambda: record.key_view, lambda: record.value_view, batch.raw, batch.payload, table.stop_details,
        lambda: batch.base_offset,
    ):
        with contextlib.suppress(TypeError, SeglogError):
            use()
    repr([record, batch, table])


def test_objects_show_themselves():
    table = scan(Window(plain.batch_v2(plain.record_v2(), base_offset=12)))
    assert repr(table) == "<BatchTable of 1 batches, end 68, OK>"
    assert repr(table[0]) == "<RecordBatch v2: offsets 12 to 12, 68 bytes at byte 0>"
    assert repr(next(iter(table[0]))) == "<Record offset 12: key None, value None>"
    record = plain.record_v2(key=b"k", value=b"v" * 40 + b"w")
    (record,) = scan(Window(plain.batch_v2(record, base_offset=12)))[0]
    assert repr(record) == f"<Record offset 12: key b'k', value {b'v' * 40}... (41 bytes)>"
    (message,) = scan(Window(plain.message(7, key=b"", value=b"v" * 40)))
    assert repr(message) == "<RecordBatch v1: offsets 7 to 7, 74 bytes at byte 0>"
    assert repr(next(iter(message))) == f"<Record offset 7: key b'', value {b'v' * 40}>"


def test_a_record_outlives_everything_it_came_from():
    data = bytearray(plain.batch_v2(plain.record_v2(key=b"key", value=b"value", headers=[(b"h", b"x")])))
    window = Window(data)
    table = scan(window)
    records = iter(table[0])
    record = next(records)
    view = record.value_view
    del window, table, records
    with pytest.raises(BufferError):
        data.clear()
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"x"),))
    del record
    with pytest.raises(BufferError):
        data.clear()
    assert view == b"value"
    del view
    data.clear()


def test_a_record_of_a_compressed_batch_holds_the_decompressed_bytes_not_the_file():
    data = bytearray(plain.batch_v2(b"?", attributes=plain.GZIP))
    plaintext = bytearray(plain.record_v2(value=b"value"))
    batch = only_batch(data, lambda *_: plaintext)
    [record] = batch
    del batch
    data.clear()
    with pytest.raises(BufferError):
        plaintext.clear()
    assert record.value == b"value"
    del record
    plaintext.clear()


def test_bytes_that_change_under_a_record_are_read_within_bounds():
    data = bytearray(plain.batch_v2(plain.record_v2(headers=[(b"name", b"field")])))
    [record] = only_batch(data)
    data[61:] = b"\x7f" * (len(data) - 61)
    with pytest.raises(CorruptRecordError):
        _ = record.headers


def test_iterators_are_independent():
    batch = only_batch(plain.batch_v2(b"".join(plain.record_v2(n) for n in range(50)), count=50))
    first, second = iter(batch), iter(batch)
    next(first)
    assert [r.offset for r in second] == list(range(50))
    assert [r.offset for r in first] == list(range(1, 50))


@pytest.mark.parametrize("kept", [set(), {0}, {1, 2}, {3, 7, 8, 9}, set(range(20))])
def test_a_kept_record_never_changes(kept):
    """An iterator may give an object again that nobody has kept."""
    batch = only_batch(plain.batch_v2(b"".join(plain.record_v2(n, value=b"%d" % n) for n in range(20)), count=20))
    mine = [record for n, record in enumerate(batch) if n in kept]
    assert [(r.offset, r.value) for r in mine] == [(n, b"%d" % n) for n in sorted(kept)]
    assert len({id(r) for r in mine}) == len(kept)


def test_a_record_kept_by_one_reference_in_a_container_never_changes():
    records = iter(only_batch(plain.batch_v2(b"".join(plain.record_v2(n) for n in range(9)), count=9)))
    slots = [None] * 9
    for n in range(9):
        slots[n] = next(records)
    assert [r.offset for r in slots] == list(range(9))
