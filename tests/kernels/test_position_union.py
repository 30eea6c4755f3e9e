"""Bitmaps of positions united by the kernel, beside pyroaring; and metadata read by it, beside protobuf."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from seglog._kernels.due_rows import DueRows
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.position_union import PositionUnion
from seglog._kernels.snapshot_metadata import MetadataReader
from seglog._kernels.window import Window
from seglog.errors import CorruptDelayedIndexError
from seglog.pulsar_pb.delayed_index_pb2 import SnapshotMetadata, SnapshotSegmentMetadata

# Few numbers, many, neighbours, and both ends of containers: every kind of container, and all of them in one bitmap.
numbers = st.sets(st.integers(0, 2**32 - 1) | st.integers(65_000, 66_000), max_size=50)
stretch = st.tuples(st.integers(0, 2**18), st.integers(0, 70_000), st.integers(1, 3)).map(
    lambda t: set(range(t[0], t[0] + t[1], t[2]))
)
entry_sets = st.tuples(numbers, st.none() | stretch).map(lambda pair: pair[0] | (pair[1] or set()))


def serialised(entries, optimise=True):
    bitmap = BitMap(entries)
    if optimise:
        bitmap.run_optimize()
    return bitmap.serialize()


def metadata(segments, **fields):
    """[(min, max, [(ledger, bitmap), …]), …] as protobuf writes it."""
    made = []
    for first, last, bitmaps in segments:
        made.append(SnapshotSegmentMetadata(min_schedule_timestamp=first, max_schedule_timestamp=last))
        for ledger, bitmap in bitmaps:
            made[-1].delayed_index_bit_map.add(key=ledger, value=bitmap)
    return SnapshotMetadata(metadata_list=made, **fields).SerializeToString()


def united(*entries, after=-1):
    reader, positions = MetadataReader(), PositionUnion()
    for entry in entries:
        reader.unite(Window(entry), positions, after)
    return reader, {ledger: BitMap.deserialize(bitmap) for ledger, bitmap in positions.bitmaps()}


@given(st.lists(st.dictionaries(st.integers(0, 2**63 - 1) | st.integers(0, 40), entry_sets, max_size=4), max_size=4))
def test_bitmaps_are_united_as_pyroaring_does(segments):
    described = [[(ledger, serialised(entries)) for ledger, entries in held.items()] for held in segments]
    entry = metadata([(n, n, bitmaps) for n, bitmaps in enumerate(described)])
    reader, found = united(entry)
    expected = {}
    for held in segments:
        for ledger, entries in held.items():
            expected.setdefault(ledger, BitMap()).update(entries)
    assert found == expected
    assert list(found) == list(expected)
    assert list(reader.times) == [n for n in range(len(segments)) for _ in range(2)]


@given(entry_sets)
def test_a_united_bitmap_is_the_smallest_one_without_runs(entries):
    _, found = united(metadata([(1, 1, [(7, serialised(entries))])]))
    statistics = found[7].get_statistics()
    assert statistics["n_run_containers"] == 0
    assert found[7].serialize() == BitMap.deserialize(found[7].serialize()).serialize()
    few = [key for key in {n >> 16 for n in entries} if sum(n >> 16 == key for n in entries) <= 4096]
    assert statistics["n_array_containers"] == len(few)


@given(st.lists(st.integers(0, 2**17), max_size=300))
def test_unsorted_entries_of_rows_make_the_same_bitmap(entries):
    """They are settled by way of bits."""
    rows = DueRows()
    for entry in entries:
        rows.append(1, 7, entry)
    union = PositionUnion()
    union.add_rows(rows)
    assert {ledger: BitMap.deserialize(raw) for ledger, raw in union.bitmaps()} == (
        {7: BitMap(entries)} if entries else {}
    )


def test_many_ledgers_are_told_apart():
    chance = random.Random(3)
    ledgers = chance.sample(range(2**62), 5000)
    rows = DueRows()
    for _ in range(2):
        for ledger in ledgers:
            rows.append(1, ledger, ledger % 7)
            rows.append(1, ledger, 100 + ledger % 5)
    positions = PositionUnion()
    positions.add_rows(rows)
    pending = PendingSet(BitMap)
    pending.adopt_all(positions)
    assert pending.count == 10_000
    assert pending.ledger_ids() == sorted(ledgers)
    assert all(list(pending.bitmap(ledger)) == [ledger % 7, 100 + ledger % 5] for ledger in ledgers)


def test_segments_that_are_over_are_not_united():
    entry = metadata([(at, at + 4, [(at, serialised([at]))]) for at in (10, 20, 30)])
    assert sorted(united(entry, after=23)[1]) == [20, 30]
    assert sorted(united(entry, after=24)[1]) == [30]
    assert list(united(entry, after=99)[0].times) == [10, 14, 20, 24, 30, 34]


def test_metadata_of_several_entries_says_how_many_they_are():
    parts = [
        metadata([(1, 2, [(5, serialised([1]))])], metadata_entries=2),
        metadata([(3, 4, [(5, serialised([2]))]), (4, 9, [])]),
    ]
    reader, found = united(*parts)
    assert (reader.entries, list(reader.times), found) == (2, [1, 2, 3, 4, 4, 9], {5: BitMap([1, 2])})


def test_unknown_fields_are_skipped_and_those_of_any_order_taken():
    bitmap = serialised([3])
    raw = b"\x12" + bytes([len(bitmap)]) + bitmap + b"\x1d\0\0\0\0" + b"\x08\x05"        # value, unknown, key
    segment = b"\x18\x01\x22\x01x\x0a" + bytes([len(raw)]) + raw + b"\x10\x02"
    entry = b"\x32\x01y\x0a" + bytes([len(segment)]) + segment
    assert MetadataReader().describe(Window(entry)) == [(1, 2, {5: bitmap})]
    assert united(entry)[1] == {5: BitMap([3])}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (metadata([(1, 5, []), (3, 9, [])]), r"segment 2 of a snapshot begins at 3, before .* 5"),
        (metadata([(1, 5, [(7, serialised([1])), (7, serialised([2]))])]), "segment 1 of a snapshot"),
        (b"\x0a\x02\x10\x01", "is no metadata"),  # a time is missing
        (b"\x0a\x0d\x10" + b"\xff" * 9 + b"\x01\x18\x01", "outside"),  # a time of 2^64 - 1
        (b"\x0a\x05\x08\x01", "is no metadata"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(entry, words):
    with pytest.raises(CorruptDelayedIndexError, match=words):
        united(entry)
    with pytest.raises(CorruptDelayedIndexError):
        MetadataReader().describe(Window(entry))


@pytest.mark.parametrize(
    "bitmap",
    [
        b"", b"abc", b"\0\0\0\0\0\0\0\0",
        b":0\0\0\xff\xff\xff\xff",                  # more containers than there are keys
        b":0\0\0\1\0\0\0\0\0\0\xff\x10\0\0\0\x18\0",      # an offset, and no container
        b":0\0\0\2\0\0\0" + b"\5\0\0\0" * 2 + b"\0\0\0\0" * 2 + b"\1\0\1\0",     # two of one key
        b";0\0\0\1\0\0\0\0\1\0\xff\xff\1\0",        # a run that leaves its container
        serialised(range(3, 9000, 2))[:-1],
        serialised(range(100), optimise=True)[:-1],
    ],
)
def test_a_broken_bitmap_is_refused(bitmap):
    with pytest.raises(CorruptDelayedIndexError, match="the bitmap of ledger 7 cannot be read"):
        united(metadata([(1, 5, [(7, bitmap)])]))


@given(st.data())
def test_mutated_metadata_is_read_or_refused(data):
    whole = [(n, n, [(5, serialised(range(n, n + 30))), (9, serialised(range(0, 9000, 2)))]) for n in range(2)]
    entry = bytearray(metadata(whole))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, min(len(entry) - 1, 150)))] = data.draw(st.integers(0, 255))
    del entry[data.draw(st.integers(0, len(entry))) :]
    for read in (united, lambda e: MetadataReader().describe(Window(e))):
        try:
            read(bytes(entry))
        except CorruptDelayedIndexError:
            continue
