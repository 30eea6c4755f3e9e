"""Batches made in one pass are those that the builder makes record by record, and other clients read them."""
import gc
import mmap
import weakref

import pytest
from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.batch_encode import EncodedBatch, encode_one, encode_records
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError
from support import plain_format as plain

NOW = 1_700_000_000_000
BASE = 5_000_000_000
LOG_APPEND_TIME = 8
LAST_OFFSET = 2**63 - 2

fields = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=40)), max_size=3)
timestamps = st.integers(-1, 2**63 - 1)
records = st.lists(
    st.tuples(fields, fields)
    | st.tuples(fields, fields, st.none() | headers)
    | st.tuples(fields, fields, st.none() | headers, st.none() | timestamps),
    min_size=1,
    max_size=30,
)


def whole(record, timestamp=NOW):
    """(key, value, headers, timestamp) of a record that may leave out the last two."""
    key, value, headers, own = (*record, None, None)[:4]
    return key, value, headers or (), timestamp if own is None else own


def by_builder(rows, base_offset=0, **options):
    builder = BatchBuilder(base_offset, **options)
    for delta, (key, value, headers, timestamp) in enumerate(map(whole, rows)):
        builder.append(base_offset + delta, timestamp, key, value, headers)
    return builder.finish()


def read(data):
    table = scan(Window(data), check_crc=True)
    assert table.end == len(data)
    return list(table)


def flipped(codec, payload):
    """A codec that anybody can undo."""
    return bytes(b ^ 0xFF for b in payload)


# --- twins -------------------------------------------------------------------------------------------


@given(st.integers(0, LAST_OFFSET), timestamps, fields, fields, headers, st.integers(-1, 2**31 - 1))
def test_one_record_is_the_batch_that_the_builder_makes_of_it(offset, timestamp, key, value, headers, leader_epoch):
    made = encode_one(offset, timestamp, key, value, headers, leader_epoch)
    assert made == by_builder([(key, value, headers, timestamp)], offset, leader_epoch=leader_epoch)


@given(timestamps, fields, fields)
def test_one_record_is_the_batch_that_the_plain_format_describes(timestamp, key, value):
    assert encode_one(BASE, timestamp, key, value) == plain.batch_v2(
        plain.record_v2(key=key, value=value), base_offset=BASE, base_timestamp=timestamp, max_timestamp=timestamp,
        leader_epoch=-1,
    )


@given(records, st.integers(0, 2**62))
def test_many_records_are_the_batch_that_the_builder_makes_of_them(rows, base_offset):
    assert bytes(encode_records(rows, base_offset, NOW)) == by_builder(rows, base_offset)


@given(records)
def test_every_field_of_the_header_is_the_builders(rows):
    options = {
        "leader_epoch": 7, "producer_id": 2**40, "producer_epoch": 3, "base_sequence": 5,
        "is_transactional": True, "is_control": True,
    }
    for kind in ({"log_append_time": NOW + 9}, {"delete_horizon_ms": NOW - 9}, {}):
        assert bytes(encode_records(rows, BASE, NOW, **options, **kind)) == by_builder(rows, BASE, **options, **kind)


@given(records)
def test_a_compressed_batch_holds_the_same_payload_under_the_same_header(rows):
    seen = []

    def compress(codec, payload):
        seen.append((codec, bytes(payload)))
        return flipped(codec, payload)

    made = encode_records(rows, BASE, NOW, codec=4, compress=compress, leader_epoch=1)
    builder = BatchBuilder(BASE, leader_epoch=1)
    for delta, (key, value, headers, timestamp) in enumerate(map(whole, rows)):
        builder.append(BASE + delta, timestamp, key, value, headers)
    assert seen == [(4, builder.payload())]
    assert bytes(made) == builder.finish(flipped(4, builder.payload()), 4)


@given(records)
def test_what_a_log_asks_of_a_batch_is_told_without_reading_it(rows):
    made = encode_records(iter(rows), BASE, NOW)
    stamps = [whole(row)[3] for row in rows]
    assert (made.base_offset, made.last_offset, made.count) == (BASE, BASE + len(rows) - 1, len(rows))
    assert made.max_timestamp == max(stamps)
    assert made.min_timestamp == min([stamp for stamp in stamps if stamp != -1], default=-1)
    assert made.has_null_key == any(row[0] is None for row in rows)


def test_under_log_append_time_the_largest_timestamp_is_the_logs():
    made = encode_records([(b"k", b"v", (), NOW + 5), (b"k", b"v")], BASE, NOW, log_append_time=NOW + 9)
    assert made.max_timestamp == NOW + 9
    [batch] = read(encode_one(BASE, NOW, b"k", b"v", (), 0, LOG_APPEND_TIME))
    assert (batch.timestamp_type, batch.max_timestamp) == (1, NOW)


