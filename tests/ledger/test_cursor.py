"""A cursor: what is acknowledged comes no more, what is not comes again, whatever happens in between."""
import shutil
import threading
from contextlib import suppress

import pytest
from sortedcontainers import SortedDict

from seglog.clock import ManualClock
from seglog.errors import (
    CorruptManifestError,
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.ledger.managed.acknowledgements import Acknowledgements, PartOfBatch, bitmap
from seglog.ledger.managed.cursor_file import FORMAT, CursorState, cursor_path
from seglog.ledger.managed.manifest import ledger_directory
from seglog.ledger.position import EARLIEST, LATEST
from seglog.pulsar import ManagedLedger
from support.crash.faultfs import HeldNameFs
from support.topics import at, batch, message, numbers, positions

CONFIG = {"managedLedgerMaxEntriesPerLedger": 3, "defaultRetentionTimeInMinutes": -1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders"


@pytest.fixture
def clock():
    return ManualClock(50_000)


@pytest.fixture
def topic(path, clock):
    """Nine entries, 0:0 to 2:2."""
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(9))
        yield topic


@pytest.fixture
def cursor(topic):
    return topic.open_cursor("one", "earliest")


# --- where it begins ---------------------------------------------------------------------------


def test_a_cursor_begins_where_it_is_told(topic):
    begins = {"earliest": 0, "latest": 9, EARLIEST: 0, LATEST: 9, at("1:1"): 4, at("0:99"): 3, at("1:-1"): 3}
    for n, (initial, first) in enumerate(begins.items()):
        cursor = topic.open_cursor(f"c{n}", initial)
        assert numbers(cursor.read()) == list(range(first, 9)), initial
        assert cursor.backlog == 9 - first
    for bad in ("first", 5, None, (0, 0)):
        with pytest.raises(InvalidArgumentError):
            topic.open_cursor("bad", bad)
    assert "bad" not in topic.cursors


def test_a_cursor_of_an_empty_topic_sees_what_comes(path):
    with ManagedLedger(path) as topic:
        one, two = topic.open_cursor("one"), topic.open_cursor("two", "earliest")
        assert one.read() == two.read() == []
        assert one.read_position == at("-1:0")
        topic.add_entry(message(0))
        assert positions(one.read()) == positions(two.read()) == ["0:0"]


def test_to_open_a_cursor_again_gives_the_same_one(topic, cursor):
    assert topic.open_cursor("one", "latest") is cursor
    assert topic.cursors == {"one": cursor}
    assert "one" in repr(cursor)


@pytest.mark.parametrize("name", ["", "x" * 300, "ä" * 50])
def test_a_name_that_cannot_be_a_files_is_refused(topic, name):
    with pytest.raises(InvalidArgumentError):
        topic.open_cursor(name)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "#x y", "日本", "%41"])
def test_any_other_name_will_do(path, name):
    with ManagedLedger(path) as topic:
        topic.open_cursor(name, properties={"n": name})
    with ManagedLedger(path) as topic:
        assert topic.cursors[name].properties == {"n": name}


def test_a_deleted_cursor_is_gone_and_may_be_made_again(path, topic, cursor):
    cursor.mark_delete(at("0:0"))
    topic.delete_cursor("one")
    with pytest.raises(LogClosedError):
        cursor.read()
    with pytest.raises(InvalidArgumentError):
        topic.delete_cursor("one")
    assert not cursor_path(path, "one").exists()
    assert topic.open_cursor("one", "earliest").backlog == 9


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_write_in_the_background_brings_no_deleted_cursor_back(path, clock, is_made_again):
    """_maintain has written the cursor's file aside, when it is deleted, and perhaps made again."""
    fs = HeldNameFs(".cursor")
    with ManagedLedger(path, config=CONFIG, fs=fs, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(9))
        cursor = topic.open_cursor("one", "earliest")
        cursor.acknowledge(at("0:0"))       # written at most once a second
        fs.armed = True
        writer = threading.Thread(target=topic._maintain)
        writer.start()
        assert fs.begun.wait(10)

        def delete():
            topic.delete_cursor("one")
            if is_made_again:
                topic.open_cursor("one", at("1:0"))

        deleter = threading.Thread(target=delete)
        deleter.start()
        deleter.join(0.2)       # it waits for the writer, or is done before it
        fs.go.set()
        writer.join()
        deleter.join()
        topic._maintain()       # nor does a later one
        assert cursor_path(path, "one").exists() == is_made_again
    with ManagedLedger(path) as topic:
        assert {name: found.mark_delete_position for name, found in topic.cursors.items()} == (
            {"one": at("0:2")} if is_made_again else {})


