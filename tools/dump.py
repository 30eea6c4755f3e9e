"""`seglog dump`: what the files hold, record by record, batch by batch, entry by entry.

Reads batch by batch and keeps none: memory does not grow with the log.
"""
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import click

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptRecordError
from seglog.format import names
from seglog.frames.scan import scan as topic_scan
from seglog.log.damage import OnCorrupt
from seglog.log.follower import Follower
from seglog.log.partition import Partition
from seglog.segment.answers import LostRange
from seglog.segment.batches import UNREADABLE, checked_records
from seglog.segment.segment import Segment

from . import records as lines
from . import report, small_files
from .cli import Command
from .dump_tables import FORMATS
from .dump_tables import write as write_table
from .each_place import EachPlace
from .options import (
    SizeType,
    TimeType,
    config_option,
    json_option,
    limit_option,
    on_corrupt_option,
    paths_argument,
)
from .record_filter import RecordFilter
from .targets import Place

What = Literal["batches", "control"] | None     # None: records
OnLost = Callable[[LostRange], None] | None

_FOREVER = 1 << 63


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records: offsets of [start, stop), timestamps of [since, until), of each partition no more than

    batches of about `max_bytes`, and `limit` records (or batches, where batches are shown).
    """

    start: int | None
    stop: int | None
    since: int | None
    until: int | None
    max_bytes: int | None
    limit: int | None
    tail: int | None = None         # of those the last so many
    follows: bool = False           # and then what is appended
    matching: RecordFilter | None = None    # of the records, batches of control records left out

    @property
    def is_by_time(self) -> bool:
        return self.since is not None or self.until is not None


@click.command(cls=Command)
@paths_argument
@click.option("--batches", "what", flag_value="batches", help="Batch headers instead of records.")
@click.option("--control", "what", flag_value="control", help="Control records only (transaction markers), decoded.")
@click.option("--from-offset", "start", metavar="OFFSET", type=click.IntRange(0), help="The first offset wanted.")
@click.option("--to-offset", "stop", metavar="OFFSET", type=click.IntRange(0), help="Stop before this offset.")
@click.option("--since", type=TimeType(), help="Timestamps at or after: ISO 8601, milliseconds, or -2h.")
@click.option("--until", type=TimeType(), help="Timestamps before.")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Records with this key. Repeat for more.")
@click.option("--grep", "pattern", metavar="REGEX", help="Records whose value has a match of this, as text in UTF-8.")
@click.option(
    "--header", "headers", metavar="NAME[=VALUE]", multiple=True, help="Records with this header. Repeat: with all.",
)
@click.option("--max-bytes", type=SizeType(), help="Stop when batches of so many bytes were read, of each partition.")
@limit_option("Stop after so many records (with --batches: batches), of each partition.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="The last N of them (with --batches: batches) only.")
@click.option(
    "--follow", "follows", is_flag=True,
    help="Then wait for what is appended, until ^C; without --tail or where to begin, only for that. One partition.",
)
@click.option("--max-value-bytes", type=SizeType(), help="Longer values: only their size and SHA-256.")
@click.option(
    "--format", "table_format", type=click.Choice(FORMATS),
    help="All PATHs as one table, with the columns of Spark's Kafka source; csv and jsonl have bytes in base64.",
)
@click.option("--columns", metavar="NAMES", help="With --format: only these, with commas between them.")
@click.option("--decode", type=click.Choice(["utf8", "json"]), help="With --format: keys and values as text.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="With --format: a new file, not stdout.",
)
@on_corrupt_option
@config_option
@json_option
def command(
    paths: Sequence[Path],
    what: What,
    start: int | None,
    stop: int | None,
    since: int | None,
    until: int | None,
    keys: Sequence[str],
    pattern: str | None,
    headers: Sequence[str],
    max_bytes: int | None,
    limit: int | None,
    tail: int | None,
    follows: bool,
    max_value_bytes: int | None,
    table_format: str | None,
    columns: str | None,
    decode: Literal["utf8", "json"] | None,
    output: Path | None,
    on_corrupt: OnCorrupt,
    settings: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Print what PATH holds.

    PATH is a partition directory, a .log file, or a log dir; or one of the small files: .index, .timeindex,
    .txnindex, .snapshot, leader-epoch-checkpoint, partition.metadata, a checkpoint of the log dir.
    Records begin at the log start offset unless --from-offset asks for less. Several conditions must all hold.
    --tail N shows the last N, --limit N the first N of what is left; --follow shows what is appended, also by another
    process, until ^C.
    Of a log dir, a partition that cannot be read is reported, and the others are dumped; the status is 7 then.
    """
    if table_format is not None:
        limits = max_bytes, limit, tail, max_value_bytes
        if what or follows or as_json or settings or keys or pattern or headers or any(n is not None for n in limits):
            raise click.UsageError(
                "--format goes with offsets, times, --columns, --decode, --output and --on-corrupt only"
            )
        scan = topic_scan(
            paths, from_offset=start, to_offset=stop, since=since, until=until, on_corrupt=on_corrupt, decode=decode,
            columns=None if columns is None else columns.split(","), include_headers=columns is None,
        )
        write_table(scan, table_format, output)
        if scan.lost:
            _note_lost(len(scan.lost))
        return report.PARTIAL if scan.lost else 0
    if columns or decode or output:
        raise click.UsageError("--columns, --decode and --output go with --format")
    matching = RecordFilter.of(keys, pattern, headers)
    if what and matching is not None:
        raise click.UsageError("--key, --grep and --header choose records: not with --batches or --control")
    selection = Selection(start, stop, since, until, max_bytes, limit, tail, follows, matching)
    if follows:
        _refuse_to_follow(paths, on_corrupt)
    lost: list[LostRange] = []
    on_lost = None if on_corrupt == "raise" else _lost_sink(lost, as_json)
    small = {path for path in paths if small_files.is_one(path)}
    places = EachPlace((path for path in paths if path not in small), as_json=as_json)
    for path in paths:
        if path in small:
            small_files.dump(path, as_json=as_json)
            continue
        for place in places.under(path):
            with places.reading(place), _opened(place, follows, dict(settings)) as partition:
                if as_json and place.in_log_dir:
                    report.print_json("partition", partition=place.name, path=place.path)
                renderer = (JsonLines if as_json else TextTable)(place, partition, what, max_value_bytes)
                for item in select(partition, selection, what, on_lost):
                    renderer.show(item)
                    if follows:
                        sys.stdout.flush()
    if lost:
        _note_lost(len(lost))
    return report.PARTIAL if lost else places.status(found=False)


