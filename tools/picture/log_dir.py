"""The page of a log dir: a bar for each partition over time, coloured by format, with problems marked."""
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seglog.errors import SeglogError
from seglog.state.checkpoints import TopicPartition
from seglog.verification.findings import Report, Severity
from seglog.verification.verify import verify_partition

from .. import report
from ..ls import Totals, extent_of
from ..targets import Place
from .cluster import ClusterOnDisk
from .formats import legend_of, shares_of
from .page import Cell, ReportPage, Section, Table
from .svg import Drawing, time_scale
from .time_limits import TimeLimits

_ROW_PIXELS = 18
# If there are more partitions, those without a finding are only counted.
_ROWS_MAX = 1_000


@dataclass(slots=True)
class _Row:
    """A partition; if it has an `error`, it could not be read."""

    name: str
    totals: Totals
    where: TopicPartition | None
    start_offset: int = 0
    end_offset: int = 0
    found: Report | None = None
    error: str = ""

    @property
    def is_marked(self) -> bool:
        return bool(self.error) or (self.found is not None and not self.found.ok)


def log_dir_page(
    path: Path, places: Sequence[Place], settings: Mapping[str, object], now_ms: int, progress: report.Progress
) -> ReportPage:
    """Read batch headers, what `verify` finds in them, and the broker's own topics."""
    rows = []
    for n, place in enumerate(places):
        rows.append(_look(place, settings))
        progress(n + 1, len(places))
    whole = Totals()
    for row in rows:
        whole.add(row.totals)
    old = whole.bytes_v0 + whole.bytes_v1
    facts = [
        ("partitions", f"{len(rows):,}", "partitions"),
        ("segments", f"{whole.segments:,}", "segments"),
        ("bytes", f"{whole.bytes:,}", "bytes"),
        ("batches", f"{whole.batches:,}", "batches"),
        ("bytes in v0", f"{whole.bytes_v0:,}", "bytes_v0"),
        ("bytes in v1", f"{whole.bytes_v1:,}", "bytes_v1"),
        ("bytes in v2", f"{whole.bytes_v2:,}", "bytes_v2"),
        ("damaged bytes", f"{whole.damaged_bytes:,}", "damaged_bytes"),
    ]
    shown = rows if len(rows) <= _ROWS_MAX else [*[row for row in rows if row.is_marked], *rows][:_ROWS_MAX]
    cluster = ClusterOnDisk(places)
    ends = {row.where: row.end_offset for row in rows if row.where is not None and not row.error}
    sections = [
        _bars(shown, len(rows)), _table(shown, len(rows)), *cluster.topics(row.where for row in rows if row.where),
        *cluster.groups(ends), _upgrade(path, rows, old, whole.bytes),
    ]
    return ReportPage(path.resolve().name, str(path), report.moment(now_ms), facts, sections)


def _look(place: Place, settings: Mapping[str, object]) -> _Row:
    row = _Row(place.name, Totals(), place.topic_partition())
    try:
        with place.open(settings) as partition:
            for segment in partition.segments:
                extent, row.end_offset = extent_of(segment)
                row.totals.add(extent)
            row.start_offset = partition.log_start_offset
            row.found = verify_partition(partition, level="headers")
    except (SeglogError, OSError) as error:
        row.error = report.as_seglog_error(error).what
    return row


