"""Topics that clients name by ids (Produce 13, Fetch 13, OffsetCommit 10), also those of directories without one."""
import uuid

import pytest

import seglog
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
