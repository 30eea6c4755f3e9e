"""Compaction of topics: what Pulsar's compactors make of the golden ones, and what PIP-429 says of its two examples."""
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import CorruptManifestError, InvalidConfigError
from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.compacted.batch import PLACEHOLDERS
from seglog.ledger.compacted.raw_message import message_id_bytes, raw_message, read_raw_message
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR, DIRECTORY, LEDGER_PROPERTY
from seglog.ledger.message_batch import batch_of
from seglog.ledger.message_position import MessagePosition
from seglog.ledger.position import EARLIEST, Position
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.upkeep.compaction_phases import CompactionPhases
from seglog.upkeep.ledger_recover import plan_recovery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.compaction import LIBRARY_CODECS, TOPICS, decoded, golden_topic
from support.keyed_topic import (
    compacted_indexes,
    encrypted_batch,
    keyed,
    keyed_batch,
    marker,
    metadata_of,
    read_all,
)
from support.topics import delayed
from support.waiting import wait_for

AS_PULSAR = {"seglog.compaction.encrypted.by.entry.key": True}


def topic_of(path, entries, **config):
    topic = ManagedLedger(path, config=config.pop("config", {}), **config)
    topic.add_entries(entries)
    return topic


def compacted(service):
    return service.read_compacted_entries(EARLIEST, 10_000)


# --- the golden topics -----------------------------------------------------------------------


@pytest.mark.parametrize("number", TOPICS)
@pytest.mark.parametrize("nulls", ["retain", "drop"])
@pytest.mark.parametrize("release", ["new", "old"])
def test_a_golden_topic_becomes_what_pulsar_made_of_it(number, nulls, release):
    """4.2.4 is new; 4.0.7, old, without field 31. By bytes, but where these are up to a codec's library."""
    config = ManagedLedgerConfig.of(AS_PULSAR | {
        "topicCompactionRetainNullKey": nulls == "retain", "seglog.compaction.batch.indexes": release == "new",
    })
    entries = [read_raw_message(record) for record in golden_topic(f"topic{number}.in")[0]]
    phases, compacted_to = CompactionPhases(config), None
    for n, (position, data) in enumerate(entries):
        stays = phases.note(Entry(data), n, PLACEHOLDERS)
        assert stays is not None
        if stays:
            compacted_to = position
    made = []
    for n, (position, data) in enumerate(entries):
        kept = phases.kept(Entry(data), n, PLACEHOLDERS)
        if kept is not None:
            made.append(raw_message(position, kept))
    records, says, summary = golden_topic(f"topic{number}.{release}.{nulls}")
    assert len(made) == len(records) == summary["entries_out"] == phases.count.entries_out
    assert message_id_bytes(compacted_to).hex() == summary["ledger_metadata"]["pulsar/compactedTo"]
    for record, golden, said in zip(made, records, says, strict=True):
        if said["metadata"].get("compression") in LIBRARY_CODECS:
            assert decoded(record) == decoded(golden)
        else:
            assert record == golden


# --- the proposal's examples -----------------------------------------------------------------

FIRST = [("k0", b"v0"), ("k0", b"v1"), ("k1", b"v0"), ("k1", None)]
SECOND = [("k0", b"v0"), ("k1", b"v1"), ("k2", b"v2"), ("k1", None)]


@pytest.mark.parametrize("payload", ["placeholders", "retained-only"])
@pytest.mark.parametrize(("messages", "indexes"), [(FIRST, [1]), (SECOND, [0, 2])])
def test_the_examples_of_pip_429(tmp_path, payload, messages, indexes):
    config = {"seglog.compaction.payload": payload, "brokerEntryMetadataInterceptors": "timestamp,index"}
    with topic_of(tmp_path / "t", [keyed_batch(0, messages, PayloadCodec.LZ4, 77)], config=config) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        (entry,) = compacted(service)
        assert compacted_indexes(entry) == indexes
        assert service.get_last_message_position() == MessagePosition(0, 0, indexes[-1], 77)
        assert entry.message_count == 4
        assert entry.broker_timestamp is not None
        assert entry.index == 3
        metadata = entry.entry.metadata
        count = len(indexes) if payload == "retained-only" else 4
        metadata.num_messages_in_batch = count
        opened = batch_of(Entry(_with(entry, metadata)))
        assert opened.trailing_bytes == 0
        assert [m.metadata.compacted_out for m in opened.messages] == [
            payload == "placeholders" and n not in indexes for n in range(count)
        ]
        assert read_all(topic, service) == [messages[n] for n in indexes]