@pytest.mark.parametrize("call", [
    lambda cursor: cursor.seek_by_time(2**62),
    lambda cursor: cursor.seek_by_index(2**62),
    lambda cursor: cursor.seek(at("0:0")),
    lambda cursor: cursor.clear_backlog(),
    lambda cursor: cursor.expire(),
    lambda cursor: cursor.mark_delete(at("0:0"), {}),
    lambda cursor: cursor.update_properties({"a": "b"}),
    lambda cursor: cursor.set_aside([(at("0:0"), 1)]),
], ids=["seek_by_time", "seek_by_index", "seek", "clear_backlog", "expire", "mark_delete", "properties", "set_aside"])
def test_no_call_brings_a_deleted_cursor_back(path, clock, call):
    with ManagedLedger(path, config=CONFIG | {"ttlDurationDefaultInSeconds": 1}, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(9))
        cursor = topic.open_cursor("one", "earliest")
        topic.delete_cursor("one")
        clock.advance(5000)
        with pytest.raises(LogClosedError):
            call(cursor)
        assert not cursor_path(path, "one").exists()


@pytest.mark.parametrize("acknowledged", ["all up to it", "itself", "a part of it"])
def test_a_cursor_from_a_later_copy_acknowledges_no_entry_that_comes(path, tmp_path, clock, acknowledged):
    """Its file names a ledger that the manifest of this copy does not know, and that is made afterwards."""
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        topic.add_entries(message(n) for n in range(3))
        topic.open_cursor("one", "earliest")
    copied = tmp_path / "copied"
    shutil.copytree(path, copied)
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        topic.add_entries(batch(10 + n, 2) for n in range(3))
        cursor, last = topic.cursors["one"], topic.last_position
        if acknowledged == "all up to it":
            cursor.mark_delete(last)
        else:
            cursor.acknowledge(last, None if acknowledged == "itself" else [0])
    shutil.copy(cursor_path(path, "one"), cursor_path(copied, "one"))
    with ManagedLedger(copied, config=CONFIG, clock=clock) as topic:
        before = topic.cursors["one"].backlog
        topic.add_entries(batch(100 + n, 2) for n in range(3))
        assert topic.last_position == last
    with ManagedLedger(copied, config=CONFIG, clock=clock) as topic:
        cursor = topic.cursors["one"]
        assert cursor.backlog == before + 3
        assert not cursor.acknowledged_batch_indexes(last)


def test_closing_after_a_failure_waits_for_a_write_in_the_background(path, clock):
    """Otherwise it would replace what the next process to open this writes meanwhile."""
    fs = HeldNameFs(".cursor")
    topic = ManagedLedger(path, config=CONFIG, fs=fs, clock=clock)
    topic.add_entries(message(n) for n in range(9))
    cursor = topic.open_cursor("one", "earliest")
    cursor.acknowledge(at("0:0"))
    fs.armed = True
    writer = threading.Thread(target=topic._maintain)
    writer.start()
    assert fs.begun.wait(10)
    with suppress(LogFailedError):
        topic._tail.fail_outside(StorageError("the disk failed", file=path))

    def close():
        with suppress(LogFailedError):
            topic.close()

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(0.2)
    with pytest.raises(LogLockedError):
        ManagedLedger(path)
    fs.go.set()
    writer.join()
    closer.join()
    with ManagedLedger(path) as topic:
        assert topic.cursors["one"].mark_delete_position == at("0:0")


# --- reading -----------------------------------------------------------------------------------