def _note_lost(ranges: int) -> None:
    report.note(f"{report.count_of(ranges, 'range')} of bytes skipped: `seglog verify` says what they were")


def _refuse_to_follow(paths: Sequence[Path], on_corrupt: str) -> None:
    if len(paths) != 1 or not paths[0].is_dir() or not names.log_files(paths[0]):
        raise click.UsageError("--follow takes one partition directory")
    if on_corrupt != "raise":
        raise click.UsageError("--follow does not go with --on-corrupt skip")


def _opened(place: Place, follows: bool, settings: dict[str, object]) -> Partition:
    return Follower(place.directory, config=settings) if follows else place.open(settings)


def _lost_sink(lost: list[LostRange], as_json: bool) -> Callable[[LostRange], None]:
    def sink(gone: LostRange) -> None:
        lost.append(gone)
        if as_json:
            report.print_json(
                "lost_range", file=gone.file, position=gone.position, size=gone.size_bytes,
                first_offset=gone.first_offset, last_offset=gone.last_offset, reason=gone.reason,
            )
        else:
            offsets = f"offsets {gone.first_offset}{'' if gone.last_offset < 0 else f'…{gone.last_offset}'}"
            if 0 <= gone.last_offset < gone.first_offset:
                offsets = "no offset is missing"
            report.note(
                f"skipped {report.size(gone.size_bytes)} at {gone.file}, byte {gone.position} "
                f"({offsets}): {gone.reason}"
            )

    return sink


# --- selecting ---------------------------------------------------------------------------


