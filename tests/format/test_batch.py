"""Batches built by hand and by a log's configuration: Kafka's formats, Kafka's refusals."""
import gzip
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from seglog.format.batch import BatchEncoder, build_batch, end_marker
from seglog.format.compression import Codec, compress, decompressor
from support.other_clients import read_by_aiokafka, read_by_kafka_python

NOW = 1_700_000_000_000
BASE = 5_000_000_000
RECORDS = [(b"key", b"value" * 40), (None, b"", None, NOW + 5), (b"", None, (), NOW - 7)]
READ = [(BASE, NOW, b"key", b"value" * 40), (BASE + 1, NOW + 5, None, b""), (BASE + 2, NOW - 7, b"", None)]
# every codec in every format version that may use it
CELLS = [(magic, codec) for codec in Codec for magic in (0, 1, 2) if codec != Codec.ZSTD or magic == 2]

cells = pytest.mark.parametrize(("magic", "codec"), CELLS)


def read(data):
    table = scan(Window(data), check_crc=True, decompress=decompressor())
    assert table.end == len(data)
    return list(table)


def timeless(records):
    return [(key, value) for key, value, *_ in records]


def built(magic, codec, **options):
    if magic == 0:
        return build_batch(timeless(RECORDS), magic=0, codec=codec, base_offset=BASE, **options)
    return build_batch(RECORDS, magic=magic, codec=codec, base_offset=BASE, timestamp=NOW, **options)


def expected(magic):
    return [(offset, timestamp if magic else -1, key, value) for offset, timestamp, key, value in READ]


# --- build_batch -----------------------------------------------------------------------------------


@cells
def test_what_was_built_is_read_back(magic, codec):
    batches = read(built(magic, codec.label))
    assert {(batch.magic, batch.codec) for batch in batches} == {(magic, codec)}
    assert len(batches) == (3 if magic < 2 and codec is Codec.NONE else 1)
    assert [(r.offset, r.timestamp, r.key, r.value) for batch in batches for r in batch] == expected(magic)


@pytest.mark.parametrize(
    ("magic", "codec", "other"),
    # Each opens what the libraries that the tests install let it open; neither knows the LZ4 frames of v0.
    [(*cell, read_by_aiokafka) for cell in CELLS if cell != (0, Codec.LZ4)]
    + [(magic, codec, read_by_kafka_python) for magic, codec in CELLS if codec in (Codec.NONE, Codec.GZIP)],
)
def test_other_clients_read_what_was_built(magic, codec, other):
    records = list(other(built(magic, codec)))
    assert [(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in records] == expected(magic)


def test_the_public_door_is_the_same_function():
    assert seglog.build_batch is build_batch


def test_now_is_the_timestamp_of_records_that_have_none(monkeypatch):
    monkeypatch.setattr("seglog.clock.SystemClock.now_ms", lambda self: NOW)
    [batch] = read(build_batch([(b"k", b"v")]))
    assert (batch.base_offset, batch.leader_epoch, batch.max_timestamp) == (0, -1, NOW)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [1, 2])
def test_under_log_append_time_the_timestamp_is_the_batches(magic, codec):
    batches = read(built(magic, codec, timestamp_type="LogAppendTime"))
    assert {(batch.timestamp_type, batch.max_timestamp) for batch in batches} == {(1, NOW)}
    assert {record.timestamp for batch in batches for record in batch} == {NOW}


def test_the_messages_of_a_wrapper_say_log_append_time_too_as_kafkas_builder_has_it():
    [wrapper] = read(built(1, "gzip", timestamp_type="LogAppendTime"))
    inner = read(gzip.decompress(wrapper.payload()))
    assert [(message.timestamp_type, message.max_timestamp) for message in inner] == [(1, NOW)] * 3


def test_the_fields_of_the_header_are_those_that_were_given():
    [batch] = read(built(
        2, "zstd", level=7, producer_id=9, producer_epoch=1, base_sequence=4, transactional=True, leader_epoch=6,
        delete_horizon_ms=NOW + 100,
    ))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (9, 1, 4, 6)
    assert (batch.is_transactional, batch.is_control, batch.delete_horizon_ms) == (True, False, NOW + 100)


