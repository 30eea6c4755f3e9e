"""The metrics of a bucket tracker: Pulsar's names, and those of PIP-195 that Pulsar lacks.

Reading is O(1) and takes no lock; formatting is not done here.
"""
import time
from collections.abc import Iterator

from seglog.counters import Counter, Histogram, Metric, Sample

OPERATIONS = ("create", "load", "merge", "delete")
STATES = ("all", "succeed", "failed")

_INDEX = "pulsar_delayed_message_index"
METRICS = (
    Metric(f"{_INDEX}_bucket_total", "gauge", (), "buckets, including the last mutable one"),
    Metric(f"{_INDEX}_loaded", "gauge", (), "messages with a row in memory, except those in the last mutable bucket"),
    Metric(f"{_INDEX}_bucket_snapshot_size_bytes", "gauge", (), "bytes of all stored snapshots"),
    Metric(f"{_INDEX}_bucket_op_count", "counter", ("state", "type"), "operations on buckets, started and ended"),
    Metric(f"{_INDEX}_bucket_op_latency_ms", "histogram", ("type",), "duration of operations that succeeded"),
    Metric(f"{_INDEX}_bucket_op_failed_count", "counter", ("type",), "operations that failed; each is retried"),
    Metric("pulsar_delayed_delivery_tracker_bucket_count", "gauge", (), "the same, under the name of PIP-195"),
    Metric("pulsar_delayed_delivery_tracker_memory_usage", "gauge", (), "bytes of rows in memory"),
    Metric("pulsar_delayed_delivery_tracker_bucket_merge_count", "counter", (), "merges of buckets"),
    Metric("pulsar_delayed_delivery_tracker_bucket_delete_count", "counter", (), "snapshots deleted"),
    Metric(
        "pulsar_delayed_delivery_tracker_bucket_lost_count", "counter", (),
        "buckets whose snapshot is damaged: their messages are indexed again from the log",
    ),
    Metric("pulsar_subscription_delayed", "gauge", (), "messages that are delayed"),
    Metric("pulsar_subscription_delayed_in_memory", "gauge", (), "messages with a row in memory"),
    Metric("pulsar_subscription_delayed_in_last_mutable_queue", "gauge", (), "messages in the last mutable bucket"),
)
# The buckets of BucketDelayedMessageIndexStats, Pulsar 4.2.4.
LATENCY_BOUNDS_MS = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)


class BucketStats:
    """Counters of operations. Changed only by the worker's thread, and by loading under the tracker's lock."""

    def __init__(self) -> None:
        self.counts = {(kind, state): Counter() for kind in OPERATIONS for state in STATES}
        self.latency_ms = {kind: Histogram(LATENCY_BOUNDS_MS) for kind in OPERATIONS}
        self.merged = Counter()
        self.deleted = Counter()
        self.lost = Counter()
        self.last_failure: BaseException | None = None

    def begin(self, kind: str) -> int:
        """Note that an operation begins; return the value to pass to `succeeded`."""
        self.counts[kind, "all"].add()
        return time.monotonic_ns()

    def succeeded(self, kind: str, began_ns: int) -> None:
        self.counts[kind, "succeed"].add()
        self.latency_ms[kind].observe((time.monotonic_ns() - began_ns) / 1e6)

    def failed(self, kind: str, failure: BaseException) -> None:
        self.counts[kind, "failed"].add()
        self.last_failure = failure

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the METRICS about operations."""
        yield Sample("pulsar_delayed_delivery_tracker_bucket_merge_count", (), self.merged.value)
        yield Sample("pulsar_delayed_delivery_tracker_bucket_delete_count", (), self.deleted.value)
        yield Sample("pulsar_delayed_delivery_tracker_bucket_lost_count", (), self.lost.value)
        for kind in OPERATIONS:
            of_kind = (("type", kind),)
            for state in STATES:
                yield Sample(f"{_INDEX}_bucket_op_count", (("state", state), *of_kind), self.counts[kind, state].value)
            yield Sample(f"{_INDEX}_bucket_op_failed_count", of_kind, self.counts[kind, "failed"].value)
            yield Sample(f"{_INDEX}_bucket_op_latency_ms", of_kind, self.latency_ms[kind])