def _with(entry, metadata):
    return build_entry(metadata, entry.entry.payload())


# --- rounds ----------------------------------------------------------------------------------


def test_the_next_compaction_begins_with_what_the_last_one_left(tmp_path):
    """The topic behind it may be trimmed (Pulsar's #12429: the compacted data was passed over)."""
    with topic_of(tmp_path / "t", [keyed(0, "a", b"1"), keyed_batch(1, [("b", b"1"), ("c", b"1")])]) as topic:
        service = PulsarTopicCompactionService(topic)
        assert service.compact().rounds == 1
        topic.add_entries([keyed(2, "a", b"2"), keyed_batch(3, [("c", None), ("d", b"1")])])
        report = service.compact()
        assert (report.rounds, report.horizon) == (1, Position(0, 3))
        assert read_all(topic, service) == [("b", b"1"), ("a", b"2"), ("d", b"1")]
        assert service.compact().rounds == 0
    with ManagedLedger(tmp_path / "t") as topic:
        service = PulsarTopicCompactionService(topic)
        assert service.get_last_message_position() == (0, 3, 1, 1003)
        assert read_all(topic, service) == [("b", b"1"), ("a", b"2"), ("d", b"1")]


def test_keys_beyond_the_budget_take_several_rounds(tmp_path):
    config = {"seglog.compaction.key.map.bytes": 4096}
    entries = [
        keyed_batch(n, [(f"k{(n * 7 + m * 13) % 500}", b"%d/%d" % (n, m)) for m in range(10)]) for n in range(120)
    ]
    with topic_of(tmp_path / "one", entries) as topic:
        assert PulsarTopicCompactionService(topic).compact().rounds == 1
        expected = read_all(topic)
    with topic_of(tmp_path / "many", entries, config=config) as topic:
        report = PulsarTopicCompactionService(topic).compact()
        assert report.rounds > 5
        assert read_all(topic) == expected
        assert len(expected) == len(dict(expected)) > 300


def test_a_batch_of_more_keys_than_the_budget_is_compacted_all_the_same(tmp_path):
    config = {"seglog.compaction.key.map.bytes": 4096}
    messages = [(f"k{n}", b"v") for n in range(1000)]
    with topic_of(tmp_path / "t", [keyed_batch(0, messages), keyed_batch(1, messages)], config=config) as topic:
        service = PulsarTopicCompactionService(topic)
        assert service.compact().rounds == 2
        assert read_all(topic, service) == messages


def test_an_option_that_changed_is_carried_out_where_nothing_came(tmp_path):
    entries = [keyed_batch(0, FIRST, PayloadCodec.LZ4), keyed_batch(1, SECOND)]
    sizes = []
    for payload in ("placeholders", "retained-only", "placeholders"):
        with ManagedLedger(tmp_path / "t", config={"seglog.compaction.payload": payload}) as topic:
            if not topic.entry_count:
                topic.add_entries(entries)
            service = PulsarTopicCompactionService(topic)
            assert service.compact().rounds == 1
            assert service.compact().rounds == 0
            assert read_all(topic, service) == [("k0", b"v0"), ("k2", b"v2")]
            sizes.append([bytes(entry.data) for entry in compacted(service)])
    assert sizes[0] == sizes[2]
    assert len(sizes[1][0]) < len(sizes[0][0])


def test_without_field_31_nobody_knows_what_retained_only_left(tmp_path):
    config = {"seglog.compaction.payload": "retained-only", "seglog.compaction.batch.indexes": False}
    with topic_of(tmp_path / "t", [keyed(0, "k", b"v")], config=config) as topic, pytest.raises(InvalidConfigError):
        PulsarTopicCompactionService(topic).compact()


