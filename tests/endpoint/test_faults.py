"""Faults that a test of a client plans: each is told where a broker tells it, and to the client that is meant."""
import asyncio
import re
import threading

import pytest

import seglog
from seglog.errors import InvalidArgumentError
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.wire_client import WireClient


def offset_fetch_of(version):
    if version >= 8:
        of = m.OffsetFetchRequest
        return of(groups=[of.OffsetFetchRequestGroup(
            group_id="g", topics=[of.OffsetFetchRequestTopics(name="orders", partition_indexes=[0, 2])])])
    return m.OffsetFetchRequest(group_id="g", topics=[
        m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 2])])


def answered(client, version):
    """The error of the group, and those of its partitions."""
    answer = client.ask(offset_fetch_of(version), version)
    if version >= 8:
        answer, = answer.groups
    return answer.error_code, [part.error_code for topic in answer.topics for part in topic.partitions]


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
def test_an_unstable_offset_is_told_of_its_partition_as_by_a_broker(served, client, version):
    served.fail_next("OffsetFetch", "UNSTABLE_OFFSET_COMMIT")
    assert answered(client, version) == (0, [Errors.UNSTABLE_OFFSET_COMMIT] * 2)


@pytest.mark.parametrize(("version", "of_group", "of_partitions"), [
    (1, 0, [Errors.NOT_COORDINATOR] * 2), (2, Errors.NOT_COORDINATOR, []), (8, Errors.NOT_COORDINATOR, []),
])
def test_an_error_of_the_group_is_told_once(served, client, version, of_group, of_partitions):
    """Before version 2 there is no place for it but the partitions. (OffsetFetchRequest.getErrorResponse)"""
    served.fail_next("OffsetFetch", "NOT_COORDINATOR")
    assert answered(client, version) == (of_group, of_partitions)


def test_a_fetch_of_all_offsets_fails_as_a_whole(served, client):
    """Without a partition there is no other place."""
    served.fail_next("OffsetFetch", "UNSTABLE_OFFSET_COMMIT")
    asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert client.ask(asked, 8).groups[0].error_code == Errors.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize(("error", "of_request"), [
    ("FETCH_SESSION_ID_NOT_FOUND", True), ("INVALID_FETCH_SESSION_EPOCH", True), ("NOT_LEADER_OR_FOLLOWER", False)])
def test_an_error_of_a_fetch_session_is_told_of_the_request(served, client, error, of_request):
    served.fail_next("Fetch", error)
    answer = client.ask(m.FetchRequest(topics=[m.FetchRequest.FetchTopic(
        topic="orders", partitions=[m.FetchRequest.FetchPartition(partition=0)])]), 12)
    parts = [part.error_code for topic in answer.responses for part in topic.partitions]
    assert (answer.error_code, parts) == ((Errors[error], []) if of_request else (0, [Errors[error]]))


@pytest.mark.parametrize(("error", "version", "of_group", "of_members"), [
    ("UNKNOWN_MEMBER_ID", 4, 0, [Errors.UNKNOWN_MEMBER_ID]), ("NOT_COORDINATOR", 4, Errors.NOT_COORDINATOR, []),
    ("UNKNOWN_MEMBER_ID", 2, Errors.UNKNOWN_MEMBER_ID, [])])
def test_an_error_of_a_member_that_leaves_is_told_of_the_member(served, client, error, version, of_group, of_members):
    served.fail_next("LeaveGroup", error)
    asked = m.LeaveGroupRequest(group_id="g", member_id="a") if version < 3 else m.LeaveGroupRequest(
        group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id="a")])
    answer = client.ask(asked, version)
    assert (answer.error_code, [member.error_code for member in answer.members]) == (of_group, of_members)


@pytest.mark.parametrize(("error", "of_group", "of_partitions"), [
    ("GROUP_SUBSCRIBED_TO_TOPIC", 0, [Errors.GROUP_SUBSCRIBED_TO_TOPIC]),
    ("NON_EMPTY_GROUP", Errors.NON_EMPTY_GROUP, []),
])
def test_an_offset_that_may_not_be_deleted_is_told_of_its_partition(served, client, error, of_group, of_partitions):
    served.fail_next("OffsetDelete", error)
    of = m.OffsetDeleteRequest
    answer = client.ask(of(group_id="g", topics=[of.OffsetDeleteRequestTopic(
        name="orders", partitions=[of.OffsetDeleteRequestPartition(partition_index=0)])]), 0)
    parts = [part.error_code for topic in answer.topics for part in topic.partitions]
    assert (answer.error_code, parts) == (of_group, of_partitions)


@pytest.mark.parametrize("topics", [["orders", "new"], None])
def test_metadata_with_an_error_still_names_the_broker(served, client, topics):
    """A client that got no broker would have nobody to ask again."""
    served.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    asked = m.MetadataRequest(topics=topics and [
        m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics])
    answer = client.ask(asked, 12)
    assert [(one.host, one.port) for one in answer.brokers] == [(served.host, served.port)]
    assert [(row.name, row.error_code, row.partitions) for row in answer.topics] == [
        (name, Errors.LEADER_NOT_AVAILABLE, []) for name in topics or ["orders"]]
    assert served.log("new") is None    # not carried out


