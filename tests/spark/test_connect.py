"""Spark Connect, by a server that the client starts: no SparkContext, and the same conversion."""
import os
import subprocess
import sys

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from support.spark_cluster import lacking

pytestmark = [pytest.mark.spark, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

CLIENT = """
import os, sys
from pathlib import Path
from seglog.spark.java import find_java
find_java().into(os.environ)
from pyspark.sql import SparkSession
from seglog.spark import convert_topics
from seglog.spark.cluster import JobStep
from seglog.spark.session import session
from seglog.spark.start_errors import check_master

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
told = []
report = convert_topics(spark, *sys.argv[1:3], task_bytes=1, progress=told.append)
size_bytes = sum(path.stat().st_size for path in Path(sys.argv[1]).glob("*/*.log"))
what = f"convert orders, payments to v2: 6 segments, {size_bytes:,} bytes"
assert told[0] == JobStep(what, 0, 6, 0, size_bytes), told
assert told[-1] == JobStep("assemble 3 partitions", 3, 3), told
for job in dict.fromkeys(step.what for step in told):
    counts = [step.done for step in told if step.what == job]
    assert counts == sorted(counts), told
assert max(step.done for step in told) == 6, told
assert report.is_whole
assert report.tasks == 6
check_master(f"sc://{spark.client._builder.endpoint}")
with session() as there:
    assert there is spark
assert report.to_dataframe(spark).count() == 3
spark.stop()
"""


def files(log_dir):
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json"
    }


def test_a_client_of_connect_converts(log_dir, in_memory):
    pytest.importorskip("grpc_status", reason="the client of Connect needs grpcio and grpcio-status")
    subprocess.run(
        [sys.executable, "-c", CLIENT, log_dir, in_memory / "new"], check=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert all(row.status == "converted" for row in convert_log_dir(log_dir, in_memory / "cli", Options()))
    assert files(in_memory / "new") == files(in_memory / "cli")
