"""What the server answers to requests as they are on the wire, and to what is no request."""
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.endpoint.topics import ZERO_ID, ServedTopic, Topics
from seglog.format.compression import decompressor
from seglog.log.open_dir import LogDir
from seglog.state.clean_partitions import CleanPartitions
from seglog.wire.codec import API_VERSIONS
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from support import plain_format as plain
from support.waiting import wait_for
from support.wire_client import WireClient, fetch_request, produce_request


def batch(*values, **options):
    return seglog.build_batch([(b"k", value) for value in values], **options)


def produced(client, records, version=11, *, topic="orders", acks=-1):
    return client.ask(produce_request(topic, 0, records, acks=acks), version).responses[0].partition_responses[0]


def fetched(client, offset, version=12, **options):
    return client.ask(fetch_request("orders", offset, **options), version).responses[0].partitions[0]


# --- ApiVersions, and what is not served ---------------------------------------------------------


def test_the_versions_that_are_told_are_those_of_kafka_3_9_1(client):
    rows = client.ask(ApiVersionsRequest(client_software_name="wire", client_software_version="1"), 3).api_keys
    told = {row.api_key: (row.min_version, row.max_version) for row in rows}
    assert told.items() <= API_VERSIONS.items()
    assert {0, 1, 2, 3, 18, 19, 20, 21, 32, 33, 44, 60} <= told.keys()


def test_an_unknown_version_of_api_versions_is_answered_as_version_0_with_the_range(client):
    client.socket.sendall(struct.pack(">ihhihB", 11, 18, 99, 7, -1, 0))
    raw = client.receive_frame()
    assert raw == struct.pack(">ihihhh", 7, Errors.UNSUPPORTED_VERSION, 1, 18, *API_VERSIONS[18])


@pytest.mark.parametrize("frame", [
    struct.pack(">hhih", 999, 0, 1, -1),            # no such API
    struct.pack(">hhih", 0, 77, 1, -1),             # no such version
    struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff",     # a list that cannot be that long
    b"GET / HTTP/1.1\r\n\r\n"[4:],
])
def test_what_is_no_request_closes_the_connection_and_no_other(served, frame):
    with WireClient(served) as other, WireClient(served) as client:
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        assert client.is_closed()
        assert other.ask(MetadataRequest(), 12).controller_id == 1


@pytest.mark.parametrize("size", [-1, 0, 7, (100 << 20) + 1, 2**31 - 1])
def test_a_length_that_no_request_has_closes_the_connection(served, size):
    with WireClient(served) as client:
        client.socket.sendall(struct.pack(">i", size))
        assert client.is_closed()


def test_a_request_that_comes_byte_by_byte_is_answered(client):
    header, raw = client.frame(MetadataRequest(topics=None), 9)
    for at in range(len(raw)):
        client.socket.sendall(raw[at : at + 1])
    assert [topic.name for topic in client.receive(header).topics] == ["orders"]


def test_requests_that_come_at_once_are_answered_in_their_order(client):
    headers, sent = [], b""
    for n in range(300):
        header, raw = client.frame(produce_request("orders", 0, batch(b"%d" % n)), 7)
        headers.append(header)
        sent += raw
    threading.Thread(target=client.socket.sendall, args=(sent,)).start()
    offsets = [client.receive(header).responses[0].partition_responses[0].base_offset for header in headers]
    assert offsets == list(range(300))


# --- Produce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(12))
def test_every_version_of_produce_writes(client, version):
    magic = 2 if version >= 3 else 1 if version == 2 else 0
    for offset in range(2):
        row = produced(client, batch(b"one", magic=magic), version)
        assert (row.error_code, row.base_offset) == (0, offset)


def test_what_is_acknowledged_by_all_is_on_the_disk(served, client):
    assert produced(client, batch(b"one")).base_offset == 0
    assert served.log("orders", 0).durable_offset == 1


