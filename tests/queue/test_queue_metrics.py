"""`seglog.metrics.PROCESS` shows every queue that is open."""
import gc
import weakref

import pytest

import seglog
from seglog.metrics import PROCESS
from support.waiting import wait_for


def shown(path):
    """The samples of a queue, by name."""
    of_path = f'{{path="{path}"}} '
    lines = [line.split(of_path) for line in PROCESS.text().splitlines() if of_path in line]
    return {name.removeprefix("seglog_queue_"): float(value) for name, value in lines}


def test_what_waits_and_what_happened_are_shown_while_a_queue_is_open(path, clock):
    with seglog.Queue(path, clock=clock, max_attempts=2, max_backlog=5, when_full="drop", retry_jitter=0) as jobs:
        jobs.put_many([b"a", b"b", b"c"])
        jobs.put(b"later", delay=100, priority=1)
        clock.advance(2500)
        one, two = jobs.get_many(2, timeout=0)
        one.ack()
        two.nack(0)
        jobs.get(timeout=0).nack(0)
        jobs.put_many([b"d"] * 4)
        jobs.get(timeout=0)
        assert shown(path) == {
            "ready": 4, "delayed": 0, "waiting": 0, "in_flight": 1, "dead": 1, "oldest_age_seconds": 0, "paused": 0,
            "puts_total": 8, "deliveries_total": 4, "redeliveries_total": 1, "acknowledged_total": 1,
            "refused_total": 2, "deaths_total": 1, "dropped_total": 1, "dead_letters_total": 0,
        }
    assert shown(path) == {}


def test_a_queue_that_failed_or_was_dropped_is_no_obstacle(in_memory):
    jobs = seglog.Queue(in_memory / "jobs")
    jobs.put(b"x")
    assert shown(in_memory / "jobs")["ready"] == 1
    tail = weakref.ref(jobs._lane(0).managed_ledger._tail)
    with pytest.warns(ResourceWarning):     # noqa: PT031 - collecting it warns
        del jobs
        # (A thread of its delayed messages may have it for a moment: its warning would come in another test.)
        wait_for(lambda: gc.collect() >= 0 and tail() is None)
    assert shown(in_memory / "jobs") == {}