# --- what the reference tells of Pulsar's bugs -----------------------------------------------


@pytest.mark.parametrize("entries", [
    pytest.param([keyed_batch(0, [("a", b"1"), ("b", b"1")]), keyed_batch(1, [("a", None), ("b", None)])], id="all"),
    pytest.param([keyed(0, "a", None)], id="one tombstone"),
    pytest.param([keyed(0, "a", b"1"), keyed(1, "a", None)], id="the last one"),
    pytest.param([marker(0), marker(1)], id="markers"),
])
def test_nothing_left_is_an_empty_result(tmp_path, entries):
    """Pulsar's #6795, #2591, #6237."""
    with topic_of(tmp_path / "t", entries) as topic:
        service = PulsarTopicCompactionService(topic)
        report = service.compact()
        assert (report.rounds, report.count.entries_out) == (1, 0)
        assert service.get_last_message_position() == MessagePosition.EARLIEST
        assert service.get_last_compacted_position() == topic.last_position
        assert compacted(service) == []
        assert service.find_entry_by_publish_time(0) is None
        assert read_all(topic, service) == []
        topic.add_entry(keyed(5, "b", b"1"))
        assert read_all(topic, service) == [("b", b"1")]
    with ManagedLedger(tmp_path / "t") as topic:
        assert read_all(topic) == [("b", b"1")]


def test_an_empty_topic_is_not_compacted(tmp_path):
    with ManagedLedger(tmp_path / "t") as topic:
        service = PulsarTopicCompactionService(topic)
        assert service.compact().rounds == 0
        assert service.get_last_message_position() == MessagePosition.EARLIEST
        assert read_all(topic, service) == []


def test_the_last_message_is_not_the_tail_that_was_removed(tmp_path):
    """Pulsar's #18877, #13533: k1 = null is no last message, also where the topic's end is the horizon."""
    with topic_of(tmp_path / "t", [keyed_batch(0, FIRST), keyed(1, "k9", None)]) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert service.get_last_message_position() == (0, 0, 1, 1000)
        assert read_all(topic, service) == [("k0", b"v1")]


def test_encrypted_batches_neither_fail_nor_are_opened(tmp_path):
    """Pulsar's #24439. Kept whole; by their entry's key only where somebody asks for it."""
    entries = [encrypted_batch(0, 3, "k"), keyed(1, "k", b"1"), encrypted_batch(2, 5, "k"), encrypted_batch(3, 2)]
    with topic_of(tmp_path / "t", entries) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == entries
        assert service.get_last_message_position() == (0, 3, 1, 1003)
        assert [key for key, _ in read_all(topic, service)] == [None, "k", None, None]
    with topic_of(tmp_path / "by-key", entries, config=AS_PULSAR | {"topicCompactionRetainNullKey": True}) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == entries[2:]
    with ManagedLedger(tmp_path / "t", config=AS_PULSAR) as topic:     # asked for later: several have the key
        topic.add_entry(keyed(4, "z", b"1"))
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == [entries[2], keyed(4, "z", b"1")]


def test_a_batch_that_holds_a_tombstone_is_not_lost(tmp_path):
    """Pulsar's #20980, #21917: where it was the first or the last one, so were its other messages."""
    entries = [
        keyed_batch(0, [("a", None), ("b", b"1")]), keyed_batch(1, [("c", b"1"), ("d", b"1")]),
        keyed_batch(2, [("c", None)]), keyed_batch(3, [("e", b"1"), ("d", None)]),
    ]
    with topic_of(tmp_path / "t", entries) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert read_all(topic, service) == [("b", b"1"), ("e", b"1")]
        assert len(compacted(service)) == 2     # what is all removed is not written


