"""Conversion of whole topics on Apache Spark: Spark schedules and retries tasks, the engine converts.

    from seglog.spark import convert_topics

    report = convert_topics(spark, "/data/kafka", "/data/kafka-v2", to=2)
    seglog.spark.register(spark)
    spark.read.format("seglog").option("subscribe", "orders").load("/data/kafka")

    report = convert_topics(spark, "s3://lake/kafka", "s3://lake/kafka-v2", store_options={"region": "eu-central-1"})

docs/spark.md is the user's page. Nothing here imports pyspark before it is needed.
"""
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seglog.spark.fetch import Fetched, fetch_topics
    from seglog.spark.job import convert_topics
    from seglog.spark.ledger_job import ConvertedLedger, convert_compacted_ledgers
    from seglog.spark.path_rows import ROW_SCHEMA, read_paths
    from seglog.spark.publication import Finalized, finalize_topics, rollback_topics
    from seglog.spark.registration import register
    from seglog.spark.report import TopicsReport
    from seglog.spark.sink_commit import UnfinishedCommit, complete_commit, drop_commit, unfinished_commit

__all__ = [
    "complete_commit", "convert_compacted_ledgers", "convert_topics", "drop_commit", "fetch_topics", "finalize_topics",
    "read_paths", "register", "rollback_topics", "unfinished_commit", "ConvertedLedger", "Fetched", "Finalized",
    "ROW_SCHEMA", "TopicsReport", "UnfinishedCommit",
]

_MODULE_OF = {
    "ConvertedLedger": "ledger_job",
    "Fetched": "fetch",
    "Finalized": "publication",
    "ROW_SCHEMA": "path_rows",
    "TopicsReport": "report",
    "UnfinishedCommit": "sink_commit",
    "complete_commit": "sink_commit",
    "convert_compacted_ledgers": "ledger_job",
    "convert_topics": "job",
    "drop_commit": "sink_commit",
    "fetch_topics": "fetch",
    "finalize_topics": "publication",
    "read_paths": "path_rows",
    "register": "registration",
    "rollback_topics": "publication",
    "unfinished_commit": "sink_commit",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'seglog.spark' has no attribute {name!r}")
    return getattr(import_module(f"seglog.spark.{_MODULE_OF[name]}"), name)
