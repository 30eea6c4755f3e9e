"""`seglog ls`: list what is there, from batch headers only.

Prints a line for each partition of a log dir, or for each segment of a partition. Computes no checksums and
decompresses nothing; a damaged file is listed with what could be read of it, and marked.
"""
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seglog._kernels.batch_survey import tally
from seglog._kernels.segment_scan import BatchTable
from seglog.format.compression import Codec
from seglog.reading.partition import Partition
from seglog.segment.column_stats import column_stats_path
from seglog.segment.index_file import minute_index_path
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import json_option, metrics_option, readable_paths_argument, store_option, topic_option
from .targets import Place
from .textfile import Gauge, write_textfile

_FORMATS = ("v0", "v1", "v2")
# Damaged partitions that the note names.
_NAMED = 5


@dataclass(slots=True)
class Totals:
    """Sums over the batch headers of a segment, a partition or all. Timestamps are in ms, -1 if there is none."""

    segments: int = 0
    bytes: int = 0              # of the .log files
    batches: int = 0
    records: int = 0            # control records included; without those in compressed batches below v2
    wrappers: int = 0           # compressed batches below v2: only opening one tells how many records it has
    first_offset: int = -1      # of the first batch; -1: no batch
    bytes_v0: int = 0
    bytes_v1: int = 0
    bytes_v2: int = 0
    bytes_tagged: int = 0
    first_timestamp: int = -1
    max_timestamp: int = -1
    damaged_bytes: int = 0      # skipped to find the next batch
    minute_indexes: int = 0     # segments that have a .time.index
    time_ranges: int = 0        # segments that have a .ranges.index
    column_stats: int = 0       # segments that have a .stats.index

    @property
    def tail_bytes(self) -> int:
        """The bytes after the last batch: an unfinished write, or the zeros of a preallocated file."""
        whole = self.bytes_v0 + self.bytes_v1 + self.bytes_v2 + self.bytes_tagged
        return self.bytes - whole - self.damaged_bytes

    def add(self, other: "Totals") -> None:
        self.segments += other.segments
        self.bytes += other.bytes
        self.batches += other.batches
        self.records += other.records
        self.wrappers += other.wrappers
        if self.first_offset < 0:
            self.first_offset = other.first_offset
        self.bytes_v0 += other.bytes_v0
        self.bytes_v1 += other.bytes_v1
        self.bytes_v2 += other.bytes_v2
        self.bytes_tagged += other.bytes_tagged
        self.damaged_bytes += other.damaged_bytes
        self.minute_indexes += other.minute_indexes
        self.time_ranges += other.time_ranges
        self.column_stats += other.column_stats
        self.max_timestamp = max(self.max_timestamp, other.max_timestamp)
        known = [t for t in (self.first_timestamp, other.first_timestamp) if t >= 0]
        self.first_timestamp = min(known, default=-1)

    def fields(self) -> dict[str, object]:
        return {
            "segments": self.segments, "bytes": self.bytes, "batches": self.batches,
            "records": None if self.wrappers else self.records, "bytes_v0": self.bytes_v0,
            "bytes_v1": self.bytes_v1, "bytes_v2": self.bytes_v2, "tail_bytes": self.tail_bytes,
            "damaged_bytes": self.damaged_bytes, "first_timestamp": self.first_timestamp,
            "max_timestamp": self.max_timestamp, "minute_indexes": self.minute_indexes,
            "time_ranges": self.time_ranges, "column_stats": self.column_stats,
            **({"bytes_tagged": self.bytes_tagged} if self.bytes_tagged else {}),
        }


