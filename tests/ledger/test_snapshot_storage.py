"""Snapshots of delayed messages in ledgers."""
import itertools
import json
import random

import pytest

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.errors import (
    CorruptDelayedIndexError,
    CorruptManifestError,
    InvalidArgumentError,
    SnapshotMissingError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.ledger import snapshot_storage
from seglog.ledger.ledger import LOG_NAME, Ledger
from seglog.ledger.property_file import IDS_AT_ONCE, PropertyFile
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage
from support.delayed import snapshots, stream

NOW = 1_700_000_000_000


@pytest.fixture
def storage(tmp_path):
    storage = LedgerSnapshotStorage(tmp_path / "delayed")
    storage.initialize()
    yield storage
    storage.close()


def reopened(storage):
    storage.close()
    again = LedgerSnapshotStorage(storage.path)
    again.initialize()
    return again


def names(storage):
    return sorted(path.name for path in storage.path.iterdir())


# --- snapshots -----------------------------------------------------------------------------------


def test_what_was_stored_is_there_after_it_was_opened_again(storage):
    one = storage.create_snapshot([b"metadata"], [b"a", b"bc", b"def"])
    other = storage.create_snapshot([b"m0", b"m1"], [b"x"])
    storage = reopened(storage)
    assert storage.snapshot_ids() == [one, other]
    assert storage.get_metadata(one) == [b"metadata"]
    assert storage.get_metadata(other) == [b"m0", b"m1"]
    assert storage.get_segments(one, 0, 3) == [b"a", b"bc", b"def"]
    assert storage.get_segments(one, 1, 2) == [b"bc"]
    assert storage.get_segments(one, 2, 9) == [b"def"]
    assert storage.get_segments(other, 0, 1) == [b"x"]


def test_a_snapshot_is_a_sealed_ledger_with_the_metadata_first(storage):
    snapshot_id = storage.create_snapshot([b"metadata"], [b"a", b"b"])
    with Ledger.open(storage.path / f"ledger-{snapshot_id}") as ledger:
        assert [entry for _, entry in ledger.read_range(0, 2)] == [b"metadata", b"a", b"b"]
        assert ledger.ledger_id == snapshot_id
        assert ledger.is_sealed
        assert ledger.properties["component"] == "delayed-index-bucket"
        assert storage.get_length(snapshot_id) == ledger.length_bytes


def test_real_snapshots_take_one_percent_more_than_their_bytes(storage):
    pulsars = ours = 0
    for _, path in snapshots():
        entries = stream(path)
        snapshot_id = storage.create_snapshot(entries[:1], entries[1:])
        assert storage.get_metadata(snapshot_id) + storage.get_segments(snapshot_id, 0, 10**6) == entries
        pulsars += sum(map(len, entries))
        ours += storage.get_length(snapshot_id)
    # These are tiny: a ledger's one batch header and some bytes for each entry. What it is for real sizes, benches say.
    assert ours - pulsars < 152 * 61 + 20 * sum(len(stream(path)) for _, path in snapshots())


def test_segments_are_taken_before_the_metadata_and_few_are_held(storage, monkeypatch):
    monkeypatch.setattr(snapshot_storage, "SPOOL_FROM_BYTES", 1000)
    monkeypatch.setattr(snapshot_storage, "BATCH_BYTES", 500)
    made = []

    def segments():
        for n in range(300):
            made.append(n)
            yield b"%06d" % n * 10

    def metadata():
        yield b"%d segments" % len(made)

    snapshot_id = storage.create_snapshot(metadata(), segments())
    assert storage.get_metadata(snapshot_id) == [b"300 segments"]
    assert storage.get_segments(snapshot_id, 0, 300) == [b"%06d" % n * 10 for n in range(300)]
    assert names(storage) == [f"ledger-{snapshot_id}", "properties.json"]


def test_segments_that_fail_leave_no_snapshot(storage, monkeypatch):
    monkeypatch.setattr(snapshot_storage, "SPOOL_FROM_BYTES", 10)

    def segments():
        yield b"a" * 20
        raise CorruptDelayedIndexError("a source is damaged")

    with pytest.raises(CorruptDelayedIndexError):
        storage.create_snapshot([], segments())
    assert names(storage) == ["properties.json"]


def test_no_id_is_given_out_twice(storage):
    given = []
    for _ in range(3):
        snapshot_id = storage.create_snapshot([b"m"], [])
        storage.delete_snapshot(snapshot_id)
        storage.delete_snapshot(snapshot_id)
        storage = reopened(storage)
        given.append(snapshot_id)
    assert len(set(given)) == 3
    assert storage.snapshot_ids() == []
    with pytest.raises(SnapshotMissingError):
        storage.get_metadata(given[0])


def test_a_snapshot_of_a_ledger_that_was_damaged_is_an_error(storage):
    snapshot_id = storage.create_snapshot([b"m"], [b"s" * 100])
    log = storage.path / f"ledger-{snapshot_id}" / LOG_NAME
    storage.close()
    data = bytearray(log.read_bytes())
    data[-20] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptDelayedIndexError, match=f"snapshot {snapshot_id}"):
        storage.get_segments(snapshot_id, 0, 1)
    log.write_bytes(data[:-1])
    with pytest.raises(CorruptDelayedIndexError):
        reopened(storage).get_segments(snapshot_id, 0, 1)


