"""Topics that are not the clients': the metadata log of KRaft is hidden, Kafka's internal topics are read only."""
import pytest

import seglog
from seglog.errors import InvalidArgumentError
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.wire_client import WireClient, fetch_request, produce_request

METADATA = "__cluster_metadata"
BATCH = seglog.build_batch([(b"k", b"credentials")])


@pytest.fixture
def of_a_broker(in_memory):
    """A log dir of a KRaft broker, with the controller's log beside a topic."""
    with seglog.open_dir(in_memory / "data") as log_dir:
        for topic in (METADATA, "orders", "__share_group_state"):
            log_dir.log(topic, 0).append(b"credentials")
    (in_memory / f"data/{METADATA}-0/quorum-state").write_text("{}")
    return in_memory / "data"


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def answers_about(client, name):
    """What each API that names a topic says of it, the answer that shows it last."""
    def row_of(answer):
        return answer.topics[0].partitions[0]

    metadata = m.MetadataRequest
    yield "Metadata", client.ask(metadata(topics=[metadata.MetadataRequestTopic(name=name)]), 12).topics[0].error_code
    yield "Produce", client.ask(
        produce_request(name, 0, BATCH), 9).responses[0].partition_responses[0].error_code
    yield "Fetch", client.ask(fetch_request(name, 0), 12).responses[0].partitions[0].error_code
    of = m.ListOffsetsRequest
    yield "ListOffsets", row_of(client.ask(of(topics=[of.ListOffsetsTopic(
        name=name, partitions=[of.ListOffsetsPartition(timestamp=-1)])]), 7)).error_code
    of = m.OffsetForLeaderEpochRequest
    yield "OffsetForLeaderEpoch", row_of(client.ask(of(topics=[of.OffsetForLeaderTopic(
        topic=name, partitions=[of.OffsetForLeaderPartition(leader_epoch=0)])]), 4)).error_code
    of = m.DeleteRecordsRequest
    yield "DeleteRecords", row_of(client.ask(of(topics=[of.DeleteRecordsTopic(
        name=name, partitions=[of.DeleteRecordsPartition(offset=-1)])]), 2)).error_code
    of = m.CreatePartitionsRequest
    yield "CreatePartitions", client.ask(
        of(topics=[of.CreatePartitionsTopic(name=name, count=4)]), 3).results[0].error_code
    of = m.DescribeConfigsRequest
    yield "DescribeConfigs", client.ask(
        of(resources=[of.DescribeConfigsResource(resource_type=2, resource_name=name)]), 4).results[0].error_code
    of = m.AlterConfigsRequest
    yield "AlterConfigs", client.ask(of(resources=[of.AlterConfigsResource(
        resource_type=2, resource_name=name, configs=[of.AlterableConfig(name="retention.ms", value="1")])]), 2,
    ).responses[0].error_code
    of = m.IncrementalAlterConfigsRequest
    yield "IncrementalAlterConfigs", client.ask(of(resources=[of.AlterConfigsResource(
        resource_type=2, resource_name=name, configs=[of.AlterableConfig(name="retention.ms", value="1")])]), 1,
    ).responses[0].error_code
    of = m.DescribeProducersRequest
    yield "DescribeProducers", row_of(client.ask(of(topics=[of.TopicRequest(
        name=name, partition_indexes=[0])]), 0)).error_code
    of = m.DeleteTopicsRequest
    yield "DeleteTopics", client.ask(of(topics=[of.DeleteTopicState(name=name)]), 6).responses[0].error_code


def test_the_metadata_log_is_hidden_and_stays_as_it_is(of_a_broker):
    before = contents(of_a_broker / f"{METADATA}-0")
    with seglog.serve(of_a_broker) as server, WireClient(server) as client:
        names = [topic.name for topic in client.ask(m.MetadataRequest(topics=None), 12).topics]
        assert names == ["__share_group_state", "orders"]
        said = dict(answers_about(client, METADATA))
        assert set(said.values()) == {Errors.UNKNOWN_TOPIC_OR_PARTITION}, said
        dirs = client.ask(m.DescribeLogDirsRequest(topics=None), 4).results[0].topics
        assert METADATA not in {topic.name for topic in dirs}
        assert server.log(METADATA, 0) is None
    assert contents(of_a_broker / f"{METADATA}-0") == before


def test_no_client_creates_the_metadata_log(served, client):
    of = m.CreateTopicsRequest
    for validate_only in (False, True):
        row = client.ask(of(topics=[of.CreatableTopic(name=METADATA, num_partitions=1, replication_factor=1)],
                            validate_only=validate_only), 7).topics[0]
        assert (row.error_code, row.error_message) == (
            Errors.INVALID_REQUEST, f"Creation of internal topic {METADATA} is prohibited.")
    of = m.MetadataRequest
    row = client.ask(of(topics=[of.MetadataRequestTopic(name=METADATA)], allow_auto_topic_creation=True), 12).topics[0]
    assert row.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(InvalidArgumentError, match="prohibited"):
        served.create_topic(METADATA)
    assert not list(served.path.glob(f"{METADATA}*"))


def test_internal_topics_are_listed_as_internal_and_take_no_records_of_clients(of_a_broker):
    with seglog.serve(of_a_broker) as server, WireClient(server) as client:
        for key_type in (0, 1):
            coordinator = m.FindCoordinatorRequest(key="mine", key_type=key_type)
            client.ask(coordinator, 3)
        flags = {topic.name: topic.is_internal for topic in client.ask(m.MetadataRequest(topics=None), 12).topics}
        internal = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
        assert flags == {"orders": False, **dict.fromkeys(internal, True)}
        for name in internal:
            row = client.ask(produce_request(name, 0, BATCH), 9).responses[0].partition_responses[0]
            assert row.error_code == Errors.INVALID_TOPIC_EXCEPTION


def test_no_client_takes_an_internal_topic_into_its_transaction(served, client):
    client.ask(m.FindCoordinatorRequest(key="t", key_type=1), 3)
    client.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3)
    of = m.InitProducerIdRequest
    def ready():
        return client.ask(of(transactional_id="t", transaction_timeout_ms=10_000), 4)
    made = ready()
    while made.error_code:
        made = ready()
    of = m.AddPartitionsToTxnRequest
    topic = of.AddPartitionsToTxnTopic
    answer = client.ask(of(
        v3_and_below_transactional_id="t", v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[topic(name="__consumer_offsets", partitions=[0]), topic(name="orders", partitions=[0])],
    ), 3)
    errors = {row.name: row.results_by_partition[0].partition_error_code
              for row in answer.results_by_topic_v3_and_below}
    assert errors == {"__consumer_offsets": Errors.TOPIC_AUTHORIZATION_FAILED, "orders": Errors.OPERATION_NOT_ATTEMPTED}
