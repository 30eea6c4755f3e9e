"""^C and the like, anywhere in a call: the log is usable or closed after it, never stuck, never read-only.

What was acknowledged is there. An append that was interrupted is in the log as a whole or not at all.
"""
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import seglog
from seglog.errors import LogClosedError
from seglog.segment.appender import SegmentAppender
from seglog.upkeep.cleaner import clean
from support.interrupts import Interrupted, Interrupter, interrupted_at_each_opcode, uninterrupted
from support.waiting import line_of, wait_for

MODES = ["batch", "interval", "never"]
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
SMALL = {"segment.bytes": 2000, "segment.index.bytes": 4096}


class Witness:
    """What was acknowledged, and what may be there besides."""

    def __init__(self, log):
        self.log = log
        self.acknowledged = []
        self.tried = set()
        self._count = 0

    def value(self):
        self._count += 1
        value = b"%d" % self._count
        self.tried.add(value)
        return value

    def append(self):
        value = self.value()
        offset = self.log.append(value)
        self.acknowledged.append((offset, value))

    def check(self, where):
        """The log goes on, at once."""
        assert self.log.stats().failure is None, where
        self.append()

    def check_all(self, found, start=0):
        """`found`: what a reader gets."""
        assert [offset for offset, _ in found] == list(range(start, start + len(found)))
        assert {pair for pair in self.acknowledged if pair[0] >= start} <= set(found)
        assert {value for _, value in found} <= self.tried


def records(log):
    return [(record.offset, bytes(record.value)) for record in log.read()]


def appends(log, witness):
    witness.append()


def appends_many(log, witness):
    log.append_many([(None, witness.value()), (None, witness.value())])


def ready(value):
    """A batch from elsewhere; what makes it is not interrupted."""
    with uninterrupted():
        return seglog.build_batch([(None, value)], codec="gzip")


def appends_a_compressed_batch(log, witness):
    log.append_batch(ready(witness.value()))


def appends_with_a_time_of_its_own(log, witness):
    log.append(witness.value(), timestamp="-1h")


def appends_and_rolls(log, witness):
    log.append(witness.value())
    log.roll()


def flushes(log, witness):
    log.append_many([(None, witness.value())])
    log.flush()


ACTIONS = [
    appends, appends_many, appends_a_compressed_batch, appends_with_a_time_of_its_own, appends_and_rolls, flushes,
]


@pytest.mark.parametrize("fsync", MODES)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_interrupt_at_any_instruction_leaves_the_log_usable(in_memory, fsync, action):
    with seglog.open(in_memory / "orders-0", fsync=fsync, config={"segment.bytes": 1 << 20}) as log:
        witness = Witness(log)
        witness.append()
        # In `make test` the three modes look at every fourth one together.
        first, step = (0, 1) if TORTURE else (4 * MODES.index(fsync), 12)
        points = interrupted_at_each_opcode(
            lambda: witness, lambda _: action(log, witness), Witness.check, first=first, step=step
        )
        assert points > 30
        witness.check_all(records(log))
    with seglog.open(in_memory / "orders-0") as log:
        assert log.recovery.lost == ()
        witness.check_all(records(log))


@pytest.mark.parametrize("fsync", MODES)
def test_an_interrupt_in_the_first_append_leaves_the_log_usable(in_memory, fsync):
    number = 0

    def prepare():
        nonlocal number
        number += 1
        return Witness(seglog.open(in_memory / f"orders-{number}", fsync=fsync))

    def check(witness, where):
        witness.check(where)
        witness.check_all(records(witness.log))
        witness.log.close()

    interrupted_at_each_opcode(prepare, Witness.append, check, step=1 if TORTURE else 47)


@pytest.mark.parametrize("fsync", MODES)
def test_an_interrupt_in_a_cut_leaves_the_log_usable(in_memory, fsync):
    with seglog.open(in_memory / "orders-0", fsync=fsync, config=SMALL) as log:
        def prepare():
            log.append_many([(None, b"%d" % n) for n in range(20)])
            return log

        def cut(log):
            log.truncate_to(log.log_end_offset - 5)
            log.delete_records(log.log_end_offset - 3)

        def check(log, where):
            assert log.stats().failure is None, where
            log.append(b"after")
            assert [r.offset for r in log.read()] == list(range(log.log_start_offset, log.log_end_offset))

        interrupted_at_each_opcode(prepare, cut, check, step=1 if TORTURE else 7)


