"""A bucket's snapshot: the bytes of Pulsar 4.2.4, read and written again."""
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from seglog._kernels.due_rows import DueRows
from seglog.delayed.snapshot import (
    MAX_ENTRY_BYTES,
    MetadataEntries,
    SegmentMetadata,
    bitmaps_of,
    decode_metadata,
    decode_rows,
    encode_snapshot,
)
from seglog.errors import CorruptDelayedIndexError, RecordTooLargeError
from seglog.pulsar_pb.delayed_index_pb2 import SnapshotMetadata, SnapshotSegment
from support.delayed import operations, snapshots, stream
from support.golden import unpack
from support.java_order import JavaHashMapOrder
from support.plain_snapshot import metadata_part, plain_snapshot


def rows_of(triples):
    rows = DueRows()
    for row in triples:
        rows.append(*row)
    return rows


def encode_metadata(described, max_entry_bytes=MAX_ENTRY_BYTES):
    metadata = MetadataEntries(max_entry_bytes)
    for segment in described:
        metadata.add(metadata_part(segment))
    return metadata.entries()


def test_every_golden_snapshot_is_written_again_to_the_same_bytes():
    settings = {}
    found = 0
    for name, path in snapshots():
        config = settings.setdefault(name, operations(name)[0])
        entries = stream(path)
        rows = DueRows()
        for entry in entries[1:]:
            rows.extend(decode_rows(entry))
        again = encode_snapshot(
            rows,
            time_step_ms=config["time_step_per_segment_ms"],
            max_indexes=config["max_indexes_per_segment"],
        )
        assert again.metadata + again.segments == entries, path
        found += 1
    assert found == 152


def test_the_metadata_of_golden_snapshots_is_written_again_to_the_same_bytes():
    for _, path in snapshots():
        entry = stream(path)[0]
        assert encode_metadata(decode_metadata([entry])) == [entry], path


def test_the_metadata_tells_what_the_segments_hold():
    for _, path in snapshots()[::10]:
        metadata, *segments = stream(path)
        described = decode_metadata([metadata])
        assert len(described) == len(segments)
        for says, entry in zip(described, segments, strict=True):
            rows = list(decode_rows(entry))
            assert (says.min_schedule_timestamp, says.max_schedule_timestamp) == (rows[0][0], rows[-1][0])
            named = {(ledger, e) for ledger, bitmap in says.bitmaps.items() for e in BitMap.deserialize(bitmap)}
            assert named == {(ledger, entry_id) for _, ledger, entry_id in rows}


def test_bitmaps_of_every_container_kind_are_written_again_to_the_same_bytes():
    for entry in stream(unpack("pulsar") / "roaring_edge.bin"):
        bitmap = BitMap(array("I", BitMap.deserialize(entry)))
        bitmap.run_optimize()
        assert bitmap.serialize() == entry


def test_protobuf_reads_a_segment_as_the_kernel_does():
    for _, path in snapshots()[::10]:
        for entry in stream(path)[1:]:
            witness = [(i.timestamp, i.ledger_id, i.entry_id) for i in SnapshotSegment.FromString(entry).indexes]
            assert list(decode_rows(entry)) == witness


def test_bitmaps_are_read_in_any_order():
    _, path = snapshots()[0]
    metadata = SnapshotMetadata.FromString(stream(path)[0])
    for segment in metadata.metadata_list:
        entries = [(e.key, e.value) for e in segment.delayed_index_bit_map]
        random.Random(7).shuffle(entries)
        del segment.delayed_index_bit_map[:]
        for key, value in entries:
            segment.delayed_index_bit_map.add(key=key, value=value)
    shuffled = decode_metadata([metadata.SerializeToString()])
    assert shuffled == decode_metadata([stream(path)[0]])


def test_fields_of_an_index_come_in_any_order_and_unknown_ones_are_skipped():
    index = bytes([0x18, 7, 0x20, 1, 0x10, 5, 0x2A, 1, 0xFF, 0x08, 9])
    entry = bytes([0x12, 2, 1, 2, 0x0A, len(index)]) + index
    assert list(decode_rows(entry)) == [(9, 5, 7)]


def test_rows_that_are_out_of_order_are_sorted():
    one, two = rows_of([(5, 1, 1)]), rows_of([(4, 2, 0)])
    assert list(decode_rows(one.encode(0, 1) + two.encode(0, 1))) == [(4, 2, 0), (5, 1, 1)]