def extent_of(segment: Segment, look: Callable[[BatchTable], None] | None = None) -> tuple[Totals, int]:
    """Return the segment's sums and its next offset, in one walk over its headers. Also passes them to `look`."""
    extent = Totals(
        segments=1, bytes=segment.size_bytes, minute_indexes=int(minute_index_path(segment.path).exists()),
        time_ranges=int(time_ranges_path(segment.path).exists()),
        column_stats=int(column_stats_path(segment.path).exists()),
    )
    next_offset = segment.base_offset

    def on_lost(lost: LostRange) -> None:
        extent.damaged_bytes += lost.size_bytes

    for table in segment.tables(check_crc=False, on_lost=on_lost):
        bytes_of = Counter[int]()
        records = wrappers = 0
        for (magic, codec), (batches, size_bytes, count) in tally(table).items():
            bytes_of[magic] += size_bytes
            records += count
            if codec != Codec.NONE and magic < 2:
                wrappers += batches
        extent.add(Totals(
            batches=len(table), records=records, wrappers=wrappers, first_offset=_first_offset(table, segment),
            bytes_v0=bytes_of[0], bytes_v1=bytes_of[1], bytes_v2=bytes_of[2],
            bytes_tagged=bytes_of[-1],
            first_timestamp=table.min_timestamp, max_timestamp=table.max_timestamp,
        ))
        next_offset = table[-1].last_offset + 1
        if look is not None:
            look(table)
    return extent, next_offset


def _first_offset(table: BatchTable, segment: Segment) -> int:
    first = table[0]
    # A wrapper has the offset of its last message; only opening it tells the first.
    return segment.base_offset if first.magic < 2 and first.codec != Codec.NONE else first.base_offset


