"""Rows of tables from golden segments with bytes changed on purpose, any choice of columns and rows: what the iteration
of records gives of each batch, or a refusal. And the Arrow stream, by itself.
"""
import os
import random
import sys
from array import array

import pyarrow
import pytest

from seglog._kernels.arena import ArenaPool
from seglog._kernels.arrow_stream import export_stream
from seglog._kernels.segment_scan import scan
from seglog._kernels.topic_rows import COLUMNS, RowLayout, TopicRows, topic_rows
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, SeglogError
from seglog.format.compression import decompressor
from support.mutations import mend_checksums, mutate
from support.plain_format import batch_v2, message, record_v2

MUTATIONS = 8_000 if os.environ.get("SEGLOG_TORTURE") else 400
MAX_SEGMENT_BYTES = 20_000
INT64_MAX = 2**63 - 1


def iterated(batch):
    try:
        return [
            (r.key, r.value, "t", 3, r.offset, None if r.timestamp == -1 else r.timestamp, r.timestamp_type,
             tuple((replaced(key), value) for key, value in r.headers)) for r in batch
        ]
    except SeglogError as error:
        return error


def replaced(key):
    return key.encode("utf-8", "surrogateescape").decode(errors="replace")


def rows_of(rows, columns):
    """As `iterated` has them; times that are at the ends of what microseconds hold stay there."""
    batch = pyarrow.record_batch(rows)
    batch.validate(full=True)
    found = []
    for name in columns:
        column = batch[name]
        values = column.cast("int64").to_pylist() if name == "timestamp" else column.to_pylist()
        if name == "headers":
            values = [tuple((h["key"], h["value"]) for h in headers) for headers in values]
        found.append(values)
    return list(zip(*found, strict=True))


def micros(row):
    time = row[5]
    if time is not None:
        time = min(max(time * 1000, -(2**63)), INT64_MAX)
    return (*row[:5], time, *row[6:])


def test_whatever_the_bytes_say_rows_and_iteration_agree(golden_kafka):
    logs = [
        log.read_bytes() for log in sorted((golden_kafka / "cases").glob("*/*-0/*.log"))
        if 0 < log.stat().st_size <= MAX_SEGMENT_BYTES
    ]
    rng = random.Random(20_261_123)
    pool = ArenaPool(chunk_bytes=1 << 16)
    given = refused = 0
    for n in range(MUTATIONS):
        data = mutate(rng, rng.choice(logs))
        if rng.random() < 0.7:
            data = mend_checksums(data)
        # An array has not a byte more than its own: a sanitizer sees the first one read behind it.
        table = scan(Window(array("B", data)), decompress=decompressor(1 << 20))
        for slot, batch in enumerate(table):
            columns = rng.sample(COLUMNS, rng.randint(1, len(COLUMNS)))
            layout = RowLayout(columns, "t", 3, has_views=rng.random() < 0.3)
            expected = [] if batch.is_control else iterated(batch)
            bounds = {}
            if not isinstance(expected, SeglogError) and expected and rng.random() < 0.5:
                offsets = sorted(rng.choice(expected)[4] for _ in range(2))
                bounds = {"start_offset": offsets[0], "stop_offset": offsets[1] + 1}
                # (A header that lies about the latest time leads past its batch, as it does every search by time.)
                if rng.random() < 0.5 and all((row[5] or 0) <= batch.max_timestamp for row in expected):
                    bounds |= {"low_ms": rng.choice(expected)[5] or 0, "high_ms": INT64_MAX}
            try:
                chunks = list(topic_rows(
                    table, pool, layout, start=slot, stop=slot + 1, check_crc=False, is_mapped=rng.random() < 0.5,
                    **bounds,
                ))
            except SeglogError:
                refused += 1
                assert isinstance(expected, SeglogError), (n, slot)
                continue
            if isinstance(expected, SeglogError):
                assert "headers" not in columns, (n, slot)      # they alone may have been malformed
                continue
            kept = [
                micros(row) for row in expected
                if bounds.get("start_offset", -INT64_MAX - 1) <= row[4] < bounds.get("stop_offset", INT64_MAX)
                and (-1 if row[5] is None else row[5]) >= bounds.get("low_ms", -INT64_MAX - 1)
            ]
            found = [row for chunk in chunks for row in rows_of(chunk, columns)]
            wanted = [tuple(row[COLUMNS.index(name)] for name in columns) for row in kept]
            assert found == wanted, (n, slot, columns, bounds)
            given += len(found)
            del chunks
    assert pool.used_bytes == 0
    assert given > 10 * MUTATIONS
    assert refused > MUTATIONS // 10


def test_what_lies_out_of_time_is_not_opened():
    """A batch whose header says that it is too early is passed over, whatever its records are."""
    good = batch_v2(record_v2(0, 0, None, b"v"), count=1, base_offset=7, base_timestamp=5, max_timestamp=5)
    bad = bytearray(batch_v2(record_v2(0, 0, None, b"v"), count=1, base_offset=6, base_timestamp=4, max_timestamp=4))
    bad[-1] ^= 1
    table = scan(Window(bytes(bad) + good))
    layout = RowLayout(["offset"], "t", 0)
    [rows] = topic_rows(table, ArenaPool(), layout, low_ms=5)
    assert (len(rows), rows.first_offset, rows.last_offset) == (1, 7, 7)
    with pytest.raises(CorruptRecordError):
        list(topic_rows(table, ArenaPool(), layout))
    walk = topic_rows(table, ArenaPool(), layout)
    with pytest.raises(CorruptRecordError):
        next(walk)
    assert walk.next_batch == 0
    walk.skip_batch()
    assert [len(rows) for rows in walk] == [1]


