"""The frame of an entry and the hot fields of its metadata: golden entries, protobuf as the twin, hostile bytes."""
import random
import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels import entry_frame
from seglog._kernels.crc import crc32c
from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.entry_frame import EntryFrame, broker_fields, entry_timestamp, put_broker_metadata, strip
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.pulsar_pb.entry_pb2 import BrokerEntryMetadata, MessageMetadata
from support.entries import golden_entries

REQUIRED = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1700000000000)
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def frame(metadata, payload=b"", broker=None, checksum=True):
    """An entry made with struct alone."""
    covered = struct.pack(">I", len(metadata)) + metadata + payload
    entry = (b"\x0e\x01" + struct.pack(">I", crc32c(covered)) if checksum else b"") + covered
    return entry if broker is None else b"\x0e\x02" + struct.pack(">I", len(broker)) + broker + entry


def in_columns(fields):
    """The same as columns have it, which are of int64."""
    return fields | {
        name: number - 2**64 if number >= 2**63 else number
        for name, number in fields.items() if name in ("sequence_id", "publish_time")
    }


def witness(message):
    """What the kernel should find, from protobuf."""
    key = message.partition_key if message.HasField("partition_key") else None
    if isinstance(key, str):        # bytes where it is no UTF-8
        key = key.encode()
    flags = entry_frame.HAS_BATCH * message.HasField("num_messages_in_batch")
    flags |= entry_frame.HAS_DELIVER_AT * message.HasField("deliver_at_time")
    flags |= entry_frame.HAS_KEY * message.HasField("partition_key")
    flags |= entry_frame.IS_ENCRYPTED * bool(message.encryption_keys)
    flags |= entry_frame.HAS_MARKER * message.HasField("marker_type")
    flags |= entry_frame.IS_CHUNK * (message.num_chunks_from_msg > 1)
    flags |= entry_frame.KEY_IS_BASE64 * message.partition_key_b64_encoded
    flags |= entry_frame.HAS_UNCOMPRESSED_SIZE * message.HasField("uncompressed_size")
    flags |= entry_frame.IS_NULL_VALUE * message.null_value
    return {
        "sequence_id": message.sequence_id,
        "publish_time": message.publish_time,
        "deliver_at_time": message.deliver_at_time if message.HasField("deliver_at_time") else None,
        "uncompressed_size": message.uncompressed_size,
        "num_messages": message.num_messages_in_batch,
        "compression": message.compression,
        "flags": flags,
        "key": key,
        "compacted_indexes": tuple(message.compacted_batch_indexes),
    }


def found(fields):
    return {name: getattr(fields, name) for name in witness(REQUIRED)}


def row(columns, n):
    """Row n of the columns in the words of `found`."""
    out = {name: getattr(columns, name)[n] for name in ("sequence_id", "publish_time", "uncompressed_size")}
    out |= {name: getattr(columns, name)[n] for name in ("num_messages", "compression")}
    delayed = columns.flags[n] & entry_frame.HAS_DELIVER_AT
    out["deliver_at_time"] = columns.deliver_at_time[n] if delayed else None
    out["flags"] = columns.flags[n] & ~(entry_frame.HAS_BROKER_TIMESTAMP | entry_frame.HAS_INDEX)
    out["key"] = columns.key(n)
    begin, end = columns.compacted_offsets[n : n + 2]
    out["compacted_indexes"] = tuple(columns.compacted_indexes[begin:end])
    return out


# --- golden --------------------------------------------------------------------------------


def test_the_parts_of_golden_entries_are_where_pulsar_finds_them():
    for data, says in golden_entries():
        entry = EntryFrame(data)
        assert entry.headers_pos == says["headers_offset"]
        assert entry.payload_pos == says["payload_offset"]
        assert len(entry.payload()) == says["payload_size"]
        assert len(entry.metadata_bytes()) == says["metadata_size"]
        assert entry.checksum == says.get("checksum")
        assert entry.crc_is_valid() == says.get("checksum_ok", True)
        assert entry.has_broker_part == ("broker_entry_metadata" in says)