def test_acks_0_is_not_answered_and_what_comes_behind_it_is(client):
    client.send(produce_request("orders", 0, batch(b"quiet"), acks=0), 7)
    assert produced(client, batch(b"loud")).base_offset == 1


def test_a_fault_with_acks_0_closes_the_connection(client):
    client.send(produce_request("orders", 9, batch(b"nowhere"), acks=0), 7)
    assert client.is_closed()


@pytest.mark.parametrize(("records", "version", "error"), [
    (b"", 7, Errors.INVALID_RECORD),
    (batch(b"old", magic=1), 7, Errors.INVALID_RECORD),
    (batch(b"zstd", codec="zstd"), 6, Errors.UNSUPPORTED_COMPRESSION_TYPE),
    (batch(b"one") + batch(b"two"), 7, Errors.INVALID_RECORD),
    (batch(b"x" * (2 << 20)), 7, Errors.MESSAGE_TOO_LARGE),
    (batch(b"hurt")[:-1] + b"!", 7, Errors.CORRUPT_MESSAGE),
    (seglog.build_batch([(b"\0\0\0\0", b"\0\0\0\0\0\0")], control=True, producer_id=1, producer_epoch=0), 7,
     Errors.INVALID_RECORD),
    # In a transaction, by a client that names none: tests/golden/conversation.json.gz has the broker's answer.
    (seglog.build_batch([(b"\0\0\0\0", b"\0\0\0\0\0\0")], control=True, transactional=True, producer_id=1,
                        producer_epoch=0), 7, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (seglog.build_batch([(b"k", b"v")], transactional=True, base_sequence=0, producer_id=1, producer_epoch=0), 2,
     Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
], ids=["nothing", "v1", "zstd", "two", "large", "hurt", "control", "marker", "transaction"])
def test_what_a_broker_refuses_is_refused_with_its_error(client, records, version, error):
    row = produced(client, records, version)
    assert (Errors(row.error_code), row.base_offset) == (error, -1)
    assert produced(client, batch(b"fine")).base_offset == 0


def test_acks_of_another_number_and_an_unknown_topic_are_refused(client):
    assert produced(client, batch(b"one"), acks=2).error_code == Errors.INVALID_REQUIRED_ACKS
    assert produced(client, batch(b"one"), topic="nowhere").error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


# --- Fetch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(13))
def test_every_version_of_fetch_that_names_topics_reads(client, version):
    produced(client, batch(b"one", b"two"))
    row = fetched(client, 0, version)
    raw = bytes(row.records)
    assert (row.error_code, row.high_watermark) == (0, 2)
    assert raw[16] == (2 if version >= 4 else 1 if version >= 2 else 0)
    assert b"one" in raw
    assert b"two" in raw


@pytest.mark.parametrize("version", [0, 2, 4, 9, 10, 12])
def test_a_client_gets_messages_with_tags_in_the_format_that_it_knows(in_memory, version):
    """As they lie there it would take them for v1."""
    with seglog.open(in_memory / "data" / "orders-0", config={"seglog.message.dialect": "tagged"}) as log:
        log.append(b"one", key=b"k")
        log.append_batch(batch(b"two", b"three", codec="gzip"))
        log.append_batch(batch(b"four", codec="zstd"))
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        row = fetched(client, 0, version)
        read = scan(Window(bytes(row.records)), check_crc=True, decompress=decompressor())
        assert {one.magic for one in read} == {2 if version >= 4 else 1 if version >= 2 else 0}
        rows = [(0, b"one"), (1, b"two"), (2, b"three"), (3, b"four")]
        assert [(r.offset, r.value) for r in read.records()] == rows[: 4 if version >= 4 else 3]
        told = fetched(client, 3, version).error_code
        assert told == (0 if version >= 4 else Errors.UNSUPPORTED_COMPRESSION_TYPE)     # zstd is not converted


def test_an_old_client_whose_limit_no_batch_fits_in_is_told_by_a_message_that_is_cut(client):
    produced(client, batch(b"x" * 1000))
    raw = bytes(fetched(client, 0, 2, max_bytes=500).records)       # (with nothing at all it would ask for ever)
    assert struct.unpack_from(">i", raw, 8)[0] + 12 > len(raw) > 12
    assert len(raw) <= 500


@pytest.mark.parametrize("max_bytes", [3000, 1 << 20])
@pytest.mark.parametrize("value_bytes", [0, 100])       # as v0 messages the first are more bytes than on disk
def test_an_old_client_gets_every_record_once_whatever_the_sizes(client, max_bytes, value_bytes):
    for first in range(0, 200, 20):
        produced(client, batch(*(b"%03d" % n + b"x" * value_bytes for n in range(first, first + 20))))
    values = []
    while len(values) < 200:
        came = len(values)
        raw = bytes(fetched(client, len(values), 1, max_bytes=max_bytes).records)
        at = 0
        while at + 12 <= len(raw):
            offset, size = struct.unpack_from(">qi", raw, at)
            if at + 12 + size > len(raw):
                break       # cut, or there to fill what was announced
            if offset >= len(values):
                assert offset == len(values)
                values.append(raw[at + 12 + size - 3 - value_bytes : at + 12 + size - value_bytes])
            at += 12 + size
        assert len(values) > came, "a fetch gave nothing"
    assert values == [b"%03d" % n for n in range(200)]


def test_a_fetch_waits_until_there_is_enough(served, client):
    with WireClient(served) as producer:
        began = time.monotonic()
        header = client.send(fetch_request("orders", 0, max_wait_ms=20_000), 12)
        assert produced(producer, batch(b"late")).base_offset == 0
        assert b"late" in bytes(client.receive(header).responses[0].partitions[0].records)
        assert time.monotonic() - began < 15


def test_a_fetch_that_finds_nothing_waits_no_longer_than_it_said(client):
    began = time.monotonic()
    assert not fetched(client, 0, max_wait_ms=200).records
    assert 0.15 < time.monotonic() - began < 15


def test_a_fetch_out_of_range_is_told_so_at_once(client):
    row = fetched(client, 5, max_wait_ms=20_000)
    assert (row.error_code, row.high_watermark) == (Errors.OFFSET_OUT_OF_RANGE, -1)


def test_zstd_goes_to_clients_below_fetch_10_as_it_lies_there(client):
    """As from a broker: kafka-python 2.0 asks with Fetch v4, and reads zstd."""
    produced(client, batch(b"plain"))
    produced(client, batch(b"zstd" * 50, codec="zstd"))
    assert bytes(fetched(client, 0, 4).records) == bytes(fetched(client, 0, 10).records)
    assert bytes(fetched(client, 1, 9).records) == bytes(fetched(client, 1, 10).records)
    assert fetched(client, 1, 3).error_code == Errors.UNSUPPORTED_COMPRESSION_TYPE      # it would have to be converted


def test_a_topic_whose_compression_type_is_zstd_is_refused_below_fetch_10(served, client):
    produced(client, batch(b"plain"))
    served.log("orders", 0).configure({"compression.type": "zstd"})
    for version in range(10):
        row = fetched(client, 0, version)
        assert (row.error_code, row.high_watermark) == (Errors.UNSUPPORTED_COMPRESSION_TYPE, -1)
    assert b"plain" in bytes(fetched(client, 0, 10).records)


def test_the_first_batch_comes_whole_and_the_others_as_far_as_there_is_room(client):
    for _ in range(3):
        produced(client, batch(b"x" * 1000))
    first = len(fetched(client, 0, max_bytes=1).records)
    assert first > 1000
    assert len(fetched(client, 0, max_bytes=first + 100).records) == first + 100
    assert not fetched(client, 0, 2, max_bytes=10).error_code       # an old client takes no more than it asked for


# --- offsets and topics --------------------------------------------------------------------------


def listed(client, timestamp, version):
    row = client.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(
        name="orders", partitions=[ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp, max_num_offsets=5)])]),
        version).topics[0].partitions[0]
    assert not row.error_code
    return row


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_list_offsets_answers(client, version):
    now = int(time.time() * 1000)
    produced(client, seglog.build_batch([(b"k", b"a", (), now - 2000), (b"k", b"b", (), now - 1000)]))
    if version == 0:
        assert listed(client, -1, 0).old_style_offsets == [2, 0]
        assert listed(client, -2, 0).old_style_offsets == [0]
    else:
        assert [listed(client, when, version).offset for when in (-1, -2, now - 1500, now)] == [2, 0, 1, -1]


