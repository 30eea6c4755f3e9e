"""Columns without Arrow: lists, dicts of lists, numpy arrays, in and out."""
import datetime as dt
import gc
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog._kernels.arena import ArenaPool
from seglog._kernels.columns import decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.config import LogConfig
from seglog.errors import InvalidArgumentError, InvalidTimestampError
from seglog.format.batch import BatchEncoder

NOW = 1_790_000_000_000
ENCODER = BatchEncoder(LogConfig.of({"seglog.timestamp.check": False, "message.timestamp.after.max.ms": 2**63 - 1}))
a_field = st.none() | st.binary(max_size=60) | st.binary(max_size=5).map(bytearray) | st.just(b"v" * 700)
a_row = st.tuples(
    a_field, a_field, st.none() | st.lists(st.tuples(st.text(max_size=4), a_field), max_size=3),
    st.none() | st.integers(0, 2**50),
)


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "orders-0", clock=ManualClock(NOW), fsync="never") as opened:
        yield opened


def rows(log, start=0):
    return [(r.key, r.value, r.headers, r.timestamp) for r in log.read(start)]


@given(st.lists(a_row, min_size=1, max_size=20))
def test_lists_make_the_batch_that_their_rows_make(made):
    keys, values, headers, times = (list(column) for column in zip(*made, strict=True))
    columns = {"key": keys, "value": values, "headers": headers, "timestamp": times}
    (batch,) = ENCODER.columns(columns, NOW)
    # (Of a row None is the clock, in a column it is none.)
    expected = [(key, value, head, -1 if time is None else time) for key, value, head, time in made]
    assert bytes(batch) == bytes(ENCODER.many(expected, NOW))


@given(st.integers(1, 30), st.integers(0, 70), st.randoms())
def test_a_matrix_makes_the_batch_that_its_rows_make(count, width, rng):
    matrix = np.frombuffer(rng.randbytes(count * width), "u1").reshape(count, width)
    (batch,) = ENCODER.columns({"key": matrix, "value": matrix}, NOW)
    assert bytes(batch) == bytes(ENCODER.many([(row.tobytes(), row.tobytes()) for row in matrix], NOW))


def test_a_matrix_is_not_copied_and_its_memory_is_kept(log):
    matrix = np.arange(40_000, dtype="u1").reshape(-1, 4)
    expected = [row.tobytes() for row in matrix]
    log.append_columns(values=matrix)
    log.append_columns(values=np.lib.stride_tricks.sliding_window_view(matrix[:1], 4, axis=1)[0])
    del matrix
    gc.collect()
    assert [value for _, value, _, _ in rows(log)] == [*expected, expected[0]]


def test_several_batches_come_of_lists_that_are_too_long_for_one(in_memory):
    with seglog.open(in_memory / "small-0", config={"max.message.bytes": 500}) as log:
        log.append_columns(values=[b"v" * n for n in range(60)], keys=[None] * 60)
        assert [len(value) for _, value, _, _ in rows(log)] == list(range(60))
        assert len(list(log.batches())) > 3


