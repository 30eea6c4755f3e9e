"""^C anywhere in a call of a ledger or managed ledger: it is usable or closed then, and what was added is there."""
import ctypes
import os
import random
import shutil
import threading
import time
from collections import deque

import pytest

from seglog.ledger.entry_writer import EntryWriter
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger
from support.faultfs import RecordingFs
from support.interrupts import interrupted_at_each_opcode
from support.topics import message, numbers
from support.waiting import wait_for

MODES = ["batch", "never"]
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
CONFIG = {"brokerEntryMetadataInterceptors": ["timestamp", "index"], "managedLedgerMaxEntriesPerLedger": 40,
          "managedLedgerMinLedgerRolloverTimeMinutes": 0}


@pytest.mark.parametrize("fsync", MODES)
def test_an_interrupt_at_any_instruction_of_an_add_leaves_the_ledger_usable(in_memory, fsync):
    tried, acknowledged = [], {}
    with Ledger.create(in_memory / "ledger-7", 7, fsync=fsync) as ledger:
        def add(_):
            tried.append(b"%d" % len(tried))
            acknowledged[ledger.add(tried[-1])] = tried[-1]

        def check(_, where):
            assert ledger.writer.failure is None, where
            add(None)

        interrupted_at_each_opcode(lambda: None, add, check, step=1 if TORTURE else 2)
    with Ledger.open(in_memory / "ledger-7") as ledger:
        found = dict(enumerate(ledger.read_first(ledger.entry_count)))
    assert acknowledged.items() <= found.items()
    assert [value for value in tried if value in found.values()] == list(found.values())


@pytest.mark.parametrize("fsync", MODES)
def test_an_interrupt_at_any_instruction_of_an_add_leaves_the_managed_ledger_usable(in_memory, fsync):
    tried, acknowledged = [], {}
    with ManagedLedger(in_memory / "orders", config=CONFIG, fsync=fsync) as topic:
        def add(_):
            tried.append(message(len(tried)))
            acknowledged[topic.add_entry(tried[-1])] = len(tried) - 1

        def check(_, where):
            add(None)

        interrupted_at_each_opcode(lambda: None, add, check, step=1 if TORTURE else 11)
    with ManagedLedger(in_memory / "orders") as topic:
        entries = list(topic)
        found = dict(zip([entry.position for entry in entries], numbers(entries), strict=True))
        assert acknowledged.items() <= found.items()
        assert list(found.values()) == sorted(set(found.values()))
        assert [entry.index for entry in entries] == list(range(len(entries)))     # none twice, none left out


@pytest.mark.parametrize("action", [ManagedLedger.roll, ManagedLedger.flush, ManagedLedger.trim, ManagedLedger.close])
def test_an_interrupt_in_any_other_call_leaves_it_usable_or_closed(in_memory, action):
    number = 0

    def prepare():
        nonlocal number
        number += 1
        topic = ManagedLedger(in_memory / f"{number}", config=CONFIG)
        topic.add_entry(message(0))
        return topic

    def check(topic, where):
        added = 1
        if not topic.closed:
            topic.add_entry(message(1))
            added = 2
        topic.close()
        with ManagedLedger(topic.path) as again:
            assert numbers(again) == list(range(added)), where

    interrupted_at_each_opcode(prepare, action, check, step=1 if TORTURE else 7)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_an_opening_leaves_nothing_held(in_memory):
    left = ManagedLedger(in_memory / "orders", config=CONFIG)
    left.add_entry(message(0))
    left._let_go()      # as a process that died: to be recovered

    def prepare():
        shutil.rmtree(in_memory / "copy", ignore_errors=True)
        shutil.copytree(in_memory / "orders", in_memory / "copy")
        return []

    def check(opened, where):
        for topic in opened:
            topic.close()
        try:
            with ManagedLedger(in_memory / "copy") as again:
                assert numbers(again) == [0], where
        except BaseException as error:
            error.add_note(where)
            raise

    interrupted_at_each_opcode(
        prepare, lambda opened: opened.append(ManagedLedger(in_memory / "copy", fsync="interval")), check,
        step=1 if TORTURE else 293,
    )