@pytest.mark.parametrize("fsync", MODES)
def test_an_interrupt_in_close_leaves_the_log_usable_or_closed(in_memory, fsync):
    number = 0

    def prepare():
        nonlocal number
        number += 1
        witness = Witness(seglog.open(in_memory / f"orders-{number}", fsync=fsync))
        witness.append()
        return witness

    def check(witness, where):
        if not witness.log.closed:
            witness.check(where)
        witness.log.close()
        assert witness.log.closed, where
        with pytest.raises(LogClosedError):
            witness.log.append(b"")
        with seglog.open(witness.log.path) as log:      # its locks are free
            witness.check_all(records(log))

    # In `make test` each mode looks at a sixth of the moments, and together they look at half of them.
    first, step = (0, 1) if TORTURE else (2 * MODES.index(fsync), 2 * len(MODES))
    interrupted_at_each_opcode(prepare, lambda witness: witness.log.close(), check, first=first, step=step)


def test_an_interrupt_while_records_linger_loses_none_whose_offset_was_given(in_memory):
    config = {"linger.ms": 60_000, "seglog.linger.bytes": 60}
    with seglog.open(in_memory / "orders-0", fsync="never", config=config) as log:
        witness = Witness(log)

        def several(_):
            for _ in range(4):
                witness.append()

        interrupted_at_each_opcode(lambda: witness, several, Witness.check, step=1 if TORTURE else 5)
        log.flush()
        witness.check_all(records(log))


def test_an_interrupt_beside_an_appender_that_shares_its_syncs_keeps_neither_waiting(in_memory):
    with seglog.open(in_memory / "orders-0") as log:
        done = threading.Event()
        others = []

        def append_on():
            while not done.is_set():
                others.append(log.append(b"other"))

        other = threading.Thread(target=append_on)
        other.start()
        try:
            for at in range(0, 150, 1 if TORTURE else 4):
                interrupter = Interrupter(at)
                interrupter.run(lambda: log.append(b"mine"))
                seen = len(others)
                deadline = time.monotonic() + 20
                while len(others) <= seen + 1:
                    assert time.monotonic() < deadline, interrupter.where
                    time.sleep(0)
        finally:
            done.set()
            other.join(20)
        assert not other.is_alive()
        assert log.stats().failure is None


def test_an_interrupt_in_a_write_does_not_fail_the_sync_of_an_append_before_it(in_memory, monkeypatch):
    """Between the interrupt and the end of its call somebody else syncs: the log became read-only by that alone."""
    syncs, interrupted, synced = threading.Event(), threading.Event(), threading.Event()
    real_sync, real_fail = SegmentAppender.sync, SegmentAppender._fail

    def sync(appender):
        syncs.set()
        assert interrupted.wait(20)
        try:
            real_sync(appender)
        finally:
            synced.set()

    def write_entries(appender):
        raise KeyboardInterrupt

    def fail(appender, error):
        real_fail(appender, error)
        interrupted.set()
        assert synced.wait(20)

    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"first")
        monkeypatch.setattr(SegmentAppender, "sync", sync)
        monkeypatch.setattr(SegmentAppender, "_fail", fail)
        offsets = []
        other = threading.Thread(target=lambda: offsets.append(log.append(b"second")))
        other.start()
        assert syncs.wait(20)
        with monkeypatch.context() as patch:
            patch.setattr(SegmentAppender, "_write_entries", write_entries)
            with pytest.raises(KeyboardInterrupt):
                log.flush()
        other.join(20)
        assert not other.is_alive()
        assert (offsets, log.stats().failure) == ([1], None)
        log.append(b"after")
        assert [bytes(record.value) for record in log.read()][:2] == [b"first", b"second"]


# --- as the interpreter delivers them --------------------------------------------------------------


def send(thread, kind=Interrupted):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


