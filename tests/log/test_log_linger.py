"""Records that wait in memory for one write, and what a log does by itself."""
import os
import sys
import threading
import time

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from support.waiting import wait_for

NOW = 1_700_000_000_000
LONG = {"linger.ms": 3_600_000}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders-0"


def eventually(found, wanted):
    """Wait until `found()` is `wanted`: a thread brings it about."""
    for _ in range(2000):
        if found() == wanted:
            return
        time.sleep(0.01)
    assert found() == wanted


def test_lingering_records_have_offsets_and_are_seen_once_written(path):
    with seglog.open(path, fsync="never", config=LONG, clock=ManualClock(NOW)) as log:
        assert [log.append(b"%d" % n, key=b"k") for n in range(3)] == [0, 1, 2]
        assert log.log_end_offset == 0
        log.flush()
        assert [(r.offset, r.value, r.timestamp) for r in log.read()] == [(n, b"%d" % n, NOW) for n in range(3)]
        assert len(list(log.batches())) == 1
        assert log.durable_offset == 3


def test_linger_bytes_are_written_without_waiting(path):
    with seglog.open(path, fsync="never", config=LONG | {"seglog.linger.bytes": 500}) as log:
        while log.log_end_offset == 0:
            last = log.append(b"x" * 50)
        assert log.log_end_offset == last + 1
        assert 5 <= last <= 10


def test_after_linger_ms_they_are_written(path):
    with seglog.open(path, fsync="never", config={"linger.ms": 20}) as log:
        log.append(b"x")
        log.append(b"y")
        eventually(lambda: log.log_end_offset, 2)


def test_headers_from_an_iterator_are_kept(path):
    with seglog.open(path, fsync="never", config=LONG, clock=ManualClock(NOW)) as log:
        log.append(b"x", headers=iter([("h", b"v")]), timestamp=NOW + 1)      # a time that is looked at twice
        log.flush()
        assert log[0].headers == (("h", b"v"),)


def test_closing_writes_what_lingers(path):
    with seglog.open(path, fsync="never", config=LONG) as log:
        log.append(b"x", headers=[("h", b"v")], timestamp=NOW)
    with seglog.open(path) as log:
        assert [(r.value, r.headers, r.timestamp) for r in log.read()] == [(b"x", (("h", b"v"),), NOW)]


def test_every_other_change_comes_behind_what_lingers(path):
    with seglog.open(path, fsync="never", config=LONG) as log:
        log.append(b"0")
        assert log.append_many([(None, b"1")]) == 1
        log.append(b"2")
        assert log.append_batch(seglog.build_batch([(None, b"3")])).first_offset == 3
        log.append(b"4")
        assert log.roll() == 5
        log.append(b"5")
        assert log.truncate_to(5) == 5
        assert [r.value for r in log.read()] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_bad_record_is_refused_at_once_and_those_that_linger_are_kept(path):
    config = LONG | {"max.message.bytes": 300, "message.timestamp.after.max.ms": 10}
    with seglog.open(path, fsync="never", config=config, clock=ManualClock(NOW)) as log:
        log.append(b"good")
        with pytest.raises(InvalidArgumentError, match="int"):
            log.append(1)
        with pytest.raises(RecordTooLargeError):
            log.append(b"x" * 300)
        with pytest.raises(InvalidTimestampError):
            log.append(b"x", timestamp=NOW + 11)
        assert log.append(bytearray(b"good too")) == 1
        log.flush()
        assert [r.value for r in log.read()] == [b"good", b"good too"]


def test_a_lingering_batch_stays_within_the_largest_message(path):
    config = LONG | {"max.message.bytes": 1000, "seglog.linger.bytes": "1MiB"}
    with seglog.open(path, fsync="never", config=config) as log:
        for _ in range(100):
            log.append(b"x" * 90)
        log.flush()
        sizes = [batch.size_bytes for batch in log.batches()]
        assert max(sizes) <= 1000
        assert len(sizes) < 20


