"""Metrics of a process's open topics for Prometheus, by subscription (docs/topics.md)."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from seglog.counters import Metric, Sample
from seglog.errors import SeglogError

_SUBSCRIPTION = ("path", "subscription")
STATES = ("ready", "held_back", "delayed", "waiting", "in_flight", "dead", "consumers")
# What is counted of a subscription as of a queue.
_COUNTED = ("deliveries", "redeliveries", "acknowledged", "refused", "deaths")
METRICS = (
    Metric("seglog_topic_messages_total", "counter", ("path",), "messages that were ever published"),
    Metric("seglog_topic_ready", "gauge", _SUBSCRIPTION, "messages that can be taken now"),
    Metric("seglog_topic_held_back", "gauge", _SUBSCRIPTION,
           "messages of a subscription of the kind key_shared that wait for earlier ones of their keys"),
    Metric("seglog_topic_delayed", "gauge", _SUBSCRIPTION, "messages whose time has not come yet"),
    Metric("seglog_topic_waiting", "gauge", _SUBSCRIPTION, "messages that were refused, until their delay is over"),
    Metric("seglog_topic_in_flight", "gauge", _SUBSCRIPTION,
           "messages that were taken and are not finished, until their lease ends"),
    Metric("seglog_topic_dead", "gauge", _SUBSCRIPTION, "messages that were given up"),
    Metric("seglog_topic_consumers", "gauge", _SUBSCRIPTION, "consumers that are open"),
    Metric("seglog_topic_oldest_age_seconds", "gauge", _SUBSCRIPTION,
           "the age of the oldest message that is neither in flight nor dead; 0 if there is none"),
    Metric("seglog_topic_deliveries_total", "counter", _SUBSCRIPTION,
           "messages handed out since opening, each attempt"),
    Metric("seglog_topic_redeliveries_total", "counter", _SUBSCRIPTION,
           "those of them that were not the first attempt"),
    Metric("seglog_topic_acknowledged_total", "counter", _SUBSCRIPTION, "messages that were finished since opening"),
    Metric("seglog_topic_refused_total", "counter", _SUBSCRIPTION, "messages that were refused (nack) since opening"),
    Metric("seglog_topic_deaths_total", "counter", _SUBSCRIPTION, "messages that were given up since opening"),
)


class CountedTopic(Protocol):
    """What this module needs of an open topic."""

    path: Path

    @property
    def subscriptions(self) -> list[str]: ...

    def _message_count(self) -> int:
        """How many messages were ever published."""

    def _figures(self, name: str) -> "tuple[Any, Mapping[str, int]] | None":
        """SubscriptionStats, and the counters by their names; None if the subscription is gone."""


class OpenTopics:
    """A source of seglog.metrics: every topic that is open, and its subscriptions, with and without consumers."""

    metrics: Sequence[Metric] = METRICS

    def __init__(self, open_topics: Callable[[], Iterable[CountedTopic]]) -> None:
        self._open_topics = open_topics

    def samples(self) -> Iterator[Sample]:
        for topic in self._open_topics():
            with suppress(SeglogError):     # closed meanwhile, or it failed
                path = ("path", str(topic.path))
                yield Sample("seglog_topic_messages_total", (path,), topic._message_count())
                for name in topic.subscriptions:
                    figures = topic._figures(name)
                    if figures is None:
                        continue
                    stats, counters = figures
                    labels = (path, ("subscription", name))
                    for state in STATES:
                        yield Sample(f"seglog_topic_{state}", labels, getattr(stats, state))
                    yield Sample("seglog_topic_oldest_age_seconds", labels, stats.oldest_age_s or 0)
                    for counted in _COUNTED:
                        yield Sample(f"seglog_topic_{counted}_total", labels, counters[counted])
