"""Requests that are none: one named error for each, no crash, and no more memory than the frame has a right to."""
import os
import random
import struct
import tracemalloc

import pytest

from seglog.errors import InvalidArgumentError, ProtocolError, UnsupportedApiVersionError, UnsupportedVersionError
from seglog.wire import codec
from seglog.wire.coders import MAX_ELEMENTS
from seglog.wire.messages import REQUESTS, ApiKey, MetadataRequest, ProduceRequest
from seglog.wire.stored_records import OffsetCommitValue
from seglog.wire.structs import fields
from support.mutated_requests import mutate_frame, request_frames
from support.random_messages import random_message

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
MANY = 2000
COUNT = 1_000_000 if os.environ.get("SEGLOG_TORTURE") else 50_000


def head(api_key, version, client_id=b""):
    return struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id


def test_mutated_requests_are_read_or_refused():
    rnd = random.Random(21)
    frames = list(request_frames(rnd))
    read = refused = 0
    for _ in range(COUNT):
        frame = mutate_frame(rnd, rnd.choice(frames))
        try:
            _, request = codec.decode_request(frame)
        except ProtocolError:
            refused += 1
        else:
            assert type(request) in REQUESTS.values()
            read += 1
    # Both ways are taken.
    assert min(read, refused) > COUNT // 5


def test_a_request_cut_at_every_byte_is_refused_or_whole():
    rnd = random.Random(3)
    for key, request in REQUESTS.items():
        version = request.MAX_VERSION
        made = random_message(rnd, request, version)
        frame = codec.encode_request(codec.new_header(made, version), made)[4:]
        assert codec.decode_request(frame)[1] == made, ApiKey(key)
        for end in range(min(len(frame), 600)):
            with pytest.raises(ProtocolError):
                codec.decode_request(frame[:end])


@pytest.mark.parametrize(("frame", "said"), [
    (b"", "shorter than its header"),
    (head(0, 0)[:9], "shorter than its header"),
    (struct.pack(">hhih", 0, 0, 1, 30), "client_id claims 30 bytes, but 0 are left"),
    (head(0, 9) + b"\xff\xff\xff\xff\xff\x01", "longer than five bytes"),
    (head(0, 9) + b"\x01\x00\x7f", "a tagged field claims 127 bytes"),
    (head(0, 0) + struct.pack(">hi", 1, 0), "ends early"),
    (head(0, 0) + struct.pack(">hii", 1, 0, -1), "TopicData is null"),
    (head(0, 0) + struct.pack(">hii", 1, 0, 2**31 - 1), "TopicData claims 2147483647 elements of at least 6 byte"),
    (head(0, 0) + struct.pack(">hiih", 1, 0, 1, -1) + bytes(4), "Name is null"),
    (head(0, 0) + struct.pack(">hiih", 1, 0, 1, 300) + bytes(4), "Name claims 300 bytes, but 4 are left"),
    (head(0, 0) + struct.pack(">hiih", 1, 0, 1, 0) + struct.pack(">iii", 1, 0, 2**31 - 1), "Records claims"),
    # ReplicaState, tag 1 of Fetch 15, with a byte too many.
    (head(1, 15) + b"\0" + bytes(21) + b"\x01\x01\x01\x01\x01\x0e" + bytes(14), "ReplicaState does not end where"),
])
def test_what_is_wrong_is_said(frame, said):
    with pytest.raises(ProtocolError, match=said.replace("(", r"\(")):
        codec.decode_request(frame)


@pytest.mark.parametrize(("api_key", "version"), [(0, 99), (0, -1), (4, 0), (999, 0), (-1, 3), (18, 99)])
def test_an_unsupported_version_tells_who_asks(api_key, version):
    with pytest.raises(UnsupportedApiVersionError) as raised:
        codec.decode_request(head(api_key, version) + bytes(20))
    header = raised.value.header
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (api_key, version, 1)


def test_unknown_tags_are_skipped():
    topics = [MetadataRequest.MetadataRequestTopic(name="t")]
    request = MetadataRequest(topics=topics, include_topic_authorized_operations=True)
    frame = codec.encode_request(codec.new_header(request, 12), request)[4:]
    assert frame[-1:] == b"\0"
    for tags in (b"\x01\x05\x00", b"\x02\x00\x03abc\x7f\x01z", b"\x01\xff\xff\xff\xff\x0f\x02xy"):
        assert codec.decode_request(frame[:-1] + tags)[1] == request


