"""The page of a partition: its segments by offset and time, bytes by time, batches, codecs, findings, retention."""
import os
from collections.abc import Mapping, Sequence

from seglog._kernels.record_batch import RecordBatch
from seglog.errors import CorruptRecordError
from seglog.format.names import LOG_SUFFIXES
from seglog.reading.partition import Partition
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.upkeep.retain import holds
from seglog.upkeep.retention import HeldSegment
from seglog.verification.findings import Finding, Report, Severity
from seglog.verification.verify import verify_partition

from .. import records as lines
from .. import report
from ..survey import Survey
from ..writer import infer
from .cluster import ClusterOnDisk, neighbours
from .conversion import conversion_sections
from .formats import legend_of, shares_of
from .page import ROWS_MAX, Cell, ReportPage, Section, Table
from .svg import Drawing, bytes_scale, number_scale, time_scale
from .timeline import SegmentSpan, Timeline

# Above this, segments are drawn as one shape for each format, without tooltips.
_TOLD_MAX = 500
_BUCKETS = 120


def partition_page(
    partition: Partition, name: str, settings: Mapping[str, object], now_ms: int, progress: report.Progress,
    told: str = "",
) -> ReportPage:
    """Read every batch: for the counts of `stats`, the findings of `verify`, and the positions in time. `told`: where
    the settings come from, if not from the command line."""
    survey = Survey(now_ms)
    survey.run(partition, progress)
    timeline = Timeline(now_ms)
    timeline.run(partition)
    found = verify_partition(partition)
    sections = [
        _segments(partition, timeline, found),
        *([_bytes_by_time(timeline)] if timeline.sizes else []),
        *([_batches(survey), _codecs(survey)] if survey.batches else []),
        _findings(partition, found),
        *conversion_sections(partition),
        _retention(partition, settings, now_ms, told),
        *_of_cluster(partition, survey.log_end_offset),
        *([_producers(survey)] if survey.producers or survey.transactions.other_control_records else []),
    ]
    facts = _facts(survey, infer(partition, survey).text)
    return ReportPage(name, str(partition.path), report.moment(now_ms), facts, sections)


def _facts(survey: Survey, writer: str) -> list[tuple[str, str, str]]:
    times, seen = survey.timestamps, survey.transactions
    markers = seen.committed + seen.aborted + seen.other_control_records
    facts = [
        ("segments", f"{survey.segments:,}", "segments"),
        ("bytes", f"{survey.bytes:,}", "bytes"),
        ("batches", f"{survey.batches:,}", "batches"),
        ("records", f"{survey.records:,}", "records"),
        *([("of these, markers", f"{markers:,}", "")] if markers else []),
        ("first offset", f"{survey.first_offset:,}", "first_offset"),
        ("log end offset", f"{survey.log_end_offset:,}", "log_end_offset"),
        ("damaged batches", f"{len(survey.lost):,}", "damaged_batches"),
        ("written by Kafka", writer, ""),
    ]
    if times.smallest >= 0:
        facts += [
            ("smallest timestamp", report.moment(times.smallest), ""),
            ("largest timestamp", report.moment(times.largest), ""),
            ("records out of order", f"{times.late:,}", "late"),
            ("records in the future", f"{times.future:,}", "future"),
        ]
    return facts


# --- segments ----------------------------------------------------------------------------


def _segments(partition: Partition, timeline: Timeline, found: Report) -> Section:
    spans = timeline.segments
    drawing = None
    words = []
    timed = [span for span in spans if span.totals.first_timestamp >= 0]
    errors = [f for f in found.findings if f.severity == Severity.ERROR and f.file.endswith(LOG_SUFFIXES)]
    if timed:
        drawing = _offsets_by_time(timeline, timed, [f.offset for f in errors[:ROWS_MAX] if f.offset is not None])
        if timeline.late.count:
            words.append(f"Time goes back in {report.count_of(timeline.late.count, 'batch', 'batches')}.")
        if timeline.future.count:
            words.append(
                f"In the future lie the timestamps of {report.count_of(timeline.future.count, 'batch', 'batches')}: "
                "retention by time waits for them."
            )
        if out := timeline.limits().words("batch", "batches"):
            words.append(f"{out} They are drawn at its edge.")
    elif spans:
        words.append("No batch has a timestamp: record format v0 has none.")
    damaged = {os.path.basename(finding.file) for finding in found.findings}
    hurt = {os.path.basename(finding.file) for finding in errors}
    shown = spans if len(spans) <= ROWS_MAX else _ends(spans, damaged)
    rows: list[Sequence[Cell | str]] = [
        [
            Cell(span.name, anchor=f"s{span.base_offset}"), f"{span.base_offset:,}", f"{span.next_offset - 1:,}",
            f"{span.totals.bytes:,}", f"{span.totals.batches:,}",
            " + ".join(kind for kind, _ in shares_of(span.totals)) or "–",
            _moment(span.totals.first_timestamp), _moment(span.totals.max_timestamp),
            Cell("damaged", kind="error") if _is_hurt(span, hurt) else _missing(partition, span),
        ]
        for span in shown
    ]
    table = Table(
        "Segments",
        ("segment", "first offset", "last offset", "bytes", "batches", "formats", "first time", "last time", "notes"),
        rows, (0, 5, 8),
        f"{len(spans) - len(shown):,} more are only in the drawing." if len(shown) < len(spans) else "",
    )
    legend = [
        *legend_of(span.totals for span in spans),
        *([("bad", "damage")] if any(_is_hurt(span, hurt) for span in spans) else []),
        *([("late", "time goes back, or lies in the future")] if timeline.late.count + timeline.future.count else []),
    ]
    return Section("Segments by offset and time", words, drawing, legend if drawing else (), [table])


