"""What the survey kernel says of a table, a loop over its batches says too."""
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels import batch_survey
from seglog._kernels.columns import ArenaPool, decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.batch import build_batch
from seglog.format.compression import decompressor

MAX_OFFSET = 2**63 - 1


@pytest.fixture(scope="module")
def tables(golden_kafka):
    logs = sorted((golden_kafka / "cases").glob("*/*-0/*.log"))
    found = [scan(Window(log.read_bytes()), decompress=decompressor()) for log in logs]
    return [table for table in found if len(table)]


def records_known(batch):
    if batch.magic == 2:
        return batch.count
    return 1 if batch.codec == 0 else 0


def test_tally_counts_batches_bytes_and_records_by_format_and_codec(tables):
    for table in tables:
        batches, size_bytes, records = Counter(), Counter(), Counter()
        for batch in table:
            what = batch.magic, batch.codec
            batches[what] += 1
            size_bytes[what] += batch.size_bytes
            records[what] += records_known(batch)
        assert batch_survey.tally(table) == {w: (batches[w], size_bytes[w], records[w]) for w in batches}


def test_tally_of_a_range_of_slots(tables):
    table = max(tables, key=len)
    whole = batch_survey.tally(table)
    head, tail = batch_survey.tally(table, 0, 7), batch_survey.tally(table, 7)
    assert sum(t[0] for t in whole.values()) == sum(t[0] for part in (head, tail) for t in part.values())
    assert batch_survey.tally(table, 3, 3) == {}


@pytest.mark.parametrize(("first", "stop"), [(-1, 2), (3, 2), (0, 10**9), (10**9, -1)])
def test_slots_outside_the_table_are_refused(tables, first, stop):
    with pytest.raises(IndexError, match="the table has"):
        batch_survey.tally(tables[0], first, stop)


def test_what_kafka_wrote_is_in_order(tables):
    for table in tables:
        assert batch_survey.first_disorder(table, 0) == -1
        assert batch_survey.first_disorder(table, table[0].last_offset + 1) == 0


def test_a_batch_that_reaches_back_is_found(golden_kafka):
    log = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0/00000000000000000000.log"
    whole = bytearray(log.read_bytes())
    third = scan(Window(whole))[2]
    # The base offset stands outside of the CRC: the batch stays valid.
    whole[third.position : third.position + 8] = (third.base_offset - 1).to_bytes(8, "big")
    table = scan(Window(bytes(whole)), check_crc=True)
    assert batch_survey.first_disorder(table, 0) == 2


def test_the_first_batch_with_a_producer(tables):
    for table in tables:
        slots = [slot for slot, batch in enumerate(table) if batch.producer_id >= 0]
        assert batch_survey.first_with_producer(table) == next(iter(slots), -1)
        for slot in slots[:3]:
            assert batch_survey.first_with_producer(table, slot) == slot


def test_the_first_batch_of_a_later_leader_epoch(tables):
    for table in tables:
        epochs = [batch.leader_epoch for batch in table]
        slot = batch_survey.first_of_later_epoch(table, -1)
        assert slot == next((i for i, epoch in enumerate(epochs) if epoch >= 0), -1)
        assert batch_survey.first_of_later_epoch(table, max(epochs)) == -1
        assert batch_survey.first_of_later_epoch(table, max(epochs) - 1) == epochs.index(max(epochs))


def test_the_first_batch_larger_than_a_limit(tables):
    for table in tables:
        sizes = [batch.size_bytes for batch in table]
        largest = max(sizes)
        assert batch_survey.first_larger(table, largest) == -1
        assert batch_survey.first_larger(table, largest - 1) == sizes.index(largest)


def test_the_first_batch_of_a_later_format():
    parts = [build_batch([(b"k", b"v")] * 2, magic=magic, base_offset=n) for n, magic in enumerate((0, 1, 0, 2, 1))]
    table = scan(Window(b"".join(parts)))
    magics = [batch.magic for batch in table]
    for magic in range(3):
        for first in range(len(table) + 1):
            found = next((n for n in range(first, len(table)) if magics[n] > magic), -1)
            assert batch_survey.first_above(table, magic, first) == found
    with pytest.raises(IndexError):
        batch_survey.first_above(table, 0, len(table) + 1)


def test_cut_stops_before_the_batch_that_passes_a_limit(tables):
    table = max(tables, key=len)
    sizes = [batch.size_bytes for batch in table]
    assert batch_survey.cut(table, 2, sum(sizes[2:6]), MAX_OFFSET) == 6
    assert batch_survey.cut(table, 2, sum(sizes[2:6]) - 1, MAX_OFFSET) == 5
    assert batch_survey.cut(table, 2, sizes[2] - 1, MAX_OFFSET) == 2
    assert batch_survey.cut(table, 0, sum(sizes), MAX_OFFSET) == len(table)
    assert batch_survey.cut(table, 0, sum(sizes), table[4].last_offset) == 5
    assert batch_survey.cut(table, len(table), 0, MAX_OFFSET) == len(table)


