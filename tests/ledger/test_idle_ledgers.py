"""Idle ledgers give their descriptors back, by the rule of segment.growing_files: tests/segment/test_growing_files.py
has what logs and ledgers share."""
import errno
import os
import subprocess
import sys
import threading

import pytest

from seglog.errors import LogFailedError, StorageError
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger
from seglog.segment.growing_files import GROWING_FILES
from support.descriptors import descriptors_of, rest, rest_while_syncs_fail
from support.interrupts import interrupted_at_each_opcode
from support.topics import message, numbers

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a hundredth.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
TOPICS, DESCRIPTORS = (10_000, 1024) if FULL else (100, 64)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")

MANY = """
import os, resource, sys
path, topics, descriptors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
from seglog.pulsar import ManagedLedger
from support.topics import message, numbers
opened = [ManagedLedger(f"{path}/orders-{n}") for n in range(topics)]
for turn in range(3):
    for topic in opened:
        topic.add_entry(message(turn))
        if turn == 1:
            cursor = topic.open_cursor("mailer", "earliest")
            cursor.mark_delete(topic.first_position)
for topic in opened[::7]:
    assert numbers(topic) == [0, 1, 2]
print(len(os.listdir("/proc/self/fd")))
for topic in opened:
    topic.close()
for n in range(0, topics, 7):
    with ManagedLedger(f"{path}/orders-{n}") as topic:
        assert topic.lost is None and numbers(topic) == [0, 1, 2]
        assert topic.open_cursor("mailer").mark_delete_position == topic.first_position
"""


def test_more_managed_ledgers_than_descriptors_are_open_and_added_to(in_memory):
    done = subprocess.run(
        [sys.executable, "-c", MANY, in_memory, str(TOPICS), str(DESCRIPTORS)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < DESCRIPTORS


@pytest.fixture(params=["batch", "never"])
def topic(request, in_memory):
    with ManagedLedger(in_memory / "orders", fsync=request.param) as topic:
        for n in range(3):
            topic.add_entry(message(n))
        yield topic


def test_an_idle_managed_ledger_has_none(topic):
    held = descriptors_of(topic.path)
    assert held > 0
    rest()
    assert descriptors_of(topic.path) == 0
    assert numbers(topic) == [0, 1, 2]
    topic.add_entry(message(3))
    assert descriptors_of(topic.path) == held
    assert numbers(topic) == [0, 1, 2, 3]


DEEDS = {
    "add several": lambda topic: topic.add_entries([message(3), message(4)]),
    "roll": lambda topic: topic.roll(),
    "flush": lambda topic: topic.flush(),
    "trim": lambda topic: topic.trim(),
    "cursor": lambda topic: topic.open_cursor("mailer").mark_delete(topic.last_position),
    "house": lambda topic: topic._maintain(),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_every_change_goes_on_without_them(topic, deed):
    rest()
    DEEDS[deed](topic)
    rest()
    topic.add_entry(message(9))
    found = numbers(topic)
    rest()
    topic.close()
    with ManagedLedger(topic.path) as again:
        assert again.lost is None
        assert numbers(again) == found
    assert found[-1] == 9


def test_entries_that_wait_for_a_sync_are_written_by_who_gives_the_files_back(in_memory):
    """Between `put` and the sync, nobody has the files."""
    with Ledger.create(in_memory / "ledger-7", 7) as ledger:
        first, number = ledger.writer.put([b"waits"], [1])
        assert ledger.entry_count == 0
        rest()      # it was added to since the hand last passed, but it may be its turn all the same
        assert ledger.entry_count == 1
        ledger.writer.await_put(number)
        assert ledger.read(first) == b"waits"
        assert ledger.add(b"next") == 1


def test_a_sync_that_fails_then_leaves_it_read_only_and_its_next_caller_hears(in_memory, monkeypatch):
    topic = ManagedLedger(in_memory / "orders", fsync="never")
    topic.add_entry(message(0))
    rest_while_syncs_fail(monkeypatch)
    assert descriptors_of(topic.path) > 0
    with pytest.raises(LogFailedError, match="input/output error"):
        topic.add_entry(message(1))
    topic.close()
    with ManagedLedger(in_memory / "orders") as again:
        assert numbers(again) == [0]


def test_closing_one_whose_sync_failed_then_tells(in_memory, monkeypatch):
    topic = ManagedLedger(in_memory / "orders", fsync="never")
    topic.add_entry(message(0))
    rest_while_syncs_fail(monkeypatch)
    with pytest.raises(LogFailedError, match="input/output error"):
        topic.close()


def test_without_descriptors_an_add_is_refused_and_the_managed_ledger_goes_on(topic, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    rest()
    monkeypatch.setattr(os, "open", refuse)
    for _ in range(2):
        with pytest.raises(StorageError, match="too many open files"):
            topic.add_entry(message(3))
    monkeypatch.undo()
    topic.add_entry(message(3))
    assert numbers(topic) == [0, 1, 2, 3]


def test_another_file_in_its_place_is_not_added_to(topic):
    rest()
    [path] = topic.path.glob("ledger-*/*.log")
    whole = path.read_bytes()
    path.write_bytes(whole + b"x")
    for _ in range(2):
        with pytest.raises(StorageError, match="was replaced or changed"):
            topic.add_entry(message(3))
    path.write_bytes(whole)
    topic.add_entry(message(3))
    assert numbers(topic) == [0, 1, 2, 3]


def test_an_interrupt_at_any_instruction_of_an_add_by_one_that_rests_leaves_it_usable(in_memory):
    tried, added = [], []
    with ManagedLedger(in_memory / "orders") as topic:
        topic.add_entry(message(0))

        def add(_):
            tried.append(len(tried) + 1)
            topic.add_entry(message(tried[-1]))
            added.append(tried[-1])

        def check(_, where):
            assert GROWING_FILES._slots or not descriptors_of(topic.path), where
            add(None)

        interrupted_at_each_opcode(rest, add, check, step=1 if FULL else 17)
    with ManagedLedger(in_memory / "orders") as topic:
        found = numbers(topic)
    assert set(added) <= set(found)
    assert found == sorted(set(found))


def test_threads_add_while_all_that_rest_have_to_give_theirs_back(in_memory):
    topics = [ManagedLedger(in_memory / f"orders-{n}") for n in range(4)]
    done = threading.Event()
    errors = []

    def work(topic):
        try:
            for n in range(100):
                topic.add_entry(message(n))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threads = [threading.Thread(target=work, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rest()
    for thread in threads:
        thread.join()
    assert errors == []
    for topic in topics:
        assert numbers(topic) == list(range(100))
        topic.close()
