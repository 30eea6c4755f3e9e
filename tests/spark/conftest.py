import os
import shutil
from contextlib import ExitStack

import pytest

pytest.importorskip("pyspark", reason="the extra [spark] is not installed")

from support import hdfs_server, s3_server, spark_faults
from support.golden import golden_cases
from support.spark_cluster import SparkCluster
from support.spark_session import local_session

# Three partitions of two topics: old formats, transactions, producers, several segments.
CASES = {"orders-0": "v1-gzip-lat-k391", "orders-1": "mixed-formats-k282", "payments-0": "txn-v2-k411"}


@pytest.fixture
def log_dir(tmp_path):
    """A log dir of three small partitions that real Kafka wrote, under names of our own."""
    path = tmp_path / "old"
    for name, case in CASES.items():
        (source,) = (c for c in golden_cases() if c.name == case)
        shutil.copytree(source / f"{case}-0", path / name)
    return path


@pytest.fixture(scope="session")
def spark_stderr(tmp_path_factory):
    """Where the session of `spark` and its workers write what they say on stderr."""
    return tmp_path_factory.mktemp("spark") / "stderr"


@pytest.fixture(scope="session")
def spark(spark_stderr):
    """A session on this machine, one for the whole run: it takes ten seconds to start."""
    spark_faults.pack()
    with ExitStack() as stack:
        ours = os.dup(2)
        try:
            with open(spark_stderr, "wb") as file:
                os.dup2(file.fileno(), 2)
            session = stack.enter_context(local_session())
        finally:
            os.dup2(ours, 2)
            os.close(ours)
        yield session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A standalone cluster of two workers, one for the whole run."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """A real S3 server, one for the whole run."""
    if s3_server.lacking():
        pytest.skip(s3_server.lacking())
    with s3_server.S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """A real HDFS, one for the whole run."""
    if hdfs_server.lacking():
        pytest.skip(hdfs_server.lacking())
    with hdfs_server.HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield server
