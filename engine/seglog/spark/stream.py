"""`spark.readStream.format("seglog")`: streams from growing logs, with the offsets of Spark's Kafka source.

The driver finds where each log ends: at the end that its writer has published (`.seglog.live`), else after its last
whole batch. Executors read; only the offsets are stored, so a query continues from its checkpoint, as with Kafka.
"""
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError
from seglog.spark.offset_ranges import (
    Ends,
    Offsets,
    check_named,
    limited,
    not_lost,
    open_ends,
    start_of,
    to_json,
)
from seglog.spark.row_schema import columns_of, decoded_types
from seglog.spark.source_options import Source, SourceOptions, TopicPartition, by_partition
from seglog.spark.source_splits import read_split, splits
from seglog.spark.spelling import ToldBySpark

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:     # before 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True


class TopicStream(DataSourceStreamReader):
    """The stream for PySpark 4.0 and 4.1: each trigger reads everything that is available."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, columns=columns_of(schema, decoded_types(options)))
        self._last: Offsets | None = None       # where a stream with the trigger availableNow ends

    @ToldBySpark()
    def initialOffset(self) -> dict[str, Any]:
        found, sources = {}, self._options.partitions()
        check_named(self._options.start, "startingOffsets", sources)
        for source in sources:
            with open_ends(self._options, source) as ends:
                found[source.topic, source.partition] = start_of(self._options, source, ends)
        return to_json(found)

    def latestOffset(self) -> dict[str, Any]:   # type: ignore[override]
        return to_json(self._ends())

    @ToldBySpark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins, stops = by_partition("offset", start), by_partition("offset", end)
        sources = {(source.topic, source.partition): source for source in self._options.partitions()}
        self._check_there(stops, sources)
        found = []
        for where, stop in sorted(stops.items()):
            source = sources.get(where)
            if source is None or begins.get(where) == stop:
                continue
            with open_ends(self._options, source) as ends:
                # A partition that was added since is read from its start.
                begin = begins.get(where, ends.first)
                found.append(not_lost(self._options, source, ends, begin, stop))
        return splits(self._options, found)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the log's own retention decides how long records are kept."""

    def stop(self) -> None:
        """Does nothing: nothing is open between two calls."""

    @ToldBySpark()
    def _ends(self) -> Offsets:
        found = {}
        for source in self._options.partitions():
            with open_ends(self._options, source) as ends:
                found[source.topic, source.partition] = ends.last
        return found

    def _check_there(self, offsets: Offsets, sources: dict[TopicPartition, Source]) -> None:
        gone = [f"{topic}-{partition}" for topic, partition in sorted(offsets.keys() - sources.keys())]
        if gone and self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"partitions in the checkpoint no longer exist: {', '.join(gone)}", file=self._options.path,
                hint="failOnDataLoss=false continues without them",
            )


def make_stream_reader(options: SourceOptions, schema: StructType) -> DataSourceStreamReader:
    """The reader for this PySpark. Raises InvalidArgumentError for a limit that it does not support."""
    if HAS_LIMITS:
        return LimitedStream(options, schema)
    if options.max_offsets_per_trigger is not None:
        raise InvalidArgumentError("maxOffsetsPerTrigger needs PySpark 4.2 or newer")
    return TopicStream(options, schema)


if HAS_LIMITS:

    class LimitedStream(TopicStream, SupportsTriggerAvailableNow):
        """The stream for PySpark 4.2: a trigger may have a limit, and availableNow an end."""

        def getDefaultReadLimit(self) -> Any:
            most = self._options.max_offsets_per_trigger
            return ReadAllAvailable() if most is None else ReadMaxRows(most)

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # type: ignore[override]
            begins = by_partition("offset", start)
            ends = dict(self._last) if self._last is not None else self._ends()
            if self._options.fail_on_data_loss:
                # A missing partition is reported when it is read; until then it keeps its offset.
                ends = begins | ends
            # The last stable offset may go back after a crash. A log that itself ends before the checkpoint was
            # truncated, or is another one: then this batch goes back to its end, and `partitions` reports the lost
            # records.
            ends |= {
                where: begin for where, begin in begins.items()
                if ends.get(where, begin) < begin and (now := self._now(where)) is not None and begin <= now.end_offset
            }
            if isinstance(limit, ReadMaxRows):
                added = {where: self._now(where) for where in ends.keys() - begins.keys()}
                starts = begins | {where: 0 if now is None else now.first for where, now in added.items()}
                ends = limited(starts, ends, limit.max_rows)
            return to_json(ends)

        def reportLatestOffset(self) -> dict[str, Any]:
            return to_json(self._ends())

        def prepareForTriggerAvailableNow(self) -> None:
            self._last = self._ends()

        def _now(self, where: TopicPartition) -> Ends | None:
            """The ends of the partition, or None if it is gone."""
            for source in self._options.partitions():
                if (source.topic, source.partition) == where:
                    with open_ends(self._options, source) as ends:
                        return ends
            return None
