"""Counters of record format conversions: what a log returned as it is on disk, and what it converted.

    exposition.add(log.format_counters, topic="orders", partition="0")      # for Prometheus: seglog.metrics
"""
from collections.abc import Iterator, Sequence

from seglog.counters import Counter, Metric, Sample

FORMATS = (0, 1, 2)

METRICS = (
    Metric(
        "seglog_log_fetch_zero_copy_bytes", "counter", ("format",),
        "bytes that fetches returned as they are on disk, by the newest format that the reader knows",
    ),
    Metric(
        "seglog_log_fetch_converted_batches", "counter", ("format",),
        "batches that fetches converted, by the newest format that the reader knows",
    ),
    Metric(
        "seglog_log_append_in_place_batches", "counter", ("format",),
        "encoded batches whose offsets were assigned in place, by the format on disk",
    ),
    Metric(
        "seglog_log_append_converted_batches", "counter", ("format",),
        "encoded batches that came in another format, by the format on disk",
    ),
    Metric(
        "seglog_log_append_recompressed_batches", "counter", ("format",),
        "encoded batches that were compressed again, by the format on disk",
    ),
)


class FormatCounters:
    """The counters of one log, each a tuple with one per format. Read at any time; counting takes no lock."""

    __slots__ = (
        "append_converted_batches", "append_in_place_batches", "append_recompressed_batches", "fetch_converted_batches",
        "fetch_zero_copy_bytes",
    )
    metrics: Sequence[Metric] = METRICS

    def __init__(self) -> None:
        self.fetch_zero_copy_bytes = _counters()
        self.fetch_converted_batches = _counters()
        self.append_in_place_batches = _counters()
        self.append_converted_batches = _counters()
        self.append_recompressed_batches = _counters()

    def appended(self, *, came: int, stored: int, count: int, rebuilt: bool, is_compressed: bool) -> None:
        """`count` batches of format `came` are in the log in format `stored`."""
        if not rebuilt:
            self.append_in_place_batches[stored].add(count)
            return
        if came != stored:
            self.append_converted_batches[stored].add(count)
        if is_compressed:
            self.append_recompressed_batches[stored].add(count)

    def samples(self) -> Iterator[Sample]:
        for metric in METRICS:
            counters = getattr(self, metric.name.removeprefix("seglog_log_"))
            for number in FORMATS:
                yield Sample(metric.name, (("format", f"v{number}"),), counters[number].value)


def _counters() -> tuple[Counter, Counter, Counter]:
    return Counter(), Counter(), Counter()
