"""Records of a queue's journal: the same bytes as by struct. tests/ledger/test_queue_journal.py reads them."""
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.crc import crc32c
from seglog._kernels.journal_record import encode_record

UINT64, UINT32, INT32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1)


def by_struct(kind, items, at_ms, holder, text, journal_id, position, synced_to):
    body = struct.pack(">BBHIQQQ", kind, 0, 0, len(items), synced_to, at_ms, holder)
    body += b"".join(struct.pack(">QQiI", *item) for item in items) + text
    crc = crc32c(struct.pack(">QQI", journal_id, position, len(body)) + body)
    return struct.pack(">II", len(body), crc) + body + bytes(-len(body) % 8)


@given(
    st.integers(0, 255), st.lists(st.tuples(UINT64, UINT64, INT32, UINT32), max_size=5), UINT64, UINT64,
    st.binary(max_size=50), UINT64, UINT64, UINT64,
)
def test_the_bytes_are_those_of_struct(kind, items, at_ms, holder, text, journal_id, position, synced_to):
    record = kind, items, at_ms, holder, text, journal_id, position, synced_to
    assert encode_record(*record) == by_struct(*record)


def test_numbers_that_have_no_place_are_refused():
    for item in ((-1, 0, 0, 0), (0, 2**64, 0, 0), (0, 0, 2**31, 0), (0, 0, 0, 2**32)):
        with pytest.raises((OverflowError, TypeError)):
            encode_record(3, [item], 0, 0, b"", 1, 32, 32)
    for kind in (-1, 256):
        with pytest.raises(OverflowError):
            encode_record(kind, [], 0, 0, b"", 1, 32, 32)


def test_an_item_is_four_numbers():
    for item in ((1, 2, 3), (1, 2, 3, 4, 5), 7, None):
        with pytest.raises((TypeError, ValueError)):
            encode_record(3, [item], 0, 0, b"", 1, 32, 32)


def test_items_that_change_while_they_are_read_do_no_harm():
    items = []

    class Clearing:
        def __int__(self):
            items.clear()
            return 7

    items += [(Clearing(), 1, 1, 1)] * 3
    assert encode_record(3, items, 0, 0, b"", 1, 32, 32) == by_struct(3, [(7, 1, 1, 1)] * 3, 0, 0, b"", 1, 32, 32)