def test_reading_goes_on_where_it_stopped_and_over_ledgers(cursor):
    assert positions(cursor.read(4)) == ["0:0", "0:1", "0:2", "1:0"]
    assert cursor.read_position == at("1:1")
    assert cursor.has_more()
    assert positions(cursor.read(4)) == ["1:1", "1:2", "2:0", "2:1"]
    assert positions(cursor.read(4)) == ["2:2"]
    assert not cursor.has_more()
    assert cursor.read(4) == []
    assert cursor.read_position == at("2:3")
    cursor.rewind()
    assert len(cursor.read()) == 9


def test_a_read_ends_when_it_has_its_bytes(cursor):
    size = len(message(0))
    assert len(cursor.read(max_bytes=2 * size)) == 2
    assert len(cursor.read(max_bytes=2 * size + 1)) == 3
    assert len(cursor.read(max_bytes=1)) == 1
    assert len(cursor.read(2, max_bytes=10**6)) == 2
    assert cursor.read(0) == []


def test_what_is_acknowledged_is_not_read(cursor):
    cursor.acknowledge_many([at("0:1"), at("0:2"), at("1:0"), at("2:2")])
    assert positions(cursor.read()) == ["0:0", "1:1", "1:2", "2:0", "2:1"]
    assert cursor.backlog == 5


# --- acknowledging -----------------------------------------------------------------------------


def test_the_mark_delete_position_goes_over_what_is_acknowledged_without_a_gap(cursor):
    steps = {"0:1": "-1:-1", "1:0": "-1:-1", "0:0": "0:1", "2:0": "0:1", "0:2": "1:0", "1:2": "1:0", "1:1": "2:0"}
    for position, mark_delete in steps.items():
        cursor.acknowledge(at(position))
        assert str(cursor.mark_delete_position) == mark_delete, position
    assert cursor.backlog == 2
    cursor.acknowledge(at("0:1"))
    assert cursor.backlog == 2
    assert [cursor.is_acknowledged(at(p)) for p in ("0:1", "2:0", "2:1")] == [True, True, False]


def test_marking_acknowledges_all_before_and_never_goes_back(cursor):
    cursor.acknowledge_many([at("0:1"), at("1:2")])
    cursor.mark_delete(at("1:1"))
    assert cursor.mark_delete_position == at("1:2")
    cursor.mark_delete(at("0:0"))
    assert cursor.mark_delete_position == at("1:2")
    assert cursor.backlog == 3
    cursor.mark_delete(at("2:1"))
    assert positions(cursor.read()) == ["2:2"]


def test_what_is_not_there_cannot_be_acknowledged(cursor):
    for position in ("0:3", "3:0", "2:3"):
        with pytest.raises(OffsetOutOfRangeError):
            cursor.acknowledge(at(position))
        with pytest.raises(OffsetOutOfRangeError):
            cursor.acknowledge_many([at("0:0"), at(position)])
    for position in (at("2:3"), at("3:0"), LATEST):
        with pytest.raises(OffsetOutOfRangeError):
            cursor.mark_delete(position)
    assert cursor.backlog == 9


def test_skip_and_clear(cursor):
    cursor.acknowledge(at("0:1"))
    assert cursor.skip(2) == 2
    assert cursor.mark_delete_position == at("0:2")
    cursor.clear_backlog()
    assert (cursor.backlog, cursor.skip(5), cursor.mark_delete_position) == (0, 0, at("2:2"))


def test_messages_of_a_batch_are_acknowledged_one_by_one(path):
    with ManagedLedger(path) as topic:
        topic.add_entry(batch(0, 4))
        topic.add_entry(batch(1, 2))
        cursor = topic.open_cursor("one", "earliest")
        cursor.acknowledge(at("0:0"), [0, 2])
        cursor.acknowledge(at("0:0"), [2], batch_size=4)
        assert cursor.acknowledged_batch_indexes(at("0:0")) == {0, 2}
        assert not cursor.is_acknowledged(at("0:0"))
        assert cursor.backlog == 2
        assert positions(cursor.read()) == ["0:0", "0:1"]
        for bad, size in (([4], None), ([-1], None), ([], None), (["0"], None), ([1], 5)):
            with pytest.raises(InvalidArgumentError):
                cursor.acknowledge(at("0:0"), bad, size)
        cursor.acknowledge(at("0:1"), [1])
    with ManagedLedger(path) as topic:
        cursor = topic.open_cursor("one")
        assert cursor.acknowledged_batch_indexes(at("0:0")) == {0, 2}
        cursor.acknowledge(at("0:0"), [1, 3])
        assert cursor.mark_delete_position == at("0:0")
        assert cursor.acknowledged_batch_indexes(at("0:0")) == frozenset()
        cursor.acknowledge(at("0:1"))
        assert cursor.acknowledged_batch_indexes(at("0:1")) == frozenset()
        assert cursor.backlog == 0


