"""What a log is given that it cannot take: who is told what, and that nothing of it is written."""
import datetime as dt
import errno
import os
from array import array

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    NotALogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
)
from support.lookups import offset_at

NOW = 1_700_000_000_000
HOUR = 3_600_000
BATCH = seglog.build_batch([(b"k", b"v")], timestamp=NOW)


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


@pytest.fixture
def log(path):
    config = {"segment.bytes": "64KiB", "max.message.bytes": 1000, "message.timestamp.before.max.ms": HOUR}
    with seglog.open(path, config=config, clock=ManualClock(NOW)) as opened:
        opened.append(b"first")
        yield opened


def tell(error):
    """What the user reads: what, where, what to do."""
    assert error.hint
    return f"{error} | {error.hint}"


# --- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"value": "text"}, "the value must be bytes-like or None, not str"),
        ({"value": 5}, "the value must be bytes-like or None, not int"),
        ({"value": b"", "key": 5}, "the key must be bytes-like or None, not int"),
        ({"value": b"", "key": "\ud800"}, "the key is not valid text"),
        ({"value": b"", "headers": 5}, "headers must be a sequence"),
        ({"value": b"", "headers": {"name": b"value"}}, "headers must be a sequence"),
        ({"value": b"", "headers": [("name",)]}, "the header must be a pair"),
        ({"value": b"", "headers": [(b"name", b"value")]}, "the header key must be a str, not bytes"),
        ({"value": b"", "headers": [("name", "value")]}, "the header value must be bytes-like or None, not str"),
        ({"value": b"", "timestamp": "yesterday"}, "not a time: 'yesterday'"),
        ({"value": b"", "timestamp": 1.5}, "not a time: 1.5"),
        ({"value": b"", "timestamp": True}, "not a time: True"),
        ({"value": b"", "timestamp": dt.datetime(2026, 11, 1)}, "has no time zone"),
    ],
)
def test_a_record_of_wrong_types_is_refused_in_words(log, record, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        log.append(**record)
    tell(refused.value)
    assert log.append(b"second") == 1


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (5, "not iterable"),
        ([], "a batch must contain at least one record"),
        (["text"], "record 0 must be"),
        ([(b"k",)], "record 0 must be"),
        ([{"key": b"k", "value": b"v"}], "record 0 must be"),
        ([(b"k", b"v"), ("\ud800", b"v")], "the key of record 1 is not valid text: surrogates not allowed"),
        ([(b"k", b"v"), (b"k", "v")], "the value of record 1 must be bytes-like or None, not str"),
        ([(b"k", b"v"), (5, b"v")], "the key of record 1 must be bytes-like or None, not int"),
        ([(b"k", b"v", (), "soon")], "the timestamp of record 0: not a time: 'soon'"),
    ],
)
def test_of_many_records_the_wrong_one_is_named_and_none_is_written(log, records, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        log.append_many(records)
    tell(refused.value)
    assert log.log_end_offset == 1


@pytest.mark.parametrize(
    "append",
    [
        lambda log, at: log.append(b"", timestamp=at),
        lambda log, at: log.append_many([(None, b"", (), NOW), (None, b"", (), at)]),
        lambda log, at: log.append_batch(seglog.build_batch([(None, b"")], timestamp=at)),
    ],
)
@pytest.mark.parametrize(
    ("at", "key"),
    [(NOW - HOUR - 1, "message.timestamp.before.max.ms"), (NOW + HOUR + 1, "message.timestamp.after.max.ms")],
)
def test_a_time_too_far_from_the_clock_is_refused_by_the_name_of_its_limit(log, append, at, key):
    with pytest.raises(InvalidTimestampError, match=key) as refused:
        append(log, at)
    assert str(at) in tell(refused.value)
    assert log.log_end_offset == 1


@pytest.mark.parametrize(
    "append",
    [
        lambda log, value: log.append(value),
        lambda log, value: log.append_many([(None, value)]),
        lambda log, value: log.append_columns(values=(array("i", [0, len(value)]), value)),
        lambda log, value: log.append_batch(seglog.build_batch([(None, value)], timestamp=NOW)),
    ],
)
def test_a_batch_above_max_message_bytes_is_refused(log, append):
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes = 1000"):
        append(log, b"x" * 1000)
    assert append(log, b"x" * 900) in (1, (1, 1, False))


def test_a_batch_larger_than_a_segment_is_refused(path):
    with seglog.open(path, config={"segment.bytes": 4096}) as log:
        big = b"x" * 5000
        for append in (
            lambda: log.append(big),
            lambda: log.append_many([(None, big)]),
            lambda: log.append_batch(seglog.build_batch([(None, big)])),
            lambda: log.append_batch(seglog.build_batch([(None, big)]), assign_offsets=False),
        ):
            with pytest.raises(RecordTooLargeError, match=r"segment\.bytes = 4096"):
                append()
        assert log.append(b"small") == 0


def test_a_compacted_log_takes_no_record_without_a_key(path):
    with seglog.open(path, config={"cleanup.policy": "compact"}) as log:
        for append in (
            lambda: log.append(b"v"),
            lambda: log.append_many([(b"k", b"v"), (None, b"v")]),
            lambda: log.append_columns(values=(array("i", [0, 1]), b"v")),
            lambda: log.append_batch(seglog.build_batch([(b"k", b"v"), (None, b"v")])),
        ):
            with pytest.raises(InvalidRecordError, match="key") as refused:
                append()
            assert "compact" in tell(refused.value)
        assert log.append(b"v", key=b"k") == 0
        assert log.append(None, key=b"k") == 1


# --- encoded batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("text", InvalidArgumentError),
        (None, InvalidArgumentError),
        (b"", InvalidRecordError),
        (bytes(61), CorruptRecordError),
        (b"x" * 100, CorruptRecordError),
        (BATCH[:-1], CorruptRecordError),
        (BATCH[:-1] + bytes([BATCH[-1] ^ 1]), CorruptRecordError),
        (BATCH + b"more", CorruptRecordError),
        (BATCH + BATCH, InvalidRecordError),
    ],
)
def test_bytes_that_are_no_batch_are_refused(log, raw, error):
    with pytest.raises(error) as refused:
        log.append_batch(raw)
    assert "build_batch" in tell(refused.value)
    assert log.log_end_offset == 1