@pytest.mark.parametrize(
    "times",
    [
        [NOW, NOW - 5], np.array([NOW, NOW - 5]), (np.array([NOW, NOW - 5]) // 1).astype("u8"),
        np.array([NOW, NOW - 5], "datetime64[ms]"), np.array([NOW * 1000, (NOW - 5) * 1000], "datetime64[us]"),
        [dt.datetime.fromtimestamp(NOW / 1000, dt.UTC), NOW - 5], np.array([NOW, NOW - 5], object),
        [str(NOW), np.int64(NOW - 5)],
    ],
    ids=["ints", "int64", "uint64", "ms", "us", "datetimes", "objects", "text"],
)
def test_times_of_all_kinds(log, times):
    log.append_columns(values=[b"a", b"b"], timestamps=times)
    assert [time for *_, time in rows(log)] == [NOW, NOW - 5]


@pytest.mark.parametrize("when", [NOW - 5, dt.datetime.fromtimestamp((NOW - 5) / 1000, dt.UTC), str(NOW - 5)])
def test_one_time_for_all(log, when):
    log.append_columns(values=[b"a", b"b"], timestamps=when)
    assert [time for *_, time in rows(log)] == [NOW - 5] * 2


def test_no_time_is_none(log):
    log.append_columns(values=[b"a"], timestamps=[None])
    log.append_columns(values=[b"a"], timestamps=np.array(["NaT"], "datetime64[s]"))
    assert [time for *_, time in rows(log)] == [-1, -1]


def test_seconds_are_noticed(log):
    with pytest.raises(InvalidTimestampError, match="cannot be milliseconds"):
        log.append_columns(values=[b"a"], timestamps=[NOW // 1000])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": ["text"]}, "the value of row 0 must be bytes-like or None, not str"),
        ({"value": [b"v", 5]}, "the value of row 1 must be bytes-like or None, not int"),
        ({"value": np.zeros(4, "u1")}, "two dimensions of bytes, .* not 'B' in 1"),
        ({"value": np.zeros((2, 2))}, "two dimensions of bytes, .* not 'd' in 2"),
        ({"value": np.zeros((2, 2, 2), "u1")}, "in 3"),
        ({"value": np.asfortranarray(np.zeros((3, 2), "u1"))}, "must be contiguous"),
        ({"value": np.zeros((3, 4), "u1")[:, ::2]}, "must be contiguous"),
        ({"value": [b"v"], "key": [b"k"] * 2}, "2 rows, but other columns have 1|1 rows, but other columns have 2"),
        ({"value": np.zeros((3, 2), "u1"), "key": [b"k"]}, "rows, but other columns"),
        ({"value": [b"v"], "headers": [{"a": b"1"}]}, "the headers of row 0 must be a sequence"),
        ({"value": [b"v"], "headers": [[(b"a", b"1")]]}, "a header of row 0 must be a pair"),
        ({"value": [b"v"], "headers": [[("a", "1")]]}, "the header value of row 0 must be bytes-like"),
        ({"value": [b"v"], "headers": {"a": b"1"}}, "the column headers must be a list"),
        ({"value": [b"v"], "timestamp": ["soon"]}, "the timestamp of row 0: not a time"),
        ({"value": [b"v"], "timestamp": [1.5]}, "not a time"),
        ({"value": [b"v"], "timestamp": [2**64]}, "64 bits"),
        ({"value": [b"v"], "timestamp": [[NOW]]}, "not a time"),
        ({"value": "text"}, "the column value .*a list"),
        ({"value": []}, "a batch must contain at least one record"),
        ({"values": [b"v"]}, "no column is called 'values'"),
    ],
)
def test_what_is_no_column_is_refused_and_nothing_is_written(log, columns, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        log.append_columns(columns)
    assert refused.value.hint
    assert log.log_end_offset == 0


# --- out ----------------------------------------------------------------------------------------------


def test_numpy_arrays_of_a_read_lie_on_the_same_memory(log):
    log.append_many([(b"k%d" % n, None if n == 3 else b"v" * n, (), NOW - n) for n in range(6)])
    (columns,) = log.columns()
    arrays = columns.numpy()
    assert arrays["offset"].tolist() == list(range(6))
    assert arrays["timestamp"].tolist() == [NOW - n for n in range(6)]
    offsets, data, validity = arrays["value"]
    assert offsets.tolist() == [0, 0, 1, 3, 3, 7, 12]
    assert (data.tobytes(), np.unpackbits(validity, bitorder="little")[:6].tolist()) == (b"v" * 12, [1, 1, 1, 0, 1, 1])
    for array, view in ((data, columns.value.data), (arrays["offset"], columns.offset)):
        assert np.shares_memory(array, np.asarray(view))
        assert not array.flags.writeable


def test_what_numpy_gives_is_what_append_columns_takes(log):
    log.append_many([(b"k" if n % 2 else None, b"v" * n, (), NOW - n) for n in range(6)])
    (columns,) = log.columns()
    log.append_columns(columns.numpy())
    assert rows(log, 6) == rows(log)[:6]


def test_rows_of_one_length_are_a_matrix(log):
    log.append_columns(values=np.arange(12, dtype="u1").reshape(3, 4), keys=[b"a", b"bb", None])
    (columns,) = log.columns()
    matrix = columns.value.matrix()
    assert matrix.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert np.shares_memory(matrix, np.asarray(columns.value.data))
    for column in (columns.key, columns.header_key):
        if len(column):
            with pytest.raises(InvalidArgumentError, match="make no matrix"):
                column.matrix()
    assert columns.header_key.matrix().shape == (0, 0)


def test_arrays_live_as_long_as_they_are_held():
    """The memory goes back to its pool, to be written again, with the last array that lies in it."""
    pool = ArenaPool()
    table = scan(Window(seglog.build_batch([(b"k", b"%03d" % n) for n in range(100)])))
    columns = decode(table, 0, len(table), pool)
    data = columns.value.numpy()[1]
    matrix = columns.value.matrix()
    used = pool.used_bytes
    del columns, data
    gc.collect()
    assert pool.used_bytes == used
    other = decode(scan(Window(seglog.build_batch([(b"k", b"xyz")] * 100))), 0, 1, pool)
    assert matrix[7].tobytes() == b"007"
    del matrix
    gc.collect()
    assert pool.used_bytes < used + 1 or len(other)
    assert re.match("<Columns", repr(other))
