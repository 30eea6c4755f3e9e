"""A managed ledger: entries over many ledgers, what the broker puts in front of them, rolling, trimming, opening."""
import os
import shutil
import subprocess
import sys
import threading

import pytest

from seglog._kernels.entry_frame import strip
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptManifestError,
    InvalidArgumentError,
    InvalidConfigError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.ledger.ledger import LOG_NAME, Ledger
from seglog.ledger.ledger_metadata import LedgerMetadata
from seglog.ledger.managed.manifest import FILE_NAME, FORMAT, Manifest
from seglog.ledger.position import EARLIEST, LATEST, Position
from seglog.pulsar import ManagedLedger
from support.entries import golden_entries
from support.topics import at, batch, message, numbers, positions

THREE = {"managedLedgerMaxEntriesPerLedger": 3}
BOTH = {"brokerEntryMetadataInterceptors": "timestamp,index"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders"


@pytest.fixture
def clock():
    return ManualClock(50_000)


def filled(path, count=8, **settings):
    """A managed ledger of `count` entries, three a ledger."""
    topic = ManagedLedger(path, config=THREE | settings, clock=ManualClock(50_000))
    topic.add_entries(message(n) for n in range(count))
    return topic


# --- positions ---------------------------------------------------------------------------------


def test_entries_go_on_over_ledgers_and_are_read_in_order(path):
    with filled(path) as topic:
        assert positions(topic) == ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2", "2:0", "2:1"]
        assert numbers(topic) == list(range(8))
        assert topic.read(at("1:1")).data == message(4)
        assert (topic.first_position, topic.last_position, topic.entry_count) == (at("0:0"), at("2:1"), 8)
        assert positions(topic.read_entries(at("0:2"), 3)) == ["0:2", "1:0", "1:1"]
        assert positions(topic.read_entries(at("0:7"), 2)) == ["1:0", "1:1"]
        assert topic.read_entries(LATEST, 5) == []


def test_positions_are_ordered_and_the_next_one_may_be_in_another_ledger(path):
    assert EARLIEST < at("0:-1") < at("0:0") < at("0:9") < at("1:0") < LATEST
    assert str(Position(4, 7)) == "4:7"
    with filled(path) as topic:
        steps = {
            EARLIEST: ("0:0", None), at("0:0"): ("0:1", None), at("0:2"): ("1:0", "0:1"), at("1:-1"): ("1:0", "0:2"),
            at("1:0"): ("1:1", "0:2"), at("1:99"): ("2:0", "1:2"), at("2:1"): (None, "2:0"), LATEST: (None, "2:1"),
        }
        for position, (after, before) in steps.items():
            assert str(topic.next_valid(position)) == str(after), position
            assert str(topic.previous_valid(position)) == str(before), position
        assert topic.entries_between(at("0:1"), at("1:1")) == 3
        assert topic.entries_between(EARLIEST, LATEST) == 8
        assert [topic.is_valid(at(p)) for p in ("0:2", "0:3", "3:0", "0:-1")] == [True, False, False, False]


def test_the_positions_of_entries_that_were_added_together_are_a_sequence(path):
    with ManagedLedger(path, config=THREE) as topic:
        topic.add_entry(message(0))
        found = topic.add_entries(message(n) for n in range(6))
        expected = [at(text) for text in ("0:1", "0:2", "1:0", "1:1", "1:2", "2:0")]
        assert list(found) == expected == found
        assert (len(found), found[0], found[-1], found[2]) == (6, at("0:1"), at("2:0"), at("1:0"))
        assert found[1:3] == expected[1:3]
        assert hash(found) == hash(tuple(expected))
        assert found != expected[1:]
        assert repr(found) == "<Positions 0:1 to 2, 1:0 to 2, 2:0 to 0>"
        for beyond in (6, -7):
            with pytest.raises(IndexError):
                found[beyond]
        assert list(topic.add_entries([])) == []


def test_an_entry_that_is_not_there_is_refused(path):
    with filled(path) as topic:
        for position in ("0:3", "3:0", "-1:-1", "2:2"):
            with pytest.raises(OffsetOutOfRangeError):
                topic.read(at(position))


def test_an_empty_managed_ledger_has_no_position(path):
    with ManagedLedger(path) as topic:
        assert (topic.first_position, topic.last_position, topic.entry_count, topic.size_bytes) == (None, None, 0, 0)
        assert list(topic) == []
        assert topic.next_valid(EARLIEST) is None
        assert topic.position_at_time(0) is None
        assert topic.position_at_index(0) is None
        assert topic.find_newest_matching(lambda _: True) is None
        with pytest.raises(OffsetOutOfRangeError, match="none"):
            topic.read(at("0:0"))
    assert sorted(os.listdir(path)) == [".seglog.lock", FILE_NAME]


# --- the broker's part -------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["", "timestamp", "index", "timestamp,index"])
def test_each_interceptor_puts_its_field_in_front(path, clock, on):
    with ManagedLedger(path, config={"brokerEntryMetadataInterceptors": on}, clock=clock) as topic:
        for n in range(3):
            clock.advance(10)
            topic.add_entry(batch(n, 4, publish_time=7), 4)
        found = [(entry.broker_timestamp, entry.index, entry.timestamp) for entry in topic]
        times = [50_010, 50_020, 50_030] if "timestamp" in on else [None] * 3
        indexes = [3, 7, 11] if "index" in on else [None] * 3
        assert found == list(zip(times, indexes, [t or 7 for t in times], strict=True))
        for n, entry in enumerate(topic):
            assert entry.headers_and_payload == batch(n, 4, publish_time=7)
            assert entry.data == entry.entry.raw()
            assert entry.entry.has_broker_part == bool(on)
            assert not entry.entry.damage()
            assert entry.message_count == 4
        assert topic.last_index == (11 if "index" in on else -1)


def test_what_consumers_get_is_a_view_of_the_file(path):
    with ManagedLedger(path, config=BOTH) as topic:
        entry = topic.read(topic.add_entry(message(1)))
        assert isinstance(entry.headers_and_payload, memoryview)
        assert entry.headers_and_payload.readonly
        assert len(entry) == len(entry.data) > len(message(1))
    assert entry.headers_and_payload == message(1)


def test_interceptors_are_switched_at_any_time_and_old_and_new_entries_mix(path, clock):
    with ManagedLedger(path, clock=clock, config=THREE) as topic:
        for n, on in enumerate(["", "index", ["timestamp"], {"timestamp", "index"}, "", "index"]):
            topic.interceptors = on
            topic.add_entry(message(n))
        assert [(e.broker_timestamp, e.index) for e in topic] == [
            (None, None), (None, 0), (50_000, None), (50_000, 1), (None, None), (None, 2),
        ]
        with pytest.raises(InvalidConfigError):
            topic.interceptors = "time"
        with pytest.raises(InvalidConfigError):
            topic.interceptors = 5
        assert topic.interceptors == {"index"}
        topic.interceptors = ["org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"]
        assert topic.interceptors == {"timestamp"}


@pytest.mark.parametrize("on", ["", "timestamp,index"])
def test_a_brokers_part_is_never_put_in_front_twice(path, on):
    with ManagedLedger(path, config={"brokerEntryMetadataInterceptors": on}) as topic:
        entry = topic.read(topic.add_entry(message(0)))
        with_part = entry.entry.with_broker_metadata(5).raw() if not on else entry.data
        with pytest.raises(InvalidArgumentError, match="0x0e02"):
            topic.add_entry(with_part)
        assert topic.entry_count == 1


def test_the_time_never_goes_back(path, clock):
    with ManagedLedger(path, clock=clock, config=BOTH) as topic:
        for now_ms in (50_000, 49_000, 50_001, 1):
            clock.set(now_ms)
            topic.add_entry(message(0))
        assert [entry.broker_timestamp for entry in topic] == [50_000, 50_000, 50_001, 50_001]
    clock.set(7)
    with ManagedLedger(path, clock=clock, config=BOTH) as topic:
        topic.add_entry(message(0))
        assert [entry.broker_timestamp for entry in topic][-1] == 50_001


def test_the_index_goes_on_over_rolls_restarts_and_crashes(path, tmp_path, clock):
    with ManagedLedger(path, clock=clock, config=BOTH | THREE) as topic:
        for n in range(5):
            topic.add_entry(batch(n, 3), 3)
        topic.interceptors = ""
        topic.add_entry(message(9))
    with ManagedLedger(path, clock=clock, config=BOTH | THREE) as topic:
        assert topic.last_index == 14
        topic.add_entry(message(1))
        topic.interceptors = ""
        topic.add_entry(message(9))
        shutil.copytree(path, tmp_path / "killed")
    with ManagedLedger(tmp_path / "killed", clock=clock, config=BOTH) as topic:
        assert topic.last_index == 15
        topic.add_entry(batch(2, 2), 2)
        assert [entry.index for entry in topic] == [2, 5, 8, 11, 14, None, 15, None, 17]


def test_a_refused_entry_uses_no_index_up(path):
    with ManagedLedger(path, config=BOTH | {"maxMessageSize": 200}) as topic:
        topic.add_entry(message(0))
        refused = [
            (bytes(201), 1, RecordTooLargeError), (b"", 1, InvalidArgumentError), (b"raw", 1, InvalidArgumentError),
            (message(1)[:12], 1, InvalidArgumentError), ("text", 1, InvalidArgumentError),
            (message(1), 0, InvalidArgumentError), (message(1), True, InvalidArgumentError),
            (message(1), "1", InvalidArgumentError),
        ]
        for entry, count, error in refused:
            with pytest.raises(error):
                topic.add_entry(entry, count)
            with pytest.raises(error):
                topic.add_entries([message(7), (entry, count)])
        assert topic.last_index == 0
        topic.add_entry(message(1))
        assert [entry.index for entry in topic] == [0, 1]


def test_how_many_messages_an_entry_holds_is_read_where_it_is_not_said(path):
    with ManagedLedger(path, config=BOTH) as topic:
        topic.add_entry(batch(0, 5))
        topic.add_entry(message(1))
        topic.add_entry(memoryview(batch(2, 2)))
        assert [entry.index for entry in topic] == [4, 5, 7]


def test_golden_entries_are_stored_and_read_as_they_were(path):
    whole = [data for data, says in golden_entries() if says["case"] != "empty-broker-metadata"]
    with ManagedLedger(path, config={"managedLedgerMaxEntriesPerLedger": 50}) as topic:
        stripped = [bytes(strip(data)) for data in whole]
        topic.add_entries(stripped)
        assert [bytes(entry.data) for entry in topic] == stripped
        assert len(topic.ledgers) == 6


# --- rolling -----------------------------------------------------------------------------------


def test_a_ledger_is_sealed_when_it_has_its_entries(path):
    with filled(path) as topic:
        assert [info.end and info.end.entries for info in topic.ledgers] == [3, 3, None]
        assert sorted(name for name in os.listdir(path) if "ledger" in name) == ["ledger-0", "ledger-1", "ledger-2"]
        with Ledger.open(path / "ledger-1") as ledger:
            assert ledger.read(0) == message(3)


def test_a_ledger_is_sealed_when_it_has_its_bytes(path):
    big = message(0) + bytes(400_000)
    with ManagedLedger(path, config={"managedLedgerMaxSizePerLedgerMbytes": 1}) as topic:
        for _ in range(4):
            topic.add_entry(big)
        topic.add_entries([big] * 4)
        assert [info.end.entries if info.end else 0 for info in topic.ledgers] == [3, 3, 0]
        assert topic.entry_count == 8


def test_a_ledger_is_sealed_when_it_is_old_and_no_sooner_than_it_may_be(path, clock):
    config = {"managedLedgerMaxLedgerRolloverTimeMinutes": 10, "managedLedgerMinLedgerRolloverTimeMinutes": 2} | THREE
    with ManagedLedger(path, config=config, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(5))
        topic.add_entry(message(5))
        assert len(topic.ledgers) == 2 or topic.ledgers[0].end is None
        before = len(topic.ledgers)
        clock.advance(2 * 60_000)
        topic.add_entry(message(6))
        assert len(topic.ledgers) == before + 1
        clock.advance(10 * 60_000)
        topic.add_entry(message(7))
        assert len(topic.ledgers) == before + 2
        clock.advance(10 * 60_000)
        topic._maintain()
        assert topic.ledgers[-1].end is not None
        assert numbers(topic) == list(range(8))


def test_rolling_by_hand_begins_a_ledger_with_the_next_entry(path):
    with ManagedLedger(path) as topic:
        topic.roll()
        topic.add_entry(message(0))
        topic.roll()
        topic.roll()
        topic.add_entry(message(1))
        assert positions(topic) == ["0:0", "1:0"]


def test_a_reader_of_before_a_roll_reads_on(path):
    with filled(path, 2) as topic:
        walk = iter(topic)
        assert next(walk).position == at("0:0")
        topic.add_entries(message(n) for n in range(2, 8))
        assert [entry.position for entry in walk] == [at("0:1")]


# --- trimming ----------------------------------------------------------------------------------


def test_ledgers_that_every_cursor_has_passed_are_trimmed(path):
    with filled(path, 10) as topic:
        one, two = topic.open_cursor("one", "earliest"), topic.open_cursor("two", "earliest")
        one.mark_delete(at("2:2"))
        assert topic.trim() == []
        two.mark_delete(at("1:1"))
        assert [info.ledger_id for info in topic.ledgers] == [1, 2, 3]
        two.mark_delete(at("1:2"))
        assert [info.ledger_id for info in topic.ledgers] == [2, 3]
        assert sorted(n for n in os.listdir(path) if n.startswith("ledger")) == ["ledger-2", "ledger-3"]
        topic.delete_cursor("two")
        assert topic.trim() == [2]
        with pytest.raises(OffsetOutOfRangeError):
            topic.read(at("0:0"))
        assert (topic.first_position, topic.entry_count) == (at("3:0"), 1)
        assert topic.next_valid(at("0:1")) == at("3:0")
    with ManagedLedger(path) as topic:
        assert numbers(topic) == [9]


def test_without_cursors_and_retention_everything_is_kept(path):
    with filled(path, 10) as topic:
        topic.roll()
        assert topic.trim() == []


def test_retention_keeps_what_was_passed_for_a_time(path, clock):
    with ManagedLedger(path, config=THREE | {"defaultRetentionTimeInMinutes": 10}, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(4))
        clock.advance(10 * 60_000 - 1)
        assert topic.trim() == []
        clock.advance(1)
        cursor = topic.open_cursor("one", "earliest")
        assert topic.trim() == []
        cursor.clear_backlog()
        assert [info.ledger_id for info in topic.ledgers] == [1]


def test_retention_keeps_so_many_bytes_of_what_was_passed(path):
    config = {"managedLedgerMaxEntriesPerLedger": 1, "defaultRetentionSizeInMB": 1}
    with ManagedLedger(path, config=config) as topic:
        for n in range(5):
            topic.add_entry(message(n) + bytes(400_000))
        assert numbers(topic) == [1, 2, 3, 4]


def test_retention_without_end_keeps_all(path, clock):
    for key in ("defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"):
        with ManagedLedger(path / key, config=THREE | {key: -1}, clock=clock) as topic:
            topic.add_entries(message(n) for n in range(7))
            topic.open_cursor("one")
            clock.advance(10**9)
            assert topic.trim() == []


def test_who_reads_a_trimmed_ledger_goes_on(path):
    with filled(path, 4) as topic:
        entry = topic.read(at("0:1"))
        topic.open_cursor("one")
        assert topic.trim() == [0]
        assert entry.data == message(1)
        with pytest.raises(OffsetOutOfRangeError):
            topic.read(at("0:1"))

@pytest.mark.parametrize("step", ["metadata", "opened"])
def test_who_opens_a_ledger_while_it_is_trimmed_learns_that_it_was(path, step, monkeypatch):
    """It must not take the missing file for damage, nor keep what is gone."""
    filled(path).close()
    with ManagedLedger(path, config=THREE) as topic:
        cursor = topic.open_cursor("one", "earliest")
        kind, name = {"metadata": (LedgerMetadata, "read"), "opened": (Ledger, "open")}[step]
        found = getattr(kind, name)

        def trimmed_behind(directory, **arguments):
            result = found(directory, **arguments)
            monkeypatch.undo()
            cursor.mark_delete(at("0:2"))
            return result

        monkeypatch.setattr(kind, name, trimmed_behind)
        with pytest.raises(OffsetOutOfRangeError, match="ledger 0 was trimmed"):
            topic.read(at("0:1"))
        assert [info.ledger_id for info in topic.ledgers] == [1, 2]
        assert numbers(topic) == [3, 4, 5, 6, 7]
        assert 0 not in topic._opened


# --- opening and closing -----------------------------------------------------------------------


def test_what_was_added_is_there_after_opening_again(path):
    filled(path).close()
    with ManagedLedger(path, config=THREE) as topic:
        assert numbers(topic) == list(range(8))
        assert topic.add_entry(message(8)) == at("3:0")


def test_one_process_writes(path):
    with ManagedLedger(path) as topic:
        with pytest.raises(LogLockedError):
            ManagedLedger(path)
        code = f"from seglog.pulsar import ManagedLedger; ManagedLedger({str(path)!r})"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "LogLockedError" in found.stderr
        topic.add_entry(message(0))
    ManagedLedger(path).close()


def test_after_closing_everything_is_refused_and_what_was_read_stays(path):
    topic = filled(path)
    cursor = topic.open_cursor("one", "earliest")
    entry = topic.read(at("0:0"))
    topic.close()
    topic.close()
    calls = [
        lambda: topic.add_entry(message(0)), lambda: topic.read(at("0:0")), lambda: list(topic), topic.roll, topic.trim,
        topic.flush, topic._maintain, lambda: topic.update_properties({}), lambda: topic.open_cursor("one"),
        lambda: topic.delete_cursor("one"), cursor.read, lambda: cursor.mark_delete(at("0:0")), lambda: topic.ledgers,
        lambda: cursor.backlog, topic.new_ledger_id,
    ]
    for call in calls:
        with pytest.raises(LogClosedError):
            call()
    assert topic.closed
    assert "closed" in repr(topic)
    assert entry.data == message(0)


def test_it_is_made_only_where_that_is_wanted(path):
    with pytest.raises(NotALogError):
        ManagedLedger(path, create=False)
    assert not path.exists()
    with pytest.raises(InvalidArgumentError):
        ManagedLedger(path, fsync="often")
    with pytest.raises(InvalidConfigError):
        ManagedLedger(path, config={"managedLedgerMaxEntriesPerLedger": 0})
    ManagedLedger(path).close()
    ManagedLedger(path, create=False).close()


def test_properties_are_durable_and_none_removes_one(path):
    with ManagedLedger(path) as topic:
        topic.update_properties({"a": "1", "b": "2"})
        topic.update_properties({"a": None, "c": "3", "d": None})
        assert topic.properties == {"b": "2", "c": "3"}
        with pytest.raises(InvalidArgumentError):
            topic.update_properties({"b": 5})
    with ManagedLedger(path) as topic:
        assert topic.properties == {"b": "2", "c": "3"}


def test_ids_of_ledgers_are_given_out_once(path):
    with filled(path) as topic:
        ids = [topic.new_ledger_id() for _ in range(2)]
        assert ids == [3, 4]
    with ManagedLedger(path) as topic:
        assert topic.add_entry(message(0)) == at("5:0")
        assert topic.new_ledger_id() == 6


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_without_a_wait_entries_are_there_at_once_and_durable_by_flush(path, fsync):
    with ManagedLedger(path, fsync=fsync, config={"flush.ms": 1}) as topic:
        topic.flush()
        topic.add_entry(message(0))
        topic.flush()
        topic.add_entry(message(1))
        assert numbers(topic) == [0, 1]
    with ManagedLedger(path) as topic:
        assert numbers(topic) == [0, 1]


def test_threads_add_while_others_read(path):
    with ManagedLedger(path, config=BOTH | {"managedLedgerMaxEntriesPerLedger": 20}) as topic:
        done = threading.Event()
        found, failed = [], []

        def add(thread):
            try:
                for n in range(40):
                    found.append((topic.add_entry(message(thread * 100 + n)), thread * 100 + n))
            except Exception as error:
                failed.append(error)

        def read():
            try:
                while not done.is_set():
                    indexes = [entry.index for entry in topic]
                    assert indexes == list(range(len(indexes)))
            except Exception as error:
                failed.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        writers = [threading.Thread(target=add, args=(n,)) for n in range(4)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        for thread in readers:
            thread.join()
        assert failed == []
        assert {entry.position: numbers([entry])[0] for entry in topic} == dict(found)
        assert topic.entry_count == 160


def test_a_forked_child_does_not_write(path):
    topic = filled(path, 2)
    child = os.fork()
    if not child:
        try:
            topic.add_entry(message(5))
        except Exception as error:
            os._exit(0 if type(error).__name__ == "ForkedHandleError" else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    topic.add_entry(message(2))
    topic.close()
    with ManagedLedger(path) as topic:
        assert numbers(topic) == [0, 1, 2]


# --- the manifest ------------------------------------------------------------------------------


def test_the_manifest_names_the_ledgers(path):
    with filled(path, 4, **BOTH) as topic:
        topic.update_properties({"a": "b"})
        found = Manifest.read(path)
        assert [info.ledger_id for info in found.ledgers] == [0, 1]
        assert (found.next_ledger_id, found.last_index, found.last_timestamp) == (2, 2, 50_000)
        assert found.properties == {"a": "b"}
        assert found.ledgers[0].end == topic.ledgers[0].end
    assert Manifest.read(path).last_index == 3
    assert Manifest.parse(Manifest.read(path).to_bytes()) == Manifest.read(path)


def test_a_damaged_manifest_is_refused_and_a_newer_one_too(path):
    filled(path).close()
    file = path / FILE_NAME
    raw = file.read_bytes()
    for n in range(0, len(raw) - 1, 3):
        file.write_bytes(raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :])
        with pytest.raises(CorruptManifestError):
            ManagedLedger(path)
    file.write_bytes(format_json(FORMAT, 3))
    with pytest.raises(UnsupportedVersionError):
        ManagedLedger(path)
    good = {"ledgers": [[0, 0, 3, 5, 0, 0]], "next_ledger_id": 1, "last_index": -1, "last_timestamp": -1,
            "properties": {}}
    assert Manifest.parse(format_json(FORMAT, 1, **good)).ledgers[0].ledger_id == 0
    for change in (
        {"ledgers": {}}, {"ledgers": [[0]]}, {"ledgers": [0]}, {"ledgers": [[0, 0], [0, 0]]}, {"next_ledger_id": 0},
        {"last_index": -2}, {"last_timestamp": None}, {"properties": {"a": 1}}, {"ledgers": [[0, 0, -1, 0, 0, 0]]},
    ):
        with pytest.raises(CorruptManifestError):
            Manifest.parse(format_json(FORMAT, 1, **good | change))


def test_ledgers_without_a_manifest_and_a_manifest_without_its_ledger_are_refused(path):
    filled(path).close()
    shutil.rmtree(path / "ledger-1")
    with pytest.raises(CorruptManifestError, match="ledger 1 is missing"):
        ManagedLedger(path)
    (path / FILE_NAME).unlink()
    with pytest.raises(CorruptManifestError, match="no manifest"):
        ManagedLedger(path)
    assert (path / "ledger-0" / LOG_NAME).exists()


def test_what_the_manifest_does_not_name_was_being_made_or_removed(path):
    filled(path).close()
    Ledger.create(path / "ledger-9", 9).close()
    (path / "ledger-8").mkdir()
    shutil.copytree(path / "ledger-0", path / "ledger-7.deleted")
    (path / "ledger-of-somebody").mkdir()
    with ManagedLedger(path) as topic:
        assert numbers(topic) == list(range(8))
    names = sorted(name for name in os.listdir(path) if name.startswith("ledger"))
    assert names == ["ledger-0", "ledger-1", "ledger-2", "ledger-of-somebody"]


def test_a_link_that_is_named_like_a_deleted_ledger_is_removed_and_not_followed(path, tmp_path):
    """Its files were removed, of whatever folder it led to."""
    filled(path).close()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (path / "ledger-7.deleted").symlink_to(tmp_path / "precious")
    with ManagedLedger(path) as topic:
        assert numbers(topic) == list(range(8))
    assert not (path / "ledger-7.deleted").is_symlink()
    assert (tmp_path / "precious/file").exists()


def test_a_managed_ledger_that_is_dropped_without_close_says_so(path):
    topic = filled(path, 2)
    with pytest.warns(ResourceWarning, match="not closed"):
        del topic
    with ManagedLedger(path) as topic:
        assert numbers(topic) == [0, 1]
