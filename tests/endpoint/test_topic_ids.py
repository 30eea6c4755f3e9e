"""Topics that clients name by ids (Produce 13, Fetch 13, OffsetCommit 10), also those of directories without one."""
import shutil
import uuid

import pytest

import seglog
from seglog.endpoint.topic_creation import Creation, mark
from seglog.fs.files import OsFileSystem
from seglog.state.partition_metadata import PartitionMetadata
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.conversation import batch, fetch, produce
from support.waiting import wait_for
from support.wire_client import WireClient


@pytest.fixture
def without_id(in_memory):
    """A log dir with a topic that `seglog.open` made."""
    with seglog.open(in_memory / "orders-0") as log:
        log.append(b"first")
    return in_memory


def id_of(client, topic):
    M = m.MetadataRequest
    row = client.ask(M(topics=[M.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False), 13).topics[0]
    return row.topic_id


def produced(client, topic_id, partition=0):
    request = produce("", batch(), partition=partition)
    request.topic_data[0].topic_id = topic_id
    row = client.ask(request, 13).responses[0]
    assert row.topic_id == topic_id
    return Errors(row.partition_responses[0].error_code)


def end_of(client, topic_id):
    part = client.ask(fetch("", 0, topic_id=topic_id), 18).responses[0].partitions[0]
    return Errors(part.error_code) or part.high_watermark


def committed(client, topic_id):
    """Commit 1, and fetch it again."""
    C, F = m.OffsetCommitRequest, m.OffsetFetchRequest
    part = C.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit = C(group_id="g", topics=[C.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[part])])
    wait_for(lambda: client.ask(commit, 10).topics[0].partitions[0].error_code == 0)
    answers = [client.ask(F(groups=[F.OffsetFetchRequestGroup(group_id="g", topics=topics)]), 10) for topics in (
        None, [F.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])])]
    return [(row.topic_id, row.partitions[0].committed_offset) for one in answers for row in one.groups[0].topics]


def test_a_topic_without_an_id_is_found_by_one_that_stays(without_id):
    with seglog.serve(without_id) as server, WireClient(server) as client:
        topic_id = id_of(client, "orders")
        assert topic_id != bytes(16)
        assert uuid.UUID(bytes=topic_id).version == 5     # brokers choose those of version 4
        assert produced(client, topic_id) is Errors.NONE
        assert end_of(client, topic_id) == 4
        client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        assert committed(client, topic_id) == [(topic_id, 1)] * 2
    with seglog.serve(without_id) as server, WireClient(server) as client:
        assert end_of(client, topic_id) == 4
        assert id_of(client, "orders") == topic_id


def test_an_id_that_was_made_is_not_written(without_id):
    """A broker that takes the directory over refuses an id that is not its own."""
    with seglog.serve(without_id) as server, WireClient(server) as client:
        topic_id = id_of(client, "orders")
        P = m.CreatePartitionsRequest
        wider = P.CreatePartitionsTopic(name="orders", count=2, assignments=None)
        grown = client.ask(P(topics=[wider], timeout_ms=10_000), 3)
        assert grown.results[0].error_code == 0
        assert produced(client, topic_id, partition=1) is Errors.NONE
    assert sorted(path.parent.name for path in without_id.rglob("*.log")) == ["orders-0", "orders-1"]
    assert list(without_id.rglob("partition.metadata")) == []


def test_ids_of_a_deleted_topic_do_not_lead_to_the_next_one_of_its_name(without_id):
    with seglog.serve(without_id) as server, WireClient(server) as client:
        D, C = m.DeleteTopicsRequest, m.CreateTopicsRequest
        before = []
        for _ in range(2):
            topic_id = id_of(client, "orders")
            gone = client.ask(D(topics=[D.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=10_000), 6)
            assert (gone.responses[0].error_code, gone.responses[0].topic_id) == (0, topic_id)
            before.append(topic_id)
            made = client.ask(C(timeout_ms=10_000, topics=[
                C.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)]), 7)
            assert made.topics[0].error_code == 0
            assert [produced(client, old) for old in before] == [Errors.UNKNOWN_TOPIC_ID] * len(before)
            assert end_of(client, before[-1]) is Errors.UNKNOWN_TOPIC_ID
            assert made.topics[0].topic_id == id_of(client, "orders")
        assert end_of(client, id_of(client, "orders")) == 0


def test_a_batch_for_an_unknown_id_closes_the_connection_of_a_client_that_expects_no_answer(without_id):
    with seglog.serve(without_id) as server, WireClient(server) as client:
        request = produce("", batch(), acks=0)
        request.topic_data[0].topic_id = bytes(range(16))
        client.send(request, 13)
        with pytest.raises(ConnectionError):
            client.receive_frame()


@pytest.fixture
def with_id(in_memory):
    """A log dir with the topic `orders`, as a server made it, with three records."""
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        assert produced(client, id_of(client, "orders")) == 0
    return in_memory


def is_deleted(client, topic_id):
    of = m.DeleteTopicsRequest
    return client.ask(of(topics=[of.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=60_000), 6).responses[0]


def test_a_directory_that_was_copied_is_neither_read_nor_deleted_for_the_other(with_id):
    """`cp -r orders-0 copy-0`: both say that they have the id of `orders`."""
    shutil.copytree(with_id / "orders-0", with_id / "copy-0")
    with seglog.open(with_id / "copy-0") as log:
        log.append_many([(None, b"value")] * 4)
    with seglog.serve(with_id) as server, WireClient(server) as client:
        orders, copy = id_of(client, "orders"), id_of(client, "copy")
        assert orders != copy
        assert (end_of(client, orders), end_of(client, copy)) == (3, 7)
        assert is_deleted(client, copy).name == "copy"
        wait_for(lambda: not (with_id / "copy-0").exists())
        assert end_of(client, orders) == 3
    assert (with_id / "orders-0").is_dir()


def test_an_id_that_is_made_for_another_name_leads_to_that_name(with_id, in_memory):
    """Somebody who may write one topic's directory does not get the requests for another."""
    seglog.open(in_memory / "plain-0").close()
    with seglog.serve(with_id) as server, WireClient(server) as client:
        plain = id_of(client, "plain")
    (with_id / "orders-0/partition.metadata").write_bytes(PartitionMetadata(uuid.UUID(bytes=plain)).to_bytes())
    with seglog.serve(with_id) as server, WireClient(server) as client:
        assert id_of(client, "plain") == plain
        assert (end_of(client, plain), end_of(client, id_of(client, "orders"))) == (0, 3)


def test_a_note_of_a_creation_gives_no_topic_the_id_of_another(with_id):
    seglog.open(with_id / "plain-0").close()
    orders = PartitionMetadata.read(with_id / "orders-0/partition.metadata").topic_id
    mark(OsFileSystem(), with_id, [Creation("plain", orders.bytes, 0, 2, {})])
    with seglog.serve(with_id) as server, WireClient(server) as client:
        assert id_of(client, "orders") == orders.bytes
        assert id_of(client, "plain") != orders.bytes
        assert end_of(client, orders.bytes) == 3