def test_a_tombstone_of_another_client_deletes_its_key(tmp_path):
    """Pulsar's #25817: C++, Python and Go say no uncompressed_size, and their metadata was taken for a value."""
    plain = build_entry(metadata_of(1, key="a"), b"")
    with topic_of(tmp_path / "t", [keyed(0, "a", b"1"), plain]) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert read_all(topic, service) == []


def test_a_cursor_that_was_reset_far_back_does_not_bring_old_messages_back(tmp_path):
    """Pulsar's #11287, #25118, #12522: the horizon is what the compacted ledger says, not where the cursor stands."""
    with topic_of(tmp_path / "t", [keyed(0, "a", b"1"), keyed(1, "b", b"1"), keyed(2, "a", None)]) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        topic.cursors[COMPACTION_CURSOR].seek(EARLIEST)
        assert read_all(topic, service) == [("b", b"1")]
        topic.add_entry(keyed(3, "c", b"1"))
        service.compact()
        assert read_all(topic, service) == [("b", b"1"), ("c", b"1")]
        assert topic.cursors[COMPACTION_CURSOR].mark_delete_position == topic.last_position


def test_a_lost_pointer_is_a_loud_error(tmp_path):
    """Pulsar's #26512, #26631: it was an incomplete set of keys. Nothing is removed meanwhile."""
    config = {"managedLedgerMaxEntriesPerLedger": 1}
    with topic_of(tmp_path / "t", [keyed(n, f"k{n}", b"1") for n in range(4)], config=config) as topic:
        PulsarTopicCompactionService(topic).compact()
        pointer = topic.cursors[COMPACTION_CURSOR].properties[LEDGER_PROPERTY]
        kept = topic.path / DIRECTORY / f"ledger-{pointer}"
        topic.cursors[COMPACTION_CURSOR].update_properties({LEDGER_PROPERTY: None})
        with pytest.raises(CorruptManifestError, match="in use"):
            PulsarTopicCompactionService(topic)
        topic.delete_cursor(COMPACTION_CURSOR)
    with ManagedLedger(tmp_path / "t") as topic:
        assert kept.is_dir()
        with pytest.raises(CorruptManifestError, match="keys would be missing"):
            PulsarTopicCompactionService(topic)
        topic.open_cursor(COMPACTION_CURSOR, "earliest", {LEDGER_PROPERTY: pointer})
        assert len(read_all(topic)) == 4
        for gone in kept.iterdir():
            gone.unlink()
        kept.rmdir()
        with pytest.raises(CorruptManifestError, match="is missing"):
            PulsarTopicCompactionService(topic)
        topic.open_cursor(COMPACTION_CURSOR).update_properties({LEDGER_PROPERTY: "x"})
        with pytest.raises(CorruptManifestError, match="not a ledger"):
            PulsarTopicCompactionService(topic)


def test_a_cursor_that_somebody_moved_forward_is_a_loud_error(tmp_path):
    with topic_of(tmp_path / "t", [keyed(0, "a", b"1")]) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        topic.add_entry(keyed(1, "b", b"1"))
        topic.cursors[COMPACTION_CURSOR].mark_delete(Position(0, 1))
        for call in (service.compact, lambda: PulsarTopicCompactionService(topic)):
            with pytest.raises(CorruptManifestError, match="keys would be missing"):
                call()


def test_a_key_is_forgotten_after_its_time(tmp_path):
    """Pulsar's #24791: by the broker's time, where there is one."""
    clock = ManualClock(10_000)
    config = {"seglog.compaction.key.ttl.ms": 1000, "brokerEntryMetadataInterceptors": "timestamp",
              "topicCompactionRetainNullKey": True}
    with topic_of(
        tmp_path / "t", [keyed_batch(0, [("a", b"1"), (None, b"0")], publish_time=1), keyed(1, "b", b"1")],
        config=config, clock=clock,
    ) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert read_all(topic, service) == [("a", b"1"), (None, b"0"), ("b", b"1")]
        clock.advance(900)
        topic.add_entry(keyed(2, "b", b"2"))
        clock.advance(200)
        service.compact()
        assert read_all(topic, service) == [(None, b"0"), ("b", b"2")]
        clock.advance(2000)
        service.compact()
        assert read_all(topic, service) == [(None, b"0")]