class Sent(Exception):
    pass


@pytest.mark.usefixtures("no_collector_hooks")
@pytest.mark.parametrize("fsync", MODES)
def test_exceptions_sent_to_threads_that_add_keep_nobody_waiting(in_memory, fsync, monkeypatch):
    topic = ManagedLedger(in_memory / "orders", config=CONFIG, fsync=fsync)
    acknowledged, done = [{} for _ in range(4)], threading.Event()
    begun, died_of = [], []     # one that comes between two `try` ends the thread, which is no fault
    monkeypatch.setattr(threading, "excepthook", lambda args: died_of.append(args.exc_type))

    def work(number):
        n = number
        while not done.is_set():
            try:
                while not done.is_set():
                    n += 4
                    position = topic.add_entry(message(n))
                    acknowledged[number][position] = n
            except Sent:
                pass

    def run(number):
        begun.append(number)
        while not done.is_set():
            try:  # noqa: SIM105 -- with fewer lines in which it could come
                work(number)
            except Sent:
                pass

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(begun) == 4)       # before, it would come into the code that starts a thread
    chance = random.Random(7)
    for _ in range(1000 if TORTURE else 60):
        time.sleep(chance.random() * (0.004 if TORTURE else 0.001))
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(chance.choice(threads).ident), ctypes.py_object(Sent)
        )
    done.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(died_of) <= {Sent}
    topic.add_entry(message(0))
    topic.close()
    with ManagedLedger(in_memory / "orders") as topic:
        entries = list(topic)
        found = dict(zip([entry.position for entry in entries], numbers(entries), strict=True))
        for mine in acknowledged:
            assert mine.items() <= found.items()
        assert [entry.index for entry in entries] == list(range(len(entries)))


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_what_was_written_before_an_interrupt_is_synced_when_the_ledger_is_sealed(tmp_path, fsync):
    record = RecordingFs(tmp_path)

    def interrupt(name):
        if name.endswith(".index"):     # behind the entry that it is for
            record.before_write = lambda name: None
            raise KeyboardInterrupt

    record.before_write = interrupt
    with Ledger.create(record.root / "ledger-7", 7, fs=record, fsync=fsync) as ledger:
        with pytest.raises(KeyboardInterrupt):
            deque(map(ledger.add, [b"x" * 5000] * 100))
        ledger.seal()
        sealed, count = record.steps, ledger.entry_count
    assert count > 1
    for state in record.crash_states(limit=50, after=sealed):
        with state.materialise() as disk, Ledger.open(disk / "ledger-7") as ledger:
            assert ledger.read_first(count) == [b"x" * 5000] * count, state.story()


@pytest.mark.parametrize("moment", ["before the write", "after it"])
def test_a_sync_that_waits_for_an_interrupted_add_writes_what_that_one_left(in_memory, moment):
    """The gate looks whether the ledger is torn before the sync; the add that tears it may come between."""
    with Ledger.create(in_memory / "ledger-7", 7, fsync="never") as ledger:
        ledger.add(b"first")
        writer = ledger.writer
        syncs = threading.Event()

        def sync():
            syncs.set()
            return EntryWriter.sync(writer)

        def write(raw, *more):
            if moment == "after it":
                writer.active.append_batch(raw, *more)
            raise KeyboardInterrupt

        def add():
            thread.start()
            syncs.wait(60)
            append_quietly, writer.active.append_quietly = writer.active.append_quietly, write
            try:
                writer._put([b"second"], [0])
            finally:
                writer.active.append_quietly = append_quietly

        writer.sync = sync
        number, flushed = writer.number, []
        thread = threading.Thread(target=lambda: flushed.append(writer.wait(number)))
        with pytest.raises(KeyboardInterrupt):
            writer.with_lock(add)
        thread.join()
        assert flushed == [None]
        ledger.add(b"third")
        found = [bytes(entry) for _, entry in ledger.read_range(0, ledger.last_entry_id)]
    assert found == [b"first", b"second", b"third"]