# --- where a segment ends --------------------------------------------------------------------


def test_a_segment_spans_less_than_the_time_step():
    rows = rows_of([(100, 1, 0), (129, 1, 1), (130, 1, 2), (500, 1, 3)])
    found = encode_snapshot(rows, time_step_ms=30, max_indexes=-1)
    assert list(found.times) == [(100, 129), (130, 130), (500, 500)]


def test_a_segment_holds_at_most_so_many_indexes():
    rows = rows_of([(100, 1, n) for n in range(5)])
    found = encode_snapshot(rows, time_step_ms=30, max_indexes=2)
    assert [len(decode_rows(entry)) for entry in found.segments] == [2, 2, 1]


@pytest.mark.parametrize("step", [0, 1])
def test_the_smallest_time_step_makes_a_segment_of_each_time(step):
    rows = rows_of([(100, 1, 0), (100, 1, 1), (101, 1, 2)])
    found = encode_snapshot(rows, time_step_ms=step, max_indexes=-1)
    assert [len(decode_rows(entry)) for entry in found.segments] == [2, 1]


def test_a_segment_is_never_larger_than_an_entry():
    rows = rows_of([(100, 1, n) for n in range(100)])
    found = encode_snapshot(rows, time_step_ms=1000, max_indexes=-1, max_entry_bytes=350)
    assert max(map(len, found.segments)) <= 350
    assert [row for entry in found.segments for row in decode_rows(entry)] == list(rows)


def test_an_empty_snapshot_has_one_empty_metadata_entry():
    assert encode_snapshot(DueRows(), time_step_ms=1, max_indexes=1).metadata == [b""]


# --- metadata that is larger than an entry ---------------------------------------------------


def test_metadata_beyond_an_entry_is_split_and_read_again():
    described = [SegmentMetadata(n, n, {n: b"x" * 50}) for n in range(20)]
    entries = encode_metadata(described, max_entry_bytes=200)
    assert len(entries) > 1
    assert max(map(len, entries)) <= 200
    assert decode_metadata(entries) == described


def test_the_first_entry_of_split_metadata_says_how_many_there_are():
    entries = encode_metadata([SegmentMetadata(n, n, {n: b"x" * 50}) for n in range(20)], max_entry_bytes=200)
    assert SnapshotMetadata.FromString(entries[0]).metadata_entries == len(entries)
    with pytest.raises(CorruptDelayedIndexError, match=f"has {len(entries)} entries, found 1"):
        decode_metadata(entries[:1])


def test_metadata_of_one_segment_beyond_an_entry_is_refused():
    with pytest.raises(RecordTooLargeError, match="an entry can hold: 100"):
        encode_metadata([SegmentMetadata(1, 1, {1: b"x" * 200})], max_entry_bytes=100)


# --- the order of a HashMap<Long, ?> -----------------------------------------------------------


def test_a_map_that_grew_keeps_its_width_when_it_is_cleared():
    order = JavaHashMapOrder()
    for key in range(40):
        order.add(key)
    assert order.drain() == list(range(40))
    # 16 bins would put 32 beside 0 and before it, 64 keep them apart.
    for key in (0, 32):
        order.add(key)
    assert order.drain() == [0, 32]


def test_keys_of_one_bin_come_latest_first():
    order = JavaHashMapOrder()
    for key in (0, 16, 32, 16):
        order.add(key)
    assert order.drain() == [32, 16, 0]


# Tests of all the error paths of reading a snapshot follow:


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"\x0a\x05\x08\x01", "end before"),
        (b"\x0a", "end before"),
        (b"\x0a\x02\x08\x01", "end before"),  # two fields are missing
        (b"\x0a\x0c\x08" + b"\xff" * 11, "does not end"),
        (b"\x0b\x00", "impossible"),  # a group
        (b"\x11\x00", "end before"),  # a fixed64 without its bytes
        (b"\x0a\x07\x08\x01\x10\x01\x18\xff", "end before"),
        (b"\x0a\x0a\x08\x01\x10\x01\x18\x80\x80\x80\x80\x10", "outside"),  # entry 2^32
        (b"\x0a\x0f\x08" + b"\xff" * 9 + b"\x01\x10\x01\x18\x01", "outside"),  # a time of 2^64 - 1
    ],
)
def test_a_broken_segment_is_refused(entry, words):
    with pytest.raises(CorruptDelayedIndexError, match=words):
        decode_rows(entry)