@pytest.mark.parametrize("epoch", ["1", -1, 2**31, 2**70, True, 1.0])
def test_a_leader_epoch_is_an_int32(log, epoch):
    with pytest.raises(InvalidArgumentError, match="leader epoch"):
        log.append_batch(BATCH, leader_epoch=epoch)
    assert log.append_batch(BATCH).first_offset == 1


def test_a_batch_that_is_refused_does_not_begin_its_leader_epoch(log):
    with pytest.raises(CorruptRecordError):
        log.append_batch(BATCH[:-1], leader_epoch=7)
    log.append_batch(BATCH, leader_epoch=3)
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(0, 0), (3, 1)]
    with pytest.raises(InvalidArgumentError, match="leader epoch 2 is below the log's epoch 3"):
        log.append_batch(BATCH, leader_epoch=2)


def test_a_followers_batch_begins_at_the_end_of_the_log_or_above(log):
    with pytest.raises(InvalidRecordError, match="begins at offset 0, expected 1 or above"):
        log.append_batch(BATCH, assign_offsets=False)
    later = seglog.build_batch([(b"k", b"v")], base_offset=40)
    assert log.append_batch(later, assign_offsets=False) == (40, 40, False)
    assert log.log_end_offset == 41


# --- offsets and times -----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", ["0", 1.5, b"0", [0]])
def test_an_offset_is_an_int(log, offset):
    for use in (
        log.read, log.batches, log.columns, log.tables, log.truncate_to, log.delete_records, log.__getitem__,
        lambda offset: log.read(0, offset), lambda offset: log.batches(0, offset),
        lambda offset: log.columns(0, offset),
    ):
        with pytest.raises(InvalidArgumentError, match="offset") as refused:
            use(offset)
        tell(refused.value)


@pytest.mark.parametrize("n", ["1", None, 1.5, b"1", True, -1])
def test_how_many_are_the_last_is_an_int_of_0_or_more(log, n):
    with pytest.raises(InvalidArgumentError, match="n must be a number of records, not") as refused:
        log.tail(n)
    tell(refused.value)


@pytest.mark.parametrize("epoch", ["0", None, 1.5, b"0", [0], True])
def test_an_epoch_whose_end_is_asked_for_is_an_int(log, epoch):
    with pytest.raises(InvalidArgumentError, match="a leader epoch must be an int, not") as refused:
        log.end_offset_for(epoch)
    tell(refused.value)
    assert log.end_offset_for(0).end_offset == 1


@pytest.mark.parametrize("offset", [-1, 2, 2**63, 2**70])
def test_an_offset_outside_of_the_log_is_answered_with_the_valid_range(log, offset):
    for use in (log.read, log.batches, log.columns, log.__getitem__):
        with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 1\)") as refused:
            use(offset)
        assert refused.value.offset == offset
    assert [r.offset for r in log.read(offset, on_out_of_range="earliest")] == [0]
    assert [r.offset for r in log.read(offset, on_out_of_range="latest")] == []
    for read in (log.batches, log.columns):
        assert [len(list(read(offset, on_out_of_range=place))) for place in ("earliest", "latest")] == [1, 0]
    for read in (log.read, log.batches, log.columns):
        with pytest.raises(InvalidArgumentError, match="on_out_of_range"):
            read(offset, on_out_of_range="none")