def test_a_level_is_heeded():
    data = [(b"k", b" ".join(b"%d" % (n * n) for n in range(3000)))]
    sizes = [len(build_batch(data, codec="gzip", level=level, timestamp=NOW)) for level in (1, 9)]
    assert sizes[0] > sizes[1]
    with pytest.raises(InvalidConfigError):
        build_batch(data, codec="gzip", level=10)


def test_end_markers_are_those_that_kafka_wrote(golden_kafka):
    seen = set()
    for log in sorted((golden_kafka / "cases").glob("txn-v2-*/*-0/*.log")):
        for batch in scan(Window(log.read_bytes())):
            if not batch.is_control:
                continue
            [record] = batch
            commit, epoch = record.key[3] == 1, int.from_bytes(record.value[2:6], "big")
            again = build_batch(
                [end_marker(commit, epoch)], control=True, transactional=True, base_offset=batch.base_offset,
                producer_id=batch.producer_id, producer_epoch=batch.producer_epoch, timestamp=record.timestamp,
                leader_epoch=batch.leader_epoch,
            )
            assert again == batch.raw(), (log, batch.position)
            seen.add(commit)
    assert seen == {True, False}


def test_a_coordinator_epoch_is_an_int32():
    with pytest.raises(InvalidArgumentError, match="coordinator epoch"):
        end_marker(True, 2**31)


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "options",
    [{"producer_id": 1}, {"transactional": True}, {"control": True}, {"delete_horizon_ms": 5}],
    ids=lambda options: next(iter(options)),
)
def test_below_v2_there_is_nothing_but_records(magic, options):
    with pytest.raises(UnsupportedForMessageFormatError, match=f"format v{magic}"):
        build_batch([(b"k", b"v")], magic=magic, **options)


@pytest.mark.parametrize("magic", [0, 1])
def test_below_v2_there_are_no_headers_and_no_zstd(magic):
    with pytest.raises(UnsupportedForMessageFormatError, match="record 1 has headers"):
        build_batch([(b"k", b"v", ()), (b"k", b"v", [("h", b"x")])], magic=magic)
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        build_batch([(b"k", b"v")], magic=magic, codec="zstd")


@pytest.mark.parametrize(
    ("records", "options"),
    [
        ([(b"k", b"v")], {"timestamp": NOW}),
        ([(b"k", b"v")], {"timestamp_type": "LogAppendTime"}),
        ([(b"k", b"v", (), NOW)], {}),
    ],
)
def test_below_v1_there_is_no_time(records, options):
    with pytest.raises(UnsupportedForMessageFormatError, match="format v0"):
        build_batch(records, magic=0, **options)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_batch_has_a_record(magic):
    with pytest.raises(InvalidArgumentError, match="at least one record"):
        build_batch([], magic=magic)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_offsets_that_no_log_can_have_are_refused(magic):
    for base_offset in (-1, 2**63 - 2):
        with pytest.raises(InvalidArgumentError):
            build_batch([(b"k", b"v"), (b"k", b"v")], magic=magic, base_offset=base_offset)
    assert build_batch([(b"k", b"v"), (b"k", b"v")], magic=magic, base_offset=2**63 - 3)


@pytest.mark.parametrize("magic", [1, 2])
def test_timestamps_that_no_record_can_have_are_refused(magic):
    for timestamp in (-2, 2**63):
        with pytest.raises(InvalidArgumentError, match="the timestamp"):
            build_batch([(b"k", b"v", (), timestamp)], magic=magic)
        with pytest.raises(InvalidArgumentError, match="the timestamp"):
            build_batch([(b"k", b"v")], magic=magic, timestamp=timestamp)
    with pytest.raises(InvalidArgumentError, match="the timestamp"):
        build_batch([(b"k", b"v", (), "now")], magic=magic)
    assert read(build_batch([(b"k", b"v")], magic=magic, timestamp=-1))[0].max_timestamp == -1


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("record", [b"kv", (b"k",), (5, b"v"), (b"k", 5), None])
def test_what_is_no_record_is_refused(magic, record):
    with pytest.raises(InvalidArgumentError, match="record 1") as refused:
        build_batch([(b"k", b"v"), record], magic=magic)
    assert "a record must be" in refused.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("producer_id", 2**63), ("producer_id", "7"), ("producer_epoch", 2**15), ("base_sequence", 2**31),
        ("leader_epoch", 2**31), ("leader_epoch", None), ("base_offset", "0"), ("level", "fast"),
        ("delete_horizon_ms", "never"),
    ],
)
def test_fields_that_a_header_cannot_hold_are_refused(field, value):
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "codec": "gzip"} | {field: value}
    with pytest.raises(InvalidArgumentError):
        build_batch([(b"k", b"v")], **options)