@click.command(cls=Command, only_reads=True)
@readable_paths_argument
@topic_option
@metrics_option
@store_option
@json_option
def command(
    paths: Sequence[Path | str], topics: Sequence[str], metrics_file: Path | None,
    store_options: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Show what PATH holds: records, bytes of .log files, offsets, times, and the bytes in each record format.

    For a log dir, prints a line for each partition; for a partition directory, a line for each segment. Times come
    from batch headers, in UTC. "first" and "last" are offsets. "records" counts control records, too, and is `-` if
    only opening compressed messages would tell. If one of several partitions cannot be read, it is reported and the
    others are listed: status 7.
    """
    places = EachPlace(paths, as_json=as_json, marked=True, store_options=dict(store_options), topics=topics)
    total = Totals()
    rows: list[list[str]] = []
    measured: list[tuple[dict[str, str], Totals, int, int]] = []
    damaged: list[Place] = []
    for place in places:
        with places.reading(place), place.at_hand(), place.open() as partition:
            extent, next_offset, segment_rows = _survey(place, partition, as_json)
            start = partition.log_start_offset if place.only is None else partition.segments[0].base_offset
            if as_json:
                report.print_json(
                    "partition", partition=place.name, topic=partition.topic, number=partition.partition,
                    path=place.path, log_start_offset=start, log_end_offset=next_offset, **extent.fields(),
                )
            total.add(extent)
            measured.append((place.labels(), extent, start, next_offset))
            if extent.damaged_bytes:
                damaged.append(place)
            rows.extend([_row(place.label, extent, start, next_offset)] if place.in_log_dir else segment_rows)
            if not place.in_log_dir and len(places) > 1 and place.only is None:
                rows.append(_row(place.label, extent, start, next_offset))
    if metrics_file is not None:
        write_textfile(metrics_file, "ls", _gauges(measured, places.unread))
    if as_json:
        report.print_json("summary", partitions=len(places), **total.fields())
    else:
        _print_table([*places], rows, total, damaged)
    return places.status(found=bool(total.damaged_bytes))


def _gauges(measured: Sequence[tuple[dict[str, str], Totals, int, int]], unread: int) -> Iterable[Gauge]:
    def gauge(name: str, help_text: str, value: Callable[[Totals, int, int], float]) -> Gauge:
        return Gauge(f"seglog_ls_{name}", help_text, [
            (labels, value(extent, start, end)) for labels, extent, start, end in measured
        ])

    yield gauge("bytes", "Bytes of .log files.", lambda extent, _, __: extent.bytes)
    yield gauge("segments", "Segments.", lambda extent, _, __: extent.segments)
    yield gauge("log_start_offset", "Where the log begins.", lambda _, start, __: start)
    yield gauge("log_end_offset", "Where the log ends.", lambda _, __, end: end)
    yield gauge("damaged_bytes", "Damaged bytes: they belong to no batch.", lambda extent, _, __: extent.damaged_bytes)
    yield gauge("max_timestamp_seconds", "The largest timestamp in a batch header; -1: none.",
                lambda extent, _, __: -1 if extent.max_timestamp < 0 else extent.max_timestamp / 1000)
    yield Gauge("seglog_ls_unread_partitions", "Partitions that could not be read.", [({}, unread)])


def _survey(place: Place, partition: Partition, as_json: bool) -> tuple[Totals, int, list[list[str]]]:
    """Return the extent of the whole, its next offset, and a row for each segment."""
    whole, end, rows = Totals(), 0, []
    for segment in partition.segments:
        extent, end = extent_of(segment)
        whole.add(extent)
        rows.append(_row(segment.path.name, extent, segment.base_offset, end))
        if as_json and not place.in_log_dir:
            report.print_json(
                "segment", segment=segment.path.name, path=place.named(str(segment.path)),
                base_offset=segment.base_offset, next_offset=end, **extent.fields(),
            )
    return whole, end, rows


def _row(name: str, extent: Totals, start: int, end: int) -> list[str]:
    # Bytes in quarantine are missing at the beginning, too.
    first = max(start, extent.first_offset)
    return [
        name, "-" if extent.wrappers else f"{extent.records:,}", report.size(extent.bytes),
        *_offsets(first, end), _day(extent.first_timestamp),
        _day(extent.max_timestamp), *map(_size_or_dash, (extent.bytes_v0, extent.bytes_v1, extent.bytes_v2)),
        *map(_size_or_dash, (extent.bytes_tagged, extent.tail_bytes, extent.damaged_bytes)),
        f"{extent.minute_indexes:,}", f"{extent.time_ranges:,}", f"{extent.column_stats:,}",
    ]


def _print_table(places: Sequence[Place], rows: list[list[str]], total: Totals, damaged: Sequence[Place]) -> None:
    """`damaged`: the places of the damaged bytes."""
    of_partitions = any(place.in_log_dir for place in places)
    head = [
        "partition" if of_partitions else "segment", "records", "bytes", "first", "last", "first time", "last time",
        "v0", "v1", "v2", "tagged", "tail", "damaged", "minute indexes", "time ranges", "column stats",
    ]
    summed = len(rows) > 1
    if summed:
        name = report.count_of(len(places), "partition") if len(places) > 1 else places[0].label
        rows.append(["total" if of_partitions else name, *_row("", total, 0, 0)[1:]])
        if not of_partitions and len(places) == 1:
            rows[-1][3:5] = [rows[0][3], rows[-2][4]]
        else:
            rows[-1][3:5] = ["", ""]
    only = _only_format(total)
    if only:
        # Their column would repeat that of the bytes.
        head[2] = f"bytes, {only}"
    # Leave out columns without values.
    wanted = [
        n for n, title in enumerate(head)
        if not (title == "tagged" and not total.bytes_tagged)
        and not (title in _FORMATS and (only or not any(row[n] != "-" for row in rows)))
        and not (title == "tail" and not total.tail_bytes)
        and not (title == "damaged" and not total.damaged_bytes)
        and not (title == "records" and all(row[n] == "-" for row in rows))
        and not (title == "minute indexes" and not total.minute_indexes)
        and not (title == "time ranges" and not total.time_ranges)
        and not (title == "column stats" and not total.column_stats)
    ]
    print(report.table(_pick(head, wanted), [_pick(row, wanted) for row in rows], total=summed))
    if total.tail_bytes:
        report.note(f"{report.size(total.tail_bytes)} after the last batches: an unfinished write, or zeros")
    if total.damaged_bytes:
        where = " ".join(shlex.quote(str(place.path)) for place in damaged[:_NAMED])
        more = f", and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
        report.note(f"{report.size(total.damaged_bytes)} are not batches: run `seglog verify {where}`{more}")


def _only_format(total: Totals) -> str:
    """The record format of all bytes, if there is only one; else an empty string."""
    sizes = zip(_FORMATS, (total.bytes_v0, total.bytes_v1, total.bytes_v2), strict=True)
    return next((name for name, size in sizes if size and size == total.bytes), "")


def _pick(cells: Sequence[str], wanted: Iterable[int]) -> list[str]:
    return [cells[n] for n in wanted]


def _offsets(start: int, end: int) -> tuple[str, str]:
    return (f"{start:,}", f"{end - 1:,}") if end > start else ("-", "-")


def _day(timestamp_ms: int) -> str:
    return report.moment(timestamp_ms)[:19] if timestamp_ms >= 0 else "-"


def _size_or_dash(n: int) -> str:
    return report.size(n) if n else "-"