def _bars(rows: Sequence[_Row], count: int) -> Section:
    timed = [row for row in rows if row.totals.first_timestamp >= 0]
    if not timed:
        return Section("Partitions over time", ["No batch has a timestamp."])
    ends = Counter(ms for row in timed for ms in (row.totals.first_timestamp, row.totals.max_timestamp))
    limits = TimeLimits.of(ends, together=2)        # a partition as a whole may be of another year
    drawing = Drawing(
        "Partitions over time",
        f"{count} partitions from {report.moment(limits.earliest_ms)} to {report.moment(limits.latest_ms)}; the table "
        "below has each of them.",
        height=max(_ROW_PIXELS * len(timed) + 54, 100), left=190,
    )
    x = time_scale(limits.first_ms, limits.last_ms, drawing.left, drawing.right)
    drawing.axes(x, None)
    for n, row in enumerate(timed):
        top = drawing.top + _ROW_PIXELS * n
        name = row.name if len(row.name) <= 24 else row.name[:11] + "…" + row.name[-12:]
        drawing.text(drawing.left - 8, top + 12, ("⚠ " if row.is_marked else "") + name, "end")
        left = x.within(row.totals.first_timestamp)
        width = x.within(row.totals.max_timestamp) - left
        words = (
            f"{row.name}: {report.size(row.totals.bytes)}, {report.moment(row.totals.first_timestamp)} to "
            f"{report.moment(row.totals.max_timestamp)}"
        )
        # The shares of the formats, side by side: the partition's own page shows their order in time.
        for kind, share in shares_of(row.totals):
            part = max(width, 3) * share
            drawing.told_rectangle(kind, left, top, part, _ROW_PIXELS - 5, words, f"#p-{row.name}")
            left += part
        if row.is_marked:
            drawing.rectangle("bad", drawing.left - 4, top, 3, _ROW_PIXELS - 5)
    remarks = ["Each bar spans the partition's time; its colours show the shares of the record formats."]
    if out := limits.words("end of a partition", "ends of partitions"):
        remarks.append(f"{out} Such bars end at its edge.")
    if untimed := len(rows) - len(timed):
        remarks.append(f"No bar for {report.count_of(untimed, 'partition')}: no batch there has a timestamp.")
    legend = legend_of(row.totals for row in timed)
    if any(row.is_marked for row in timed):
        legend.append(("bad", "something is wrong"))
    return Section("Partitions over time", remarks, drawing, legend)


def _table(rows: Sequence[_Row], count: int) -> Section:
    cells: list[Sequence[Cell | str]] = []
    for row in rows:
        totals = row.totals
        cells.append([
            Cell(row.name, anchor=f"p-{row.name}"), f"{totals.segments:,}", f"{totals.bytes:,}",
            f"{row.start_offset:,}", f"{row.end_offset:,}",
            *(report.ratio(n, totals.bytes) if n else "–" for n in (totals.bytes_v0, totals.bytes_v1, totals.bytes_v2)),
            _finding(row),
        ])
    more = f"{count - len(rows):,} more, without findings." if count > len(rows) else ""
    head = ("partition", "segments", "bytes", "log start", "log end", "v0", "v1", "v2", "what verify finds")
    marked = sum(row.is_marked for row in rows)
    words = [f"Something is wrong in {report.count_of(marked, 'partition')}." if marked else
             "The batch headers show nothing wrong; seglog verify checks every checksum."]
    return Section("Partitions", words, tables=[Table("Partitions", head, cells, (0, 8), more)])


def _finding(row: _Row) -> Cell:
    if row.error:
        return Cell(row.error, kind="error")
    if row.found is None or not row.found.findings:
        return Cell("")
    codes = dict.fromkeys(finding.code for finding in row.found.findings)
    words = f"{len(row.found.findings)}: " + ", ".join(codes)
    if row.found.count(Severity.ERROR):
        return Cell(words, kind="error")
    return Cell(words, kind="" if row.found.ok else "warning")


def _upgrade(path: Path, rows: Sequence[_Row], old_bytes: int, all_bytes: int) -> Section:
    if not old_bytes:
        return Section("Old record formats", ["No batch is in format v0 or v1."])
    with_old = sum(bool(row.totals.bytes_v0 + row.totals.bytes_v1) for row in rows)
    return Section("Old record formats", [
        f"{report.size(old_bytes)} ({report.ratio(old_bytes, all_bytes)}) in {report.count_of(with_old, 'partition')} "
        "are in formats v0 and v1, which Kafka 4 still reads but no longer writes.",
        f"For what retention removes, what a conversion costs, and its steps: seglog convert --plan {path}",
    ])
