"""Batch headers: what a scan takes for a batch, and what it stops at."""
import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.segment_scan import Status, scan
from seglog._kernels.status import words
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError
from support import plain_format as plain

V0 = plain.message(7, b"k", b"v", magic=0)
V1 = plain.message(8, b"k", None, magic=1, timestamp=1_700_000_000_000)
V2 = plain.batch_v2(plain.record_v2(key=b"k") + plain.record_v2(1), count=2, base_offset=9, base_timestamp=5)
V2_HEADER_SIZE = 61


def table_of(data, **options):
    return scan(Window(data), **options)


def stop_of(data, **options):
    """(status, found, expected) of a scan that ends at `data`'s first byte."""
    table = table_of(data, **options)
    assert (len(table), table.end) == (0, 0)
    return table.stop, *table.stop_details()


def patched(batch, position, form, *values):
    out = bytearray(batch)
    struct.pack_into(form, out, position, *values)
    return bytes(out)


# --- whole batches ---------------------------------------------------------------------------------


def test_versions_may_follow_one_another_in_a_segment():
    table = table_of(V0 + V1 + V2 + V0, check_crc=True)
    assert [(b.magic, b.position, b.size_bytes, b.last_offset) for b in table] == [
        (0, 0, len(V0), 7),
        (1, len(V0), len(V1), 8),
        (2, len(V0 + V1), len(V2), 10),
        (0, len(V0 + V1 + V2), len(V0), 7),
    ]
    assert table.stop is Status.OK
    assert table.end == len(V0 + V1 + V2 + V0)
    assert table.stop_details() is None


def test_an_empty_window_ends_well():
    table = table_of(b"")
    assert (len(table), table.end, table.stop) == (0, 0, Status.OK)


def test_a_header_gives_every_field():
    [batch] = table_of(plain.batch_v2(
        plain.record_v2(), base_offset=5_000_000_000, last_offset_delta=41, base_timestamp=11, max_timestamp=12,
        attributes=plain.TRANSACTIONAL | plain.CONTROL, producer_id=1 << 40, producer_epoch=3, base_sequence=17,
        leader_epoch=6,
    ))
    assert (batch.base_offset, batch.last_offset, batch.last_offset_delta) == (5_000_000_000, 5_000_000_041, 41)
    assert (batch.base_timestamp, batch.max_timestamp, batch.timestamp_type) == (11, 12, 0)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (1 << 40, 3, 17, 58)
    assert (batch.leader_epoch, batch.count, batch.codec) == (6, 1, plain.NONE)
    assert (batch.is_transactional, batch.is_control, batch.delete_horizon_ms) == (True, True, None)


def test_a_message_has_kafkas_defaults_for_what_its_version_lacks():
    for batch in table_of(V0 + plain.message(8, magic=1, attributes=plain.LOG_APPEND_TIME | 0x70)):
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (-1, -1, -1, -1)
        assert (batch.leader_epoch, batch.count, batch.last_offset_delta) == (-1, -1, 0)
        assert (batch.is_transactional, batch.is_control, batch.delete_horizon_ms) == (False, False, None)
        assert batch.timestamp_type == {0: -1, 1: 1}[batch.magic]


def test_v0_has_no_timestamp():
    [batch] = table_of(V0)
    assert (batch.base_timestamp, batch.max_timestamp, batch.timestamp_type) == (-1, -1, -1)


def test_base_timestamp_is_the_delete_horizon_where_the_bit_is_set():
    [batch] = table_of(plain.batch_v2(plain.record_v2(), attributes=plain.DELETE_HORIZON, base_timestamp=77))
    assert batch.delete_horizon_ms == 77


def test_sequences_wrap_at_two_to_the_31():
    [batch] = table_of(plain.batch_v2(plain.record_v2(), base_sequence=2**31 - 2, last_offset_delta=3))
    assert batch.last_sequence == 1


def test_a_last_offset_beyond_int64_wraps_and_does_no_harm():
    [batch] = table_of(plain.batch_v2(plain.record_v2(), base_offset=2**63 - 1, last_offset_delta=1))
    assert batch.last_offset == -(2**63)
    assert batch.last_offset_delta == 1