def test_an_offset_may_be_of_any_librarys_int(log):
    np = pytest.importorskip("numpy", reason="numpy is not installed: it is no dependency")
    zero, one = np.int64(0), np.int32(1)
    assert log[zero].offset == 0
    assert [len(list(read(zero, one))) for read in (log.read, log.batches, log.columns)] == [1] * 3
    assert [len(list(log.tail(n))) for n in (zero, one)] == [0, 1]
    assert (log.delete_records(zero), log.truncate_to(zero)) == (0, 0)


@pytest.mark.parametrize("when", ["soon", 1.5, dt.datetime(2026, 11, 1), 2**63, b"0", -9])
def test_a_time_is_told_from_what_is_none(log, when):
    with pytest.raises(InvalidArgumentError, match="time") as refused:
        offset_at(log, when)
    tell(refused.value)


def test_an_unknown_isolation_is_refused(log):
    for use in (log.read, lambda isolation: log.tail(1, isolation=isolation)):
        with pytest.raises(InvalidArgumentError, match="read_committed"):
            use(isolation="serializable")


# --- opening ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"segment.byte": 1}, "no such key: segment.byte; did you mean segment.bytes"),
        ({7: 1}, "a key must be text"),
        ({"segment.bytes": "many"}, "segment.bytes must be 14 to"),
        ({"segment.bytes": None}, "segment.bytes must be 14 to"),
        ({"segment.bytes": 1}, "segment.bytes must be 14 to"),
        ({"cleanup.policy": "shrink"}, "cleanup.policy must be delete or compact"),
        ({"seglog.segment.idle.roll": "perhaps"}, "seglog.segment.idle.roll must be true or false"),
        ({"segment.bytes": 4096, "segment_bytes": 4096}, "given twice"),
    ],
)
def test_a_configuration_is_refused_by_the_name_of_its_key(path, config, words):
    with pytest.raises(InvalidConfigError, match=words) as refused:
        seglog.open(path, config=config)
    assert "seglog config" in tell(refused.value)
    assert not path.parent.exists()


def test_a_file_where_a_directory_is_expected_is_named(in_memory):
    (in_memory / "file").touch()
    (in_memory / "file-0").touch()
    (in_memory / "gone-0").symlink_to("nowhere")
    for path, culprit in (
        (in_memory / "file-0", "file-0"), (in_memory / "file" / "orders-0", "file"), (in_memory / "gone-0", "gone-0"),
        (in_memory / "file" / "data" / "orders-0", "file"),
    ):
        with pytest.raises(NotALogError, match="expected a directory, found") as refused:
            seglog.open(path)
        assert refused.value.file == str(in_memory / culprit)
    assert sorted(os.listdir(in_memory)) == ["file", "file-0", "gone-0"]


def test_the_directories_above_are_made_where_they_are_missing(in_memory):
    path = in_memory / "a" / "b" / "orders-0"
    with pytest.raises(StorageError, match="cannot open: no such file or directory") as refused:
        seglog.open(path, create=False)
    assert refused.value.errno == errno.ENOENT
    assert refused.value.file == str(path)
    assert os.listdir(in_memory) == []
    seglog.open(path).close()
    seglog.open(path, create=False).close()


@pytest.mark.parametrize("config", [{}, {"linger.ms": 1}, {"compression.type": "gzip"}])
def test_a_key_may_be_text(tmp_path, config):
    with seglog.open(tmp_path / "orders-0", config=config, fsync="never") as log:
        log.append(b"1", key="k\u00e9y")
        log.append(b"2", key="k", timestamp="2026-11-24T10:00:00Z")
        assert log.append(b"3", key="k", wait=False).result == 2
        assert log.append_many([("k", b"4"), ("k", None, (), "2026-11-24T10:00:00Z")], atomic=False) == 4
        assert log.append_columns(keys=["k", None, b"k"], values=[b"5", b"6", b"7"]) == 7
        log.append_batch(seglog.build_batch([("k", b"8")]))
        log.append_batch(seglog.build_batch([("k", b"9")], magic=1))
        with log.producer(7) as producer:
            producer.begin()
            producer.append(b"10", key="k")
            producer.append_many([("k", b"11")])
            producer.commit()
        log.flush()
        assert [record.key for record in log.read()] == ["k\u00e9y".encode(), *[b"k"] * 5, None, *[b"k"] * 5]
        assert log.get(1) == log[1]
