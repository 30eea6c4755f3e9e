"""`seglog stats`: what a partition consists of."""
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.reading.partition import Partition
from seglog.upkeep.compaction_survey import CompactionSurvey, SegmentDuplicates
from seglog.upkeep.compaction_survey import survey as survey_compaction
from seglog.upkeep.retain import LaggingReader, holds, lagging_readers
from seglog.upkeep.retention import HeldSegment

from . import records as lines
from . import report, terminal
from .cli import Command
from .each_place import EachPlace, PlacesProgress
from .options import (
    TimeType,
    config_option,
    json_option,
    progress_option,
    readable_paths_argument,
    store_option,
    topic_option,
)
from .survey import Survey
from .targets import Place
from .topic_config import COMPACTION, RETENTION, TopicConfig
from .writer import Reason, Writer, infer

_BAR_WIDTH = 30
_PRODUCERS_SHOWN = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_DRAWN_WIDTH = 80       # with --full


@click.command(cls=Command, only_reads=True)
@readable_paths_argument
@topic_option
@click.option("--now", "now_ms", type=TimeType(), help="The current time to use when looking for future timestamps.")
@click.option("--timestamps", "only_times", is_flag=True,
              help="Show only when retention.ms (from --config, kept with the log, or in the cluster's metadata) "
              "deletes each segment, and which record it waits for.")
@click.option("--compaction", "only_compaction", is_flag=True,
              help="Show only what compaction would find: duplicates by segment, tombstones and when they are "
              "removed, the dirty ratio, and why the log cannot be cleaned. Needs memory for all keys.")
