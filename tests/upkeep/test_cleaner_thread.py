"""Logs that are open are compacted by themselves, the dirtiest first, and leave it at once when they are closed."""
import gc
import threading
import time
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import seglog
from seglog._kernels.write_gate import Bell
from seglog.config import LogConfig
from seglog.log.retaining import Retained
from seglog.reading.open_readers import OpenReaders
from seglog.upkeep import cleaner_thread
from seglog.upkeep.cleaner_config import CleanerConfig
from seglog.upkeep.cleaner_thread import LogCleaner
from support.waiting import wait_for

COMPACT = {
    "cleanup.policy": "compact", "segment.bytes": 4000, "file.delete.delay.ms": 0, "min.cleanable.dirty.ratio": 0.01,
}
OFTEN = {"log.cleaner.backoff.ms": 20}


def write(log, rounds, keys=20):
    for n in range(rounds):
        for key in range(keys):
            log.append(b"%d" % n + b"v" * 40, key=b"%d" % key)
    log.roll()


def latest(log):
    return {record.key: record.value.rstrip(b"v") for record in log.read()}


def test_a_log_opened_alone_compacts_itself(tmp_path):
    with seglog.open(tmp_path / "table-0", config=COMPACT, fsync="never") as log:
        write(log, 20)
    with seglog.open(tmp_path / "table-0", config=COMPACT, fsync="never") as log:
        wait_for(lambda: len(list(log.read())) == 20)
        assert latest(log) == {b"%d" % key: b"19" for key in range(20)}
        assert log.log_end_offset == 400


def test_all_logs_of_a_log_dir_are_compacted_and_deleted_from_by_their_policies(tmp_path):
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never", cleaner=OFTEN) as log_dir:
        tables = [log_dir.log("table", n) for n in range(3)]
        both = log_dir.log("both", config=COMPACT | {"cleanup.policy": "compact,delete", "retention.bytes": 0})
        for log in (*tables, both):
            write(log, 20)
        for log in tables:
            wait_for(lambda log=log: len(list(log.read())) == 20)
        wait_for(lambda: both.log_start_offset == 400)
        wait_for(lambda: log_dir.cleaner.counts.compactions >= 3)       # counted when the log has it
        assert log_dir.cleaner.uncleanable == {}


def test_a_checkpoint_outside_of_the_log_is_written_again_before_there_is_anything_to_clean(tmp_path):
    """LogCleanerManager.scala 197-198 of 3.9. Once the log had grown past it, it would pass for one of its own, and
    what lies before it for cleaned."""
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never", cleaner=OFTEN) as log_dir:
        log = log_dir.log("table")
        for n in range(10):
            log.append(b"%d" % n, key=b"key")
        log._put_cleaner_offset(100)
        wait_for(lambda: log.cleaner_offset == 0)
        assert log.log_end_offset == 10


def test_a_log_that_is_hardly_dirty_is_left_alone(tmp_path):
    config = COMPACT | {"min.cleanable.dirty.ratio": 0.9}
    with seglog.open_dir(tmp_path, config=config, fsync="never", cleaner=OFTEN) as log_dir:
        log, other = log_dir.log("table"), log_dir.log("other")
        log_dir.cleaner.pause()
        write(log, 20)
        log_dir.cleaner.resume()
        wait_for(lambda: log.cleaner_offset == 400)
        log_dir.cleaner.pause()
        write(log, 1)
        write(other, 20)        # and when that is compacted, the thread has looked at both
        log_dir.cleaner.resume()
        wait_for(lambda: len(list(other.read())) == 20)
        assert len(list(log.read())) == 40


def test_a_damaged_log_is_uncleanable_with_its_reason_and_the_others_are_compacted(tmp_path):
    with seglog.open(tmp_path / "bad-0", config=COMPACT | {"cleanup.policy": "delete"}) as log:
        write(log, 20)
        damaged = log.segments[1].path
    raw = bytearray(damaged.read_bytes())
    raw[-5] ^= 1
    damaged.write_bytes(raw)
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never", cleaner=OFTEN) as log_dir:
        bad, good = log_dir.log("bad"), log_dir.log("good")
        write(good, 20)
        wait_for(lambda: len(list(good.read())) == 20)
        wait_for(lambda: bad.stats().uncleanable)
        assert damaged.name in bad.stats().uncleanable
        assert len(list(bad.read(on_corrupt="skip"))) == 399, "nothing goes for a damaged record"
        raw[-5] ^= 1
        with open(damaged, "r+b") as file:      # in place, as the log has it mapped
            file.write(raw)
        wait_for(lambda: not bad.stats().uncleanable)
        wait_for(lambda: len(list(bad.read())) == 20)