@given(records)
def test_aiokafka_reads_what_was_made(rows):
    batch = AioKafkaRecords(bytes(encode_records(rows, BASE, NOW))).next_batch()
    assert batch.validate_crc()
    # It asks for UTF-8 and cannot take another header key than str.
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in batch] == [
        (key, value, tuple(headers), timestamp) for key, value, headers, timestamp in map(whole, rows)
    ]


def test_records_come_from_any_iterable_and_fields_from_any_buffer():
    rows = [(b"key", b"value", [("h", b"x")], NOW), (None, b"ab")]
    expected = bytes(encode_records(rows, 0, NOW))
    headers = (("h", memoryview(b"x")),)
    other = [[bytearray(b"key"), memoryview(b"-value-")[1:6], headers, NOW], (None, bytearray(b"ab"))]
    for records in (other, tuple(other), iter(other), dict(enumerate(other)).values(), (row for row in other)):
        assert bytes(encode_records(records, 0, NOW)) == expected


def test_a_header_key_that_is_no_utf8_is_written_as_the_bytes_that_were_read():
    name = b"\xff\x80".decode("utf-8", "surrogateescape")
    assert b"\x04\xff\x80" in encode_one(0, 0, None, None, [(name, None)])


def test_a_batch_larger_than_its_first_memory_grows():
    rows = [(b"k%d" % i, bytes(i)) for i in range(3000)]
    made = encode_records(rows, 0, NOW)
    assert len(made) > 3000 * 1500
    assert bytes(made) == by_builder(rows)
    assert encode_one(0, NOW, b"k", bytes(10_000_000)) == by_builder([(b"k", bytes(10_000_000))])


# --- the batch in its memory -------------------------------------------------------------------------


@given(records, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_a_batch_is_placed_after_it_was_made(rows, offset, leader_epoch):
    made = encode_records(rows, 0, NOW)
    made.place(offset, leader_epoch)
    assert bytes(made) == by_builder(rows, offset, leader_epoch=leader_epoch)
    assert (made.base_offset, made.last_offset, made.leader_epoch) == (offset, offset + len(rows) - 1, leader_epoch)


def test_memory_is_used_again_only_when_no_view_of_it_is_left():
    made = encode_records([(b"key", b"first")] * 50, 0, NOW)
    view, expected = memoryview(made), bytes(made)
    del made
    gc.collect()
    others = [encode_records([(b"key", b"other")] * 50, 0, NOW) for _ in range(5)]
    assert view == expected
    assert len({bytes(other) for other in others}) == 1
    assert view.readonly


def test_a_buffer_is_let_go_after_the_call_and_after_a_refusal():
    data = bytearray(b"value")
    encode_one(0, NOW, data, data, [("h", data)])
    encode_records([(data, data, [("h", data)])], 0, NOW)
    for bad in [(data, 5), (data, data, [("h", data), ("h", 5)]), (data, data, (), "now")]:
        with pytest.raises(TypeError):
            encode_records([bad], 0, NOW)
    with pytest.raises(TypeError):
        encode_one(0, NOW, data, 5)
    data.append(0)      # BufferError while anybody has it


def test_records_that_change_the_list_while_it_is_read_do_no_harm():
    rows = []

    class Record(list):
        def __iter__(self):
            rows.clear()
            return super().__iter__()

    rows += [Record((b"k", b"v", (), NOW)) for _ in range(5)]
    assert encode_records(rows, 0, NOW).count == 1


def test_encoding_inside_of_encoding_does_not_disturb_it():
    def headers(value):
        encode_one(0, NOW, b"inner", b"inner" * 100, ())
        yield ("h", value)

    made = encode_one(0, NOW, b"k", b"v", headers(b"x"))
    assert made == encode_one(0, NOW, b"k", b"v", [("h", b"x")])
    many = encode_records(((b"k", b"v", headers(b"%d" % i)) for i in range(20)), 0, NOW)
    assert bytes(many) == by_builder([(b"k", b"v", [("h", b"%d" % i)]) for i in range(20)])


def test_a_compressor_may_keep_the_payload():
    kept = []

    def compress(codec, payload):
        kept.append(payload)
        return payload

    made = encode_records([(b"k", b"v" * 100)], 0, NOW, codec=2, compress=compress)
    expected = bytes(made)[61:]
    del made
    encode_records([(b"x", b"y" * 100)], 0, NOW)
    assert kept[0] == expected


def test_nothing_of_the_records_is_kept():
    class Bytes(bytearray):
        pass

    data = Bytes(b"value")
    made = encode_records([(data, data)], 0, NOW)
    gone = weakref.ref(data)
    del data
    gc.collect()
    assert gone() is None
    assert made.count == 1


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((5, b"v"), "the key of record 1 must be bytes-like or None, not int"),
        ((b"k", 5), "the value of record 1 must be bytes-like or None, not int"),
        ((b"k", b"v", 5), "the list of headers of record 1 must be a sequence of .*, not int"),
        ((b"k", b"v", "ab"), "the list of headers of record 1 must be a sequence of .*, not str"),
        ((b"k", b"v", ["ab"]), "the header of record 1 must be a pair of str and bytes-like or None, not 'ab'"),
        ((b"k", b"v", [("a",)]), "the header of record 1 must be a pair"),
        ((b"k", b"v", [(b"a", b"x")]), "the header key of record 1 must be a str, not bytes"),
        ((b"k", b"v", [("a", "x")]), "the header value of record 1 must be bytes-like or None, not str"),
        ((b"k", b"v", (), 1.5), "the timestamp of record 1 must be an int .ms since 1970. or None, not float"),
        ((b"k",), "record 1 must be .key, value"),
        ((b"k", b"v", (), 1, 2), "record 1 must be .key, value"),
        (b"kv", "record 1 must be .key, value"),
        (7, "record 1 must be .key, value"),
    ],
)
def test_a_wrong_type_is_named_with_the_record_that_has_it(record, words):
    with pytest.raises(TypeError, match=words):
        encode_records([(b"good", b"record"), record], 0, NOW)
    if isinstance(record, tuple) and len(record) in (2, 3):
        with pytest.raises(TypeError, match=words.replace(" of record 1", "")):
            encode_one(0, NOW, *record)


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63, -(2**80)])
def test_a_timestamp_that_no_format_has_is_refused(timestamp):
    with pytest.raises(InvalidArgumentError, match="the timestamp of record 0"):
        encode_records([(b"k", b"v", (), timestamp)], 0, NOW)
    for refused in (
        lambda: encode_one(0, timestamp, b"k", b"v"),
        lambda: encode_records([(b"k", b"v")], 0, timestamp),
    ):
        with pytest.raises(InvalidArgumentError, match="the timestamp must be"):
            refused()


