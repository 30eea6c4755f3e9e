"""`seglog seek`: find the batch and the record at an offset or a time, and show how they were found."""
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import scan
from seglog.errors import CorruptIndexError, OffsetOutOfRangeError
from seglog.reading.lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from seglog.reading.partition import Partition
from seglog.segment.positions import BatchPosition, TimestampOffset
from seglog.segment.segment import Segment

from . import records as lines
from . import report
from .cli import Command
from .each_place import EachPlace
from .options import NumberType, SizeType, TimeType, json_option, readable_paths_argument, store_option
from .targets import Place

SPECIAL_TIMES = {"latest": LATEST_TIMESTAMP, "earliest": EARLIEST_TIMESTAMP, "max-timestamp": MAX_TIMESTAMP}


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended. If it ended at the log end, where no record is, all fields but `answer` are None."""

    answer: TimestampOffset
    segment: Segment | None = None
    batch: RecordBatch | None = None
    base_offset: int = -1
    index_in_batch: int = -1
    record: Record | None = None


@click.command(cls=Command, only_reads=True)
@readable_paths_argument
@click.option("--offset", metavar="OFFSET", type=NumberType(),
              help="An offset: that of the record, or of the first one after it.")
@click.option(
    "--time", "time_ms", metavar="TIME", type=TimeType(SPECIAL_TIMES),
    help="A time: ISO 8601, milliseconds, -2h; or latest (-1), earliest (-2), max-timestamp (-3), as Kafka has them.",
)
@click.option("--max-value-bytes", type=SizeType(), help="For longer values, print only size and SHA-256.")
@store_option
@json_option
def command(
    paths: Sequence[Path | str], offset: int | None, time_ms: int | None, max_value_bytes: int | None,
    store_options: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Find the first record at or after an offset, or the first record, in log order, at or after a time.

    The answer comes from the log itself: an index only says where to start, and a wrong index does not change the
    answer. In a log dir, every partition is searched.
    """
    if (offset is None) == (time_ms is None):
        raise click.UsageError("pass --offset N or --time T")
    places = EachPlace(paths, as_json=as_json, store_options=dict(store_options))
    for place in places:
        with places.reading(place), place.at_hand(), place.open() as partition:
            if offset is not None:
                found = _by_offset(partition, offset, place)
            else:
                assert time_ms is not None
                found = _by_time(partition, time_ms)
            target: dict[str, int | None] = {"offset": offset} if offset is not None else {"timestamp": time_ms}
            if as_json:
                _print_json(place, target, found, max_value_bytes)
            else:
                _print_text(place, offset, time_ms, found, max_value_bytes)
    return places.status(found=False)


# --- searching ---------------------------------------------------------------------------


def _by_offset(partition: Partition, offset: int, place: Place) -> Found | None:
    start = partition.log_start_offset if place.only is None else partition.segments[0].base_offset
    end = partition.log_end_offset
    if not start <= offset < end:
        if place.in_log_dir:
            return None
        valid = f"valid are {start}…{end - 1}" if end > start else "the log is empty"
        raise OffsetOutOfRangeError(f"offset {offset} is out of range: {valid}", file=place.path, offset=offset)
    found = partition.find_offset(offset)
    return None if found is None else _open(partition, *found, offset)


def _by_time(partition: Partition, time_ms: int) -> Found | None:
    answer = partition._offset_for_ms(time_ms)
    if answer is None:
        return None
    found = partition.find_offset(answer.offset)
    if found is None:
        return Found(answer)        # the log end offset, which no record has yet
    at = _open(partition, *found, answer.offset)
    return Found(answer, at.segment, at.batch, at.base_offset, at.index_in_batch, at.record)


def _open(partition: Partition, segment: Segment, position: BatchPosition, offset: int) -> Found:
    """Find the first record at or after `offset` in the batch; there is none if a cleaner removed them."""
    table = scan(segment.window, position.position, max_batches=1, decompress=partition._decompress)
    batch = table[0]
    records = list(batch)
    base_offset = lines.base_offset_of(batch, records)
    epoch = None if batch.leader_epoch < 0 else batch.leader_epoch
    for n, record in enumerate(records):
        if record.offset >= offset:
            answer = TimestampOffset(record.timestamp, record.offset, epoch)
            return Found(answer, segment, batch, base_offset, n, record)
    return Found(TimestampOffset(-1, batch.last_offset, epoch), segment, batch, base_offset)


