"""Every metric of a bucket tracker, read back from Prometheus text after a scripted run."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import seglog
from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.metrics import METRICS
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.metrics import Exposition
from seglog.upkeep.metrics import METRICS as CLEANER_METRICS
from support.waiting import wait_for

NOW = 1_700_000_000_000


class Storage(InMemoryBucketSnapshotStorage):
    refuses = False

    def get_segments(self, snapshot_id, start, stop):
        if self.refuses:
            raise OSError("refused")
        return super().get_segments(snapshot_id, start, stop)


def opened(storage, clock, **config):
    settings = DelayedDeliveryConfig(ledger_step=0, min_index_count=8, max_indexes_per_segment=4, **config)
    return BucketDelayedDeliveryTracker(storage, settings, clock=clock, worker=InlineWorker())


def scripted(**config):
    """Ledgers 1 to 5 with eight messages each: four buckets sealed, merged into two; then the first two seconds are
    delivered, a load having failed once; then the first bucket is trimmed."""
    clock, storage = ManualClock(NOW), Storage()
    tracker = opened(storage, clock, max_buckets=2, **config)
    for ledger in range(1, 6):
        for entry in range(8):
            tracker.add_message(ledger, entry, NOW + 10_000 + 1000 * entry)
    storage.refuses = True
    clock.set(NOW + 10_000)
    tracker.get_scheduled_messages(100)
    storage.refuses = False
    clock.advance_monotonic(60_000)
    clock.set(NOW + 11_000)
    tracker.get_scheduled_messages(100)
    tracker.trim(5)
    return tracker


def values(text):
    """(name, labels) -> value, and name -> type. prometheus_client reads no counter that is not called _total."""
    families = text_string_to_metric_families(text.replace(" counter\n", " untyped\n"))
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}
    return found, {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}


def test_every_metric_is_in_the_text_with_its_type_its_labels_and_its_value():
    tracker = scripted()
    exposition = Exposition()
    exposition.add(tracker, topic="t", subscription='a "quoted"\nname\\')
    found, types = values(exposition.text())
    assert types == {metric.name: metric.kind for metric in METRICS}
    common = {"topic": "t", "subscription": 'a "quoted"\nname\\'}

    def value(name, **labels):
        return found[name, tuple(sorted((common | labels).items()))]

    index = "pulsar_delayed_message_index"
    assert value(f"{index}_bucket_total") == 1
    assert value(f"{index}_loaded") == 0
    assert value(f"{index}_bucket_snapshot_size_bytes") == 0
    assert value("pulsar_delayed_delivery_tracker_memory_usage") == tracker.memory_usage > 0
    assert value("pulsar_subscription_delayed") == 6
    assert value("pulsar_subscription_delayed_in_memory") == 6
    assert value("pulsar_subscription_delayed_in_last_mutable_queue") == 6
    assert value("pulsar_delayed_delivery_tracker_bucket_merge_count") == tracker.stats.merged.value >= 1
    assert value("pulsar_delayed_delivery_tracker_bucket_delete_count") == tracker.stats.deleted.value >= 4
    for kind, failed in {"create": 0, "load": 1, "merge": 0, "delete": 0}.items():
        begun, succeeded = (value(f"{index}_bucket_op_count", type=kind, state=state) for state in ("all", "succeed"))
        assert begun == succeeded + failed
        assert succeeded >= 1
        assert value(f"{index}_bucket_op_count", type=kind, state="failed") == failed
        assert value(f"{index}_bucket_op_failed_count", type=kind) == failed
        assert value(f"{index}_bucket_op_latency_ms_count", type=kind) == succeeded
        assert value(f"{index}_bucket_op_latency_ms_bucket", type=kind, le="+Inf") == succeeded
        assert value(f"{index}_bucket_op_latency_ms_sum", type=kind) > 0


def test_the_last_mutable_bucket_and_loaded_rows_are_told_apart():
    tracker = opened(Storage(), ManualClock(NOW))
    for ledger in (1, 2):
        for entry in range(8):
            tracker.add_message(ledger, entry, NOW + 10_000 + entry)
    shown = {sample.name: sample.value for sample in tracker.samples()}
    assert shown["pulsar_subscription_delayed"] == 16
    assert shown["pulsar_subscription_delayed_in_last_mutable_queue"] == 8
    assert shown["pulsar_delayed_message_index_loaded"] == 4
    assert shown["pulsar_subscription_delayed_in_memory"] == 12


def test_a_shared_index_says_nothing_of_subscriptions():
    exposition = Exposition()
    exposition.add(scripted(shared_index=True), topic="t")
    _, types = values(exposition.text())
    assert set(types) == {m.name for m in METRICS if not m.name.startswith("pulsar_subscription_")}


def test_sources_stand_under_one_head_and_may_go():
    exposition = Exposition()
    one, other = InMemoryDelayedDeliveryTracker(), InMemoryDelayedDeliveryTracker()
    exposition.add(one, subscription="one")
    exposition.add(other, subscription="other")
    text = exposition.text()
    assert text.count("# TYPE pulsar_subscription_delayed gauge") == 1
    assert 'pulsar_subscription_delayed{subscription="other"} 0' in text
    exposition.remove(other)
    exposition.remove(other)
    assert "other" not in exposition.text()


def test_prometheus_client_collects_it():
    exposition = Exposition()
    exposition.add(scripted(), topic="t")
    registry = CollectorRegistry()
    registry.register(exposition)
    collected, types = values(generate_latest(registry).decode())
    written, kinds = values(exposition.text())
    assert collected == written
    # It knows counters by their names, which end in _total. Pulsar's do not: they have no type.
    assert types == {name: "untyped" if kind == "counter" else kind for name, kind in kinds.items()}


def test_prometheus_client_knows_the_counters_of_a_log(tmp_path):
    registry = CollectorRegistry()
    registry.register(seglog.metrics.PROCESS)
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"one")
        collected = generate_latest(registry).decode()
    assert "# TYPE seglog_log_appends_total counter" in collected
    assert " untyped" not in collected


def test_what_a_cleaner_did_is_shown(tmp_path):
    with seglog.open_dir(tmp_path, config={"retention.bytes": 0}, cleaner={"log.cleaner.backoff.ms": 50}) as log_dir:
        log_dir.cleaner.pause()
        log = log_dir.log("orders")
        log.append(b"old")
        log_dir.cleaner.resume()
        wait_for(lambda: log_dir.cleaner.counts.deleted_bytes)     # which is counted after the segments
        exposition = Exposition()
        exposition.add(log_dir.cleaner, log_dir="data")
        shown = {
            sample.name: sample.value for family in text_string_to_metric_families(exposition.text())
            for sample in family.samples
        }
    assert set(shown) == {metric.name for metric in CLEANER_METRICS}
    assert (shown["seglog_cleaner_logs"], shown["seglog_cleaner_deleted_segments_total"]) == (1, 1)
    assert shown["seglog_cleaner_deleted_bytes_total"] == 61 + 7 + 3
