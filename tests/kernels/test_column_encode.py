"""Batches made from columns are those made from the same records one by one, whatever owns the columns."""
import array
import mmap
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.arena import ArenaPool
from seglog._kernels.batch_encode import encode_records
from seglog._kernels.column_encode import encode_columns
from seglog._kernels.column_source import ColumnSource
from seglog._kernels.columns import decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError, RecordTooLargeError
from seglog.format.arrow_columns import plain_columns

NOW = 1_700_000_000_000
BASE = 5_000_000_000
ALL = 1 << 20           # bytes: all records of a test in one batch
FRAME = 61              # bytes: a batch's header
MOST_OVERHEAD = 36      # bytes: a record's, at its longest

fields = st.none() | st.binary(max_size=60)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3)
rows = st.lists(st.tuples(fields, fields, headers, st.integers(-1, 2**63 - 1)), min_size=1, max_size=25)

HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def arrow(rows, binary=None, headers=HEADERS, timestamp=None):
    binary = pa.binary() if binary is None else binary
    return pa.record_batch({
        "key": pa.array([row[0] for row in rows], binary),
        "value": pa.array([row[1] for row in rows], binary),
        "headers": pa.array(
            [[{"key": name.encode(), "value": field} for name, field in row[2]] for row in rows], headers),
        "timestamp": pa.array([row[3] for row in rows], pa.int64() if timestamp is None else timestamp),
    })