def test_raw_and_payload_are_the_bytes_in_the_file():
    data = V0 + V1 + V2
    v0, v1, v2 = table_of(data)
    assert b"".join([v0.raw(), v1.raw(), v2.raw()]) == data
    assert (v0.payload(), v1.payload(), v2.payload()) == (b"v", b"", V2[V2_HEADER_SIZE:])
    assert v2.raw().readonly


@pytest.mark.parametrize("batch", [V0, V1, V2], ids=["v0", "v1", "v2"])
def test_the_crc_covers_all_from_where_each_version_says(batch):
    covered_from = {0: 16, 1: 16, 2: 21}[batch[16]]
    stored_at = {0: 12, 1: 12, 2: 17}[batch[16]]
    [whole] = table_of(batch)
    assert whole.crc_is_valid()
    assert whole.crc == struct.unpack_from(">I", batch, stored_at)[0]
    for position in range(len(batch)):
        flipped = patched(batch, position, "B", batch[position] ^ 0x20)
        for seen in table_of(flipped):
            is_covered = position >= covered_from or stored_at <= position < stored_at + 4
            assert seen.crc_is_valid() != is_covered, position


# --- where a scan ends -----------------------------------------------------------------------------


def test_a_batch_cut_at_any_byte_is_short():
    for batch in V0, V1, V2:
        for size in range(1, len(batch)):
            status, found, _ = stop_of(batch[:size])
            assert (status, found) == (Status.SHORT, f"{size} bytes")


def test_a_batch_may_not_reach_past_the_limit():
    data = V1 + V2
    assert table_of(data, limit=len(V1)).stop is Status.OK
    for limit in range(len(V1) + 1, len(data)):
        table = table_of(data, limit=limit)
        assert (len(table), table.end, table.stop) == (1, len(V1), Status.SHORT)
        assert table.stop_details()[0] == f"{limit - len(V1)} bytes"
    assert table_of(data, limit=len(data) + 1).stop is Status.OK


def test_zero_bytes_behind_the_last_batch_are_a_preallocated_tail():
    for zeros in (17, 60, 61, 4096):
        table = table_of(V2 + bytes(zeros))
        assert (len(table), table.end, table.stop) == (1, len(V2), Status.ZEROS)


def test_a_size_of_zero_among_other_bytes_is_a_bad_size():
    status, found, expected = stop_of(bytes(16) + b"\x02" + bytes(100))
    assert (status, found, expected) == (Status.BAD_SIZE, "size field 0", "at least 49")


@pytest.mark.parametrize(("batch", "least"), [(V0, 14), (V1, 22), (V2, 49)], ids=["v0", "v1", "v2"])
def test_a_size_below_the_least_of_its_version_is_bad(batch, least):
    for size in (-(2**31), -1, 0, least - 1):
        assert stop_of(patched(batch, 8, ">i", size)) == (
            Status.BAD_SIZE, f"size field {size}", f"at least {least}"
        )


def test_a_size_beyond_the_bytes_is_short():
    status, found, expected = stop_of(patched(V2, 8, ">i", 2**31 - 1))
    assert (status, found, expected) == (
        Status.SHORT, f"{len(V2)} bytes", f"{2**31 - 1 + 12}, as the size field says"
    )


@pytest.mark.parametrize("magic", [-128, -1, 3, 7, 127])
def test_a_magic_that_is_none_of_0_1_2_is_bad(magic):
    assert stop_of(patched(V2, 16, "b", magic)) == (Status.BAD_MAGIC, f"magic {magic}", "0, 1 or 2")


def test_a_count_that_the_bytes_cannot_hold_is_bad():
    most = (len(V2) - V2_HEADER_SIZE) // 7
    for count in (-(2**31), -1, most + 1, 2**31 - 1):
        assert stop_of(patched(V2, 57, ">i", count)) == (Status.BAD_COUNT, f"{count} records", f"0 to {most}")


def test_a_compressed_count_is_bad_only_below_zero():
    compressed = patched(V2, 21, ">h", plain.ZSTD)
    assert len(table_of(patched(compressed, 57, ">i", 2**31 - 1))) == 1
    assert stop_of(patched(compressed, 57, ">i", -1)) == (Status.BAD_COUNT, "-1 records", "0 or more")


