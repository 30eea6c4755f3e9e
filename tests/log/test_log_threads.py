"""Threads that append, read and cut one log at once."""
import os
import random
import threading
import time

import pytest

import seglog
from seglog.errors import OffsetOutOfRangeError
from support.faultfs import SlowSync
from support.lookups import offset_at

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
APPENDS = 4000 if os.environ.get("SEGLOG_TORTURE") else 200
APPENDERS = 8
READERS = 3


class Threads:
    """Threads whose errors reach the test. Those that `until_done` loop until the others have ended."""

    def __init__(self):
        self.errors = []
        self.done = threading.Event()
        self._finite, self._endless = [], []

    def start(self, call, *args, until_done=False):
        def run():
            try:
                call(*args)
                while until_done and not self.done.is_set():
                    call(*args)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        (self._endless if until_done else self._finite).append(thread)
        thread.start()

    def join(self):
        for thread in self._finite:
            thread.join()
        self.done.set()
        for thread in self._endless:
            thread.join()
        assert self.errors == []


def appender(log, name, found):
    rng = random.Random(name)
    n = 0
    while n < APPENDS:
        count = rng.choice([1, 1, 2, 5])
        values = [b"%d %d" % (name, n + i) for i in range(count)]
        last = log.append(values[0]) if count == 1 else log.append_many([(b"k", value) for value in values])
        found |= {last - count + 1 + i: value for i, value in enumerate(values)}
        n += count


def check_prefix(records, start=0):
    """Offsets without a hole, and of each appender what it appended, in its order, from its first on."""
    counts = {}
    for offset, record in enumerate(records, start):
        assert record.offset == offset
        name, n = record.value.split()
        assert int(n) == counts.get(name, 0)
        counts[name] = int(n) + 1


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_appenders_and_readers_see_each_record_once_and_in_order(in_memory, fsync):
    config = {"segment.bytes": 8192, "index.interval.bytes": 200, "flush.ms": 5}
    threads, found = Threads(), [{} for _ in range(APPENDERS)]
    with seglog.open(in_memory / "orders-0", fsync=fsync, config=config) as log:

        def look():
            end = log.log_end_offset
            records = list(log.read())
            assert len(records) >= end          # what was seen to be there is there
            check_prefix(records)
            if records:
                at = random.randrange(len(records))
                assert log[at].value == records[at].value
                assert offset_at(log, records[-1].timestamp) <= records[-1].offset

        for name in range(APPENDERS):
            threads.start(appender, log, name, found[name])
        for _ in range(READERS):
            threads.start(look, until_done=True)
        threads.start(log.roll, until_done=True)
        threads.join()
        acknowledged = {offset: value for one in found for offset, value in one.items()}
        assert len(acknowledged) == sum(map(len, found))
        assert {r.offset: r.value for r in log.read()} == acknowledged
    with seglog.open(in_memory / "orders-0") as log:
        assert {r.offset: r.value for r in log.read()} == acknowledged


def test_readers_of_what_is_cut_meanwhile_get_whole_records_or_an_error(in_memory):
    """Nothing is truncated under a map: that would kill the process."""
    threads = Threads()
    config = {"segment.bytes": 4096, "index.interval.bytes": 200}
    with seglog.open(in_memory / "orders-0", fsync="never", config=config) as log:
        log.append(b"0 0")

        def cut():
            rng = random.Random(5)
            for _ in range(APPENDS // 10):
                log.truncate_to(max(log.log_end_offset - rng.choice([1, 10, 100]), log.log_start_offset))
                start = log.log_start_offset
                log.delete_records(rng.randint(start, max(log.log_end_offset - 50, start)))

        def append():
            for n in range(APPENDS):
                log.append(b"1 %d" % n + b"." * 50)

        def look():
            try:
                seen = [(r.offset, bytes(r.value)) for r in log.read()]
            except OffsetOutOfRangeError:
                return
            assert [offset for offset, _ in seen] == list(range(seen[0][0], seen[-1][0] + 1)) if seen else True
            assert all(value[:2] in (b"0 ", b"1 ") for _, value in seen)

        threads.start(cut)
        for _ in range(2):
            threads.start(append)
        for _ in range(READERS):
            threads.start(look, until_done=True)
        threads.join()


def test_reads_wait_for_no_appender_and_no_appender_for_reads(in_memory):
    fs = SlowSync()
    with seglog.open(in_memory / "orders-0", fs=fs) as log:
        for n in range(3):
            log.append(b"%d" % n)
        half_read = log.read()
        next(half_read)
        threads = Threads()
        fs.armed = True
        threads.start(log.append, b"waits for the disk")
        fs.begun.wait()
        # With one appender in its sync, a roll that waits for it, and another appender behind that one's lock.
        threads.start(log.roll)
        threads.start(log.append, b"waits for the lock")
        time.sleep(0.05)
        assert [r.value for r in log.read()] == [b"0", b"1", b"2"]
        assert (log[2].value, offset_at(log, 0), log.log_end_offset) == (b"2", 0, 3)
        fs.armed = False
        fs.go.set()
        threads.join()
        assert log.log_end_offset == 5
        assert [r.value for r in half_read] == [b"1", b"2"]     # the end as of the call
