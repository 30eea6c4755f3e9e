"""A poll costs what it gives, however much is due: in one millisecond, too."""
import random

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import IdleWorker, InlineWorker

NOW = 1_700_000_000_000


def filled(messages, at, worker=InlineWorker):
    """A tracker with buckets of 200 messages in segments of 50, ten ledgers each; what is in it."""
    clock = ManualClock(NOW)
    config = DelayedDeliveryConfig(ledger_step=0, min_index_count=200, max_indexes_per_segment=50, max_buckets=-1)
    tracker = BucketDelayedDeliveryTracker(InMemoryBucketSnapshotStorage(), config, clock=clock, worker=worker())
    rows = [(at(n), n // 20, n % 20) for n in range(messages)]
    for deliver_at, ledger_id, entry_id in rows:
        tracker.add_message(ledger_id, entry_id, deliver_at)
    return tracker, clock, rows


def test_no_more_segments_are_loaded_than_were_asked_for():
    tracker, clock, rows = filled(4000, lambda n: NOW + 10_000)
    tracker._worker = IdleWorker()          # what is loaded ahead is not what a poll loads
    clock.set(NOW + 10_000)
    loaded = tracker.stats.counts["load", "all"]
    before = loaded.value
    assert tracker.get_scheduled_messages(10) == [row[1:] for row in rows[:10]]
    assert loaded.value - before <= 1
    assert tracker.get_scheduled_messages(100) == [row[1:] for row in rows[10:110]]
    assert loaded.value - before <= 4
    assert tracker.memory_usage < 24 * 1300


def test_background_work_loads_no_more_than_so_many_rows(monkeypatch):
    monkeypatch.setattr("seglog.delayed.bucket_work.PREFETCH_ROWS", 300)
    tracker, clock, _ = filled(4000, lambda n: NOW + 10_000)
    clock.set(NOW + 9_000)
    tracker.get_scheduled_messages(1)
    assert tracker.memory_usage < 24 * 1500


@pytest.mark.parametrize("seed", range(6))
def test_the_order_is_exact_though_many_are_due_at_once(seed):
    chance = random.Random(seed)
    tracker, clock, rows = filled(3000, lambda n: NOW + 1000 * chance.choice([1, 1, 1, 2, 3]))
    left = sorted(rows)
    clock.set(NOW + chance.choice([1000, 3000]))
    while left and left[0][0] <= clock.now_ms():
        act = chance.random()
        if act < 0.15:
            gone = chance.choice(left[:300])
            assert tracker.cancel(*gone[1:])
            left.remove(gone)
        elif act < 0.2:
            moved = chance.choice(left[:300])
            at = clock.now_ms() + chance.choice([-500, 0, 700])
            assert tracker.reschedule(*moved[1:], at)
            left.remove(moved)
            left = sorted([*left, (at, *moved[1:])])
        elif act < 0.25:
            clock.set(clock.now_ms() + chance.choice([0, 1000]))
        else:
            wanted = chance.choice([1, 7, 60, 400])
            due = [row for row in left[:wanted] if row[0] <= clock.now_ms()]
            assert tracker.get_scheduled_messages(wanted) == [row[1:] for row in due]
            left = left[len(due) :]
    assert tracker.number_of_delayed_messages == len(left)