@pytest.mark.parametrize("call", ["close", "pause"])
def test_closing_and_pausing_leave_a_compaction_in_the_middle(tmp_path, call):
    """At a byte a second a single wait for its rate would take an hour."""
    with seglog.open(tmp_path / "table-0", config=COMPACT | {"cleanup.policy": "delete"}, fsync="never") as log:
        write(log, 50)
    cleaner = OFTEN | {"log.cleaner.io.max.bytes.per.second": 1}
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never", cleaner=cleaner) as log_dir:
        log = log_dir.log("table")
        wait_for(lambda: log_dir.cleaner.busy_with == str(log.path))
        wait_for(lambda: log_dir.cleaner._paid_until > time.monotonic() + 600)
        started = time.process_time()
        caller = threading.Thread(target=getattr(log if call == "close" else log_dir.cleaner, call))
        caller.start()
        caller.join(30)
        assert not caller.is_alive()
        assert log_dir.cleaner.busy_with is None
        assert time.process_time() - started < 1
    assert not list((tmp_path / "table-0").glob("*.cleaned"))
    with seglog.open(tmp_path / "table-0") as log:
        assert latest(log) == {b"%d" % key: b"49" for key in range(20)}
        assert len(list(log.read())) == 1000, "it was not compacted to its end"


def test_the_thread_ends_with_its_last_log_and_begins_with_the_next(tmp_path):
    cleaner = LogCleaner(CleanerConfig())
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never") as log_dir:
        log_dir.cleaner = cleaner
        for _ in range(2):
            log = log_dir.log("table")
            assert cleaner.is_running
            log.close()
            assert not cleaner.is_running


def test_the_thread_of_a_log_dir_stays_for_the_next_log_and_ends_with_the_log_dir(tmp_path):
    """20 000 logs that are opened and closed one after the other do not start as many threads."""
    with seglog.open_dir(tmp_path, fsync="never") as log_dir:
        threads = set()
        for n in range(3):
            with log_dir.log("orders", n):
                threads.add(log_dir.cleaner._thread)
        (thread,) = threads
        assert thread.is_alive()
    assert not thread.is_alive()
    assert not log_dir.cleaner.is_running


def test_a_thread_that_stays_ends_when_no_log_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaner_thread, "_STAY_S", 0.05)
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never", cleaner=OFTEN) as log_dir:
        log_dir.log("table", 0).close()
        thread = log_dir.cleaner._thread
        wait_for(lambda: not log_dir.cleaner.is_running)
        thread.join(20)
        assert not thread.is_alive()
        log = log_dir.log("table", 1)       # the next log begins another, which works
        assert log_dir.cleaner.is_running
        write(log, 50)
        log.roll()
        wait_for(lambda: log_dir.cleaner.counts.compactions)


def test_what_a_log_costs_its_cleaner_does_not_grow_with_its_neighbours(monkeypatch):
    """It looked through all logs for each that was due: 6 000 of them took six seconds, 20 000 a minute."""
    class Counted(cleaner_thread._Task):
        reads = 0

        def __getattribute__(self, name):
            Counted.reads += 1
            return object.__getattribute__(self, name)

    class Quiet:
        """A log, and what deletes nothing of it."""
        path = Path("orders-0")
        config = LogConfig.of({"retention.ms": 86_400_000})
        runs = 0

        def run(self, throttle):
            Quiet.runs += 1
            return Retained()

    monkeypatch.setattr(cleaner_thread, "_Task", Counted)
    found = {}
    for size in (20, 800):
        cleaner, logs = LogCleaner(), [Quiet() for _ in range(size)]
        Counted.reads = Quiet.runs = 0
        for log in logs:
            cleaner.add(log, log, None)
        wait_for(lambda size=size: Quiet.runs == size)
        for log in logs:
            cleaner.remove(log)
        found[size] = Counted.reads / size
    assert found[800] < 3 * found[20]


class Idle:
    """A log, and what deletes nothing of it."""

    path = Path("orders-0")
    config = LogConfig.of({"retention.ms": 1})      # is looked at every 50 ms

    def __init__(self):
        self.runs = 0

    def run(self, throttle):
        self.runs += 1
        return Retained()


def test_a_log_that_closes_when_it_is_due_does_not_stop_retention_of_the_others(monkeypatch):
    """Nothing was left of those that were due, and when the next ones are was not found out again."""
    class Closing(Idle):
        """While it is looked at, the other log closes."""

        def run(self, throttle):
            cleaner.remove(other)
            return super().run(throttle)

    monkeypatch.setattr(cleaner_thread, "_FIRST_LOOK_S", 0)     # both are due when it goes on
    cleaner, log, other = LogCleaner(), Closing(), Idle()
    cleaner.pause()
    for each in (log, other):
        cleaner.add(each, each, None)
    cleaner.resume()
    try:
        wait_for(lambda: log.runs > 2)
        assert other.runs == 0
    finally:
        cleaner.remove(log)


