"""A record by offset or time, the short way: what a walk over all records finds, for any batches and any index."""
from array import array
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.checked_batches import CheckedBatches
from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.point_read import LastOpened, PointReader
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError
from seglog.format.compression import compress, decompressor

ASK_THE_TIME_INDEX, ASK_THE_LOG, NONE = -3, -2, -1
NOW = 28_333_333 * 60_000


def batch_of(offset, records, codec=0):
    """`records`: (gap before the record, timestamp, size of its value)."""
    builder = BatchBuilder(offset)
    for n, (gap, timestamp, size) in enumerate(records):
        offset += gap * (n > 0)
        builder.append(offset, timestamp, None, b"%d" % offset + b"x" * size)
        offset += 1
    if codec:
        return builder.finish(bytes(compress(codec, 2, builder.payload())), codec), offset
    return builder.finish(), offset


class Read:
    """A segment in memory, its indexes and a reader of it."""

    def __init__(self, raw, interval=200, base=0):
        self.window = Window(raw)
        self.table = scan(self.window, decompress=decompressor())
        builder = IndexBuilder(base, interval)
        builder.add(self.table, 0, len(self.table), 0)
        builder.finish()
        self.offsets = Window(builder.take_offset_entries())
        self.times = Window(builder.take_time_entries())
        self.minutes = Window(builder.take_minute_entries())
        self.open(base)

    def open(self, base=0):
        checked = CheckedBatches(len(self.window))
        self.reader = PointReader(self.window, base, self.offsets, checked, LastOpened(), decompressor())
        self.walk = HeaderWalk(base)
        self.walk.advance(self.window, self.offsets, self.times)

    def seek(self, timestamp, start=0):
        return self.reader.find_timestamp(timestamp, start, self.walk, self.times)


records = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, 3]), st.integers(0, 500), st.sampled_from([0, 5, 30, 700, 3000])), min_size=1
)
segments = st.lists(st.tuples(records, st.sampled_from([0, 0, 0, 1]), st.booleans()), min_size=1, max_size=8)