def test_topics_are_made_found_by_their_id_and_deleted(client):
    topic = CreateTopicsRequest.CreatableTopic(
        name="made", num_partitions=2, replication_factor=1,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="1000")])
    row = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert (row.error_code, row.num_partitions) == (0, 2)
    assert {"retention.ms": "1000"}.items() <= {config.name: config.value for config in row.configs}.items()
    again = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert again.error_code == Errors.TOPIC_ALREADY_EXISTS
    asked = [MetadataRequest.MetadataRequestTopic(topic_id=row.topic_id, name=None)]
    found = client.ask(MetadataRequest(topics=asked), 12).topics[0]
    assert (found.name, len(found.partitions)) == ("made", 2)
    gone = client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="made")]), 6).responses[0]
    assert gone.error_code == 0
    assert [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics] == ["orders"]


@pytest.mark.parametrize(("asked", "error"), [
    ({"num_partitions": 0}, Errors.INVALID_PARTITIONS),
    ({"num_partitions": 2**31 - 1}, Errors.POLICY_VIOLATION),
    ({"replication_factor": 3}, Errors.INVALID_REPLICATION_FACTOR),
    ({"name": "no/name"}, Errors.INVALID_TOPIC_EXCEPTION),
    ({"name": "orders", "num_partitions": 3}, Errors.TOPIC_ALREADY_EXISTS),
    ({"configs": [CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]}, Errors.INVALID_CONFIG),
])
def test_a_topic_that_cannot_be_made_is_refused(client, asked, error):
    topic = CreateTopicsRequest.CreatableTopic(
        **{"name": "made", "num_partitions": 1, "replication_factor": 1, **asked})
    row = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0]
    assert Errors(row.error_code) == error


