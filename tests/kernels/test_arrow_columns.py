"""Columns by the Arrow C data interface, as pyarrow takes them."""
import gc
import sys
from importlib.machinery import BuiltinImporter

import pyarrow
import pytest

from seglog._kernels.arena import ArenaPool
from seglog._kernels.columns import chunks
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.compression import decompressor
from support.columns import columns_of
from support.golden import golden_cases
from support.plain_format import batch_v2, message, record_v2

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("offset", pyarrow.int64(), nullable=False),
        pyarrow.field("timestamp", pyarrow.timestamp("ms", "UTC")),
        pyarrow.field("key", pyarrow.binary()),
        pyarrow.field("value", pyarrow.binary()),
        pyarrow.field(
            "headers",
            pyarrow.list_(
                pyarrow.field(
                    "item",
                    pyarrow.struct([pyarrow.field("key", pyarrow.binary(), False), ("value", pyarrow.binary())]),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)


def some_columns(pool=None):
    records = record_v2(0, 0, b"k", None, [(b"h", None), (b"", b"x")]) + record_v2(1, -6, None, b"value")
    return columns_of(batch_v2(records, count=2, base_offset=7, base_timestamp=5), pool)


def test_the_schema_is_the_same_for_every_chunk():
    assert pyarrow.schema(some_columns()).equals(SCHEMA, check_metadata=True)
    assert pyarrow.schema(columns_of(b"")).equals(SCHEMA, check_metadata=True)


def test_nulls_stay_nulls():
    batch = some_columns().to_arrow()
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch["key"].to_pylist() == [b"k", None]
    assert batch["value"].to_pylist() == [None, b"value"]
    assert batch["headers"].to_pylist() == [[{"key": b"h", "value": None}, {"key": b"", "value": b"x"}], []]


def test_no_timestamp_is_null():
    # -1 is Kafka's "none"; another time before 1970 is one that a producer gave.
    data = message(0, magic=0) + message(1, timestamp=-1) + message(2, timestamp=0) + message(3, timestamp=-2)
    batch = columns_of(data).to_arrow()
    assert batch["timestamp"].cast("int64").to_pylist() == [None, None, 0, -2]


def test_timestamps_without_a_none_carry_no_bitmap():
    timestamps = columns_of(message(0, timestamp=5)).to_arrow()["timestamp"]
    assert (timestamps.null_count, timestamps.buffers()[0]) == (0, None)


def test_nothing_is_copied():
    columns = some_columns()
    batch = columns.to_arrow()
    addresses = {pyarrow.py_buffer(view).address for view in (columns.offset, columns.value.data, columns.key.offsets)}
    exported = {b.address for field in batch.columns for b in field.buffers() if b is not None}
    assert addresses <= exported


def test_every_golden_segment_is_valid_arrow(golden_kafka):
    pool = ArenaPool()
    rows = 0
    for case in golden_cases():
        for log in (case / f"{case.name}-0").glob("*.log"):
            table = scan(Window(log.read_bytes()), decompress=decompressor())
            for columns in chunks(table, pool, 20_000):
                batch = pyarrow.record_batch(columns)
                batch.validate(full=True)
                assert batch.schema == SCHEMA
                assert batch["offset"].to_pylist() == list(columns.offset)
                headers = batch["headers"].flatten().field("value")
                assert headers.null_count == columns.header_value.null_count
                rows += len(batch)
    assert rows > 8000


def test_no_rows_are_valid_arrow():
    batch = columns_of(b"").to_arrow()
    batch.validate(full=True)
    assert batch.num_rows == 0


def test_a_consumer_may_drop_the_rest_and_keep_one_column():
    pool = ArenaPool()
    value = some_columns(pool).to_arrow()["value"]
    gc.collect()
    assert pool.used_bytes > pool.arena_bytes       # that of headers too: what is lent is lent whole
    assert value.to_pylist() == [None, b"value"]
    del value
    gc.collect()
    assert pool.used_bytes == 0


def test_capsules_that_nobody_took_free_what_they_hold():
    pool = ArenaPool()
    columns = some_columns(pool)
    capsules = [columns.__arrow_c_array__() for _ in range(10)] + [columns.__arrow_c_schema__()]
    del columns
    assert pool.used_bytes > 0
    del capsules
    assert pool.used_bytes == 0


def test_a_requested_schema_changes_nothing():
    columns = some_columns()
    schema, array = columns.__arrow_c_array__(requested_schema=columns.__arrow_c_schema__())
    assert pyarrow.RecordBatch._import_from_c_capsule(schema, array).schema == SCHEMA


def test_chunks_make_a_table_that_outlives_them():
    pool = ArenaPool()
    data = b"".join(batch_v2(record_v2(0, 0, None, b"%d" % i), base_offset=i) for i in range(100))
    window = Window(bytearray(data))
    table = pyarrow.Table.from_batches(c.to_arrow() for c in chunks(scan(window), pool, 1000))
    del window
    gc.collect()
    for _ in range(20):
        some_columns(pool)
    table.validate(full=True)
    assert table["value"].to_pylist() == [b"%d" % i for i in range(100)]
    assert pyarrow.compute.filter(table, pyarrow.compute.greater(table["offset"], 97))["value"].to_pylist() == [
        b"98", b"99",
    ]


def test_without_pyarrow_to_arrow_says_what_is_missing(monkeypatch):
    columns = some_columns()
    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setattr(sys, "meta_path", [BuiltinImporter])        # which knows no installed package
    with pytest.raises(ImportError, match=r"seglog\[arrow\]"):
        columns.to_arrow()