def _is_hurt(span: SegmentSpan, hurt: set[str]) -> bool:
    return span.totals.damaged_bytes > 0 or span.name in hurt


def _ends(spans: Sequence[SegmentSpan], damaged: set[str]) -> list[SegmentSpan]:
    """Return the first and the last spans, and all that have findings."""
    side = ROWS_MAX // 2
    return [
        span for n, span in enumerate(spans)
        if n < side or n >= len(spans) - side or span.name in damaged or span.totals.damaged_bytes
    ]


def _missing(partition: Partition, span: SegmentSpan) -> Cell:
    dialect, log = partition._dialect, partition.path / span.name
    missing = [suffix for suffix in dialect.own_indexes if not log.with_suffix(suffix).exists()]
    return Cell(f"no {' and '.join(missing)}" if missing else "")


def _offsets_by_time(timeline: Timeline, spans: Sequence[SegmentSpan], hurt: Sequence[int]) -> Drawing:
    """Draw offsets over time. `hurt`: offsets of damaged batches; each gets a line across the drawing."""
    limits = timeline.limits()
    first, last = spans[0].base_offset, spans[-1].next_offset
    drawing = Drawing(
        "Segments by offset and time",
        f"{len(timeline.segments)} segments, offsets {first} to {last - 1}, from {report.moment(limits.earliest_ms)} "
        f"to {report.moment(limits.latest_ms)}; the table below has each of them.",
    )
    x = time_scale(limits.first_ms, limits.last_ms, drawing.left, drawing.right)
    y = number_scale(first, last, drawing.bottom, drawing.top)
    drawing.axes(x, y)
    for span in spans:
        totals = span.totals
        left = x.within(totals.first_timestamp)
        width = x.within(totals.max_timestamp) - left
        words = (
            f"{span.name}: offsets {span.base_offset:,} to {span.next_offset - 1:,}, {report.size(totals.bytes)}, "
            f"{report.moment(totals.first_timestamp)} to {report.moment(totals.max_timestamp)}"
        )
        bottom, height = y(span.base_offset), y(span.base_offset) - y(span.next_offset)
        # The formats follow each other from the first offset on, in their order in the log.
        for kind, share in [("bad", 1.0)] if totals.damaged_bytes else shares_of(totals):
            bottom -= height * share
            if len(spans) > _TOLD_MAX:
                drawing.rectangle(kind, left, bottom, width, height * share)
            else:
                drawing.told_rectangle(kind, left, bottom, width, height * share, words, f"#s{span.base_offset}")
    for offset in hurt:
        words = f"damage at offset {offset:,}"
        drawing.told_rectangle("bad", drawing.left, y(offset) - 1, drawing.right - drawing.left, 2, words)
    drawing.dots("late", [(x.within(ms), y(offset)) for offset, ms in (*timeline.late.points, *timeline.future.points)])
    return drawing


def _moment(ms: int) -> str:
    return report.moment(ms) if ms >= 0 else "–"


# --- what is in them ---------------------------------------------------------------------


def _bytes_by_time(timeline: Timeline) -> Section:
    width_ms, bars = timeline.bytes_by(_BUCKETS)
    most = max(size_bytes for _, size_bytes in bars)
    drawing = Drawing(
        "Bytes by time",
        f"Bytes of batches in each {report.duration(width_ms)}; at most {report.size(most)}.", height=220,
    )
    x = time_scale(bars[0][0], bars[-1][0] + width_ms, drawing.left, drawing.right)
    y = bytes_scale(most, drawing.bottom, drawing.top, report.size)
    drawing.axes(x, y)
    for begin_ms, size_bytes in bars:
        if size_bytes:
            left = x(begin_ms)
            drawing.told_rectangle(
                "plain", left, y(size_bytes), x(begin_ms + width_ms) - left - 0.5, drawing.bottom - y(size_bytes),
                f"{report.moment(begin_ms)}: {report.size(size_bytes)}",
            )
    words = [f"Each bar is {report.duration(width_ms)}, by the largest timestamp of a batch."]
    if out := timeline.limits().words("batch", "batches"):
        words.append(out)
    return Section("Bytes by time", words, drawing)


