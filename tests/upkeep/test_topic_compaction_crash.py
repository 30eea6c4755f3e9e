"""A topic that is compacted while the machine fails: the last value of each key is there whatever the disk may hold,
what was being made is gone after the next opening, and compaction goes on.

The topic is trimmed behind its compaction, so a key that a compacted ledger loses is lost.
"""
import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from seglog.errors import LogFailedError, SeglogError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR, DIRECTORY, LEDGER_PROPERTY
from seglog.pulsar import ManagedLedger
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.faultfs import FailingFs, RecordingFs
from support.keyed_topic import keyed, keyed_batch, read_all
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 520 if TORTURE else 26
PARTS = 10
KILLS = 100 if TORTURE else 5
CONFIG = {"managedLedgerMaxEntriesPerLedger": 3, "managedLedgerDefaultMarkDeleteRateLimit": 0,
          "seglog.compaction.key.map.bytes": 4096}


def messages_of(chance, number):
    """(key, value)s whose values say which entry they are of; None deletes."""
    return [
        (f"k{chance.randrange(8)}", None if chance.random() < 0.25 else b"%d/%d" % (number, n))
        for n in range(chance.randint(1, 4))
    ]


def applied(state, messages):
    state = dict(state)
    for key, value in messages:
        if value:
            state[key] = value
        else:
            state.pop(key, None)
    return state


def state_of(topic, service=None):
    """The last value of each key, as a reader finds them; a key at most once among what is compacted."""
    return applied({}, read_all(topic, service))


class Program:
    """`states[n]`: the last values once n entries were added."""

    def __init__(self, path, fs, on_promise):
        self.topic = ManagedLedger(path, config=CONFIG, fs=fs)
        self.service = PulsarTopicCompactionService(self.topic)
        self.topic.open_cursor(COMPACTION_CURSOR, "earliest")       # what is not compacted is not trimmed
        self.cursor = self.topic.open_cursor("sub", "earliest")
        self.states = [{}]
        self.promise = on_promise

    def run(self, seed, steps=14):
        chance = random.Random(seed)
        for _ in range(steps):
            what = chance.random()
            if what < 0.55:
                number = len(self.states)
                messages = messages_of(chance, number)
                entry = keyed(number, *messages[0]) if len(messages) == 1 else keyed_batch(number, messages)
                self.states.append(applied(self.states[-1], messages))
                self.topic.add_entry(entry)
            elif what < 0.8:
                self.service.compact()
            elif what < 0.9:
                self.cursor.clear_backlog()
            else:
                self.topic.roll()
            self.promise(len(self.states) - 1)
        self.topic.close()


def check_opened(path, possible):
    """Opened once more, it has one of the states, no orphan, and compacts."""
    with ManagedLedger(path, config=CONFIG) as topic:
        cursor = topic.cursors.get(COMPACTION_CURSOR)
        pointer = None if cursor is None else cursor.properties.get(LEDGER_PROPERTY)
        there = os.listdir(path / DIRECTORY) if (path / DIRECTORY).exists() else []
        assert there == ([] if pointer is None else [f"ledger-{pointer}"])
        service = PulsarTopicCompactionService(topic)
        found = state_of(topic, service)
        assert found in possible, (found, possible)
        service.compact()
        assert state_of(topic, service) == found
        assert len(read_all(topic, service)) == len(found)


@pytest.mark.parametrize("part", range(PARTS))
def test_crash_states_of_compactions(tmp_path, part):
    states, seed = 0, 1000 * part
    while states < STATES:
        disk = tmp_path / f"disk-{seed}"
        disk.mkdir()
        record = RecordingFs(disk)
        program = Program(disk / "t", record, record.mark)
        program.run(seed)
        for state in record.crash_states(limit=min(STATES - states, 130), seed=seed):
            states += 1
            count = state.marks[-1] if state.marks else 0
            with state.materialise() as root:
                if not (root / "t").exists():
                    assert not state.marks
                    continue
                try:
                    check_opened(root / "t", program.states[count : count + 2])
                except BaseException as error:
                    error.add_note(f"program {seed}\n{state.story()}")
                    raise
        shutil.rmtree(disk)
        seed += 1


