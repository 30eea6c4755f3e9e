"""Readers that wait cost nothing: how often they wake is counted, not how long it takes."""
import threading
import time
from contextlib import suppress

import pytest

from seglog.errors import LogClosedError
from seglog.pulsar import ManagedLedger
from seglog.topic import dispatcher as dispatcher_module
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.topic.dispatcher import Dispatcher
from support.topics import delayed
from support.waiting import wait_for

READERS, HOUR_MS = 50, 3_600_000


@pytest.fixture
def topic(in_memory):
    with ManagedLedger(in_memory / "orders", fsync="never") as log, DelayedDelivery(log) as deliveries:
        log.add_entry(delayed(0, int(time.time() * 1000) + HOUR_MS))
        yield log, deliveries


def wait(dispatcher):
    with suppress(LogClosedError):
        dispatcher.read(timeout=60)


def wake_ups_of(topic, monkeypatch, until):
    """How often 50 waiting readers, of one subscription and of many, fell asleep after each had the first time:
    `until(count)` returns when it was asked for long enough."""
    log, deliveries = topic
    slept = []
    sleep = Dispatcher._sleep
    monkeypatch.setattr(
        Dispatcher, "_sleep", lambda *args: slept.append(threading.get_ident()) or sleep(*args))
    dispatchers = [deliveries.dispatcher(log.open_cursor(f"s{n % 10}", "earliest")) for n in range(10)]
    threads = [threading.Thread(target=wait, args=(dispatchers[n % 10],), daemon=True) for n in range(READERS)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(set(slept)) == READERS)
    settled = len(slept)
    until(lambda: len(slept) - settled)
    woken = len(slept) - settled
    for dispatcher in dispatchers:
        dispatcher.close()
    for thread in threads:
        thread.join(30)
    return woken


def test_fifty_idle_readers_do_not_wake(topic, monkeypatch):
    assert wake_ups_of(topic, monkeypatch, lambda count: time.sleep(0.5)) <= 5


def test_where_nobody_tells_that_the_clock_is_set_they_look_at_it(topic, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "listen", lambda clock, wake: False)
    assert wake_ups_of(topic, monkeypatch, lambda count: wait_for(lambda: count() > 100)) > 100
