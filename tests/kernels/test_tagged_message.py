"""Messages of the tagged dialect: what the kernels read is what plain Python reads, and nothing else is read."""
import random
import struct
import zlib

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from seglog._kernels.columns import ArenaPool, chunks
from seglog._kernels.segment_scan import find_batch, scan
from seglog._kernels.status import Status
from seglog._kernels.tag_list import contradicted, count_defaults, first_impossible, tags_of
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, UnsupportedCompressionTypeError
from seglog.format.compression import decompressor
from support import plain_tagged
from support.models.tagged_author import Author
from support.plain_tagged import message, wrapper

TIME = 1_700_000_000_123


def table_of(raw, **options):
    return scan(Window(raw, "orders.tlog", is_tagged=True), decompress=decompressor(), **options)


def read(raw):
    table = table_of(raw, check_crc=True)
    assert table.stop == Status.OK, table.stop_details()
    return [(r.offset, r.timestamp, r.key, r.value) for r in table.records(include_control=False)]


def columns_of(raw):
    pool = ArenaPool()
    return [row[:4] for columns in chunks(table_of(raw), pool, include_control=False) for row in columns]


def full_tags(messages, last_delta, largest, **changed):
    tags = {0: largest, 1: largest, 32: messages, 33: last_delta, 64: 1, 65: 0, 66: 0} | changed
    return [(tag, value) for tag, value in tags.items() if value is not None]


# --- what is read ------------------------------------------------------------------------------


