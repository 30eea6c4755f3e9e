"""Counters of a server since its start: plain numbers, changed in the loop's thread and read from any."""
from collections.abc import Iterator, Mapping, Sequence

from seglog.counters import Metric, Sample
from seglog.wire.messages import ApiKey

METRICS = (
    Metric("seglog_server_connections", "gauge", (), "connections that are open"),
    Metric("seglog_server_connections_total", "counter", (), "connections that were accepted"),
    Metric("seglog_server_requests_total", "counter", ("api", "version"), "requests"),
    Metric("seglog_server_unsupported_requests_total", "counter", ("api", "version"),
           "requests for an API or a version that the server does not have, whose connections were closed"),
    Metric("seglog_server_received_bytes_total", "counter", (), "bytes of requests"),
    Metric("seglog_server_sent_bytes_total", "counter", (), "bytes of answers"),
    Metric("seglog_server_zero_copy_bytes_total", "counter", (), "bytes of records that were sent as stored on disk"),
    Metric("seglog_server_converted_bytes_total", "counter", (), "bytes of records that were converted for clients"),
)

_NAMES = {int(key): key.name for key in ApiKey}


class ServerCounters:
    """A source of seglog.metrics."""

    metrics: Sequence[Metric] = METRICS

    def __init__(self) -> None:
        self.connections = 0
        self.accepted = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.zero_copy_bytes = 0
        self.converted_bytes = 0
        # By (API key, version): the counts of `Requests`.
        self.requests: Mapping[tuple[int, int], int] = {}
        self.lacking: Mapping[tuple[int, int], int] = {}

    def samples(self) -> Iterator[Sample]:
        yield Sample("seglog_server_connections", (), self.connections)
        yield Sample("seglog_server_connections_total", (), self.accepted)
        for (key, version), count in sorted(dict(self.requests).items()):
            yield Sample(
                "seglog_server_requests_total", (("api", ApiKey(key).name), ("version", str(version))), count)
        for (key, version), count in sorted(dict(self.lacking).items()):
            api = _NAMES.get(key, str(key))
            yield Sample("seglog_server_unsupported_requests_total", (("api", api), ("version", str(version))), count)
        yield Sample("seglog_server_received_bytes_total", (), self.received_bytes)
        yield Sample("seglog_server_sent_bytes_total", (), self.sent_bytes)
        yield Sample("seglog_server_zero_copy_bytes_total", (), self.zero_copy_bytes)
        yield Sample("seglog_server_converted_bytes_total", (), self.converted_bytes)