def test_cut_plain_stops_before_a_compressed_batch_too(tables):
    for table in tables:
        codecs = [batch.codec for batch in table]
        whole = sum(batch.size_bytes for batch in table)
        first_compressed = next((slot for slot, codec in enumerate(codecs) if codec), len(table))
        assert batch_survey.cut_plain(table, 0, whole) == first_compressed
        assert batch_survey.cut_plain(table, 0, 0) == 0
        if first_compressed:
            assert batch_survey.cut_plain(table, 0, table[0].size_bytes) == 1


def test_order_is_judged_from_a_slot_on(golden_kafka):
    log = golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0/00000000000000000000.log"
    whole = bytearray(log.read_bytes())
    batches = list(scan(Window(whole)))
    whole[batches[2].position : batches[2].position + 8] = bytes(8)     # goes back to offset 0
    table = scan(Window(whole))
    before, behind = batches[1].last_offset + 1, batches[2].last_offset + 1
    assert batch_survey.first_disorder(table, 0) == 2
    assert batch_survey.first_disorder(table, before, 2) == 2
    assert batch_survey.first_in_order(table, before, 2) == 3
    assert batch_survey.first_disorder(table, behind, 3) == -1
    assert batch_survey.first_in_order(table, MAX_OFFSET, 0) == -1
    with pytest.raises(IndexError, match="the table has"):
        batch_survey.first_disorder(table, 0, len(table) + 1)
    with pytest.raises(IndexError, match="the table has"):
        batch_survey.first_in_order(table, 0, -1)


def test_what_lies_beyond_an_offset_is_looked_for_from_a_slot_on(tables):
    table = max(tables, key=len)
    middle = len(table) // 2
    assert batch_survey.first_beyond(table, -1, middle) == middle
    assert batch_survey.first_beyond(table, table[middle].last_offset, 0) == middle + 1
    assert batch_survey.first_beyond(table, MAX_OFFSET, middle) == -1


# --- records later than their header ---------------------------------------------------------


def later_than_header(batches, offsets, timestamps):
    """The twin: it knows by its offset which batch a record is of."""
    time_of = dict(zip(offsets, timestamps, strict=True))
    late = []
    for slot, batch in enumerate(batches):
        if batch.magic == 2:
            largest = max((time_of[r.offset] for r in batch), default=-1)
            if largest > batch.max_timestamp:
                late.append((slot, largest))
    return (len(late), *(late[0] if late else (-1, -1)))


def columns_of(table, first=0):
    columns = decode(table, first, len(table), ArenaPool(), check_crc=False)
    return columns.offset, columns.timestamp


def test_what_kafka_wrote_has_no_record_later_than_its_header(tables):
    for table in tables:
        offsets, timestamps = columns_of(table)
        assert batch_survey.later_than_header(table, offsets, timestamps) == (0, -1, -1)


@given(data=st.data())
def test_records_later_than_their_header_as_the_twin_finds_them(tables, data):
    drawn = data.draw(st.integers(0, len(tables) - 1))
    batches = list(tables[drawn])
    whole = bytearray(b"".join(batch.raw() for batch in batches))
    for slot in data.draw(st.sets(st.integers(0, len(batches) - 1), max_size=8)):
        batch = batches[slot]
        if batch.magic == 2:
            lower = max(batch.max_timestamp - data.draw(st.integers(0, 3000)), -1)
            whole[batch.position + 35 : batch.position + 43] = struct.pack(">q", lower)
    table = scan(Window(bytes(whole)), decompress=decompressor())
    offsets, timestamps = columns_of(table)
    assert batch_survey.later_than_header(table, offsets, timestamps) == later_than_header(table, offsets, timestamps)


def test_records_later_than_their_header_are_looked_for_from_a_slot_on():
    parts = [bytearray(build_batch([(b"k", b"v", (), 1000 + i) for i in range(2)], base_offset=2 * n))
             for n in range(4)]
    for n in (0, 2, 3):
        parts[n][35:43] = struct.pack(">q", 1000 - n)
    table = scan(Window(b"".join(parts)))
    found = {0: (3, 0, 1001), 1: (2, 2, 1001), 2: (2, 2, 1001), 3: (1, 3, 1001), 4: (0, -1, -1)}
    for first, expected in found.items():
        assert batch_survey.later_than_header(table, *columns_of(table, first), first) == expected
    with pytest.raises(IndexError, match="the table has"):
        batch_survey.later_than_header(table, *columns_of(table), 5)


@pytest.mark.parametrize("kept", range(5))
def test_records_fewer_than_the_headers_say_are_no_reason_to_read_past_them(kept):
    table = scan(Window(build_batch([(b"k", b"v", (), 1000 + i) for i in range(4)])))
    offsets, timestamps = columns_of(table)
    assert batch_survey.later_than_header(table, offsets[:kept], timestamps) == (0, -1, -1)
    assert batch_survey.later_than_header(table, offsets, timestamps[:kept]) == (0, -1, -1)
