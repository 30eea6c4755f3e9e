"""A log of messages with tags, as a directory: its files, its two witnesses, and what any log does."""
import logging
import shutil
import struct

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    NotALogError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.tagged import scan_tagged, to_tagged
from support.lookups import offset_at
from support.models import plain_tagged
from support.models.tagged_author import Author
from support.waiting import wait_for

NOW = 1_700_000_000_000
TAGGED = {"seglog.message.dialect": "tagged", "segment.bytes": 3000, "index.interval.bytes": 300}
RECORDS = 200
INDEX_ENTRY = struct.Struct(">iqi")


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


def open_log(path, config=None, **more):
    return seglog.open(path, clock=ManualClock(NOW + 10**6), config=config, **more)


def time_of(offset):
    """Out of order by a little: the largest of all before is what an index says."""
    return NOW + offset * 1000 - (2500 if offset % 7 == 3 else 0)


def filled(path, count=RECORDS, config=None):
    log = open_log(path, {**TAGGED, **(config or {})})
    for offset in range(count):
        log.append(b"v%d" % offset, key=b"k%d" % (offset % 9), timestamp=time_of(offset))
    return log


def expected(count=RECORDS):
    return [(n, b"k%d" % (n % 9), b"v%d" % n, time_of(n)) for n in range(count)]


def records(log, **more):
    return [(r.offset, r.key, r.value, r.timestamp) for r in log.read(**more)]


def check_indexes(path):
    """Each entry by its own: an index a segment, the message at its position, the largest time up to there."""
    logs = names.log_files(path)
    assert all(log.suffix == ".tlog" for log in logs)
    for log in logs:
        base, raw = int(log.stem), log.read_bytes()
        largest, entries = -1, list(INDEX_ENTRY.iter_unpack(log.with_suffix(".tindex").read_bytes()))
        waiting = iter(entries)
        entry = next(waiting, None)
        for message in scan_tagged(raw):
            largest = max(largest, message.max_timestamp)
            if entry is not None and message.position == entry[2]:
                assert entry == (message.last_offset - base, largest, message.position)
                entry = next(waiting, None)
        assert entry is None
        assert entries or len(raw) < 700
    return len(logs)


# --- what any log does ---------------------------------------------------------------------------------


def test_it_is_appended_to_rolled_read_and_searched(path):
    with filled(path) as log:
        assert len(log.segments) > 3
        assert records(log) == expected()
        assert log.append_many([(b"a", b"b", None, NOW + 10**6), (None, None, None, NOW + 10**6)]) == RECORDS + 1
        ready = seglog.build_batch([(b"c", b"d" * 50)] * 5, codec="zstd", timestamp=NOW + 10**6)
        assert log.append_batch(ready) == (RECORDS + 2, RECORDS + 6, False)
        for reader in (log, seglog.open_partition(path), seglog.follow(path)):
            # A follower is a few milliseconds late.
            wait_for(lambda reader=reader: reader.log_end_offset == log.log_end_offset)
            assert records(reader)[:RECORDS] == expected()
            assert len(records(reader)) == RECORDS + 7
            for offset in range(RECORDS):
                assert (reader[offset].offset, reader[offset].value) == (offset, b"v%d" % offset)
                found = reader.offset_for_time(time_of(offset))
                first = next(n for n in range(RECORDS) if time_of(n) >= time_of(offset))
                assert (found.offset, found.timestamp) == (first, time_of(first))
            assert reader[RECORDS + 4].value == b"d" * 50
            assert offset_at(reader, NOW + 10**6 + 1) in (None, RECORDS + 7)
            if reader is not log:
                reader.close()
    assert check_indexes(path) > 3
    assert not list(path.glob("*.log")) + list(path.glob("*.snapshot")) + list(path.glob("*.timeindex"))


def test_plain_python_reads_its_files(path):
    with filled(path, 50, {"compression.type": "gzip"}):
        pass
    read = [message for log in names.log_files(path) for message in plain_tagged.records(log.read_bytes())]
    assert [(offset, key, value, timestamp) for offset, timestamp, key, value in read] == expected(50)


def test_it_goes_on_where_it_was_closed(path):
    with filled(path):
        pass
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".tlog", ".tindex")}
    with open_log(path) as log:
        assert log.config.message_dialect == "tagged"
        assert (log.recovery.lost, log.recovery.repairs) == ((), ())
        assert files.items() <= {file.name: file.read_bytes() for file in path.iterdir()}.items()
        log.append(b"more", timestamp=NOW + 10**6)
        assert records(log)[:-1] == expected()
    check_indexes(path)