def _how(found: Found, time_ms: int | None) -> dict[str, object]:
    """Return the index entries from which the search could start."""
    segment, batch = found.segment, found.batch
    assert segment is not None
    assert batch is not None
    how: dict[str, object] = {"time_index_entry": None, "offset_index_entry": None, "scanned_bytes": batch.position}
    lookup_offset = found.answer.offset
    try:
        if time_ms is not None and time_ms >= 0 and segment.time_index is not None and len(segment.time_index):
            timestamp, lookup_offset = segment.time_index.lookup(time_ms - 1)
            if timestamp >= 0:
                how["time_index_entry"] = {"timestamp": timestamp, "offset": lookup_offset}
        if segment.offset_index is not None and len(segment.offset_index):
            offset, position = segment.offset_index.lookup(lookup_offset)
            if 0 < position <= batch.position:
                how["offset_index_entry"] = {"offset": offset, "position": position}
                how["scanned_bytes"] = batch.position - position
    except CorruptIndexError as e:
        how["index_error"] = e.what
    return how


# --- printing ----------------------------------------------------------------------------


def _print_json(place: Place, target: dict[str, int | None], found: Found | None, max_value_bytes: int | None) -> None:
    fields: dict[str, object] = {"partition": place.name, "path": place.path, "target": target}
    if found is None:
        report.print_json("seek", **fields, offset=None, timestamp=None, leader_epoch=None, batch=None, record=None)
        return
    answer, segment, batch = found.answer, found.segment, found.batch
    fields |= {"offset": answer.offset, "timestamp": answer.timestamp, "leader_epoch": answer.leader_epoch}
    if segment is None or batch is None:
        report.print_json("seek", **fields, batch=None, record=None)
        return
    record = None
    if found.record is not None:
        chosen = [(found.index_in_batch, found.record)]
        line = next(lines.record_lines(segment.path.name, batch, chosen, found.base_offset, max_value_bytes))
        record = json.loads(line)
    how = _how(found, target.get("timestamp"))
    report.print_json(
        "seek", **fields, segment=segment.path.name, position=batch.position,
        batch=lines.batch_fields(segment.path.name, batch), record=record, found_by=how,
    )


def _print_text(
    place: Place, offset: int | None, time_ms: int | None, found: Found | None, max_value_bytes: int | None
) -> None:
    asked = f"offset {offset}" if offset is not None else _asked_time(time_ms)
    write = sys.stdout.write
    write(report.paint(f"{place.label}: {asked}", "bold") + "\n")
    if found is None:
        write("  nothing there: " + _why_nothing(offset, time_ms) + "\n")
        return
    segment, batch, record = found.segment, found.batch, found.record
    if segment is None or batch is None:
        write(f"  offset    {found.answer.offset}, the log end offset: no record has it yet\n")
        return
    write(f"  segment   {segment.path.name}\n")
    flags = lines.flags_of(batch)
    write(
        f"  batch     byte {batch.position:,}, {batch.size_bytes:,} bytes, "
        f"offsets {found.base_offset}…{batch.last_offset}, "
        f"{lines.format_name(batch.magic)} {lines.codec_name(batch.codec)}"
        f"{', ' + flags if flags else ''}\n"
    )
    if record is None:
        write("  record    none at or after it in this batch: a cleaner removed them\n")
    else:
        note = "" if offset is None or record.offset == offset else f" (offset {offset} is a gap: this is the next)"
        kind = lines.TIMESTAMP_TYPES[batch.timestamp_type]
        write(f"  record    offset {record.offset}, {report.moment(record.timestamp)} {kind}{note}\n")
        if batch.is_control:
            write(f"  control   {lines.control_text(record, batch)}\n")
        else:
            write(f"  key       {lines.shown(record.key)}\n")
            write(f"  value     {lines.value_shown(record.value, max_value_bytes)}\n")
            if record.headers:
                write(f"  headers   {lines.headers_shown(record.headers)}\n")
    write(f"  found by  {_how_text(_how(found, time_ms))}\n")


def _why_nothing(offset: int | None, time_ms: int | None) -> str:
    if offset is not None:
        return "out of range"
    return "no record has a timestamp" if time_ms == MAX_TIMESTAMP else "every record is older"


def _asked_time(time_ms: int | None) -> str:
    assert time_ms is not None
    for word, value in SPECIAL_TIMES.items():
        if value == time_ms:
            return word
    return f"time {report.moment(time_ms)} ({time_ms})"


def _how_text(how: dict[str, object]) -> str:
    steps = []
    time_entry, offset_entry = how["time_index_entry"], how["offset_index_entry"]
    if isinstance(time_entry, dict):
        steps.append(f"time index ({report.moment(time_entry['timestamp'])} by offset {time_entry['offset']})")
    if isinstance(offset_entry, dict):
        steps.append(f"offset index (offset {offset_entry['offset']} at byte {offset_entry['position']:,})")
    if "index_error" in how:
        steps.append(f"a damaged index ({how['index_error']})")
    scanned = how["scanned_bytes"]
    assert isinstance(scanned, int)
    if not steps:
        steps.append("the start of the segment")
    if scanned:
        steps.append(f"then {scanned:,} bytes of batches")
    return ", ".join(steps)
