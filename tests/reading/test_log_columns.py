"""Columns that are appended: Arrow in its kinds, buffers, and what is refused."""
import datetime as dt
import sys
from array import array

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, InvalidTimestampError, RecordTooLargeError

pa = pytest.importorskip("pyarrow", reason="the extra [arrow] is not installed")

NOW = 1_700_000_000_000
ROWS = [(b"k1", b"v1", NOW - 2), (None, b"a longer value than a view holds in place", NOW), (b"k3", None, NOW - 1)]


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "orders-0", clock=ManualClock(NOW)) as opened:
        yield opened


def rows_of(log):
    return [(r.key, r.value, r.timestamp) for r in log.read()]


def table(binary=pa.binary(), time=pa.timestamp("ms", "UTC")):    # noqa: B008
    keys, values, times = zip(*ROWS, strict=True)
    return pa.table({
        "key": pa.array(keys, pa.binary()).cast(pa.string()).cast(binary),
        "value": pa.array(values, pa.binary()).cast(pa.string()).cast(binary),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")).cast(time),
    })


def batch(**kinds):
    return table(**kinds).combine_chunks().to_batches()[0]


# --- Arrow -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        batch(),
        table(),
        pa.concat_tables([table().slice(0, 1), table().slice(1, 0), table().slice(1)]),
        pa.RecordBatchReader.from_batches(table().schema, table().to_batches()),
        batch(binary=pa.string_view()),
        table(binary=pa.string_view()),
        batch(binary=pa.dictionary(pa.int32(), pa.string())),
        batch(time=pa.timestamp("us", "UTC")),
        table(time=pa.timestamp("ns")),
        pa.table({
            "key": table()["key"], "value": table()["value"], "timestamp": table()["timestamp"],
            "headers": pa.nulls(3),
        }),
        batch(time=pa.int64()),
        batch().append_column("offset", pa.array([7, 8, 9])),
    ],
    ids=["batch", "table", "chunks", "reader", "views", "a table of views", "dictionaries", "us", "ns", "no headers",
         "int64", "offsets"],
)
def test_arrow_data_of_every_kind(log, columns):
    assert log.append_columns(columns) == 2
    assert rows_of(log) == ROWS


def test_binary_views(log):
    keys, values, _ = zip(*ROWS, strict=True)
    log.append_columns(keys=pa.array(keys, pa.binary_view()), values=pa.array(values, pa.binary_view()), timestamps=NOW)
    assert [(key, value) for key, value, _ in rows_of(log)] == list(zip(keys, values, strict=True))


def test_columns_by_name_may_come_in_chunks(log):
    columns = table()
    log.append_columns(keys=columns["key"], values=columns["value"], timestamps=columns["timestamp"])
    assert rows_of(log) == ROWS


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
    ],
    ids=str,
)
def test_headers_of_a_table(log, kind):
    headers = pa.array([[{"key": "src", "value": b"web"}], None, [{"key": "a", "value": None}]], kind)
    log.append_columns(table().append_column("headers", headers))
    log.append_columns(values=pa.array([b"x"] * 3), headers=headers)
    expected = [(("src", b"web"),), (), (("a", None),)]
    assert [r.headers for r in log.read()] == expected * 2


def test_what_is_read_as_columns_is_appended_as_columns(log, in_memory):
    log.append_columns(table())
    with seglog.open(in_memory / "copy-0", clock=ManualClock(NOW)) as copy:
        for columns in log.columns():
            copy.append_columns(columns)
            copy.append_columns(pa.record_batch(columns))
        assert rows_of(copy) == ROWS * 2


def test_a_frame_of_times_of_day_keeps_its_milliseconds(log):
    when = dt.datetime(2023, 11, 14, 22, 13, 19, 123_999, tzinfo=dt.UTC)
    log.append_columns(pa.table({"value": [b"x"], "timestamp": pa.array([when], pa.timestamp("us", "UTC"))}))
    assert log[0].timestamp == NOW - 1000 + 123


# --- batches -----------------------------------------------------------------------------------------


def test_many_rows_are_split_into_batches_that_the_log_takes(in_memory):
    for number, key in enumerate(("max.message.bytes", "segment.bytes")):
        with seglog.open(in_memory / f"orders-{number}", config={key: 1000}) as log:
            last = log.append_columns(values=pa.array([b"%099d" % n for n in range(50)]))
            assert last == 49
            assert max(b.size_bytes for b in log.batches()) <= 1000
            assert [int(r.value) for r in log.read()] == list(range(50))


def test_a_refused_row_keeps_all_of_its_stream_out(log):
    late = table().set_column(2, "timestamp", pa.array([NOW, NOW, NOW + 10**8], pa.timestamp("ms")))
    with pytest.raises(InvalidTimestampError):
        log.append_columns(pa.concat_tables([table(time=pa.timestamp("ms")), late]))
    with pytest.raises(RecordTooLargeError):
        log.append_columns(values=pa.array([b"x", b"x" * (2 << 20)]))
    assert log.log_end_offset == 0


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "need a key or a value"),
        (table().slice(0, 0), "at least one record"),
        (batch().slice(0, 0), "at least one record"),
        ([b"x"], "columns|list"),
        ({"value": {b"x"}}, "the column value"),
        ({"value": pa.array([1, 2])}, "the column value must be binary or string"),
        ({"value": pa.array([b"x"]), "timestamp": pa.array(["now"])}, "the column timestamp"),
        ({"value": pa.array([b"x"]), "timestamp": array("i", [1])}, "the column timestamp must be int64"),
        ({"value": pa.array([b"x"]), "timestamp": pa.array([2**60]).cast(pa.timestamp("s"))}, "out of bounds"),
        ({"value": pa.array([b"x"]), "key": pa.array([b"x", b"y"])}, "rows, but other columns have"),
        ({"values": pa.array([b"x"])}, "values"),
    ],
)
def test_columns_that_are_none_are_refused_by_name(log, columns, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        log.append_columns(columns)
    assert refused.value.hint
    assert log.log_end_offset == 0


def test_columns_come_whole_or_by_name(log):
    for give in (lambda: log.append_columns(), lambda: log.append_columns(batch(), values=pa.array([b"x"]))):
        with pytest.raises(InvalidArgumentError, match="either"):
            give()


def test_streams_need_pyarrow_and_record_batches_do_not(log, monkeypatch):
    columns = table()
    [single] = columns.to_batches()

    class Plain:
        """A record batch of another library."""

        def __arrow_c_array__(self, requested_schema=None):
            return single.__arrow_c_array__(requested_schema)

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidArgumentError, match="pyarrow") as refused:
        log.append_columns(columns)
    assert "pip install" in refused.value.hint
    log.append_columns(Plain())
    monkeypatch.undo()
    assert rows_of(log) == ROWS
