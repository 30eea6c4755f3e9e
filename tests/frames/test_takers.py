"""What polars, DuckDB, pandas and numpy make of a topic: every golden record; queries whose filters are pushed down."""
import datetime as dt
import json
import shutil
import subprocess
import sys

import duckdb
import numpy
import polars
import pyarrow
import pytest

import seglog
import seglog.polars
from seglog.errors import CorruptRecordError, MissingLibraryError
from seglog.frames import polars_source
from seglog.frames import rows as rows_module
from seglog.frames.bounds import Bounds, bounds_of_text
from seglog.frames.polars_source import bounds_of
from support.table_rows import COLUMNS, by_partition, directories, expected_rows, rows_of_table

T = 1_700_000_000_000


@pytest.fixture(scope="module")
def golden():
    """The golden rows, and a scan of all of them."""
    return {k: rows for k, rows in expected_rows().items() if rows}, seglog.scan(directories(), include_headers=True)


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Three partitions. Record n: key b"k<n % 7>", value b"value <n>", time T + n."""
    data = tmp_path_factory.mktemp("orders")
    for partition in range(3):
        with seglog.open(data / f"orders-{partition}", fsync="never", config={
            "segment.bytes": 3000, "index.interval.bytes": 100, "retention.ms": -1,
            "seglog.time.index.ranges.enabled": True,
        }) as log:
            for n in range(0, 600, 5):
                log.append_many([(b"k%d" % (m % 7), b"value %d" % m, (), T + m) for m in range(n, n + 5)])
    return data


@pytest.fixture
def read(monkeypatch):
    """Counts the rows that scans gave, and tells which columns they had."""
    seen = {"rows": 0, "columns": set()}
    batches = rows_module.RowScan.batches

    def counted(self, *pool, **options):
        for rows in batches(self, *pool, **options):
            seen["rows"] += len(rows)
            seen["columns"] |= set(rows.layout.columns)
            yield rows

    monkeypatch.setattr(rows_module.RowScan, "batches", counted)
    return seen


# --- every golden record ---------------------------------------------------------------------------------------

def test_polars_has_every_golden_record(golden):
    expected, scan = golden
    frame = scan.to_polars()
    assert frame.schema["topic"] == polars.String
    assert by_partition(rows_of_table(frame.to_arrow())) == expected
    assert by_partition(rows_of_table(polars.DataFrame(scan).to_arrow())) == expected
    assert by_partition(rows_of_table(seglog.polars.scan_topic(scan).collect().to_arrow())) == expected


def test_duckdb_has_every_golden_record(golden):
    expected, scan = golden
    dataset = scan.dataset()
    for source in ("scan", "dataset"):
        table = duckdb.sql(f"select * from {source}").to_arrow_table()
        assert by_partition(rows_of_table(table)) == expected, (source, scan, dataset)


def test_pandas_has_every_golden_record(golden):
    expected, scan = golden
    frame = scan.to_pandas()
    times = frame["timestamp"].astype("datetime64[us, UTC]")
    rows = zip(
        frame["key"], frame["value"], frame["topic"], frame["partition"], frame["offset"],
        [None if missing else t.value // 1000 for t, missing in zip(times, times.isna(), strict=True)],
        frame["timestampType"], [tuple((h["key"], h["value"]) for h in headers) for headers in frame["headers"]],
        strict=True,
    )
    assert by_partition(rows) == expected


def test_numpy_has_every_golden_record(golden):
    expected, scan = golden
    arrays = scan.to_numpy()
    assert list(arrays) == list(COLUMNS)
    assert arrays["timestamp"].dtype == numpy.dtype("datetime64[us]")
    assert arrays["offset"].dtype == numpy.int64
    times = [None if numpy.isnat(t) else int(t.astype("int64")) for t in arrays["timestamp"]]
    headers = [tuple((h["key"], h["value"]) for h in row) for row in arrays["headers"]]
    assert by_partition(zip(*[
        times if name == "timestamp" else headers if name == "headers" else arrays[name].tolist() for name in COLUMNS
    ], strict=True)) == expected


def test_a_topic_without_a_record_has_its_columns_everywhere(tmp_path):
    seglog.open(tmp_path / "empty-0").close()
    scan = seglog.scan(tmp_path, include_headers=True)
    assert scan.to_polars().schema == seglog.polars.scan_topic(scan).collect().schema
    assert scan.to_pandas().shape == (0, 8)
    assert {len(array) for array in scan.to_numpy().values()} == {0}
    assert duckdb.sql("select count(*) from scan").fetchall() == [(0,)]
    assert duckdb.from_arrow(scan.dataset()).aggregate("count(*), max(value)").fetchall() == [(0, None)]


# --- filters that are pushed down --------------------------------------------------------------------------------

def when(n):
    return dt.datetime.fromtimestamp((T + n) / 1000, dt.UTC)


def test_polars_gets_views_and_makes_none_of_its_own(orders, monkeypatch):
    taken = []
    made = polars_source._frame

    def frame(library, rows):
        taken.append(pyarrow.schema(rows).field("value").type)
        return made(library, rows)

    monkeypatch.setattr(polars_source, "_frame", frame)
    seglog.polars.scan_topic(orders).collect()
    seglog.scan(orders).to_polars()
    assert set(taken) == {pyarrow.binary_view()}


C = polars.col
QUERIES = [     # (polars' filter, SQL's, which rows (partition, n), at most so many are read)
    (C("offset") >= 590, '"offset" >= 590', lambda p, n: n >= 590, 60),
    (C("offset") == 77, '"offset" = 77', lambda p, n: n == 77, 30),
    ((C("offset") > 100) & (C("offset") <= 110) & (C("partition") == 1),
     '"offset" > 100 and "offset" <= 110 and partition = 1', lambda p, n: 100 < n <= 110 and p == 1, 30),
    ((C("partition") == 2) & (C("key") == b"k3"), "partition = 2 and key = 'k3'::blob",
     lambda p, n: p == 2 and n % 7 == 3, 600),
    (C("partition").is_in([0, 2]), "partition in (0, 2)", lambda p, n: p in (0, 2), 1200),
    (C("timestamp").is_between(when(300), when(309)),
     f"timestamp between '{when(300)}' and '{when(309)}'", lambda p, n: 300 <= n <= 309, 90),
    ((C("timestamp") < when(20)) & (C("value") != b"value 3"), f"timestamp < '{when(20)}' and value <> 'value 3'::blob",
     lambda p, n: n < 20 and n != 3, 120),
    (C("topic") == "other", "topic = 'other'", lambda p, n: False, 0),
    ((C("offset") < 5) | (C("offset") > 595), '"offset" < 5 or "offset" > 595', lambda p, n: n < 5 or n > 595, 1800),
    (~(C("offset") < 590), 'not ("offset" < 590)', lambda p, n: n >= 590, 1800),
    (C("timestamp").is_null(), "timestamp is null", lambda p, n: False, 1800),
]


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_filters_are_pushed_into_the_files_and_change_no_answer(orders, read, number):
    condition, sql, keeps, most = QUERIES[number]
    expected = [(p, n) for p in range(3) for n in range(600) if keeps(p, n)]
    found = seglog.polars.scan_topic(orders).filter(condition).select("partition", "offset").collect()
    assert found.rows() == expected
    assert read["rows"] <= most
    read["rows"] = 0
    dataset = seglog.scan(orders).dataset()
    found = duckdb.sql(f'select partition, "offset" from dataset where {sql} order by all').fetchall()
    assert (found, dataset is None) == (expected, False)
    assert read["rows"] <= max(most, 0)


@pytest.mark.parametrize("decode", ["utf8", "json", {"value": "json"}])
def test_json_is_text_in_polars(orders, decode):
    scan = seglog.scan(orders, decode=decode, columns=["key", "value", "offset"])
    whole = scan.to_polars()
    assert whole.schema["value"] == polars.String
    found = seglog.polars.scan_topic(scan).filter(C("value") == "value 7").collect()
    assert found.schema == whole.schema
    assert found["offset"].to_list() == [7, 7, 7]


def test_only_the_columns_of_a_query_are_decoded(orders, read):
    frame = seglog.polars.scan_topic(orders)
    assert frame.select(polars.len()).collect().item() == 1800
    assert len(read["columns"]) <= 1
    total = frame.filter(C("partition") == 1).select(C("value").bin.size().sum()).collect().item()
    assert total == sum(len(f"value {n}") for n in range(600))
    assert read["columns"] <= {"value", "partition", "key"}
    read["columns"] = set()
    dataset = seglog.scan(orders).dataset()
    [(found,)] = duckdb.sql("select sum(octet_length(value)) from dataset where partition = 1").fetchall()
    assert (found, dataset is None) == (total, False)
    assert read["columns"] == {"value", "partition"}


def test_a_limit_reads_no_more_than_it_needs(tmp_path, read):
    with seglog.open(tmp_path / "big-0", fsync="never") as log:
        for _ in range(12):
            log.append_many([(None, b"v" * 1000)] * 900)
    frame = seglog.polars.scan_topic(tmp_path / "big-0")
    assert frame.head(5).collect()["offset"].to_list() == [0, 1, 2, 3, 4]
    assert read["rows"] < 6000
    assert frame.filter(C("offset") > 5).head(3).collect()["offset"].to_list() == [6, 7, 8]
    assert frame.head(8).filter(C("offset") > 5).collect()["offset"].to_list() == [6, 7]
    assert frame.tail(2).collect()["offset"].to_list() == [10798, 10799]


@pytest.mark.parametrize(("text", "bounds"), [
    ("(offset >= 5)", Bounds(from_offset=5)),
    ("((offset > 5) and (partition == 3))", Bounds(from_offset=6, partitions=frozenset({3}))),
    ("(timestamp < 1970-01-01 00:00:01.000001Z)", Bounds(until_ms=1001)),
    ("(timestamp >= 1970-01-01 00:00:01.999999Z)", Bounds(since_ms=1999)),
    ('((topic == "a-b.c") and (offset <= 7))', Bounds(to_offset=8, topics=frozenset({"a-b.c"}))),
    # A constant that looks like a term, other columns, what is not a conjunction: nothing is pruned by these.
    ('((topic == "x) and (offset > 5") and (partition == 1))', Bounds()),
    ("((offset > 5) or (partition == 3))", Bounds()),
    ("invert((offset > 5))", Bounds()),
    ("(offset > partition)", Bounds()),
    ("((offset * 2) > 5)", Bounds()),
    ("(timestampType == 1)", Bounds()),
    ("", Bounds()),
])
def test_the_text_of_a_filter_tells_bounds_or_nothing(text, bounds):
    assert bounds_of_text(text) == bounds


@pytest.mark.parametrize(("predicate", "bounds"), [
    (C("offset") >= 5, Bounds(from_offset=5)),
    (polars.lit(5) <= C("offset"), Bounds(from_offset=5)),
    (polars.lit(5) > C("offset"), Bounds(to_offset=5)),
    (C("partition").is_in([1, 2]) & (C("partition") == 2), Bounds(partitions=frozenset({2}))),
    (C("timestamp") >= dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), Bounds(since_ms=0)),
    (C("offset") > C("partition"), Bounds()),
    (C("offset") + 1 > 5, Bounds()),
    (C("offset").map_elements(lambda n: n, polars.Int64) > 5, Bounds()),
    ((C("offset") > 5) | (C("offset") < 2), Bounds()),
    (C("partition").is_in([1, None]), Bounds()),
])
def test_the_tree_of_a_filter_tells_bounds_or_nothing(predicate, bounds):
    assert bounds_of(predicate) == bounds


# --- errors, and what is imported ----------------------------------------------------------------------------------

def test_damage_is_told_by_every_door(orders, tmp_path):
    copy = tmp_path / "orders-0"
    copy.mkdir()
    for path in (orders / "orders-0").glob("*.log"):
        (copy / path.name).write_bytes(path.read_bytes())
    path = sorted(copy.glob("*.log"))[1]
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    scan = seglog.scan(copy)
    for door in (scan.to_arrow, scan.to_pandas, scan.to_polars, scan.to_numpy):
        with pytest.raises(CorruptRecordError, match=path.name):
            door()
    connection = duckdb.connect()
    connection.register("scan", scan)
    connection.register("dataset", scan.dataset())
    for door in (
        lambda: pyarrow.table(scan), lambda: polars.DataFrame(scan), lambda: seglog.polars.scan_topic(scan).collect(),
        lambda: connection.sql("select count(value) from scan").fetchall(),
        lambda: connection.sql("select count(value) from dataset").fetchall(),
    ):
        with pytest.raises(Exception, match=path.name):
            door()


def test_libraries_are_imported_when_they_are_used_and_named_where_they_are_missing(tmp_path):
    code = """