@pytest.mark.parametrize("records", [[], (), iter(())])
def test_a_batch_has_a_record(records):
    with pytest.raises(InvalidArgumentError, match="at least one record"):
        encode_records(records, 0, NOW)


def test_offsets_end_before_the_last_int64():
    rows = [(b"k", b"v")] * 3
    assert read(encode_records(rows, LAST_OFFSET - 2, NOW))[0].last_offset == LAST_OFFSET
    assert read(encode_one(LAST_OFFSET, NOW, b"k", b"v"))[0].last_offset == LAST_OFFSET
    for refused in (
        lambda: encode_records(rows, LAST_OFFSET - 1, NOW),
        lambda: encode_records(rows, 0, NOW).place(LAST_OFFSET - 1, 0),
        lambda: encode_one(LAST_OFFSET + 1, NOW, b"k", b"v"),
        lambda: encode_one(-1, NOW, b"k", b"v"),
        lambda: encode_records(rows, -1, NOW),
    ):
        with pytest.raises(InvalidArgumentError, match="are out of range"):
            refused()


def test_a_buffer_with_holes_is_refused():
    holes = memoryview(b"abcdef")[::2]
    with pytest.raises(InvalidArgumentError, match="the value of record 0"):
        encode_records([(b"k", holes)], 0, NOW)
    with pytest.raises(InvalidArgumentError, match="the key cannot be read as bytes"):
        encode_one(0, NOW, holes, b"v")


def test_a_header_key_that_no_utf8_can_be_is_refused():
    with pytest.raises(InvalidArgumentError, match="the header key cannot be written"):
        encode_one(0, NOW, None, None, [("\ud800", None)])


def test_a_field_or_batch_beyond_two_gib_is_refused(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as f:
        f.truncate(2**31 + 1)
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as large:
        with pytest.raises(RecordTooLargeError, match="the value has 2147483649 bytes"):
            encode_one(0, NOW, b"k", large)
        with memoryview(large) as view, view[: 2**31 - 1] as most:
            with pytest.raises(RecordTooLargeError, match="with record 1"):
                encode_records([(b"k", b"v"), (b"k", most)], 0, NOW)
            with pytest.raises(RecordTooLargeError):
                encode_one(0, NOW, b"k", most)


def test_a_codec_needs_a_number_and_a_compressor():
    with pytest.raises(UnsupportedCompressionTypeError):
        encode_records([(b"k", b"v")], 0, NOW, codec=5, compress=flipped)
    with pytest.raises(InvalidArgumentError, match=r"needs .compress"):
        encode_records([(b"k", b"v")], 0, NOW, codec=1)
    with pytest.raises(TypeError, match="the compressed payload"):
        encode_records([(b"k", b"v")], 0, NOW, codec=1, compress=lambda codec, payload: 5)


def test_an_encoded_batch_has_no_other_maker():
    with pytest.raises(TypeError):
        EncodedBatch()


def test_only_the_timestamp_type_is_an_attribute_of_one_record():
    with pytest.raises(InvalidArgumentError):
        encode_one(0, NOW, b"k", b"v", (), 0, 0x10)
