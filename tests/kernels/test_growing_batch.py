"""A batch whose records come one by one is the batch of all of them, and takes no more than it may."""
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_encode import encode_records
from seglog._kernels.growing_batch import GrowingBatch
from seglog.errors import InvalidArgumentError

NOW = 1_700_000_000_000
ALL = 1 << 20
FRAME = 61              # bytes: a batch's header
MOST_OVERHEAD = 36      # bytes: a record's, at its longest

fields = st.none() | st.binary(max_size=60)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=9)), max_size=3)
records = st.lists(st.tuples(fields, fields, headers, st.integers(-1, 2**63 - 1)), min_size=1, max_size=25)


def compress(_, payload):
    return zlib.compress(payload)


def grown(records, batch=None):
    batch = GrowingBatch(ALL, 0, None, False) if batch is None else batch
    for record in records:
        assert batch.add(*record)
    return batch


@given(records=records, base=st.integers(0, 2**40), codec=st.sampled_from([0, 1]), by_log=st.booleans())
def test_it_is_the_batch_of_all_its_records(records, base, codec, by_log):
    batch = grown(records, GrowingBatch(ALL, codec, compress, by_log))
    assert len(batch) == len(records)
    right = encode_records(
        records, base, 0, codec=codec, compress=compress, log_append_time=NOW if by_log else None
    )
    made = batch.take(base, NOW)
    assert bytes(made) == bytes(right)
    assert (made.count, made.max_timestamp, made.min_timestamp, made.has_null_key, made.last_offset) == (
        right.count, right.max_timestamp, right.min_timestamp, right.has_null_key, right.last_offset
    )
    assert (len(batch), batch.size_bytes) == (0, 0)


def test_it_starts_empty_when_it_was_taken():
    batch = grown([(b"k", b"1", (), NOW)])
    first = batch.take(0, NOW)
    assert bytes(grown([(None, b"2", None, NOW + 5)], batch).take(1, NOW)) == bytes(
        encode_records([(None, b"2", (), NOW + 5)], 1, 0)
    )
    assert bytes(first) == bytes(encode_records([(b"k", b"1", (), NOW)], 0, 0))


def test_what_waits_does_not_change_with_the_buffer_that_it_came_from():
    value = bytearray(b"before")
    batch = grown([(None, value, [("h", value)], NOW)])
    value[:] = b"behind"
    assert bytes(batch.take(0, NOW)) == bytes(encode_records([(None, b"before", [("h", b"before")], NOW)], 0, 0))


def test_a_record_without_room_changes_nothing():
    most = FRAME + 2 * (MOST_OVERHEAD + 100)
    batch = GrowingBatch(most, 0, None, False)
    assert not batch.add(None, b"x" * (most - FRAME - MOST_OVERHEAD + 1), (), NOW)
    assert len(batch) == 0
    grown([(None, b"x" * 100, (), NOW), (None, b"x" * 50, (), NOW)], batch)
    size = batch.size_bytes
    assert not batch.add(None, b"x" * 100, (), NOW)
    assert (len(batch), batch.size_bytes) == (2, size)
    assert len(batch.take(0, NOW)) == FRAME + size <= most


@pytest.mark.parametrize("record", [(1, b"", ()), (b"", "text", ()), (b"", b"", [("h", 1)]), (b"", b"", [b"h"])])
def test_what_is_no_record_is_refused_and_those_that_wait_are_kept(record):
    batch = grown([(b"k", b"1", (), NOW)])
    with pytest.raises((TypeError, InvalidArgumentError)):
        batch.add(*record, NOW)
    assert bytes(batch.take(0, NOW)) == bytes(encode_records([(b"k", b"1", (), NOW)], 0, 0))


def test_nothing_that_waits_can_be_taken():
    with pytest.raises(InvalidArgumentError, match="at least one record"):
        GrowingBatch(ALL, 0, None, False).take(0, NOW)