import json, sys, importlib.abc
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyarrow", "polars", "pandas", "numpy"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import seglog
with seglog.open(sys.argv[1]) as log:
    log.append(b"v")
scan = seglog.scan(sys.argv[1])
scan.__arrow_c_stream__(), sum(map(len, scan.batches()))
said = {}
for name in ("to_arrow", "to_pandas", "to_polars", "to_numpy", "dataset", "to_reader"):
    try:
        getattr(scan, name)()
    except seglog.errors.MissingLibraryError as error:
        said[name] = str(error)
try:
    seglog.polars.scan_topic(scan)
except ImportError as error:
    said["scan_topic"] = str(error)
print(json.dumps(said))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "t-0")]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 7
    assert "pyarrow" in said["to_arrow"]
    assert "pip install 'seglog[arrow]'" in said["to_arrow"]
    assert "pip install polars" in said["scan_topic"]
    assert issubclass(MissingLibraryError, ImportError)


def test_memory_stays_small_however_large_the_topic(tmp_path):
    """Anonymous memory of a process that reads 110 MB: the arenas of a few chunks a thread."""
    with seglog.open(tmp_path / "big-0", fsync="never", config={"segment.bytes": 40 << 20}) as log:
        values = [b"%064d" % n for n in range(20_000)]
        for _ in range(40):
            log.append_columns(keys=values, values=values)
    code = """
import sys, seglog
def anonymous():
    fields = dict(line.split(":") for line in open("/proc/self/status") if ":" in line)
    return int(fields["RssAnon"].split()[0]) // 1024
before = peak = anonymous()
total = 0
for rows in seglog.scan(sys.argv[1], threads=4).batches():
    rows.__arrow_c_array__()
    total += len(rows)
    peak = max(peak, anonymous())
print(total, peak - before)
"""
    total, grown = map(int, subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True).stdout.split())
    assert total > 600_000
    assert grown < 64


