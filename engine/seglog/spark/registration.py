"""`seglog.spark.register(spark)`: adds the format "seglog" to a session."""
from importlib.util import find_spec
from typing import TYPE_CHECKING

from seglog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession", *, check: bool = True) -> None:
    """Add the format "seglog" to `spark`, for reading and writing batches and streams. Also turns on a setting of the
    session, without which Spark refuses readers that accept filters (`pushFilters`, from 4.1 on).

    A small job asks the workers whether they can import the same seglog, unless `check` is false. Raises
    MissingLibraryError if one cannot, UnsupportedVersionError if it has another version of seglog or Python;
    InvalidArgumentError if PySpark is older than 4.0, which has no Python Data Source.
    """
    if find_spec("pyspark.sql.datasource") is None:
        raise InvalidArgumentError(
            f"Spark {spark.version} has no Python Data Source",
            hint="use PySpark 4.1 or newer; here, a DataFrame of paths gives the rows by"
            " paths.mapInArrow(seglog.spark.read_paths, seglog.spark.ROW_SCHEMA)",
        )
    from pyspark.sql.datasource import DataSourceReader

    from seglog.spark.source import SeglogSource
    from seglog.spark.worker_check import check_workers

    if check:
        check_workers(spark)
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(SeglogSource)
