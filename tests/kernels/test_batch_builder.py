"""Batches that we build are the batches that Kafka wrote, byte for byte, and other clients read them."""
import gzip
import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError
from support.other_clients import read_by_aiokafka, read_by_kafka_python

HEADER_SIZE = 61
BASE = 5_000_000_000
GZIP = 1


def batches(data, **options):
    table = scan(Window(bytes(data)), check_crc=True, **options)
    assert table.end == len(data), table
    return list(table)


def golden_batches(golden_kafka, magic, compressed):
    for log in sorted((golden_kafka / "cases").glob("*/*-0/*.log")):
        for batch in scan(Window(log.read_bytes()), decompress=lambda codec, magic, data: gzip.decompress(data)):
            if batch.magic == magic and bool(batch.codec) == compressed:
                yield log, batch


def varint(data, pos):
    raw = shift = 0
    while True:
        raw |= (data[pos] & 0x7F) << shift
        shift += 7
        pos += 1
        if data[pos - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos


def stored_timestamp_deltas(payload, count):
    """What a v2 batch stores and readers hide under LogAppendTime."""
    deltas, pos = [], 0
    for _ in range(count):
        size, pos = varint(payload, pos)
        deltas.append(varint(payload, pos + 1)[0])
        pos += size
    return deltas


def rebuilt(batch):
    """A v2 batch from its header's fields and its records."""
    horizon = batch.delete_horizon_ms
    builder = BatchBuilder(
        batch.base_offset,
        log_append_time=batch.max_timestamp if batch.timestamp_type == 1 else None,
        base_timestamp=None if horizon is not None else batch.base_timestamp,
        delete_horizon_ms=horizon,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )
    base = batch.base_timestamp if horizon is None else horizon
    for record, delta in zip(batch, stored_timestamp_deltas(batch.payload(), batch.count), strict=True):
        assert batch.timestamp_type == 1 or record.timestamp == base + delta
        builder.append(record.offset, base + delta, record.key, record.value, record.headers)
    return builder.finish(last_offset=batch.last_offset, max_timestamp=batch.max_timestamp)


def test_every_golden_v2_batch_that_is_not_compressed_is_rebuilt_byte_for_byte(golden_kafka):
    kinds = set()
    count = 0
    for log, batch in golden_batches(golden_kafka, magic=2, compressed=False):
        assert rebuilt(batch) == batch.raw(), (log, batch.position)
        count += 1
        kinds.add("control" if batch.is_control else "empty" if batch.count == 0 else "data")
        kinds |= {"transactional"} if batch.is_transactional else set()
        kinds |= {"horizon"} if batch.delete_horizon_ms is not None else set()
        kinds |= {"idempotent"} if batch.producer_id >= 0 and batch.base_sequence >= 0 else set()
        kinds |= {"log append time"} if batch.timestamp_type == 1 else set()
    assert count > 300
    assert kinds == {"data", "control", "empty", "transactional", "horizon", "idempotent", "log append time"}


@pytest.mark.parametrize("magic", [0, 1])
def test_every_golden_message_is_rebuilt_byte_for_byte(golden_kafka, magic):
    count = 0
    for log, message in golden_batches(golden_kafka, magic=magic, compressed=False):
        builder = MessageSetBuilder(magic, timestamp_type=max(message.timestamp_type, 0))
        [record] = message
        builder.append(record.offset, record.timestamp, record.key, record.value)
        assert builder.payload() == message.raw(), (log, message.position)
        count += 1
    assert count > 200


@pytest.mark.parametrize("magic", [0, 1])
def test_every_golden_gzip_wrapper_is_rebuilt_around_the_same_payload(golden_kafka, magic):
    count = 0
    for log, wrapper in golden_batches(golden_kafka, magic=magic, compressed=True):
        if wrapper.codec != GZIP:
            continue
        # Inner messages have a timestamp and a type of their own, which readers hide under LogAppendTime.
        inner = gzip.decompress(wrapper.payload())
        records, messages = list(wrapper), batches(inner)
        inner_type = max(messages[0].timestamp_type, 0)
        builder = MessageSetBuilder(magic, wrapped_from=records[0].offset, timestamp_type=inner_type)
        for record, message in zip(records, messages, strict=True):
            builder.append(record.offset, message.max_timestamp, record.key, record.value)
        assert builder.payload() == inner, (log, wrapper.position)
        log_append_time = wrapper.timestamp_type == 1
        again = builder.wrap(
            wrapper.payload(),
            GZIP,
            timestamp=wrapper.max_timestamp if log_append_time else None,
            timestamp_type=int(log_append_time),
        )
        assert again == wrapper.raw(), (log, wrapper.position)
        count += 1
    assert count > (20 if magic == 1 else 5)


# --- other clients read what we build ---------------------------------------------------------

RECORDS = [
    (BASE, 1000, b"key", b"value", [("h", b"x"), ("é", None), ("", b"")]),
    (BASE + 1, 999, None, b"", []),
    (BASE + 5, 2000, b"", None, []),
    (BASE + 6, 2**41, b"k" * 200, b"v" * 70_000, []),
]


def v2(**options):
    builder = BatchBuilder(BASE, **options)
    for record in RECORDS:
        builder.append(*record)
    return builder


readers = pytest.mark.parametrize("read", [read_by_aiokafka, read_by_kafka_python])


@readers
@pytest.mark.parametrize("codec", [0, GZIP])
def test_other_clients_read_our_v2_batches(read, codec):
    builder = v2(leader_epoch=7, producer_id=9, producer_epoch=1, base_sequence=3, is_transactional=True)
    data = builder.finish(gzip.compress(builder.payload()) if codec else None, codec)
    assert [(r.offset, r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in read(data)] == RECORDS


@readers
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, GZIP])
def test_other_clients_read_our_messages(read, magic, codec):
    builder = MessageSetBuilder(magic, wrapped_from=BASE if codec else None)
    for offset, timestamp, key, value, _ in RECORDS:
        builder.append(offset, timestamp, key, value)
    data = builder.wrap(gzip.compress(builder.payload()), GZIP) if codec else builder.payload()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read(data)] == [
        (offset, timestamp if magic else None, key, value) for offset, timestamp, key, value, _ in RECORDS
    ]


