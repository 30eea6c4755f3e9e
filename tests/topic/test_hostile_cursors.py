"""Cursor files with a good checksum that say what no cursor can: named as damage, or taken for what it is worth."""
import base64
import os
import subprocess
import sys

import pytest
from pyroaring import BitMap

from seglog import Queue
from seglog.clock import ManualClock
from seglog.delayed.amendments import CANCELLED, MOVED
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.worker import InlineWorker
from seglog.errors import CorruptDelayedIndexError, CorruptManifestError
from seglog.format.checked_json import format_json
from seglog.ledger.managed.cursor_file import FORMAT, WITHOUT_JOURNAL, cursor_path
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import delayed, message, numbers

NOW = 1_700_000_000_000
SMALL = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 4,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 3,
}
LEDGERS = {"managedLedgerMaxEntriesPerLedger": 4}


def rewrite(path, **changes):
    """The file of cursor "one" again, with its checksum."""
    body = {"name": "one", "mark_delete": [-1, -1], "acknowledged": [], "batches": [], "aside": [], "properties": {}}
    cursor_path(path, "one").write_bytes(format_json(FORMAT, WITHOUT_JOURNAL, **body | changes))


def all_ids(end=2**32):
    ids = BitMap()
    ids.add_range(0, end)
    ids.run_optimize()
    return base64.b64encode(ids.serialize()).decode()


@pytest.fixture
def topic(tmp_path):
    """Ten delayed messages in three ledgers, those of the first two in a bucket; a cursor that has read none."""
    path = tmp_path / "orders"
    with ManagedLedger(path, config=LEDGERS, clock=ManualClock(NOW)) as log:
        with DelayedDelivery(log, SMALL, clock=ManualClock(NOW), new_worker=InlineWorker) as trackers:
            log.add_entries(delayed(n, NOW + 1000 + n) for n in range(10))
            trackers.dispatcher(log.open_cursor("one", "earliest")).read(100)
        buckets = {k: v for k, v in log.cursors["one"].properties.items() if k.startswith(BUCKET_PROPERTY)}
    assert buckets
    return path, buckets


def consumed(path, kind=None, at=NOW + 10_000):
    clock = ManualClock(at)
    with ManagedLedger(path, config=LEDGERS, clock=clock) as log:
        config = SMALL | (kind or {})
        with DelayedDelivery(log, config, clock=clock, new_worker=InlineWorker) as trackers:
            return numbers(trackers.dispatcher(log.open_cursor("one", "earliest")).read(100))


LIMITED = """
import pathlib, resource, sys
sys.path[:0] = sys.argv[1:3]
import topic.test_hostile_cursors as test
path = pathlib.Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
"""
HUGE = """
print(test.consumed(path, eval(sys.argv[4]), test.NOW))
print(test.consumed(path, eval(sys.argv[4])))
"""
ACKNOWLEDGED = """
with test.ManagedLedger(path, config=test.LEDGERS) as log:
    print(tuple(log.cursors["one"].mark_delete_position), log.cursors["one"].backlog)
"""


def run_within_3_gib(script, path, *arguments):
    """The lines that a script prints which has so much address space."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    engine = os.path.join(tests, os.pardir, "engine")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED + script, tests, engine, str(path), *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", [{}, {"enableBucketDelayedDeliveryTracker": False}], ids=["bucket", "memory"])
def test_a_bitmap_of_all_ids_costs_no_more_than_the_entries_that_there_are(topic, kind):
    """1.2 MB of file, and four billion positions, of which ten are messages."""
    path, buckets = topic
    rewrite(path, properties=buckets | {CANCELLED + "0": all_ids(), CANCELLED + "1": all_ids()})
    assert run_within_3_gib(HUGE, path, repr(kind)) == ["[]", "[8, 9]"]


def test_acknowledgements_of_all_ids_end_with_the_entries(topic):
    path, _ = topic
    rewrite(path, acknowledged=[[0, all_ids()], [7, all_ids()]], batches=[[2, 0, 2**31 - 1, all_ids(2**31 - 2)]])
    assert run_within_3_gib(ACKNOWLEDGED, path) == ["(0, 3) 6"]


def test_all_ids_set_aside_cost_no_more_than_the_copies_that_there_are(topic):
    path, _ = topic
    rewrite(path, aside=[[0, all_ids()], [2**62, all_ids()]])
    assert len(run_within_3_gib(ACKNOWLEDGED, path)) == 1
    with ManagedLedger(path, config=LEDGERS) as log, DelayedDelivery(log, SMALL) as delivery:
        cursor = log.cursors["one"]
        with delivery.dispatcher(cursor) as dispatcher:
            dispatcher.read()
            cursor.clear_backlog()
            assert 0 not in cursor.aside
            cursor.seek(Position(0, 0))
            dispatcher.rewind()
            position = log.add_entry(message(50))
            assert [entry.position for entry in dispatcher.read()] == [position]


OPENED = """
import seglog
try:
    seglog.Queue(path).close()