def test_the_broker_part_of_golden_entries_is_read_and_taken_away_alone():
    for data, says in golden_entries():
        broker = says.get("broker_entry_metadata", {})
        assert broker_fields(data) == (broker.get("broker_timestamp"), broker.get("index"))
        assert broker_fields(data) == EntryFrame(data).broker_fields()
        assert entry_timestamp(data) == says["entry_timestamp"]
        assert strip(data) == data[says["headers_offset"] :] == EntryFrame(data).without_broker_part()


def test_the_broker_part_is_put_in_front_of_golden_entries_to_the_same_bytes():
    for data, says in golden_entries():
        if says.get("broker_entry_metadata"):
            fields = says["broker_entry_metadata"]
            assert put_broker_metadata(strip(data), fields.get("broker_timestamp"), fields.get("index")) == data


def test_hot_fields_of_golden_entries_are_those_that_protobuf_reads():
    entries = [data for data, _ in golden_entries()]
    columns = metadata_columns(entries)
    assert len(columns) == 287
    for n, data in enumerate(entries):
        entry = EntryFrame(data)
        expected = witness(MessageMetadata.FromString(bytes(entry.metadata_bytes())))
        assert found(entry.fields()) == expected
        assert row(columns, n) == expected
        timestamp, index = broker_fields(data)
        assert columns.broker_timestamp[n] == (-1 if timestamp is None else timestamp)
        assert columns.index[n] == (-1 if index is None else index)
        assert bool(columns.flags[n] & entry_frame.HAS_INDEX) == (index is not None)


# --- the twin --------------------------------------------------------------------------------

TEXT = st.text(max_size=8)
METADATA = st.builds(
    MessageMetadata,
    producer_name=TEXT,
    sequence_id=UINT64,
    publish_time=UINT64,
    partition_key=st.none() | TEXT,
    compression=st.none() | st.integers(0, 4),
    uncompressed_size=st.none() | st.integers(0, 2**32 - 1),
    num_messages_in_batch=st.none() | INT32,
    event_time=st.none() | UINT64,
    encryption_algo=st.none() | TEXT,
    schema_version=st.none() | st.binary(max_size=8),
    partition_key_b64_encoded=st.none() | st.booleans(),
    deliver_at_time=st.none() | st.integers(-(2**63), 2**63 - 1),
    marker_type=st.none() | INT32,
    num_chunks_from_msg=st.none() | INT32,
    compacted_batch_indexes=st.lists(INT32, max_size=4),
    replicate_to=st.lists(TEXT, max_size=2),
)


@given(METADATA, st.integers(0, 2))
def test_the_kernel_reads_what_protobuf_writes(message, keys):
    for n in range(keys):
        message.encryption_keys.add(key=f"k{n}", value=b"secret")
    entry = frame(message.SerializeToString(), b"payload")
    assert found(EntryFrame(entry).fields()) == witness(message)
    assert row(metadata_columns([entry, entry]), 1) == in_columns(witness(message))


@given(st.lists(METADATA, min_size=1, max_size=3), st.lists(INT32, max_size=5))
def test_of_repeated_fields_the_last_counts_and_indexes_may_be_packed(messages, packed):
    raw = b"".join(message.SerializeToString() for message in messages)
    body = b"".join(varint(n & 0xFFFFFFFFFFFFFFFF) for n in packed)
    raw += b"\xfa\x01" + varint(len(body)) + body
    expected = witness(MessageMetadata.FromString(raw))
    assert found(EntryFrame(frame(raw)).fields()) == expected
    assert row(metadata_columns([frame(raw)]), 0) == in_columns(expected)


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