def test_a_bare_message_has_its_time_in_a_tag_or_in_seconds():
    raw = message(7, b"k", b"v", seconds=TIME // 1000, tags=[(0, TIME)]) + message(8, None, b"w", seconds=1_700_000_001)
    assert read(raw) == [(7, TIME, b"k", b"v"), (8, 1_700_000_001_000, None, b"w")]
    first, second = table_of(raw)
    assert (first.base_offset, first.last_offset, first.max_timestamp, first.codec) == (7, 7, TIME, 0)
    assert tags_of(first) == {0: TIME}
    assert tags_of(second) == {}


def test_it_is_eight_bytes_larger_than_v0_where_it_has_no_tags():
    v0 = struct.pack(">qiIbb", 0, 0, 0, 0, 0) + struct.pack(">i1si1s", 1, b"k", 1, b"v")
    assert len(message(0, b"k", b"v")) == len(v0) + 8


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_wrapper_has_the_offset_of_its_first_message_and_may_have_holes(codec):
    inner = [message(delta, b"k", b"%d" % delta, tags=[(0, TIME + delta)]) for delta in (0, 2, 5)]
    raw = wrapper(100, codec, inner, tags=full_tags(3, 5, TIME + 5)) + message(106, None, b"x")
    assert [record[0] for record in read(raw)] == [100, 102, 105, 106]
    batch = table_of(raw)[0]
    assert (batch.base_offset, batch.last_offset, batch.codec, batch.max_timestamp) == (100, 105, codec, TIME + 5)
    assert batch.bounds_time
    assert columns_of(raw) == read(raw)


def test_offsets_that_are_not_to_be_honoured_are_counted_from_the_wrappers():
    inner = [message(delta, None, b"%d" % delta) for delta in (0, 2, 5)]
    raw = wrapper(100, 1, inner, tags=[(32, 3), (64, 0)])
    assert [record[0] for record in read(raw)] == [100, 101, 102]
    assert [row[0] for row in columns_of(raw)] == [100, 101, 102]
    assert table_of(raw)[0].last_offset == 102


@pytest.mark.parametrize("tags", [[], [(32, 3)], [(64, 1)], [(64, 0)]])
def test_a_wrapper_that_does_not_say_its_last_offset_is_opened(tags):
    inner = [message(delta, None, b"%d" % delta) for delta in (0, 2, 5)]
    raw = wrapper(100, 3, inner, tags=tags) + message(200, None, b"x")
    last = 102 if dict(tags).get(64) == 0 else 105
    table = table_of(raw)
    assert table[0].last_offset == last
    assert table.find_offset(last) == 0
    assert not table[0].bounds_time
    assert [record[0] for record in read(raw)][-2:] == [last, 200]
    assert columns_of(raw) == read(raw)


def test_log_append_time_is_the_wrappers():
    inner = [message(delta, None, b"v", tags=[(0, 5)]) for delta in range(3)]
    raw = wrapper(0, 1, inner, tags=[(0, TIME), (32, 3), (33, 2), (66, 1)])
    assert {record[1] for record in read(raw)} == {TIME}
    assert {row[1] for row in columns_of(raw)} == {TIME}
    assert {r.timestamp_type for r in table_of(raw).records()} == {1}


@pytest.mark.parametrize("kind", [8, 9, 10, 11])
def test_control_messages_are_hidden_from_whoever_reads_data(kind):
    raw = message(0, None, b"v") + message(1, b"k", b"", attributes=kind) + message(2, None, b"w")
    assert [record[0] for record in read(raw)] == [0, 2]
    assert [row[0] for row in columns_of(raw)] == [0, 2]
    assert [batch.is_control for batch in table_of(raw)] == [False, True, False]
    assert [record.offset for record in table_of(raw).records()] == [0, 1, 2]


def test_unknown_tags_are_passed_over_and_kept():
    tags = [(5, -1), (40, 7), (90, 1), (100, b"any"), (127, b"")]
    raw = message(0, b"k", b"v", seconds=1, tags=tags)
    assert read(raw) == [(0, 1000, b"k", b"v")]
    (batch,) = table_of(raw)
    assert tags_of(batch) == dict(tags)
    assert bytes(batch.raw()) == raw


def test_what_is_missing_is_counted():
    raw = message(0, None, b"") + wrapper(1, 1, [message(0, None, b"")], tags=[(32, 1), (66, 0)]) + message(
        2, None, b"", tags=[(0, 1)])
    assert count_defaults(table_of(raw)) == {0: 2, 64: 1, 65: 1}


@pytest.mark.parametrize("seed", range(20))
def test_tags_that_messages_contradict_are_found_as_by_plain_python(seed):
    """Random messages; in some wrappers, tag 32 or 1 is wrong, which moves none of their messages."""
    author, chance, parts = Author(seed), random.Random(seed), []
    wrong, impossible, actual = [], [], {}
    for slot in range(60):
        (outer,) = plain_tagged.parse(author.next())
        tags, found = dict(outer.tags), plain_tagged.records(outer.raw)
        if outer.attributes & 15 in plain_tagged.CODECS:
            count, largest = len(found), max(timestamp for _, timestamp, _, _ in found)
            if 33 in tags and tags.get(64, 1) and chance.random() < 0.5:
                tags[32] = max(count + chance.choice((-1, 0, 5)), 0)
            if chance.random() < 0.5:
                tags[1] = largest + chance.choice((-1, 0, 1))
            if tags.get(32, count) != count:
                wrong, actual[slot] = [*wrong, (slot, 32)], count
            elif not tags.get(66) and tags.get(1, largest) < largest:
                wrong, actual[slot] = [*wrong, (slot, 1)], largest
            if {32, 33} <= tags.keys() and tags.get(64, 1) and tags[32] > tags[33] + 1:
                impossible.append(slot)
        parts.append(message(
            outer.offset, outer.key, outer.value, attributes=outer.attributes, seconds=outer.seconds,
            tags=list(tags.items()),
        ) if outer.attributes & 15 < 8 else outer.raw)
    table = table_of(b"".join(parts))
    (columns,) = chunks(table, ArenaPool(), 1 << 30)
    assert len(table) == 60
    assert wrong
    for first in range(61):
        later = [found for found in wrong if found[0] >= first]
        begin = next((n for n, offset in enumerate(columns.offset) if offset >= table[first].base_offset), 0) if (
            first < 60) else len(columns)
        offsets, timestamps = columns.offset[begin:], columns.timestamp[begin:]
        slot, tag = later[0] if later else (-1, -1)
        assert contradicted(table, offsets, timestamps, first) == (len(later), slot, tag, actual.get(slot, -1))
    assert first_impossible(table) == next(iter(impossible), -1)
    for first in (-1, 61):
        with pytest.raises(IndexError, match="the table has 60"):
            contradicted(table, columns.offset, columns.timestamp, first)


# --- what is damage ----------------------------------------------------------------------------


def changed(raw, at, new):
    """With other bytes, and the checksum right again."""
    raw = bytearray(raw)
    raw[at : at + len(new)] = new
    raw[12:16] = struct.pack(">I", zlib.crc32(raw[16:]))
    return bytes(raw)


@pytest.mark.parametrize("tags", [
    b"\x00" + bytes(7),             # a value that is cut short
    b"\x80" + bytes(8),             # no such id
    b"\x00" + bytes(8) + b"\x00" + bytes(8),        # twice
    b"\x60\xff\xff\xff\xff",        # a negative length
    b"\x60\x00\x00\x00\x09abc",     # a length beyond the list
    b"\x20\xff\xff\xff\xff",        # -1 messages
    b"\x40\x02",                    # neither honoured nor not
])
def test_tags_that_cannot_be_are_damage(tags):
    body = struct.pack(">bBI", 1, 0, 0) + struct.pack(">i", len(tags)) + tags + struct.pack(">ii", -1, -1)
    raw = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    table = table_of(message(0, None, b"") + raw)
    assert len(table) == 1
    assert table.stop == Status.BAD_TAG
    assert "bytes of tags" in table.stop_details()[0]


@pytest.mark.parametrize("size", [-2, 1, 9, 2**31 - 1])
def test_a_list_of_tags_that_overruns_its_message_is_damage(size):
    raw = changed(message(0, None, None), 22, struct.pack(">i", size))
    assert table_of(raw).stop == Status.BAD_TAG


@pytest.mark.parametrize(("kind", "error"), [
    (5, UnsupportedCompressionTypeError), (7, UnsupportedCompressionTypeError), (12, UnsupportedCompressionTypeError),
    (15, UnsupportedCompressionTypeError),
])
def test_a_type_that_is_none_is_refused(kind, error):
    with pytest.raises(error):
        read(message(0, None, b"v", attributes=kind))


def test_a_wrapper_in_a_wrapper_is_damage():
    with pytest.raises(CorruptRecordError, match="wrapper"):
        read(wrapper(0, 1, [wrapper(0, 1, [message(0, None, b"")])], tags=[(32, 1), (64, 0)]))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (-1, 0), (0, 9)])
