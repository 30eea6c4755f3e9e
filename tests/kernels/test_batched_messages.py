"""Messages of a batch in a kernel: what seglog.ledger.message_batch reads through protobuf."""
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batched_messages import BatchedMessages, entry_of, message_place
from seglog._kernels.key_map import KeyMap
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.ledger.message_batch import read_batch, write_batch
from seglog.pulsar_pb.entry_pb2 import SingleMessageMetadata

MESSAGE = st.tuples(
    st.none() | st.text(max_size=3), st.booleans(), st.binary(max_size=5), st.none() | st.integers(0, 2**64 - 1),
)


def single(key, is_out, event_time):
    made = SingleMessageMetadata()
    if key is not None:
        made.partition_key = key
    if is_out:
        made.compacted_out = True
    if event_time is not None:
        made.event_time = event_time
    return made


def payload_of(messages):
    return write_batch((single(key, is_out, event_time), value) for key, is_out, value, event_time in messages)


@given(st.lists(MESSAGE, min_size=1, max_size=8), st.binary(max_size=3))
def test_it_reads_what_protobuf_reads(messages, trailing):
    payload = payload_of(messages) + trailing
    found, expected = BatchedMessages(payload, len(messages)), read_batch(payload, len(messages))
    assert len(found) == len(messages)
    assert found.trailing_bytes == expected.trailing_bytes == len(trailing)
    for number, message in enumerate(expected.messages):
        key = message.metadata.partition_key.encode() if message.metadata.HasField("partition_key") else None
        assert found.key(number) == key
        assert found.value(number) == message.value
        assert found.is_removed(number) == message.metadata.compacted_out
        assert bytes(found.metadata_bytes(number)) == message.metadata.SerializeToString()
    live = [n for n, message in enumerate(expected.messages) if not message.metadata.compacted_out]
    assert found.live() == live
    assert found.last_live() == (live[-1] if live else -1)


def refused(function):
    try:
        return function()
    except CorruptRecordError:
        return None


@given(st.binary(max_size=60), st.integers(-1, 4))
def test_of_any_bytes_it_says_what_protobuf_says(payload, count):
    expected = refused(lambda: read_batch(payload, count))
    found = refused(lambda: BatchedMessages(payload, count))
    if expected is not None:
        assert found is not None
        assert [found.value(n) for n in range(count)] == [message.value for message in expected.messages]


def test_flipped_bits_and_cuts_never_read_beyond():
    chance = random.Random(1)
    payload = payload_of([(f"k{n}", n == 2, b"v" * n, n) for n in range(6)])
    for _ in range(3000):
        damaged = bytearray(payload[: chance.choice([len(payload), chance.randrange(len(payload))])])
        for _ in range(chance.randint(0, 3)):
            if damaged:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        found = refused(lambda damaged=bytes(damaged): BatchedMessages(damaged, 6))
        if found is not None:
            assert sum(len(found.value(n)) for n in range(6)) + found.trailing_bytes <= len(damaged)


@given(st.lists(st.lists(MESSAGE, min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
def test_both_phases_over_batches_leave_the_last_value_of_each_key(batches, keeps_null_keys):
    opened = [BatchedMessages(payload_of(messages), len(messages)) for messages in batches]
    latest, expected, counts = KeyMap(), {}, array("i")
    for number, (batch, messages) in enumerate(zip(opened, batches, strict=True)):
        live = [(n, key, value) for n, (key, is_out, value, _) in enumerate(messages) if not is_out]
        counts.append(0)
        assert batch.note(latest, number, counts, keeps_null_keys) == sum(
            keeps_null_keys if key is None else value != b"" for _, key, value in live
        )
        for n, key, value in live:
            if key is not None:
                expected[key] = (number, n) if value else None
    for number, (batch, messages) in enumerate(zip(opened, batches, strict=True)):
        kept = [
            n for n, (key, is_out, _, _) in enumerate(messages)
            if not is_out and (keeps_null_keys if key is None else expected[key] == (number, n))
        ]
        assert batch.kept(latest, number, keeps_null_keys) == kept
        assert counts[number] == len(kept)
        unknown = [n for n, m in enumerate(messages) if not m[1] and m[0] is None and keeps_null_keys]
        assert batch.kept(latest, -1, keeps_null_keys) == unknown
        assert batch.kept(KeyMap(), -1, True) == batch.live()


@given(st.lists(MESSAGE, min_size=1, max_size=8), st.data())
def test_a_batch_is_built_again_with_some_of_its_messages(messages, data):
    payload = payload_of(messages)
    batch = BatchedMessages(payload, len(messages))
    numbers = sorted(data.draw(st.sets(st.integers(0, len(messages) - 1))))
    total = data.draw(st.integers(len(numbers), 12))
    places = sorted(data.draw(st.sets(
        st.integers(0, max(total - 1, 0)), min_size=len(numbers), max_size=len(numbers)
    )))
    empty = (None, True, b"", None)
    whole = [messages[numbers[places.index(n)]] if n in places else empty for n in range(total)]
    assert batch.rebuilt(numbers, places, total) == payload_of(whole)


def test_what_cannot_be_is_refused():
    batch = BatchedMessages(payload_of([("k", False, b"v", None)] * 3), 3)
    for numbers, places, total in [
        ([0], [0, 1], 3), ([1, 0], [0, 1], 3), ([0, 0], [0, 1], 3), ([3], [0], 3), ([-1], [0], 3), ([0], [3], 3),
        ([0, 1], [1, 1], 3), ([0, 1], [0, 1], 1), ([0], [0], 1 << 28),
    ]:
        with pytest.raises(InvalidArgumentError):
            batch.rebuilt(numbers, places, total)
    for call in (batch.key, batch.value, batch.is_removed, batch.metadata_bytes):
        for number in (-1, 3):
            with pytest.raises(IndexError):
                call(number)
    for number in (-2, 1 << 34):
        with pytest.raises(InvalidArgumentError):
            batch.note(KeyMap(), number, array("i", [0]), True)
        with pytest.raises(InvalidArgumentError):
            batch.kept(KeyMap(), number, True)
        with pytest.raises(InvalidArgumentError):
            message_place(number, False)


def test_a_map_without_room_is_refused():
    batch = BatchedMessages(payload_of([(str(n), False, b"v", None) for n in range(40)]), 40)
    with pytest.raises(InvalidArgumentError, match="no room"):
        batch.note(KeyMap(16 * 32), 0, array("i", [0]), True)
    for counts in (array("i"), array("q", [0]), array("b", [0])):
        with pytest.raises(InvalidArgumentError, match="no count"):
            batch.note(KeyMap(), 0, counts, True)
    assert entry_of(message_place(7, False)) == 7
    assert entry_of(message_place(7, True)) == entry_of(-1) == -1
