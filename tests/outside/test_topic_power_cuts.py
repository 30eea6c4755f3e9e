"""Power cuts and failing calls under managed ledgers, cursors and delayed messages; see test_log_power_cuts.py."""
import os
import random

import pytest

from seglog.pulsar import ManagedLedger
from support.command import seglog_json
from support.outside.disk import Disk, write_tree
from support.outside.logs import MODES, TOPIC_KINDS, failing_calls, record_topic
from support.outside.recording import Fault, Recording

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = (4, 5, 6, 7, 8, 9) if FULL else (4,)
STATES = 120 if FULL else 6
FAILING_STATES = 25 if FULL else 6      # of a recording with a failing call, of which there are many
EACH = 2 if FULL else 1         # faults of a kind and call
# One kind a mode in `make test`, and one fault of it.
PAIRS = [(kind, fsync) for kind in TOPIC_KINDS for fsync in MODES] if FULL else list(
    zip(TOPIC_KINDS, MODES, strict=True)
)


@pytest.mark.parametrize("fsync", MODES)
def test_what_was_promised_outlives_a_power_cut(record, power_cuts, holds, fsync):
    # One kind a mode in `make test`: the one whose calls are made to fail below, too.
    kinds = TOPIC_KINDS if FULL else [TOPIC_KINDS[MODES.index(fsync)]]
    cases = [record(record_topic, kind, seed, fsync) for kind in kinds for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)], again=3 if FULL else 1)
    holds(STATES * len(cases) // 2)


@pytest.mark.parametrize("fsync", MODES if FULL else ["batch", "interval"])
def test_threads_that_share_a_sync_outlive_a_power_cut(record, power_cuts, holds, fsync):
    cases = [record(record_topic, "cursors", seed, fsync, threads=4, steps=100 if FULL else 60) for seed in SEEDS]
    states = STATES * 2 if FULL else STATES
    power_cuts.judge_all([(case, states, number) for number, case in enumerate(cases)])
    holds(states * len(cases) // 2)


@pytest.mark.parametrize(("kind", "fsync"), [
    (kind, fsync) for kind, fsync in PAIRS if FULL or kind != "entries"
])
def test_killed_then_recovered_then_the_power_is_cut(record, power_cuts, holds, kind, fsync):
    cases = [
        record(record_topic, kind, seed, fsync, lives=2, faults=[Fault("any", 60 + seed * 31, "kill")])
        for seed in SEEDS
    ]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)


def test_a_trim_beside_unsynced_entries_leaves_no_gap_in_message_indexes(record, power_cuts, holds):
    """The manifest that a trim wrote named the index of entries that no sync had covered."""
    power_cuts.judge(record(record_topic, "cursors", 3, "never", steps=80), 60 if FULL else 22, 3)
    holds(40 if FULL else 15)


@pytest.mark.parametrize("fsync", MODES)
def test_relocated_messages_outlive_a_power_cut(record, power_cuts, holds, fsync):
    """One kind of tracker a seed."""
    seeds = SEEDS if FULL else (6 + MODES.index(fsync),)
    cases = [record(record_topic, "relocated", seed, fsync, steps=90) for seed in seeds]
    for seed in seeds if FULL else ():
        fault = Fault("any", 250 + seed * 60, "kill")
        cases.append(record(record_topic, "relocated", seed, fsync, steps=90, lives=2, faults=[fault]))
    power_cuts.judge_all([(case, STATES * (2 if FULL else 1), number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)
    assert any("relocated/one" in str(event.path) or "relocated/__" in str(event.path) for event in cases[0].events)


@pytest.mark.parametrize(("kind", "fsync"), PAIRS)
def test_a_call_that_fails_costs_nothing_that_was_promised(record, power_cuts, holds, kind, fsync):
    chance = random.Random(f"{kind} {fsync}")
    faults = list(failing_calls(record(record_topic, kind, 4, fsync), chance, EACH))
    faults = [fault for fault in faults if fault.call != "sync" or fault.span == "on"]
    wanted = []
    for number, fault in enumerate(faults if FULL else chance.sample(faults, 1)):
        wanted.append((record(record_topic, kind, 4, fsync, faults=[fault]), FAILING_STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * FAILING_STATES // 4)        # a call that fails late leaves few different ones


@pytest.mark.parametrize("fsync", MODES)
def test_a_sync_that_failed_once_is_not_made_good_by_the_next(record, power_cuts, holds, fsync):
    """Its pages are lost though a later sync of the file succeeds (fsyncgate); the topic is opened again between."""
    wanted = []
    for kind in TOPIC_KINDS if FULL else [("entries", "delayed", "entries")[MODES.index(fsync)]]:
        syncs = [event.path for event in record(record_topic, kind, 4, fsync).events if event.op == "E"]
        of_ledgers = [number for number, path in enumerate(syncs, 1) if path.endswith(".log")]
        chance = random.Random(f"{kind} {fsync}")
        for number in range(12) if FULL else [MODES.index(fsync)]:
            nth = chance.choice(of_ledgers) if number % 2 == 0 else chance.randint(1, len(syncs))
            wanted.append((record(record_topic, kind, 4, fsync, faults=[Fault("sync", nth)]), FAILING_STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * FAILING_STATES // 2)


def states_behind(script, fault, says, directory, recorder, count):
    """Topics that a power cut may leave behind `script`, which gets a path and meets the fault."""
    recording = Recording.begin(directory / "recording", recorder)
    assert recording.run_script(script, recording.disk / "topic", faults=[fault]).stdout == says
    disk = Disk(recording.start, recording.inodes)
    for event in recording.events:
        disk.replay(event)
    for seed in range(count):
        write_tree(disk.state(seed), directory / f"{seed}")
        yield directory / f"{seed}" / "topic"


SEALS_TWICE = """
import sys
from seglog.pulsar import ManagedLedger
from seglog.errors import LogFailedError
from support.outside.topic_worker import entry_of
topic = ManagedLedger(sys.argv[1], fsync="never")
topic.add_entry(entry_of(1, 0))
try:
    topic.roll()
except LogFailedError:
    topic.close()
    ManagedLedger(sys.argv[1]).close()
    print("opened again")
"""


def test_a_seal_whose_last_sync_failed_is_made_durable_by_the_next_opening(in_memory, recorder):
    """The manifest named the ledger as sealed, and a power cut brought back a ledger.json that did not."""
    fault = Fault("sync", 3, pattern="topic/ledger-0")
    for topic in states_behind(SEALS_TWICE, fault, "opened again\n", in_memory, recorder, 12):
        report = seglog_json("ledger", "verify", topic, status=None)
        assert [line for line in report if line["type"] == "finding"] == []


ACKNOWLEDGES_TWICE = """
import sys
from seglog.pulsar import ManagedLedger
from seglog.errors import LogFailedError
from support.outside.topic_worker import CONFIG, entry_of
topic = ManagedLedger(sys.argv[1], config=CONFIG)
position = topic.add_entry(entry_of(1, 0))
topic.roll()
cursor = topic.open_cursor("one", "earliest")
try:
    cursor.acknowledge(position)
except LogFailedError:
    topic.close()
    with ManagedLedger(sys.argv[1], config=CONFIG) as topic:
        print("acknowledged:", topic.cursors["one"].is_acknowledged(position))
"""


def test_an_acknowledgement_whose_sync_failed_is_durable_when_the_next_opening_tells_of_it(in_memory, recorder):
    fault = Fault("sync", 2, pattern="topic/cursors")
    for path in states_behind(ACKNOWLEDGES_TWICE, fault, "acknowledged: True\n", in_memory, recorder, 8):
        with ManagedLedger(path) as topic:
            assert topic.cursors["one"].backlog == 0