def test_inner_offsets_that_fall_back_or_lie_beyond_the_wrappers_end_are_damage(deltas):
    raw = wrapper(10, 1, [message(delta, None, b"") for delta in deltas], tags=[(32, 2), (33, 5), (64, 1)])
    with pytest.raises(CorruptRecordError):
        read(raw)
    with pytest.raises(CorruptRecordError):
        columns_of(raw)


def test_v1_bytes_are_no_tagged_ones():
    """And the other way: the magic byte is the same. The directory says what it holds."""
    raw = message(0, b"k", b"v", seconds=1, tags=[(0, TIME)])
    table = scan(Window(raw), decompress=decompressor())
    assert [batch.magic for batch in table] == [1]
    with pytest.raises(CorruptRecordError):
        [record.value for record in table.records()]


def test_a_message_is_found_behind_damage():
    raw = message(0, None, b"a") + b"\x01" * 50 + message(5, None, b"b", tags=[(0, TIME)])
    window = Window(raw, is_tagged=True)
    assert raw[find_batch(window, 3) :] == message(5, None, b"b", tags=[(0, TIME)])


# --- twins -------------------------------------------------------------------------------------

KNOWN = {0: st.integers(-(2**63), 2**63 - 1), 40: st.integers(0, 9), 99: st.binary(max_size=9)}
bare_tags = st.dictionaries(st.sampled_from([0, 40, 99]), st.none(), max_size=3).flatmap(
    lambda ids: st.tuples(*(st.tuples(st.just(tag), KNOWN[tag]) for tag in ids)))
fields = st.none() | st.binary(max_size=40)


@st.composite
def bare(draw, offset):
    return message(
        offset, draw(fields), draw(fields), seconds=draw(st.integers(0, 2**32 - 1)), tags=draw(bare_tags),
        attributes=draw(st.sampled_from([0, 0, 0, 8, 10])) if offset >= 100 else 0)