@pytest.mark.parametrize("retains", [True, False])
def test_messages_without_a_key(tmp_path, retains):
    """PIP-318 (#21541)."""
    entries = [keyed_batch(0, [(None, b"1"), ("a", b"1")]), keyed(1, None, b"2"), keyed_batch(2, [(None, b"3")])]
    config = {"topicCompactionRetainNullKey": retains}
    with topic_of(tmp_path / "t", entries, config=config) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        expected = [(None, b"1"), ("a", b"1"), (None, b"2"), (None, b"3")]
        assert read_all(topic, service) == (expected if retains else [("a", b"1")])


def test_the_chunks_of_a_message_stay_together(tmp_path):
    """Each of them carries the key: by the key alone only the last chunk would stay."""
    def chunk(number, uuid, chunk_id):
        made = metadata_of(number, key="a")
        made.uuid, made.num_chunks_from_msg, made.total_chunk_msg_size, made.chunk_id = uuid, 2, 8, chunk_id
        return build_entry(made, b"half")

    entries = [chunk(0, "x", 0), chunk(1, "x", 1), chunk(2, "y", 0), chunk(3, "y", 1)]
    with topic_of(tmp_path / "t", entries) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == entries[2:]
        topic.add_entry(keyed(4, "b", b"1"))
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == [*entries[2:], keyed(4, "b", b"1")]
        topic.add_entry(keyed(5, "a", None))
        service.compact()
        assert [bytes(entry.data) for entry in compacted(service)] == [keyed(4, "b", b"1")]


def test_a_batch_that_cannot_be_opened_stays_whole(tmp_path):
    made = metadata_of(1)
    made.num_messages_in_batch, made.compression, made.uncompressed_size = 3, 1, 400
    broken = build_entry(made, b"no LZ4")
    with topic_of(tmp_path / "t", [keyed(0, "a", b"1"), broken, keyed(2, "a", b"2")]) as topic:
        service = PulsarTopicCompactionService(topic)
        assert service.compact().count.unreadable == 1
        assert [bytes(entry.data) for entry in compacted(service)] == [broken, keyed(2, "a", b"2")]


# --- what stays as it is ---------------------------------------------------------------------


def test_compaction_holds_back_trimming_and_does_not_bring_it_about(tmp_path):
    config = {"managedLedgerMaxEntriesPerLedger": 2}
    with topic_of(tmp_path / "t", [keyed(n, "a", b"%d" % n) for n in range(6)], config=config) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        topic.roll()
        assert topic.first_position == Position(0, 0)       # nobody has subscribed: all is kept
        cursor = topic.open_cursor("sub", "earliest")
        for n in range(6, 10):
            topic.add_entry(keyed(n, "a", b"%d" % n))
        cursor.clear_backlog()
        topic.roll()
        behind = service.get_last_compacted_position()
        assert topic.first_position == topic.next_valid(behind)
        assert read_all(topic, service) == [("a", b"5"), *(("a", b"%d" % n) for n in range(6, 10))]
        service.compact()
        topic.trim()
        assert topic.entry_count == 0
        assert read_all(topic, service) == [("a", b"9")]


def test_other_cursors_do_not_notice(tmp_path):
    with topic_of(tmp_path / "t", [keyed(n, "a", b"%d" % n) for n in range(6)]) as topic:
        cursor = topic.open_cursor("sub", "earliest")
        cursor.acknowledge(Position(0, 2))
        PulsarTopicCompactionService(topic).compact()
        assert [entry.position.entry_id for entry in cursor.read()] == [0, 1, 3, 4, 5]
        assert cursor.backlog == 5


