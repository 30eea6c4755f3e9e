"""`df.write.format("seglog")` and `writeStream`: write rows as partition directories for brokers and readers.

Each task writes its own complete logs, indexes included, into a staging place (`<path>.seglog-sink/`); the driver moves
them into the log dir once all tasks have ended (sink_commit). Records have the order of the rows in their task: for
reproducible offsets, sort by unique columns, such as
`df.repartition("topic", "partition").sortWithinPartitions("timestamp", "id")`. All rows of a partition must be in one
task.
"""
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from seglog._kernels.batch_pieces import partition_for_key
from seglog.errors import InvalidArgumentError
from seglog.format import names
from seglog.format.foreign_names import Shape, judged
from seglog.fs.aside import make_directories
from seglog.fs.files import OsFileSystem
from seglog.log.log import Log
from seglog.spark.sink_commit import SINK_SUFFIX, SinkCommit, partitions_in
from seglog.spark.sink_journal import StagedPartition
from seglog.spark.sink_options import SinkOptions
from seglog.spark.spelling import ToldBySpark

_COLUMNS = ("key", "value", "timestamp", "headers")
_TYPES = {
    "key": ("binary", "string"), "value": ("binary", "string"), "topic": ("string",), "partition": ("int", "bigint"),
    "timestamp": ("timestamp",), "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass
class StagedByTask(WriterCommitMessage):
    """The partitions that a task has staged."""

    directory: str
    partitions: tuple[StagedPartition, ...]


class BatchSink(DataSourceArrowWriter):
    """Writes a batch, completely or not at all. With `overwrite` it replaces the topics that it contains."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = SinkOptions.of(options)
        self._overwrite = overwrite
        self._place = f"batch-{secrets.token_hex(8)}"
        check_schema(schema, self._options)
        self._commit().check(overwrite=overwrite)

    @ToldBySpark()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, self._place, iterator)

    @ToldBySpark()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit().publish(staged_by(messages), overwrite=self._overwrite)

    @ToldBySpark()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit().discard()

    def _commit(self) -> SinkCommit:
        return SinkCommit(self._options, self._place)


_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", object)


class StreamSink(_StreamWriter):    # type: ignore[misc]
    """Writes a stream: each epoch is appended once, even after retries."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, complete: bool) -> None:
        if _StreamWriter is object:
            raise InvalidArgumentError("a streaming sink needs PySpark 4.1 or newer")
        if complete:
            raise InvalidArgumentError('outputMode("complete"): logs only grow', hint='use outputMode("append")')
        self._options = SinkOptions.of(options, is_stream=True)
        check_schema(schema, self._options)

    @property
    def _place(self) -> str:
        # Specific to the query, not to this object: Spark commits with another object. Epochs come one after another.
        return f"stream-{self._options.query}".replace("/", "-")

    @ToldBySpark()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, self._place, iterator)

    @ToldBySpark()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        SinkCommit(self._options, self._place).publish(staged_by(messages), epoch=batchId)

    @ToldBySpark()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        SinkCommit(self._options, self._place).discard()


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises InvalidArgumentError. Columns that a record does not have are ignored, as in Spark's Kafka sink."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in found:
        raise InvalidArgumentError(f"the rows need a column value; found {', '.join(found)}")
    if "topic" not in found and options.topic is None:
        raise InvalidArgumentError("the topic is missing: add a column topic, or set the option topic")
    for name, kinds in _TYPES.items():
        if name in found and found[name] not in kinds:
            raise InvalidArgumentError(f"column {name} must be {' or '.join(kinds)}, not {found[name]}")


def staged_by(messages: list[WriterCommitMessage | None]) -> list[StagedPartition]:
    """The partitions that all tasks have staged; a task without rows has none."""
    return [one for message in messages if isinstance(message, StagedByTask) for one in message.partitions]


def write_rows(options: SinkOptions, place: str, batches: Iterator[Any]) -> StagedByTask:
    """Write the rows of a task as logs in a separate directory."""
    directory = f"{options.path}{SINK_SUFFIX}/{place}/{secrets.token_hex(16)}"
    with ExitStack() as stack:
        staging = _Staging(options, directory, stack)
        for batch in batches:
            staging.add(batch)
        return StagedByTask(directory, staging.ends())


class _Staging:
    """The logs that a task writes. They are closed, and so durable, when `stack` is."""

    def __init__(self, options: SinkOptions, directory: str, stack: ExitStack) -> None:
        self._options = options
        self._directory = directory
        self._stack = stack
        self._logs: dict[tuple[str, int], Log] = {}
        self._counts: dict[str, int] = {}       # number of partitions by topic
        self._rows = 0

    def add(self, batch: Any) -> None:
        """Append the rows of a pyarrow.RecordBatch to the logs of their partitions, in order."""
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.compute  # type: ignore[import-untyped]      # importing pyarrow does not import it

        topics = self._topics(batch)
        records = pyarrow.RecordBatch.from_pydict({
            name: batch.column(name) for name in _COLUMNS if name in batch.schema.names
        })
        for topic in pyarrow.compute.unique(topics).to_pylist() if batch.num_rows else []:
            of_topic = pyarrow.compute.equal(topics, topic)
            numbers = self._partitions(topic, batch)
            for number in pyarrow.compute.unique(numbers.filter(of_topic)).to_pylist():
                chosen = pyarrow.compute.and_(of_topic, pyarrow.compute.equal(numbers, number))
                rows = records if chosen.true_count == len(chosen) else records.filter(chosen)
                self._log(topic, number).append_columns(rows)
        self._rows += batch.num_rows

    def ends(self) -> tuple[StagedPartition, ...]:
        return tuple(
            StagedPartition(self._directory, names.partition_dir(topic, number), log.log_end_offset)
            for (topic, number), log in self._logs.items()
        )

    def _topics(self, batch: Any) -> Any:
        import pyarrow

        if self._options.topic is not None:
            return pyarrow.repeat(self._options.topic, batch.num_rows)
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidArgumentError("a row has no topic", hint="fill the column topic, or set the option topic")
        return topics

    def _partitions(self, topic: str, batch: Any) -> Any:
        """The partition of each row: its own, or by its key, or round robin by its index."""
        import pyarrow

        given = batch.column("partition") if "partition" in batch.schema.names else pyarrow.nulls(batch.num_rows)
        given = given.cast(pyarrow.int64())
        if not given.null_count:
            return given
        count = self._count(topic)
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * batch.num_rows
        numbers = []
        for row, (number, key) in enumerate(zip(given.to_pylist(), keys, strict=True)):
            if number is None and key is None:
                number = (self._rows + row) % count
            elif number is None:
                number = partition_for_key(key.encode() if isinstance(key, str) else key, count)
            numbers.append(number)
        return pyarrow.array(numbers, pyarrow.int64())

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            count = self._options.partitions
            if count is None:
                there = partitions_in(Path(self._options.path)).values()
                count = 1 + max((one.partition for one in there if one.topic == topic), default=0)
            self._counts[topic] = count
        return self._counts[topic]

    def _log(self, topic: str, number: int) -> Log:
        log = self._logs.get((topic, number))
        if log is None:
            name = names.partition_dir(topic, names.validate_partition(number))
            judged(name, Shape.PARTITION, self._directory, InvalidArgumentError)
            make_directories(OsFileSystem(), self._directory)
            log = Log(Path(self._directory, name), config=dict(self._options.config), fsync="never")
            self._logs[topic, number] = self._stack.enter_context(log)
        return log
