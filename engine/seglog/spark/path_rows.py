"""The rows of topics by `mapInArrow`, for a Spark without Python Data Sources, such as 3.5."""
from collections.abc import Iterator
from typing import Any

from seglog.frames.options import checked_columns
from seglog.frames.scan import scan
from seglog.spark.closed_pipe import end_with_closed_pipe
from seglog.spark.row_schema import conformed, schema_of

_COLUMNS = checked_columns(None, False)
ROW_SCHEMA = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema_of(_COLUMNS))
"""The columns of `read_paths`, those of Spark's Kafka source, as `mapInArrow` takes them."""


def read_paths(batches: Iterator[Any]) -> Iterator[Any]:
    """The records at each path (a partition, or a log dir) in the first column, for `DataFrame.mapInArrow`.

    A path is read by the task that has its row, as a whole.
    """
    import pyarrow  # type: ignore[import-untyped]

    end_with_closed_pipe()
    for batch in batches:
        for path in batch.column(0).to_pylist():
            for rows in scan(path, columns=_COLUMNS).batches():
                if len(rows):
                    yield conformed(pyarrow.record_batch(rows), _COLUMNS)