def test_a_codec_that_is_none_is_refused():
    for codec in (None, "LZ4", 5, 1.0):
        with pytest.raises(UnsupportedCompressionTypeError):
            build_batch([(b"k", b"v")], codec=codec)


@pytest.mark.parametrize(
    "options",
    [
        {"magic": 3},
        {"timestamp_type": "NoTimestampType"},
        {"transactional": True},
        {"producer_id": 5},
        {"producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "base_sequence": 0},
    ],
    ids=str,
)
def test_what_no_broker_would_take_is_refused(options):
    with pytest.raises(InvalidArgumentError):
        build_batch([(b"k", b"v")], **options)


@pytest.mark.parametrize("codec", ["lzma", 5, "GZIP"])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(UnsupportedCompressionTypeError):
        build_batch([(b"k", b"v")], codec=codec)


# --- the batches of a log --------------------------------------------------------------------------


def encoder(leader_epoch=3, **settings):
    return BatchEncoder(LogConfig.of(settings), leader_epoch)


@pytest.mark.parametrize("codec", ["producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"])
def test_a_log_compresses_as_it_is_configured(codec):
    log = encoder(compression_type=codec)
    for made in (log.many(RECORDS, NOW, BASE), log.one(NOW, *RECORDS[0])):
        made.place(BASE, 3)
        [batch] = read(made)
        assert Codec(batch.codec).label == ("none" if codec in ("producer", "uncompressed") else codec)
        assert (batch.leader_epoch, batch.base_offset, batch.timestamp_type) == (3, BASE, 0)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read(log.many(RECORDS, NOW, BASE))[0]] == READ


def test_levels_come_from_the_configuration():
    for codec, level in (("gzip", 1), ("lz4", 12), ("zstd", 19)):
        data = b" ".join(b"%d" % (n * n) for n in range(3000))
        log = encoder(**{"compression_type": codec, f"compression_{codec}_level": level})
        [batch] = read(log.many([(b"k", data)], NOW))
        again = build_batch([(b"k", data)], codec=codec, level=level, timestamp=NOW, leader_epoch=3)
        assert batch.raw() == again
        assert again != build_batch([(b"k", data)], codec=codec, timestamp=NOW, leader_epoch=3)


@given(
    st.none() | st.binary(), st.none() | st.binary(),
    st.lists(st.tuples(st.text(), st.none() | st.binary()), max_size=2), st.none() | st.integers(-1, NOW),
    st.booleans(),
)
def test_one_record_is_the_batch_of_many_with_one(key, value, headers, timestamp, log_append_time):
    timestamp_type = "LogAppendTime" if log_append_time else "CreateTime"
    log = encoder(message_timestamp_type=timestamp_type, seglog_timestamp_check=False)
    one = log.one(NOW, key, value, headers, timestamp)
    one.place(BASE, 3)
    many = log.many([(key, value, headers, timestamp)], NOW, BASE)
    if log_append_time:
        # What the record said only makes a delta that nobody reads: one record does without.
        [a], [b] = read(one), read(many)
        assert [(r.timestamp, r.key, r.value, r.headers) for r in [*a, *b]] == [(NOW, key, value, tuple(headers))] * 2
        assert a.max_timestamp == b.max_timestamp == NOW
    else:
        assert bytes(many) == bytes(one)
        assert (many.min_timestamp, many.has_null_key) == (one.min_timestamp, one.has_null_key)
        assert (many.max_timestamp, many.count, many.last_offset) == (one.max_timestamp, one.count, one.last_offset)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_compacted_log_refuses_records_without_a_key(codec):
    log = encoder(cleanup_policy="compact", compression_type=codec)
    with pytest.raises(InvalidRecordError, match="has no key"):
        log.one(NOW, None, b"v")
    with pytest.raises(InvalidRecordError, match="has no key"):
        log.many([(b"k", b"v"), (None, b"v")], NOW)
    assert log.one(NOW, b"", None)
    assert log.many([(b"k", None)], NOW)


