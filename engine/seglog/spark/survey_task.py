"""Surveys partitions on an executor before anything is converted: what a lower format loses, and the result's size."""
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from seglog._kernels.batch_survey import tally
from seglog.conversion.forecast import Forecast
from seglog.conversion.losses import LossSurvey
from seglog.conversion.plan import refuse_zstd
from seglog.conversion.report import PartitionRow
from seglog.conversion.segment import tables_in_order
from seglog.errors import SeglogError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.loading.replay import producers_in
from seglog.segment.segment import Segment
from seglog.spark.plan import Shard, SourceSegment, segments_of
from seglog.spark.segment_task import Failure, of_the_partition
from seglog.spark.workplace import PartitionSurvey, Workplace

# The number of segments of a partition that are sampled to forecast the size of the result.
SAMPLED_SEGMENTS = 3


def survey_all(workplace: Workplace, partitions: list[str]) -> list[dict[str, Any]]:
    """Before a conversion that may lose something: write the survey of each partition, or report why it cannot be
    converted."""
    failed = []
    for partition in partitions:
        shard = workplace.shard(partition)
        before = workplace.survey(partition)
        if before is not None and (before.plan, before.options) == (shard.identity, workplace.options.digest):
            continue
        try:
            survey = _survey(workplace, shard)
            path = workplace.source_of(partition)
            survey.losses.check(workplace.options.profile, path, allow_lossy=workplace.options.allow_lossy)
        except (SeglogError, OSError) as error:
            workplace.store.remove_file(workplace.within("survey", partition))
            failed.append(asdict(Failure.of(partition, of_the_partition(workplace, error))))
            continue
        workplace.store.write(workplace.within("survey", partition), survey.to_bytes())
    return failed


def _survey(workplace: Workplace, shard: Shard) -> PartitionSurvey:
    """Read the whole partition twice: only a later segment may tell whether a record's transaction was aborted. Only
    one segment is held at a time.
    """
    options = workplace.options
    profile, stop = options.profile, shard.segments[-1].base_offset
    path = workplace.source_of(shard.partition)
    # Includes the active segment, even if that is left out.
    planned = segments_of(workplace.source_store.files(path), path)
    snapshot = names.file_name(planned[0].base_offset, names.SNAPSHOT_SUFFIX)
    survey = LossSurvey(
        (segment for segment, _ in _opened(workplace, shard.partition, planned)),
        producers_in(workplace.source_store.read(f"{path}/{snapshot}")), profile,
        decompressor(options.log_config.max_decompressed_message_bytes), options.log_config,
    )
    for segment, end in _opened(workplace, shard.partition, planned):
        if segment.base_offset > stop:
            break
        for table in tables_in_order(segment, end):
            for what in tally(table):
                refuse_zstd(segment, what, profile)
            survey.add(table)
    losses = survey.losses()
    end_offset = max(stop, survey.end_offset)
    return PartitionSurvey(shard.identity, options.digest, survey.dropped, losses, end_offset)


def _opened(
    workplace: Workplace, partition: str, planned: list[SourceSegment]
) -> Iterator[tuple[Segment, int]]:
    """Each segment with its end offset; it is closed, and its local copy removed, when the next one is requested."""
    decompress = decompressor(workplace.options.log_config.max_decompressed_message_bytes)
    for segment in planned:
        with (
            workplace.local_source(partition, segment) as path,
            closing(Segment(path, is_last=segment.is_last, decompress=decompress)) as opened,
        ):
            yield opened, segment.end_offset


# --- a dry run -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    bytes_in: int
    bytes_out: int


def forecast_all(workplace: Workplace, partitions: list[str]) -> list[dict[str, Any]]:
    """The forecast of the conversion of each partition: its row."""
    return [_forecast(workplace, partition) for partition in partitions]


def _forecast(workplace: Workplace, partition: str) -> dict[str, Any]:
    options, path = workplace.options, workplace.source_of(partition)
    losses = None
    try:
        files = workplace.source_store.files(path)
        shard = Shard(partition, tuple(segments_of(files, path, skip_active=options.skip_active)))
        if options.to < 2 or shard.is_tagged:
            losses = _survey(workplace, shard).losses
        samples = [_sample(workplace, partition, segment) for segment in _sampled(shard)]
        bytes_in = sum(sample.bytes_in for sample in samples)
        bytes_out = sum(sample.bytes_out for sample in samples)
        row = PartitionRow(
            partition, "planned", segments=len(shard.segments), bytes_in=shard.size_bytes,
            bytes_out=round(shard.size_bytes * bytes_out / bytes_in) if bytes_in else 0, losses=losses,
        )
    except (SeglogError, OSError) as error:
        row = PartitionRow.of_error(partition, of_the_partition(workplace, error), 0.0)
    return asdict(row)


def _sampled(shard: Shard) -> list[SourceSegment]:
    """The first segment, the last, and some in between, since formats change with age."""
    last = len(shard.segments) - 1
    slots = {round(last * n / (SAMPLED_SEGMENTS - 1)) for n in range(SAMPLED_SEGMENTS)}
    return [shard.segments[slot] for slot in sorted(slots)]


def _sample(workplace: Workplace, partition: str, segment: SourceSegment) -> _Sample:
    options = workplace.options
    config = options.log_config
    decompress = decompressor(config.max_decompressed_message_bytes)
    forecast = Forecast(options.profile, config, decompress)
    bytes_in = 0
    with (
        workplace.local_source(partition, segment) as path,
        closing(Segment(path, is_last=segment.is_last, decompress=decompress)) as opened,
    ):
        forecast.begin()
        for table in tables_in_order(opened, segment.end_offset):
            forecast.add(table)
            bytes_in = table.end
        return _Sample(bytes_in, forecast.end().size_bytes)