@given(segments, st.sampled_from([0, 1000, 2**31 - 600]))
def test_each_offset_and_time_gives_what_a_walk_over_all_records_gives(batches, time_base):
    raw, offset = b"", 0
    for content, codec, hole in batches:
        content = [(gap, time_base + timestamp, size) for gap, timestamp, size in content]
        one, offset = batch_of(offset + 5 * hole, content, codec)
        raw += one
    segment = Read(raw)
    whole = [(r.offset, r.timestamp, r.value) for r in segment.table.records()]
    by_offset = {row[0]: row for row in whole}
    for target in range(-1, offset + 2):
        found = segment.reader.get(target)
        assert (found and (found.offset, found.timestamp, found.value)) == by_offset.get(target)
        batch = next((b for b in segment.table if b.last_offset >= target), None)
        assert segment.reader.find_batch(target) == (batch and (batch.last_offset, batch.position, batch.size_bytes))
    for target in {t + more for _, t, _ in whole for more in (0, 1)} | {0}:
        for start in (0, offset // 2, offset):
            first = next(((t, o, -1) for o, t, _ in whole if t >= target and o >= start), (-1, NONE, -1))
            assert segment.seek(target, start) == first


def big_batch(offset=0, n=300):
    return batch_of(offset, [(0, 1000 + i, 100) for i in range(n)])[0]


def test_timestamps_far_apart_and_far_back_are_found():
    times = [2**62, 5, 2**40, 7, 2**62 - 1] * 100
    segment = Read(batch_of(0, [(0, t, 100) for t in times])[0])
    for target in (1, 6, 8, 2**35, 2**40, 2**40 + 1, 2**62):
        for start in (0, 1, 250, 499):
            expected = next(((t, o, -1) for o, t in enumerate(times) if t >= target and o >= start), (-1, NONE, -1))
            assert segment.seek(target, start) == expected
    assert [segment.reader.get(o).timestamp for o in range(500)] == times


def test_a_minute_of_many_batches_is_not_walked_through():
    times = [NOW, *(NOW + 60_000 + n for n in range(20)), NOW + 180_000]
    segment = Read(b"".join(batch_of(n, [(0, time, 300)])[0] for n, time in enumerate(times)), interval=1)
    assert [segment.seek(time)[1] for time in (*times, times[-1] + 1)] == [*range(22), NONE]
    segment.walk = HeaderWalk(0, True)
    segment.walk.advance(segment.window, segment.offsets, segment.minutes)
    asked = [
        segment.reader.find_timestamp(time, 0, segment.walk, segment.minutes)[1] for time in (*times, times[-1] + 1)
    ]
    assert asked == [0, 1, *[ASK_THE_TIME_INDEX] * 20, NONE]


def test_a_flipped_bit_is_seen_before_a_record_is_given():
    raw = bytearray(big_batch() + big_batch(300))
    raw[len(raw) * 3 // 4] ^= 1
    segment = Read(raw)
    assert segment.reader.get(299).offset == 299
    assert segment.reader.get(300) is None
    assert segment.seek(1299)[1] == 299
    assert segment.seek(1300)[1] == ASK_THE_LOG
    assert segment.seek(1000, 300)[1] == ASK_THE_LOG


def test_a_checksum_is_checked_once():
    raw = bytearray(big_batch())
    segment = Read(raw)
    assert segment.reader.get(0).value == b"0" + b"x" * 100
    raw[-100] ^= 1                          # rotten in memory, behind the check
    assert segment.reader.get(1).offset == 1
    segment.open()
    assert segment.reader.get(1) is None


@pytest.mark.parametrize("entry", [(299, 5), (299, 10**6), (299, -4), (5, len(big_batch())), (650, 100)])
def test_an_entry_that_leads_astray_gives_no_record(entry):
    segment = Read(big_batch() + big_batch(300) + big_batch(600))
    segment.offsets = Window(pack(">ii", *entry))
    segment.open()
    assert segment.walk.offset_entries == 0
    assert segment.reader.get(entry[0]) is None
    assert segment.seek(1150, 450)[1] == 450          # by walking, for the entry is not believed


def test_time_entries_are_believed_up_to_the_first_that_is_wrong():
    segment = Read(b"".join(big_batch(300 * n) for n in range(3)))
    segment.times = Window(pack(">qi", 1299, 299) + pack(">qi", 1350, 599))
    segment.open()
    assert (segment.walk.time_entries, segment.walk.largest_timestamp, segment.walk.damaged) == (1, 1299, False)
    assert segment.seek(1299) == (1299, 299, -1)


def test_a_walk_goes_on_where_the_segment_has_grown():
    whole = Read(b"".join(big_batch(300 * n) for n in range(4)))
    raw = bytes(whole.window)
    walk = HeaderWalk(0)
    for batch in whole.table:
        grown = Read(raw[: batch.position + batch.size_bytes])
        walk.advance(grown.window, grown.offsets, grown.times)
        assert walk.position == len(grown.window)
    walk.advance(Window(raw[:10]), None, None)          # an older view takes nothing back
    assert (walk.position, walk.offset_entries) == (whole.walk.position, whole.walk.offset_entries)
    walk.advance(Window(raw + b"\xff" * 30), None, None)
    assert walk.damaged


def test_a_walk_that_has_not_come_to_the_end_answers_nothing():
    segment = Read(big_batch())
    segment.walk = HeaderWalk(0)
    assert segment.seek(1000)[1] == ASK_THE_LOG


def test_notes_must_have_room_for_the_window():
    with pytest.raises(InvalidArgumentError):
        PointReader(Window(big_batch()), 0, None, CheckedBatches(10), LastOpened(), None)
    with pytest.raises(InvalidArgumentError):
        CheckedBatches(-1)


def test_aborted_transactions_go_and_nothing_else():
    raw = b""
    for n, (producer, transactional) in enumerate([(7, True), (8, True), (7, True), (7, False), (-1, False)]):
        builder = BatchBuilder(
            n, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=transactional
        )
        builder.append(n, 0, None, b"")
        raw += builder.finish()
    table = scan(Window(raw))
    assert table.without(array("q")) is table
    assert [b.base_offset for b in table.without(array("q", (7, 0, 2)))] == [1, 2, 3, 4]
    assert [b.base_offset for b in table.without(array("q", (9, 0, 9, 7, 0, 5)))] == [1, 3, 4]
    rest = table.without(array("q", (7, 0, 5, 8, 0, 5)))
    assert (len(rest), rest.end, rest.stop) == (2, table.end, table.stop)