@config_option
@progress_option
@store_option
@json_option
def command(
    paths: Sequence[Path | str], topics: Sequence[str], now_ms: int | None, only_times: bool, only_compaction: bool,
    settings: Sequence[tuple[str, str]], no_progress: bool, store_options: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Show batch sizes, codecs and what they save, timestamp disorder, index density, transactions, producers, and
    which Kafka version wrote the partition.

    Reads and decompresses every batch. In a log dir, each partition is shown separately.
    """
    if only_times and only_compaction:
        raise click.UsageError("pass only one of --timestamps and --compaction")
    damaged = False
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    places = EachPlace(paths, as_json=as_json, store_options=dict(store_options), topics=topics)
    config = TopicConfig(settings, COMPACTION if only_compaction else RETENTION)
    with places.progress("reading", enabled=not no_progress) as progress:
        for n, place in enumerate(places):
            with places.reading(place), place.at_hand():
                if only_times:
                    _tell_times(place, config.of(place.directory), now_ms, n, as_json=as_json)
                elif only_compaction:
                    _tell_compaction(place, config.of(place.directory), now_ms, n, as_json=as_json)
                else:
                    survey = _tell(place, dict(settings), now_ms, n, as_json=as_json, progress=progress)
                    damaged |= bool(survey.lost)
    return places.status(found=damaged)


def _tell_times(place: Place, settings: dict[str, object], now_ms: int, n: int, *, as_json: bool) -> None:
    """Print when the segments of the `n`th place are deleted."""
    with place.open(settings) as partition:
        held = holds(partition, settings, now_ms)
        readers = lagging_readers(partition, held, settings)
    if as_json:
        for one in held:
            report.print_json(
                "segment_time", partition=place.name, base_offset=one.base_offset, size_bytes=one.size_bytes,
                time=one.time_ms, offset=one.offset, goes=one.goes_ms, waits_for=one.waits_for, future=one.is_future,
            )
        for reader in readers:
            report.print_json(
                "lagging_reader", partition=place.name, reader=reader.name, offset=reader.offset,
                base_offset=reader.base_offset, unread=reader.unread, goes=reader.goes_ms,
            )
    else:
        print("\n" * bool(n) + "\n".join((*_times_text(place, held, now_ms), *_readers_text(readers, now_ms))))


def _times_text(place: Place, held: Sequence[HeldSegment], now_ms: int) -> Iterable[str]:
    yield report.paint(place.label, "bold")
    rows = []
    for one in held:
        goes = "never" if one.goes_ms is None else "now" if one.goes_ms <= now_ms else report.moment(one.goes_ms)
        rows.append([
            f"{one.base_offset:020}", report.size(one.size_bytes), report.moment(one.time_ms),
            "the file's time" if one.offset is None else f"offset {one.offset:,}" + ", in the future" * one.is_future,
            goes, "" if one.waits_for == one.base_offset else f"the segment at {one.waits_for:,}",
        ])
    yield report.table(("segment", "size", "as old as", "by", "deleted", "waits for"), rows, left=(0, 2, 3, 4, 5))
    if held and all(one.goes_ms is None for one in held):
        yield "  by the settings that are kept with the log; a process may have it open with a retention of its own"


def _readers_text(readers: Sequence[LaggingReader], now_ms: int) -> Iterable[str]:
    for one in readers:
        unread = f"{report.count_of(one.unread, 'offset')} of the segment at {one.base_offset:,}"
        if one.goes_ms is None:
            yield f"  reader {one.name}, at offset {one.offset:,}: {unread} still to be read, which retention keeps"
        else:
            goes = "now" if one.goes_ms <= now_ms else f"at {report.moment(one.goes_ms)}"
            yield f"  reader {one.name}, at offset {one.offset:,}: loses {unread} {goes}"


# --- compaction --------------------------------------------------------------------------


def _tell_compaction(place: Place, settings: dict[str, object], now_ms: int, n: int, *, as_json: bool) -> None:
    """Print what the cleaner would find in the `n`th place."""
    with place.open(settings) as partition:
        found = survey_compaction(partition, settings, now_ms)
    if as_json:
        _print_compaction_json(place, found)
    else:
        print("\n" * bool(n) + "\n".join(_compaction_text(place, found, now_ms)))


def _print_compaction_json(place: Place, found: CompactionSurvey) -> None:
    for one in found.segments:
        report.print_json(
            "compaction_segment", partition=place.name, base_offset=one.base_offset, next_offset=one.next_offset,
            size_bytes=one.size_bytes, state=one.state, records=one.records, duplicates=one.duplicates,
            keyless=one.keyless, aborted=one.aborted, tombstones=one.tombstones, without_horizon=one.without_horizon,
            first_horizon=one.first_horizon_ms, last_horizon=one.last_horizon_ms,
        )
    plan = found.plan
    report.print_json(
        "compaction", partition=place.name, first_dirty_offset=plan.first_dirty_offset,
        first_uncleanable_offset=plan.first_uncleanable_offset, clean_bytes=plan.clean_bytes,
        cleanable_bytes=plan.cleanable_bytes, dirty_ratio=plan.ratio, min_cleanable_dirty_ratio=plan.min_ratio,
        overdue_ms=plan.overdue_ms, checkpoint_is_void=plan.checkpoint_is_void, why_not=found.why_not or None,
    )


def _compaction_text(place: Place, found: CompactionSurvey, now_ms: int) -> Iterable[str]:
    plan = found.plan
    yield report.paint(place.label, "bold")
    rows = [
        [f"{one.base_offset:020}", one.state, report.size(one.size_bytes), f"{one.records:,}",
         f"{one.duplicates:,}", report.ratio(one.duplicates, one.records), f"{one.keyless:,}", f"{one.aborted:,}",
         f"{one.tombstones:,}", _horizons(one, now_ms)]
        for one in found.segments
    ]
    yield report.table(
        ("segment", "state", "size", "records", "duplicates", "share", "no key", "aborted", "tombstones", "removed"),
        rows, left=(0, 1, 9),
    )
    total = plan.clean_bytes + plan.cleanable_bytes
    yield (
        f"dirty ratio {plan.ratio:.3f}: {report.size(plan.cleanable_bytes)} of {report.size(total)}, "
        f"offsets {plan.first_dirty_offset:,} to {plan.first_uncleanable_offset:,}"
    )
    if plan.checkpoint_is_void:
        yield "the cleaner's checkpoint is outside the log: cleaning begins at the log's start"
    if plan.overdue_ms > 0:
        yield f"overdue by max.compaction.lag.ms since {report.duration(plan.overdue_ms)}"
    yield f"not due for cleaning: {found.why_not}" if found.why_not else "due for cleaning"


def _horizons(one: SegmentDuplicates, now_ms: int) -> str:
    first, last = one.first_horizon_ms, one.last_horizon_ms
    parts = []
    if first is not None and last is not None:
        if last <= now_ms:
            parts.append("at the next cleaning")
        else:
            parts.append(report.moment(first) + (f" … {report.moment(last)}" if last > first else ""))
    if one.without_horizon:
        parts.append(f"{one.without_horizon:,} not marked yet")
    return ", ".join(parts)


def _tell(
    place: Place, settings: dict[str, object], now_ms: int, n: int, *, as_json: bool, progress: PlacesProgress
) -> Survey:
    """Survey the `n`th place and print what is found."""
    with place.open(settings) as partition:
        survey = Survey(now_ms)
        survey.run(partition, progress.of(place))
        writer = infer(partition, survey)
        progress.wipe()
        if as_json:
            _print_json(place, partition, survey, writer)
        else:
            print("\n" * bool(n) + "\n".join(_text(place, partition, survey, writer)))
    return survey


# --- JSON --------------------------------------------------------------------------------


def _print_json(place: Place, partition: Partition, survey: Survey, writer: Writer) -> None:
    at = {"partition": place.name}
    times, transactions, indexes = survey.timestamps, survey.transactions, survey.indexes
    report.print_json(
        "stats", **at, path=place.path, segments=survey.segments, bytes=survey.bytes, batches=survey.batches,
        records=survey.records, first_offset=survey.first_offset, log_end_offset=survey.log_end_offset,
        mean_batch_bytes=round(survey.batch_bytes / survey.batches) if survey.batches else 0,
        largest_batch_bytes=survey.largest_batch_bytes, damaged_batches=len(survey.lost),
        timestamps={
            "records": times.records, "without": times.without, "log_append_time": times.log_append_time,
            "smallest": times.smallest, "largest": times.largest, "largest_offset": times.largest_offset,
            "late": times.late, "latest_by_ms": times.latest_by_ms, "latest_offset": times.latest_offset,
            "future": times.future, "first_future_offset": times.first_future_offset, "now": times.now_ms,
        },
        indexes={
            "segments": indexes.segments, "missing": indexes.missing, "damaged": indexes.damaged,
            "entries": indexes.entries, "time_entries": indexes.time_entries,
            "minute_entries": indexes.minute_entries, "time_ranges": indexes.time_ranges,
            "bytes_per_entry": round(indexes.log_bytes / indexes.entries) if indexes.entries else None,
            "largest_gap_bytes": indexes.largest_gap_bytes,
        },
        transactions={
            "committed": transactions.committed, "aborted": transactions.aborted,
            "open": [{"producer_id": p, "first_offset": o} for p, o in transactions.open.items()],
            "other_control_records": transactions.other_control_records,
        },
        writer={
            "since": writer.since, "until": writer.until, "text": writer.text,
            "reasons": [{"text": r.text, "since": r.since, "until": r.until} for r in writer.reasons],
        },
    )
    for exponent, batches in sorted(survey.batch_sizes.items()):
        report.print_json("batch_sizes", **at, up_to_bytes=1 << exponent, batches=batches)
    for (magic, codec), use in sorted(survey.codecs.items()):
        report.print_json(
            "codec", **at, magic=magic, codec=lines.codec_name(codec), batches=use.batches, records=use.records,
            batch_bytes=use.batch_bytes, stored_bytes=use.stored_bytes, uncompressed_bytes=use.bare_bytes,
        )
    for producer_id, p in sorted(survey.producers.items()):
        report.print_json(
            "producer", **at, producer_id=producer_id, producer_epoch=p.epoch, batches=p.batches, records=p.records,
            last_sequence=p.last_sequence, last_offset=p.last_offset, last_timestamp=p.last_timestamp,
        )


# --- text --------------------------------------------------------------------------------


def _text(
    place: Place, partition: Partition, survey: Survey, writer: Writer
) -> Iterable[str]:
    start, end = survey.first_offset, survey.log_end_offset
    offsets = f"offsets {start:,}…{end - 1:,}" if end > start else "no offsets"
    yield report.paint(place.label, "bold") + "   " + "   ".join((
        report.count_of(survey.segments, "segment"), report.size(survey.bytes),
        report.count_of(survey.batches, "batch", "batches"), report.count_of(survey.records, "record"), offsets,
    ))
    for lost in survey.lost:
        yield (
            f"  damaged: {report.size(lost.size_bytes)} in {os.path.basename(lost.file)} at byte {lost.position:,}: "
            f"{lost.reason}"
        )
    if terminal.is_terminal():
        yield from _drawn(partition, survey.timestamps.now_ms)
    yield f"\nwritten by  {f'Kafka {writer.text}' if writer.is_kafka else 'seglog'}"
    yield report.table(
        ("bound", "because"), [(_bound(reason), reason.text) for reason in writer.reasons], left=(0, 1), indent=2
    )
    if not survey.batches:
        return
    yield "\nformats and codecs"
    yield _codecs(survey)
    yield (
        f"\nbatch sizes   mean {report.size(survey.batch_bytes / survey.batches)}, "
        f"largest {report.size(survey.largest_batch_bytes)}"
    )
    yield _histogram(survey)
    yield "\ntimestamps"
    yield from (f"  {line}" for line in _timestamps(survey))
    yield "\nindexes"
    yield from (f"  {line}" for line in _indexes(survey))
    if survey.producers or survey.transactions.other_control_records:
        yield "\ntransactions and producers"
        yield from (f"  {line}" for line in _transactions(survey))
        yield _producers(survey)


def _drawn(partition: Partition, now_ms: int) -> Iterable[str]:
    """Draw bytes by time as a row of blocks: the small version of the drawing in `seglog report`."""
    from .picture.timeline import Timeline  # needed only on terminals

    timeline = Timeline(now_ms)
    timeline.run(partition)
    width_ms, bars = timeline.bytes_by(max((terminal.width() or _DRAWN_WIDTH) - 2, 1))
    if not bars:
        return
    most = max(size_bytes for _, size_bytes in bars)
    yield f"\nbytes by time   a block is {report.duration(width_ms)}, the highest {report.size(most)}"
    yield "  " + terminal.plain("".join(
        _BLOCKS[-(-size_bytes * (len(_BLOCKS) - 1) // most)] for _, size_bytes in bars
    ))
    yield f"  {report.moment(bars[0][0])} … {report.moment(bars[-1][0] + width_ms)}"
    if out := timeline.limits().words("batch", "batches"):
        yield f"  {out}"


def _bound(reason: Reason) -> str:
    return f"≥ {reason.since}" if reason.since else f"≤ {reason.until}" if reason.until else ""


def _codecs(survey: Survey) -> str:
    rows = []
    for (magic, codec), use in sorted(survey.codecs.items()):
        rows.append((
            lines.format_name(magic), lines.codec_name(codec), f"{use.batches:,}", f"{use.records:,}",
            report.size(use.batch_bytes),
            report.ratio(use.batch_bytes, survey.batch_bytes),
            f"{use.ratio:.2f}×" if codec and use.stored_bytes else "-", f"{use.records / use.batches:.1f}",
        ))
    head = ("format", "codec", "batches", "records", "bytes", "share", "ratio", "records/batch")
    return report.table(head, rows, left=(0, 1), indent=2)


def _histogram(survey: Survey) -> str:
    sizes = survey.batch_sizes
    most = max(sizes.values())
    return report.table(
        ("up to", "batches", ""),
        [
            (report.size(1 << n), f"{sizes[n]:,}", "█" * round(_BAR_WIDTH * sizes[n] / most) or "▏" * bool(sizes[n]))
            for n in range(min(sizes), max(sizes) + 1)
        ],
        left=(2,), indent=2,
    )


def _timestamps(survey: Survey) -> Iterable[str]:
    times = survey.timestamps
    if times.without == times.records:
        yield "none: format v0 has no timestamps" if times.records else "no records"
        return
    span = f"{report.moment(times.smallest)} … {report.moment(times.largest)}"
    yield f"{span} (largest at offset {times.largest_offset:,})"
    if times.log_append_time:
        yield f"{report.count_of(times.log_append_time, 'record')} by LogAppendTime"
    if times.without:
        yield f"{report.count_of(times.without, 'record')} without a timestamp"
    if times.late:
        yield (
            f"{report.count_of(times.late, 'record')} out of order ({report.ratio(times.late, times.records)}), "
            f"at most {report.duration(times.latest_by_ms)} late (offset {times.latest_offset:,})"
        )
    else:
        yield "in order"
    if times.future:
        yield (
            f"{report.count_of(times.future, 'record')} in the future, first at offset {times.first_future_offset:,}: "
            "retention by time waits for the largest timestamp of a segment"
        )


def _indexes(survey: Survey) -> Iterable[str]:
    use = survey.indexes
    if use.entries:
        yield (
            f"{report.count_of(use.entries, 'offset entry', 'offset entries')}, one every "
            f"{report.size(use.log_bytes / use.entries)}, "
            f"largest gap {report.size(use.largest_gap_bytes)}; "
            f"{report.count_of(use.time_entries, 'time entry', 'time entries')}"
        )
    else:
        yield f"no offset entries; {report.count_of(use.time_entries, 'time entry', 'time entries')}"
    if use.minute_entries is not None:
        yield f"{report.count_of(use.minute_entries, 'minute entry', 'minute entries')} of seglog's own .time.index"
    if use.time_ranges is not None:
        yield f"{report.count_of(use.time_ranges, 'time range')} of seglog's own .ranges.index"
    if use.missing:
        yield f"{report.count_of(use.missing, 'segment')} without an .index"
    if use.damaged:
        yield f"{report.count_of(use.damaged, 'segment')} with a damaged index: run `seglog verify --indexes`"


def _transactions(survey: Survey) -> Iterable[str]:
    seen = survey.transactions
    if seen.committed or seen.aborted or seen.open:
        yield f"{seen.committed:,} committed, {seen.aborted:,} aborted, {len(seen.open):,} open"
    for producer_id, first_offset in seen.open.items():
        yield f"open: producer {producer_id} since offset {first_offset:,}"
    if seen.other_control_records:
        yield f"{report.count_of(seen.other_control_records, 'control record')} of other kinds"


def _producers(survey: Survey) -> str:
    by_records = sorted(survey.producers.items(), key=lambda item: -item[1].records)
    rows = [
        (str(producer_id), str(p.epoch), f"{p.batches:,}", f"{p.records:,}",
         str(p.last_sequence) if p.last_sequence >= 0 else "-", f"{p.last_offset:,}", report.moment(p.last_timestamp))
        for producer_id, p in by_records[:_PRODUCERS_SHOWN]
    ]
    head = ("producer", "epoch", "batches", "records", "last sequence", "last offset", "last time")
    text = report.table(head, rows, indent=2) if rows else ""
    if len(by_records) > _PRODUCERS_SHOWN:
        text += f"\n  and {len(by_records) - _PRODUCERS_SHOWN:,} more"
    return text