# --- the fields of a batch ----------------------------------------------------------------------


def test_the_base_timestamp_is_the_first_records_and_the_max_the_largest():
    [batch] = batches(v2().finish())
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 2**41)
    assert (batch.base_offset, batch.last_offset, batch.count) == (BASE, BASE + 6, 4)
    assert (batch.producer_id, batch.base_sequence, batch.leader_epoch, batch.delete_horizon_ms) == (-1, -1, -1, None)


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp():
    [batch] = batches(v2(delete_horizon_ms=10**12).finish())
    assert batch.delete_horizon_ms == 10**12
    assert [record.timestamp for record in batch] == [row[1] for row in RECORDS]


def test_under_log_append_time_every_record_has_the_batches_time():
    [batch] = batches(v2(log_append_time=777).finish())
    assert {record.timestamp for record in batch} == {777}
    assert batch.max_timestamp == 777


def test_a_batch_may_end_above_its_last_record_and_begin_below_its_first():
    builder = BatchBuilder(BASE - 10)
    builder.append(BASE, 5, None, None)
    [batch] = batches(builder.finish(last_offset=BASE + 90))
    assert (batch.base_offset, batch.last_offset) == (BASE - 10, BASE + 90)
    assert [record.offset for record in batch] == [BASE]


def test_an_empty_batch_is_a_header():
    data = BatchBuilder(BASE, producer_id=4, producer_epoch=0, base_sequence=10).finish(
        last_offset=BASE + 4, max_timestamp=1234
    )
    assert len(data) == HEADER_SIZE
    [batch] = batches(data)
    assert (batch.count, batch.base_timestamp, batch.max_timestamp, batch.last_sequence) == (0, -1, 1234, 14)


records_of_any_kind = st.lists(
    st.tuples(
        st.integers(1, 2**20),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.binary(max_size=80),
        st.none() | st.binary(max_size=600),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=50)), max_size=3),
    ),
    max_size=12,
)


@given(records_of_any_kind)
def test_what_was_built_is_read_back(rows):
    builder, written, offset = BatchBuilder(BASE), [], BASE
    for step, timestamp, key, value, headers in rows:
        offset += step
        written.append((offset, timestamp, key, value, tuple(headers)))
        builder.append(offset, timestamp, key, value, headers)
    size = builder.payload_size
    assert len(builder.payload()) == size
    data = builder.finish()
    assert len(data) == HEADER_SIZE + size
    [batch] = batches(data)
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch] == written


@given(records_of_any_kind.filter(len), st.sampled_from([0, 1]))
def test_messages_are_read_back_bare_and_wrapped(rows, magic):
    bare, offset, written = MessageSetBuilder(magic), BASE, []
    wrapped = MessageSetBuilder(magic, wrapped_from=BASE)
    for step, timestamp, key, value, _ in rows:
        offset += step
        written.append((offset, timestamp if magic else -1, key, value))
        bare.append(offset, timestamp, key, value)
        wrapped.append(offset, timestamp, key, value)
    assert bare.count == wrapped.count == len(rows)
    assert bare.payload_size == wrapped.payload_size
    read = [record for message in batches(bare.payload()) for record in message]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read] == written
    data = wrapped.wrap(wrapped.payload(), GZIP)
    [wrapper] = batches(data, decompress=lambda codec, magic, payload: bytes(payload))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in wrapper] == written
    assert wrapper.max_timestamp == (max(-1, *(row[1] for row in written)))


def test_any_buffer_is_a_key_a_value_or_a_header():
    builder = BatchBuilder(0)
    builder.append(0, 0, bytearray(b"k"), memoryview(b"value")[1:3], [("h", bytearray(b"x"))])
    [record] = next(iter(batches(builder.finish())))
    assert (record.key, record.value, record.headers) == (b"k", b"al", (("h", b"x"),))


