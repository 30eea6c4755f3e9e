"""The search for the next whole batch after damage."""
import random
import struct

import pytest

from seglog._kernels.segment_scan import find_batch, scan
from seglog._kernels.window import Window
from support import plain_format as plain

V0 = plain.message(3, b"k", b"v", magic=0)
V1 = plain.message(4, b"k", None)
WRAPPER = plain.message(5, None, b"opaque", attributes=plain.LZ4)
V2 = plain.batch_v2(plain.record_v2() * 2, count=2, base_offset=6)
ALL = [V0, V1, WRAPPER, V2]
NAMES = ["v0", "v1", "wrapper", "v2"]


def found(data, position=0, min_offset=-1):
    return find_batch(Window(data), position, min_offset)


@pytest.mark.parametrize("batch", ALL, ids=NAMES)
def test_a_whole_batch_is_found_wherever_it_begins(batch):
    for before in range(40):
        assert found(b"\xaa" * before + batch + b"\xbb" * 7) == before


@pytest.mark.parametrize("batch", ALL, ids=NAMES)
def test_it_is_found_among_zeros(batch):
    assert found(bytes(4096) + batch) == 4096


@pytest.mark.parametrize("batch", ALL, ids=NAMES)
def test_a_batch_with_a_flipped_bit_is_passed_over(batch):
    """Any bit that the checksum covers, or that says where the batch ends. The next one is found."""
    covered = range(17, len(batch)) if batch[16] == 2 else range(12, len(batch))
    for position in [*range(8, 12), *covered]:
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert found(bytes(damaged) + V2) == len(batch), position


def test_nothing_is_found_in_nothing():
    assert found(b"") == found(b"\x00") == found(bytes(999)) == found(b"\x02" * 999) == found(b"\x01" * 999) == -1


@pytest.mark.parametrize("batch", ALL, ids=NAMES)
def test_a_batch_cut_short_is_not_found(batch):
    for size in range(len(batch)):
        assert found(batch[:size]) == -1


def test_the_search_starts_where_it_is_told():
    data = V0 + V1 + V2
    assert [found(data, p) for p in (-5, 0, 1, len(V0), len(V0) + 1, len(V0 + V1) + 1, len(data), 2**63 - 1)] == [
        0, 0, len(V0), len(V0), len(V0 + V1), -1, -1, -1,
    ]


def test_batches_below_the_offset_are_passed_over():
    data = V0 + V1 + WRAPPER + V2
    starts = [0, len(V0), len(V0 + V1), len(V0 + V1 + WRAPPER)]
    assert [found(data, 0, n) for n in range(3, 9)] == [*starts, starts[-1], -1]


@pytest.mark.parametrize(("position", "form", "value"), [
    (0, ">q", -1),                  # a negative offset
    (12, ">i", -2),                 # a negative leader epoch
    (21, ">h", 5),                  # no such codec
    (21, ">h", 0x80),               # an attribute that nobody writes
    (21, ">h", -0x8000),
    (23, ">i", -1),                 # ends before it begins
    (23, ">i", 0),                  # more records than offsets
    (43, ">q", -2),                 # a negative producer id
])
def test_a_header_that_no_broker_writes_is_no_batch_even_with_a_right_checksum(position, form, value):
    batch = bytearray(V2)
    struct.pack_into(form, batch, position, value)
    whole = plain.batch_v2(
        bytes(batch[61:]), count=2, base_offset=struct.unpack_from(">q", batch)[0],
        leader_epoch=struct.unpack_from(">i", batch, 12)[0], attributes=struct.unpack_from(">h", batch, 21)[0],
        last_offset_delta=struct.unpack_from(">i", batch, 23)[0], producer_id=struct.unpack_from(">q", batch, 43)[0],
    )
    [seen] = scan(Window(whole))
    assert seen.crc_is_valid()
    assert found(whole) == -1


@pytest.mark.parametrize("message", [
    plain.message(-1, b"k", b"v"),
    plain.message(0, b"k", b"v", attributes=plain.ZSTD),
    plain.message(0, b"k", b"v", attributes=0x10),
], ids=["offset", "codec", "attributes"])
def test_a_message_that_no_broker_writes_is_no_batch(message):
    assert found(message) == -1


def test_a_batch_inside_a_value_is_found_only_where_the_outer_one_is_damaged():
    """Nothing in the bytes tells them apart: the caller's min_offset does."""
    outer = bytearray(plain.batch_v2(plain.record_v2(value=V0), base_offset=100))
    outer[-1] ^= 1
    data = bytes(outer) + plain.batch_v2(plain.record_v2(), base_offset=101)
    assert found(data) == data.index(V0)
    assert found(data, 0, 101) == len(outer)


def test_hostile_headers_do_not_make_it_slow():
    """Plausible headers everywhere, each claiming all that follows: work is bounded, not quadratic."""
    header = plain.batch_v2(bytes(7), base_offset=1)[:61]
    data = bytearray(header * (2 << 20 >> 6))
    for position in range(0, len(data), 61):
        struct.pack_into(">i", data, position + 8, len(data) - position - 12)
    assert found(data) == -1


def test_random_bytes_hold_no_batch():
    data = bytearray(random.Random(5).randbytes(1 << 20))
    assert found(data) == -1
    data[777_777 : 777_777 + len(V2)] = V2
    assert found(data) == 777_777