def buffers(column, offsets="i"):
    """(offsets, data, validity) of a list of bytes or None."""
    ends, data, bits = array.array(offsets, [0]), b"", bytearray((len(column) + 7) // 8)
    for i, field in enumerate(column):
        data += field or b""
        ends.append(len(data))
        bits[i // 8] |= (field is not None) << (i % 8)
    return ends, data, bytes(bits)


def encoded(columns, max_batch_bytes=ALL, timestamp=NOW, **options):
    return encode_columns(columns, timestamp, max_batch_bytes=max_batch_bytes, **options)


def one_batch(columns, **options):
    [made] = encoded(columns, **options)
    return bytes(made)


def expected(rows, base_offset=0, **options):
    return bytes(encode_records(rows, base_offset, NOW, **options))


# --- twins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_a_record_batch_that_kernels_take_is_passed_on_itself(kind):
    key, value = pa.array(["a"], kind), pa.array(["b"], kind)
    batch = pa.record_batch({"key": key, "value": value, "timestamp": pa.array([NOW])})
    assert list(plain_columns(batch)) == [batch]
    assert next(plain_columns(batch)) is batch


@given(rows, st.integers(0, 2**62))
def test_a_record_batch_is_the_batch_of_its_records(rows, base_offset):
    made = one_batch(arrow(rows), base_offset=base_offset, leader_epoch=4)
    assert made == expected(rows, base_offset, leader_epoch=4)


@given(rows, st.integers(0, 10), st.integers(0, 10))
def test_a_slice_is_the_batch_of_its_rows(rows, before, after):
    rows = [(b"no", b"no", [("no", b"no")], 5)] * before + rows + [(b"no", None, [], 5)] * after
    part = slice(before, len(rows) - after)
    assert one_batch(arrow(rows)[part]) == expected(rows[part])


@given(rows)
def test_buffers_are_the_batch_of_their_records(rows):
    for offsets in "iq":
        mapping = {
            "key": buffers([row[0] for row in rows], offsets),
            "value": buffers([row[1] for row in rows], offsets),
            "timestamp": array.array("q", [row[3] for row in rows]),
            "headers": arrow(rows)["headers"],
        }
        assert one_batch(mapping) == expected(rows)


@given(rows, st.integers(100, 600))
def test_batches_are_split_at_their_largest_size_and_nowhere_else(rows, most):
    made = encoded(arrow(rows), most, base_offset=BASE)
    first = 0
    for i, batch in enumerate(made):
        part = rows[first : first + batch.count]
        assert bytes(batch) == expected(part, BASE + first)
        assert len(batch) <= most or batch.count == 1
        first += batch.count
        if i + 1 < len(made):
            more = expected(rows[first - batch.count : first + 1])
            assert len(more) > most - MOST_OVERHEAD
    assert first == len(rows)


@given(rows)
def test_what_a_log_asks_of_a_batch_is_told(rows):
    [made] = encoded(arrow(rows), base_offset=BASE)
    same = encode_records(rows, BASE, NOW)
    for name in ("base_offset", "last_offset", "count", "max_timestamp", "min_timestamp", "has_null_key"):
        assert getattr(made, name) == getattr(same, name)


def test_a_compressed_batch_and_log_append_time():
    rows = [(b"k", b"v" * 50, [], NOW - 5)] * 10
    options = {"codec": 4, "compress": lambda codec, payload: bytes(payload)[::-1], "log_append_time": NOW + 1}
    assert one_batch(arrow(rows), **options) == expected(rows, **options)


@given(rows)
def test_columns_that_were_read_are_written_again(rows):
    raw = expected(rows, BASE)
    table = scan(Window(raw))
    columns = decode(table, 0, len(table), ArenaPool())
    assert one_batch(columns, base_offset=BASE) == raw


# --- kinds of columns --------------------------------------------------------------------------------

ROWS = [(b"k1", b"v1", [("h", b"x"), ("i", None)], NOW + 1), (None, b"", [], NOW - 1), (b"", None, [("j", b"")], NOW)]


@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_arrow_byte_strings_of_every_width(binary):
    assert one_batch(arrow(ROWS, binary)) == expected(ROWS)


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.large_binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_are_lists_or_maps(headers):
    if pa.types.is_map(headers):
        batch = arrow(ROWS).drop_columns(["headers"])
        lists = pa.array([[(name, field) for name, field in row[2]] for row in ROWS], headers)
        batch = batch.append_column("headers", lists)
    else:
        batch = arrow(ROWS, headers=headers)
    assert one_batch(batch) == expected(ROWS)


def test_a_list_of_headers_that_is_null_is_empty():
    lists = pa.array([None, [{"key": b"h", "value": b"x"}]], HEADERS)
    mapping = {"key": pa.array([b"a", b"b"]), "headers": lists}
    assert one_batch(mapping) == expected([(b"a", None), (b"b", None, [("h", b"x")])])


def test_a_timestamp_that_is_null_is_none_and_a_column_that_is_missing_is_now():
    keys = pa.array([b"a", b"b"], pa.binary())
    with_null = pa.record_batch({"key": keys, "timestamp": pa.array([None, NOW + 5], pa.timestamp("ms", "UTC"))})
    assert one_batch(with_null) == expected([(b"a", None, (), -1), (b"b", None, (), NOW + 5)])
    assert one_batch(pa.record_batch({"key": keys})) == expected([(b"a", None), (b"b", None)])
    assert one_batch({"key": keys, "timestamp": NOW}, timestamp=5) == expected([(b"a", None), (b"b", None)])


def test_a_column_of_nulls_alone():
    batch = pa.record_batch({"key": pa.nulls(2), "value": pa.array([b"a", b"b"], pa.binary())})
    assert one_batch(batch) == expected([(None, b"a"), (None, b"b")])
    assert one_batch({"key": None, "value": buffers([b"a", b"b"])}) == expected([(None, b"a"), (None, b"b")])


def test_numbers_are_of_any_library_that_gives_buffers():
    ends, data, _ = buffers([b"a", b"bc"])
    for offsets in (np.array(ends), np.array(ends, "i8"), memoryview(ends), np.array(ends).astype("<i4")):
        made = one_batch({"value": (offsets, bytearray(data)), "timestamp": np.array([NOW, NOW + 1])})
        assert made == expected([(None, b"a", (), NOW), (None, b"bc", (), NOW + 1)])


def test_columns_of_nulls_may_have_a_type_that_says_no_more():
    nulls = pa.nulls(2)
    made = one_batch({"key": nulls, "value": pa.array([b"a", b"b"]), "timestamp": nulls, "headers": nulls})
    assert made == expected([(None, b"a", (), -1), (None, b"b", (), -1)])
    with pytest.raises(InvalidArgumentError, match="2 rows, but other columns have 1"):
        encoded({"value": pa.array([b"a"]), "timestamp": nulls})


def test_offsets_of_a_log_are_passed_by():
    batch = pa.record_batch({"offset": pa.array([7, 9]), "value": pa.array([b"a", b"b"], pa.binary())})
    assert one_batch(batch) == expected([(None, b"a"), (None, b"b")])


def test_long_fields_and_the_last_ones_are_copied_whole():
    rnd = random.Random(1)
    rows = [(rnd.randbytes(n), rnd.randbytes(3 * n), [], NOW) for n in range(400)]
    assert one_batch(arrow(rows)) == expected(rows)


def test_a_record_that_is_larger_than_a_batch_may_be_has_its_own():
    rows = [(b"k", bytes(size), [], NOW) for size in (10, 1000, 10, 10)]
    assert [batch.count for batch in encoded(arrow(rows), 200)] == [1, 1, 2]
    assert [batch.count for batch in encoded(arrow(rows), 0)] == [1, 1, 1, 1]


def test_the_memory_of_the_columns_is_let_go():
    data = bytearray(b"abc")
    encoded({"value": (array.array("i", [0, 1, 3]), data)})
    with pytest.raises(InvalidArgumentError):
        encoded({"value": (array.array("i", [0, 1, 9]), data)})
    data.append(0)      # BufferError while anybody has it


# --- wrong on purpose ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [[0, 1, 4], [0, -1, 3], [0, 2, 1], [-1, 1, 3], [4, 4, 4], [0, 1, 2**31 - 1]])
@pytest.mark.parametrize("width", "iq")
def test_offsets_that_do_not_lie_in_their_data_are_refused(offsets, width):
    for name in ("key", "value"):
        with pytest.raises(InvalidArgumentError, match=f"the {name} of row . has offsets outside its data"):
            encoded({name: (array.array(width, offsets), b"abc")})


def test_wide_offsets_at_the_ends_of_int64_are_refused():
    for offsets in ([0, 2**63 - 1], [-(2**63), 3], [-(2**63), 2**63 - 1], [2**63 - 1, -(2**63)]):
        with pytest.raises(InvalidArgumentError):
            encoded({"value": (array.array("q", offsets), b"abc")})


@given(st.lists(st.integers(-5, 40), min_size=2, max_size=8), st.binary(max_size=30), st.binary(min_size=1, max_size=1))
def test_any_offsets_are_refused_or_mean_what_they_say(offsets, data, validity):
    """The plain reading of the same buffers."""
    rows = []
    for i, (start, end) in enumerate(pairwise(offsets)):
        if not validity[0] >> i & 1:
            rows.append((b"k", None))
        elif 0 <= start <= end <= len(data):
            rows.append((b"k", data[start:end]))
        else:
            rows = None
            break
    keys = pa.array([b"k"] * (len(offsets) - 1), pa.binary())
    columns = {"key": keys, "value": (array.array("i", offsets), data, validity)}
    if rows is None:
        with pytest.raises(InvalidArgumentError):
            encoded(columns)
    else:
        assert one_batch(columns) == expected(rows)


def test_arrow_offsets_are_believed_no_more_than_others():
    ends = pa.py_buffer(array.array("i", [0, 9, 3]))
    bad = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"abc")])
    with pytest.raises(InvalidArgumentError, match="the value of row 0"):
        encoded(pa.record_batch({"value": bad}))
    good = arrow(ROWS)["headers"]
    for starts in ([0, 9, 1, 3], [0, -1, 2, 3], [0, 2, 1, 3]):
        starts = pa.py_buffer(array.array("i", starts))
        lists = pa.Array.from_buffers(HEADERS, 3, [None, starts], children=[good.values])
        with pytest.raises(InvalidArgumentError, match="the headers of row"):
            encoded({"key": pa.array([b"k"] * 3), "headers": lists})