def _batches(survey: Survey) -> Section:
    sizes = survey.batch_sizes
    low, high = min(sizes), max(sizes)
    drawing = Drawing("Batches by size", "The number of batches by their size.", height=200)
    y = number_scale(0, max(sizes.values()), drawing.bottom, drawing.top)
    x = number_scale(low, high + 1, drawing.left, drawing.right)
    drawing.axes(None, y)
    for n in range(low, high + 1):
        left, width = x(n), x(n + 1) - x(n)
        drawing.text(left + width / 2, drawing.bottom + 18, report.size(1 << n), "middle")
        if sizes[n]:
            drawing.told_rectangle(
                "plain", left + 2, y(sizes[n]), width - 4, drawing.bottom - y(sizes[n]),
                f"up to {report.size(1 << n)}: {report.count_of(sizes[n], 'batch', 'batches')}",
            )
    indexes = survey.indexes
    words = [
        f"On average {report.size(survey.batch_bytes / survey.batches)}, "
        f"the largest {report.size(survey.largest_batch_bytes)}."
    ]
    if indexes.entries:
        words.append(
            f"The offset indexes have {report.count_of(indexes.entries, 'entry', 'entries')}: one in "
            f"{report.size(indexes.log_bytes / indexes.entries)} of log, the largest gap "
            f"{report.size(indexes.largest_gap_bytes)}."
        )
    return Section("Batches by size", words, drawing)


def _codecs(survey: Survey) -> Section:
    uses = sorted(survey.codecs.items())
    most = max(max(use.stored_bytes, use.bare_bytes) for _, use in uses)
    drawing = Drawing(
        "Records by format and codec", "Bytes of records as stored, and decompressed; the table has the numbers.",
        height=34 + 34 * len(uses) + 10, left=120,
    )
    x = bytes_scale(most, drawing.left, drawing.right, report.size)
    drawing.axes(x, None)
    rows: list[Sequence[Cell | str]] = []
    for n, ((magic, codec), use) in enumerate(uses):
        name, top = f"{lines.format_name(magic)} {lines.codec_name(codec)}", drawing.top + 34 * n
        drawing.text(drawing.left - 8, top + 18, name, "end")
        for kind, size_bytes, at in (("plain", use.stored_bytes, top), ("bare", use.bare_bytes, top + 14)):
            drawing.told_rectangle(
                kind, drawing.left, at, x(size_bytes) - drawing.left, 12, f"{name}: {report.size(size_bytes)}"
            )
        rows.append([
            name, f"{use.batches:,}", f"{use.records:,}", f"{use.batch_bytes:,}",
            report.ratio(use.batch_bytes, survey.batch_bytes), f"{use.ratio:.2f}×" if codec else "–",
        ])
    table = Table("Formats and codecs", ("format", "batches", "records", "bytes", "share", "ratio"), rows)
    legend = (("plain", "records as stored"), ("bare", "records decompressed"))
    return Section("Records by format and codec", (), drawing, legend, [table])


# --- what is wrong, and what goes -------------------------------------------------------------


def _findings(partition: Partition, found: Report) -> Section:
    if not found.findings:
        return Section("What verify finds", [f"Nothing: clean, checked to level {found.level}."])
    shown = found.findings[:ROWS_MAX]
    batches = _batches_at(partition, shown)
    rows: list[Sequence[Cell | str]] = []
    for finding in shown:
        at = _place(finding)
        rows.append([
            Cell(finding.code, kind=str(finding.severity)), Cell(at, link=at if at in batches else ""),
            finding.meaning + (f": {finding.found}" if finding.found else ""), finding.fix,
        ])
    tables = [Table(
        "Findings", ("code", "where", "what", "what to do"), rows, (0, 1, 2, 3),
        f"{len(found.findings) - len(shown):,} more: seglog verify." if len(found.findings) > len(shown) else "",
    )]
    if batches:
        tables.append(Table(
            "The batches concerned",
            ("batch", "format", "codec", "first offset", "last offset", "bytes", "largest time"),
            [batches[at] for at in sorted(batches)], (0, 1, 2),
        ))
    words = [
        ", ".join(
            report.count_of(sum(finding.severity == severity for finding in found.findings), str(severity))
            for severity in ("error", "warning", "note")
        ) + f", checked to level {found.level}."
    ]
    return Section("What verify finds", words, tables=tables)


