"""Index files of 129 real partition directories beside what Kafka reads from them (index.json)."""
import json
import struct

import pytest

from seglog.errors import CorruptIndexError, UnsupportedVersionError
from seglog.segment.index_file import OffsetIndex, TimeIndex
from seglog.segment.transaction_index import (
    ENTRY_SIZE,
    AbortedTransaction,
    TransactionIndex,
    encode,
)
from support.golden import golden_cases
from support.producers import aborted_transactions

SEGMENTS = [
    pytest.param(case / f"{case.name}-0" / row["segment"], row, id=f"{case.name}/{row['base_offset']}")
    for case in golden_cases()
    for row in json.loads((case / "index.json").read_text())["segments"]
]


@pytest.mark.parametrize(("log", "kafka"), SEGMENTS)
def test_entries_are_those_that_kafka_reads(log, kafka):
    base = kafka["base_offset"]
    offset_index = OffsetIndex(log.with_suffix(".index").read_bytes(), base)
    time_index = TimeIndex(log.with_suffix(".timeindex").read_bytes(), base)
    crashed = "crash-" in str(log)
    assert bool(offset_index.preallocated_bytes) == crashed

    def without_zeros(rows, zero):      # Kafka reads a crashed broker's zeros as entries; they are none
        return [r for r in rows if not crashed or r != zero]

    assert [list(e) for e in offset_index] == without_zeros(kafka["offset_index"], [base, 0])
    assert [list(e) for e in time_index] == without_zeros(kafka["time_index"], [0, base])


@pytest.mark.parametrize(("log", "kafka"), SEGMENTS)
def test_aborted_transactions_are_kafkas_and_written_again_the_same_bytes(log, kafka):
    path = log.with_suffix(".txnindex")
    raw = path.read_bytes() if path.exists() else b""
    fields = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    index = TransactionIndex(raw)
    assert [{f: getattr(t, f) for f in fields} for t in index] == kafka.get("aborted_txns", [])
    assert encode(index) == raw


def offset_entries(*rows):
    return b"".join(struct.pack(">ii", *row) for row in rows)


def time_entries(*rows):
    return b"".join(struct.pack(">qi", *row) for row in rows)


@pytest.mark.parametrize(("make", "raw", "size"), [
    (OffsetIndex, offset_entries((5, 100)), 8), (TimeIndex, time_entries((9, 5)), 12)])
def test_a_torn_entry_is_named_by_its_byte(make, raw, size):
    with pytest.raises(CorruptIndexError, match="not a multiple") as e:
        make(raw + b"\0\0\1", 0, path="x.index")
    assert (e.value.file, e.value.position) == ("x.index", size)


@pytest.mark.parametrize(("make", "raw", "position"), [
    (OffsetIndex, offset_entries((5, 100), (9, 300), (7, 400)), 16),
    (OffsetIndex, offset_entries((5, 100), (9, 90)), 8),
    (TimeIndex, time_entries((9, 5), (8, 6)), 12),
])
def test_entries_that_go_back_are_named_by_slot_and_byte(make, raw, position):
    with pytest.raises(CorruptIndexError, match="does not follow") as e:
        make(raw, 0)
    assert e.value.position == position


def test_zeros_behind_the_last_entry_are_no_entries():
    index = OffsetIndex(offset_entries((5, 100), (0, 0), (0, 0)), 1000)
    assert (list(index), index.preallocated_bytes) == ([(1005, 100)], 16)
    assert index.lookup(2000) == (1005, 100)


def test_below_the_first_entry_a_search_begins_at_the_start():
    assert OffsetIndex(offset_entries((5, 100)), 1000).lookup(1004) == (1000, 0)
    assert TimeIndex(time_entries((50, 5)), 1000).lookup(49) == (-1, 1000)


@pytest.mark.parametrize(("row", "error"), [
    ((1, 7, 0, 5, 6), UnsupportedVersionError),
    ((0, 7, 9, 5, 6), CorruptIndexError),
    ((0, 7, -1, 5, 6), CorruptIndexError),
])
def test_an_aborted_transaction_that_cannot_be_is_refused(row, error):
    with pytest.raises(error):
        TransactionIndex(struct.pack(">hqqqq", *row))


def test_markers_that_go_back_are_refused():
    row = struct.pack(">hqqqq", 0, 7, 0, 5, 6)
    with pytest.raises(CorruptIndexError, match="follows a marker at 5"):
        TransactionIndex(row + row)


# Of producers 7, 8 and 9; 8 was open from 2 to 50.
ABORTED = [
    AbortedTransaction(7, 0, 10, 2), AbortedTransaction(7, 15, 20, 2), AbortedTransaction(8, 2, 50, 51),
    AbortedTransaction(9, 60, 70, 71),
]


def index_of(*entries):
    return TransactionIndex(encode(entries))


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "found"),
    [(0, 100, ABORTED), (10, 11, [ABORTED[0], ABORTED[2]]), (11, 15, [ABORTED[2]]), (21, 30, [ABORTED[2]]),
     (51, 60, []), (51, 61, [ABORTED[3]]), (0, 1, [ABORTED[0]])],
)
def test_a_reader_gets_the_aborted_transactions_that_reach_into_what_it_reads(from_offset, to_offset, found):
    whole, split = [index_of(*ABORTED)], [index_of(*ABORTED[:2]), None, index_of(*ABORTED[2:])]
    assert aborted_transactions(whole, from_offset, to_offset) == found
    assert aborted_transactions(split, from_offset, to_offset) == found


def test_no_segment_is_asked_after_one_that_knows_that_all_is_decided():
    def indexes():
        yield index_of(*ABORTED[:3])
        raise AssertionError("the next segment was read")

    assert aborted_transactions(indexes(), 0, 51) == ABORTED[:3]


def test_a_cut_keeps_the_transactions_whose_marker_stays():
    index = index_of(*ABORTED)
    assert [index.size_up_to(o) // ENTRY_SIZE for o in (0, 10, 11, 50, 51, 70, 71)] == [0, 0, 1, 2, 3, 3, 4]
