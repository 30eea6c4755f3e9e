"""Entries of one message: the same bytes as protobuf's, which seglog.pulsar.build_message_entry uses."""
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.message_entry import encode_message
from seglog.ledger.entry import Entry, pulsar_pb
from seglog.ledger.message_batch import build_message_entry

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NUMBER = st.integers(0, 2**63 - 1) | st.integers(0, 300)


def by_protobuf(producer, sequence_id, publish_time, deliver_at, key, is_base64, properties, value):
    metadata = pulsar_pb().MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time, deliver_at_time=deliver_at,
    )
    if key is not None:
        metadata.partition_key = key
        if is_base64:
            metadata.partition_key_b64_encoded = True
    for name, text in properties or ():
        metadata.properties.add(key=name, value=text)
    return build_message_entry(metadata, value)


def encoded(producer, sequence_id, publish_time, deliver_at, key, is_base64, properties, value):
    pairs = None if properties is None else [(name.encode(), text.encode()) for name, text in properties]
    stored = None if key is None else key.encode()
    return encode_message(
        producer.encode(), sequence_id, publish_time, deliver_at, stored, is_base64, pairs, value
    )


@given(
    TEXT, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.none() | NUMBER, st.none() | TEXT, st.booleans(),
    st.none() | st.lists(st.tuples(TEXT, TEXT), max_size=4), st.binary(max_size=500),
)
def test_the_bytes_are_those_of_protobuf(
    producer, sequence_id, publish_time, deliver_at, key, is_base64, properties, value
):
    message = producer, sequence_id, publish_time, deliver_at, key, is_base64, properties, value
    assert encoded(*message) == by_protobuf(*message)


@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 2_100_000])
def test_sizes_at_the_ends_of_varints_are_those_of_protobuf(size):
    message = "p" * min(size, 70_000), 1, 2, 3, "k" * min(size, 70_000), False, [("n", "t" * size)], b"v" * size
    made = encoded(*message)
    assert made == by_protobuf(*message)
    assert Entry(made).damage() == ()


def test_a_value_is_any_buffer_of_bytes_one_after_another():
    value = bytearray(b"0123456789")
    plain = encoded("p", 1, 2, None, None, False, None, bytes(value))
    assert encoded("p", 1, 2, None, None, False, None, value) == plain
    assert encoded("p", 1, 2, None, None, False, None, memoryview(value)) == plain
    value.append(1)     # nothing holds it
    with pytest.raises(BufferError):
        encoded("p", 1, 2, None, None, False, None, memoryview(value)[::2])
    with pytest.raises(TypeError):
        encoded("p", 1, 2, None, None, False, None, "text")


def test_the_properties_may_not_be_anything_but_pairs_of_bytes():
    for wrong in ([("a", "b")], [(b"a",)], [(b"a", b"b", b"c")], [(b"a", None)], [(None, b"a")], [5]):
        with pytest.raises((TypeError, ValueError)):
            encode_message(b"p", 1, 2, None, None, False, wrong, b"v")


def test_numbers_that_have_no_place_are_refused():
    for numbers in ((-1, 0, None), (2**64, 0, None), (0, -1, None), (0, 2**64, None), (0, 0, 2**63)):
        with pytest.raises((OverflowError, TypeError)):
            encode_message(b"p", *numbers, None, False, None, b"v")


def test_a_key_of_bytes_is_in_base64():
    made = encoded("p", 1, 2, None, base64.b64encode(b"\xff").decode(), True, None, b"v")
    assert Entry(made).metadata.partition_key_b64_encoded