# --- seeking -----------------------------------------------------------------------------------


def test_seeking_forgets_what_was_acknowledged_behind_it(cursor):
    cursor.acknowledge_many([at("0:0"), at("1:1"), at("2:0")])
    cursor.seek(at("1:0"))
    assert positions(cursor.read()) == ["1:0", "1:1", "1:2", "2:0", "2:1", "2:2"]
    assert (cursor.mark_delete_position, cursor.backlog) == (at("0:2"), 6)
    for position, backlog in ((EARLIEST, 9), (LATEST, 0), (at("0:7"), 6), (at("2:2"), 1)):
        cursor.seek(position)
        assert cursor.backlog == backlog
        assert len(cursor.read()) == backlog


def test_a_seek_is_durable_at_once(path, tmp_path, topic, cursor):
    cursor.clear_backlog()
    cursor.flush()
    cursor.seek(at("0:1"))
    shutil.copytree(path, tmp_path / "killed")
    with ManagedLedger(tmp_path / "killed", config=CONFIG) as copy:
        assert copy.open_cursor("one").backlog == 8


def test_find_newest_matching_looks_behind_the_mark_delete_position(topic, cursor):
    looked_at = []

    def below(number):
        def predicate(entry):
            looked_at.append(entry.position)
            return numbers([entry])[0] < number

        return predicate

    assert cursor.find_newest_matching(below(5)) == at("1:1")
    assert len(looked_at) <= 6
    assert cursor.find_newest_matching(below(0)) is None
    assert cursor.find_newest_matching(below(100)) == at("2:2")
    cursor.mark_delete(at("1:1"))
    assert cursor.find_newest_matching(below(5)) is None
    assert cursor.find_newest_matching(below(6)) == at("1:2")
    assert topic.find_newest_matching(below(5)) == at("1:1")
    assert topic.find_newest_matching(below(9), at("0:1"), at("1:0")) == at("1:0")
    assert topic.find_newest_matching(below(9), at("1:1"), at("1:0")) is None
    cursor.clear_backlog()
    assert cursor.find_newest_matching(below(100)) is None


# --- the disk ----------------------------------------------------------------------------------


def test_acknowledgements_are_written_once_a_second_and_by_flush_and_close(path, topic, cursor, clock):
    def on_disk():
        return CursorState.read(cursor_path(path, "one")).acknowledged.mark_delete

    cursor.acknowledge(at("0:0"))
    assert on_disk() == EARLIEST
    cursor.flush()
    assert on_disk() == at("0:0")
    cursor.flush()
    clock.advance(999)
    cursor.acknowledge(at("0:1"))
    assert on_disk() == at("0:0")
    clock.advance(1)
    cursor.acknowledge(at("0:2"))
    assert on_disk() == at("0:2")
    cursor.acknowledge(at("1:0"))
    topic._maintain()
    assert on_disk() == at("1:0")
    cursor.acknowledge(at("1:1"))
    cursor.close()
    cursor.close()
    assert cursor.closed
    assert on_disk() == at("1:1")


def test_with_a_rate_of_0_each_acknowledgement_is_written(path):
    with ManagedLedger(path, config={"managedLedgerDefaultMarkDeleteRateLimit": 0}, clock=ManualClock()) as topic:
        topic.add_entries(message(n) for n in range(3))
        cursor = topic.open_cursor("one", "earliest")
        cursor.acknowledge(at("0:1"))
        assert CursorState.read(cursor_path(path, "one")).acknowledged.holds(at("0:1"))


