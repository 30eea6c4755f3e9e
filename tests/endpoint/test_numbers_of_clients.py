"""What clients can make any number of is bounded by the operator's settings, and the refusal says so."""
import pytest

import seglog
from seglog.endpoint import produce
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.waiting import wait_for
from support.wire_client import WireClient, produce_request

FEW = 3


def ready(client):
    for key_type in (0, 1):
        while client.ask(m.FindCoordinatorRequest(key="g", key_type=key_type), 3).error_code:
            pass
    loading = Errors.COORDINATOR_LOAD_IN_PROGRESS       # as after a restart
    while client.ask(m.DescribeGroupsRequest(groups=["g"]), 5).groups[0].error_code == loading:
        pass


def join(client, group_id, metadata=b"", member_id=""):
    request = m.JoinGroupRequest(
        group_id=group_id, session_timeout_ms=30_000, rebalance_timeout_ms=1000, member_id=member_id,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)])
    return client.ask(request, 3)


def commit(client, group_id, topic="orders", partitions=(0,), metadata=""):
    of = m.OffsetCommitRequest
    return client.ask(of(group_id=group_id, topics=[of.OffsetCommitRequestTopic(name=topic, partitions=[
        of.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata=metadata)
        for number in partitions])]), 8)


def errors(answer):
    return [row.error_code for row in answer.topics[0].partitions]


def create(client, name, partitions):
    of = m.CreateTopicsRequest
    return client.ask(of(topics=[of.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1)]), 7).topics[0]


@pytest.fixture
def client(in_memory, request):
    config = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1, **request.param}
    with seglog.serve(in_memory, topics={"orders": 1}, config=config, fsync="never") as server, \
            WireClient(server) as client:
        yield client


@pytest.mark.parametrize("client", [{"seglog.max.groups": FEW}], indirect=True)
def test_there_are_no_more_groups_than_the_operator_allows(client):
    ready(client)
    assert not join(client, "g0").error_code
    for n in range(1, FEW):
        assert not commit(client, f"g{n}").topics[0].partitions[0].error_code
    assert join(client, "more").error_code == Errors.POLICY_VIOLATION
    assert commit(client, "more").topics[0].partitions[0].error_code == Errors.POLICY_VIOLATION
    assert not commit(client, "g1").topics[0].partitions[0].error_code
    assert not client.ask(m.DeleteGroupsRequest(groups_names=["g1"]), 2).results[0].error_code
    assert not commit(client, "more").topics[0].partitions[0].error_code


@pytest.mark.parametrize("client", [{"seglog.group.members.max.bytes": 10_000}], indirect=True)
def test_the_members_of_all_groups_hold_no_more_than_the_operator_allows(client):
    ready(client)
    first = join(client, "g0", b"x" * 4000)
    assert not first.error_code
    assert not join(client, "g1", b"x" * 2000).error_code
    assert join(client, "g2", b"x" * 4000).error_code == Errors.GROUP_MAX_SIZE_REACHED
    assert not join(client, "g0", b"y" * 4000, first.member_id).error_code      # as much as before
    of = m.SyncGroupRequest
    large = client.ask(of(group_id="g1", generation_id=1, assignments=[
        of.SyncGroupRequestAssignment(member_id="m", assignment=b"x" * 4000)]), 3)
    assert large.error_code == Errors.GROUP_MAX_SIZE_REACHED
    client.ask(m.LeaveGroupRequest(group_id="g0", member_id=first.member_id), 1)
    wait_for(lambda: not join(client, "g2", b"x" * 4000).error_code)


@pytest.mark.parametrize("client", [{"seglog.group.offsets.max.bytes": 10_000}], indirect=True)
def test_the_offsets_of_all_groups_hold_no_more_than_the_operator_allows(client):
    ready(client)
    assert not create(client, "wide", 50).error_code
    told = errors(commit(client, "g", "wide", range(50)))
    count = told.index(Errors.POLICY_VIOLATION)
    assert 10 < count < 30
    assert told == [0] * count + [Errors.POLICY_VIOLATION] * (50 - count)
    # Known ones are committed again, with as much metadata as before.
    assert errors(commit(client, "g", "wide", range(50))) == told
    assert errors(commit(client, "g", "wide", [0], "m" * 4000)) == [Errors.POLICY_VIOLATION]
    assert errors(commit(client, "other")) == [Errors.POLICY_VIOLATION]
    assert join(client, "other").error_code == Errors.POLICY_VIOLATION
    # There is room again when a topic is deleted, with the offsets that it had.
    client.ask(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="wide")]), 6)
    assert errors(commit(client, "other")) == [0]
    assert errors(commit(client, "other", metadata="m" * 4000)) == [0]
    assert errors(commit(client, "more", metadata="m" * 4000)) == [Errors.POLICY_VIOLATION]
    assert not client.ask(m.DeleteGroupsRequest(groups_names=["other"]), 2).results[0].error_code
    assert errors(commit(client, "more", metadata="m" * 4000)) == [0]