def described(client, topic):
    request = DescribeConfigsRequest
    row = client.ask(request(resources=[request.DescribeConfigsResource(resource_type=2, resource_name=topic)]), 4)
    assert row.results[0].error_code == 0
    return {config.name: config for config in row.results[0].configs}


def altered(client, topic, settings):
    request = AlterConfigsRequest
    row = client.ask(request(resources=[request.AlterConfigsResource(
        resource_type=2, resource_name=topic,
        configs=[request.AlterableConfig(name=name, value=value) for name, value in settings.items()])]), 2)
    return Errors(row.responses[0].error_code), row.responses[0].error_message


def test_settings_that_are_read_and_written_back_are_taken(served, client):
    """As older tools change one of them: librdkafka's tests do it."""
    shown = described(client, "orders")
    assert [name for name, config in shown.items() if config.read_only] == ["seglog.message.dialect"]
    settings = {name: config.value for name, config in shown.items() if config.value is not None}
    assert altered(client, "orders", {**settings, "retention.ms": "1000"}) == (Errors.NONE, None)
    again = {name: config.value for name, config in described(client, "orders").items() if config.value is not None}
    assert again == {**settings, "retention.ms": "1000"}
    error, said = altered(client, "orders", {**settings, "seglog.message.dialect": "tagged"})
    assert (error, said) == (
        Errors.INVALID_CONFIG, "only a conversion can change seglog.message.dialect: seglog convert --to")
    assert served.log("orders").config.retention_ms == 1000


