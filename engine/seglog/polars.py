"""Topics as sources of polars' lazy queries.

    import polars as pl
    import seglog.polars

    frame = seglog.polars.scan_topic("data/orders-*")
    frame.filter(pl.col("offset") >= 50).select("offset", "value").collect()

polars itself is imported when a topic is scanned.
"""
from collections.abc import Iterable
from typing import Any

from seglog.frames.plan import Source
from seglog.frames.polars_source import lazy
from seglog.frames.scan import TopicScan
from seglog.frames.scan import scan as _scan  # here it would look like scan_topic's twin


def scan_topic(paths: Source | Iterable[Source] | TopicScan, **options: Any) -> Any:
    """A polars.LazyFrame of records. `paths` and `options`: as for `seglog.scan`, or a TopicScan that it returned.

    Only the columns that a query needs are decoded; filters on offset, timestamp, partition and topic, and a limit on
    rows, read only the part of the files where such rows can be. Each query reads the files as they are then.
    Raises MissingLibraryError without polars, and what `seglog.scan` raises.
    """
    return lazy(paths if isinstance(paths, TopicScan) else _scan(paths, **options))
