"""The page of a managed ledger: its ledgers, its cursors, when its delayed messages are due; of a queue, its jobs."""
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from seglog.errors import CorruptDelayedIndexError, SnapshotMissingError
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.managed.cursor_file import CursorState
from seglog.verification.snapshot_check import StoredIndex, stored_indexes

from .. import report
from .jobs import add_jobs
from .page import ROWS_MAX, Cell, ReportPage, Section, Table
from .svg import Drawing, bytes_scale, number_scale, time_scale
from .time_histogram import TimeHistogram
from .time_limits import TimeLimits

_BUCKETS = 120
_SECOND_MS = 1000
# Messages due by these times are counted, too: the horizons of `seglog delayed count`.
_HORIZONS = (("now", 0), ("in an hour", 3_600_000), ("in a day", 86_400_000))


def ledger_page(path: Path, now_ms: int) -> ReportPage:
    """Read manifests, cursors and the snapshots of delayed messages, even while a process writes them."""
    delayed = _Delayed(path)
    with ClosedManagedLedger(path) as topic:
        cursors = topic.cursors()
        facts = [
            ("ledgers", f"{len(topic.extent.infos):,}", "ledgers"),
            ("entries", f"{topic.entry_count:,}", "entries"),
            ("bytes", f"{topic.size_bytes:,}", "size_bytes"),
            ("cursors", f"{len(cursors):,}", "cursors"),
            ("delayed messages in snapshots", f"{delayed.messages:,}", "delayed_messages"),
            ("buckets of delayed messages", f"{len(delayed.rows):,}", "buckets"),
        ]
        sections = [_ledgers(topic), *delayed.sections(now_ms), _cursors(topic, cursors)]
    page = ReportPage(path.resolve().name, str(path), report.moment(now_ms), facts, sections)
    add_jobs(page, path, now_ms)
    return page


def _ledgers(topic: ClosedManagedLedger) -> Section:
    infos = topic.extent.infos
    largest = max((info.end.length_bytes for info in infos if info.end), default=0)
    drawing = None
    if largest:
        summary = f"{report.count_of(len(infos), 'ledger')}; the largest has {report.size(largest)}."
        drawing = Drawing("Bytes of ledgers", summary, height=200)
        x = number_scale(0, len(infos), drawing.left, drawing.right)
        y = bytes_scale(largest, drawing.bottom, drawing.top, report.size)
        drawing.axes(None, y)
        for n, info in enumerate(infos):
            if info.end is not None:
                drawing.rectangle(
                    "plain", x(n) + 0.5, y(info.end.length_bytes), x(n + 1) - x(n) - 1,
                    drawing.bottom - y(info.end.length_bytes),
                )
    rows = [
        [
            str(info.ledger_id), f"{info.end.entries:,}" if info.end else "–",
            f"{info.end.length_bytes:,}" if info.end else "–", report.moment(info.created_ms),
            report.moment(info.end.max_timestamp) if info.end else "–",
        ]
        for info in infos[-ROWS_MAX:]
    ]
    more = f"{len(infos) - ROWS_MAX:,} older ones: seglog ledger ls." if len(infos) > ROWS_MAX else ""
    table = Table("Ledgers", ("ledger", "entries", "bytes", "created", "latest entry"), rows, (), more)
    return Section("Ledgers", [], drawing, tables=[table])


def _cursors(topic: ClosedManagedLedger, cursors: Sequence[CursorState]) -> Section:
    if not cursors:
        return Section("Cursors", ["There are none."])
    rows = [
        [state.name, str(state.acknowledged.mark_delete), f"{len(state.acknowledged):,}",
         f"{state.acknowledged.backlog(topic.extent):,}"]
        for state in cursors[:ROWS_MAX]
    ]
    more = f"{len(cursors) - ROWS_MAX:,} more: seglog ledger ls." if len(cursors) > ROWS_MAX else ""
    head = ("cursor", "mark-delete position", "acknowledged after it", "backlog")
    return Section("Cursors", tables=[Table("Cursors", head, rows, (0, 1), more)])


class _Delayed:
    """The contents of all cursors' snapshots: a row for each bucket, and messages by the second they are due."""

    def __init__(self, path: Path) -> None:
        self.rows: list[list[Cell | str]] = []
        self.messages = 0
        self.seconds: Counter[int] = Counter()
        self.unreadable: list[str] = []
        for index in stored_indexes(path):
            with closing(index):
                self._take(index)

    def _take(self, index: StoredIndex) -> None:
        for bucket in index.buckets:
            try:
                due = [row[0] for rows in index.segments(bucket) for row in rows]
                size_bytes = index.size_bytes(bucket)
            except (SnapshotMissingError, CorruptDelayedIndexError) as error:
                self.unreadable.append(f"Bucket {bucket.start} to {bucket.end} cannot be read: {error}.")
                continue
            self.messages += len(due)
            self.seconds.update(at // _SECOND_MS for at in due)
            self.rows.append([
                index.name, f"{bucket.start}–{bucket.end}", str(bucket.snapshot_id), f"{len(due):,}",
                report.moment(min(due, default=-1)), report.moment(max(due, default=-1)), f"{size_bytes:,}",
            ])

    def sections(self, now_ms: int) -> list[Section]:
        if not self.rows and not self.unreadable:
            return [Section("Delayed messages", ["No cursor has a snapshot of delayed messages."])]
        words, drawing = [*self.unreadable], None
        if self.messages:
            due = [
                f"{sum(n for second, n in self.seconds.items() if second * _SECOND_MS <= now_ms + ms):,} {name}"
                for name, ms in _HORIZONS
            ]
            words.append(f"Pending: {report.count_of(self.messages, 'message')}; due {', '.join(due)}.")
            limits = TimeLimits.of({second * _SECOND_MS: count for second, count in self.seconds.items()})
            if out := limits.words("message", "messages"):
                words.append(out)
            drawing = self._histogram(limits)
        table = Table(
            "Buckets", ("cursor", "ledgers", "snapshot", "messages", "first due", "last due", "bytes"),
            self.rows[:ROWS_MAX], (0, 1, 4, 5),
            f"{len(self.rows) - ROWS_MAX:,} more: seglog delayed buckets." if len(self.rows) > ROWS_MAX else "",
        )
        words.append("Messages that are in no snapshot yet are not counted here: seglog delayed count includes them.")
        return [Section("Delayed messages", words, drawing, tables=[table])]

    def _histogram(self, limits: TimeLimits) -> Drawing:
        due = TimeHistogram()
        for second, count in self.seconds.items():
            due.add(second * _SECOND_MS, count)
        width_ms, bars = due.bars(limits, _BUCKETS)
        most = max(count for _, count in bars)
        drawing = Drawing(
            "Delayed messages by due time",
            f"{self.messages:,} messages, due from {report.moment(limits.earliest_ms)} to "
            f"{report.moment(limits.latest_ms)}; at most {most:,} in {report.duration(width_ms)}.",
            height=240,
        )
        x = time_scale(bars[0][0], bars[-1][0] + width_ms, drawing.left, drawing.right)
        y = number_scale(0, most, drawing.bottom, drawing.top)
        drawing.axes(x, y)
        for begin_ms, count in bars:
            if count:
                drawing.told_rectangle(
                    "plain", x(begin_ms), y(count), x(begin_ms + width_ms) - x(begin_ms) - 0.5,
                    drawing.bottom - y(count), f"{report.moment(begin_ms)}: {report.count_of(count, 'message')}",
                )
        return drawing