def _place(finding: Finding) -> str:
    name = os.path.basename(finding.file)
    return name if finding.position is None else f"{name}:{finding.position}"


def _batches_at(partition: Partition, findings: Sequence[Finding]) -> dict[str, Sequence[Cell | str]]:
    """Return a row for each batch that begins at the position of a finding."""
    wanted: dict[str, set[int]] = {}
    for finding in findings:
        if finding.position is not None and finding.file.endswith(LOG_SUFFIXES):
            wanted.setdefault(os.path.basename(finding.file), set()).add(finding.position)
    rows: dict[str, Sequence[Cell | str]] = {}
    for segment in partition.segments:
        positions = wanted.get(segment.path.name)
        if positions:
            rows.update(_rows_of(segment, positions))
    return rows


def _rows_of(segment: Segment, positions: set[int]) -> dict[str, Sequence[Cell | str]]:
    rows: dict[str, Sequence[Cell | str]] = {}
    for table in segment.tables(check_crc=False, on_lost=lambda _: None):
        for batch in table:
            if batch.position in positions:
                at = f"{segment.path.name}:{batch.position}"
                rows[at] = [
                    Cell(at, anchor=at), lines.format_name(batch.magic), lines.codec_name(batch.codec),
                    _first_offset(batch), f"{batch.last_offset:,}", f"{batch.size_bytes:,}",
                    _moment(batch.max_timestamp),
                ]
    return rows


def _first_offset(batch: RecordBatch) -> str:
    """For a wrapper, this needs decompressing it, which damage may prevent."""
    try:
        return f"{batch.base_offset:,}"
    except UNREADABLE:
        return "–"


def _retention(partition: Partition, settings: Mapping[str, object], now_ms: int, told: str) -> Section:
    source = [f"Settings {told}."] if told else []
    try:
        held: Sequence[HeldSegment] = holds(partition, settings, now_ms, names_records=False)
    except CorruptRecordError as error:     # the record with the largest timestamp is damaged
        return Section("What retention takes", [f"Not known: {error}."])
    goes = [one for one in held if one.goes_ms is not None]
    if not goes:
        return Section("What retention takes", [
            *source, "No segment is deleted by time" + (
                "." if "retention.ms" in settings or "retention_ms" in settings else
                ": retention.ms is unknown, or off. Pass it with --config."
            ),
        ])
    due = [one for one in goes if one.goes_ms is not None and one.goes_ms <= now_ms]
    words = [
        *source,
        f"{report.count_of(len(due), 'segment')} of {len(held):,} would be deleted now: "
        f"{report.size(sum(one.size_bytes for one in due))}."
    ]
    rows: list[Sequence[Cell | str]] = [
        [
            Cell(f"{one.base_offset:020}", link=f"s{one.base_offset}"), report.size(one.size_bytes),
            report.moment(one.time_ms) + (" (in the future)" if one.is_future else ""),
            "now" if one in due else report.moment(one.goes_ms or 0),
            "" if one.waits_for == one.base_offset else f"{one.waits_for:020}",
        ]
        for one in goes[:ROWS_MAX]
    ]
    more = f"{len(goes) - ROWS_MAX:,} more: seglog stats --timestamps." if len(goes) > ROWS_MAX else ""
    table = Table("By retention.ms", ("segment", "size", "as old as", "deleted", "waits for"), rows, (0, 2, 3, 4), more)
    return Section("What retention takes", words, tables=[table])


def _of_cluster(partition: Partition, log_end_offset: int) -> list[Section]:
    """The topic's settings and the groups that read it, if the directory is a broker's."""
    cluster, where = ClusterOnDisk(neighbours(partition.path)), (partition.topic, partition.partition)
    return [*cluster.settings(partition.topic), *cluster.groups({where: log_end_offset}, only=where)]


def _producers(survey: Survey) -> Section:
    seen = survey.transactions
    by_records = sorted(survey.producers.items(), key=lambda item: -item[1].records)
    rows: list[Sequence[Cell | str]] = [
        [str(producer_id), str(use.epoch), f"{use.batches:,}", f"{use.records:,}", f"{use.last_offset:,}",
         report.moment(use.last_timestamp)]
        for producer_id, use in by_records[:ROWS_MAX]
    ]
    table = Table(
        "Producers", ("producer id", "epoch", "batches", "records", "last offset", "last time"), rows, (),
        f"{len(by_records) - ROWS_MAX:,} more: seglog stats." if len(by_records) > ROWS_MAX else "",
    )
    words = [f"Transactions: {seen.committed:,} committed, {seen.aborted:,} aborted, {len(seen.open):,} open."]
    return Section("Producers and transactions", words, tables=[table] if rows else [])