def select_batches(
    partition: Partition, selection: Selection, on_lost: OnLost
) -> Iterator[tuple[Segment, RecordBatch, int]]:
    """The batches that may hold what is selected, in log order, and the first offset that is."""
    start, stop, since, until = selection.start, selection.stop, selection.since, selection.until
    if since is not None and since > 0 and on_lost is None:
        found = partition.offsets_for_time(since)
        if found is None:
            return
        start = max(found.offset, partition.log_start_offset if start is None else start)
    first = partition.log_start_offset if start is None else start
    bytes_left = _FOREVER if selection.max_bytes is None else selection.max_bytes
    if bytes_left <= 0:
        return
    tables: Iterator[tuple[Segment, BatchTable, int]]
    if selection.follows and isinstance(partition, Follower):
        tables = partition.follow_tables(first)
    else:
        tables = ((segment, table, first) for segment, table in partition.tables(start, stop, on_lost=on_lost))
    for segment, table, first in tables:        # which is a lower one after a cut
        for batch in table:
            if batch.last_offset < first or (since is not None and batch.max_timestamp < since and (
                batch.bounds_time or batch.largest_timestamp < since
            )):
                continue
            # Only where the end is near: a wrapper must be opened to tell its first offset.
            if stop is not None and batch.last_offset >= stop and batch.base_offset >= stop:
                return
            if until is not None and batch.magic == 2 and batch.timestamp_type == 1 and batch.max_timestamp >= until:
                continue
            yield segment, batch, first
            bytes_left -= batch.size_bytes
            if bytes_left <= 0:
                return


@dataclass(frozen=True, slots=True)
class Item:
    """A batch with what was chosen of its records, by their index in it; `records` None: the batch itself was."""

    segment: Segment
    batch: RecordBatch
    base_offset: int
    records: Iterator[tuple[int, Record]] | None