def test_a_crash_in_the_swap_leaves_one_of_both(tmp_path):
    """Every state of one compaction over an older one: the old result or the new, and no entry of the topic is left
    that could make up for it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    topic = ManagedLedger(disk / "t", config=CONFIG, fs=record)
    service = PulsarTopicCompactionService(topic)
    cursor = topic.open_cursor("sub", "earliest")
    for n in range(6):
        topic.add_entry(keyed(n, f"k{n}", b"%d" % n))
    service.compact()
    topic.add_entries([keyed(6, "k0", None), keyed(7, "k1", b"7")])
    cursor.clear_backlog()
    topic.roll()
    record.mark("ready")
    service.compact()
    record.mark("done")
    topic.close()
    expected = applied({f"k{n}": b"%d" % n for n in range(6)}, [("k0", None), ("k1", b"7")])
    states = removed = 0
    for state in record.crash_states(limit=6000 if TORTURE else 300, seed=1):
        if "ready" in state.marks:
            with state.materialise() as root:
                names = os.listdir(root / "t" / DIRECTORY)
                removed += any(name.endswith((".new", ".deleted")) for name in names)
                check_opened(root / "t", [expected])
                states += 1
    assert states > 20
    assert removed > 5


def before_an_error(tmp_path, once):
    """A topic whose next compaction meets an error at change 0, 1, 2 ...; (its path, the topic, its file system)."""
    made = tmp_path / "made"
    with ManagedLedger(made, config=CONFIG, fsync="never") as topic:
        topic.open_cursor("sub", "earliest")
        topic.add_entries([keyed_batch(n, [("a", b"%d" % n), (f"k{n}", b"1")]) for n in range(5)])
        PulsarTopicCompactionService(topic).compact()
        topic.add_entries([keyed(9, "k1", None), keyed(10, "a", b"10")])
    for at in range(0, 200, 1 if TORTURE else 5):
        path = tmp_path / f"t{at}"
        shutil.copytree(made, path)
        fs = FailingFs(OsFileSystem(), fail_at=10**9, error=errno.EIO, once=once)
        topic = ManagedLedger(path, config=CONFIG, fs=fs)
        service = PulsarTopicCompactionService(topic)
        fs._fail_at = len(fs.calls) + at
        yield path, topic, service, fs
        if not fs.failed:
            return


@pytest.mark.parametrize("once", [True, False])
def test_an_error_at_any_change_leaves_the_topic_as_it_was_or_done(tmp_path, once):
    """And where it was only one error, the next compaction goes on, or says that the topic is read-only."""
    expected = {"a": b"10"} | {f"k{n}": b"1" for n in (0, 2, 3, 4)}
    failed = went_on = 0
    for path, topic, service, fs in before_an_error(tmp_path, once):
        try:
            service.compact()
        except SeglogError:
            failed += 1
        assert state_of(topic, service) == expected
        if once and fs.failed:
            try:
                service.compact()
                went_on += 1
            except LogFailedError:
                pass
            assert state_of(topic, service) == expected
        with contextlib.suppress(SeglogError):
            topic.close()
        check_opened(path, [expected])
    assert failed > (10 if TORTURE else 3)
    assert went_on > (5 if TORTURE else 1) or not once


def test_a_disk_that_is_full_while_the_new_ledger_is_written_is_named_so(tmp_path, monkeypatch):
    """Not as a ledger that is read-only until somebody opens it: what was being made is gone."""
    fs = FailingFs(OsFileSystem(), fail_at=10**9, error=errno.ENOSPC, once=True)
    with ManagedLedger(tmp_path / "t", config=CONFIG, fs=fs) as topic:
        topic.add_entries([keyed_batch(n, [("a", b"%d" % n), (f"k{n}", b"1")]) for n in range(2)])
        service, real = PulsarTopicCompactionService(topic), Ledger.add_many

        def add_many(ledger, entries, times):
            fs._fail_at = len(fs.calls)
            return real(ledger, entries, times)

        monkeypatch.setattr(Ledger, "add_many", add_many)
        with pytest.raises(StorageError, match="no space is left on the device") as caught:
            service.compact()
        assert not isinstance(caught.value, LogFailedError)
        assert not os.listdir(topic.path / DIRECTORY)
        monkeypatch.undo()
        service.compact()
        assert state_of(topic, service) == {"a": b"1", "k0": b"1", "k1": b"1"}


def test_a_topic_trimmed_behind_an_error_reads_the_same(tmp_path):
    """The cursor may have passed entries that only the new compacted ledger has."""
    expected = {"a": b"10"} | {f"k{n}": b"1" for n in (0, 2, 3, 4)}
    trimmed = 0
    for _, topic, service, fs in before_an_error(tmp_path, once=True):
        with contextlib.suppress(SeglogError):
            service.compact()
        if fs.failed:
            begin = topic.first_position
            with contextlib.suppress(LogFailedError):       # the topic is read-only, and keeps its entries
                topic.open_cursor("sub").clear_backlog()
                topic.roll()
                topic.trim()
            trimmed += topic.first_position != begin
            assert state_of(topic, service) == expected
        with contextlib.suppress(SeglogError):
            topic.close()
    assert trimmed > 1


CHILD = """
import random, sys
from seglog.pulsar import ManagedLedger
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.keyed_topic import keyed_batch
path, begin, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = {"managedLedgerMaxEntriesPerLedger": 5, "managedLedgerDefaultMarkDeleteRateLimit": 0}
topic = ManagedLedger(path, config=config)
service = PulsarTopicCompactionService(topic)
topic.open_cursor("__compaction", "earliest")
cursor = topic.open_cursor("sub", "earliest")
chance = random.Random(seed)
print("open", flush=True)
for number in range(begin, begin + 100_000):
    topic.add_entry(keyed_batch(number, [(f"k{(number * m) % 13}", b"%d" % number) for m in range(3)]))
    print("added", number, flush=True)
    if chance.random() < 0.3:
        cursor.clear_backlog()
    if chance.random() < 0.5:
        service.compact()
