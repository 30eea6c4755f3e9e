"""Encoded batches before they are appended: what is refused, what is assigned in place, what is built again."""
import json
import struct

import pytest

from seglog.config import LogConfig
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format import validate
from seglog.format.compression import compress, decompressor
from seglog.format.validate import AppendRules, assign, assign_trusted, check_follower
from support import plain_format as plain
from support.append_cases import CODECS, NOW

HOUR = 3_600_000
# What a byte of a payload can become at most; of zstd nobody knows from outside.
CODEC_RATIOS = {1: 1032, 2: 22, 3: 255, 4: None}
decompress = decompressor()


def rules(**settings):
    return AppendRules.of(LogConfig.of(settings))


def opened(raw):
    """Every record of every batch, by the plain decoder."""
    return [
        record
        for batch in plain.split_batches(bytes(raw))
        for record in plain.decode_batch(batch, lambda *a: bytes(decompress(*a)))
    ]


def v2(
    n=3, *, codec=0, key=b"k", deltas=None, timestamps=None, base_timestamp=NOW, attributes=0, payload=None, **header
):
    timestamps = [base_timestamp + i for i in range(n)] if timestamps is None else timestamps
    if payload is None:
        payload = b"".join(
            plain.record_v2(i if deltas is None else deltas[i], timestamps[i] - base_timestamp, key, b"v" * 20)
            for i in range(n)
        )
    header = {"count": n, "max_timestamp": max(timestamps, default=-1)} | header
    if codec:
        payload = bytes(compress(codec, 2, payload))
    return plain.batch_v2(payload, base_timestamp=base_timestamp, attributes=attributes | codec, **header)


def messages(n=3, *, magic=1, key=b"k", timestamps=None, offsets=None):
    return b"".join(
        plain.message(
            i if offsets is None else offsets[i], key, b"v%d" % i, magic=magic,
            timestamp=NOW + i if timestamps is None else timestamps[i],
        )
        for i in range(n)
    )


def wrapper(inner, *, magic=1, codec=plain.GZIP, offset=None, timestamp=NOW + 2, attributes=0, n=3):
    value = bytes(compress(codec, magic, inner))
    offset = n - 1 if offset is None else offset
    return plain.message(offset, None, value, magic=magic, timestamp=timestamp, attributes=codec | attributes)


def header_of(raw):
    """Attributes and max timestamp of a v2 batch."""
    return struct.unpack_from(">h", raw, 21)[0], struct.unpack_from(">q", raw, 35)[0]


# --- golden: LogValidator 3.9.1 -----------------------------------------------------------------


def test_batches_become_what_kafka_391_makes_of_them(golden_kafka):
    checked = exact = converted = 0
    for case in sorted((golden_kafka / "convert/up").iterdir()):
        meta = json.loads((case / "meta.json").read_text())
        settings = {
            "compression.type": meta["target_codec"], "message.timestamp.type": meta["timestamp_type"],
            "message.timestamp.after.max.ms": 2**63 - 1, "message.format.version": meta["to_magic"],
        }
        raw, expected = (case / "input.log").read_bytes(), (case / "output.log").read_bytes()
        assigned = assign(
            raw, meta["first_offset"], AppendRules.of(LogConfig.of(settings)),
            now_ms=meta["log_append_time"], leader_epoch=meta["leader_epoch"],
        )
        assert opened(assigned.raw) == opened(expected), case.name
        assert assigned.first_offset == meta["first_offset"]
        assert assigned.last_offset + 1 == meta["next_offset"]
        assert assigned.max_timestamp == meta["max_timestamp"], case.name
        assert assigned.rebuilt == meta["message_size_maybe_changed"], case.name
        if not assigned.rebuilt or meta["target_codec"] in ("none", "lz4"):
            # Else the two codec libraries make other bytes of the same records.
            assert bytes(assigned.raw) == expected, case.name
            exact += 1
        checked += 1
        converted += meta["from_magic"] != meta["to_magic"]
    assert (checked, exact, converted) == (120, 74, 70)


