"""Entries: what Pulsar wrote reads as Pulsar reads it, and is written again to the same bytes."""
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import (
    CorruptRecordError,
    EncryptedPayloadError,
    InvalidArgumentError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.entry_fields import entry_fields
from seglog.ledger.message_batch import batch_of, build_batch_entry, build_message_entry, read_batch, write_batch
from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata
from support.entries import DAMAGED, golden_entries, named

METADATA = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1700000000000)


def test_golden_entries_read_as_pulsar_reads_them():
    for data, says in golden_entries():
        expected = {name: value for name, value in says.items() if name not in ("i", "case")}
        assert entry_fields(Entry(data)) == expected, says["case"]


def test_golden_entries_are_written_again_to_the_same_bytes():
    for data, says in golden_entries():
        entry = Entry(data)
        again = build_entry(entry.metadata, entry.payload(), checksum=entry.checksum is not None)
        if entry.has_broker_part and says["case"] not in DAMAGED:
            again = bytes(Entry(again).with_broker_metadata(*entry.broker_fields()).raw())
            assert entry.broker_metadata.SerializeToString() == entry.broker_bytes()
        if says["case"] == "empty-broker-metadata":
            again = data[:6] + again
        # The damaged checksum is mended, and nothing else of that entry.
        assert (again == data) == (says["case"] != "corrupt-payload-crc")
        assert again[6:] == data[6:]


def test_golden_batches_are_packed_again_to_the_same_bytes():
    batches = 0
    for data, says in golden_entries():
        if "messages" in says:
            entry = Entry(data)
            batch = batch_of(entry)
            again = write_batch((m.metadata, m.value) for m in batch.messages)
            assert again == bytes(entry.opened_payload())
            assert len(again) == entry.metadata.uncompressed_size
            batches += 1
    assert batches == 65


def test_the_two_damaged_entries_are_reported_and_no_other():
    damage = {says["case"]: Entry(data).damage() for data, says in golden_entries()}
    assert {case for case, found in damage.items() if found} == DAMAGED
    assert "the entry's checksum is 0x94cbe300, but that of its bytes is" in damage["corrupt-payload-crc"][0]
    assert damage["empty-broker-metadata"] == ("the broker metadata is empty",)


def test_a_wrong_checksum_is_an_error_that_says_where():
    data = b"\x0e\x02\x00\x00\x00\x02\x10\x05" + named("corrupt-payload-crc")
    with pytest.raises(CorruptRecordError, match="the entry's checksum is") as caught:
        Entry(data, "a.log").check_crc()
    assert (caught.value.file, caught.value.position) == ("a.log", 8)
    assert Entry(named("plain")).check_crc() is None


def test_encrypted_payloads_are_carried_and_not_opened():
    entry = Entry(named("encrypted"))
    assert len(entry.payload()) == 400
    with pytest.raises(EncryptedPayloadError):
        entry.opened_payload()
    with pytest.raises(EncryptedPayloadError):
        batch_of(entry)


def test_a_chunk_is_not_opened_alone():
    with pytest.raises(InvalidArgumentError, match="all chunks"):
        Entry(named("chunk/LZ4")).opened_payload()


def test_a_single_message_is_no_batch():
    with pytest.raises(InvalidArgumentError, match="not a batch"):
        batch_of(Entry(named("plain")))
    with pytest.raises(InvalidArgumentError, match="makes it a batch"):
        build_message_entry(MessageMetadata(num_messages_in_batch=1), b"")


def test_a_payload_opens_within_the_limit_or_not_at_all():
    entry = Entry(named("batch-large/ZSTD"))
    size = entry.metadata.uncompressed_size
    assert len(bytes(entry.opened_payload(size))) == size
    with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes"):
        entry.opened_payload(size - 1)


def test_an_unknown_compression_is_refused_though_protobuf_takes_it_for_none():
    metadata = METADATA.SerializeToString() + b"\x40\x09"
    entry = Entry(len(metadata).to_bytes(4, "big") + metadata + b"x")
    assert entry.metadata.compression == 0
    with pytest.raises(UnsupportedCompressionTypeError):
        entry.opened_payload()


MESSAGE = st.tuples(
    st.builds(
        SingleMessageMetadata,
        partition_key=st.none() | st.text(max_size=5),
        event_time=st.none() | st.integers(0, 2**64 - 1),
        compacted_out=st.none() | st.booleans(),
    ),
    st.binary(max_size=40),
)