def test_timestamps_stay_within_the_bounds_of_the_clock():
    log = encoder(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=50, seglog_timestamp_check=False)
    for timestamp in (NOW - 1000, NOW + 50, -1):
        assert log.one(NOW, b"k", b"v", (), timestamp)
        assert log.many([(b"k", b"v", (), timestamp), (b"k", b"v")], NOW)
    for timestamp, key in ((NOW - 1001, "before"), (NOW + 51, "after"), (0, "before")):
        for refused in (
            lambda t=timestamp: log.one(NOW, b"k", b"v", (), t),
            lambda t=timestamp: log.many([(b"k", b"v"), (b"k", b"v", (), -1), (b"k", b"v", (), t)], NOW),
        ):
            with pytest.raises(InvalidTimestampError, match=rf"message\.timestamp\.{key}\.max\.ms"):
                refused()


def test_under_log_append_time_no_timestamp_is_out_of_bounds():
    log = encoder(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    for made in (log.one(NOW, b"k", b"v", (), 5), log.many([(b"k", b"v", (), 5)], NOW)):
        [batch] = read(made)
        assert [(record.timestamp, record.timestamp_type) for record in batch] == [(NOW, 1)]


def test_a_batch_is_at_most_max_message_bytes_as_it_is_stored():
    record = (b"k", bytes(1000))
    size = len(encoder().one(NOW, *record))
    for settings, is_refused in (({"max.message.bytes": size}, False), ({"max.message.bytes": size - 1}, True)):
        log = encoder(**settings)
        for make in (lambda log=log: log.one(NOW, *record), lambda log=log: log.many([record], NOW)):
            if is_refused:
                with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
                    make()
            else:
                assert len(make()) == size
    assert len(encoder(max_message_bytes=size - 1, compression_type="zstd").one(NOW, *record)) < size


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_become_batches_that_the_log_takes(codec):
    noise = random.Random(1).randbytes(100_000)
    log = encoder(compression_type=codec, max_message_bytes=10_000)
    made = log.columns({"value": (array("i", range(0, 100_001, 100)), noise)}, NOW, BASE)
    assert len(made) > 9
    assert max(map(len, made)) <= 10_000
    records = [record for batch in made for record in read(batch)[0]]
    assert [record.offset for record in records] == list(range(BASE, BASE + 1000))
    assert b"".join(record.value for record in records) == noise
    assert {(record.timestamp, record.key) for record in records} == {(NOW, None)}
    assert len(log.columns({"value": (array("i", range(0, 100_001, 100)), noise)}, NOW, BASE, batch_bytes=200)) == 1000


def test_columns_are_refused_as_records_are():
    columns = {"value": (array("i", [0, 1, 2]), b"ab"), "timestamp": array("q", [NOW, NOW - 1001])}
    with pytest.raises(InvalidTimestampError):
        encoder(message_timestamp_before_max_ms=1000).columns(columns, NOW)
    with pytest.raises(InvalidRecordError, match="has no key"):
        encoder(cleanup_policy="compact").columns(columns, NOW)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        encoder(max_message_bytes=60).columns(columns, NOW)
    [made] = encoder(message_timestamp_type="LogAppendTime").columns(columns, NOW)
    assert [record.timestamp for record in read(made)[0]] == [NOW, NOW]


def test_a_batch_that_was_made_before_its_offset_is_known_is_placed():
    made = encoder(compression_type="zstd").many(RECORDS, NOW)
    assert isinstance(made, EncodedBatch)
    made.place(BASE, 8)
    [batch] = read(made)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in batch] == READ
    assert batch.leader_epoch == 8


def test_a_payload_is_compressed_as_kafka_frames_it():
    [batch] = read(built(2, "snappy"))
    plain = built(2, "none")[61:]
    assert bytes(batch.payload()) == bytes(compress(Codec.SNAPPY, 2, plain))