def test_settings_of_a_topic_of_messages_with_tags_are_replaced_but_for_what_it_is(in_memory):
    with seglog.open(in_memory / "orders-0", config={"seglog.message.dialect": "tagged"}):
        pass
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        for settings in ({"retention.ms": "1000"}, {"seglog.message.dialect": "tagged"}, {}):
            assert altered(client, "orders", settings) == (Errors.NONE, None)
            assert server.log("orders").settings["seglog.message.dialect"].value == "tagged"
            assert server.log("orders").settings["retention.ms"].source == (
                "kept" if "retention.ms" in settings else "default")
        assert altered(client, "orders", {"seglog.message.dialect": "kafka"})[0] == Errors.INVALID_CONFIG


def refused_rows(served, client, version, **config):
    """Of five records: without a key are 1 and 3, and 0 and 3 have a time of long ago."""
    served.create_topic("refusing", 1, config)
    now, long_ago = int(time.time() * 1000), 1_000_000_000_000
    records = [(b"k" if n not in (1, 3) else None, b"v", (), long_ago if n in (0, 3) else now) for n in range(5)]
    row = produced(client, seglog.build_batch(records, codec="gzip"), version, topic="refusing")
    assert served.log("refusing").log_end_offset == 0
    return Errors(row.error_code), [(one.batch_index, one.batch_index_error_message) for one in row.record_errors]


@pytest.mark.parametrize("version", [7, 8, 11])
def test_records_that_are_the_reason_of_a_refusal_are_named(served, client, version):
    error, rows = refused_rows(served, client, version, **{"cleanup.policy": "compact"})
    assert error == Errors.INVALID_RECORD
    assert rows == ([] if version == 7 else [
        (number, f"record {number} has no key, and refusing-0 is compacted") for number in (1, 3)])


@pytest.mark.parametrize("version", [7, 8])
def test_a_time_among_the_reasons_is_the_one_of_the_batch(served, client, version):
    error, rows = refused_rows(
        served, client, version, **{"cleanup.policy": "compact", "message.timestamp.before.max.ms": 1000})
    assert error == Errors.INVALID_TIMESTAMP
    assert [number for number, _ in rows] == ([] if version == 7 else [0, 1, 3])
    if version == 8:
        assert "record 0 has timestamp 1000000000000; refusing-0 accepts " in rows[0][1]


def test_a_batch_that_is_refused_as_a_whole_names_no_record(served, client):
    served.create_topic("refusing", 1, {"cleanup.policy": "compact"})
    for count in (9_999, 10_001):
        many = seglog.build_batch([(None, b"v")] * count, codec="gzip")
        row = produced(client, many, topic="refusing")
        assert Errors(row.error_code) == Errors.INVALID_RECORD
        assert len(row.record_errors) == (count if count < 10_000 else 0)
    given = bytearray(seglog.build_batch([(None, b"v")] * 3))
    given[57:61] = struct.pack(">i", 4)         # more records than there are: its checksum is wrong, too
    row = produced(client, bytes(given), topic="refusing")
    assert (Errors(row.error_code), row.record_errors) == (Errors.CORRUPT_MESSAGE, [])


@pytest.mark.parametrize(("magic", "version"), [(1, 2), (2, 7), (2, 11)])
def test_a_refused_batch_of_an_unknown_codec_is_told_as_refused(served, client, magic, version):
    """Its records cannot be read, and that failed the whole request: partitions whose batches were appended, too."""
    stamped_and_of_codec_5 = 8 | 5
    raw = (
        plain.batch_v2(bytes(20), attributes=stamped_and_of_codec_5) if magic == 2
        else plain.message(1, b"k", b"v", attributes=stamped_and_of_codec_5, timestamp=5))
    row = produced(client, raw, version)
    assert Errors(row.error_code) == Errors.INVALID_TIMESTAMP
    assert version < 8 or "LogAppendTime" in row.error_message
    assert not row.record_errors