def test_a_field_beyond_two_gib_is_refused():
    with mmap.mmap(-1, 2**31 + 8) as large, memoryview(large) as data:
        with pytest.raises(RecordTooLargeError, match="the value of row 0"):
            encoded({"value": (array.array("q", [0, 2**31]), data)})
        with pytest.raises(RecordTooLargeError, match="the record of row 0"):
            encoded({"value": (array.array("q", [0, 2**31 - 1]), data)})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": (array.array("i", [0, 1]), b"a"), "value": (array.array("i", [0, 1, 2]), b"ab")}, "2 rows, but"),
        ({"key": (array.array("i", [0, 1]), b"a"), "timestamp": array.array("q", [1, 2])}, "timestamp: 2 rows, but"),
        ({"value": (array.array("i"), b"")}, "there is none"),
        ({"value": (array.array("i", [0, 1] * 5), b"a", b"\xff")}, "a validity bitmap of 1 bytes for 9 rows"),
        ({"value": (array.array("i", [0, 1, 1]), b"a", np.array([True, True]))}, "a validity bitmap must be bytes"),
        ({"value": (array.array("i", [0, 1]), b"a", array.array("i", [1]))}, "a validity bitmap must be bytes"),
        (pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, ["value", "value"]), "two columns 'value'"),
        ({"value": (array.array("i", [0]), b"")}, "at least one record"),
        ({}, "need a key or a value"),
        ({"timestamp": 5}, "need a key or a value"),
        ({"values": (array.array("i", [0, 1]), b"a")}, "no column is called 'values'"),
        ({"value": (array.array("i", [0, 1]), b"a"), "timestamp": array.array("q", [-2])}, "the timestamp of row 0"),
        ({"value": (array.array("i", [0, 1]), b"a"), "timestamp": -2}, "the timestamp must be"),
        ({"value": (np.arange(8, dtype="i4")[::2], b"abcdefgh")}, "contiguous"),
        ({"value": (memoryview(b"_" + bytes(8))[1:].cast("i"), b"a")}, "must be aligned"),
        (pa.record_batch({"valu": pa.array([b"a"])}), "no column is called 'valu'"),
        (pa.record_batch({"value": pa.array([], pa.binary())}), "at least one record"),
        (pa.StructArray.from_arrays([pa.array([b"a"])], ["value"], mask=pa.array([True])), "must not have null rows"),
        (pa.record_batch({
            "value": pa.array([b"a"]),
            "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS),
        }), "the header key of row 0 is null"),
        (pa.record_batch({
            "value": pa.array([b"a"]), "headers": pa.array([[None]], HEADERS),
        }), "a header that is null"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns, words):
    with pytest.raises(InvalidArgumentError, match=words):
        encoded(columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([b"a"], "columns must be a RecordBatch or a mapping"),
        (pa.array([b"a"]), "must be a struct"),
        ({"value": {b"a"}}, "the column value .*a list, a 2-D array of bytes, .offsets, data"),
        ({"value": ([0, 1], b"a")}, "the column value offsets must be a buffer, not list"),
        ({"value": (array.array("i", [0, 1]), "a")}, "the column value data must be a buffer, not str"),
        ({"value": (b"\x00\x01", b"a")}, "int32 or int64"),
        ({"value": (np.array([0, 1], "u4"), b"a")}, "int32 or int64"),
        ({"value": (np.array([0, 1], ">i4"), b"a")}, "int32 or int64"),
        ({"value": (array.array("i", [0, 1]), b"a"), "timestamp": array.array("i", [1])}, "must be int64"),
        ({"value": (array.array("i", [0, 1]), b"a"), "timestamp": True}, "timestamp must be a buffer, not bool"),
        ({"value": (array.array("i", [0, 1]), b"a"), "timestamp": np.array([1], "M8[ms]")}, "cannot be read as"),
        ({"value": (array.array("i", [0, 1]), b"a"), "headers": ([],)}, "the column headers must be a list"),
        (pa.record_batch({"value": pa.array([1])}), "binary or string, .* not l"),
        (pa.record_batch({"value": pa.array([b"a"], pa.binary_view())}), "binary or string, .* not vz"),
        (pa.record_batch({"value": pa.array([b"a"]).dictionary_encode()}), "not i|dictionary"),
        (pa.record_batch({"value": pa.array(["a"]), "timestamp": pa.array([1], pa.timestamp("us"))}), "not tsu"),
        (pa.record_batch({"value": pa.array(["a"]), "headers": pa.array([["a"]])}), "struct<key, value>"),
        (pa.record_batch({"value": pa.array(["a"]), "headers": pa.array(["a"])}), "struct<key, value>"),
        (pa.record_batch({
            "value": pa.array(["a"]), "headers": pa.array([[{"value": "a", "key": "b"}]]),
        }), "in this order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_of_another_type_are_a_type_error(columns, words):
    with pytest.raises(TypeError, match=words):
        encoded(columns)


def test_columns_that_were_looked_at_can_be_encoded_again():
    source = ColumnSource(arrow(ROWS))
    assert (len(source), source.timestamp) == (3, None)
    assert one_batch(source) == one_batch(source) == expected(ROWS)