# --- rows that polars keeps ------------------------------------------------------------------------------------

def test_rows_of_a_lazy_query_outlive_the_files(tmp_path):
    """They are views of the files' own bytes, which a removed file keeps as long as it is mapped."""
    with seglog.open(tmp_path / "orders-0", fsync="never", config={"segment.bytes": 3000}) as log:
        for n in range(200):
            log.append(b"a value of more than twelve bytes %d" % n, key=b"%d" % n)
        assert len(log.segments) > 3
    frame = seglog.polars.scan_topic(tmp_path / "orders-0").select("key", "value").collect()
    shutil.rmtree(tmp_path)
    assert frame.rows() == [(b"%d" % n, b"a value of more than twelve bytes %d" % n) for n in range(200)]


TRUNCATED = """
import os, sys
from pathlib import Path
import seglog, seglog.polars
path = Path(sys.argv[1])
frame = seglog.polars.scan_topic(path).select("value").collect()
os.truncate(max(path.glob("*.log")), 0)
print(sum(len(value) for value in frame["value"].to_list()))
"""


def test_a_broker_may_truncate_the_last_segment_while_rows_are_kept(tmp_path):
    """A load behind the end of a mapped file is SIGBUS: bytes of the segment that may shrink are copied."""
    with seglog.open(tmp_path / "orders-0", fsync="never", config={"segment.bytes": 30_000}) as log:
        for _ in range(70):
            log.append(bytes(1000))
    done = subprocess.run([sys.executable, "-c", TRUNCATED, tmp_path / "orders-0"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "70000\n"), done.stderr