def test_maintenance_compacts_by_the_threshold(tmp_path):
    clock = ManualClock(10_000)
    config = {"brokerServiceCompactionThresholdInBytes": 1000}
    with ManagedLedger(tmp_path / "t", config=config, clock=clock) as topic:
        service = PulsarTopicCompactionService(topic)
        for n in range(5):
            topic.add_entry(keyed(n, "a", b"x" * 100))
        topic._maintain()
        assert service.compacted_ledger is None
        for n in range(5):
            topic.add_entry(keyed(n, "a", b"x" * 100))
        assert service._bytes_to_compact() >= 1000
        topic._maintain()
        assert service.get_last_compacted_position() == topic.last_position
        assert service._bytes_to_compact() == 0
        for n in range(9):
            topic.add_entry(keyed(n, "a", b"x" * 100))
        topic.cursors[COMPACTION_CURSOR].clear_backlog()
        topic._maintain()
        assert isinstance(service.error, CorruptManifestError)
        service.close()
        topic._maintain()


@pytest.mark.parametrize("fsync", ["batch", "interval"])
def test_its_thread_compacts_by_the_threshold(tmp_path, fsync):
    config = {
        "brokerServiceCompactionThresholdInBytes": 500, "brokerServiceCompactionMonitorIntervalInSeconds": 1,
        "flush.ms": 100,
    }
    with ManagedLedger(tmp_path / "t", config=config, fsync=fsync) as topic:
        service = PulsarTopicCompactionService(topic)
        topic.add_entries([keyed(n, "a", b"x" * 100) for n in range(8)])
        wait_for(lambda: service.get_last_compacted_position() == topic.last_position, seconds=60)
        assert read_all(topic, service) == [("a", b"x" * 100)]
        assert len(compacted(service)) == 1


def test_a_dry_run_changes_nothing(tmp_path):
    with topic_of(tmp_path / "t", [keyed_batch(0, FIRST), keyed_batch(1, SECOND)]) as topic:
        service = PulsarTopicCompactionService(topic)
        planned = service.plan()
        assert service.compacted_ledger is None
        assert COMPACTION_CURSOR not in topic.cursors
        done = service.compact()
        assert (planned.horizon, planned.last, planned.keys, planned.count) == (
            done.horizon, done.last, done.keys, done.count
        )
        assert (done.count.messages_in, done.count.messages_out, done.keys) == (8, 2, 3)
        assert service.plan().rounds == 0


def test_a_manifest_made_anew_gives_no_compacted_ledgers_id_out_again(tmp_path):
    """Else the next compacted ledger would have a lower id than the one before, which tells a lost pointer."""
    with topic_of(tmp_path / "t", [keyed(n, f"k{n}", b"1") for n in range(3)]) as topic:
        for n in range(4):
            PulsarTopicCompactionService(topic).compact()
            topic.add_entry(keyed(9 + n, "a", b"%d" % n))
        before = int(topic.cursors[COMPACTION_CURSOR].properties[LEDGER_PROPERTY])
    (tmp_path / "t/manifest").unlink()
    plan_recovery(tmp_path / "t").apply()
    with ManagedLedger(tmp_path / "t") as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        assert service.compacted_ledger.ledger_id > before
        expected = [*((f"k{n}", b"1") for n in range(3)), ("a", b"3")]
        assert read_all(topic, service) == expected
        assert read_all(topic, PulsarTopicCompactionService(topic)) == expected


def test_delayed_messages_do_not_notice(tmp_path):
    clock = ManualClock(1_000)
    with ManagedLedger(tmp_path / "t", clock=clock) as topic, DelayedDelivery(topic, clock=clock) as delivery:
        dispatcher = delivery.dispatcher(topic.open_cursor("sub", "earliest"))
        topic.add_entries(delayed(n, 5_000 + n) for n in range(4))
        topic.add_entry(keyed(9, "a", b"1"))
        assert [entry.position.entry_id for entry in dispatcher.read()] == [4]
        PulsarTopicCompactionService(topic).compact()
        clock.set(6_000)
        assert [entry.position.entry_id for entry in dispatcher.read()] == [0, 1, 2, 3]


