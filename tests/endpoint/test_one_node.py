"""What a single node says to an administrator of a cluster, where the golden conversation with a broker cannot tell."""
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

import seglog
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.wire_client import WireClient


def asked(client, *names, limit=2000, cursor=None):
    of = m.DescribeTopicPartitionsRequest
    return client.ask(of(
        topics=[of.TopicRequest(name=name) for name in names], response_partition_limit=limit,
        cursor=None if cursor is None else of.Cursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index)), 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 2000, 10**6])
def test_a_client_that_goes_on_at_the_cursor_is_told_every_partition_once(in_memory, limit):
    topics = {"a": 5, "b": 1, "c": 3, "d": 1}
    with seglog.serve(in_memory / "data", topics=topics, fsync="never") as server, WireClient(server) as client:
        for names in ((), ("d", "a", "c")):
            told, cursor, answers = [], None, 0
            while answers == 0 or cursor is not None:
                answer = asked(client, *names, limit=limit, cursor=cursor)
                told += [(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions]
                assert sum(len(topic.partitions) for topic in answer.topics) <= limit
                cursor, answers = answer.next_cursor, answers + 1
            assert told == [(name, number) for name in sorted(names or topics) for number in range(topics[name])]


def test_an_answer_has_no_more_partitions_than_a_brokers(in_memory):
    with seglog.serve(in_memory / "data", topics={"wide": 2001}, fsync="never") as server, WireClient(server) as client:
        answer = asked(client, limit=2**31 - 1)
        assert len(answer.topics[0].partitions) == 2000
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("wide", 2000)


def test_the_metadata_log_of_a_broker_has_no_quorum_which_no_client_asks_for_again_and_is_told_to_nobody(in_memory):
    (in_memory / "data/__cluster_metadata-0").mkdir(parents=True)
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        of = m.DescribeQuorumRequest
        answer = client.ask(of(topics=[of.TopicData(
            topic_name="__cluster_metadata", partitions=[of.PartitionData(partition_index=0)])]), 2)
        # Kafka's Admin takes UNKNOWN_TOPIC_OR_PARTITION for a reason to ask again, until its call times out.
        assert answer.topics[0].partitions[0].error_code == Errors.UNSUPPORTED_VERSION
        assert asked(client).topics == []
        assert asked(client, "__cluster_metadata").topics[0].error_code


def test_the_settings_of_the_broker_are_told_by_its_names(in_memory):
    config = {"log.retention.hours": 1, "num.partitions": 3, "offsets.topic.num.partitions": 7,
              "log.cleaner.backoff.ms": 100, "log.segment.bytes": 1 << 20}
    with seglog.serve(in_memory / "data", config=config) as server:
        client = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        (found,) = client.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        shown = found.result(30)
    of_server = {name: (entry.value, entry.is_default) for name, entry in shown.items()}
    assert {
        "log.retention.ms": ("3600000", False), "num.partitions": ("3", False), "log.segment.bytes": ("1048576", False),
        "offsets.topic.num.partitions": ("7", False), "log.cleaner.backoff.ms": ("100", False),
        "message.max.bytes": ("1048588", True), "group.max.size": ("5000", True),
        "log.cleaner.enable": ("true", True), "compression.type": ("producer", True), "node.id": ("1", True),
    }.items() <= of_server.items()
    assert not {"retention.ms", "segment.bytes", "max.message.bytes"} & set(of_server)
    assert all(entry.is_read_only for entry in shown.values())


def test_a_quota_is_refused_and_moves_to_the_only_log_dir_are_done(in_memory):
    with seglog.serve(in_memory / "data", topics={"orders": 1}) as server, WireClient(server) as client:
        of = m.AlterClientQuotasRequest
        answer = client.ask(of(entries=[of.EntryData(
            entity=[of.EntityData(entity_type="user", entity_name="alice")],
            ops=[of.OpData(key="producer_byte_rate", value=1e6)])]), 1)
        assert answer.entries[0].error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
        assert answer.entries[0].entity[0].entity_name == "alice"
        of = m.AlterReplicaLogDirsRequest
        moves = of(dirs=[of.AlterReplicaLogDir(path=str(server.path), topics=[
            of.AlterReplicaLogDirTopic(name=name, partitions=[0, 1]) for name in ("orders", "nowhere")])])
        found = {(row.topic_name, part.partition_index): part.error_code
                 for row in client.ask(moves, 2).results for part in row.partitions}
        assert found == {
            ("orders", 0): 0, ("orders", 1): Errors.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): Errors.UNKNOWN_TOPIC_OR_PARTITION, ("nowhere", 1): Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_only_node_stays(in_memory):
    with seglog.serve(in_memory / "data", config={"node.id": 5}) as server, WireClient(server) as client:
        answers = [client.ask(m.UnregisterBrokerRequest(broker_id=node), 0).error_code for node in (5, 1)]
        assert answers == [Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.BROKER_ID_NOT_REGISTERED]


def test_clients_see_which_features_there_are_and_that_the_highest_level_of_each_counts(in_memory):
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        answer = client.ask(m.ApiVersionsRequest(client_software_name="wire", client_software_version="1"), 4)
    levels = {"group.version": 1, "transaction.version": 2}
    assert {one.name: one.max_version for one in answer.supported_features} == levels
    assert {one.name: one.max_version_level for one in answer.finalized_features} == levels


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_change_of_features_is_refused_where_clients_of_every_age_look(in_memory, version):
    """A broker of 3.9.1 tells it of each feature, one of 4.x once for all (asked 4.1.1): sarama looks there only."""
    of = m.UpdateFeaturesRequest
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        answer = client.ask(
            of(feature_updates=[of.FeatureUpdateKey(feature="wire.version", max_version_level=1)]), version)
        assert answer.error_code == Errors.INVALID_UPDATE_VERSION
        assert answer.error_message
        if version < 2:
            assert [(row.feature, row.error_code) for row in answer.results] == [
                ("wire.version", Errors.INVALID_UPDATE_VERSION)]
        assert client.ask(of(feature_updates=[]), version).error_code == 0


def test_a_group_has_the_settings_of_the_server(in_memory):
    config = {"group.consumer.session.timeout.ms": 30_000}
    with seglog.serve(in_memory / "data", config=config) as server, WireClient(server) as client:
        of = m.DescribeConfigsRequest
        row, = client.ask(of(include_synonyms=True, resources=[
            of.DescribeConfigsResource(resource_type=32, resource_name="g")]), 4).results
        assert [(one.name, one.value, [(known.name, known.value, known.source) for known in one.synonyms])
                for one in row.configs] == [
            ("consumer.session.timeout.ms", "30000", [
                ("group.consumer.session.timeout.ms", "30000", 4), ("group.consumer.session.timeout.ms", "45000", 5)]),
            ("consumer.heartbeat.interval.ms", "5000", [("group.consumer.heartbeat.interval.ms", "5000", 5)])]


def test_the_metrics_of_clients_have_no_settings_and_the_answer_says_so(in_memory):
    with seglog.serve(in_memory / "data") as server, WireClient(server) as client:
        of = m.IncrementalAlterConfigsRequest
        row, = client.ask(of(resources=[of.AlterConfigsResource(
            resource_type=16, resource_name="g", configs=[of.AlterableConfig(
                name="interval.ms", config_operation=0, value="50000")])]), 1).responses
        assert (row.error_code, "metrics of clients" in row.error_message) == (Errors.INVALID_REQUEST, True)


def test_a_user_that_has_logged_in_gets_no_delegation_token(in_memory):
    with seglog.serve(in_memory / "data", users={"alice": "secret"}) as server, WireClient(server) as client:
        client.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        client.ask(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)
        answer = client.ask(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
        assert (answer.error_code, answer.principal_name) == (Errors.DELEGATION_TOKEN_AUTH_DISABLED, "alice")


def test_librdkafka_describes_topics(in_memory):
    with seglog.serve(in_memory / "data", topics={"orders": 2}) as server:
        client = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        described = client.describe_topics(confluent_kafka.TopicCollection(["orders"]))["orders"].result(30)
        assert len(described.partitions) == 2


@pytest.fixture
def served(in_memory):
    with seglog.serve(in_memory / "data", topics={"b": 1, "a": 1}, fsync="never") as server, WireClient(server) as one:
        yield one


def test_the_node_and_its_topics_are_listed_as_what_has_settings(served):
    of = m.ListConfigResourcesRequest

    def listed(*types, version=1):
        answer = served.ask(of(resource_types=list(types)), version)
        return answer.error_code, [(row.resource_type, row.resource_name) for row in answer.config_resources]

    node, topics = (4, "1"), [(2, "a"), (2, "b")]
    assert listed() == listed(32, 16, 8, 4, 2) == (0, [node, *topics])
    assert listed(2) == (0, topics)
    assert listed(4) == (0, [node])
    assert listed(8, 16, 32) == (0, [])
    assert listed(2, 77) == (Errors.UNSUPPORTED_VERSION, [])
    assert listed(version=0) == (0, [])     # metrics of clients alone


def test_transactions_are_listed_by_a_pattern_of_their_ids_in_a_time_that_no_pattern_makes_long(served):
    init, of = m.InitProducerIdRequest, m.ListTransactionsRequest
    for name in ("payments-1", "payments-2", "orders", "a" * 200):
        while served.ask(init(transactional_id=name, transaction_timeout_ms=1000), 4).error_code:
            served.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)

    def listed(pattern):
        answer = served.ask(of(transactional_id_pattern=pattern), 2)
        return answer.error_code, sorted(row.transactional_id for row in answer.transaction_states)
    assert listed("payments-.") == (0, ["payments-1", "payments-2"])
    assert listed("payments") == (0, [])
    assert listed("(a*)*b") == (0, [])      # for Python's own, more steps than there are atoms
    assert len(listed("")[1]) == len(listed(None)[1]) >= 4
    for pattern in ("(", "*", "x" * 1001, "(a{1000}){1000}", "(?P<a"):
        assert listed(pattern) == (Errors.INVALID_REGULAR_EXPRESSION, [])
