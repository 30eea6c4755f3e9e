"""Metrics of a process's open queues for Prometheus (docs/queue.md)."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from seglog.counters import Counter, Metric, Sample
from seglog.errors import SeglogError

_LABELS = ("path",)
STATES = ("ready", "delayed", "waiting", "in_flight", "dead")
METRICS = (
    Metric("seglog_queue_ready", "gauge", _LABELS, "jobs that can be taken now"),
    Metric("seglog_queue_delayed", "gauge", _LABELS, "jobs whose time has not come yet"),
    Metric("seglog_queue_waiting", "gauge", _LABELS, "jobs that failed, until their delay is over"),
    Metric("seglog_queue_in_flight", "gauge", _LABELS,
           "jobs that were taken and are not finished, until their lease ends"),
    Metric("seglog_queue_dead", "gauge", _LABELS, "jobs that were given up"),
    Metric("seglog_queue_oldest_age_seconds", "gauge", _LABELS,
           "the age of the oldest job that is neither in flight nor dead; 0 if there is none"),
    Metric("seglog_queue_paused", "gauge", _LABELS, "1: no job is handed out until it is resumed"),
    Metric("seglog_queue_puts_total", "counter", _LABELS, "jobs that were put since opening"),
    Metric("seglog_queue_deliveries_total", "counter", _LABELS, "jobs handed out since opening, each attempt"),
    Metric("seglog_queue_redeliveries_total", "counter", _LABELS, "those of them that were not the first attempt"),
    Metric("seglog_queue_acknowledged_total", "counter", _LABELS, "jobs that were finished since opening"),
    Metric("seglog_queue_refused_total", "counter", _LABELS, "jobs that were refused (nack) since opening"),
    Metric("seglog_queue_deaths_total", "counter", _LABELS, "jobs that were given up since opening"),
    Metric("seglog_queue_dropped_total", "counter", _LABELS, "jobs that were removed for room (max_backlog)"),
    Metric("seglog_queue_dead_letters_total", "counter", _LABELS, "dead jobs that another queue got (dead_letters)"),
)


class QueueCounts:
    """What happened to the jobs of one queue since it was opened. The caller that counts holds the lock."""

    def __init__(self) -> None:
        self.puts = Counter()
        self.deliveries, self.redeliveries, self.acknowledged = Counter(), Counter(), Counter()
        self.refused, self.deaths, self.dropped, self.dead_letters = Counter(), Counter(), Counter(), Counter()

    def values(self) -> dict[str, int]:
        """Each counter by its name."""
        return {name: counter.value for name, counter in vars(self).items()}


class CountedQueue(Protocol):
    """What this module needs of an open queue."""

    path: Path

    def _figures(self) -> "tuple[Any, Mapping[str, int]]":
        """QueueStats, and the counters by their names."""


class OpenQueues:
    """A source of seglog.metrics: every queue that is open, under its path. One that another process owns, with the
    figures of that."""

    metrics: Sequence[Metric] = METRICS

    def __init__(self, open_queues: Callable[[], Iterable[CountedQueue]]) -> None:
        self._open_queues = open_queues

    def samples(self) -> Iterator[Sample]:
        # (A process may have one attached several times.)
        for queue in {queue.path: queue for queue in self._open_queues()}.values():
            try:
                stats, counters = queue._figures()
            except (SeglogError, TimeoutError):
                continue        # closed meanwhile, or it failed, or its owner is stopped
            labels = (("path", str(queue.path)),)
            for state in STATES:
                yield Sample(f"seglog_queue_{state}", labels, getattr(stats, state))
            yield Sample("seglog_queue_oldest_age_seconds", labels, stats.oldest_age_s or 0)
            yield Sample("seglog_queue_paused", labels, int(stats.is_paused))
            for name, value in counters.items():
                yield Sample(f"seglog_queue_{name}_total", labels, value)