@given(st.none() | st.integers(0, 2**63 - 1), st.none() | st.integers(0, 2**63 - 1), st.booleans())
def test_the_broker_part_is_what_protobuf_writes(timestamp, index, checksum):
    entry = frame(REQUIRED.SerializeToString(), b"x", checksum=checksum)
    if timestamp is None and index is None:
        return
    part = BrokerEntryMetadata(broker_timestamp=timestamp, index=index).SerializeToString()
    whole = put_broker_metadata(bytearray(entry), timestamp, index)
    assert whole == b"\x0e\x02" + struct.pack(">I", len(part)) + part + entry
    assert broker_fields(whole) == broker_fields(memoryview(whole)) == (timestamp, index)
    assert strip(whole) == entry
    assert entry_timestamp(whole) == (REQUIRED.publish_time if timestamp is None else timestamp)


def changed(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) or 1)
        match rng.randrange(4):
            case 0 if data:
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(12))
            case 3:
                del data[at : at + rng.randrange(12)]
    return bytes(data)


def test_of_mutated_metadata_the_kernel_and_protobuf_say_the_same():
    """What only one of them takes: groups, which the kernel refuses; a damaged field that only protobuf looks into.
    An unknown compression protobuf takes for none."""
    rng = random.Random(70)
    same = refused = 0
    for _ in range(6000):
        raw = changed(rng, EntryFrame(rng.choice(golden_entries())[0]).metadata_bytes())
        try:
            fields = found(EntryFrame(frame(raw)).fields())
        except CorruptRecordError:
            fields = None
        try:
            message = MessageMetadata.FromString(raw)
            expected = witness(message) if message.IsInitialized() else None
        except (DecodeError, UnicodeDecodeError):
            expected = None
        if fields is not None and expected is not None:
            if not 0 <= fields["compression"] <= 4:
                fields["compression"] = expected["compression"]
            assert fields == expected, raw.hex()
            same += 1
        elif fields is None and expected is None:
            refused += 1
        elif fields is None:
            assert any(byte & 7 == 3 for byte in raw), raw.hex()
        else:
            assert b"\x22" in raw or b"\x6a" in raw, raw.hex()      # properties, encryption_keys: messages inside
    assert same > 500
    assert refused > 500


def test_mutated_entries_end_in_a_clear_error_or_in_views_that_lie_inside():
    rng = random.Random(71)
    errors = []
    for _ in range(10_000):
        data = changed(rng, rng.choice(golden_entries())[0])
        try:
            entry = EntryFrame(data, "a.log")
            assert entry.without_broker_part() == data[entry.headers_pos :] == strip(data)
            assert entry.payload() == data[entry.payload_pos :]
            entry.crc_is_valid()
            assert entry.broker_fields() == broker_fields(data)
            entry.fields()
            metadata_columns([data])
        except CorruptRecordError as e:
            errors.append((e, len(data)))
    assert len(errors) > 1000
    assert all(0 <= e.position <= size for e, size in errors)
    assert all(e.file == "a.log" or e.offset == 0 for e, _ in errors)


# --- errors ----------------------------------------------------------------------------------

