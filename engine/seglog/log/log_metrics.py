"""Metrics of a process's open logs for Prometheus (docs/monitoring.md), and counts of what opening them repaired."""
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from seglog.counters import Counter, Metric, Sample
from seglog.errors import SeglogError
from seglog.loading.loader import Loaded
from seglog.logger import Logger
from seglog.reading.open_readers import CURSORS, FOLLOW_CALLS, FOLLOWERS, SHARED_LOGS, FollowCall

if TYPE_CHECKING:
    from seglog.log.stats import LogStats

_LOG = Logger(__name__)

_LABELS = ("path", "topic", "partition")
_CURSOR_LABELS = ("path", "name")
METRICS = (
    Metric("seglog_logs_open", "gauge", (), "logs that the process has open for writing"),
    Metric("seglog_logs_opened_total", "counter", (), "openings of logs"),
    Metric("seglog_logs_recovered_total", "counter", (), "openings of logs that were not closed cleanly"),
    Metric("seglog_logs_lost_ranges_total", "counter", (), "torn tails and damaged ranges that recoveries truncated"),
    Metric("seglog_logs_repairs_total", "counter", (), "what else openings repaired: indexes, checkpoints, snapshots"),
    Metric("seglog_followers_open", "gauge", (), "followers that the process has open (follow)"),
    Metric("seglog_followers_opened_total", "counter", (), "openings of followers"),
    Metric("seglog_follow_calls", "gauge", ("path",), "running calls of `follow`, of followers and of open logs"),
    Metric("seglog_follow_lag", "gauge", ("path",), "offsets that the slowest has not read yet, by whole chunks"),
    Metric("seglog_cursor_position", "gauge", _CURSOR_LABELS, "the next offset that a cursor reads"),
    Metric("seglog_cursor_lag", "gauge", _CURSOR_LABELS, "number of offsets from there to the end of the log"),
    Metric(
        "seglog_log_attached", "gauge", ("path",),
        "of a log that processes share (attach=True): 1 where another process owns it, and shows what follows"),
    Metric("seglog_log_start_offset", "gauge", _LABELS, "the first offset of the log"),
    Metric(
        "seglog_log_end_offset", "gauge", _LABELS,
        "one past the last offset that readers see; rate() of it is records per second"),
    Metric("seglog_log_last_stable_offset", "gauge", _LABELS, "where the oldest open transaction begins, or the end"),
    Metric("seglog_log_durable_offset", "gauge", _LABELS, "one past the last offset that is known to be on the disk"),
    Metric("seglog_log_bytes", "gauge", _LABELS, "bytes of the .log files"),
    Metric("seglog_log_index_bytes", "gauge", _LABELS, "bytes of their indexes"),
    Metric("seglog_log_segments", "gauge", _LABELS, "segments, the active one too"),
    Metric("seglog_log_producers", "gauge", _LABELS, "idempotent producers that the log remembers"),
    Metric("seglog_log_lingering_records", "gauge", _LABELS, "records that wait in memory (linger.ms)"),
    Metric("seglog_log_appends_total", "counter", _LABELS, "batches written since opening"),
    Metric("seglog_log_appended_bytes_total", "counter", _LABELS, "bytes of these batches"),
    Metric("seglog_log_listeners", "gauge", _LABELS, "followers and callbacks in the process that await new records"),
    Metric("seglog_log_syncs_total", "counter", _LABELS, "shared syncs since opening"),
    Metric("seglog_log_sync_seconds_total", "counter", _LABELS, "how long these took together"),
    Metric("seglog_log_failed", "gauge", _LABELS, "1: read-only since a write or a sync failed"),
    Metric("seglog_log_uncleanable", "gauge", _LABELS, "1: retention or compaction failed when it was last tried"),
)


class Openings:
    """What openings of logs have found since the process began. One thread at a time counts."""

    def __init__(self) -> None:
        self.all, self.recovered, self.lost_ranges, self.repairs = Counter(), Counter(), Counter(), Counter()

    def opened(self, path: Path, loaded: Loaded, *, was_clean: bool) -> None:
        """Count an opening, and log what a recovery did, even if nothing was lost. (Opening a new log is no recovery.)
        """
        self.all.add()
        self.lost_ranges.add(len(loaded.lost))
        self.repairs.add(len(loaded.repairs))
        for lost in loaded.lost:
            _LOG.warning("%s: lost %s", path, lost)
        for repair in loaded.repairs:
            _LOG.info("%s: %s", repair.file, repair.what)
        if not was_clean and loaded.next_offset > loaded.segments[0].base_offset:
            self.recovered.add()
            _LOG.info(
                "%s was not closed cleanly: recovered offsets %d to %d in %d segments, %s",
                path, loaded.log_start_offset, loaded.next_offset, len(loaded.segments),
                f"lost {len(loaded.lost)} ranges" if loaded.lost else "nothing was lost",
            )