def test_bytes_behind_a_request_are_ignored_and_behind_a_message_are_not():
    request = ProduceRequest(acks=1)
    frame = codec.encode_request(codec.new_header(request, 3), request)[4:]
    assert codec.decode_request(frame + b"more")[1] == request
    data = codec.encode_versioned(OffsetCommitValue(offset=3), 1)
    assert codec.decode_versioned(OffsetCommitValue, data) == (1, OffsetCommitValue(offset=3))
    with pytest.raises(ProtocolError, match="4 bytes after the end"):
        codec.decode_versioned(OffsetCommitValue, data + b"more")
    assert codec.decode_message(OffsetCommitValue, 1, data[2:] + b"more", trailing=True).offset == 3
    with pytest.raises(UnsupportedVersionError, match="unknown version 5 of OffsetCommitValue; expected 0 to 4"):
        codec.decode_versioned(OffsetCommitValue, b"\0\5" + data[2:])
    with pytest.raises(ProtocolError, match="shorter than its version"):
        codec.decode_versioned(OffsetCommitValue, b"\0")


def test_what_a_version_cannot_hold_is_not_encoded():
    with pytest.raises(InvalidArgumentError, match="version 1 of ProduceRequest cannot hold this"):
        codec.encode_message(ProduceRequest(acks=70000), 1)
    with pytest.raises(InvalidArgumentError, match="ProduceRequest has no version 99"):
        codec.encode_message(ProduceRequest(), 99)


def requests_of_many():
    """A request for each list of structs at the top of an API, with MANY elements of the smallest size."""
    for request in REQUESTS.values():
        for field in fields(request):
            if field.is_list and field.is_struct and request.MAX_VERSION in field.versions:
                element = getattr(request, field.type)()
                message = request(**{field.attribute: [element] * MANY})
                yield codec.encode_request(codec.new_header(message, request.MAX_VERSION), message)[4:]


def test_an_element_takes_bounded_memory():
    """With the limit on their number, this bounds what a request can take beside its frame."""
    taken_bytes = []
    for frame in requests_of_many():
        codec.decode_request(frame)     # compiles
        tracemalloc.start()
        request = codec.decode_request(frame)
        taken_bytes.append(tracemalloc.get_traced_memory()[0] / MANY)
        tracemalloc.stop()
        del request
    assert len(taken_bytes) > 20
    assert 40 < min(taken_bytes) <= max(taken_bytes) < 400


def test_more_elements_than_may_be_are_refused():
    frame = head(ApiKey.DESCRIBE_GROUPS, 0) + struct.pack(">i", MAX_ELEMENTS + 1) + bytes(2 * MAX_ELEMENTS + 2)
    with pytest.raises(ProtocolError, match=f"more than {MAX_ELEMENTS} elements"):
        codec.decode_request(frame)
    frame = head(ApiKey.DESCRIBE_GROUPS, 0) + struct.pack(">i", MAX_ELEMENTS) + bytes(2 * MAX_ELEMENTS)
    assert len(codec.decode_request(frame)[1].groups) == MAX_ELEMENTS


def test_large_records_and_those_of_others_are_segments_of_their_own():
    class OnDisk:
        def __len__(self):
            return 70_000

    response = ProduceRequest       # any message with records will do
    slice_, large, small = OnDisk(), bytes(5000), b"small"
    partition = response.PartitionProduceData(index=1, records=[small, slice_, large, b""])
    message = response(topic_data=[response.TopicProduceData(name="t", partition_data=[partition])])
    segments = codec.encode_response(codec.new_header(message, 9), message)
    assert segments[1] is slice_
    assert segments[2] is large
    assert sum(map(len, segments)) == int.from_bytes(bytes(segments[0])[:4], "big") + 4
    assert b"small" in bytes(segments[0])


def test_records_are_a_view_of_the_frame():
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(
        name="t", partition_data=[ProduceRequest.PartitionProduceData(records=b"batch")])])
    frame = codec.encode_request(codec.new_header(request, 9), request)[4:]
    for kind in (bytes, bytearray, memoryview):
        given = kind(frame)
        records = codec.decode_request(given)[1].topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records == b"batch"
        assert records.obj is (given.obj if kind is memoryview else given)
