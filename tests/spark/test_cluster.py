"""A whole topic on a real standalone cluster, whatever becomes of tasks, workers and executors; then a real broker.

`make spark`. The cluster is of two workers at two addresses, so that Spark may place a second attempt elsewhere.
"""
import shutil

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.format.batch import build_batch
from seglog.spark import convert_topics
from seglog.spark.session import session
from support import kafka_oracle, spark_faults
from support.conversion import UnsyncedFs
from support.mixed_topic import TIME_MS, write_mixed_topic
from support.spark_cluster import ADDRESSES, lacking

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Many tasks of a moment each: a fault strikes one of several.
TASK_BYTES = 4000


@pytest.fixture(scope="module")
def topic(tmp_path_factory):
    """(its log dir, what it holds, the log dir that one machine made of it)"""
    work = tmp_path_factory.mktemp("topic")
    made = write_mixed_topic(work / "old", "orders")
    return work / "old", made, by_cli(work / "old", work / "cli")


@pytest.fixture(scope="module", autouse=True)
def at_home(cluster):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def spark(cluster):
    spark_faults.pack()
    # A copy of a task that takes long is started on the other worker.
    speculation = {
        "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
    }
    with session(cluster.url, cluster.settings(**speculation, **{"spark.log.level": "OFF"})) as spark:
        yield spark


def files(log_dir):
    """{partition/file: bytes} but for the proof, in which the target's path stands."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json"
    }


def by_cli(old, target):
    rows = list(convert_log_dir(old, target, Options(), fs=UnsyncedFs()))
    assert {row.status for row in rows} == {"converted"}
    return target


def converted(spark, topic, target, fs):
    old, _, cli = topic
    report = convert_topics(spark, old, target, task_bytes=TASK_BYTES, fs=fs)
    assert report.is_whole
    assert files(target) == files(cli)
    # No attempt left anything behind.
    workplace = target.with_name(f"{target.name}.seglog-spark")
    assert not (workplace / "attempts").exists()
    assert not list((workplace / "staged").iterdir())
    return report


def test_a_topic_is_converted_by_both_workers_and_a_broker_serves_it(spark, topic, in_memory, tmp_path):
    (tmp_path / "where").mkdir()
    report = converted(spark, topic, in_memory / "new", spark_faults.TellsWhere(tmp_path / "where"))
    assert report.tasks > 8
    where = {path.name.partition("-")[0] for path in (tmp_path / "where").iterdir()}
    assert {*ADDRESSES} <= where
    reason = kafka_oracle.lacking()
    if reason:
        pytest.skip(f"converted; no broker to serve it: {reason}")
    kafka = kafka_oracle.KafkaOracle("4.1.1")
    _, made, _ = topic
    directories = [in_memory / "new" / name for name in made]
    boot = kafka.boot(directories, tmp_path / "broker")
    assert boot.summary["consume_errors"] == 0
    fields = ("offset", "timestamp", "key", "value", "headers")
    for name, partition in made.items():
        assert [{f: row.get(f) for f in fields} for row in boot.records[name]] == partition.records, name
        assert [{f: row.get(f) for f in fields} for row in boot.committed[name]] == partition.committed, name
        assert boot.partitions[name]["log_bytes_unchanged"], name
    for name, answer in kafka.check(directories).items():
        assert not answer["clean"]["index_rebuilt_or_changed"], name
        assert not answer["clean"]["kafka_log_messages"], name


@pytest.mark.parametrize(
    "fault", [spark_faults.Raises, spark_faults.KillsWorker, spark_faults.KillsExecutor], ids=lambda f: f.__name__
)
def test_what_dies_is_done_again(spark, topic, in_memory, fault):
    (in_memory / "trigger").touch()
    report = converted(spark, topic, in_memory / "new", fault(in_memory / "trigger"))
    assert not (in_memory / "trigger").exists()
    assert report.total.retried >= 1


def test_a_straggler_gets_a_second_attempt_that_wins(spark, topic, in_memory):
    (in_memory / "trigger").touch()
    report = converted(spark, topic, in_memory / "new", spark_faults.Straggles(in_memory / "trigger"))
    assert not (in_memory / "trigger").exists()
    assert report.total.retried >= 1


def test_a_source_segment_that_changes_meanwhile_stops_its_partition_alone(spark, topic, in_memory):
    old = shutil.copytree(topic[0], in_memory / "old")
    log = sorted((old / "orders-2").glob("*.log"))[-1]
    batch = build_batch([(b"late", b"v", [], TIME_MS)], base_offset=1_000_000)
    (in_memory / "trigger").touch()
    appends = spark_faults.Appends(in_memory / "trigger", log, batch)
    report = convert_topics(spark, old, in_memory / "new", task_bytes=TASK_BYTES, fs=appends)
    assert not (in_memory / "trigger").exists()
    assert [row.partition for row in report.failed] == ["orders-2"]
    assert "changed since it was planned" in report.failed[0].what
    assert files(in_memory / "new") == without("orders-2", files(topic[2]))
    # The next run takes it as it is now, and of the rest nothing is done again.
    report = convert_topics(spark, old, in_memory / "new", task_bytes=TASK_BYTES)
    assert [row.status for row in report.rows] == ["skipped", "skipped", "converted", "skipped"]
    assert files(in_memory / "new") == files(by_cli(old, in_memory / "cli"))


def test_a_corrupt_batch_stops_its_partition_alone(spark, topic, in_memory):
    old = shutil.copytree(topic[0], in_memory / "old")
    log = sorted((old / "orders-1").glob("*.log"))[7]
    whole = log.read_bytes()
    log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    report = convert_topics(spark, old, in_memory / "new", task_bytes=TASK_BYTES)
    assert [(row.partition, row.error) for row in report.failed] == [("orders-1", "corrupt_record")]
    assert str(log) in report.failed[0].what
    assert files(in_memory / "new") == without("orders-1", files(topic[2]))
    # Mended, it is converted by the next run.
    log.write_bytes(whole)
    report = convert_topics(spark, old, in_memory / "new", task_bytes=TASK_BYTES)
    assert report.is_whole
    assert files(in_memory / "new") == files(topic[2])


def without(partition, found):
    return {name: data for name, data in found.items() if not name.startswith(f"{partition}/")}


def test_a_disk_that_is_full_on_one_worker_is_not_asked_again(cluster, topic, in_memory):
    """Spark leaves the worker out: its own setting, which sessions of ours have."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()       # the settings of a session are those of its beginning
    with session(cluster.url, cluster.settings(**{"spark.log.level": "OFF"})) as spark:
        report = converted(spark, topic, in_memory / "new", spark_faults.DiskIsFull(ADDRESSES[1]))
    assert report.total.retried >= 1