@st.composite
def logs(draw):
    raw, offset = b"", 100
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            raw += draw(bare(offset))
        else:
            deltas = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=5)))
            inner = [draw(bare(delta)) for delta in deltas]
            tags = {0: draw(st.integers(0, 2**40)), 32: len(deltas), 33: deltas[-1], 64: 1, 65: 1, 66: 0}
            for tag in draw(st.sets(st.sampled_from([0, 32, 33, 64, 65, 66]))):
                del tags[tag]
            tags |= {66: 1} if draw(st.booleans()) else {}
            raw += wrapper(offset, draw(st.integers(1, 4)), inner, tags=list(tags.items()))
            offset += 20
        offset += draw(st.integers(1, 3))
    return raw


@given(logs())
def test_kernels_read_what_plain_python_reads(raw):
    assert read(raw) == plain_tagged.records(raw)
    assert columns_of(raw) == plain_tagged.records(raw)


@settings(phases=[Phase.generate])       # shrinking compressed bytes takes minutes
@given(logs(), st.randoms(use_true_random=False))
def test_changed_bytes_are_read_by_both_or_by_none(raw, chance):
    """Each message's checksum is made right again: it does not help to find the change."""
    if not raw:
        return
    bytes_, at = bytearray(raw), 0
    while at < len(bytes_):
        (size,) = struct.unpack_from(">i", raw, at + 8)
        end = at + 12 + size
        if chance.random() < 0.5:
            place = chance.randrange(at + 16, end)
            bytes_[place] = chance.choice([0, 1, 127, 128, 255, bytes_[place] ^ 1 << chance.randrange(8)])
        struct.pack_into(">I", bytes_, at + 12, zlib.crc32(bytes_[at + 16 : end]))
        at = end
    agree(bytes(bytes_))


def agree(raw):
    try:
        expected = plain_tagged.records(raw)
    except Exception:
        expected = None
    table = table_of(raw, check_crc=True)
    try:
        found = [(r.offset, r.timestamp, r.key, r.value) for r in table.records(include_control=False)]
        found = found if table.stop == Status.OK else None
    except (CorruptRecordError, UnsupportedCompressionTypeError):
        found = None
    if found is not None:
        assert found == expected
    elif expected is not None:      # order is for readers of a log to judge
        offsets = [record[0] for record in expected]
        assert offsets != sorted(set(offsets)) or _beyond(raw)


def _beyond(raw):
    """A wrapper whose messages lie beyond what its tags say."""
    for outer in plain_tagged.parse(raw):
        if outer.attributes & 7:
            opened = decompressor()(outer.attributes & 7, 2, memoryview(outer.value))
            inner = plain_tagged.parse(bytes(opened), check_crc=False)
            count = outer.tags.get(32, len(inner))
            if any(one.offset > outer.tags.get(33, 2**31) or one.offset < 0 for one in inner) or count < len(inner):
                return True
    return False


def test_random_mutations_of_a_log_are_never_read_otherwise():
    chance = random.Random(1)
    inner = [message(n, b"key%d" % n, b"value" * n, tags=[(0, TIME + n)]) for n in range(4)]
    raw = b"".join([
        message(0, b"k", b"v", seconds=5, tags=[(0, TIME), (99, b"x")]),
        wrapper(1, 3, inner, tags=full_tags(4, 3, TIME + 3)),
        message(5, b"\0\0\0\1", b"", attributes=10, tags=[(0, TIME)]),
        wrapper(6, 1, inner, tags=[(32, 4), (64, 0)]),
    ])
    sizes = [batch.size_bytes for batch in table_of(raw)]
    for _ in range(3000):
        bytes_, at = bytearray(raw), 0
        for _ in range(chance.randint(1, 3)):
            bytes_[chance.randrange(len(bytes_))] = chance.choice([0, 1, 2, 127, 128, 255, chance.randrange(256)])
        for size in sizes:
            struct.pack_into(">I", bytes_, at + 12, zlib.crc32(bytes_[at + 16 : at + size]))
            at += size
        agree(bytes(bytes_))
