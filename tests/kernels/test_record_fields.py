"""A Record as a value: compared, hashed, as a dict, and pickled."""
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog._kernels.record_fields import record_of_fields
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window

FIELDS = ("offset", "timestamp", "timestamp_type", "sequence", "key", "value", "headers")
a_field = st.none() | st.binary(max_size=40)
a_record = st.tuples(
    a_field, a_field, st.lists(st.tuples(st.text(max_size=5), a_field), max_size=3).map(tuple),
    st.integers(-1, 2**62),
)


def read(raw):
    return list(scan(Window(raw)).records())


def fields_of(record):
    return tuple(getattr(record, name) for name in FIELDS)


@given(st.lists(a_record, min_size=1, max_size=4), st.sampled_from(["CreateTime", "LogAppendTime"]))
def test_what_was_pickled_says_the_same(records, timestamp_type):
    raw = seglog.build_batch(
        records, timestamp_type=timestamp_type, producer_id=7, producer_epoch=0, base_sequence=3, timestamp=5
    )
    for record in read(raw):
        for copied in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):
            assert fields_of(copied) == fields_of(record)
            assert copied.size_bytes == record.size_bytes
            assert (copied.key_view, copied.value_view) == (record.key_view, record.value_view)
            assert copied == record
            assert hash(copied) == hash(record)
            assert copied._asdict() == dict(zip(FIELDS, fields_of(record), strict=True))


@given(a_record, a_record)
def test_records_are_equal_if_they_say_the_same(one, other):
    first, second = read(seglog.build_batch([one]))[0], read(seglog.build_batch([other]))[0]
    assert (first == second) == (fields_of(first) == fields_of(second))
    assert (first != second) == (fields_of(first) != fields_of(second))


@pytest.mark.parametrize("other", [None, 5, (0, 1), b"v"])
def test_a_record_equals_nothing_else(other):
    (record,) = read(seglog.build_batch([(b"k", b"v")]))
    assert record != other


def test_the_format_of_a_record_is_not_compared():
    bare, batch = (
        read(seglog.build_batch([(b"k", b"v", None, 5)], magic=magic))[0] for magic in (1, 2)
    )
    assert bare == batch
    assert bare.size_bytes != batch.size_bytes
    assert len({bare, batch}) == 1


def test_every_field_counts():
    plain = (5, 6, 0, -1, b"k", b"v", (("a", b"1"),))
    record = record_of_fields(*plain, 20)
    for slot, changed in enumerate((6, 7, 1, 0, None, b"w", (("a", None),))):
        assert record_of_fields(*plain[:slot], changed, *plain[slot + 1:], 20) != record


def test_an_empty_record_made_by_new_compares_without_bytes():
    empty = seglog.Record.__new__(seglog.Record)
    assert empty == seglog.Record.__new__(seglog.Record)
    assert pickle.loads(pickle.dumps(empty)) == empty


@pytest.mark.parametrize(
    "fields", [("text", b"v", ()), (b"k", 5, ()), (b"k", b"v", 5), (b"k", b"v", [("a",)]), ([b"k"], b"v", ())]
)
def test_a_pickle_that_was_changed_is_refused(fields):
    with pytest.raises(TypeError):
        record_of_fields(0, 0, 0, -1, *fields, 0)
