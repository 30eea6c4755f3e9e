"""Batches moved by their headers alone agree with batches that are built where they are to go."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_mover import first_to_open, kept, moved, run_of
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError
from seglog.format.batch import build_batch
from seglog.format.compression import decompressor

BATCHES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2]), st.sampled_from(["none", "gzip", "lz4"]), st.integers(1, 4), st.integers(0, 3)
    ),
    min_size=1, max_size=8,
)


def built(batches, offset, *, epoch=-1, time=None, with_holes=True):
    raw = b""
    for magic, codec, count, hole in batches:
        offset += hole if with_holes or magic < 2 else 0
        kind = {} if magic == 0 else {"timestamp": 77}
        if time is not None and magic > 0:
            kind = {"timestamp": time, "timestamp_type": "LogAppendTime"}
        if magic == 2:
            kind["leader_epoch"] = epoch
        records = [(b"k", b"%d" % n) for n in range(count)]
        raw += build_batch(records, magic=magic, codec=codec, base_offset=offset, **kind)
        offset += count
    return raw, offset


def table_of(raw):
    table = scan(Window(raw), check_crc=True, decompress=decompressor())
    assert table.end == len(raw)
    return table


def bytes_of(made):
    """Of a moved run, which says of itself what a scan of its bytes finds."""
    raw = bytes(run_of(made))
    assert list(map(repr, made)) == list(map(repr, table_of(raw)))
    for mine, scanned in zip(made, table_of(raw), strict=True):
        for name in ("position", "size_bytes", "last_offset", "leader_epoch", "max_timestamp", "timestamp_type", "crc"):
            assert getattr(mine, name) == getattr(scanned, name), name
        assert mine.base_offset == scanned.base_offset
    return raw


@given(BATCHES, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_other_offsets_are_those_of_batches_built_there(batches, offset, target, epoch):
    batches = [(magic, codec if magic else "none", count, hole) for magic, codec, count, hole in batches]
    batches[0] = (*batches[0][:3], 0)
    table = table_of(built(batches, offset)[0])
    assert first_to_open(table) == len(table)
    made, end = moved(table, 0, len(table), next_offset=target, previous=offset - 1, leader_epoch=epoch)
    wanted, wanted_end = built(batches, target, epoch=epoch, with_holes=False)
    assert (bytes_of(made), end) == (wanted, wanted_end)


@given(BATCHES, st.integers(0, 2**40))
def test_another_time_is_that_of_batches_built_with_it(batches, offset):
    table = table_of(built(batches, offset, epoch=5)[0])
    made, end = moved(table, 0, len(table), log_append_time=123456)
    mine = table_of(bytes_of(made))
    assert end == table[-1].last_offset + 1
    for one, theirs in zip(mine, table, strict=True):
        assert one.crc_is_valid()
        assert bytes(one.payload()) == bytes(theirs.payload())
        assert (one.last_offset, one.leader_epoch) == (theirs.last_offset, theirs.leader_epoch)
        assert {(r.timestamp, r.timestamp_type) for r in one} == ({(123456, 1)} if one.magic else {(-1, -1)})


def test_batches_that_stay_are_the_same_bytes():
    raw, end = built([(0, "gzip", 3, 0), (1, "lz4", 2, 4), (2, "none", 2, 1)], 9)
    table = table_of(raw)
    made, made_end = moved(table, 0, 3)
    assert (bytes_of(made), made_end) == (raw, end)
    assert bytes_of(moved(table, 1, 2)[0]) == bytes(table[1].raw())
    part = kept(table, 1, 3)
    assert [b.position for b in part] == [table[1].position, table[2].position]
    assert bytes(run_of(part)) == raw[table[1].position :]
    assert run_of(part).obj is table[0].raw().obj       # not copied
    assert kept(table, 0, 3) is table
    assert [first_to_open(table, first) for first in (0, 1, 3)] == [0, 3, 3]


def test_what_cannot_be_moved_is_refused():
    table = table_of(built([(1, "none", 2, 0), (2, "none", 2, 0)], 9)[0])
    for slots in ((0, 0), (2, 1), (-1, 2), (0, 4)):
        with pytest.raises(InvalidArgumentError):
            moved(table, *slots)
        with pytest.raises(InvalidArgumentError):
            kept(table, *slots)
    with pytest.raises(InvalidArgumentError, match="behind offset 20"):
        moved(table, 0, 2, next_offset=0, previous=20)
    with pytest.raises(InvalidArgumentError):
        moved(table, 0, 3, next_offset=2**63 - 2, previous=8)
