"""`seglog du`: who fills the disk, and what pruning or compression would free."""
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seglog._kernels.batch_survey import tally
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import MissingCodecError, SeglogError, UnknownPolicyError
from seglog.format import names
from seglog.format.compression import Codec, compress
from seglog.reading.partition import Partition
from seglog.upkeep.retain import retain

from . import records as lines
from . import report
from .cli import Command
from .each_place import EachPlace
from .options import config_option, json_option, paths_argument
from .targets import Place
from .topic_config import POLICY, RETENTION, TopicConfig

_DAY_MS = 86_400_000
# Of each topic so much is compressed to estimate what compression would free.
_SAMPLE_BYTES = 1 << 20
_HEADER_BYTES = 61      # of a v2 batch; its payload follows


@dataclass(slots=True)
class SpaceUsage:
    """What one group takes. `log_bytes`: of batches; `bytes`: by topic also of all other files.

    `prune_frees`: None if retention is unknown. `plain_bytes`: in batches without a codec; `sampled`: bytes of those
    that were compressed, and what they became.
    """

    bytes: int = 0
    log_bytes: int = 0
    batches: int = 0
    partitions: int = 0
    prune_frees: int | None = 0
    plain_bytes: int = 0
    sampled: tuple[int, int] = (0, 0)

    @property
    def compression_frees(self) -> int:
        """An estimate."""
        before, after = self.sampled
        return round(self.plain_bytes * max(1 - after / before, 0)) if before else 0


@click.command(cls=Command, only_reads=True)
@paths_argument
@click.option("--by", type=click.Choice(["topic", "day", "format", "codec"]), default="topic", show_default=True,
              help="day: of the largest timestamp in a batch, in UTC.")
@config_option
@json_option
def command(paths: Sequence[Path], by: str, settings: Sequence[tuple[str, str]], as_json: bool) -> int:
    """Show which topics, days, record formats or codecs take the bytes of the log dirs at PATH.

    By topic, also what `seglog prune` would free now, by settings from --config, kept with the log, or in the cluster's
    metadata, and about how much compression with zstd would, estimated from a sample. Status 7 if a partition could not
    be read.
    """
    places = EachPlace(paths, as_json=as_json)
    config = TopicConfig(settings, RETENTION)
    groups: dict[str, SpaceUsage] = {}
    for place in places:
        with places.reading(place), place.open() as partition:
            if by == "topic":
                _add_topic(groups.setdefault(_topic_of(place), SpaceUsage()), place, partition, config)
            else:
                _add_batches(groups, by, partition)
    rows = sorted(groups.items(), key=(lambda row: row[0]) if by == "day" else (lambda row: (-row[1].bytes, row[0])))
    total = sum(usage.bytes for _, usage in rows)
    if as_json:
        for name, usage in rows:
            report.print_json("usage", by=by, name=name, **_fields(usage, by))
        report.print_json("summary", by=by, bytes=total, partitions=len(places), unread=places.unread)
    else:
        print(_table(by, rows, total))
    return places.status(found=False)


def _topic_of(place: Place) -> str:
    name = place.directory.resolve().name
    parsed = names.parse_partition_dir(name)
    return name if parsed is None else parsed.topic


def _add_topic(usage: SpaceUsage, place: Place, partition: Partition, config: TopicConfig) -> None:
    usage.partitions += 1
    for segment in partition.segments:
        for table in segment.tables(check_crc=False, on_lost=lambda _: None):
            for (magic, codec), (batches, size_bytes, _) in tally(table).items():
                usage.log_bytes += size_bytes
                usage.batches += batches
                if magic == 2 and codec == Codec.NONE:
                    usage.plain_bytes += size_bytes
            if usage.sampled[0] < _SAMPLE_BYTES:
                _sample(usage, table)
        if place.only is not None:
            usage.bytes += segment.size_bytes
    if place.only is None:
        usage.bytes += _bytes_under(place.directory)
        freed = _prunable(place, config)
        usage.prune_frees = None if freed is None or usage.prune_frees is None else usage.prune_frees + freed


