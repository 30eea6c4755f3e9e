"""Topics as tables: scanned to Arrow, and queried with DuckDB and polars, beside the same rows in Parquet.

Measured is the processor time of the whole process, because these libraries use their own threads.
"""
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from aiokafka.record.memory_records import MemoryRecords

import seglog
import seglog.polars
from benches import data
from benches.runner import Bench, Goal

PARTITIONS = 4
# aiokafka creates an object per record, so this many are enough to measure its rate.
AIOKAFKA_RECORDS = 500_000
SQL = "select partition, count(*), sum(octet_length(value)), max(timestamp) from {} group by partition"


# The header that a service with request tracing adds to each record.
HEADERS = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
           ("content-type", b"application/json")]


def make_topic(
    directory: Path, records: int, *, with_headers: bool = False, keys_rise: bool = False
) -> None:
    """Partitions with an equal part of the records each, in segments with time ranges and batches of 16 KB."""
    keys, values, timestamps = data.messages(min(records // PARTITIONS, 250_000))
    offset = 0
    for partition in range(PARTITIONS):
        left = max(records // PARTITIONS, 1)
        now = timestamps[0]
        with seglog.open(directory / f"orders-{partition}", fsync="never", config={
            "segment.bytes": 16 << 20, "retention.ms": -1, "seglog.time.index.ranges.enabled": True,
        }) as log:
            while left > 0:
                for begin in range(0, min(left, len(keys)), 120):
                    rows = slice(begin, min(begin + 120, left, len(keys)))
                    count = len(keys[rows])
                    log.append_columns(
                        keys=[b"%012d" % n for n in range(offset, offset + count)] if keys_rise else keys[rows],
                        values=values[rows], headers=[HEADERS] * count if with_headers else None,
                        timestamps=[now + timestamp - timestamps[0] for timestamp in timestamps[rows]],
                    )
                    offset += count
                left -= len(keys)
                now += timestamps[-1] - timestamps[0] + 1


def cache_as_read(*paths: Path) -> None:
    """Load these files into the page cache as a read does: a topic as a scan loads it, a Parquet file as long reads do,
    which the system reads ahead.

    A file that was just written in pieces of 16 KB is cached in such pieces, which take longer to map; a Parquet file
    was written in large ones.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        for file in sorted(path.rglob("*.log")) if path.is_dir() else [path]:
            with open(file, "rb", buffering=0) as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while path.is_file() and opened.read(1 << 20):
                    pass
        if path.is_dir():
            rows_in(seglog.scan(path, columns=["offset"], threads=1).to_reader())


def make_stats(topic: Path) -> None:
    subprocess.run([sys.executable, "-m", "seglog.tools", "index", "stats", topic], check=True, capture_output=True)


def write_table(topic: seglog.TopicScan, path: Path, codec: str = "NONE") -> None:
    with pq.ParquetWriter(path, pa.schema(topic), compression=codec) as writer:
        for batch in topic.to_reader():
            writer.write_batch(batch)


def by_aiokafka(directory: Path, stop: int) -> pa.Table:
    """The records below `stop`, through lists of Python objects: aiokafka has no other interface."""
    columns = [], [], [], []
    for path in sorted(directory.glob("*.log")):
        records = MemoryRecords(path.read_bytes())
        while (batch := records.next_batch()) is not None:
            for record in batch:
                if record.offset >= stop:
                    break
                row = record.key, record.value, record.offset, record.timestamp
                for column, field in zip(columns, row, strict=True):
                    column.append(field)
            if batch.base_offset >= stop:
                break
        if columns[2] and columns[2][-1] == stop - 1:
            break
    keys, values, offsets, times = columns
    return pa.table({
        "key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()),
        "offset": pa.array(offsets, pa.int64()), "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
    })


def rows_in(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def run(bench: Bench, directory: Path, records: int) -> None:
    if not bench.wanted("table"):
        return
    topic = directory / "tables"
    make_topic(topic, records)
    plain, snappy = directory / "plain.parquet", directory / "snappy.parquet"
    everything = seglog.scan(topic)
    for path, codec in ((plain, "NONE"), (snappy, "snappy")):
        write_table(everything, path, codec)
    cache_as_read(topic, plain, snappy)
    million = records / 1e6
    compare = partial(bench.compare, clock=time.process_time)
    scans(compare, topic, plain, million)
    queries(compare, topic, plain, snappy, million)
    selections(compare, topic, million)
    threads(bench, topic, million)
    pruned(compare, directory, records)
    # The goal is for 2 GB, where the fixed cost of opening a topic's files is the smaller part of the time.
    by_time(compare, directory, 7 * records)
    narrow(compare, directory, records)


def scans(compare: partial[None], topic: Path, plain: Path, million: float) -> None:
    some = AIOKAFKA_RECORDS
    one = topic / "orders-0"
    rows = min(some, seglog.scan(one, columns=["offset"]).to_arrow().num_rows)
    compare(
        "table: scan to Arrow, 1 partition", rows / 1e6, "M rec/s",
        {
            "seglog": lambda: seglog.scan(one, to_offset=some, threads=1).to_arrow(),
            "aiokafka": lambda: by_aiokafka(one, some),
        },
        {("seglog", "aiokafka"): Goal(15, 25)},
    )
    compare(
        "table: scan to Arrow", million, "M rec/s",
        {
            "seglog": lambda: rows_in(seglog.scan(topic).to_reader()),
            "parquet": lambda: rows_in(pq.ParquetFile(plain).iter_batches()),
        },
        {("seglog", "parquet"): Goal(2)},
    )


def queries(compare: partial[None], topic: Path, plain: Path, snappy: Path, million: float) -> None:
    connection = duckdb.connect()
    connection.execute("set threads to 1")
    connection.register("topic", seglog.scan(topic, threads=1).dataset())
    connection.register("narrow", seglog.scan(topic, columns=["value", "partition", "timestamp"], threads=1))
    compare(
        "table: aggregate in DuckDB", million, "M rec/s",
        {
            "dataset()": lambda: connection.execute(SQL.format("topic")).fetchall(),
            "scan(columns=)": lambda: connection.execute(SQL.format("narrow")).fetchall(),
            "parquet": lambda: connection.execute(SQL.format(f"'{plain}'")).fetchall(),
            "snappy parquet": lambda: connection.execute(SQL.format(f"'{snappy}'")).fetchall(),
        },
        {
            ("dataset()", "parquet"): Goal(0.9), ("dataset()", "snappy parquet"): Goal(1.3),
            ("scan(columns=)", "parquet"): Goal(0.9), ("scan(columns=)", "snappy parquet"): Goal(1.3),
        },
    )

    def aggregated(frame: pl.LazyFrame) -> pl.DataFrame:
        return frame.group_by("partition").agg(
            pl.len(), pl.col("value").bin.size().sum(), pl.col("timestamp").max()
        ).collect()

    compare(
        "table: aggregate in polars", million, "M rec/s",
        {
            "scan_topic": lambda: aggregated(seglog.polars.scan_topic(topic, threads=1)),
            "parquet": lambda: aggregated(pl.scan_parquet(plain)),
            "snappy parquet": lambda: aggregated(pl.scan_parquet(snappy)),
        },
        {("scan_topic", "parquet"): Goal(0.8, 0.9), ("scan_topic", "snappy parquet"): Goal(1.3)},
    )


def by_time(compare: partial[None], directory: Path, records: int) -> None:
    topic, million = directory / "long", records / 1e6
    make_topic(topic, records)
    cache_as_read(topic)
    times = seglog.scan(topic / "orders-0", columns=["timestamp"]).to_arrow()["timestamp"].cast("int64")
    first, last = times[0].as_py() // 1000, times[-1].as_py() // 1000
    since, until = first + (last - first) * 60 // 100, first + (last - first) * 65 // 100

    def unpushed() -> int:
        low, high = (pa.scalar(ms * 1000, pa.timestamp("us", "UTC")) for ms in (since, until))
        kept = 0
        for batch in seglog.scan(topic, threads=1).to_reader():
            column = batch["timestamp"]
            kept += batch.filter(pc.and_(pc.greater_equal(column, low), pc.less(column, high))).num_rows
        return kept

    for name in ("table: 5 % by time", "table: 5 % by time, with index stats"):
        compare(
            name, million, "M rec/s",
            {
                "pushed": lambda: rows_in(seglog.scan(topic, since=since, until=until, threads=1).to_reader()),
                "not pushed": unpushed,
            },
            {("pushed", "not pushed"): Goal(10)},
        )
        make_stats(topic)
    shutil.rmtree(topic)


def narrow(compare: partial[None], directory: Path, records: int) -> None:
    """Two of eight columns, all of which contain data."""
    topic = directory / "traced"
    make_topic(topic, records, with_headers=True)
    cache_as_read(topic)
    compare(
        "table: two columns of eight, with headers", records / 1e6, "M rec/s",
        {
            "two": lambda: rows_in(seglog.scan(topic, columns=["offset", "timestamp"], threads=1).to_reader()),
            "eight": lambda: rows_in(seglog.scan(topic, include_headers=True, threads=1).to_reader()),
        },
        {("two", "eight"): Goal(2)},
    )
    shutil.rmtree(topic)


def pruned(compare: partial[None], directory: Path, records: int) -> None:
    """A filter for which Parquet's statistics skip row groups: a tenth of the keys, which rise."""
    topic, plain, million = directory / "keyed", directory / "keyed.parquet", records / 1e6
    make_topic(topic, records, keys_rise=True)
    make_stats(topic)
    everything = seglog.scan(topic, threads=1)
    write_table(everything, plain)
    cache_as_read(topic, plain)
    low, high = records // 10, records // 5
    where = f"key >= '{low:012d}'::blob and key < '{high:012d}'::blob"
    sql = "select count(*), sum(octet_length(value)) from {} where " + where
    connection = duckdb.connect()
    connection.execute("set threads to 1")
    connection.register("topic", everything.dataset())
    expected = connection.execute(sql.format(f"'{plain}'")).fetchall()
    if connection.execute(sql.format("topic")).fetchall() != expected:
        raise AssertionError("another answer than that of Parquet")
    compare(
        "table: a tenth of the keys in DuckDB", million, "M rec/s",
        {
            "with index stats": lambda: connection.execute(sql.format("topic")).fetchall(),
            "parquet": lambda: connection.execute(sql.format(f"'{plain}'")).fetchall(),
        },
        {("with index stats", "parquet"): Goal(0.7)},
    )

    def answer(frame: pl.LazyFrame) -> pl.DataFrame:
        wanted = pl.col("key").is_between(b"%012d" % low, b"%012d" % high, closed="left")
        return frame.filter(wanted).select(pl.len(), pl.col("value").bin.size().sum()).collect()

    compare(
        "table: a tenth of the keys in polars", million, "M rec/s",
        {
            "with index stats": lambda: answer(seglog.polars.scan_topic(topic, threads=1)),
            "parquet": lambda: answer(pl.scan_parquet(plain)),
        },
        {("with index stats", "parquet"): Goal(0.7)},
    )
    connection.close()
    shutil.rmtree(topic)


def selections(compare: partial[None], topic: Path, million: float) -> None:
    compare(
        "table: two columns of eight", million, "M rec/s",
        {
            "two": lambda: rows_in(seglog.scan(topic, columns=["offset", "timestamp"], threads=1).to_reader()),
            "eight": lambda: rows_in(seglog.scan(topic, include_headers=True, threads=1).to_reader()),
        },
        {("two", "eight"): Goal()},             # the eighth is empty: see below
    )


# Reads its half of a topic each time it receives a line, and answers with one.
HALF = """
import sys, seglog
scan = seglog.scan(sys.argv[1:], threads=1)
for _ in sys.stdin:
    print(sum(batch.num_rows for batch in scan.to_reader()), flush=True)
"""


def threads(bench: Bench, topic: Path, million: float) -> None:
    """Wall time, which is only meaningful on an idle machine. Two processes are the upper limit."""
    case = "table: threads, by wall time"
    if not bench.wanted(case):
        return
    halves = [sorted(map(str, topic.glob("orders-*")))[half::2] for half in range(2)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", HALF, *half], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )) for half in halves
        ]

        def in_processes() -> int:
            for process in started:
                print(file=process.stdin, flush=True)
            return sum(int(process.stdout.readline()) for process in started)

        if in_processes() != rows_in(seglog.scan(topic, columns=["offset"]).to_reader()):
            raise AssertionError("two processes read other rows")
        bench.by_wall(
            case, million, "M rec/s",
            {
                "two threads": lambda: rows_in(seglog.scan(topic, threads=2).to_reader()),
                "two processes": in_processes,
                "one": lambda: rows_in(seglog.scan(topic, threads=1).to_reader()),
            },
            {("two threads", "one"): Goal(1.7), ("two processes", "one"): Goal()},
            turns=25,
        )