@pytest.mark.parametrize("batch", [V0, V1, V2], ids=["v0", "v1", "v2"])
def test_a_bad_checksum_stops_a_scan_that_checks(batch):
    damaged = patched(batch, len(batch) - 1, "B", batch[-1] ^ 1)
    table = table_of(V1 + damaged + V1, check_crc=True)
    assert (len(table), table.end, table.stop) == (1, len(V1), Status.BAD_CRC)
    found, expected = table.stop_details()
    [whole] = table_of(batch)
    assert found == f"checksum {whole.crc:#010x}"
    assert expected != f"{whole.crc:#010x}"
    assert len(table_of(V1 + damaged + V1)) == 3


def test_a_scan_goes_on_from_where_the_last_one_stopped():
    window = Window(V0 + V1 + V2 + V1)
    seen, position = [], 0
    while True:
        table = scan(window, position, max_batches=1)
        seen += [b.position for b in table]
        position = table.end
        if table.stop is not Status.LIMIT:
            break
    assert seen == [b.position for b in scan(window)]
    assert table.stop is Status.OK


def test_max_batches_0_reads_none():
    table = table_of(V1, max_batches=0)
    assert (len(table), table.end, table.stop) == (0, 0, Status.LIMIT)


@pytest.mark.parametrize("position", [-1, len(V1) + 1, 2**63 - 1, -(2**63)])
def test_a_position_outside_is_refused(position):
    with pytest.raises(InvalidArgumentError):
        table_of(V1, position=position)


def test_each_stop_has_words():
    for status in Status:
        assert words(status) != f"status {status}" or status is Status.NO_MEMORY or status is Status.OK
    assert words(-99) == "status -99"


# --- the table -------------------------------------------------------------------------------------


def test_a_table_is_a_sequence():
    table = table_of(V0 + V1 + V2)
    assert [table[i].magic for i in range(3)] == [table[i - 3].magic for i in range(3)] == [0, 1, 2]
    for outside in (3, -4):
        with pytest.raises(IndexError):
            table[outside]


def test_a_table_grows_past_its_first_capacity():
    table = table_of(V1 * 1000)
    assert len(table) == 1000
    assert table[-1].position == 999 * len(V1)


def test_find_offset_is_the_first_batch_that_ends_at_or_above():
    table = table_of(V0 + V1 + V2)      # last offsets 7, 8, 10
    assert [table.find_offset(n) for n in (-5, 7, 8, 9, 10, 11)] == [0, 0, 1, 2, 2, -1]


def test_find_timestamp_is_the_first_batch_with_one_so_large():
    table = table_of(b"".join(plain.message(n, timestamp=t) for n, t in enumerate([5, 9, 3, 9])))
    assert [table.find_timestamp(t) for t in (0, 6, 9, 10)] == [0, 1, 1, -1]
    assert [table.find_timestamp(6, first) for first in (-1, 1, 2, 4, 9)] == [1, 1, 3, -1, -1]
    assert table.max_timestamp == 9
    assert table_of(V0).max_timestamp == -1


# --- the twin --------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([V0, V1, V2]), max_size=5), st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 400))
def test_the_kernel_finds_the_batches_that_plain_python_finds(batches, changes, size):
    data = bytearray(b"".join(batches))
    for position, byte in changes:
        if position < len(data):
            data[position] = byte
    data = bytes(data[:size])
    table = table_of(data)
    expected = list(plain.split_batches(data))
    assert [bytes(b.raw()) for b in table] == expected
    assert [b.crc_is_valid() for b in table] == [plain.crc_fits(b) for b in expected]
    assert (table.stop is Status.OK) == (table.end == len(data))


# --- lifetimes -------------------------------------------------------------------------------------


def test_a_map_stays_while_anything_looks_at_it():
    page = mmap.mmap(-1, 4096)
    page[: len(V2)] = V2
    window = Window(page)
    table = scan(window)
    batch = table[0]
    view = batch.raw()
    del window, table, batch
    with pytest.raises(BufferError):
        page.close()
    assert view == V2
    del view
    page.close()