def test_offsets_that_were_stored_are_counted_after_a_restart(in_memory):
    config = {"offsets.topic.num.partitions": 1, "seglog.group.offsets.max.bytes": 10_000}
    for expected in [[0], [Errors.POLICY_VIOLATION]]:
        with seglog.serve(in_memory, topics={"orders": 1}, config=config) as server, WireClient(server) as client:
            ready(client)
            assert errors(commit(client, "g", metadata="m" * 4000)) == [0]
            assert errors(commit(client, f"g{len(expected)}{expected[0]}", metadata="m" * 1000)) == expected


@pytest.mark.parametrize("client", [{"seglog.group.offsets.max.bytes": 10_000}], indirect=True)
def test_names_of_groups_count_as_they_are_in_memory(client):
    ready(client)
    assert errors(commit(client, "\N{SNOWMAN WITHOUT SNOW}\N{PACKAGE}" + "x" * 2500)) == [Errors.POLICY_VIOLATION]
    assert errors(commit(client, "x" * 2500)) == [0]


@pytest.mark.parametrize("client", [{"seglog.group.members.max.bytes": 10_000}], indirect=True)
def test_names_of_members_count_to_what_they_hold(client):
    ready(client)
    request = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=1000, group_instance_id="i" * 5000,
        protocol_type="consumer", protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range")])
    assert client.ask(request, 5).error_code == Errors.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("client", [{"seglog.transactions.max.bytes": 3500}], indirect=True)
def test_transactional_ids_hold_no_more_than_the_operator_allows(client):
    ready(client)
    assert not create(client, "wide", 50).error_code

    def init(name):
        return client.ask(m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4)

    def add(name, producer, partitions):
        of = m.AddPartitionsToTxnRequest
        answer = client.ask(of(
            v3_and_below_transactional_id=name, v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[of.AddPartitionsToTxnTopic(name="wide", partitions=partitions)]), 3)
        return {row.partition_error_code for row in answer.results_by_topic_v3_and_below[0].results_by_partition}

    producer = init("t0")
    assert add("t0", producer, list(range(20))) == {0}
    assert add("t0", producer, list(range(10, 40))) == {Errors.POLICY_VIOLATION}
    assert add("t0", producer, list(range(20))) == {0}
    assert init("t1").error_code == Errors.POLICY_VIOLATION
    assert not client.ask(m.EndTxnRequest(
        transactional_id="t0", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        committed=True), 3).error_code
    wait_for(lambda: not init("t1").error_code)
    assert init("t" * 3000).error_code == Errors.POLICY_VIOLATION


@pytest.mark.parametrize("client", [{"seglog.max.transactional.ids": FEW}], indirect=True)
def test_there_are_no_more_transactional_ids_than_the_operator_allows(client):
    ready(client)

    def init(name):
        return client.ask(m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4).error_code

    assert [init(f"t{n}") for n in range(FEW)] == [0] * FEW
    assert init("more") == Errors.POLICY_VIOLATION
    assert init("t0") == 0


@pytest.mark.parametrize("client", [{"seglog.max.partitions": 10, "num.partitions": 3}], indirect=True)
def test_all_topics_have_no_more_partitions_than_the_operator_allows(client):
    assert not create(client, "a", 4).error_code
    refused = create(client, "b", 6)
    assert refused.error_code == Errors.POLICY_VIOLATION
    assert "seglog.max.partitions = 10" in refused.error_message

    def found(name):
        return client.ask(m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True), 12).topics[0]

    wait_for(lambda: not found("c").error_code)         # three more: eight
    assert found("d").error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION

    def widen(count):
        of = m.CreatePartitionsRequest
        return client.ask(of(topics=[of.CreatePartitionsTopic(name="a", count=count, assignments=None)]), 3).results[0]

    assert widen(7).error_code == Errors.POLICY_VIOLATION
    assert not widen(6).error_code
    assert create(client, "e", 1).error_code == Errors.POLICY_VIOLATION
    client.ask(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="c")]), 6)
    assert not create(client, "e", 3).error_code