except seglog.errors.CorruptManifestError as error:
    print(error)
"""


def test_a_queue_whose_cursor_set_aside_all_ids_does_not_list_them(tmp_path):
    with Queue(tmp_path / "jobs") as jobs:
        jobs.put(b"a")
    file, = (tmp_path / "jobs").rglob("queue.cursor*")
    body = {"name": "queue", "mark_delete": [-1, -1], "acknowledged": [], "batches": [], "properties": {}}
    file.write_bytes(format_json(FORMAT, WITHOUT_JOURNAL, **body, aside=[[2**40, all_ids()]]))
    assert "has set aside 4294967296 entries" in run_within_3_gib(OPENED, tmp_path / "jobs")[0]


VERIFIED = """
from seglog.verification.relocated_check import check_relocated
found = list(check_relocated(path))
print(len(found), found[-1].found)
"""
TIDIED = """
from seglog.topic.delayed_delivery import DelayedDelivery
clock = test.ManualClock(test.NOW)
with test.ManagedLedger(path, config=test.LEDGERS, clock=clock) as log:
    with DelayedDelivery(log, clock=clock) as delivery, delivery.dispatcher(log.cursors["one"]) as dispatcher:
        relocated = dispatcher._index._relocated
        relocated.add("one", [(test.Position(0, 1), test.NOW, b"x")])
        clock.advance(60_000)
        relocated.tidy()
        print(relocated.count)
"""


def test_what_is_lost_of_all_ids_is_told_in_part(topic):
    path, _ = topic
    rewrite(path, aside=[[0, all_ids()], [2**62, all_ids()]])
    assert run_within_3_gib(VERIFIED, path) == [f"1001 {2**33 - 1000} more"]


def test_copies_are_tidied_beside_all_ids(topic):
    path, _ = topic
    rewrite(path, aside=[[0, all_ids()], [2**62, all_ids()]])
    assert run_within_3_gib(TIDIED, path) == ["1"]


@pytest.mark.parametrize("mark", [[2**62, 5], [2**63 - 1, 0], [40, -1]])
def test_a_mark_delete_position_in_a_ledger_that_never_was_hides_nothing_that_is_added(tmp_path, mark):
    path = tmp_path / "orders"
    with ManagedLedger(path) as log:
        log.add_entry(message(0))
        log.open_cursor("one", "earliest")
    rewrite(path, mark_delete=mark)
    with ManagedLedger(path) as log:
        cursor = log.cursors["one"]
        assert (cursor.backlog, cursor.mark_delete_position) == (0, Position(0, 0))
        log.add_entry(message(1))
        assert cursor.backlog == 1
        assert numbers(cursor.read(10)) == [1]


@pytest.mark.parametrize("field", ["mark_delete", "acknowledged"])
def test_a_number_that_no_position_has_is_a_damaged_file(tmp_path, field):
    path = tmp_path / "orders"
    with ManagedLedger(path) as log:
        log.open_cursor("one")
    rewrite(path, **{field: [2**70, 0] if field == "mark_delete" else [[2**70, all_ids(3)]]})
    with pytest.raises(CorruptManifestError):
        ManagedLedger(path)


NAMES = ["1" * 5000, str(2**70), str(2**63), "-1", "", "x", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}x"]


@pytest.mark.parametrize("kind", [{}, {"enableBucketDelayedDeliveryTracker": False}], ids=["bucket", "memory"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_decision_about_a_ledger_that_cannot_be_is_damage(topic, name, kind):
    path, buckets = topic
    rewrite(path, properties=buckets | {CANCELLED + name: all_ids(3)})
    with pytest.raises(CorruptDelayedIndexError):
        consumed(path, kind)


def test_a_time_that_no_clock_shows_is_damage(topic):
    path, buckets = topic
    moved = base64.b64encode((1).to_bytes(4, "big") + (2**63).to_bytes(8, "big")).decode()
    rewrite(path, properties=buckets | {MOVED + "0": moved})
    with pytest.raises(CorruptDelayedIndexError, match=str(2**63)):
        consumed(path)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_bucket_of_ledgers_that_cannot_be_is_left_out_and_its_messages_come_from_the_log(topic, name):
    path, _ = topic
    rewrite(path, properties={f"{BUCKET_PROPERTY}0_{name}": "5", f"{BUCKET_PROPERTY}{name}_1": "5",
                              f"{BUCKET_PROPERTY}0_1": name})
    assert consumed(path) == list(range(10))