def _sample(usage: SpaceUsage, table: BatchTable) -> None:
    for batch in table:
        if batch.magic != 2 or batch.codec != Codec.NONE or batch.is_control:
            continue
        payload = _payload(batch)
        try:
            after = len(memoryview(compress(Codec.ZSTD, 2, payload)))
        except MissingCodecError:
            after = len(memoryview(compress(Codec.GZIP, 2, payload)))
        before, became = usage.sampled
        usage.sampled = before + batch.size_bytes, became + min(after + _HEADER_BYTES, batch.size_bytes)
        if usage.sampled[0] >= _SAMPLE_BYTES:
            return


def _payload(batch: RecordBatch) -> memoryview:
    return batch.raw()[_HEADER_BYTES:]


def _bytes_under(directory: Path) -> int:
    """The bytes of all files in the directory, as long as they say; a file that goes meanwhile counts for nothing."""
    size = 0
    for top, _, files in os.walk(directory):
        for name in files:
            try:
                size += os.lstat(os.path.join(top, name)).st_size
            except OSError:
                continue
    return size


def _prunable(place: Place, config: TopicConfig) -> int | None:
    """What `seglog prune` would delete now; None if nothing says."""
    try:
        settings = config.with_policy(place.directory)
        known = {POLICY, "retention.ms", "retention.bytes"} & settings.keys()
        if not known:
            return None
        return sum(one.retained.deleted_bytes for one in retain([place.directory], config=settings, dry_run=True))
    except UnknownPolicyError:
        return None
    except SeglogError as error:
        report.note(f"{place.name}: what prune would free is unknown: {error.what}")
        return None


def _add_batches(groups: dict[str, SpaceUsage], by: str, partition: Partition) -> None:
    for segment in partition.segments:
        for table in segment.tables(check_crc=False, on_lost=lambda _: None):
            for name, batches, size_bytes in _of_days(table) if by == "day" else _of_kinds(table, by):
                usage = groups.setdefault(name, SpaceUsage())
                usage.bytes += size_bytes
                usage.log_bytes += size_bytes
                usage.batches += batches


def _of_days(table: BatchTable) -> Iterable[tuple[str, int, int]]:
    for batch in table:
        time_ms = batch.max_timestamp
        day = "no time" if time_ms < 0 else report.moment(time_ms // _DAY_MS * _DAY_MS).split(" ")[0]
        yield day, 1, batch.size_bytes


def _of_kinds(table: BatchTable, by: str) -> Iterable[tuple[str, int, int]]:
    for (magic, codec), (batches, size_bytes, _) in tally(table).items():
        yield lines.format_name(magic) if by == "format" else lines.codec_name(codec), batches, size_bytes


def _fields(usage: SpaceUsage, by: str) -> dict[str, object]:
    fields: dict[str, object] = {"bytes": usage.bytes, "log_bytes": usage.log_bytes, "batches": usage.batches}
    if by == "topic":
        fields |= {
            "partitions": usage.partitions, "prune_frees": usage.prune_frees,
            "compression_frees": usage.compression_frees,
        }
    return fields


def _table(by: str, rows: Sequence[tuple[str, SpaceUsage]], total: int) -> str:
    of_topics = by == "topic"
    shown = [
        [
            report.printable(name), report.size(usage.bytes), report.ratio(usage.bytes, total), f"{usage.batches:,}",
            *([
                f"{usage.partitions:,}", "unknown" if usage.prune_frees is None else report.size(usage.prune_frees),
                f"about {report.size(usage.compression_frees)}" if usage.compression_frees else "-",
            ] if of_topics else []),
        ]
        for name, usage in rows
    ]
    known = sum(usage.prune_frees or 0 for _, usage in rows)
    freed = sum(usage.compression_frees for _, usage in rows)
    shown.append([
        "total", report.size(total), report.ratio(total, total), f"{sum(usage.batches for _, usage in rows):,}",
        *([
            f"{sum(usage.partitions for _, usage in rows):,}", report.size(known), f"about {report.size(freed)}",
        ] if of_topics else []),
    ])
    more = ["partitions", "prune frees", "zstd frees"] if of_topics else []
    head = [by, "all files" if of_topics else "size", "share", "batches", *more]
    return report.table(head, shown, total=True)