@pytest.mark.parametrize("bytes_max", ["seglog.linger.bytes", "max.message.bytes"])
def test_each_batch_is_as_large_as_its_limit_allows(path, bytes_max):
    """The record that makes a batch due is written with it; one for which there is no room begins the next."""
    config = LONG | {"seglog.linger.bytes": "1MiB"} | {bytes_max: 1000}
    with seglog.open(path, fsync="never", config=config, clock=ManualClock(NOW)) as log:
        for n in range(200):
            assert log.append(b"x" * (n % 100)) == n
        log.flush()
        batches = list(log.batches())
        assert [record.value for record in log.read()] == [b"x" * (n % 100) for n in range(200)]
    header, largest_record = 61, 110
    for batch in batches[:-1]:
        if bytes_max == "seglog.linger.bytes":
            assert 1000 <= batch.size_bytes - header < 1000 + largest_record
        else:
            assert 1000 - largest_record < batch.size_bytes <= 1000


def test_threads_whose_records_linger_get_each_offset_once(path):
    offsets = [[] for _ in range(4)]
    with seglog.open(path, fsync="never", config=LONG | {"seglog.linger.bytes": 300}) as log:
        def append(mine, name):
            for n in range(500):
                mine.append((log.append(b"%d %d" % (name, n)), b"%d %d" % (name, n)))

        threads = [threading.Thread(target=append, args=(mine, name)) for name, mine in enumerate(offsets)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.flush()
        given = sorted(pair for mine in offsets for pair in mine)
        assert given == [(record.offset, record.value) for record in log.read()]
        assert len(given) == 2000


def test_a_record_that_lingers_is_durable_when_its_token_says_so(path):
    with seglog.open(path, fsync="never", config=LONG) as log:
        for n in range(3):
            token = log.append(b"%d" % n, wait=False)
            assert token.result == n
            assert log.log_end_offset == 0
        told = []
        log.when_durable(token, told.append)
        eventually(lambda: told, [None])
        assert log.durable_offset == 3


def test_records_that_linger_in_a_compacted_log_need_keys(path):
    with seglog.open(path, fsync="never", config=LONG | {"cleanup.policy": "compact"}) as log:
        log.append(b"x", key=b"k")
        with pytest.raises(InvalidRecordError):
            log.append(b"x")
        assert log.append(b"y", key=b"k") == 1


# --- by itself -------------------------------------------------------------------------------------


def test_with_an_interval_records_are_durable_after_flush_ms(path):
    with seglog.open(path, fsync="interval", config={"flush.ms": 20}) as log:
        log.append(b"x")
        assert log.log_end_offset == 1
        eventually(lambda: log.durable_offset, 1)


def test_with_an_interval_so_many_records_are_synced_at_once(path):
    with seglog.open(path, fsync="interval", config={"flush.ms": 3_600_000, "flush.messages": 3}) as log:
        log.append(b"x")
        log.append(b"x")
        assert log.durable_offset == 0
        log.append(b"x")
        assert log.durable_offset == 3


def test_an_idle_log_rolls_by_the_clock(path):
    clock = ManualClock(time.time_ns() // 1_000_000)
    with seglog.open(path, clock=clock, config={"seglog.segment.idle.roll": True, "segment.ms": 60_000}) as log:
        log.append(b"x")
        log._maintain()
        assert len(log.segments) == 1
        clock.advance(60_001)
        log._maintain()
        assert len(log.segments) == 2
        clock.advance(60_001)
        log._maintain()        # an empty one stays
        assert len(log.segments) == 2


def threads():
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_only_what_needs_a_thread_has_one(path):
    before = threads()      # some of them may be of tests before this one, and end meanwhile
    with seglog.open(path, fsync="never"):
        wait_for(lambda: not threads() - before)        # those of calls that are over take a moment to end
    with seglog.open(path, fsync="interval"):
        wait_for(lambda: len(threads() - before) == 1)
    wait_for(lambda: not threads() - before)


def test_a_thread_does_not_keep_its_log_alive(path):
    log = seglog.open(path, fsync="interval")
    with pytest.warns(ResourceWarning):
        del log
    assert os.path.exists(path)
    seglog.open(path).close()