def test_everything_is_there_after_opening_again(path, topic, cursor):
    cursor.acknowledge_many([at("0:0"), at("1:1"), at("2:0")])
    cursor.update_properties({"#x": "5", "y": "z"})
    cursor.update_properties({"y": None})
    topic.close()
    with ManagedLedger(path, config=CONFIG) as topic:
        cursor = topic.open_cursor("one")
        assert cursor.properties == {"#x": "5"}
        assert positions(cursor.read()) == ["0:1", "0:2", "1:0", "1:2", "2:1", "2:2"]
        with pytest.raises(InvalidArgumentError):
            cursor.update_properties({"a": 1})


def test_properties_are_durable_at_once(path, tmp_path, topic, cursor):
    cursor.update_properties({"snapshot": "7"})
    shutil.copytree(path, tmp_path / "killed")
    with ManagedLedger(tmp_path / "killed") as copy:
        assert copy.open_cursor("one").properties == {"snapshot": "7"}


def test_acknowledged_entries_that_a_crash_took_count_for_nothing(path, tmp_path):
    """With fsync="never" a cursor may know more than the ledger."""
    with ManagedLedger(path, fsync="never") as topic:
        topic.add_entries(message(n) for n in range(2))
        size = topic.size_bytes
        topic.add_entry(message(2))
        topic.add_entry(batch(3, 3))
        topic.add_entry(message(4))
        one, two = topic.open_cursor("one", "earliest"), topic.open_cursor("two", "earliest")
        one.mark_delete(at("0:2"))
        two.acknowledge_many([at("0:1"), at("0:4")])
        two.acknowledge(at("0:3"), [0])
        one.flush()
        two.flush()
        copy = shutil.copytree(path, tmp_path / "killed")
    log = copy / "ledger-0/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:size])
    with ManagedLedger(copy) as topic:
        one, two = topic.open_cursor("one"), topic.open_cursor("two")
        assert (one.mark_delete_position, one.backlog) == (at("0:1"), 0)
        assert (two.backlog, positions(two.read())) == (1, ["0:0"])
        topic.add_entry(message(5))
        assert positions(one.read()) == positions(two.read()) == ["1:0"]
        assert two.acknowledged_batch_indexes(at("0:3")) == frozenset()


def test_a_damaged_cursor_file_is_refused_and_a_newer_one_too(path, topic, cursor):
    cursor.acknowledge(at("1:1"))
    topic.close()
    file = cursor_path(path, "one")
    raw = file.read_bytes()
    for n in range(0, len(raw) - 1, 5):
        file.write_bytes(raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :])
        with pytest.raises(CorruptManifestError):
            ManagedLedger(path)
    file.write_bytes(format_json(FORMAT, 4, name="one"))
    with pytest.raises(UnsupportedVersionError):
        ManagedLedger(path)
    good = {"name": "one", "mark_delete": [0, 0], "acknowledged": [], "batches": [], "properties": {}}
    file.write_bytes(format_json(FORMAT, 1, **good))
    ManagedLedger(path).close()
    for change in (
        {"name": 1}, {"name": "two"}, {"mark_delete": [0]}, {"mark_delete": [-2, 0]}, {"mark_delete": [0, 2**63 - 1]},
        {"acknowledged": [[0, "?"]]}, {"acknowledged": [[0, 5]]}, {"acknowledged": [[0, "AAAA"]]}, {"acknowledged": 5},
        {"batches": [[0, 0, 0, ""]]}, {"properties": {"a": 5}},
    ):
        file.write_bytes(format_json(FORMAT, 1, **good | change))
        with pytest.raises(CorruptManifestError):
            ManagedLedger(path)


def test_many_acknowledgements_take_little_room(path, topic, cursor):
    """Runs of acknowledged entries are a few bytes, whatever their number."""
    state = CursorState("one", Acknowledgements())
    for n in range(10, 100_000):
        state.acknowledged.add(at(f"0:{n}"))
    assert len(state.to_bytes()) < 400
    again = CursorState.parse(state.to_bytes())
    assert again.acknowledged.run_from(at("0:10")) == 99_999
    assert len(again.acknowledged) == 99_990


