"""Splits a read into tasks: pieces of some 64 MB that end between batches, with small ones combined."""
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from seglog.frames.limits import Limits
from seglog.frames.options import ReadOptions
from seglog.frames.part import ScanPart
from seglog.frames.plan import parts_of
from seglog.logger import Logger
from seglog.segment.positions import LostRange
from seglog.spark.closed_pipe import end_with_closed_pipe
from seglog.spark.losses import Loss, losses_of, write_losses
from seglog.spark.offset_ranges import OffsetRange
from seglog.spark.row_schema import conformed, decoded_types, lost_rows
from seglog.spark.source_filters import Pruning
from seglog.spark.source_options import LOST, SourceOptions
from seglog.spark.spelling import ToldBySpark

_LOG = Logger(__name__)
# Opening a file and looking up where to begin takes as long as reading this many bytes of records.
_PART_WEIGHT_BYTES = 2 << 20


@dataclass(frozen=True)
class TopicSplit(InputPartition):
    """The part of a read that one task does."""

    parts: tuple[ScanPart, ...]
    columns: tuple[str, ...]
    null_timestamps: bool = False       # for records without one
    loss_report: str | None = None      # the directory for what is lost
    gone: tuple[Loss, ...] = ()         # what was lost before anything was read
    decoded: Mapping[str, Any] = field(default_factory=dict)    # the Arrow types of decoded keys and values


def splits(options: SourceOptions, found: list[OffsetRange], pruning: Pruning | None = None) -> list[InputPartition]:
    """The ranges as tasks: pieces of about `splitBytes` that end between batches, with small ones combined.

    With `minPartitions` the pieces are smaller, as far as batch boundaries allow.
    """
    since_ms, until_ms = (pruning or Pruning()).times_ms
    columns = tuple(name for name in options.columns if name != LOST)
    reading = ReadOptions(
        columns=columns, on_corrupt=options.on_corrupt, since_ms=since_ms, until_ms=until_ms,
        key_text=options.texts.get("key"), value_text=options.texts.get("value"),
        nulls_text=options.decoding.on_undecodable == "null", decoders=options.decoders(),
    )
    decoded = decoded_types(options)

    def split(*parts: ScanPart, gone: tuple[Loss, ...] = ()) -> TopicSplit:
        return TopicSplit(parts, options.columns, options.null_timestamps, options.loss_report, gone, decoded)

    def parts(min_bytes: int) -> list[ScanPart]:
        return [
            replace(part, inode=None) for one in found if one.start < one.end
            for part in parts_of(
                [one.source], reading, Limits(one.start, one.end, isolation=options.isolation), min_bytes
            )
        ]

    made: list[InputPartition] = []
    gone = tuple(loss for one in found for loss in one.gone)
    if gone and (LOST in options.columns or options.loss_report is not None):
        made.append(split(gone=gone))
    split_bytes = options.split_bytes
    planned = parts(split_bytes)
    if options.min_partitions > 1:
        weight_bytes = sum(part.size_bytes for part in planned)
        split_bytes = max(1, min(split_bytes, weight_bytes // options.min_partitions))
        planned = parts(split_bytes)
        return [*made, *(split(part) for part in planned)]
    together: list[ScanPart] = []
    weight_bytes = 0
    for part in planned:
        together.append(part)
        weight_bytes += part.size_bytes + _PART_WEIGHT_BYTES
        if weight_bytes >= split_bytes:
            made.append(split(*together))
            together, weight_bytes = [], 0
    if together:
        made.append(split(*together))
    return made


def read_split(split: InputPartition) -> Iterator[Any]:
    """The rows of a task as pyarrow.RecordBatch. If there is nothing to read, Spark passes an empty partition."""
    end_with_closed_pipe()
    if isinstance(split, TopicSplit):
        with ToldBySpark():
            yield from _rows_of(split)


def _rows_of(split: TopicSplit) -> Iterator[Any]:
    import pyarrow  # type: ignore[import-untyped]

    losses = list(split.gone)
    undecodable: Counter[str] = Counter()
    for part in split.parts:
        lost: list[LostRange] = []
        for rows in part.batches(lost):
            undecodable.update(rows.undecodable)
            if len(rows):
                yield conformed(
                    pyarrow.record_batch(rows), split.columns, split.decoded, null_timestamps=split.null_timestamps
                )
        for gap in lost:
            _LOG.warning("%s: skipped %s", part.path, gap)
        losses += losses_of(part, lost)
    for column, count in undecodable.items():
        if count:
            _LOG.warning("%s and others: %d of the column %s could not be decoded", split.parts[0].path, count, column)
    if losses and split.loss_report is not None:
        write_losses(split.loss_report, (*split.parts, *split.gone), losses)
    if losses and LOST in split.columns:
        yield lost_rows(losses, split.columns, split.decoded)
