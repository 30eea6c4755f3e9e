"""A whole topic on a real standalone cluster, whatever becomes of tasks, workers and executors; then a real broker.

`make spark`. The cluster is of two workers at two addresses, so that Spark may place a second attempt elsewhere.
"""
import os

import pytest

from seglog.spark import convert_topics
from seglog.spark.session import session
from seglog.upkeep.directory_conversion import Options
from seglog.upkeep.log_dir_conversion import convert_log_dir
from support import kafka_oracle, spark_faults
from support.mixed_topic import write_mixed_topic
from support.spark_cluster import ADDRESSES, SparkCluster, lacking

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
    rows = list(convert_log_dir(work / "old", work / "cli", Options()))
    assert {row.status for row in rows} == {"converted"}
    return work / "old", made, work / "cli"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    before = dict(os.environ)
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        os.environ.update(cluster.environment())
        yield cluster
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def spark(cluster):
    spark_faults.pack()
    # A copy of a task that takes long is started on the other worker.
    speculation = {
        "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
    }
    with session(cluster.url, cluster.settings(**speculation)) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield spark


def files(log_dir):
    """{partition/file: bytes} but for the proof, in which the target's path stands."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json"
    }


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


def test_a_topic_is_converted_by_both_workers_and_a_broker_serves_it(spark, topic, tmp_path, request):
    (tmp_path / "where").mkdir()
    report = converted(spark, topic, tmp_path / "new", spark_faults.TellsWhere(tmp_path / "where"))
    assert report.tasks > 8
    where = {path.name.partition("-")[0] for path in (tmp_path / "where").iterdir()}
    assert {*ADDRESSES} <= where
    reason = kafka_oracle.lacking()
    if reason:
        pytest.skip(f"converted; no broker to serve it: {reason}")
    kafka = kafka_oracle.KafkaOracle("4.1.1")
    _, made, _ = topic
    directories = [tmp_path / "new" / name for name in made]
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
def test_what_dies_is_done_again(spark, topic, tmp_path, fault):
    (tmp_path / "trigger").touch()
    report = converted(spark, topic, tmp_path / "new", fault(tmp_path / "trigger"))
    assert not (tmp_path / "trigger").exists()
    assert report.total.retried >= 1


def test_a_straggler_gets_a_second_attempt_that_wins(spark, topic, tmp_path):
    (tmp_path / "trigger").touch()
    report = converted(spark, topic, tmp_path / "new", spark_faults.Straggles(tmp_path / "trigger"))
    assert not (tmp_path / "trigger").exists()
    assert report.total.retried >= 1


def test_a_disk_that_is_full_on_one_worker_is_not_asked_again(cluster, topic, tmp_path):
    """Spark leaves the worker out: its own setting, which sessions of ours have."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()       # the settings of a session are those of its beginning
    with session(cluster.url, cluster.settings()) as spark:
        spark.sparkContext.setLogLevel("OFF")
        report = converted(spark, topic, tmp_path / "new", spark_faults.DiskIsFull(ADDRESSES[1]))
    assert report.total.retried >= 1