def test_threads_add_read_acknowledge_and_trim_at_once(path):
    """Consumers share a cursor: each entry comes once, and ledgers go when both subscriptions have passed them."""
    config = {"managedLedgerMaxEntriesPerLedger": 10, "brokerEntryMetadataInterceptors": "index"}
    with ManagedLedger(path, config=config, fsync="never") as topic:
        cursors = [topic.open_cursor(name, "earliest") for name in ("one", "two")]
        seen, failed, done = {"one": [], "two": []}, [], threading.Event()

        def produce(producer):
            for n in range(40):
                topic.add_entry(message(40 * producer + n))

        def consume(cursor):
            finished = False
            while not finished:
                finished = done.wait(0.001)     # asked before the last look
                while entries := cursor.read(7):
                    for entry in entries:
                        seen[cursor.name].append(numbers([entry])[0])
                        cursor.acknowledge(entry.position)

        def run(work, argument):
            try:
                work(argument)
            except Exception as error:
                failed.append(error)

        producers = [threading.Thread(target=run, args=(produce, n)) for n in range(3)]
        consumers = [threading.Thread(target=run, args=(consume, cursor)) for cursor in cursors * 2]
        for thread in producers + consumers:
            thread.start()
        for thread in producers:
            thread.join(60)
        done.set()
        for thread in consumers:
            thread.join(60)
        assert failed == []
        for cursor in cursors:
            assert sorted(seen[cursor.name]) == list(range(120))
            assert cursor.backlog == 0
        assert len(topic.ledgers) <= 2


# --- what it costs -----------------------------------------------------------------------------


class Heads(SortedDict):
    """Counts the keys that are looked at."""

    looks = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looks += 1
            yield key

    def peekitem(self, index=-1):
        self.looks += 1
        return super().peekitem(index)


def test_an_acknowledgement_looks_at_the_head_of_half_acknowledged_batches_alone():
    acknowledged = Acknowledgements(EARLIEST)
    acknowledged.batches = Heads({at(f"0:{n}"): PartOfBatch(5, bitmap([n % 5])) for n in range(100, 1000)})
    acknowledged.entries = Heads({ledger: bitmap([7]) for ledger in range(1, 1000)})
    for n in range(100):
        acknowledged.mark(at(f"0:{n}"))
    assert acknowledged.batches.looks <= 100
    assert acknowledged.entries.looks <= 100
    acknowledged.mark(at("0:199"))
    assert list(acknowledged.batches) == [at(f"0:{n}") for n in range(200, 1000)]
    acknowledged.mark(at("3:7"))
    assert not acknowledged.batches
    assert list(acknowledged.entries) == list(range(4, 1000))


@pytest.mark.parametrize("limits", [{}, {"max_bytes": 10**6}, {"skip": lambda position: False}])
def test_what_stands_before_a_damaged_entry_is_read_first(path, clock, limits):
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        for n in range(9):
            topic.add_entry(message(n))
    log, = (path / ledger_directory(path, 1)).glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1         # in the second of three
    log.write_bytes(raw)
    with ManagedLedger(path, config=CONFIG, clock=clock) as topic:
        cursor = topic.open_cursor("one", "earliest")
        assert numbers(cursor.read(2, **limits)) == [0, 1]
        assert numbers(cursor.read(100, **limits)) == [2, 3]
        for _ in range(2):
            with pytest.raises(CorruptRecordError):
                cursor.read(100, **limits)
        cursor.seek(at("2:0"))
        assert numbers(cursor.read(100, **limits)) == [6, 7, 8]


def test_clearing_the_backlog_acknowledges_what_was_set_aside_also_if_no_ledger_is_left(path, clock):
    with ManagedLedger(path, config={"managedLedgerMaxEntriesPerLedger": 3}, clock=clock) as topic:
        cursor = topic.open_cursor("one", "earliest")
        topic.add_entries(message(n) for n in range(3))
        cursor.set_aside([(at("0:1"), 1)])
        cursor.acknowledge_many([at("0:0"), at("0:2")])
        topic.roll()
        topic.trim()
        assert topic.last_position is None
        assert cursor.backlog == 1
        cursor.clear_backlog()
        assert cursor.backlog == 0
    with ManagedLedger(path) as topic:
        assert topic.cursors["one"].backlog == 0