def test_it_is_cut_and_emptied(path):
    with filled(path) as log:
        log.truncate_to(150)
        assert log.append(b"again", timestamp=NOW) == 150
        assert records(log)[:-1] == expected(150)
        log.delete_records(before=100)
        assert records(log)[:-1] == expected(150)[100:]
        check_indexes(path)
        log.truncate_to(100)
        assert log.append(b"new", timestamp=NOW) == 100
    check_indexes(path)


@pytest.mark.parametrize("harm", ["torn", "no_index", "bad_index", "all_indexes"])
def test_a_crash_is_recovered(path, tmp_path, harm):
    log = filled(path)
    dead = tmp_path / "dead" / "orders-0"
    shutil.copytree(path, dead)
    log.close()
    *_, last = names.log_files(dead)
    index = last.with_suffix(".tindex")
    match harm:
        case "torn":
            with last.open("ab") as file:
                file.write(last.read_bytes()[:40])
        case "no_index":
            index.unlink()
        case "bad_index":
            index.write_bytes(INDEX_ENTRY.pack(3, NOW + 10**9, 70))
        case "all_indexes":
            for one in dead.glob("*.tindex"):
                one.unlink()
    with open_log(dead, TAGGED) as again:
        assert len(again.recovery.lost) == (harm == "torn")
        assert records(again) == expected()
        again.append(b"more", timestamp=NOW + 10**6)
        assert offset_at(again, time_of(RECORDS - 2)) == RECORDS - 2
    check_indexes(dead)


def test_damage_in_the_middle_is_named(path):
    with filled(path):
        pass
    first = names.log_files(path)[0]
    raw = bytearray(first.read_bytes())
    raw[500] ^= 1
    first.write_bytes(raw)
    with seglog.open_partition(path) as partition, pytest.raises(CorruptRecordError) as caught:
        list(partition.read())
    assert caught.value.file == str(first)
    assert caught.value.position <= 500


# --- what the format has a place for -------------------------------------------------------------------


def test_without_milliseconds_a_message_is_8_bytes_larger_than_one_of_v0(path):
    old = path.with_name("old-0")
    with open_log(path, {**TAGGED, "seglog.message.tagged.timestamp.ms": False}) as log:
        log.append(b"value", key=b"key", timestamp=NOW + 1999)
        assert next(iter(log.read())).timestamp == NOW + 1000
    with open_log(old, {"message.format.version": 0}) as log:
        log.append(b"value", key=b"key")
    new_bytes, old_bytes = (names.log_files(where)[0].stat().st_size for where in (path, old))
    assert new_bytes == old_bytes + 8


def test_the_broker_s_time_is_the_log_s(path):
    with open_log(path, {**TAGGED, "message.timestamp.type": "LogAppendTime"}) as log:
        log.append(b"a", timestamp=NOW)
        log.append_batch(seglog.build_batch([(None, b"b")] * 3, codec="lz4", timestamp=NOW))
        assert {r.timestamp for r in log.read()} == {NOW + 10**6}
        assert {r.timestamp_type for r in log.read()} == {next(iter(log.read())).timestamp_type}


