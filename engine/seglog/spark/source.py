"""`spark.read.format("seglog")`: the partitions of a log dir, with the schema and the options of Spark's Kafka source.

    seglog.spark.register(spark)
    spark.read.format("seglog").option("subscribe", "orders").load("/data/kafka")

The driver plans which offsets of which partitions to read, cut at batch boundaries into pieces of some 64 MB. Executors
read the files themselves, under the same path, and return Arrow batches. Pushed filters only prune: Spark applies them
again.
"""
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.spark.offset_ranges import ranges
from seglog.spark.row_schema import columns_of, decoded_types, schema_of
from seglog.spark.sink import BatchSink, StreamSink
from seglog.spark.source_filters import Pruning
from seglog.spark.source_options import SourceOptions, asked_columns
from seglog.spark.source_splits import read_split, splits
from seglog.spark.spelling import ToldBySpark
from seglog.spark.stream import make_stream_reader


class SeglogSource(DataSource):
    """The format "seglog"."""

    @classmethod
    def name(cls) -> str:
        return "seglog"

    def schema(self) -> StructType:
        with ToldBySpark():
            columns = asked_columns(self.options)
            return schema_of(columns, decoded_types(SourceOptions.of(self.options, is_stream=None)))

    def reader(self, schema: StructType) -> DataSourceReader:
        with ToldBySpark():
            options = SourceOptions.of(self.options)
            return (PruningReader if options.pushes_filters else TopicReader)(options, schema)

    def streamReader(self, schema: StructType) -> Any:
        with ToldBySpark():
            return make_stream_reader(SourceOptions.of(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        with ToldBySpark():
            return BatchSink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        with ToldBySpark():
            return StreamSink(self.options, schema, complete=overwrite)


class TopicReader(DataSourceReader):
    """Reads a batch. Spark pickles it before it calls `partitions`, so all results of planning are in those."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, columns=columns_of(schema, decoded_types(options)))
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        with ToldBySpark():
            found = (self._pruning.of(one) for one in ranges(self._options))
            return splits(self._options, [one for one in found if one is not None], self._pruning)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(partition)


class PruningReader(TopicReader):
    """The same, with filters, and only on request (`pushFilters`): Spark (4.1 to 4.3, tested) keeps one query's plan
    with the DataFrame, and the next query, without a filter or with another one, reads no more than that.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for one in filters:
            self._pruning.add(one)
            yield one       # Spark applies it again, to each row
