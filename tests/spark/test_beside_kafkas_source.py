"""Spark's own Kafka source on a real broker, and ours on the broker's files: equal queries give equal rows.

In PySpark 4.2.0, the newest whose Kafka source is published; about two minutes, most of them Spark's.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from support.conversion import kept, row_of
from support.kafka_oracle import KafkaOracle, lacking
from support.written_logs import NOW, topic_config, write

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
VERSION = "4.2.0"
JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog</groupId><artifactId>spark-oracle</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>{JARS[0]}</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>"""

TOPICS = ("codec-gzip", "old-formats", "transactional", "compacted", "log-append-time", "deleted-records", "mirror")
ALL = "select * from topic_rows"
BY_DOORS = '{"codec-gzip": {"0": %d}}'
QUERIES = {
    "all": ({"subscribePattern": ".*"}, ALL),
    "headers": ({"subscribe": "codec-gzip,mirror", "includeHeaders": "true"}, ALL),
    "assigned": ({"assign": '{"codec-gzip": [0], "mirror": [0]}'}, ALL),
    "by offsets": ({
        "subscribe": "codec-gzip", "startingOffsets": BY_DOORS % 5, "endingOffsets": BY_DOORS % 40,
    }, ALL),
    "earliest to latest": ({
        "subscribe": "codec-gzip", "startingOffsets": BY_DOORS % -2, "endingOffsets": BY_DOORS % -1,
    }, ALL),
    "by time": ({"subscribe": "codec-gzip,log-append-time", "startingTimestamp": str(NOW + 200_000)}, ALL),
    "by times of partitions": ({
        "subscribe": "codec-gzip", "startingOffsetsByTimestamp": BY_DOORS % (NOW + 100_000),
        "endingOffsetsByTimestamp": BY_DOORS % (NOW + 400_000),
    }, ALL),
    "split": ({"subscribe": "codec-gzip,old-formats", "minPartitions": "7"}, ALL),
    "filtered": ({"subscribePattern": "c.*"}, f"""
        {ALL} where offset % 7 = 3 and topic = 'codec-gzip' and key is not null"""),
    "aggregated": ({"subscribePattern": ".*"}, """
        select topic, partition, count(*), sum(octet_length(value)), max(timestamp), min(offset),
               count(distinct key)
        from topic_rows group by topic, partition"""),
    "joined": ({"subscribe": "codec-gzip"}, """
        select a.offset, b.offset from topic_rows a join topic_rows b on a.key = b.key and a.offset < b.offset"""),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The answers of both to QUERIES, the broker's log dir, and the one that our sink wrote."""
    if (reason := lacking()) is not None:
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("spark")
    python = {"PYTHONPATH": subprocess.check_output([ROOT / ".ci/pyspark", VERSION], text=True).strip()}
    jars = _jars(work)
    with KafkaOracle("4.1.1").serving(work / "broker") as broker:
        broker.start()
        for name in TOPICS:
            config = topic_config(name)
            config["internal.segment.bytes"] = config.pop("segment.bytes")
            broker.create(name, config)
        broker.stop()
        for name in TOPICS:
            write(name, broker.log_dir / f"{name}-0")
        broker.start()
        (work / "queries.json").write_text(json.dumps(QUERIES))
        host, port = broker.address
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("kafka_queries.py"), jars, f"{host}:{port}", broker.log_dir,
             work / "sunk", work / "queries.json", work / "answers.json"],
            env={**os.environ, **python}, check=False, capture_output=True, text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        broker.stop()
        yield json.loads((work / "answers.json").read_text()), broker.log_dir, work / "sunk"


def _jars(work):
    """Of Spark's Kafka source, without those that PySpark brings."""
    (work / "pom.xml").write_text(POM)
    subprocess.run(
        ["mvn", "-q", "-B", "-f", work / "pom.xml",
         "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath", "-DincludeScope=runtime",
         f"-Dmdep.outputFile={work}/jars"], check=True, stdout=sys.stderr,
    )
    jars = (work / "jars").read_text().strip().split(":")
    return ",".join(jar for jar in jars if Path(jar).name.startswith(JARS))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_kafkas_source_gives_the_same_rows_of_ours(compared, name):
    found = compared[0][name]
    assert found["seglog"] == found["kafka"]
    assert len(found["kafka"]) > 1
    schemas = compared[0][f"schema of {name}"]
    assert json.loads(schemas["seglog"]) == json.loads(schemas["kafka"])


def test_a_broker_serves_what_our_sink_wrote(compared, tmp_path):
    _, log_dir, sunk = compared
    topics = sorted(path.name for path in sunk.iterdir() if path.is_dir())
    assert topics == sorted(f"{name}-0" for name in TOPICS)
    booted = KafkaOracle("3.9.1").boot([sunk / name for name in topics], tmp_path / "boot")
    for name in topics:
        with seglog.open_partition(log_dir / name) as log:
            sent = [_content(row_of(record)) for record in log.read()]
        assert [_content(row) for row in booted.records[name]] == sent, name


def _content(row):
    """What a sink takes over: Spark knows no offsets of other logs, and no time is a time for it."""
    return {key: value for key, value in kept(row).items() if key not in ("offset", "timestamp_type", "control")}