# --- what is refused ------------------------------------------------------------------------------

REFUSED = {
    "nothing": (b"", InvalidRecordError, "no batch"),
    "a torn tail": (v2()[:-1], CorruptRecordError, "end before"),
    "trailing bytes": (v2() + b"\0", CorruptRecordError, "end before"),
    "a wrong checksum": (v2()[:-1] + b"x", CorruptRecordError, "checksum"),
    "an unknown magic": (v2(magic=3), CorruptRecordError, "magic"),
    "no records": (v2(0), InvalidRecordError, "0 records"),
    "a count below the records": (v2(count=2), CorruptRecordError, "left over"),
    "a count above the records": (v2(count=4), CorruptRecordError, "record 3"),
    "a hole": (v2(deltas=[0, 2, 3], last_offset_delta=2), InvalidRecordError, "wrong relative offset 2"),
    "offsets that begin at 1": (v2(1, deltas=[1], codec=4), InvalidRecordError, "wrong relative offset 1"),
    "a count that is not the range": (v2(last_offset_delta=4), InvalidRecordError, "3 records do not match .* 0 to 4"),
    "two batches of v2": (v2() + v2(), InvalidRecordError, "2 batches"),
    "a control batch": (v2(attributes=plain.CONTROL, producer_id=1, producer_epoch=0), InvalidRecordError, "control"),
    "no sequence": (v2(producer_id=1, producer_epoch=0), InvalidRecordError, "sequence -1 of producer 1"),
    "no producer epoch": (v2(producer_id=1, base_sequence=0), InvalidRecordError, "epoch -1"),
    "a transaction of nobody": (v2(attributes=plain.TRANSACTIONAL), InvalidRecordError, "producer -1"),
    "LogAppendTime": (v2(attributes=plain.LOG_APPEND_TIME), InvalidTimestampError, "LogAppendTime"),
    "a codec that is none": (v2(attributes=5), UnsupportedCompressionTypeError, "5"),
    "a payload that does not open": (v2(attributes=plain.GZIP), CorruptRecordError, "gzip"),
    "a timestamp below none": (v2(timestamps=[NOW, -2, NOW]), InvalidTimestampError, "record 1 .* -2"),
    "formats mixed": (messages(1) + messages(1, magic=0), InvalidRecordError, "v0, but the first one v1"),
    "zstd in v1": (wrapper(b"", codec=0, attributes=plain.ZSTD), UnsupportedCompressionTypeError, "4"),
    "two wrappers": (wrapper(messages()) * 2, InvalidRecordError, "2 batches"),
    "a wrapper behind a message": (messages(1) + wrapper(messages()), InvalidRecordError, "2 batches"),
    "an empty wrapper": (wrapper(b""), CorruptRecordError, "count"),
    "another magic inside": (wrapper(messages(magic=0)), CorruptRecordError, "wrapper"),
    "a wrapper inside": (wrapper(wrapper(messages())), CorruptRecordError, "wrapper"),
    "a wrong checksum inside": (wrapper(messages()[:-1] + b"x"), CorruptRecordError, "record 2"),
    "a wrapper's offset below its messages": (wrapper(messages(), offset=1), CorruptRecordError, "offset"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    raw, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        assign(raw, 0, rules(), now_ms=NOW)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("magic", range(3))
def test_a_compacted_log_refuses_a_record_without_a_key(magic, codec):
    if codec == plain.ZSTD and magic < 2:
        return
    for key in (None, b""):
        if magic == 2:
            raw = v2(codec=codec, key=key)
        else:
            raw = messages(magic=magic, key=key)
            raw = wrapper(raw, magic=magic, codec=codec) if codec else raw
        assert assign(raw, 0, rules(), now_ms=NOW).count == 3
        compacted = rules(cleanup_policy="compact")
        if key is None:
            with pytest.raises(InvalidRecordError, match="record 0 has no key"):
                assign(raw, 0, compacted, now_ms=NOW)
        else:
            assert assign(raw, 0, compacted, now_ms=NOW).count == 3


@pytest.mark.parametrize("magic", [1, 2])
def test_timestamps_may_lie_as_far_from_the_clock_as_the_log_says(magic):
    def of(*timestamps):
        return v2(timestamps=timestamps) if magic == 2 else messages(timestamps=timestamps)

    asked = {"message.timestamp.before.max.ms": 10, "message.timestamp.after.max.ms": 5}
    limits = rules(**asked)
    assert assign(of(NOW - 10, NOW, NOW + 5), 0, limits, now_ms=NOW).max_timestamp == NOW + 5
    with pytest.raises(InvalidTimestampError, match=r"record 1 .* 11 ms before .*before.max.ms = 10"):
        assign(of(NOW, NOW - 11, NOW), 0, limits, now_ms=NOW)
    with pytest.raises(InvalidTimestampError, match=r"record 2 .* 6 ms after .*after.max.ms = 5"):
        assign(of(NOW, NOW, NOW + 6), 0, limits, now_ms=NOW)
    # None is no time, and under LogAppendTime nobody asks.
    assert assign(of(-1, -1, -1), 0, limits, now_ms=NOW).max_timestamp == -1
    appended = rules(**asked | {"message.timestamp.type": "LogAppendTime"})
    assert assign(of(0, 0, 2 * NOW), 0, appended, now_ms=NOW).max_timestamp == NOW


def test_sizes_are_limited_and_both_numbers_named():
    raw = v2()
    assert assign(raw, 0, rules(max_message_bytes=len(raw)), now_ms=NOW)
    with pytest.raises(RecordTooLargeError, match=f"{len(raw)} bytes .*max.message.bytes = {len(raw) - 1}"):
        assign(raw, 0, rules(max_message_bytes=len(raw) - 1), now_ms=NOW)
    with pytest.raises(RecordTooLargeError, match=f"{len(raw)} bytes .*segment.bytes = {len(raw) - 1}"):
        assign(raw, 0, rules(segment_bytes=len(raw) - 1), now_ms=NOW)


def test_a_batch_that_grew_by_another_codec_is_measured_again():
    raw = v2(100, codec=plain.ZSTD)
    with pytest.raises(RecordTooLargeError, match=r"max.message.bytes"):
        assign(raw, 0, rules(compression_type="none", max_message_bytes=len(raw)), now_ms=NOW)


def test_a_bomb_takes_no_more_than_the_limit():
    raw = v2(1, codec=plain.GZIP, payload=plain.record_v2(0, 0, b"k", bytes(1 << 20)))
    with pytest.raises(RecordTooLargeError, match=r"max.decompressed.message.bytes"):
        assign(raw, 0, rules(max_decompressed_message_bytes=1 << 16), now_ms=NOW)


def test_offsets_end_before_the_last_int64():
    assert assign(v2(), 2**63 - 4, rules(), now_ms=NOW).last_offset == 2**63 - 2
    for offset in (2**63 - 3, 2**63 - 1, -1):
        with pytest.raises(InvalidArgumentError, match="offsets"):
            assign(v2(), offset, rules(), now_ms=NOW)


# --- in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_v2_keeps_every_byte_but_offset_and_epoch(codec):
    raw = v2(codec=codec, base_offset=7)
    given = bytearray(raw)
    assigned = assign(given, 1000, rules(), now_ms=NOW, leader_epoch=9)
    assert given == raw
    stored = bytes(assigned.raw)
    assert stored == struct.pack(">q", 1000) + raw[8:12] + struct.pack(">i", 9) + raw[16:]
    assert not assigned.rebuilt
    assert (assigned.first_offset, assigned.last_offset, assigned.count) == (1000, 1002, 3)
    assert (assigned.max_timestamp, assigned.offset_of_max_timestamp) == (NOW + 2, 1002)
    [batch] = assigned.table
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1000, 1002, 9)
    assert batch.crc_is_valid()
    assert [r.offset for r in batch] == [1000, 1001, 1002]


@pytest.mark.parametrize("codec", range(5))
def test_a_max_timestamp_that_lies_is_set_right(codec):
    assigned = assign(v2(codec=codec, max_timestamp=NOW + 99), 5, rules(), now_ms=NOW)
    assert bytes(assigned.raw)[8:12] + bytes(assigned.raw)[16:] == v2(codec=codec)[8:12] + v2(codec=codec)[16:]
    assert assigned.table[0].max_timestamp == assigned.max_timestamp == NOW + 2
    assert plain.crc_fits(bytes(assigned.raw))


@pytest.mark.parametrize("codec", range(5))
def test_log_append_time_is_stamped_on_the_header(codec):
    raw = v2(codec=codec)
    assigned = assign(raw, 5, rules(message_timestamp_type="LogAppendTime"), now_ms=NOW + HOUR)
    assert header_of(assigned.raw) == (codec | plain.LOG_APPEND_TIME, NOW + HOUR)
    assert bytes(assigned.raw)[61:] == raw[61:]
    assert plain.crc_fits(bytes(assigned.raw))
    assert [r.timestamp for r in opened(assigned.raw)] == [NOW + HOUR] * 3
    assert (assigned.max_timestamp, assigned.offset_of_max_timestamp) == (NOW + HOUR, 7)
    [batch] = assigned.table
    assert (batch.timestamp_type, batch.max_timestamp, batch.crc_is_valid()) == (1, NOW + HOUR, True)


def test_bare_messages_come_many_at_a_time():
    for magic in (0, 1):
        assigned = assign(messages(magic=magic, timestamps=[NOW + 1, NOW + 1, NOW]), 40, rules(), now_ms=NOW)
        assert [r.offset for r in opened(assigned.raw)] == [40, 41, 42]
        assert [b.last_offset for b in assigned.table] == [40, 41, 42]
        assert (assigned.first_offset, assigned.last_offset, assigned.count) == (40, 42, 3)
        # The first of those that have the largest.
        assert assigned.max_timestamp == (NOW + 1 if magic else -1)
        assert assigned.offset_of_max_timestamp == (40 if magic else -1)


def test_a_v1_wrapper_gets_the_offset_of_its_last_message():
    raw = wrapper(messages())
    for given in (raw, wrapper(messages(), offset=0), wrapper(messages(), offset=700)):
        assigned = assign(given, 100, rules(), now_ms=NOW)
        assert bytes(assigned.raw) == struct.pack(">q", 102) + raw[8:]
        assert [r.offset for r in opened(assigned.raw)] == [100, 101, 102]
        assert (assigned.first_offset, assigned.last_offset) == (100, 102)


def test_control_batches_come_from_coordinators():
    marker = v2(
        1, key=struct.pack(">hh", 0, 1), attributes=plain.CONTROL | plain.TRANSACTIONAL, producer_id=4, producer_epoch=1
    )
    for codec in ("producer", "zstd"):
        asked = rules(compression_type=codec)
        assigned = assign(marker, 8, asked, now_ms=NOW, leader_epoch=0, allow_control=True)
        assert bytes(assigned.raw)[8:] == marker[8:]      # a marker is never compressed
        assert not assigned.rebuilt


# --- built again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("codec", range(5))
def test_a_v2_batch_of_another_codec_keeps_its_records_and_its_producer(codec, target):
    raw = v2(codec=codec, producer_id=3, producer_epoch=1, base_sequence=11, attributes=plain.TRANSACTIONAL)
    assigned = assign(raw, 50, rules(compression_type=target), now_ms=NOW, leader_epoch=2)
    assert assigned.rebuilt == (CODECS[codec] != target)
    assert opened(assigned.raw) == [r._replace(offset=50 + i) for i, r in enumerate(opened(raw))]
    [batch] = assigned.table
    assert batch.crc_is_valid()
    assert CODECS[batch.codec] == target
    assert (batch.base_offset, batch.last_offset, batch.count, batch.leader_epoch) == (50, 52, 3, 2)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (3, 1, 11)
    assert batch.is_transactional


def test_log_append_time_goes_on_what_is_built_again_too():
    asked = rules(compression_type="lz4", message_timestamp_type="LogAppendTime")
    for raw in (v2(), messages(), wrapper(messages())):
        assigned = assign(raw, 3, asked, now_ms=NOW + HOUR)
        assert assigned.rebuilt
        assert [(r.offset, r.timestamp) for r in opened(assigned.raw)] == [(i, NOW + HOUR) for i in (3, 4, 5)]
        assert (assigned.max_timestamp, assigned.offset_of_max_timestamp) == (NOW + HOUR, 5)


def test_a_batch_takes_the_codec_and_level_of_the_log():
    raw = v2(200, timestamps=[NOW] * 200)
    sizes = []
    for level in (-50, 19):
        assigned = assign(raw, 0, rules(compression_type="zstd", compression_zstd_level=level), now_ms=NOW)
        assert assigned.rebuilt
        assert opened(assigned.raw) == opened(raw)
        payload = compress(4, 2, raw[61:], level)
        assert bytes(assigned.raw)[61:] == payload
        sizes.append(len(payload))
    assert sizes[1] < sizes[0] < len(raw)


def test_the_delete_horizon_of_a_batch_built_again_is_gone_and_its_times_stay():
    raw = v2(base_timestamp=NOW + 500, timestamps=[NOW, NOW + 1, NOW + 2], attributes=plain.DELETE_HORIZON)
    assigned = assign(raw, 0, rules(compression_type="lz4"), now_ms=NOW)
    assert opened(assigned.raw) == opened(raw)
    assert assigned.table[0].delete_horizon_ms is None


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_go_into_one_wrapper_and_come_out_of_it(magic):
    bare = messages(magic=magic)
    wrapped = assign(bare, 10, rules(compression_type="gzip"), now_ms=NOW)
    assert len(wrapped.table) == 1
    assert [r.offset for r in opened(wrapped.raw)] == [10, 11, 12]
    assert (wrapped.first_offset, wrapped.last_offset, wrapped.rebuilt) == (10, 12, True)
    again = assign(wrapped.raw, 0, rules(compression_type="uncompressed"), now_ms=NOW)
    assert bytes(again.raw) == bare


def test_a_v1_wrapper_with_holes_is_built_again():
    raw = wrapper(messages(offsets=[0, 2, 7]), offset=7)
    assigned = assign(raw, 20, rules(), now_ms=NOW)
    assert assigned.rebuilt
    assert [r.offset for r in opened(assigned.raw)] == [20, 21, 22]


def test_zstd_is_not_asked_of_old_formats():
    with pytest.raises(UnsupportedCompressionTypeError, match="KIP-110"):
        assign(messages(), 0, rules(compression_type="zstd"), now_ms=NOW)


# --- checked outside of a lock, placed under it -----------------------------------------------------


@pytest.mark.parametrize(
    "raw", [v2(), v2(codec=4), messages(), messages(magic=0), wrapper(messages())]
)
def test_placing_is_assigning_with_another_offset(raw):
    assigned = assign(raw, 0, rules(), now_ms=NOW)
    assigned.place(77, 6)
    straight = assign(raw, 77, rules(), now_ms=NOW, leader_epoch=6)
    assert bytes(assigned.raw) == bytes(straight.raw)
    for name in ("first_offset", "last_offset", "max_timestamp", "offset_of_max_timestamp", "count", "rebuilt"):
        assert getattr(assigned, name) == getattr(straight, name)
    assert [b.last_offset for b in assigned.table] == [b.last_offset for b in straight.table]


def test_what_keeps_its_offsets_is_not_placed():
    inside = assign(wrapper(messages(magic=0), magic=0), 0, rules(), now_ms=NOW)
    for assigned in (inside, check_follower(v2(), 0, rules()), assign_trusted(v2())):
        with pytest.raises(InvalidArgumentError, match="keep"):
            assigned.place(5, 0)
    with pytest.raises(InvalidArgumentError, match="offsets"):
        assign(v2(), 0, rules(), now_ms=NOW).place(2**63 - 3, 0)


# --- followers ------------------------------------------------------------------------------------


def test_a_follower_keeps_offsets_and_epochs_and_takes_gaps():
    raw = v2(base_offset=12, leader_epoch=3) + v2(1, base_offset=90, last_offset_delta=7, leader_epoch=5)
    assigned = check_follower(raw, 10, rules(max_message_bytes=10))
    assert bytes(assigned.raw) == raw
    assert (assigned.first_offset, assigned.last_offset, assigned.count) == (12, 97, -1)
    assert [b.leader_epoch for b in assigned.table] == [3, 5]
    assert check_follower(wrapper(messages(), offset=30), 10, rules()).first_offset == 30


def test_a_follower_takes_what_a_compaction_left_of_real_segments(golden_kafka):
    for log in sorted((golden_kafka / "cases").glob("compact-*/*-0/*.log")):
        raw = log.read_bytes()
        if raw:
            assert check_follower(raw, int(log.stem), rules()).last_offset >= int(log.stem)


def test_a_follower_looks_only_at_what_may_be_too_large_to_read(monkeypatch):
    looked = []
    may_exceed = validate.may_exceed
    monkeypatch.setattr(validate, "may_exceed", lambda codec, *more: looked.append(codec) or may_exceed(codec, *more))
    limit = rules(max_decompressed_message_bytes=100_000)
    bare = messages(offsets=range(10, 13))
    check_follower(bare, 0, limit)
    assert looked == []
    for codec, ratio in CODEC_RATIOS.items():
        small = v2(codec=codec)
        check_follower(small + bare, 0, limit)
        assert looked == ([] if ratio and len(small) * ratio <= 100_000 else [codec])
        bomb = v2(codec=codec, base_offset=20, payload=plain.record_v2(0, 0, b"k", b"v" * 100_000), n=1)
        with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes"):
            check_follower(small + bare + bomb, 0, limit)
        del looked[:]


def test_a_follower_refuses_what_goes_back():
    first, second = v2(base_offset=12), v2(base_offset=14)
    with pytest.raises(InvalidRecordError, match="offset 12, expected 13 or above"):
        check_follower(first, 13, rules())
    with pytest.raises(InvalidRecordError, match="offset 14, but the one before it ends at 14"):
        check_follower(first + second, 0, rules())
    with pytest.raises(InvalidRecordError, match="3 records do not match"):
        check_follower(v2(last_offset_delta=1), 0, rules())
    with pytest.raises(InvalidRecordError, match="offset -1"):
        check_follower(v2(base_offset=-1), -5, rules())
    with pytest.raises(CorruptRecordError, match="checksum"):
        check_follower(first[:-1] + b"x", 0, rules())
    with pytest.raises(CorruptRecordError, match="end before"):
        check_follower(first + second[:-1], 0, rules())
    with pytest.raises(UnsupportedCompressionTypeError):
        check_follower(v2(attributes=6), 0, rules())
    with pytest.raises(RecordTooLargeError, match=r"segment.bytes"):
        check_follower(first, 0, rules(segment_bytes=20))


# --- our own ----------------------------------------------------------------------------------------


def test_trusted_batches_are_taken_as_they_are():
    raw = v2(base_offset=5)[:-1] + b"x"      # not even the checksum is asked
    assigned = assign_trusted(raw)
    assert bytes(assigned.raw) == raw
    assert (assigned.first_offset, assigned.last_offset, assigned.max_timestamp) == (5, 7, NOW + 2)
    for bad in (b"", raw[:-1]):
        with pytest.raises(InvalidArgumentError, match="not complete batches"):
            assign_trusted(bad)