def test_the_thread_ends_when_its_last_log_was_dropped_without_being_closed():
    """It slept for ever instead, or until it took the ring that was for the next thread."""
    cleaner, log = LogCleaner(), Idle()
    cleaner.add(log, Idle(), None)
    thread = cleaner._thread
    del log
    thread.join(20)
    assert not thread.is_alive()
    assert not cleaner.is_running


def test_a_paused_cleaner_keeps_nothing_of_closed_logs():
    """Each roll of a paused log was one more call to answer, and its retainer stayed until the cleaner went on."""
    cleaner, stays = LogCleaner(), Idle()
    cleaner.add(stays, stays, None)
    for call in (False, True):      # due since a while, or one that called
        cleaner.pause()
        log, retainer = Idle(), Idle()
        cleaner.add(log, retainer, None)
        if call:
            for _ in range(1000):
                cleaner.wake(log)
            assert len(cleaner._calls) <= 1
        left = weakref.ref(retainer)
        cleaner.remove(log)
        del log, retainer
        wait_for(lambda left=left: left() is None)
        cleaner.resume()
    cleaner.pause()
    log, retainer = Idle(), Idle()
    cleaner.add(log, retainer, None)
    left = weakref.ref(retainer)
    del log, retainer               # and was not closed
    wait_for(lambda: left() is None)
    cleaner.remove(stays)


def test_a_log_is_not_compacted_before_its_first_retention_when_another_one_is_due(tmp_path, monkeypatch):
    """All were judged together as soon as one was due; and what was merged would be young again."""
    done = []

    class Noted(LogCleaner):
        def _retain(self, task):
            done.append(("retention", task.log().path.name))
            super()._retain(task)

        def _compact(self, task):
            done.append(("compaction", task.log().path.name))
            super()._compact(task)

    with seglog.open(tmp_path / "dirty-0", config={"segment.bytes": 4000}, fsync="never") as log:
        write(log, 50)
    config = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": 86_400_000}
    with seglog.open_dir(tmp_path, config=config, fsync="never") as log_dir:
        log_dir.cleaner = Noted(CleanerConfig.of(OFTEN))
        log_dir.log("empty", 0)
        wait_for(lambda: done)
        monkeypatch.setattr(cleaner_thread, "_FIRST_LOOK_S", 0.5)
        log_dir.log("dirty", 0)
        wait_for(lambda: ("compaction", "dirty-0") in done)
    assert done.index(("retention", "dirty-0")) < done.index(("compaction", "dirty-0"))


def test_the_last_log_that_closes_wakes_a_thread_that_has_been_told_to_end(in_memory, monkeypatch):
    """Whoever rings and tells it then finds that the thread has looked already, and sleeps for ever."""

    class SlowBell:
        """After it rang, whoever waited for it runs first."""

        def __init__(self):
            self._bell = Bell()
            self.wait = self._bell.wait

        def ring(self, _=None):
            self._bell.ring()
            time.sleep(0.05)

    monkeypatch.setattr(cleaner_thread, "Bell", SlowBell)
    with seglog.open_dir(in_memory / "logs", fsync="never") as log_dir:
        log = log_dir.log("orders", 0)
        closing = threading.Thread(target=log.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()


@contextmanager
def collector_that_calls(ends):
    """Let each run of Python's garbage collector make one of these calls, as the end of a dropped object does."""
    def call(phase, _):
        if phase == "start" and ends:
            ends.pop()()

    before = gc.get_threshold()
    pairs = [(n, n) for n in range(5000)]       # CPython has room for 2000 pairs that were dropped: so it uses none
    gc.callbacks.append(call)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(call)
        del pairs


def test_a_log_that_ends_while_the_thread_chooses_does_not_end_the_thread(tmp_path):
    with seglog.open_dir(tmp_path, config=COMPACT, fsync="never") as log_dir:
        logs = [log_dir.log("table", n) for n in range(20)]
        tasks = log_dir.cleaner._tasks
        kept = dict(tasks)
        ends = [partial(tasks.pop, id(log)) for log in logs]
        with collector_that_calls(ends):
            log_dir.cleaner._filthiest(time.monotonic())
        assert len(ends) < len(logs)
        tasks.update(kept)


def test_a_reader_that_ends_while_the_open_ones_are_told_is_no_error():
    class Reader:
        pass

    readers = [Reader() for _ in range(20)]
    open_readers = OpenReaders()
    for reader in readers:
        open_readers.opened(reader)
    ends = [partial(open_readers.closed, reader) for reader in readers]
    with collector_that_calls(ends):
        found = open_readers.now()
    assert len(ends) < len(readers)
    assert set(found) <= set(readers)