@given(st.lists(MESSAGE, min_size=1, max_size=8), st.sampled_from(PayloadCodec), st.booleans())
def test_a_batch_reads_as_it_was_built(messages, codec, checksum):
    entry = Entry(build_batch_entry(METADATA, messages, codec, checksum=checksum))
    assert entry.damage() == ()
    assert entry.metadata.compression == codec
    assert (entry.checksum is not None) == checksum
    batch = batch_of(entry)
    assert batch.trailing_bytes == 0
    assert [m.value.tobytes() for m in batch.messages] == [value for _, value in messages]
    for (given_metadata, value), read in zip(messages, batch.messages, strict=True):
        expected = SingleMessageMetadata()
        expected.CopyFrom(given_metadata)
        expected.payload_size = len(value)
        assert read.metadata == expected


@given(st.binary(max_size=100), st.sampled_from(PayloadCodec))
def test_a_message_reads_as_it_was_built(value, codec):
    entry = Entry(build_message_entry(METADATA, value, codec))
    assert bytes(entry.opened_payload()) == value
    assert entry_fields(entry)["value"] == value.hex()
    assert not METADATA.HasField("compression")


def test_a_batch_of_none_and_metadata_that_lacks_fields_are_refused():
    with pytest.raises(InvalidArgumentError, match="at least one message"):
        build_batch_entry(METADATA, [])
    with pytest.raises(InvalidArgumentError, match="lacks required fields: sequence_id, publish_time"):
        build_entry(MessageMetadata(producer_name="p"), b"")


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_without_a_sign_are_the_same_in_the_fields_and_in_the_metadata(number):
    entry = Entry(build_entry(MessageMetadata(producer_name="p", sequence_id=number, publish_time=number), b""))
    assert (entry.fields().sequence_id, entry.fields().publish_time) == (number, number)
    assert (entry.metadata.sequence_id, entry.metadata.publish_time) == (number, number)


def single(**fields):
    raw = SingleMessageMetadata(**fields).SerializePartialToString()
    return len(raw).to_bytes(4, "big") + raw


@pytest.mark.parametrize(
    ("opened", "count", "says"),
    [
        (b"", 0, "invalid batch of 0 messages"),
        (b"", -1, "invalid batch of -1 messages"),
        (b"", 1, "message 0 of 1 in a batch"),
        (b"\x00\x00", 2**31 - 1, "message 0 of 2147483647"),
        (single(payload_size=0) * 1000, 2**31 - 1, "6000 bytes are too few for so many messages"),
        (b"\xff\xff\xff\xff\x18", 1, "metadata of 4294967295 bytes, but 1 are left"),
        (single(payload_size=5) + b"four", 1, "a value of 5 bytes, but 4 are left"),
        (single(payload_size=-1), 1, "a value of -1 bytes, but 0 are left"),
        (single(partition_key="k"), 1, "SingleMessageMetadata .*payload_size|Error parsing"),
        (b"\x00\x00\x00\x01\x18", 1, "SingleMessageMetadata does not parse"),
    ],
)
def test_a_batch_that_does_not_hold_its_messages_is_damaged(opened, count, says):
    with pytest.raises(CorruptRecordError, match=says):
        read_batch(opened, count)


def test_bytes_behind_the_last_message_are_counted():
    batch = read_batch(single(payload_size=1) + b"v" + b"more", 1)
    assert (len(batch.messages), batch.trailing_bytes) == (1, 4)


def test_metadata_that_protobuf_refuses_is_damage():
    entry = Entry(b"\x00\x00\x00\x01\x0apayload", "a.log")
    with pytest.raises(CorruptRecordError, match="MessageMetadata") as caught:
        _ = entry.metadata
    assert caught.value.file == "a.log"
    assert len(entry.damage()) == 1
    broker = Entry(b"\x0e\x02\x00\x00\x00\x01\x08" + named("plain"))
    with pytest.raises(CorruptRecordError, match="BrokerEntryMetadata"):
        _ = broker.broker_metadata
    assert Entry(named("plain")).broker_metadata is None


def test_reading_hot_fields_imports_no_protobuf():
    code = (
        "import sys; from seglog.ledger.entry import Entry; "
        "Entry(bytes.fromhex(sys.argv[1])).fields(); assert 'google.protobuf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, named("plain").hex()], check=True)