"""


def test_kills(tmp_path):
    """SIGKILL at any moment: what was printed was promised."""
    path, chooser, begin = tmp_path / "t", random.Random(1), 1
    environment = os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    state, interrupted = {}, 0

    def after(number):
        return applied(state, [(f"k{(number * m) % 13}", b"%d" % number) for m in range(3)])

    for kill in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(begin), str(kill)], stdout=subprocess.PIPE, text=True,
            env=environment,
        )
        assert line_of(child) == "open\n"
        time.sleep(chooser.random() * 0.2)
        # On a slow machine nobody came so far.
        told = [line_of(child) for _ in range(KILLS)] if kill == KILLS - 1 else []
        os.kill(child.pid, signal.SIGKILL)
        # (communicate() would pass over what came with these lines.)
        with child:
            told += child.stdout
        for line in told:
            if not line.endswith("\n"):         # killed while it printed, which may take several writes
                break
            state, begin = after(int(line.split()[1])), int(line.split()[1]) + 1
        names = os.listdir(path / DIRECTORY) if (path / DIRECTORY).exists() else []
        interrupted += any("." in name for name in names)
        check_opened(path, [state, after(begin)])
        with ManagedLedger(path) as topic:
            if state_of(topic) != state:        # the add that was not answered is there
                state, begin = after(begin), begin + 1
    assert begin > KILLS
    if TORTURE:
        assert interrupted > 5
