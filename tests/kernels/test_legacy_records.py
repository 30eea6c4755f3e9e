"""Messages of v0 and v1, bare and in wrappers. The rules: cext/records/legacy_records.pxd."""
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, UnsupportedCompressionTypeError
from support import plain_format as plain


def stored(codec, magic, payload):
    """A decompressor of codecs that do not compress."""
    return bytes(payload)


def batches(data, decompress=stored):
    return list(scan(Window(data), decompress=decompress))


def only_batch(data, decompress=stored):
    [batch] = batches(data, decompress)
    return batch


def fields(record):
    return plain.PlainRecord(record.offset, record.timestamp, record.key, record.value, record.headers)


def wrapper(*messages, offset, magic=1, attributes=plain.GZIP, timestamp=0):
    return plain.message(
        offset, None, b"".join(messages), magic=magic, attributes=attributes, timestamp=timestamp
    )


def inner(*offsets, magic=1, **fields):
    return [plain.message(n, magic=magic, **fields) for n in offsets]


def offsets_of(data):
    return [r.offset for r in only_batch(data)]


def refused(data, words):
    with pytest.raises(CorruptRecordError, match=words) as e:
        list(only_batch(data))
    assert e.value.position == 0


# --- bare messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value" * 99])
def test_a_bare_message_is_a_batch_of_one_record(key, value):
    for magic in 0, 1:
        data = plain.message(5_000_000_000, key, value, magic=magic, timestamp=17)
        batch = only_batch(data)
        [record] = batch
        assert fields(record) == (5_000_000_000, (-1, 17)[magic], key, value, ())
        assert (record.size_bytes, record.sequence) == (len(data), -1)
        assert record.timestamp_type == batch.timestamp_type == magic - 1
        assert (batch.base_offset, batch.last_offset) == (5_000_000_000, 5_000_000_000)
        assert batch.max_timestamp == record.timestamp
        assert (record.key_view, record.value_view) == (key, value)


def test_a_bare_message_may_carry_the_time_of_the_append():
    [record] = only_batch(plain.message(timestamp=17, attributes=plain.LOG_APPEND_TIME))
    assert (record.timestamp, record.timestamp_type) == (17, 1)


# --- wrappers ----------------------------------------------------------------------------------------


def test_inner_offsets_of_v0_are_absolute():
    data = wrapper(*inner(100, 103, 104, magic=0), offset=104, magic=0)
    batch = only_batch(data)
    assert offsets_of(data) == [100, 103, 104]
    assert (batch.base_offset, batch.last_offset, batch.count) == (100, 104, -1)


def test_inner_offsets_of_v1_are_relative_and_the_wrapper_has_the_last():
    assert offsets_of(wrapper(*inner(0, 1, 2), offset=102)) == [100, 101, 102]


def test_inner_offsets_of_v1_may_have_holes_after_compaction():
    data = wrapper(*inner(1, 4), offset=104)
    assert offsets_of(data) == [101, 104]
    assert only_batch(data).base_offset == 101


def test_a_v1_wrapper_of_offset_0_stands_at_0_whatever_is_inside():
    assert offsets_of(wrapper(*inner(0, 1, 2), offset=0)) == [0, 1, 2]


def test_a_range_of_a_table_opens_a_wrapper_of_offset_0():
    table = scan(Window(wrapper(*inner(0, 1, 2), offset=0)), decompress=stored)
    assert [r.offset for r in table.records(1, 2)] == [1]


def test_the_wrappers_append_time_holds_for_all_inside():
    data = wrapper(*inner(0, 1, timestamp=5), offset=1, timestamp=9, attributes=plain.LZ4 | plain.LOG_APPEND_TIME)
    assert [(r.timestamp, r.timestamp_type) for r in only_batch(data)] == [(9, 1), (9, 1)]


def test_without_append_time_each_message_has_its_own():
    data = wrapper(plain.message(0, timestamp=5), plain.message(1, timestamp=-1), offset=1, timestamp=5)
    assert [(r.timestamp, r.timestamp_type) for r in only_batch(data)] == [(5, 0), (-1, 0)]


def test_the_type_of_time_is_the_wrappers_not_the_messages():
    data = wrapper(*inner(0, timestamp=5, attributes=plain.LOG_APPEND_TIME), offset=0, timestamp=9)
    assert [(r.timestamp, r.timestamp_type) for r in only_batch(data)] == [(5, 0)]


def test_v0_has_no_time_inside_either():
    data = wrapper(*inner(7, magic=0), offset=7, magic=0)
    assert [(r.timestamp, r.timestamp_type) for r in only_batch(data)] == [(-1, -1)]


def test_messages_of_v1_in_a_v0_wrapper_have_absolute_offsets_and_their_own_times():
    """As npm's kafka-node and a broker of 0.9 leave them. Bit 3 of a v0 wrapper says nothing."""
    for attributes in plain.GZIP, plain.GZIP | plain.LOG_APPEND_TIME:
        data = wrapper(*inner(7, 8, timestamp=5), offset=8, magic=0, attributes=attributes, timestamp=9)
        assert [(r.offset, r.timestamp, r.timestamp_type) for r in only_batch(data)] == [(7, 5, -1), (8, 5, -1)]