OPENINGS = Openings()


class StatsSource(Protocol):
    """What this module needs of an open log."""

    path: Path

    def stats(self) -> "LogStats": ...


class OpenLogs:
    """A source of seglog.metrics: every log that is open, under its path, topic and partition."""

    metrics: Sequence[Metric] = METRICS

    def __init__(self, open_logs: Callable[[], Iterable[StatsSource]]) -> None:
        self._open_logs = open_logs

    def samples(self) -> Iterator[Sample]:
        count = 0
        for log in self._open_logs():
            try:
                stats = log.stats()
            except SeglogError:
                continue        # closed meanwhile
            count += 1
            labels = (("path", str(log.path)), ("topic", stats.topic), ("partition", str(stats.partition)))
            for name, value in _values(stats):
                yield Sample(f"seglog_log_{name}", labels, value)
        yield Sample("seglog_logs_open", (), count)
        yield Sample("seglog_followers_open", (), len(FOLLOWERS.now()))
        yield Sample("seglog_followers_opened_total", (), FOLLOWERS.all.value)
        yield Sample("seglog_logs_opened_total", (), OPENINGS.all.value)
        yield Sample("seglog_logs_recovered_total", (), OPENINGS.recovered.value)
        yield Sample("seglog_logs_lost_ranges_total", (), OPENINGS.lost_ranges.value)
        yield Sample("seglog_logs_repairs_total", (), OPENINGS.repairs.value)
        # (A process may have one open several times.)
        for path, is_attached in {log.path: not log.is_owner for log in SHARED_LOGS.now()}.items():
            yield Sample("seglog_log_attached", (("path", str(path)),), int(is_attached))
        yield from _follow_samples()
        yield from _cursor_samples()


def _follow_samples() -> Iterator[Sample]:
    """For each path, the slowest call. The end of a log is looked up once for all its calls."""
    calls: dict[int, list[FollowCall]] = {}
    for call in FOLLOW_CALLS.now():
        calls.setdefault(id(call.log), []).append(call)
    lags: dict[Path, list[int]] = {}
    for of_one_log in calls.values():
        log = of_one_log[0].log
        with contextlib.suppress(SeglogError):      # it was closed: its calls have ended
            end = log.log_end_offset
            lags.setdefault(log.path, []).extend(max(end - call.position, 0) for call in of_one_log)
    for path, behind in lags.items():
        labels = (("path", str(path)),)
        yield Sample("seglog_follow_calls", labels, len(behind))
        yield Sample("seglog_follow_lag", labels, max(behind))


def _cursor_samples() -> Iterator[Sample]:
    """Cursors of one name are one sample."""
    for cursor in {(cursor.path, cursor.name): cursor for cursor in CURSORS.now()}.values():
        try:
            position, lag = cursor.position, cursor.lag
        except SeglogError:
            continue
        labels = (("path", str(cursor.path)), ("name", cursor.name))
        yield Sample("seglog_cursor_position", labels, position)
        yield Sample("seglog_cursor_lag", labels, lag)


def _values(stats: "LogStats") -> Iterator[tuple[str, float]]:
    yield "start_offset", stats.log_start_offset
    yield "end_offset", stats.log_end_offset
    yield "last_stable_offset", stats.last_stable_offset
    yield "durable_offset", stats.durable_offset
    yield "bytes", stats.log_bytes
    yield "index_bytes", stats.index_bytes
    yield "segments", stats.segments
    yield "producers", stats.producers
    yield "lingering_records", stats.lingering_records
    yield "appends_total", stats.appends
    yield "appended_bytes_total", stats.appended_bytes
    yield "listeners", stats.listeners
    yield "syncs_total", stats.syncs
    yield "sync_seconds_total", stats.sync_seconds
    yield "failed", int(stats.failure is not None)
    yield "uncleanable", int(stats.uncleanable is not None)