@pytest.mark.parametrize("client", [{"seglog.max.partition.producers": FEW}], indirect=True)
def test_a_partition_remembers_no_more_producers_than_the_operator_allows(client):
    def produce(producer_id):
        batch = seglog.build_batch([(b"k", b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        return client.ask(produce_request("orders", 0, batch), 9).responses[0].partition_responses[0].error_code

    assert [produce(n) for n in range(FEW)] == [0] * FEW
    assert produce(FEW) == Errors.POLICY_VIOLATION
    assert produce(0) == 0      # the same batch again
    plain = client.ask(produce_request("orders", 0, seglog.build_batch([(b"k", b"v")])), 9)
    assert not plain.responses[0].partition_responses[0].error_code


def mark(client, topic, producer_id, *partitions, epoch=0, commit=False):
    of = m.WriteTxnMarkersRequest
    answer = client.ask(of(markers=[of.WritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=commit,
        topics=[of.WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))])]), 1)
    return [row.error_code for row in answer.markers[0].topics[0].partitions]


@pytest.mark.parametrize("client", [{"seglog.max.partition.producers": FEW}], indirect=True)
def test_markers_make_no_more_producers_than_a_partition_may_remember(client):
    assert [mark(client, "orders", n, 0) for n in range(FEW)] == [[0]] * FEW
    assert mark(client, "orders", FEW, 0) == [Errors.POLICY_VIOLATION]
    assert mark(client, "orders", 0, 0, 0) == [0]       # a known one; and named twice, it gets one marker
    assert mark(client, "orders", 0, 0, epoch=1) == [0]


@pytest.mark.parametrize("client", [{"seglog.max.producers": FEW}], indirect=True)
def test_markers_make_no_more_producers_than_all_partitions_may_remember(client):
    answers = [mark(client, "orders", n, 0)[0] for n in range(4 * FEW)]
    assert 0 < answers.count(0) <= FEW
    assert set(answers) == {0, Errors.POLICY_VIOLATION}


def produce_as(client, partition, producer_id):
    batch = seglog.build_batch([(b"k", b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    return client.ask(produce_request("wide", partition, batch), 9).responses[0].partition_responses[0]


def test_all_partitions_remember_no_more_producers_than_the_operator_allows(in_memory, monkeypatch):
    """Each could have as many as one may: 20 000 partitions, 40 MiB each."""
    monkeypatch.setattr(produce, "_COUNTS_EVERY_S", 0.02)
    with seglog.serve(in_memory, topics={"wide": 9}, config={"seglog.max.producers": FEW}, fsync="never") as server, \
            WireClient(server) as client:
        for n in range(FEW):    # one that comes during a count is counted twice until the next
            wait_for(lambda n=n: produce_as(client, n, n).error_code == 0)
        for partition in (0, FEW):      # one with producers, and one without
            refused = produce_as(client, partition, 7)
            assert refused.error_code == Errors.POLICY_VIOLATION
            assert refused.error_message == "All partitions remember as many producers as they may."
        assert produce_as(client, 0, 0).error_code == 0     # a known one goes on
        plain = client.ask(produce_request("wide", FEW, seglog.build_batch([(b"k", b"v")])), 9)
        assert not plain.responses[0].partition_responses[0].error_code
        client.ask(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="wide")]), 6)
        assert not create(client, "wide", 9).error_code
        wait_for(lambda: produce_as(client, 0, 7).error_code == 0)


def test_a_client_does_not_outrun_the_count_of_producers(in_memory, monkeypatch):
    """It had five seconds for as many as it could send."""
    monkeypatch.setattr(produce, "_COUNTS_EVERY_S", 3600)
    with seglog.serve(in_memory, topics={"wide": 9}, config={"seglog.max.producers": FEW}, fsync="never") as server, \
            WireClient(server) as client:
        answers = [produce_as(client, n % 9, n).error_code for n in range(4 * FEW)]
        assert 0 < answers.count(0) <= FEW
        assert set(answers) == {0, Errors.POLICY_VIOLATION}