@pytest.mark.parametrize(("bit", "times"), [(0, [5, -1]), (plain.LOG_APPEND_TIME, [9, -1])])
def test_messages_of_both_formats_in_a_v1_wrapper_have_relative_offsets(bit, times):
    """As the cleaner of 0.10.0 left them (KAFKA-4298)."""
    messages = *inner(0, timestamp=5), *inner(1, magic=0)
    data = wrapper(*messages, offset=101, attributes=plain.GZIP | bit, timestamp=9)
    assert [(r.offset, r.timestamp) for r in only_batch(data)] == list(zip((100, 101), times, strict=True))


APPEND_TIME = plain.LZ4 | plain.LOG_APPEND_TIME


@pytest.mark.parametrize(("data", "bounds", "largest", "mixed"), [
    (wrapper(*inner(0, 1, timestamp=5), offset=1, timestamp=5), False, 5, False),
    (wrapper(*inner(0, timestamp=5), *inner(1, timestamp=9), offset=1, timestamp=5), False, 9, False),
    (wrapper(*inner(0, timestamp=5), offset=0, magic=0), False, 5, True),
    (wrapper(*inner(0, magic=0), offset=0, magic=0), False, -1, False),
    (wrapper(*inner(0, magic=0), *inner(1, timestamp=3), offset=1, timestamp=9), False, 3, True),
    (wrapper(*inner(0, timestamp=99), offset=0, timestamp=9, attributes=APPEND_TIME), True, 9, False),
    (plain.message(0, timestamp=7), True, 7, False),
])
def test_only_a_wrapper_of_create_time_must_be_opened_to_know_its_latest_time(data, bounds, largest, mixed):
    batch = only_batch(data)
    assert (batch.bounds_time, batch.largest_timestamp) == (bounds, largest)
    assert batch.survey_wrapper() == (-1, largest, mixed)
    table = scan(Window(data), decompress=stored)
    assert table.find_unbounded() == (-1 if bounds else 0)
    assert table.find_timestamp(2**62) == (-1 if bounds else 0)
    assert table.find_unbounded(1) == -1


def test_the_size_of_an_inner_record_is_that_of_its_message():
    message = plain.message(0, b"key", b"value")
    assert [r.size_bytes for r in only_batch(wrapper(message, offset=0))] == [len(message)]


def test_the_decompressor_is_told_the_wrappers_version():
    """LZ4 frames of v0 carry a wrong header checksum (KAFKA-3160)."""
    for magic in 0, 1:
        seen = []

        def decompress(codec, magic, payload, seen=seen):
            seen.append((codec, magic))
            return payload

        data = wrapper(*inner(0, magic=magic), offset=0, magic=magic, attributes=plain.LZ4)
        assert len(list(only_batch(data, decompress))) == 1
        assert seen == [(plain.LZ4, magic)]


def test_the_payload_of_a_wrapper_is_its_value():
    messages = inner(0, 1)
    assert only_batch(wrapper(*messages, offset=1)).payload() == b"".join(messages)


def test_offsets_that_overflow_wrap_as_in_java():
    data = wrapper(*inner(2**62, -(2**63)), offset=2**63 - 2)
    assert offsets_of(data) == [2**62 - 2, 2**63 - 2]


def test_a_message_with_a_wrong_checksum_is_found_inside_a_wrapper():
    """The wrapper's own checksum is right: it was made over the damage."""
    for damaged in range(3):
        messages = [bytearray(m) for m in inner(0, 1, 2, value=b"value")]
        messages[damaged][-1] ^= 1
        batch = only_batch(wrapper(*map(bytes, messages), offset=2))
        assert batch.crc_is_valid()
        assert batch.find_bad_message() == damaged
        assert len(list(batch)) == 3


def test_no_bad_message_is_found_where_there_is_none():
    for data in (
        wrapper(*inner(0, 1), offset=1), plain.message(0, b"k", b"v"), plain.batch_v2(plain.record_v2()),
    ):
        assert only_batch(data).find_bad_message() == -1


# --- Tests of all the error paths follow: one for each return that is not OK -------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("size", "words"), [(-2, None), (99, "key size"), (2**31 - 1, "key size")])
def test_a_key_larger_than_its_message_is_refused(magic, size, words):
    data = bytearray(plain.message(0, b"k", b"v", magic=magic))
    struct.pack_into(">i", data, 18 + 8 * magic, size)
    refused(data, words or "value size")        # a null key: the value size is then read from the key's bytes


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [-1, 0, 2, 2**31 - 1])
def test_a_value_that_does_not_end_with_its_message_is_refused(magic, size):
    data = bytearray(plain.message(0, b"k", b"v", magic=magic))
    struct.pack_into(">i", data, 18 + 8 * magic + 5, size)
    refused(data, "value size")
    batch = only_batch(data)
    with pytest.raises(CorruptRecordError, match="value size"):
        batch.payload()


