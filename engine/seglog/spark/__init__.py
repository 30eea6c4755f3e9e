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

__all__ = [
    "convert_compacted_ledgers", "convert_topics", "fetch_topics", "finalize_topics", "read_paths", "register",
    "rollback_topics", "ConvertedLedger", "Fetched", "Finalized", "ROW_SCHEMA", "TopicsReport",
]

_MODULE_OF = {
    "ConvertedLedger": "ledger_job",
    "Fetched": "fetch",
    "Finalized": "publication",
    "ROW_SCHEMA": "path_rows",
    "TopicsReport": "report",
    "convert_compacted_ledgers": "ledger_job",
    "convert_topics": "job",
    "fetch_topics": "fetch",
    "finalize_topics": "publication",
    "read_paths": "path_rows",
    "register": "registration",
    "rollback_topics": "publication",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'seglog.spark' has no attribute {name!r}")
    return getattr(import_module(f"seglog.spark.{_MODULE_OF[name]}"), name)