def test_broken_metadata_is_refused():
    with pytest.raises(CorruptDelayedIndexError, match="is no metadata"):
        decode_metadata([b"\x0a\x05\x08\x01"])


@pytest.mark.parametrize("bitmap", [b"", b"abc", b":0\0\0\1\0\0\0\0\0\0\xff\x10\0\0\0\x18\0"])
def test_a_broken_bitmap_is_refused(bitmap):
    with pytest.raises(CorruptDelayedIndexError, match="the bitmap of ledger 7"):
        bitmaps_of(SegmentMetadata(1, 5, {7: bitmap}))


def test_segments_that_overlap_in_time_are_refused():
    with pytest.raises(CorruptDelayedIndexError, match=r"segment 2 of a snapshot begins at 3, before .* 5"):
        decode_metadata(encode_metadata([SegmentMetadata(1, 5, {}), SegmentMetadata(3, 9, {})]))


@given(st.data())
def test_a_mutated_segment_is_read_or_refused(data):
    entry = bytearray(rows_of([(1700000000000 + n, 3_000_000_000, n * 70) for n in range(6)]).encode(0, 6))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    del entry[data.draw(st.integers(0, len(entry))) :]
    try:
        rows = list(decode_rows(bytes(entry)))
    except CorruptDelayedIndexError:
        return
    assert rows == sorted(rows)


triples = st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**32 - 1))


@given(st.sets(triples, max_size=80), st.integers(0, 2**62), st.integers(-1, 9).filter(bool))
def test_what_is_encoded_is_what_is_decoded(held, step, most):
    rows = rows_of(sorted(held))
    found = encode_snapshot(rows, time_step_ms=step, max_indexes=most)
    assert [row for entry in found.segments for row in decode_rows(entry)] == sorted(held)
    said = decode_metadata(found.metadata)
    assert [(says.min_schedule_timestamp, says.max_schedule_timestamp) for says in said] == list(found.times)


# Few ledgers and many, whose ids meet in bins; entries alone, in runs, and so many that they are bits.
ledger_ids = st.sampled_from([1, 2, 17, 33, 65537, 2**32 + 1, 2**40]) | st.integers(0, 60)
stretches = st.tuples(st.integers(0, 3), st.integers(0, 200_000), st.integers(1, 9_000), st.integers(1, 3))
entry_ids = st.integers(0, 30) | st.integers(65_500, 65_600) | st.integers(0, 2**32 - 1)


@given(
    st.lists(st.tuples(st.integers(0, 40), ledger_ids, entry_ids), max_size=120),
    st.lists(stretches, max_size=2),
    st.integers(0, 12),
    st.sampled_from([-1, 1, 3, 50, 20_000]),
)
def test_a_snapshot_is_encoded_as_protobuf_and_pyroaring_do(singles, neighbours, step, most):
    held = set(singles)
    for at, first, count, gap in neighbours:
        held |= {(at, 5, entry) for entry in range(first, first + count * gap, gap)}
    found = encode_snapshot(rows_of(sorted(held)), time_step_ms=step, max_indexes=most)
    metadata, segments = plain_snapshot(sorted(held), step, most)
    assert (found.metadata, found.segments) == ([metadata], segments)


def test_a_row_that_is_there_twice_has_one_bit():
    rows = rows_of([(1, 5, 7), (1, 5, 7), (1, 5, 8)])
    (says,) = decode_metadata(encode_snapshot(rows, time_step_ms=9, max_indexes=-1).metadata)
    assert list(BitMap.deserialize(says.bitmaps[5])) == [7, 8]


def test_entries_of_many_ledgers_are_in_the_order_of_javas_map():
    chance = random.Random(4)
    rows = sorted((chance.randrange(5000), chance.randrange(10**4), n) for n in range(3000))
    found = encode_snapshot(rows_of(rows), time_step_ms=1000, max_indexes=-1)
    assert (found.metadata[0], found.segments) == plain_snapshot(rows, 1000)


def test_rows_of_several_megabytes_are_encoded_in_several_calls():
    chance = random.Random(5)
    rows = sorted((chance.randrange(10**6), 7, n) for n in range(150_000))
    found = encode_snapshot(rows_of(rows), time_step_ms=1000, max_indexes=-1)
    assert sum(map(len, found.segments)) > 1 << 20
    assert [row for entry in found.segments for row in decode_rows(entry)] == rows
