"""`seglog.spark.register(spark)`: the format "seglog" in a session."""
from importlib.util import find_spec
from typing import TYPE_CHECKING

from seglog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession") -> None:
    """Let `spark` know the format "seglog": batches, streams, and writing both. A setting of the session is turned on
    without which Spark refuses readers that take filters (`pushFilters`, from 4.1 on).

    Raises InvalidArgumentError where PySpark is older than 4.0, which has no Python Data Source.
    """
    if find_spec("pyspark.sql.datasource") is None:
        raise InvalidArgumentError(
            f"Spark {spark.version} has no Python Data Source",
            hint="use PySpark 4.1 or newer; before, give the paths of partitions to"
            " spark.createDataFrame(...).mapInArrow, and read each by seglog.scan(path).batches()",
        )
    from pyspark.sql.datasource import DataSourceReader

    from seglog.spark.source import SeglogSource

    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(SeglogSource)
