"""PIP-70's test plan: producers with random publish times, and seek by time lands on the right message.

The feature on, off and switched in the middle; the index continuous over all of it. Expiry by the broker's clock.
"""
import os
import random
import threading

import pytest

from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError
from seglog.pulsar import ManagedLedger
from support.topics import at, message, numbers, positions

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
PRODUCERS = 10


def first_from(entries, time_of, time):
    """The position of the first entry whose time is `time` or later."""
    return next((entry.position for entry in entries if time_of(entry) >= time), None)


def produce(topic, clock, count, seed, middle=lambda: None):
    """Ten producers at once, whose clocks go as they like. The broker's goes forward, and sometimes back."""
    done = []

    def producer(number):
        chooser = random.Random(seed * 100 + number)
        for n in range(count):
            topic.add_entry(message(n, chooser.randrange(10_000, 20_000), f"producer-{number}"))
            clock.set(clock.now_ms() + chooser.choice([0, 0, 1, 3, 10, -2]))
            if number == 0 and n == count // 2:
                middle()
        done.append(number)

    threads = [threading.Thread(target=producer, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == PRODUCERS


@pytest.mark.parametrize("feature", ["on", "off", "switched on", "switched off", "index only"])
def test_seek_by_time_lands_on_the_right_message_for_every_timestamp(tmp_path, feature):
    clock = ManualClock(15_000)
    begin = {"on": "timestamp", "switched off": "timestamp,index", "index only": "index"}.get(feature, "")
    then = {"switched on": "timestamp", "switched off": ""}.get(feature)
    config = {
        "managedLedgerMaxEntriesPerLedger": 37, "brokerEntryMetadataInterceptors": begin,
        "defaultRetentionTimeInMinutes": -1,
    }
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock, fsync="never") as topic:

        def switch():
            if then is not None:
                topic.interceptors = then

        produce(topic, clock, 40 if TORTURE else 15, 7, switch)
        entries = list(topic)
        cursor = topic.open_cursor("one", "earliest")
        times = sorted({entry.timestamp for entry in entries})
        assert (feature == "on") <= ([e.timestamp for e in entries] == sorted(e.timestamp for e in entries))
        for time in {t + d for t in times for d in (-1, 0, 1)} | {0, 1, 10**9}:
            expected = first_from(entries, lambda entry: entry.timestamp, time)
            cursor.seek_by_time(time)
            found = cursor.read(1)
            assert (found[0].position if found else None) == expected, time


def test_with_the_feature_on_a_message_is_found_by_when_the_broker_took_it(tmp_path):
    clock = ManualClock(1_000)
    config = {"brokerEntryMetadataInterceptors": "timestamp"}
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock) as topic:
        for n, publish_time in enumerate([9_000, 1, 7_000, 3]):
            topic.add_entry(message(n, publish_time))
            clock.advance(100)
        cursor = topic.open_cursor("one", "earliest")
        for time, n in ((0, 0), (1_000, 0), (1_001, 1), (1_150, 2), (1_300, 3)):
            cursor.seek_by_time(time)
            assert numbers(cursor.read(1)) == [n]
        cursor.seek_by_time(1_301)
        assert cursor.read() == []
        topic.add_entry(message(4))
        assert numbers(cursor.read()) == [4]


def old_seek(times, time):
    """PersistentMessageFinder before PIP-70: binary search over publish times, as they come."""
    low, high = 0, len(times) - 1
    if times[low] >= time:
        return low
    if times[high] < time:
        return high + 1
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] < time:
            low = middle
        else:
            high = middle
    return low + 1


@pytest.mark.parametrize("order", ["rising", "random"])
def test_without_broker_timestamps_seek_is_as_it_was(tmp_path, order):
    chooser = random.Random(5)
    times = [chooser.randrange(10_000, 20_000) for _ in range(100)]
    if order == "rising":
        times.sort()
    config = {
        "useBrokerTimestampsForMessageSeek": "false", "brokerEntryMetadataInterceptors": "timestamp",
        "managedLedgerMaxEntriesPerLedger": 30,
    }
    with ManagedLedger(tmp_path / "orders", config=config, clock=ManualClock(5), fsync="never") as topic:
        topic.add_entries(message(n, time) for n, time in enumerate(times))
        there = [entry.position for entry in topic]
        for time in {t + d for t in times for d in (-1, 0, 1)}:
            expected = old_seek(times, time)
            assert topic.position_at_time(time) == (there[expected] if expected < len(there) else None)


def test_times_that_are_none_are_refused(tmp_path):
    with ManagedLedger(tmp_path / "orders") as topic:
        for bad in ("now", 1.5, None):
            with pytest.raises(InvalidArgumentError):
                topic.position_at_time(bad)
            with pytest.raises(InvalidArgumentError):
                topic.position_at_index(bad)
        topic.add_entry(message(0, 2**63 + 5))          # a publish time beyond int64: it has no time
        topic.add_entry(message(1, 2**63 - 1))
        assert topic.position_at_time(2**70) == topic.position_at_time(1) == at("0:1")
        assert topic.position_at_time(-5) == at("0:1")