def test_a_ledger_that_does_not_say_where_its_segments_begin_is_an_error(storage):
    with Ledger.create(storage.path / "ledger-77", 77) as ledger:
        ledger.add(b"x")
    with pytest.raises(CorruptDelayedIndexError, match="metadata_entries"):
        storage.get_metadata(77)


def test_what_a_crash_left_half_made_or_half_deleted_goes(storage):
    kept = storage.create_snapshot([b"m"], [b"s"])
    storage.close()
    (storage.path / "ledger-50.spool").write_bytes(b"x")
    (storage.path / "ledger-51.deleted").mkdir()
    (storage.path / "ledger-51.deleted" / LOG_NAME).write_bytes(b"x")
    (storage.path / "ledger-52").mkdir()
    again = reopened(storage)
    # Without ledger.json there is no ledger; the tracker finds that nobody lists it.
    assert again.snapshot_ids() == [kept, 52]
    again.delete_snapshot(52)
    assert names(again) == [f"ledger-{kept}", "properties.json"]


def test_no_file_behind_a_link_is_removed(storage, tmp_path):
    storage.close()
    (tmp_path / "precious/ledger-1").mkdir(parents=True)
    (tmp_path / "precious/ledger-1/file").touch()
    (storage.path / "ledger-51.deleted").symlink_to(tmp_path / "precious/ledger-1")
    assert names(reopened(storage)) == []
    topic = tmp_path / "topic"
    (topic / snapshot_storage.DIRECTORY).mkdir(parents=True)
    (topic / snapshot_storage.DIRECTORY / "link").symlink_to(tmp_path / "precious")
    snapshot_storage.remove_snapshots(OsFileSystem(), topic)
    assert list((topic / snapshot_storage.DIRECTORY).iterdir()) == []
    assert (tmp_path / "precious/ledger-1/file").exists()


def test_few_ledgers_stay_open_and_none_for_long(storage, monkeypatch):
    monkeypatch.setattr(snapshot_storage, "MOST_OPEN", 3)
    monkeypatch.setattr(snapshot_storage, "READ_BEFORE_REOPENING", 100)
    ids = [storage.create_snapshot([b"m"], [b"%d" % n * 30] * 9) for n in range(6)]
    for snapshot_id, slot in itertools.product(ids, range(9)):
        assert storage.get_segments(snapshot_id, slot, slot + 1)
        assert len(storage._open) <= 3
        assert all(count <= 100 for count in storage._read_bytes.values())


# --- the property map ----------------------------------------------------------------------------