@pytest.mark.usefixtures("no_collector_hooks")
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(("fsync", "linger_ms"), [*((mode, 0) for mode in MODES), ("interval", 1), ("never", 1)])
def test_exceptions_sent_to_threads_that_append_keep_nobody_waiting(in_memory, monkeypatch, fsync, count, linger_ms):
    class Sent(Exception):      # no error of ours, but no BaseException either
        pass

    config = {"linger.ms": linger_ms, "segment.bytes": 20_000}
    log = seglog.open(in_memory / "orders-0", fsync=fsync, config=config)
    acknowledged = [[] for _ in range(count)]
    done = threading.Event()
    begun, died_of = [], []     # one that comes between two `try` ends the thread, which is no fault
    monkeypatch.setattr(threading, "excepthook", lambda args: died_of.append(args.exc_type))

    def work(number):
        mine, n = acknowledged[number], 0
        while not done.is_set():
            try:
                while not done.is_set():
                    n += 1
                    value = b"%d %d" % (number, n)
                    offset = log.append(value)
                    mine.append((offset, value))
                    if n % 50 == 0:
                        log.roll()
            except Sent:
                pass

    def run(number):
        begun.append(number)
        while not done.is_set():
            try:  # noqa: SIM105 -- with fewer lines in which it could come
                work(number)
            except Sent:
                pass

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(begun) == count)       # before, it would come into the code that starts a thread
    chance = random.Random(count)
    for _ in range(2000 if TORTURE else 60):
        time.sleep(chance.random() * (0.004 if TORTURE else 0.001))
        send(chance.choice(threads), Sent)
    done.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(died_of) <= {Sent}
    assert log.stats().failure is None
    log.append(b"after")
    log.flush()
    found = dict(records(log))
    assert sorted(found) == list(range(len(found)))
    for mine in acknowledged:
        assert all(found.get(offset) == value for offset, value in mine)
    log.close()


APPENDER = """
import sys, seglog
for fsync in sys.argv[2:]:
    log = seglog.open(sys.argv[1] + fsync + "-0", fsync=fsync)
    interrupts, told = 0, -1
    while told < 9:
        try:    # the next one comes when this one is told, and may come before print returns
            if told < interrupts:
                told = interrupts
                print(told, flush=True)
            while True:     # (no condition: support.interrupts.with_loses_exits)
                if told == 9:
                    break
                log.append(b"x" * 100)
        except KeyboardInterrupt:
            interrupts += 1
    while not log.closed:
        try:
            end = log.append(b"last")
            log.close()
        except KeyboardInterrupt:
            pass
    print("closed", end, flush=True)
"""


def test_control_c_in_a_loop_of_appends_leaves_a_log_that_closes(tmp_path):
    """In each mode, one after the other in one process."""
    command = [sys.executable, "-c", APPENDER, tmp_path / "orders-", *MODES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ends = {}
    try:
        for fsync in MODES:
            assert line_of(process) == "0\n", fsync
            for n in range(1, 10):
                time.sleep(0.003 * n)
                process.send_signal(signal.SIGINT)
                assert line_of(process) == f"{n}\n", fsync
            said, end = line_of(process).split()
            assert said == "closed", fsync
            ends[fsync] = int(end)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for fsync in MODES:
        with seglog.open(tmp_path / f"orders-{fsync}-0", create=False) as log:
            assert log.log_end_offset == ends[fsync] + 1, fsync
            assert log.recovery.lost == (), fsync


def test_what_an_interrupted_append_left_is_mended_beside_a_cleaner_at_work(in_memory):
    """The .cleaned files are not leftovers then."""
    compacted = SMALL | {"cleanup.policy": "compact"}
    with seglog.open(in_memory / "orders-0", config=compacted, fsync="never") as log:
        for n in range(300):
            log.append(b"%d" % n, key=b"%d" % (n % 7))
        seen = []

        def is_interrupted(_):
            seen.extend(path.name for path in log.path.glob("*.cleaned"))
            log._tail.is_torn = True
            log.append(b"beside", key=b"beside")

        assert clean(log, throttle=is_interrupted).outcome == "changed"     # its segments were loaded again
        assert seen
        assert clean(log).outcome == "cleaned"
        assert log.stats().failure is None
        log.append(b"after", key=b"after")
        assert {record.key for record in log.read()} == {b"%d" % key for key in range(7)} | {b"beside", b"after"}
    assert not list(log.path.glob("*.cleaned"))
    assert seglog.verify(log.path, config=compacted).ok