def test_records_of_a_large_wrapper_are_not_looked_at_one_by_one(served, client):
    """Its header does not tell how many there are, and each one is some work for the loop."""
    served.create_topic("refusing", 1, {"cleanup.policy": "compact", "message.timestamp.before.max.ms": 1000})
    now = int(time.time() * 1000)
    for count, error in (9_999, Errors.INVALID_TIMESTAMP), (10_001, Errors.INVALID_RECORD):
        messages = [(None, b"v", (), now), (b"k", b"v", (), 1_000_000_000_000), *[(b"k", b"", (), now)] * (count - 2)]
        row = produced(client, seglog.build_batch(messages, magic=1, codec="gzip"), 2, topic="refusing")
        assert Errors(row.error_code) == error


def test_a_name_is_checked_while_other_topics_are_made_and_deleted(served, client):
    topics, interval_s = served._server.topics._topics, sys.getswitchinterval()
    topics.update({f"other{n}": ServedTopic(f"other{n}", ZERO_ID, 0) for n in range(3000)})

    def make_and_delete():
        with WireClient(served) as another:
            for _ in range(30):
                served.create_topic("made")
                another.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="made")]), 6)

    topic = CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    thread = threading.Thread(target=make_and_delete)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        errors = set()
        while thread.is_alive():
            answer = client.ask(CreateTopicsRequest(topics=[topic], validate_only=True), 7)
            errors.add(answer.topics[0].error_code)
    finally:
        sys.setswitchinterval(interval_s)
        thread.join()
    assert errors == {0}


def test_a_topic_that_is_deleted_before_it_is_widened_is_told_as_unknown(served, client, monkeypatch):
    deleting, goes_on, delete, widen = threading.Event(), threading.Event(), Topics._delete_waiting, Topics.widen
    served.create_topic("made")

    def held(topics, waiting):
        deleting.set()
        goes_on.wait(20)
        return delete(topics, waiting)

    def asked(topics, name, partitions):
        goes_on.set()
        return widen(topics, name, partitions)

    monkeypatch.setattr(Topics, "_delete_waiting", held)
    monkeypatch.setattr(Topics, "widen", asked)
    with WireClient(served) as another, ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(
            another.ask, DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="made")]), 6)
        assert deleting.wait(20)
        row = client.ask(CreatePartitionsRequest(topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name="made", count=3, assignments=None)]), 3).results[0]
        assert deleted.result().responses[0].error_code == 0
    assert (row.error_code, row.error_message) == (
        Errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


def test_what_a_request_names_twice_is_refused_and_the_rest_is_not(client):
    part, topic = ListOffsetsRequest.ListOffsetsPartition, CreateTopicsRequest.CreatableTopic
    parts = [part(partition_index=number, timestamp=-1) for number in (1, 0, 1)]
    rows = client.ask(ListOffsetsRequest(replica_id=-1, topics=[
        ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=parts)]), 7).topics[0].partitions
    assert [(row.partition_index, row.error_code) for row in rows] == [
        (1, Errors.INVALID_REQUEST), (0, 0), (1, Errors.INVALID_REQUEST)]
    rows = client.ask(CreateTopicsRequest(topics=[
        topic(name=name, num_partitions=1, replication_factor=1) for name in ("twice", "once", "twice")]), 7).topics
    assert [(row.name, row.error_code) for row in rows] == [("twice", Errors.INVALID_REQUEST), ("once", 0)]


def test_metadata_makes_a_topic_if_the_client_allows_it(client):
    asked = [MetadataRequest.MetadataRequestTopic(name="new")]
    row = client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12).topics[0]
    assert row.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    row = client.ask(MetadataRequest(topics=asked), 1).topics[0]
    assert (row.error_code, row.partitions) == (Errors.LEADER_NOT_AVAILABLE, [])
    wait_for(lambda: len(client.ask(MetadataRequest(topics=asked), 1).topics[0].partitions) == 1)