def test_a_wrapper_whose_value_does_not_parse_is_refused():
    data = bytearray(wrapper(*inner(0), offset=0))
    struct.pack_into(">i", data, 30, -1)
    refused(data, "value size")
    with pytest.raises(CorruptRecordError, match="value size"):
        _ = only_batch(data).base_offset


def test_a_wrapper_of_nothing_is_refused():
    refused(plain.message(0, None, b"", attributes=plain.GZIP), "a count .*: 0 records")
    refused(plain.message(0, None, None, attributes=plain.GZIP), "a compressed message whose value is null")


@pytest.mark.parametrize(
    ("magic", "offsets", "outer"), [(0, (5, 5), 5), (0, (5, 6), 7), (0, (6, 5), 5), (1, (1, 0), 9)]
)
def test_offsets_that_do_not_increase_up_to_the_wrappers_are_refused(magic, offsets, outer):
    refused(
        wrapper(*inner(*offsets, magic=magic), offset=outer, magic=magic),
        "an offset (out of range|at or below the one before it)")


def test_a_wrapper_inside_a_wrapper_is_refused():
    refused(wrapper(wrapper(*inner(0), offset=0), offset=0), "a wrapper contains another")


def test_a_v2_batch_inside_a_wrapper_is_refused():
    refused(wrapper(plain.batch_v2(plain.record_v2()), offset=0), "an unknown format version")


def test_a_last_inner_offset_beyond_the_wrappers_is_refused():
    refused(wrapper(*inner(0, 1, 8), offset=7), "an offset out of range")
    with pytest.raises(CorruptRecordError, match="an offset out of range"):
        only_batch(wrapper(*inner(0, 1, 8), offset=7)).find_bad_message()


@pytest.mark.parametrize("kept", range(1, 34))
def test_a_message_cut_off_inside_a_wrapper_is_refused(kept):
    first, last = inner(0, 1)
    refused(wrapper(first, last[:kept], offset=1), "the bytes end before")


@pytest.mark.parametrize(("size", "words"), [(-1, "a size"), (13, "a size"), (21, "a size"), (99, "end before")])
def test_a_bad_size_inside_a_wrapper_is_refused(size, words):
    message = bytearray(plain.message(0))
    struct.pack_into(">i", message, 8, size)
    refused(wrapper(bytes(message), offset=0), words)


def test_zeros_behind_the_last_message_of_a_wrapper_are_refused():
    refused(wrapper(*inner(0), bytes(40), offset=0), "a size that is impossible")


def test_the_whole_wrapper_is_checked_before_its_first_record():
    good, bad = plain.message(0, b"k", b"v"), bytearray(plain.message(1))
    bad[16] = 9
    records = iter(only_batch(wrapper(good, bytes(bad), offset=1)))
    with pytest.raises(CorruptRecordError):
        next(records)
    assert list(records) == []


@pytest.mark.parametrize("codec", [plain.ZSTD, 5, 6, 7])
def test_codecs_that_old_versions_do_not_have_are_refused(codec):
    for magic in 0, 1:
        batch = only_batch(plain.message(0, None, b"?", magic=magic, attributes=codec))
        with pytest.raises(UnsupportedCompressionTypeError):
            list(batch)


def test_without_a_decompressor_a_wrapper_shows_its_header_and_does_not_open():
    batch = only_batch(wrapper(*inner(0, 1), offset=6), None)
    assert batch.last_offset == 6
    with pytest.raises(InvalidArgumentError):
        _ = batch.base_offset


# --- the twin ----------------------------------------------------------------------------------------

FIELD = st.none() | st.binary(max_size=9)
MESSAGE = st.builds(
    plain.message,
    st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), FIELD, FIELD,
    magic=st.sampled_from([1, 1, 1, 0]), timestamp=st.integers(-1, 9), attributes=st.sampled_from([0, 0, 8, 1]),
)
WRAPPER = st.builds(
    lambda messages, offset, magic, attributes: wrapper(
        *messages, offset=offset, magic=magic, attributes=attributes, timestamp=99),
    st.lists(MESSAGE, max_size=4), st.integers(0, 5), st.sampled_from([0, 1]), st.sampled_from([1, 2, 3, 9, 11]),
)


@given(st.one_of(MESSAGE, WRAPPER), st.lists(st.tuples(st.integers(16, 200), st.integers(0, 255)), max_size=3))
def test_the_kernel_reads_and_refuses_what_plain_python_does(data, changes):
    data = bytearray(data)
    for position, byte in changes:
        if position < len(data):
            data[position] = byte
    for batch in batches(data):
        if batch.magic == 2:
            continue
        try:
            expected = plain.decode_batch(bytes(data), stored)
        except plain.Malformed:
            expected = None
        try:
            found = [fields(r) for r in batch]
        except (CorruptRecordError, UnsupportedCompressionTypeError):
            found = None
        assert found == expected
