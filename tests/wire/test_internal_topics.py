"""Records of Kafka's internal topics as JSON: what kafka-dump-log says of golden topics, and bytes of every kind."""
import json
import os
import random

import pytest

from seglog.errors import ProtocolError, UnsupportedVersionError
from seglog.wire import stored_records
from seglog.wire.codec import encode_versioned
from seglog.wire.internal_records import control_form, decode_key, decode_value, encode_key
from seglog.wire.internal_topics import TOPICS, InternalRecords
from seglog.wire.json_form import json_form
from seglog.wire.stored_records import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from support.internal_topics import KRAFT_VERSIONS, kraft, kraft_said, records_in, said_by_us

OFFSETS, METADATA = "__consumer_offsets", "__cluster_metadata"
MUTATIONS = 100_000 if os.environ.get("SEGLOG_TORTURE") else 3_000


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_each_record_says_what_kafkas_own_tool_says(version):
    said = kraft_said(version)
    assert {file.partition("-")[0] for file in said} == {OFFSETS, METADATA, "__transaction_state"}
    for file, rows in said.items():
        assert said_by_us(file.partition("-")[0], kraft(version) / file) == rows, file


def test_a_topic_of_another_name_is_none_of_them():
    assert InternalRecords.of("orders") is None
    assert {InternalRecords.of(topic).topic for topic in TOPICS} == TOPICS
    assert {*stored_records.KEYS, *stored_records.METADATA} == TOPICS


def test_both_types_of_offset_keys_have_the_same_values():
    value = encode_versioned(OffsetCommitValue(offset=7, metadata="m", expire_timestamp=9), 1)
    for kind in (LegacyOffsetCommitKey, OffsetCommitKey):
        key = encode_key(kind(group="g", topic="t", partition=3))
        assert decode_key(OFFSETS, key).message.partition == 3
        assert InternalRecords(OFFSETS).value(key, value) == {"version": "1", "data": {
            "offset": 7, "metadata": "m", "commitTimestamp": 0, "expireTimestamp": 9,
        }}


def test_a_tagged_struct_is_null_or_left_out():
    """Kafka writes null as a varint there, and leaves out a struct of defaults: red before it was told apart."""
    value = ConsumerGroupMemberMetadataValue
    member = value(client_id="c")
    written = encode_versioned(member, 0)
    assert written.endswith(b"\x01\x00\x01\x00")
    assert decode_value(OFFSETS, 5, written).message == member
    assert json_form(member, 0)["classicMemberMetadata"] is None
    member.classic_member_metadata = value.ClassicMemberMetadata()
    assert encode_versioned(member, 0).endswith(b"\xff\1\0")
    assert "classicMemberMetadata" not in json_form(member, 0)
    assert decode_value(OFFSETS, 5, encode_versioned(member, 0)).message == member
    member.classic_member_metadata.session_timeout_ms = 5
    assert json_form(decode_value(OFFSETS, 5, encode_versioned(member, 0)).message, 0)["classicMemberMetadata"] == {
        "sessionTimeoutMs": 5, "supportedProtocols": [],
    }


def test_bytes_in_a_group_that_are_no_subscription_stay():
    members = [GroupMetadataValue.MemberMetadata(subscription=b"\0\1\0\0\0\1", assignment=b"")]
    value = encode_versioned(GroupMetadataValue(protocol_type="consumer", members=members), 3)
    form = InternalRecords(OFFSETS).value(encode_key(GroupMetadataKey(group="g")), value)
    assert (form["data"]["members"][0]["subscription"], form["data"]["members"][0]["assignment"]) == ("AAEAAAAB", "")


@pytest.mark.parametrize(("topic", "key", "value", "error", "words"), [
    (OFFSETS, b"\0\x63g", b"", UnsupportedVersionError, "unknown type 99 of a value in __consumer_offsets"),
    (OFFSETS, b"\0\2\0\1g", b"\0\5", UnsupportedVersionError, "unknown version 5 of GroupMetadataValue"),
    (OFFSETS, b"\0", b"\0\1", ProtocolError, "1 bytes are too few"),
    (OFFSETS, None, b"\0\1", ProtocolError, "0 bytes are too few"),
    (OFFSETS, b"\0\1", b"\0\3\0", ProtocolError, "ends early"),
    (METADATA, None, b"", ProtocolError, "ends after 0 bytes, in its frame"),
    (METADATA, None, b"\0\2\0", UnsupportedVersionError, "unknown frame 0"),
    (METADATA, None, b"\1\x7f\0", UnsupportedVersionError, "unknown type 127"),
    (METADATA, None, b"\1\2\1", UnsupportedVersionError, "unknown version 1 of TopicRecord"),
    (METADATA, None, b"\1\x14\0\0\0", ProtocolError, "1 bytes after the end of a NoOpRecord"),
    (METADATA, None, b"\1\xff\xff\xff\xff\xff\1", ProtocolError, "longer than five bytes"),
])
def test_what_this_release_does_not_know_is_refused(topic, key, value, error, words):
    with pytest.raises(error, match=words):
        InternalRecords(topic).value(key, value)


def test_a_key_of_an_unknown_type_is_refused():
    with pytest.raises(UnsupportedVersionError, match="unknown type 9 of a key"):
        InternalRecords(OFFSETS).key(b"\0\x09\0\1g")
    with pytest.raises(UnsupportedVersionError, match="have no keys"):
        InternalRecords(METADATA).key(b"\0\1")


@pytest.mark.parametrize(("key", "value"), [
    (b"", b""), (b"\0\0\0\3", b""), (b"\0\0\0\x63", b"\0\0"), (b"\0\0\0\3", b"\0"),
])
def test_a_control_record_that_is_none_is_refused(key, value):
    with pytest.raises((ProtocolError, UnsupportedVersionError)):
        control_form(key, value)


def test_mutated_records_decode_or_are_refused():
    """Whatever the bytes, an answer that is JSON, or one of two errors."""
    rnd = random.Random(37)
    samples = []
    for version in KRAFT_VERSIONS:
        for file in kraft_said(version):
            topic = file.partition("-")[0]
            samples += [(topic, record.key, record.value) for record in records_in(kraft(version) / file)]
    refused = 0
    for _ in range(MUTATIONS):
        topic, key, value = rnd.choice(samples)
        decode = InternalRecords(topic)
        try:
            if key is not None:
                json.dumps(decode.key(mutated(rnd, key)))
            json.dumps(decode.value(key, mutated(rnd, value or b"")))
        except (ProtocolError, UnsupportedVersionError):
            refused += 1
    assert MUTATIONS * 0.2 < refused < MUTATIONS * 0.95


def mutated(rnd, data):
    changed = bytearray(data)
    for _ in range(rnd.choice((1, 1, 2, 5))):
        where = rnd.randint(0, len(changed))
        kind = rnd.random()
        if kind < 0.5 and where < len(changed):
            changed[where] = rnd.choice((0, 1, 127, 128, 255, rnd.getrandbits(8)))
        elif kind < 0.7:
            changed[where:where] = rnd.randbytes(rnd.randint(1, 5))
        elif kind < 0.85:
            del changed[where : where + rnd.randint(1, 9)]
        else:
            del changed[where:]
    return bytes(changed)


def test_tables_name_each_type_once():
    for tables in (stored_records.KEYS, stored_records.VALUES, stored_records.METADATA):
        for of_topic in tables.values():
            assert all(kind == message.API_KEY for kind, message in of_topic.items())
            assert len(set(of_topic.values())) == len(of_topic)