def test_metadata_is_answered_while_topics_are_being_created_and_each_is_created_once(served, client, monkeypatch):
    """A producer that named a thousand new topics waited until all of them were made, and gave up."""
    goes_on, real, times = threading.Event(), LogDir._create_partitions, []

    def slowly(log_dir, files):
        times.append(len(files))
        goes_on.wait(20)
        real(log_dir, files)

    monkeypatch.setattr(LogDir, "_create_partitions", slowly)
    asked = [MetadataRequest.MetadataRequestTopic(name=f"new-{number}") for number in range(200)]
    for _ in range(3):
        rows = client.ask(MetadataRequest(topics=asked), 12).topics
        assert {row.error_code for row in rows} == {Errors.LEADER_NOT_AVAILABLE}
    wait_for(lambda: times)
    more = MetadataRequest.MetadataRequestTopic(name="more")
    assert client.ask(MetadataRequest(topics=[more]), 12).topics[0].error_code == Errors.LEADER_NOT_AVAILABLE
    assert produced(client, batch(b"meanwhile")).error_code == 0
    goes_on.set()
    wait_for(lambda: not any(row.error_code for row in client.ask(MetadataRequest(topics=[*asked, more]), 12).topics))
    assert times == [200, 1]


def test_a_topic_that_a_client_named_is_ready_for_its_first_records(served, client):
    asked = [MetadataRequest.MetadataRequestTopic(name=f"new-{number}") for number in range(40)]
    client.ask(MetadataRequest(topics=asked), 12)
    topics = served._running().topics
    wait_for(lambda: all((log := topics.open_log(one.name, 0)) and not log._begins_appends for one in asked))
    assert produced(client, batch(b"first"), topic="new-39").error_code == 0


def test_nobody_else_waits_while_the_first_append_to_a_log_waits_for_the_disk(served, client, monkeypatch):
    goes_on, real, times = threading.Event(), CleanPartitions.make_dirty, []

    def slowly(partitions, changes, state):
        times.append(changes)
        assert goes_on.wait(20)
        real(partitions, changes, state)

    monkeypatch.setattr(CleanPartitions, "make_dirty", slowly)
    with WireClient(served) as writer, ThreadPoolExecutor() as pool:
        written = pool.submit(produced, writer, batch(b"first"))
        wait_for(lambda: times)
        client.socket.settimeout(10)
        assert client.ask(MetadataRequest(topics=None), 12).controller_id == 1
        assert not written.done()
        goes_on.set()
        assert written.result().error_code == 0


def test_requests_that_wait_for_the_worker_create_their_topics_together(served, client, monkeypatch):
    goes_on, real, times = threading.Event(), LogDir._create_partitions, []

    def slowly(log_dir, files):
        times.append(sorted({topic for topic, _ in files}))
        goes_on.wait(20)
        real(log_dir, files)

    def create(name):
        with WireClient(served) as another:
            return another.ask(CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
                name=one, num_partitions=2, replication_factor=1) for one in (name, "same", "a.b", "a_b")]), 7).topics

    monkeypatch.setattr(LogDir, "_create_partitions", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(create, "first")
        wait_for(lambda: times)
        others = [pool.submit(create, f"other-{number}") for number in range(3)]
        wait_for(lambda: len(served._running().topics._creating) == 3)
        goes_on.set()
        codes = [[row.error_code for row in made.result()] for made in (first, *others)]
    exists, collides = Errors.TOPIC_ALREADY_EXISTS, Errors.INVALID_TOPIC_EXCEPTION
    assert codes[0] == [0, 0, 0, collides]
    assert codes[1:] == [[0, exists, exists, collides]] * 3
    assert times == [["a.b", "first", "same"], ["other-0", "other-1", "other-2"]]


@pytest.mark.parametrize("acks", [1, -1])
def test_the_time_that_the_log_gives_is_told_to_the_producer(served, client, acks):
    served.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    row = produced(client, batch(b"one"), topic="stamped", acks=acks)
    record, = served.log("stamped").read()
    assert row.log_append_time_ms == record.timestamp > 0
    assert produced(client, batch(b"one"), acks=acks).log_append_time_ms == -1