@pytest.mark.parametrize("batch", [
    seglog.build_batch([(b"k", b"v", [("h", b"")])], timestamp=NOW),
    seglog.build_batch([(b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=0, timestamp=NOW),
], ids=["headers", "producer"])
def test_what_has_no_place_is_refused_and_nothing_written(path, batch):
    with open_log(path, TAGGED) as log:
        with pytest.raises(UnsupportedForMessageFormatError):
            log.append_batch(batch)
        with pytest.raises(UnsupportedForMessageFormatError, match="headers"):
            log.append(b"v", headers=[("h", b"")])
        producer = log.producer(7)
        producer.begin()
        with pytest.raises(UnsupportedForMessageFormatError):
            producer.append(b"v")
        assert log.append(b"v", headers=[("seglog.tag.100", b"any")]) == 0


def test_what_tags_make_too_large_is_refused(path):
    with open_log(path, {**TAGGED, "max.message.bytes": 200}) as log:
        with pytest.raises(RecordTooLargeError, match="tags"):
            log.append(b"v" * 180)
        assert log.append(b"v" * 100) == 0


def test_messages_of_a_leader_are_stored_as_they_are(path, tmp_path):
    with filled(path) as log:
        raw = names.log_files(path)[0].read_bytes()
        with open_log(tmp_path / "data" / "copy-0", TAGGED) as copy:
            assert copy.append_batch(raw, assign_offsets=False).first_offset == 0
            assert records(copy) == records(log, stop=copy.log_end_offset)
            with pytest.raises(CorruptRecordError):
                copy.append_batch(raw, assign_offsets=False)
        assert names.log_files(copy.path)[0].read_bytes() == raw


def test_a_leader_s_message_that_fits_no_segment_is_refused_by_that_limit(path):
    raw = to_tagged(seglog.build_batch([(b"k", b"v" * 4000)], timestamp=NOW))
    with open_log(path, TAGGED) as log:
        with pytest.raises(RecordTooLargeError, match=r"more than segment\.bytes = 3000"):
            log.append_batch(raw, assign_offsets=False)
        assert log.log_end_offset == 0


def test_a_leader_s_messages_out_of_order_are_named_by_their_byte(path):
    second, first = (plain_tagged.message(offset, b"k", b"v", seconds=NOW // 1000) for offset in (1, 0))
    with open_log(path, TAGGED) as log:
        with pytest.raises(CorruptRecordError, match="message 1 does not follow") as refused:
            log.append_batch(second + first, assign_offsets=False)
        assert refused.value.position == len(second)
        assert log.log_end_offset == 0


def test_missing_tags_are_counted_and_told_once_a_segment(path, caplog):
    with filled(path, config={"seglog.message.tagged.timestamp.ms": False}):
        pass
    with caplog.at_level(logging.WARNING), seglog.open_partition(path) as partition:
        for _ in range(2):
            assert len(list(partition.read())) == RECORDS
        assert sum(segment._tag_defaults.counts[0] for segment in partition.segments) == RECORDS
        told = [record for record in caplog.records if "without required tags" in record.message]
        assert len(told) == len(partition.segments)


def fetched(log, magic, **options):
    """The batches that a client gets that goes on fetching."""
    offset = 0
    while raw := bytes(log.fetch(offset, magic=magic, **options).view()):
        batches = list(scan(Window(raw), check_crc=True, decompress=decompressor()))
        yield from batches
        assert batches[-1].last_offset >= offset
        offset = batches[-1].last_offset + 1


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_client_gets_messages_with_tags_in_the_format_that_it_knows(path, magic, isolation):
    """Never as they are: it would take them for v1. Without a version they are that, for a follower with tags."""
    author = Author(7, has_zstd=magic == 2)
    with open_log(path, TAGGED) as log:
        while author.end < 400:
            log.append_batch(author.next(), assign_offsets=False)
        assert bytes(log.fetch(0).view()) == names.log_files(path)[0].read_bytes()
        got = [
            record for batch in fetched(log, magic, max_bytes=2000, isolation=isolation)
            for record in batch if batch.magic == magic and not batch.is_control
        ]
        read = list(log.read())
        assert [(r.offset, r.key, r.value) for r in got] == [(r.offset, r.key, r.value) for r in read]
        assert [r.timestamp for r in got] == [r.timestamp if magic else -1 for r in read]
        assert any(r.headers for r in got) == (magic == 2)
        assert log.format_counters.fetch_converted_batches[magic].value > 50
        with pytest.raises(UnsupportedVersionError):
            list(log.read(max_magic=2))
        log.configure({"message.downconversion.enable": False})
        with pytest.raises(UnsupportedVersionError, match=f"formats up to v{magic}, the batch has format tagged"):
            log.fetch(0, magic=magic)


def test_a_set_in_zstd_goes_to_clients_of_v2_alone(path):
    with open_log(path, TAGGED) as log:
        log.append(b"before")
        log.append_batch(seglog.build_batch([(b"k", b"v")] * 3, codec="zstd", timestamp=NOW))
        assert [r.offset for batch in fetched(log, 2) for r in batch] == [0, 1, 2, 3]
        assert log.fetch(0, magic=1).view()
        with pytest.raises(UnsupportedCompressionTypeError):
            log.fetch(1, magic=1)


# --- two witnesses -------------------------------------------------------------------------------------


def test_files_without_the_setting_are_refused(path):
    with filled(path):
        pass
    (path / ".seglog.config").unlink()
    for door in (open_log, seglog.open_partition):
        with pytest.raises(NotALogError, match="has no dialect"):
            door(path)


def test_the_setting_beside_a_log_of_kafka_s_is_refused(path):
    with open_log(path) as log:
        log.append(b"v")
    with filled(path.with_name("tagged-0"), 1) as log:
        shutil.copy(log.path / ".seglog.config", path)
    for door in (open_log, seglog.open_partition):
        with pytest.raises(NotALogError, match="a Kafka segment in a directory of tagged messages"):
            door(path)


def test_dialects_are_never_mixed(path):
    with filled(path):
        pass
    foreign = path / names.file_name(0, names.LOG_SUFFIX)
    foreign.write_bytes(seglog.build_batch([(b"k", b"v")]))
    for door in (open_log, seglog.open_partition):
        with pytest.raises(NotALogError, match="a Kafka segment"):
            door(path)


def test_an_empty_log_that_a_broker_put_beside_is_told_and_left_alone(path, caplog):
    with filled(path):
        pass
    foreign = [path / names.file_name(0, suffix) for suffix in (".log", ".index", ".timeindex")]
    for file in foreign:
        file.write_bytes(b"" if file.suffix == ".log" else bytes(1000))
    with open_log(path) as log, seglog.open_partition(path) as partition:
        assert log._foreign_files == partition._foreign_files == (foreign[0].name,)
        assert foreign[0].name in caplog.text
        assert records(log) == records(partition) == expected()
        log.append(b"more", timestamp=NOW + 10**6)
    assert all(file.exists() for file in foreign)


def test_only_a_conversion_changes_the_dialect(path):
    with filled(path) as log, pytest.raises(InvalidConfigError, match="only a conversion"):
        log.configure({"seglog.message.dialect": "kafka"})
    with pytest.raises(InvalidConfigError, match="is tagged, not kafka"):
        open_log(path, {"seglog.message.dialect": "kafka"})
    other = path.with_name("plain-0")
    with open_log(other) as log:
        log.append(b"v")
    with pytest.raises(InvalidConfigError, match="is kafka, not tagged"):
        open_log(other, TAGGED)
    with pytest.raises(InvalidConfigError, match="one index"):
        open_log(path, {"seglog.time.index.minute.enabled": True})


# --- retention, copies ---------------------------------------------------------------------------------


def test_old_segments_go_by_time_and_by_size_with_their_indexes(path):
    with filled(path) as log:
        bases = [segment.base_offset for segment in log.segments]
        log.configure({"retention.bytes": 4000, "file.delete.delay.ms": 0})
        log.delete_old_segments()       # or the log's own thread has
        start = log.log_start_offset
        assert start in bases[1:]
        assert records(log) == expected()[start:]
        log.configure({"retention.bytes": -1, "retention.ms": 10**6 - time_of(RECORDS - 1) + NOW})
        log.delete_old_segments()
        assert log.log_start_offset > start
        left = {segment.base_offset for segment in log.segments}
    assert {int(file.stem) for file in path.iterdir() if file.suffix in (".tlog", ".tindex")} == left


def test_retention_by_batches_rewrites_the_head(path):
    config = {"seglog.retention.granularity": "batch", "retention.ms": 10**6 - 90_000, "file.delete.delay.ms": 0}
    with filled(path, config={**config, "seglog.retention.head.rewrite.ratio": 0.1}) as log:
        log.delete_old_segments()
        start = log.log_start_offset
        assert start > 0
        assert records(log) == expected()[start:]
    check_indexes(path)
    with open_log(path, TAGGED) as log:
        assert records(log) == expected()[start:]


def test_a_hot_backup_is_a_tagged_log(path):
    with filled(path) as log:
        log.snapshot(path.with_name("copy-0"))
    with open_log(path.with_name("copy-0")) as copy:
        assert (copy._dialect.name, records(copy)) == ("tagged", expected())


def test_a_set_of_a_leader_that_does_not_say_its_end_is_opened_for_it(path):
    """Without tag 33 nothing but its messages tells where it ends: what comes next is behind them."""
    messages = [plain_tagged.message(delta, b"k", b"v", seconds=1) for delta in (0, 2, 9)]
    with open_log(path, TAGGED) as log:
        first, last, _ = log.append_batch(plain_tagged.wrapper(5, 1, messages, seconds=1), assign_offsets=False)
        assert (first, last, log.log_end_offset) == (5, 14, 15)
        assert log.append(b"behind it", key=b"k") == 15
        log.append_batch(plain_tagged.wrapper(20, 1, messages, seconds=1), assign_offsets=False)
    for _ in range(2):
        with open_log(path) as log:
            assert [r.offset for r in log.read()] == [5, 7, 14, 15, 20, 22, 29]
            assert log.log_end_offset == 30