def test_a_fault_for_one_client_leaves_the_others_alone_and_tells_that_it_happened(served):
    fault = served.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=2, client_id="mine")
    assert fault.happened == 0
    with WireClient(served, client_id="of another test") as other, WireClient(served, client_id="mine") as mine:
        asked = m.MetadataRequest(topics=None)
        assert not other.ask(asked, 12).topics[0].error_code
        assert mine.ask(asked, 12).topics[0].error_code == Errors.LEADER_NOT_AVAILABLE
        assert fault.happened == 1
        assert not other.ask(asked, 12).topics[0].error_code
        assert mine.ask(asked, 12).topics[0].error_code
        assert not mine.ask(asked, 12).topics[0].error_code
    assert fault.happened == 2
    assert repr(fault) == "<PlannedFault of METADATA: happened 2 of 2 times>"


def test_faults_of_an_api_happen_in_the_order_in_which_they_were_planned(served, client):
    first = served.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    served.fail_next("Metadata", "UNKNOWN_SERVER_ERROR", client_id="nobody")
    last = served.fail_next("Metadata", "INVALID_TOPIC_EXCEPTION")
    seen = [client.ask(m.MetadataRequest(topics=None), 12).topics[0].error_code for _ in range(3)]
    assert seen == [Errors.LEADER_NOT_AVAILABLE, Errors.INVALID_TOPIC_EXCEPTION, 0]
    assert (first.happened, last.happened) == (1, 1)


@pytest.mark.parametrize(("api", "error", "meant"), [
    ("Produce", "MSG_SIZE_TOO_LARGE", "MESSAGE_TOO_LARGE"),             # librdkafka's name
    ("Produce", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER"),  # that of Kafka before 2.6
    ("Produce", "NotLeaderOrFollowerException", "NOT_LEADER_OR_FOLLOWER"),
    ("Produce", "LEADER_NOT_AVAILABL", "LEADER_NOT_AVAILABLE"),
    ("OffsetCommits", "NOT_COORDINATOR", "OffsetCommit"),
    ("Consumer", "NOT_COORDINATOR", "ConsumerGroup"),
    ("GroupCoordinator", "NOT_COORDINATOR", "FindCoordinator"),
])
def test_a_name_that_kafka_does_not_have_is_refused_with_the_one_that_was_meant(served, api, error, meant):
    with pytest.raises(InvalidArgumentError) as caught:
        served.fail_next(api, error)
    assert "did you mean" in caught.value.hint
    assert meant in caught.value.hint


def test_an_error_may_be_its_code(served, client):
    served.fail_next("OffsetFetch", int(Errors.NOT_COORDINATOR))
    assert answered(client, 2) == (Errors.NOT_COORDINATOR, [])


def test_the_log_of_a_partition_that_is_no_number_is_refused(served):
    with pytest.raises(InvalidArgumentError, match="a partition is a number, not '0'"):
        served.log("orders", "0")


def test_no_error_is_no_fault(served):
    with pytest.raises(InvalidArgumentError, match="NONE is no error"):
        served.fail_next("Produce", "NONE")


@pytest.mark.parametrize("client_id", [b"mine", 3])
def test_a_client_id_is_text(served, client_id):
    with pytest.raises(InvalidArgumentError, match="client_id must be text"):
        served.drop_next("Produce", client_id=client_id)


# --- a server that does not run, and one in a loop ------------------------------------------------


USES = {
    "create_topic": lambda server: server.create_topic("x"),
    "log": lambda server: server.log("t"),
    "fail_next": lambda server: server.fail_next("Fetch", "UNKNOWN_SERVER_ERROR"),
    "clear_faults": lambda server: server.clear_faults(),
    "bootstrap_servers": lambda server: server.bootstrap_servers,
    "port": lambda server: server.port,
    "path": lambda server: server.path,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_closed_server_says_so(in_memory, use, in_loop):
    async def closed():
        async with seglog.serve(in_memory / "data", topics={"t": 1}) as server:
            pass
        return server

    if in_loop:
        server = asyncio.run(closed())
    else:
        with seglog.serve(in_memory / "data", topics={"t": 1}) as server:
            pass
    with pytest.raises(InvalidArgumentError, match="the server is closed"):
        USES[use](server)
    assert repr(server) == "<LocalServer closed>"


def test_in_a_loop_another_thread_creates_topics(in_memory):
    async def work():
        async with seglog.serve(in_memory / "data") as server:
            with pytest.raises(InvalidArgumentError) as caught:
                server.create_topic("orders")
            assert "await asyncio.to_thread(server.create_topic, 'orders')" in caught.value.hint
            await asyncio.to_thread(server.create_topic, "orders", 2)
            return server.log("orders", 1) is not None

    assert asyncio.run(work())


def test_create_topic_does_not_wait_for_a_loop_that_stands_still(in_memory):
    """As in a test whose fixture runs the loop, and that calls the server between two runs."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(seglog.serve(in_memory / "data").__aenter__())
    told = []

    def create():
        try:
            server.create_topic("orders")
        except InvalidArgumentError as error:
            told.append(error)

    thread = threading.Thread(target=create, daemon=True)
    thread.start()
    thread.join(10)
    is_waiting = thread.is_alive()
    loop.run_until_complete(server.__aexit__(None, None, None))
    loop.close()
    assert not is_waiting
    assert "does not run" in told[0].what
    assert "create_topic, 'orders'" in told[0].hint


def test_create_topic_in_a_thread_ends_when_the_server_does(in_memory):
    """Neither waits for the other forever."""
    with seglog.serve(in_memory / "data") as server:
        ended = []

        def create():
            try:
                for number in range(1_000_000):
                    server.create_topic(f"t{number}")
            except seglog.SeglogError as error:
                ended.append(error)

        thread = threading.Thread(target=create, daemon=True)
        thread.start()
        while server.log("t0") is None:
            pass
    thread.join(60)
    assert not thread.is_alive()
    assert re.search("server (is closed|was stopped)", str(ended[0]))
