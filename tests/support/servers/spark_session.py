"""A Spark session for tests: small, local, one for a whole run."""
import os
import sys
import tempfile
import warnings
from contextlib import contextmanager

from seglog.spark.java import find_java
from seglog.spark.session import session

HAS_JAVA = find_java() is not None


@contextmanager
def local_session(master="local[2, 4]", **settings):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Tables of SQL would lie in spark-warehouse/ of the working directory, which Spark makes at the first query.
    with tempfile.TemporaryDirectory(prefix="seglog-warehouse-") as warehouse, warnings.catch_warnings():
        quiet = {
            "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false", "spark.sql.warehouse.dir": warehouse,
            **settings,
        }
        # Sockets of py4j, which nobody closes.
        warnings.simplefilter("ignore", ResourceWarning)
        with session(master, quiet) as spark:
            spark.sparkContext.setLogLevel("OFF")
            yield spark