GOOD = REQUIRED.SerializeToString()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the metadata's size of an entry: 0 bytes are left"),
        (b"\x00\x00\x00", "the metadata's size of an entry: 3 bytes are left"),
        (b"\x0e\x02\x00\x00\x00", "the broker's part of an entry: 5 bytes are left"),
        (b"\x0e\x02\xff\xff\xff\xff\x08\x01", "the broker's part of an entry: 4294967295 bytes of it where 2 are left"),
        (b"\x0e\x02\x00\x00\x00\x00", "the metadata's size of an entry: 0 bytes are left"),
        (b"\x0e\x02\x00\x00\x00\x00" * 2, "the metadata of an entry: 235012096 bytes of it where 2 are left"),
        # (once read behind the end of the entry)
        (b"\x0e\x02" + bytes(4) + b"\x0e\x02\0\0", "the metadata of an entry: 235012096 bytes of it where 0 are left"),
        (b"\x0e\x01\x00\x00", "the checksum of an entry: 4 bytes are left"),
        (b"\x7f\xff\xff\xff\x08", "the metadata of an entry: 2147483647 bytes of it where 1 are left"),
    ],
)
def test_parts_that_do_not_fit_are_an_error_that_names_sizes(data, says):
    with pytest.raises(CorruptRecordError, match=says) as caught:
        EntryFrame(data, "orders.log")
    assert caught.value.file == "orders.log"
    with pytest.raises(CorruptRecordError, match=says):
        metadata_columns([data])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "MessageMetadata needs producer_name, sequence_id and publish_time"),
        (GOOD + b"\x98", "the bytes end before the field does: in MessageMetadata, 1 bytes before its end"),
        (GOOD + b"\x10" + b"\xff" * 11, "a variable-length integer that does not end"),
        (GOOD + b"\x32\x05ab", "the bytes end before the field does"),
        (GOOD + b"\x32" + b"\xff" * 9 + b"\x01", "the bytes end before the field does"),
        (GOOD + b"\x00\x00", "an impossible protobuf field"),
        (GOOD + b"\x80\x80\x80\x80\x10\x00", "an impossible protobuf field"),
        (GOOD + b"\x7b\x7c", "an impossible protobuf field"),
        (GOOD + b"\x7d\x01\x02", "the bytes end before the field does"),
        (GOOD + b"\xfa\x01\x01\x80", "the bytes end before the field does"),
    ],
)
def test_metadata_that_does_not_parse_is_an_error(raw, says):
    with pytest.raises(CorruptRecordError, match=says):
        EntryFrame(frame(raw)).fields()
    with pytest.raises(CorruptRecordError, match=says) as caught:
        metadata_columns([frame(GOOD), frame(raw)])
    assert caught.value.offset == 1
    with pytest.raises(CorruptRecordError, match=says):
        entry_timestamp(frame(raw))


def test_a_broker_part_that_does_not_parse_is_an_error():
    entry = frame(GOOD, broker=b"\x08")
    for read in (broker_fields, entry_timestamp, EntryFrame(entry).broker_fields, lambda *_: metadata_columns([entry])):
        with pytest.raises(CorruptRecordError, match="in BrokerEntryMetadata"):
            read(*([entry] if read in (broker_fields, entry_timestamp) else []))
    assert strip(entry) == frame(GOOD)


def test_unknown_fields_of_a_newer_pulsar_are_passed_over():
    more = b"\x9d\x06\x01\x02\x03\x04" + b"\x99\x06\x01\x02\x03\x04\x05\x06\x07\x08" + b"\x9a\x06\x02ab"
    assert broker_fields(frame(GOOD, broker=more + b"\x08\x05")) == (5, None)
    assert found(EntryFrame(frame(more + GOOD)).fields()) == witness(REQUIRED)


def test_an_entry_gets_a_broker_part_once():
    whole = put_broker_metadata(frame(GOOD), index=0)
    with pytest.raises(InvalidArgumentError, match="has a broker's part already"):
        put_broker_metadata(whole, index=1)
    with pytest.raises(InvalidArgumentError, match="says nothing"):
        put_broker_metadata(frame(GOOD))
    for number in (-1, 2**63):
        with pytest.raises(InvalidArgumentError, match="is 0 to 2"):
            put_broker_metadata(frame(GOOD), number)


def test_views_keep_the_bytes_alive():
    data = bytearray(frame(GOOD, b"payload", broker=b"\x10\x07"))
    view = strip(data)
    with pytest.raises(BufferError):
        data.clear()
    assert view.readonly
    view.release()
    entry = EntryFrame(data)
    payload = entry.payload()
    del entry
    with pytest.raises(BufferError):
        data.clear()
    assert payload == b"payload"


def test_an_index_out_of_the_columns_is_an_error():
    columns = metadata_columns([])
    assert len(columns) == 0
    with pytest.raises(IndexError):
        columns.key(0)
