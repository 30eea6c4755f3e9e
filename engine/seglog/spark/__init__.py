"""Conversion of whole topics on Apache Spark: Spark schedules and retries tasks, the engine converts.

    from seglog.spark import convert_topics

    report = convert_topics(spark, "/data/kafka", "/data/kafka-v2", to=2)
    seglog.spark.register(spark)
    spark.read.format("seglog").option("subscribe", "orders").load("/data/kafka")

    report = convert_topics(spark, "s3://lake/kafka", "s3://lake/kafka-v2", store_options={"region": "eu-central-1"})

docs/spark.md is the user's page. Nothing here imports pyspark before it is needed. `__init__.pyi` lists the public
names; each is imported when it is first used.
"""
from seglog._public import lazy_names

__getattr__, __dir__ = lazy_names(__name__, f"{__path__[0]}/__init__.pyi")
del lazy_names