def test_layouts_are_checked():
    for columns in ([], ["key", "key"], ["nothing"]):
        with pytest.raises(InvalidArgumentError):
            RowLayout(columns, "t", 0)
    with pytest.raises(InvalidArgumentError):
        RowLayout(["key"], "t", 0, key_text="latin1")
    with pytest.raises(TypeError):
        TopicRows()


def test_rows_outlive_what_they_were_made_of():
    pool = ArenaPool()
    table = scan(Window(bytes(batch_v2(record_v2(0, 0, b"k", b"v" * 40, [(b"h", b"x")]), count=1, base_offset=0))))
    batches = [
        pyarrow.record_batch(next(topic_rows(table, pool, RowLayout(COLUMNS, "a topic", 5, has_views=views))))
        for views in (False, True)
    ]
    without_headers = RowLayout(COLUMNS[:-1], "a topic", 5, has_views=True)
    batches += [
        pyarrow.record_batch(next(topic_rows(table, pool, without_headers, is_mapped=mapped)))
        for mapped in (False, True)
    ]
    del table
    for batch in batches:
        part = batch["topic"], batch["value"], batch[batch.num_columns - 1]
        batch.validate(full=True)
        assert batch.to_pylist()[0]["value"] == b"v" * 40
        del batch
        assert part[0].to_pylist() == ["a topic"]
    assert pool.used_bytes > 0
    del batches, part
    assert pool.used_bytes == 0


def test_views_of_a_map_are_of_its_own_bytes_and_others_of_a_copy():
    pool = ArenaPool()
    data = bytes(b"".join(
        batch_v2(record_v2(0, 0, b"key %d" % n, b"v" * 40), count=1, base_offset=n) for n in range(3)
    ))
    before = sys.getrefcount(data)
    table = scan(Window(data))
    layout = RowLayout(["key", "value"], "t", 3, has_views=True)
    first, end = pyarrow.py_buffer(data).address, pyarrow.py_buffer(data).address + len(data)
    for mapped in (True, False):
        [rows] = topic_rows(table, pool, layout, is_mapped=mapped)
        batch = pyarrow.record_batch(rows)
        batch.validate(full=True)
        assert batch.to_pydict() == {"key": [b"key 0", b"key 1", b"key 2"], "value": [b"v" * 40] * 3}
        there = batch["value"].buffers()[2]
        assert (first <= there.address < there.address + there.size <= end) == mapped
        del rows, batch, there
    [rows] = topic_rows(table, pool, layout, is_mapped=True)
    batch = pyarrow.record_batch(rows)
    del rows, table
    assert sys.getrefcount(data) > before
    del batch
    assert sys.getrefcount(data) == before


class Batches:
    """An iterator of two batches, which then ends, or raises."""

    def __init__(self, error=None):
        self.error = error
        self.left = 2

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise self.error or StopIteration
        self.left -= 1
        return pyarrow.record_batch({"a": [self.left]})


def test_a_stream_gives_batches_until_the_end_or_an_error():
    class Exported:
        def __init__(self, batches):
            self.batches = batches

        def __arrow_c_stream__(self, requested_schema=None):
            return export_stream(pyarrow.schema({"a": pyarrow.int64()}), self.batches)

    assert pyarrow.table(Exported(Batches()))["a"].to_pylist() == [1, 0]
    for error, words in ((ValueError("what happened"), "what happened"), (KeyboardInterrupt(), "KeyboardInterrupt"),
                         (ValueError("\udcff"), r"\?")):
        reader = pyarrow.RecordBatchReader.from_stream(Exported(Batches(error)))
        assert reader.read_next_batch().num_rows == 1
        with pytest.raises(OSError, match=words):
            reader.read_all()
    with pytest.raises(OSError, match="__arrow_c_array__"):
        pyarrow.table(Exported(iter([1])))
    for _ in range(50):
        Exported(Batches()).__arrow_c_stream__()        # never pulled: nothing is left behind


def test_times_at_the_edges_of_what_the_quick_look_takes_are_shown_as_any_other():
    """2^53 ms and more, and what is negative, take the long way: one of them among nine plain ones, at any place."""
    pool, layout = ArenaPool(chunk_bytes=1 << 16), RowLayout(["timestamp"], "t", 3)
    for odd in (-1, -2, -(2**63), INT64_MAX, INT64_MAX // 1000, INT64_MAX // 1000 + 1, 2**53 - 1, 2**53, 0):
        for place in range(9):
            times = [1_700_000_000_000 + n for n in range(9)]
            times[place] = odd
            messages = b"".join(message(n, b"k", b"v", timestamp=time, magic=1) for n, time in enumerate(times))
            [rows] = topic_rows(scan(Window(messages)), pool, layout)
            expected = [None if time == -1 else min(max(time * 1000, -(2**63)), INT64_MAX) for time in times]
            assert pyarrow.record_batch(rows)["timestamp"].cast("int64").to_pylist() == expected


def test_chunks_have_the_size_that_is_asked_for():
    segment = b"".join(
        batch_v2(record_v2(value=bytes(1000)), base_offset=n) for n in range(60)
    )
    table, layout = scan(Window(segment)), RowLayout(["offset"], "t", 3)
    pool = ArenaPool(chunk_bytes=10_000)
    assert [len(rows) for rows in topic_rows(table, pool, layout)] == [10] * 6
    assert [len(rows) for rows in topic_rows(table, pool, layout, chunk_bytes=30_000)] == [29, 29, 2]


@pytest.mark.parametrize(("columns", "is_narrow"), [
    (["offset"], True), (["topic", "partition", "timestamp", "timestampType"], True), (["offset", "key"], False),
    (["value"], False), (["headers"], False),
])
def test_a_layout_without_bytes_is_narrow(columns, is_narrow):
    assert RowLayout(columns, "t", 3).is_narrow == is_narrow