def test_properties_are_set_and_removed_together(storage):
    storage.update_properties({"a": "1", "b": "2"})
    storage.update_properties({"a": None, "c": "3", "d": None})
    assert storage.properties() == reopened(storage).properties() == {"b": "2", "c": "3"}


def test_a_property_file_of_a_newer_version_or_with_another_checksum_is_refused(tmp_path):
    file = PropertyFile(OsFileSystem(), tmp_path)
    file.update_properties({"a": "1"})
    assert file.new_ledger_id() == 0
    (path,) = tmp_path.iterdir()
    body = json.loads(path.read_bytes())
    assert body["next_id"] == IDS_AT_ONCE
    path.write_text(json.dumps(body | {"next_id": 5}))
    with pytest.raises(CorruptManifestError):
        PropertyFile(OsFileSystem(), tmp_path)
    path.write_bytes(format_json("seglog-properties", 2, properties={}, next_id=1))
    with pytest.raises(UnsupportedVersionError):
        PropertyFile(OsFileSystem(), tmp_path)


class Cursor:
    """Keeps properties as a cursor does."""

    def __init__(self):
        self.properties = {}

    def update_properties(self, changes):
        self.properties = {name: value for name, value in {**self.properties, **changes}.items() if value is not None}


def test_properties_and_ids_may_be_a_cursors_and_its_managed_ledgers(tmp_path):
    cursor, ids = Cursor(), itertools.count(40)
    storage = LedgerSnapshotStorage(tmp_path / "d", owner=cursor, new_ledger_id=lambda: next(ids))
    storage.initialize()
    assert storage.create_snapshot([b"m"], []) == 40
    storage.update_properties({"#pulsar.internal.delayed.bucket_1_2": "40"})
    assert cursor.properties == {"#pulsar.internal.delayed.bucket_1_2": "40"}
    assert names(storage) == ["ledger-40"]


# --- with a tracker -----------------------------------------------------------------------------


def test_a_tracker_over_ledgers_loses_and_repeats_nothing_over_restarts(tmp_path):
    clock, chance = ManualClock(NOW), random.Random(5)
    config = DelayedDeliveryConfig(ledger_step=0, min_index_count=20, max_indexes_per_segment=4, max_buckets=3)

    def opened():
        storage = LedgerSnapshotStorage(tmp_path / "d")
        return BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())

    tracker, at = opened(), {}
    for n in range(400):
        position = (n // 20, n % 20)
        at[position] = NOW + 1000 + chance.randrange(50_000)
        assert tracker.add_message(*position, at[position])
    assert tracker.stats.merged.value
    tracker.cancel(0, 0)
    tracker.reschedule(0, 1, NOW + 80_000)
    at[0, 1] = NOW + 80_000
    del at[0, 0]
    got = []
    for now in range(NOW, NOW + 90_000, 7_000):
        clock.set(now)
        got += tracker.get_scheduled_messages(10**6)
        tracker.close()
        tracker = opened()
        for position, due in at.items():        # the log is read again
            if position not in got and not tracker.contains_message(*position):
                assert tracker.add_message(*position, due)
    assert sorted(got) == sorted(at)
    assert got == sorted(got, key=lambda position: (at[position], position))
    tracker.close()
    assert LedgerSnapshotStorage(tmp_path / "d").snapshot_ids() == []


@pytest.mark.parametrize("changes", [{"a": 5}, {5: "a"}, None, [("a", "b")]])
def test_properties_that_are_no_text_are_refused_and_those_before_stay(tmp_path, changes):
    """Else the file could not be read again."""
    PropertyFile(OsFileSystem(), tmp_path).update_properties({"a": "b"})
    properties = PropertyFile(OsFileSystem(), tmp_path)
    with pytest.raises(InvalidArgumentError):
        properties.update_properties(changes)
    assert PropertyFile(OsFileSystem(), tmp_path).properties == properties.properties == {"a": "b"}