def test_seek_by_index_lands_on_the_entry_that_holds_the_message(tmp_path):
    chooser = random.Random(3)
    config = {"managedLedgerMaxEntriesPerLedger": 7, "defaultRetentionTimeInMinutes": -1}
    path, holder, index = tmp_path / "orders", [], 0
    for _ in range(4):
        with ManagedLedger(path, config=config) as topic:
            for _ in range(10):
                topic.interceptors = chooser.choice(["index", "index", "timestamp"])
                count = chooser.randint(1, 4)
                position = topic.add_entry(message(0), count)
                if topic.interceptors == {"index"}:
                    holder += [position] * count
    with ManagedLedger(path, config=config) as topic:
        cursor = topic.open_cursor("one", "earliest")
        for index, position in enumerate(holder):
            cursor.seek_by_index(index)
            assert cursor.read(1)[0].position == position
        assert topic.last_index == index
        cursor.seek_by_index(-5)
        assert cursor.read(1)[0].position == holder[0]
        cursor.seek_by_index(index + 1)
        assert not cursor.has_more()


def test_the_index_counts_every_message_once_whatever_threads_add(tmp_path):
    config = {"managedLedgerMaxEntriesPerLedger": 37, "brokerEntryMetadataInterceptors": "timestamp,index"}
    clock = ManualClock(15_000)
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock, fsync="never") as topic:
        produce(topic, clock, 20, 3)
        assert [entry.index for entry in topic] == list(range(PRODUCERS * 20))


# --- expiry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ttlDurationDefaultInSeconds", "messageTTLInSeconds"])
def test_entries_that_are_too_old_are_acknowledged(tmp_path, key):
    clock = ManualClock(100_000)
    config = {key: 10, "brokerEntryMetadataInterceptors": "timestamp", "managedLedgerMaxEntriesPerLedger": 2}
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock) as topic:
        cursor = topic.open_cursor("one", "earliest")
        assert not cursor.is_oldest_message_expired()
        assert cursor.expire() == 0
        for n in range(6):
            topic.add_entry(message(n, 10**12))     # a client whose clock is wrong keeps nothing alive
            clock.advance(1_000)
        clock.set(110_000)
        assert not cursor.is_oldest_message_expired()
        assert cursor.expire() == 0
        clock.advance(1)
        assert cursor.is_oldest_message_expired()
        clock.set(112_000)
        cursor.acknowledge(cursor.read()[1].position)
        assert cursor.expire() == 1
        assert cursor.mark_delete_position == at("0:1")
        clock.set(10**6)
        cursor.acknowledge(at("1:1"))
        assert cursor.expire() == 3
        assert cursor.backlog == 0
        assert not cursor.is_oldest_message_expired()
        assert cursor.expire() == 0


def test_an_entry_behind_a_live_one_is_not_expired_whatever_its_publish_time(tmp_path):
    for use_broker in (True, False):
        clock = ManualClock(100_000)
        config = {"ttlDurationDefaultInSeconds": 10, "useBrokerTimestampsForMessageSeek": use_broker}
        with ManagedLedger(tmp_path / str(use_broker), config=config, clock=clock) as topic:
            for n, publish_time in enumerate([1, 2, 95_000, 3, 99_000]):
                topic.add_entry(message(n, publish_time))
            cursor = topic.open_cursor("one", "earliest")
            assert cursor.is_oldest_message_expired()
            assert cursor.expire() == 2
            assert not cursor.is_oldest_message_expired()
            cursor.acknowledge(at("0:2"))
            assert cursor.is_oldest_message_expired()
            assert cursor.expire() == 1
            assert positions(cursor.read()) == ["0:4"]


def test_expiry_passes_over_what_is_acknowledged_and_alive(tmp_path):
    clock = ManualClock(100_000)
    with ManagedLedger(tmp_path / "orders", config={"ttlDurationDefaultInSeconds": 10}, clock=clock) as topic:
        for n, publish_time in enumerate([1, 99_000, 99_000, 2, 99_000]):
            topic.add_entry(message(n, publish_time))
        cursor = topic.open_cursor("one", "earliest")
        cursor.acknowledge_many([at("0:1"), at("0:2")])
        assert cursor.expire() == 2
        assert positions(cursor.read()) == ["0:4"]


def test_by_publish_time_alone_the_broker_is_not_asked(tmp_path):
    clock = ManualClock(100_000)
    config = {
        "ttlDurationDefaultInSeconds": 10, "useBrokerTimestampsForMessageSeek": False,
        "brokerEntryMetadataInterceptors": "timestamp",
    }
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock) as topic:
        topic.add_entry(message(0, 50_000))
        cursor = topic.open_cursor("one", "earliest")
        assert cursor.is_oldest_message_expired()
        assert cursor.expire() == 1


def test_without_a_ttl_nothing_expires(tmp_path):
    with ManagedLedger(tmp_path / "orders", clock=ManualClock(10**15)) as topic:
        topic.add_entry(message(0, 1))
        cursor = topic.open_cursor("one", "earliest")
        assert not cursor.is_oldest_message_expired()
        assert cursor.expire() == 0