def test_a_topic_that_is_opened_compacts_by_itself(tmp_path):
    config = {"brokerServiceCompactionThresholdInBytes": 500}
    with seglog.pulsar.ManagedLedger(tmp_path / "t", config=config) as topic:
        topic.add_entries([keyed(n, "a", b"x" * 100) for n in range(8)])
        topic._maintain()
        service = seglog.pulsar.PulsarTopicCompactionService(topic)
        assert len(compacted(service)) == 1
        reader = seglog.pulsar.read_compacted(topic, service)
        assert reader.read_next().position == seglog.pulsar.MessagePosition(0, 7, -1, 1007)
    with seglog.pulsar.ManagedLedger(tmp_path / "other") as topic:
        topic.add_entries([keyed(n, "a", b"x" * 100) for n in range(8)])
        topic._maintain()
        assert COMPACTION_CURSOR not in topic.cursors


def test_the_keys_of_what_was_compacted_need_no_budget(tmp_path):
    """Where encrypted batches are to be compacted by key from now on, all that was compacted is looked at again."""
    entries = [keyed_batch(n, [(f"k{n}-{m}", b"1") for m in range(50)]) for n in range(10)]
    with topic_of(tmp_path / "t", entries) as topic:
        PulsarTopicCompactionService(topic).compact()
        topic.add_entries([keyed(20 + n, f"k{n}-7", b"2") for n in range(10)])
    with ManagedLedger(tmp_path / "t", config=AS_PULSAR | {"seglog.compaction.key.map.bytes": 4096}) as topic:
        service = PulsarTopicCompactionService(topic)
        service.compact()
        found = read_all(topic, service)
        assert len(found) == len(dict(found)) == 500
        assert sum(value == b"2" for _, value in found) == 10


def test_what_one_service_compacted_every_service_of_the_topic_reads(tmp_path):
    """A ledger that compacts by itself has one, and a reader another: the topic is trimmed behind the first."""
    config = {"brokerServiceCompactionThresholdInBytes": 1, "managedLedgerMaxEntriesPerLedger": 3}
    with seglog.pulsar.ManagedLedger(tmp_path / "t", config=config) as topic:
        subscription = topic.open_cursor("sub", "earliest")
        entries = [keyed(n, f"k{n}", b"%d" % n) for n in range(12)]
        topic.add_entries(entries[:6])
        topic._maintain()
        reads, closed = PulsarTopicCompactionService(topic), PulsarTopicCompactionService(topic)
        closed.close()
        closed.close()
        topic._remove_chore(reads._compact_if_due)
        topic.add_entries(entries[6:])
        subscription.clear_backlog()
        topic._maintain()
        topic.roll()
        assert topic.entry_count == 0
        assert read_all(topic, reads) == [(f"k{n}", b"%d" % n) for n in range(12)]
        assert reads.compact().rounds == 0


def test_services_of_a_topic_compact_one_after_the_other(tmp_path, monkeypatch):
    """Two at once, and the slower one would put the horizon back over entries that are trimmed."""
    config = {"managedLedgerMaxEntriesPerLedger": 3, "managedLedgerDefaultMarkDeleteRateLimit": 0}
    entries = [keyed(n, f"k{n}", b"%d" % n) for n in range(12)]
    with topic_of(tmp_path / "t", entries[:6], config=config) as topic:
        subscription = topic.open_cursor("sub", "earliest")
        slow, quick = PulsarTopicCompactionService(topic), PulsarTopicCompactionService(topic)
        began, may_go_on, write = threading.Event(), threading.Event(), slow._write

        def waits(*arguments):
            began.set()
            assert may_go_on.wait(60)
            write(*arguments)

        monkeypatch.setattr(slow, "_write", waits)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(slow.compact)
            assert began.wait(60)
            topic.add_entries(entries[6:])
            second = threads.submit(quick.compact)
            with contextlib.suppress(TimeoutError):
                second.result(timeout=0.5)
                subscription.clear_backlog()
                topic.roll()
            may_go_on.set()
            first.result(60)
            second.result(60)
        subscription.clear_backlog()
        topic.roll()
        for service in (slow, quick, PulsarTopicCompactionService(topic)):
            assert read_all(topic, service) == [(f"k{n}", b"%d" % n) for n in range(12)]
