"""A Spark job over a stopped broker's disk: how much of each topic there is by the day, as a table of Parquet files.

    pip install 'seglog[spark]'
    python spark_job.py LOG_DIR OUT            # or: spark-submit spark_job.py LOG_DIR OUT

Executors read the files themselves. The log dir is mounted under the same path on every executor.
"""
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import seglog.spark


def run(spark: SparkSession, log_dir: str, out: str) -> None:
    seglog.spark.register(spark)
    records = spark.read.format("seglog").load(log_dir)
    by_day = records.groupBy("topic", f.to_date("timestamp").alias("day")).agg(
        f.count("*").alias("records"), f.sum(f.length("value")).alias("value_bytes"),
    )
    by_day.write.mode("overwrite").parquet(out)
    for row in spark.read.parquet(out).orderBy("topic", "day").collect():
        print(row.topic, row.day, row.records, row.value_bytes)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)     # workers of this machine: the same environment
    run(SparkSession.builder.appName("records by day").getOrCreate(), sys.argv[1], sys.argv[2])