def select(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Iterator[Item]:
    """What is to be shown, in log order, up to the limit. Take an item's records before the next item."""
    if selection.tail is not None or (selection.follows and selection.start is None and selection.since is None):
        selection = _tail(partition, selection, what, on_lost)
    items = _items(partition, selection, what, on_lost)
    return items if selection.limit is None else _up_to(items, selection.limit)


def _items(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Iterator[Item]:
    items = _batches(partition, selection, on_lost) if what == "batches" else _records(partition, selection, on_lost)
    return (item for item in items if item.batch.is_control) if what == "control" else items


def _tail(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Selection:
    """The same from where the last `tail` of it begin. Looks for that place from the end, each time further back."""
    tail = selection.tail or 0
    end = partition.log_end_offset if selection.stop is None else min(selection.stop, partition.log_end_offset)
    first = partition.log_start_offset if selection.start is None else selection.start
    closed = replace(selection, follows=False, stop=end)
    reach = tail
    while True:
        start = max(end - reach, first)
        last: deque[int] = deque(maxlen=tail)
        if tail:
            for item in _items(partition, replace(closed, start=start), what, on_lost):
                if item.records is None:
                    last.append(item.base_offset)
                else:
                    last.extend(record.offset for _, record in item.records)
        if len(last) == tail or start <= first:
            return replace(selection, start=last[0] if last else end)
        reach *= 8


def _batches(partition: Partition, selection: Selection, on_lost: OnLost) -> Iterator[Item]:
    for segment, batch, _ in select_batches(partition, selection, on_lost):
        yield Item(segment, batch, batch.last_offset, None)


def _records(partition: Partition, selection: Selection, on_lost: OnLost) -> Iterator[Item]:
    last = _FOREVER if selection.stop is None else selection.stop
    since = -_FOREVER if selection.since is None else selection.since
    until = _FOREVER if selection.until is None else selection.until
    for segment, batch, first in select_batches(partition, selection, on_lost):
        try:
            records = checked_records(batch)
        except UNREADABLE as e:
            if on_lost is None:
                raise
            base = batch.last_offset if batch.magic in (0, 1) else batch.base_offset
            on_lost(LostRange(str(segment.path), batch.position, batch.size_bytes, base, batch.last_offset, e.what))
            continue
        opening = next(iter(records), None)
        if opening is None:
            continue
        base = lines.base_offset_of(batch, [opening])
        chosen: Iterator[tuple[int, Record]] = enumerate(records)
        if opening.offset < first or batch.last_offset >= last:
            chosen = ((n, r) for n, r in chosen if first <= r.offset < last)
        if selection.is_by_time:
            chosen = ((n, r) for n, r in chosen if since <= r.timestamp < until)
        if selection.matching is not None:
            if batch.is_control:
                continue
            matches = selection.matching.matches
            chosen = ((n, r) for n, r in chosen if matches(r))
        one = next(chosen, None)
        if one is not None:
            yield Item(segment, batch, base, chain([one], chosen))


def _up_to(items: Iterator[Item], limit: int) -> Iterator[Item]:
    """The first `limit` records, or batches, of the items."""
    while limit > 0 and (item := next(items, None)) is not None:
        if item.records is None:
            limit -= 1
            yield item
        else:
            records = list(islice(item.records, limit))
            limit -= len(records)
            yield replace(item, records=iter(records))


# --- printing ----------------------------------------------------------------------------


class JsonLines:
    """A line for each record or batch."""

    def __init__(self, place: Place, partition: Partition, what: What, max_value_bytes: int | None) -> None:
        self._what = what
        self._max_value_bytes = max_value_bytes

    def show(self, item: Item) -> None:
        name, batch = item.segment.path.name, item.batch
        if item.records is None:
            sys.stdout.write(report.plain_json(lines.batch_fields(name, batch)) + "\n")
        elif self._what == "control":
            for _, record in item.records:
                report.print_json("control_record", segment=name, **lines.control_fields(record, batch))
        else:
            shown = lines.record_lines(name, batch, item.records, item.base_offset, self._max_value_bytes)
            sys.stdout.writelines(shown)


_BATCH_ROW = "{:>12} {:>10}  {:<2} {:<6} {:>12} {:>12} {:>6}  {:<15} {:<24} {:>5}  {}"
_BATCH_COLUMNS = _BATCH_ROW.format(
    "position", "bytes", "v", "codec", "base offset", "last offset", "count", "timestamp type", "max timestamp",
    "epoch", "",
).rstrip()


class TextTable:
    """A row for each record or batch, under the name of its segment."""

    def __init__(self, place: Place, partition: Partition, what: What, max_value_bytes: int | None) -> None:
        self._heading = _Heading(place, _BATCH_COLUMNS if what == "batches" else "")
        self._what = what
        self._max_value_bytes = max_value_bytes
        self._offset_width = len(str(_end_of(partition))) if what is None else 0
        self._key_width = 6 if what is None else 0

    def show(self, item: Item) -> None:
        self._heading(item.segment)
        if item.records is None:
            sys.stdout.write(_batch_row(item.batch))
        else:
            for _, record in item.records:
                sys.stdout.write(self._control(record, item.batch) if self._what else self._record(record, item.batch))

    def _control(self, record: Record, batch: RecordBatch) -> str:
        return f"{record.offset}  {report.moment(record.timestamp)}  {lines.control_text(record, batch)}\n"

    def _record(self, record: Record, batch: RecordBatch) -> str:
        if batch.is_control:
            key, rest = "", lines.control_text(record, batch)
        else:
            key, rest = lines.shown(record.key), lines.value_shown(record.value, self._max_value_bytes)
        # The column grows with what it has seen: a table without a look ahead.
        self._key_width = max(self._key_width, min(len(key), 24))
        headers = f"  {lines.headers_shown(record.headers)}" if record.headers else ""
        return (
            f"{record.offset:>{self._offset_width}}  {report.moment(record.timestamp):<24}  "
            f"{key:<{self._key_width}}  {rest}{headers}\n"
        )


def _batch_row(batch: RecordBatch) -> str:
    return _BATCH_ROW.format(
        batch.position, batch.size_bytes, lines.format_name(batch.magic), lines.codec_name(batch.codec),
        batch.base_offset, batch.last_offset, "?" if batch.count < 0 else batch.count,
        lines.TIMESTAMP_TYPES[batch.timestamp_type],
        report.moment(batch.max_timestamp), batch.leader_epoch if batch.leader_epoch >= 0 else "-",
        lines.flags_of(batch),
    ).rstrip() + "\n"


def _end_of(partition: Partition) -> int:
    """About where the offsets end: for the width of a column, damage is no matter."""
    try:
        return partition.log_end_offset
    except CorruptRecordError:
        return partition.segments[-1].base_offset


class _Heading:
    """Prints the segment's name, and the columns' names under it, where a new segment begins."""

    def __init__(self, place: Place, columns: str = "") -> None:
        self._directory = place.directory.name or place.directory.resolve().name
        self._columns = columns
        self._segment: Segment | None = None

    def __call__(self, segment: Segment) -> None:
        if segment is not self._segment:
            self._segment = segment
            sys.stdout.write(report.paint(f"{self._directory}/{segment.path.name}", "bold") + "\n")
            if self._columns:
                sys.stdout.write(self._columns + "\n")
