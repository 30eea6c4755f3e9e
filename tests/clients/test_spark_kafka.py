"""Spark's own Kafka source and sink over our server: a batch, and streams that are stopped and go on."""
import subprocess
from pathlib import Path

import pytest

import seglog
from support import kafka_oracle
from support.waiting import wait_for

pytestmark = pytest.mark.clients

COUNT = 1000
# The newest that Maven Central has; it works with the Spark that is installed.
CONNECTOR = "4.2.0"

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>seglog</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    pyspark = pytest.importorskip("pyspark")
    from support.spark_session import HAS_JAVA, local_session

    reason = kafka_oracle.lacking() or (None if HAS_JAVA else "there is no Java for Spark")
    if reason:
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("jars")
    (work / "pom.xml").write_text(POM.format(version=CONNECTOR))
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    options = [f"-DoutputDirectory={work}", "-DincludeScope=runtime"]
    subprocess.run([kafka_oracle.SCRIPTS.parent / "maven.sh", work / "pom.xml", goal, *options], check=True)
    # What Spark has itself is left out: a second copy of it would be another class of the same name.
    own = {path.name.rpartition("-")[0] for path in Path(pyspark.__file__).parent.glob("jars/*.jar")}
    jars = [str(path) for path in work.glob("*.jar") if path.name.rpartition("-")[0] not in own]
    with local_session(**{"spark.jars": ",".join(jars)}) as session:
        yield session


@pytest.fixture
def server(tmp_path):
    with seglog.serve(tmp_path / "data", fsync="interval", topics={"in": 3, "out": 2}) as server:
        yield server


def rows_of(spark, server, topic, **options):
    return (
        spark.read.format("kafka").option("kafka.bootstrap.servers", server.bootstrap_servers)
        .option("subscribe", topic).options(**options).load()
    )


def write(spark, server, topic, numbers):
    (
        spark.range(numbers.start, numbers.stop).selectExpr("CAST(id AS STRING) AS key", "CONCAT('v', id) AS value")
        .write.format("kafka").option("kafka.bootstrap.servers", server.bootstrap_servers).option("topic", topic).save()
    )


def test_what_its_sink_writes_its_source_reads_and_lies_in_the_logs(spark, server):
    write(spark, server, "in", range(COUNT))
    rows = rows_of(spark, server, "in").selectExpr(
        "CAST(key AS STRING) k", "CAST(value AS STRING) v", "partition").collect()
    assert sorted(int(row.k) for row in rows) == list(range(COUNT))
    assert all(row.v == f"v{row.k}" for row in rows)
    there = {
        (number, bytes(record.key).decode()) for number in range(3) for record in server.log("in", number).read()
    }
    assert there == {(row.partition, row.k) for row in rows}
    half = rows_of(
        spark, server, "in", startingOffsets='{"in":{"0":5,"1":-2,"2":-2}}',
        endingOffsets='{"in":{"0":9,"1":3,"2":0}}')
    assert sorted((row.partition, row.offset) for row in half.collect()) == [
        (0, 5), (0, 6), (0, 7), (0, 8), (1, 0), (1, 1), (1, 2)]


def test_a_stream_goes_on_where_it_was_stopped(spark, server, tmp_path):
    def run(until):
        stream = (
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.bootstrap_servers)
            .option("subscribe", "in").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 200).load()
            .select("key", "value").writeStream.format("kafka")
            .option("kafka.bootstrap.servers", server.bootstrap_servers).option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )
        try:
            wait_for(lambda: sum(server.log("out", number).log_end_offset for number in range(2)) >= until, seconds=90)
            stream.processAllAvailable()
        finally:
            stream.stop()

    write(spark, server, "in", range(COUNT))
    run(COUNT)
    write(spark, server, "in", range(COUNT, 2 * COUNT))
    run(2 * COUNT)
    values = [int(bytes(record.key)) for number in range(2) for record in server.log("out", number).read()]
    assert sorted(values) == list(range(2 * COUNT))
