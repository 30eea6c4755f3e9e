"""A managed ledger after a crash: it opens without a hand, with every entry that was added, and at most redelivery.

A random program runs over a file system that remembers; each state that the disk may have had is opened again.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from seglog.pulsar import ManagedLedger
from support.faultfs import RecordingFs
from support.topic_program import CONFIG, Promise, TopicProgram, check_after, run
from support.topics import batch, message, numbers
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 500 if TORTURE else 25
PARTS = 10
KILLS = 100 if TORTURE else 5


@pytest.mark.parametrize("part", range(PARTS))
def test_crash_states_of_many_programs(tmp_path, part):
    states, seed = 0, 100 * part
    while states < STATES:
        disk = tmp_path / f"disk-{seed}"
        disk.mkdir()
        states += crash_states_of_a_program(disk, seed, min(STATES - states, 500))
        shutil.rmtree(disk)
        seed += 1


def crash_states_of_a_program(disk, seed, limit):
    """Opens each state of a random program; how many there were."""
    record, promises, added = RecordingFs(disk), [], {}

    def promise(program):
        promises.append(Promise.of(program))
        added.update(program.entries)
        record.mark(len(promises))

    run(TopicProgram(disk / "orders", record, promise), seed)
    states = 0
    for state in record.crash_states(limit=limit, seed=seed):
        states += 1
        with state.materialise() as root:
            if not (root / "orders").exists():
                assert not state.marks
                continue
            count = state.marks[-1] if state.marks else 0
            last = promises[count - 1] if count else Promise({}, {}, -1)
            following = promises[count] if count < len(promises) else last
            try:
                check_after(root / "orders", last, following, added)
            except BaseException as error:
                error.add_note(f"program {seed}\n{state.story()}")
                raise
    return states


def test_a_crash_while_it_is_recovered_is_recovered(tmp_path):
    """The states of a run, opened over a file system that remembers, and the states of that."""
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    topic = ManagedLedger(disk / "orders", config=CONFIG, fs=record)
    for n in range(6):
        topic.add_entry(message(n))
    topic.open_cursor("one", "earliest").mark_delete(topic.last_position)
    topic.add_entry(message(6))
    topic.close()
    for state in record.crash_states(limit=200 if TORTURE else 12, seed=3):
        with state.materialise() as root:
            again = RecordingFs(root)
            with ManagedLedger(root / "orders", config=CONFIG, fs=again) as topic:
                found = numbers(topic)
            for inner in again.crash_states(limit=20, seed=4):
                with inner.materialise() as inner_root, ManagedLedger(inner_root / "orders", config=CONFIG) as topic:
                    assert numbers(topic) == found, state.story() + inner.story()


CHILD = """
import sys
from seglog.pulsar import ManagedLedger
from support.topics import batch
path, begin = sys.argv[1], int(sys.argv[2])
config = {"managedLedgerMaxEntriesPerLedger": 50, "brokerEntryMetadataInterceptors": "index",
          "managedLedgerDefaultMarkDeleteRateLimit": 0, "defaultRetentionTimeInMinutes": -1}
topic = ManagedLedger(path, config=config)
cursor = topic.open_cursor("one", "earliest")
print("open", flush=True)
for n in range(begin, begin + 100_000):
    position = topic.add_entry(batch(n % 50, 2), 2)
    print("added", *position, n, flush=True)
    if n % 7 == 3:
        cursor.mark_delete(position)
        print("marked", *position, n, flush=True)
"""


def test_kills(tmp_path):
    """SIGKILL at any moment: what was printed was promised."""
    path = tmp_path / "orders"
    chooser = random.Random(1)
    environment = os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    added, marked = {}, (-1, -1)
    begin = 0
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(begin)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert line_of(child) == "open\n"
        time.sleep(chooser.random() * 0.15)
        os.kill(child.pid, signal.SIGKILL)
        for line in child.communicate()[0].splitlines():
            word, *rest = line.split(" ")
            if len(rest) != 3 or not rest[2]:
                continue
            ledger_id, entry_id, n = map(int, rest)
            if word == "added":
                added[ledger_id, entry_id] = n
            else:
                marked = (ledger_id, entry_id)
        with ManagedLedger(path, config={"defaultRetentionTimeInMinutes": -1}) as topic:
            found = {tuple(entry.position): entry for entry in topic}
            assert added.keys() <= found.keys()
            assert all(found[position].headers_and_payload == batch(n % 50, 2) for position, n in added.items())
            assert [entry.index for entry in topic] == [2 * n + 1 for n in range(len(found))]
            assert tuple(topic.cursors["one"].mark_delete_position) >= marked
        begin = len(found)
    shutil.rmtree(path)
