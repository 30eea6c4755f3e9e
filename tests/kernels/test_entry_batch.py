"""Batches of entries: the same bytes as records encoded one by one, with the broker's part put in front by hand."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_encode import encode_records
from seglog._kernels.entry_batch import EntryBatch, check_entries
from seglog._kernels.entry_frame import put_broker_metadata
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError, RecordTooLargeError
from seglog.ledger.entry import Entry
from support.entries import golden_entries
from support.topics import batch, message

GOLDEN = [bytes(Entry(data).without_broker_part()) for data, _ in golden_entries()]


def by_hand(entries, counts, base_offset, timestamp, index, puts_timestamp, puts_index):
    """The batch, from parts that are tested elsewhere; and the index behind."""
    records = []
    for entry, count in zip(entries, counts, strict=True):
        fields = Entry(entry).fields()
        index += (count or max(fields.num_messages, 1)) if puts_index else 0
        stored = entry
        if puts_timestamp or puts_index:
            stored = put_broker_metadata(entry, timestamp if puts_timestamp else None, index if puts_index else None)
        records.append((None, stored, (), timestamp if puts_timestamp else max(fields.publish_time, -1)))
    return bytes(encode_records(records, base_offset, -1)), index


@given(
    st.lists(st.tuples(st.sampled_from(GOLDEN), st.none() | st.integers(1, 2**31 - 1)), min_size=1, max_size=6),
    st.integers(0, 2**62), st.integers(0, 2**63 - 1), st.integers(-1, 2**60), st.booleans(), st.booleans(),
)
def test_a_batch_holds_the_entries_with_the_brokers_part_in_front(
    pairs, base_offset, timestamp, index, puts_timestamp, puts_index
):
    entries, counts = [entry for entry, _ in pairs], [count for _, count in pairs]
    expected, behind = by_hand(entries, counts, base_offset, timestamp, index, puts_timestamp, puts_index)
    checked = check_entries(entries, counts, 1 << 20)
    made = EntryBatch()
    assert made.add_checked(checked, 0, len(checked), timestamp, index, puts_timestamp, puts_index) == behind
    assert len(made) == len(entries)
    assert bytes(made.take(base_offset)) == expected
    assert len(made) == 0


def test_entries_that_come_in_turns_are_one_batch():
    entries = GOLDEN[:10]
    checked = check_entries(entries, None, 1 << 20)
    made = EntryBatch()
    index = -1
    for first, stop in ((0, 3), (3, 3), (3, 9), (9, 10)):
        index = made.add_checked(checked, first, stop, 77, index, True, True)
    assert bytes(made.take(5)) == by_hand(entries, [None] * 10, 5, 77, -1, True, True)[0]
    made.add([b"", b"any bytes"], [-1, 9])
    assert bytes(made.take(0)) == bytes(encode_records([(None, b"", (), -1), (None, b"any bytes", (), 9)], 0, -1))


def test_what_is_checked_cannot_be_changed_afterwards():
    entries = [message(0), message(1)]
    checked = check_entries(entries, None, 1000)
    entries[0] = b"no entry"
    entries.clear()
    made = EntryBatch()
    made.add_checked(checked, 0, 2, -1, -1, False, False)
    assert [record.value for record in scan(Window(bytes(made.take(0))))[0]] == [message(0), message(1)]
    assert (len(checked), checked.size_bytes) == (2, len(message(0)) + len(message(1)))
    assert (checked.size_between(0, 2), checked.size_between(1, 2)) == (checked.size_bytes, len(message(1)))


@pytest.mark.parametrize(
    ("entry", "count", "error"),
    [
        (b"", None, InvalidArgumentError), (message(1)[:12], None, InvalidArgumentError),
        (bytes(101), None, RecordTooLargeError),
        (put_broker_metadata(message(1), 1), None, InvalidArgumentError), (message(1), 0, InvalidArgumentError),
        (message(1), -1, InvalidArgumentError), (message(1), 2**31, InvalidArgumentError),
        (message(1), "1", InvalidArgumentError), (message(1), True, InvalidArgumentError),
        (bytearray(message(1)), None, TypeError), (None, None, TypeError),
    ],
)
def test_what_is_no_entry_is_refused_by_its_number(entry, count, error):
    with pytest.raises(error) as caught:
        check_entries([message(0), entry], [None, count], 100)
    assert getattr(caught.value, "offset", 1) == 1


def test_counts_are_as_many_as_entries():
    with pytest.raises(InvalidArgumentError):
        check_entries([message(0)], [1, 2], 100)
    assert len(check_entries([], None, 100)) == 0


def test_a_refused_call_changes_nothing():
    made = EntryBatch()
    made.add([b"one"], [1])
    checked = check_entries([message(0), batch(1, 5)], None, 1000)
    refusals = [
        lambda: made.add([b"two", "three"], [2, 3]), lambda: made.add([b"two"], []),
        lambda: made.add([b"two"], [2**63]), lambda: made.add(None, []), lambda: made.add([b"two"], None),
        lambda: made.add_checked(None, 0, 0, 0, 0, True, True), lambda: check_entries(None, None, 1),
        lambda: made.add_checked(checked, 0, 3, 0, 0, True, True),
        lambda: made.add_checked(checked, 1, 0, 0, 0, True, True),
        lambda: made.add_checked(checked, 0, 2, -1, 0, True, True),
        lambda: made.add_checked(checked, 0, 2, 0, -2, True, True),
        lambda: made.add_checked(checked, 0, 2, 0, 2**63 - 4, True, True),
    ]
    for refusal in refusals:
        with pytest.raises((TypeError, IndexError, InvalidArgumentError, OverflowError)):
            refusal()
        assert len(made) == 1
    assert bytes(made.take(0)) == bytes(encode_records([(None, b"one", (), 1)], 0, -1))


def test_nothing_waits_where_nothing_was_put():
    made = EntryBatch()
    with pytest.raises(InvalidArgumentError):
        made.take(0)
    made.add([], [])
    with pytest.raises(InvalidArgumentError):
        made.take(0)


def test_large_entries_and_many():
    chooser = random.Random(1)
    entries = [message(n % 40) + chooser.randbytes(chooser.choice([0, 31, 513, 70_000])) for n in range(300)]
    checked = check_entries(entries, None, 1 << 20)
    made = EntryBatch()
    assert made.add_checked(checked, 0, 300, 5, 99, True, True) == 399
    assert bytes(made.take(0)) == by_hand(entries, [None] * 300, 0, 5, 99, True, True)[0]
