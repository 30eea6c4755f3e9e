"""Run by test_beside_kafkas_source.py in a PySpark of its own: the same queries of Spark's Kafka source and of ours.

    kafka_queries.py JARS BROKER LOG_DIR SINK QUERIES OUT

QUERIES: a file of {name: [options of both, SQL over `topic_rows`]}. OUT gets {name: {"kafka": rows, "seglog": rows}},
"schema" among the names. SINK: a log dir that is made by our sink from Kafka's rows.
"""
import json
import sys
from pathlib import Path

import seglog.spark
from seglog.spark.session import session

jars, broker, log_dir, sink, queries, out = sys.argv[1:]
# In the middle of a test nobody looks at Arrow's and Kafka's warnings.
SETTINGS = {
    "spark.jars": jars, "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
}
FOR_KAFKA = {"kafka.bootstrap.servers": broker}


def text(value):
    """For JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [text(item) for item in value]
    return str(value) if value is not None else None


def frame(spark, source, options):
    reader = spark.read.format(source).options(**{**FOR_KAFKA, **options})
    return reader.load() if source == "kafka" else reader.load(log_dir)


with session("local[2]", SETTINGS) as spark:
    spark.sparkContext.setLogLevel("OFF")
    seglog.spark.register(spark)
    answers = {}
    for name, (options, sql) in json.loads(Path(queries).read_text()).items():
        found = answers[name] = {}
        for source in ("kafka", "seglog"):
            rows = frame(spark, source, options)
            rows.createOrReplaceTempView("topic_rows")
            found[source] = sorted((text(list(row)) for row in spark.sql(sql).collect()), key=str)
            answers.setdefault(f"schema of {name}", {})[source] = rows.schema.json()
    rows = frame(spark, "kafka", {"subscribePattern": ".*", "includeHeaders": "true"})
    # A broker's -1 for no time is a moment before 1970 for Spark, which our sink takes as one.
    rows = rows.repartition("topic", "partition").sortWithinPartitions("offset")
    rows.write.format("seglog").mode("append").option("compression.type", "lz4").save(sink)
    Path(out).write_text(json.dumps(answers))