def test_a_header_key_that_is_no_utf8_comes_through():
    builder = BatchBuilder(0)
    builder.append(0, 0, None, None, [(b"\xff\x80".decode("utf-8", "surrogateescape"), None)])
    assert b"\xff\x80" in builder.payload()


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31, 2**63 - 1, -(2**63)])
def test_an_offset_outside_the_batch_is_refused_and_changes_nothing(offset):
    builder = BatchBuilder(BASE)
    with pytest.raises(InvalidArgumentError) as refused:
        builder.append(offset, 1, None, None)
    assert refused.value.offset == offset
    assert builder.count == builder.payload_size == 0


@pytest.mark.parametrize("builder", [BatchBuilder(BASE), MessageSetBuilder(1), MessageSetBuilder(0)])
def test_an_offset_that_does_not_rise_is_refused(builder):
    builder.append(BASE + 3, 1, None, None)
    size = builder.payload_size
    for offset in (BASE + 3, BASE):
        with pytest.raises(InvalidArgumentError):
            builder.append(offset, 1, None, None)
    assert (builder.count, builder.payload_size) == (1, size)


def test_an_end_before_the_last_record_or_beyond_31_bits_is_refused():
    for end in (BASE + 5, BASE + 2**31):
        with pytest.raises(InvalidArgumentError):
            v2().finish(last_offset=end)


def test_a_finished_batch_takes_no_more():
    builder = v2()
    builder.finish()
    with pytest.raises(InvalidArgumentError, match="finished"):
        builder.append(BASE + 7, 1, None, None)
    with pytest.raises(InvalidArgumentError, match="finished"):
        builder.finish()


def test_codec_and_payload_belong_together():
    with pytest.raises(InvalidArgumentError):
        v2().finish(b"compressed")
    with pytest.raises(InvalidArgumentError):
        v2().finish(codec=GZIP)
    for codec in (5, -1):
        with pytest.raises(UnsupportedCompressionTypeError):
            v2().finish(b"compressed", codec)


def test_zstd_does_not_exist_below_v2():
    builder = MessageSetBuilder(1, wrapped_from=0)
    builder.append(0, 0, None, None)
    with pytest.raises(UnsupportedCompressionTypeError):
        builder.wrap(b"", 4)


def test_a_wrapper_needs_messages_that_know_it():
    with pytest.raises(InvalidArgumentError, match="at least one message"):
        MessageSetBuilder(1, wrapped_from=0).wrap(b"", GZIP)
    builder = MessageSetBuilder(1)
    builder.append(0, 0, None, None)
    with pytest.raises(InvalidArgumentError, match="wrapped_from"):
        builder.wrap(b"", GZIP)
    builder = MessageSetBuilder(0, wrapped_from=0)
    builder.append(0, 0, None, None)
    with pytest.raises(InvalidArgumentError, match="timestamp type"):
        builder.wrap(b"", GZIP, timestamp_type=1)


def test_a_message_below_its_wrapper_is_refused():
    with pytest.raises(InvalidArgumentError):
        MessageSetBuilder(1, wrapped_from=BASE).append(BASE - 1, 0, None, None)


@pytest.mark.parametrize(("magic", "timestamp_type"), [(2, 0), (-1, 0), (1, 2), (0, 1)])
def test_formats_and_timestamp_types_that_do_not_exist_are_refused(magic, timestamp_type):
    with pytest.raises(InvalidArgumentError):
        MessageSetBuilder(magic, timestamp_type=timestamp_type)


def test_a_base_offset_below_zero_and_two_base_timestamps_are_refused():
    with pytest.raises(InvalidArgumentError):
        BatchBuilder(-1)
    with pytest.raises(InvalidArgumentError):
        BatchBuilder(0, base_timestamp=1, delete_horizon_ms=1)


def test_a_field_that_is_no_buffer_is_refused_and_changes_nothing():
    builder = BatchBuilder(0)
    for row in ((1, b""), (b"", "text")):
        with pytest.raises(TypeError):
            builder.append(0, 0, *row)
    with pytest.raises(TypeError):
        builder.append(0, 0, None, None, [(b"key", b"value")])
    assert builder.count == 0
    assert struct.unpack_from(">i", builder.finish(), 57) == (0,)


def test_a_record_of_more_than_31_bits_is_refused():
    with mmap.mmap(-1, 2**31) as untouched:
        half = memoryview(untouched)[: 2**30 + 8]
        builder = BatchBuilder(0)
        with pytest.raises(RecordTooLargeError) as refused:
            builder.append(0, 0, half, half)
        assert refused.value.offset == 0
        with pytest.raises(RecordTooLargeError):
            MessageSetBuilder(1).append(0, 0, half, half)
        with pytest.raises(RecordTooLargeError, match="2147483648 bytes"):
            builder.append(0, 0, None, untouched)
        half.release()
