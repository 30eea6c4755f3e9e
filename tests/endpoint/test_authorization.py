"""ACLs: each API asks for its operations, what it refuses is told row by row, and clients of others change them."""
import re
import stat
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Kind

import seglog
from seglog.endpoint.authentication import BEFORE
from seglog.endpoint.authorization import RULES
from seglog.errors import CorruptSettingsError, InvalidArgumentError, InvalidConfigError
from seglog.state.acls import FILE_NAME, Acl, Operation, PatternType, Permission, ResourceType, read_acls
from seglog.wire import messages as m
from seglog.wire.codec import API_VERSIONS
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey
from support.waiting import wait_for
from support.wire_client import WireClient

USERS = {"admin": "secret", "alice": "secret", "bob": "secret"}
CONFIG = {"super.users": "User:admin", "auto.create.topics.enable": "false"}
TOPIC, GROUP, CLUSTER, ID = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
    Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE)
NAMES = {TOPIC: "orders", GROUP: "readers", CLUSTER: "kafka-cluster", ID: "writer"}
REFUSED = {Errors.TOPIC_AUTHORIZATION_FAILED, Errors.GROUP_AUTHORIZATION_FAILED, Errors.CLUSTER_AUTHORIZATION_FAILED,
           Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


class Rule(NamedTuple):
    """What a request needs, all of it; `make` makes it in a version."""

    needs: tuple
    make: object


def of_topics(kind, row, part, *, field="partitions", name="name", **more):
    return lambda version: kind(topics=[getattr(kind, row)(**{name: "orders", field: [part]})], **more)


def offset_fetch(version):
    of = m.OffsetFetchRequest
    if version < 8:
        return of(group_id="readers", topics=[of.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])])
    return of(groups=[of.OffsetFetchRequestGroup(group_id="readers", topics=[
        of.OffsetFetchRequestTopics(name="orders", topic_id=TOPIC_ID[0], partition_indexes=[0])])])


def coordinator(kind, key):
    return lambda version: m.FindCoordinatorRequest(
        key_type=kind, key=key, coordinator_keys=[key]) if version >= kind else m.FindCoordinatorRequest(key=key)


def commit(version):
    of = m.OffsetCommitRequest
    return of(group_id="readers", topics=[of.OffsetCommitRequestTopic(
        name="orders", topic_id=TOPIC_ID[0] if version >= 10 else m.ZERO_UUID,
        partitions=[of.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)])])


def txn_commit(version):
    of = m.TxnOffsetCommitRequest
    return of(group_id="readers", transactional_id="writer", topics=[of.TxnOffsetCommitRequestTopic(
        name="orders", topic_id=TOPIC_ID[0] if version >= 6 else m.ZERO_UUID,
        partitions=[of.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)])])


def fetch(version):
    of = m.FetchRequest
    return of(topics=[of.FetchTopic(
        topic="orders", topic_id=TOPIC_ID[0] if version >= 13 else m.ZERO_UUID,
        partitions=[of.FetchPartition(partition=0, partition_max_bytes=1000)])])


def follower(version):
    request = fetch(version)
    request.replica_id = 7 if version < 15 else -1
    request.replica_state = m.FetchRequest.ReplicaState(replica_id=7 if version >= 15 else -1)
    return request


def produce(transactional_id):
    of = m.ProduceRequest
    return lambda version: of(
        acks=1, transactional_id=transactional_id if version >= 3 else None, topic_data=[of.TopicProduceData(
            name="orders", topic_id=TOPIC_ID[0] if version >= 13 else m.ZERO_UUID,
            partition_data=[of.PartitionProduceData(index=0, records=b"")])])


def add_partitions(version):
    of = m.AddPartitionsToTxnRequest
    topics = [of.AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    if version < 4:
        return of(v3_and_below_transactional_id="writer", v3_and_below_topics=topics)
    return of(transactions=[of.AddPartitionsToTxnTransaction(transactional_id="writer", topics=topics)])


def delete_topics(version):
    of = m.DeleteTopicsRequest
    return of(topic_names=["nowhere"], topics=[of.DeleteTopicState(name="nowhere")])


def of_config(kind, row, resource_type, name):
    return lambda version: kind(resources=[getattr(kind, row)(resource_type=resource_type, resource_name=name)])


def write_markers(version):
    of = m.WriteTxnMarkersRequest
    return of(markers=[of.WritableTxnMarker(producer_id=7, topics=[
        of.WritableTxnMarkerTopic(name="orders", partition_indexes=[0])])])


TOPIC_ID = [b""]
_acl = m.CreateAclsRequest.AclCreation(
    resource_type=2, resource_name="x", principal="User:x", host="*", operation=3, permission_type=3)
LISTED = m.ListOffsetsRequest
TABLE = {
    "Produce": Rule(((WRITE, TOPIC),), produce(None)),
    "Produce of a transaction": Rule(((WRITE, TOPIC), (WRITE, ID)), produce("writer")),
    "Fetch": Rule(((READ, TOPIC),), fetch),
    "Fetch of a follower": Rule(((ACTION, CLUSTER),), follower),
    "ListOffsets": Rule(((DESCRIBE, TOPIC),), of_topics(
        LISTED, "ListOffsetsTopic", LISTED.ListOffsetsPartition(partition_index=0))),
    "Metadata": Rule(((DESCRIBE, TOPIC),), lambda version: m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name="orders")])),
    "OffsetCommit": Rule(((READ, GROUP), (READ, TOPIC)), commit),
    "OffsetFetch": Rule(((DESCRIBE, GROUP), (DESCRIBE, TOPIC)), offset_fetch),
    "FindCoordinator": Rule(((DESCRIBE, GROUP),), coordinator(0, "readers")),
    "FindCoordinator of a transaction": Rule(((DESCRIBE, ID),), coordinator(1, "writer")),
    "JoinGroup": Rule(((READ, GROUP),), lambda version: m.JoinGroupRequest(group_id="readers", member_id="x")),
    "Heartbeat": Rule(((READ, GROUP),), lambda version: m.HeartbeatRequest(group_id="readers", member_id="x")),
    "LeaveGroup": Rule(((READ, GROUP),), lambda version: m.LeaveGroupRequest(group_id="readers", member_id="x")),
    "SyncGroup": Rule(((READ, GROUP),), lambda version: m.SyncGroupRequest(group_id="readers", member_id="x")),
    "DescribeGroups": Rule(((DESCRIBE, GROUP),), lambda version: m.DescribeGroupsRequest(groups=["readers"])),
    "CreateTopics": Rule(((CREATE, TOPIC),), lambda version: m.CreateTopicsRequest(topics=[
        m.CreateTopicsRequest.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)])),
    "DeleteTopics": Rule(((DELETE, TOPIC, "nowhere"),), delete_topics),
    "DeleteRecords": Rule(((DELETE, TOPIC),), of_topics(
        m.DeleteRecordsRequest, "DeleteRecordsTopic",
        m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0))),
    "InitProducerId": Rule(((IDEMPOTENT, CLUSTER),), lambda version: m.InitProducerIdRequest(transactional_id=None)),
    "InitProducerId of who may write": Rule(
        ((WRITE, TOPIC, "whatever"),), lambda version: m.InitProducerIdRequest(transactional_id=None)),
    "InitProducerId of a transaction": Rule(
        ((WRITE, ID),), lambda version: m.InitProducerIdRequest(transactional_id="writer")),
    "OffsetForLeaderEpoch": Rule(((DESCRIBE, TOPIC),), of_topics(
        m.OffsetForLeaderEpochRequest, "OffsetForLeaderTopic",
        m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0), name="topic")),
    "OffsetForLeaderEpoch of a follower": Rule(((ACTION, CLUSTER),), of_topics(
        m.OffsetForLeaderEpochRequest, "OffsetForLeaderTopic",
        m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0), name="topic")),
    "AddPartitionsToTxn": Rule(
        ((WRITE, ID), (WRITE, TOPIC)), lambda version: add_partitions(min(version, 3))),
    "AddPartitionsToTxn of a broker": Rule(((ACTION, CLUSTER),), add_partitions),
    "AddOffsetsToTxn": Rule(((WRITE, ID), (READ, GROUP)), lambda version: m.AddOffsetsToTxnRequest(
        transactional_id="writer", group_id="readers")),
    "EndTxn": Rule(((WRITE, ID),), lambda version: m.EndTxnRequest(transactional_id="writer")),
    "TxnOffsetCommit": Rule(((WRITE, ID), (READ, GROUP), (READ, TOPIC)), txn_commit),
    "DescribeAcls": Rule(((DESCRIBE, CLUSTER),), lambda version: m.DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=3, resource_name_filter=None, principal_filter=None,
        host_filter=None, operation=1, permission_type=1)),
    "CreateAcls": Rule(((ALTER, CLUSTER),), lambda version: m.CreateAclsRequest(creations=[_acl])),
    "DeleteAcls": Rule(((ALTER, CLUSTER),), lambda version: m.DeleteAclsRequest(filters=[
        m.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=6, resource_name_filter="x", pattern_type_filter=3,
                                             operation=1, permission_type=1)])),
    "DescribeConfigs": Rule(((DESCRIBE_CONFIGS, TOPIC),), of_config(
        m.DescribeConfigsRequest, "DescribeConfigsResource", 2, "orders")),
    "DescribeConfigs of the broker": Rule(((DESCRIBE_CONFIGS, CLUSTER),), of_config(
        m.DescribeConfigsRequest, "DescribeConfigsResource", 4, "1")),
    "DescribeConfigs of a group": Rule(((DESCRIBE_CONFIGS, GROUP),), of_config(
        m.DescribeConfigsRequest, "DescribeConfigsResource", 32, "readers")),
    "AlterConfigs": Rule(((ALTER_CONFIGS, TOPIC),), of_config(
        m.AlterConfigsRequest, "AlterConfigsResource", 2, "orders")),
    "AlterConfigs of the broker": Rule(((ALTER_CONFIGS, CLUSTER),), of_config(
        m.AlterConfigsRequest, "AlterConfigsResource", 4, "1")),
    "IncrementalAlterConfigs": Rule(((ALTER_CONFIGS, TOPIC),), of_config(
        m.IncrementalAlterConfigsRequest, "AlterConfigsResource", 2, "orders")),
    "IncrementalAlterConfigs of a group": Rule(((ALTER_CONFIGS, GROUP),), of_config(
        m.IncrementalAlterConfigsRequest, "AlterConfigsResource", 32, "readers")),
    "AlterReplicaLogDirs": Rule(((ALTER, CLUSTER),), lambda version: m.AlterReplicaLogDirsRequest(dirs=[
        m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/x", topics=[
            m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="orders", partitions=[0])])])),
    "DescribeLogDirs": Rule(((DESCRIBE, CLUSTER),), lambda version: m.DescribeLogDirsRequest(topics=None)),
    "CreatePartitions": Rule(((ALTER, TOPIC),), lambda version: m.CreatePartitionsRequest(topics=[
        m.CreatePartitionsRequest.CreatePartitionsTopic(name="orders", count=1, assignments=None)])),
    "DeleteGroups": Rule(((DELETE, GROUP),), lambda version: m.DeleteGroupsRequest(groups_names=["readers"])),
    "ElectLeaders": Rule(((ALTER, CLUSTER),), lambda version: m.ElectLeadersRequest(topic_partitions=[
        m.ElectLeadersRequest.TopicPartitions(topic="orders", partitions=[0])])),
    "AlterPartitionReassignments": Rule(
        ((ALTER, CLUSTER),), lambda version: m.AlterPartitionReassignmentsRequest(topics=[])),
    "ListPartitionReassignments": Rule(
        ((DESCRIBE, CLUSTER),), lambda version: m.ListPartitionReassignmentsRequest(topics=None)),
    "OffsetDelete": Rule(((DELETE, GROUP, "kept"), (READ, TOPIC)), of_topics(
        m.OffsetDeleteRequest, "OffsetDeleteRequestTopic",
        m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0), group_id="kept")),
    "DescribeClientQuotas": Rule(((DESCRIBE_CONFIGS, CLUSTER),), lambda version: m.DescribeClientQuotasRequest()),
    "AlterClientQuotas": Rule(((ALTER_CONFIGS, CLUSTER),), lambda version: m.AlterClientQuotasRequest(entries=[
        m.AlterClientQuotasRequest.EntryData(entity=[])])),
    "DescribeUserScramCredentials": Rule(
        ((DESCRIBE, CLUSTER),), lambda version: m.DescribeUserScramCredentialsRequest(users=None)),
    "AlterUserScramCredentials": Rule(((ALTER, CLUSTER),), lambda version: m.AlterUserScramCredentialsRequest(
        deletions=[m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="x", mechanism=1)])),
    "DescribeQuorum": Rule(((DESCRIBE, CLUSTER),), lambda version: m.DescribeQuorumRequest(topics=[])),
    "UpdateFeatures": Rule(((ALTER, CLUSTER),), lambda version: m.UpdateFeaturesRequest()),
    "DescribeProducers": Rule(((READ, TOPIC),), of_topics(
        m.DescribeProducersRequest, "TopicRequest", 0, field="partition_indexes")),
    "UnregisterBroker": Rule(((ALTER, CLUSTER),), lambda version: m.UnregisterBrokerRequest(broker_id=77)),
    "DescribeTransactions": Rule(
        ((DESCRIBE, ID),), lambda version: m.DescribeTransactionsRequest(transactional_ids=["writer"])),
    "WriteTxnMarkers": Rule(((ACTION, CLUSTER),), write_markers),
    "WriteTxnMarkers of an operator": Rule(((ALTER, CLUSTER),), write_markers),
    "ListConfigResources": Rule(
        ((DESCRIBE_CONFIGS, CLUSTER),), lambda version: m.ListConfigResourcesRequest()),
    "ConsumerGroupHeartbeat": Rule(((READ, GROUP), (DESCRIBE, TOPIC)), lambda version: m.ConsumerGroupHeartbeatRequest(
        group_id="readers", member_id="m", member_epoch=7, subscribed_topic_names=["orders"])),
    "ConsumerGroupDescribe": Rule(((DESCRIBE, GROUP),), lambda version: m.ConsumerGroupDescribeRequest(
        group_ids=["readers"])),
    "DescribeTopicPartitions": Rule(((DESCRIBE, TOPIC),), lambda version: m.DescribeTopicPartitionsRequest(topics=[
        m.DescribeTopicPartitionsRequest.TopicRequest(name="orders")])),
}
# Those whose answer leaves out what a client may not see, and those that anybody may ask.
CUT = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
ANYBODY = {ApiKey.DESCRIBE_CLUSTER, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN,
           ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN}
# These versions have no field for the error.
SILENT = {("DescribeLogDirs", version) for version in range(3)}
VERSIONS = {"AddPartitionsToTxn": range(4), "AddPartitionsToTxn of a broker": range(4, 6),
            "FindCoordinator of a transaction": range(1, 7), "Produce of a transaction": range(3, 14)}


def api_of(name):
    return ApiKey[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.split(" ")[0]).upper()]


def versions(name):
    first, last = API_VERSIONS[api_of(name)]
    return VERSIONS.get(name, range(first, last + 1))


def allowed(operation, kind, name=None, *, principal="User:alice", permission=Permission.ALLOW, host="*",
            pattern=PatternType.LITERAL):
    return Acl(kind, name or NAMES[kind], pattern, principal, host, operation, permission)


def errors_in(answer):
    """The error codes in an answer, wherever they stand."""
    for field in getattr(answer, "__slots__", ()):
        value = getattr(answer, field)
        # There are no quotas, and nobody may set one, whatever the ACLs are.
        is_of_quotas = getattr(answer, "error_message", None) == "This server has no quotas."
        if field.endswith("error_code") and field != "topic_config_error_code" and not is_of_quotas:
            yield Errors(value)
        for one in value if isinstance(value, list) else [value]:
            yield from errors_in(one)


def refusals(answer):
    """The errors in an answer that say that something is not allowed."""
    return [error for error in errors_in(answer) if error in REFUSED]


class Guarded:
    """A server with an authorizer, and connections of its users."""

    def __init__(self, path, **config):
        self.server = seglog.serve(
            path, topics={"orders": 1, "secrets": 1}, fsync="never", users=USERS, authorizer=True,
            config={**CONFIG, **config})

    def __enter__(self):
        self.server.__enter__()
        self.clients = {name: self.connected(name) for name in USERS}
        answer = self.asked(m.MetadataRequest(topics=None), 12, "admin")
        TOPIC_ID[0] = next(one.topic_id for one in answer.topics if one.name == "orders")
        for kind in (0, 1):
            self.loaded(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["kept"]), 4)
        self.loaded(m.InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=1000), 4)
        self.commit("kept", "orders", "secrets")
        return self

    def loaded(self, request, version):
        """Ask as the administrator, until the coordinator has read its topic."""
        wait_for(lambda: "COORDINATOR" not in repr(list(errors_in(self.asked(request, version, "admin")))))

    def commit(self, group, *topics):
        of = m.OffsetCommitRequest
        self.loaded(of(group_id=group, topics=[of.OffsetCommitRequestTopic(name=name, partitions=[
            of.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]) for name in topics]), 8)

    def __exit__(self, *error):
        for client in self.clients.values():
            client.socket.close()
        self.server.__exit__(*error)

    def connected(self, name):
        client = WireClient(self.server)
        client.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert not client.ask(
            m.SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{USERS[name]}".encode()), 1).error_code
        return client

    def set(self, *acls):
        """These are the ACLs from now on."""
        admin = self.clients["admin"]
        answer = admin.ask(m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1)]), 3)
        assert not answer.filter_results[0].error_code
        answer = admin.ask(m.CreateAclsRequest(creations=[m.CreateAclsRequest.AclCreation(
            resource_type=acl.resource_type.value, resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type.value, principal=acl.principal, host=acl.host,
            operation=acl.operation.value, permission_type=acl.permission.value) for acl in acls]), 3)
        assert not any(row.error_code for row in answer.results)

    def asked(self, request, version, user="alice"):
        return self.clients[user].ask(request, version)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with Guarded(tmp_path_factory.mktemp("guarded") / "data") as guarded:
        yield guarded


def test_every_api_has_a_rule_and_a_row_in_the_table_of_tests():
    served = {ApiKey(key) for key in API_VERSIONS} - BEFORE
    assert set(RULES) == served
    assert {api_of(name) for name in TABLE} | CUT | ANYBODY == served


@pytest.mark.parametrize("name", TABLE)
def test_an_api_is_refused_in_every_version_unless_all_that_it_needs_is_allowed(guarded, name):
    needs = [allowed(*need) for need in TABLE[name].needs]
    other = allowed(Operation.ALL, TOPIC, "elsewhere", principal="User:bob")
    guarded.set(other)
    for version in versions(name):
        answer = guarded.asked(TABLE[name].make(version), version)
        assert refusals(answer) or (name, version) in SILENT, version
        if (name, version) in SILENT:
            assert answer.results == []
    guarded.set(other, *needs)
    for version in versions(name):
        assert not refusals(guarded.asked(TABLE[name].make(version), version)), version
    for missing in needs[1:] and needs:
        guarded.set(other, *(one for one in needs if one is not missing))
        for version in versions(name):
            assert refusals(guarded.asked(TABLE[name].make(version), version)), (missing, version)
    for need in needs:
        guarded.set(*needs, need._replace(permission=Permission.DENY, principal="User:*"))
        version = versions(name)[-1]
        assert refusals(guarded.asked(TABLE[name].make(version), version)), need


def test_lists_of_groups_transactions_and_topics_have_only_what_the_client_may_describe(guarded):
    guarded.set()
    guarded.commit("readers", "orders")
    guarded.commit("others", "orders", "secrets")
    guarded.loaded(m.InitProducerIdRequest(transactional_id="ghost", transaction_timeout_ms=1000), 4)

    def seen(user="alice"):
        asked = lambda request, version: guarded.asked(request, version, user)  # noqa: E731
        return (
            {row.group_id for row in asked(m.ListGroupsRequest(), 4).groups},
            {row.transactional_id for row in asked(m.ListTransactionsRequest(), 0).transaction_states},
            {row.name for row in asked(m.MetadataRequest(topics=None), 12).topics if not row.is_internal},
            {row.name for row in asked(m.MetadataRequest(topics=[]), 0).topics if not row.name.startswith("__")},
            {row.name for row in asked(m.DescribeTopicPartitionsRequest(), 0).topics if not row.is_internal})

    assert seen("admin") == (
        {"readers", "others", "kept"}, {"writer", "ghost"}, *[{"orders", "secrets"}] * 3)
    assert seen() == (set(),) * 5
    guarded.set(allowed(DESCRIBE, GROUP), allowed(DESCRIBE, ID), allowed(DESCRIBE, TOPIC))
    assert seen() == ({"readers"}, {"writer"}, {"orders"}, {"orders"}, {"orders"})
    guarded.set(allowed(DESCRIBE, CLUSTER))
    assert seen() == ({"readers", "others", "kept"}, set(), set(), set(), set())
    # What a group has committed of a topic, and what a transaction has written, is not told without the topic.
    guarded.set(allowed(DESCRIBE, GROUP, "others"), allowed(DESCRIBE, TOPIC))
    of = m.OffsetFetchRequest
    answer = guarded.asked(of(groups=[of.OffsetFetchRequestGroup(group_id="others", topics=None)]), 8)
    assert [row.name for row in answer.groups[0].topics] == ["orders"]


def test_of_several_topics_named_by_ids_only_what_is_not_allowed_is_refused(guarded):
    """And an id of no topic is unknown, not refused: it tells nothing."""
    ids = {row.name: row.topic_id for row in guarded.asked(m.MetadataRequest(topics=None), 12, "admin").topics}
    named = {ids["orders"]: "orders", ids["secrets"]: "secrets", bytes(range(16)): "nowhere"}
    expected = {"orders": Errors.NONE, "secrets": Errors.TOPIC_AUTHORIZATION_FAILED, "nowhere": Errors.UNKNOWN_TOPIC_ID}
    guarded.set(*(allowed(need, TOPIC) for need in (READ, WRITE, DESCRIBE)), allowed(READ, GROUP))

    def told(rows, partitions):
        return {named[row.topic_id]: getattr(row, partitions)[0].error_code for row in rows}

    of = m.ProduceRequest
    answer = guarded.asked(of(acks=1, topic_data=[of.TopicProduceData(topic_id=topic_id, partition_data=[
        of.PartitionProduceData(index=0, records=seglog.build_batch([(b"k", b"v")]))]) for topic_id in named]), 13)
    assert told(answer.responses, "partition_responses") == expected
    of = m.OffsetCommitRequest
    answer = guarded.asked(of(group_id="readers", topics=[of.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[
        of.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]) for topic_id in named]), 10)
    assert told(answer.topics, "partitions") == expected
    of = m.OffsetFetchRequest
    answer = guarded.asked(of(groups=[of.OffsetFetchRequestGroup(group_id="readers", topics=[
        of.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0]) for topic_id in named])]), 10)
    assert told(answer.groups[0].topics, "partitions") == expected
    guarded.commit("kept", "orders", "secrets")
    guarded.set(allowed(DESCRIBE, TOPIC), allowed(DESCRIBE, GROUP, "kept"))
    answer = guarded.asked(of(groups=[of.OffsetFetchRequestGroup(group_id="kept", topics=None)]), 10)
    assert [row.topic_id for row in answer.groups[0].topics] == [ids["orders"]]


def test_of_a_request_for_several_topics_only_what_is_not_allowed_is_refused(guarded):
    guarded.set(allowed(DESCRIBE, TOPIC), allowed(READ, TOPIC, "orde", pattern=PatternType.PREFIXED))
    of = m.ListOffsetsRequest
    answer = guarded.asked(of(topics=[
        of.ListOffsetsTopic(name=name, partitions=[of.ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for name in ("secrets", "orders", "nowhere")]), 7)
    assert {row.name: row.partitions[0].error_code for row in answer.topics} == {
        "orders": 0, "secrets": Errors.TOPIC_AUTHORIZATION_FAILED, "nowhere": Errors.TOPIC_AUTHORIZATION_FAILED}
    answer = guarded.asked(m.MetadataRequest(topics=[
        m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("secrets", "orders")],
        include_topic_authorized_operations=True, include_cluster_authorized_operations=True), 10)
    assert {row.name: row.topic_authorized_operations for row in answer.topics if not row.error_code} == {
        "orders": 1 << READ.value | 1 << DESCRIBE.value}
    assert answer.cluster_authorized_operations == 0
    hidden = next(row for row in answer.topics if row.name == "secrets")
    assert (hidden.topic_id, hidden.partitions) == (m.ZERO_UUID, [])
    # By its id, too; and its name is not told.
    secret = next(row.topic_id for row in guarded.asked(m.MetadataRequest(topics=None), 12, "admin").topics
                  if row.name == "secrets")
    answer = guarded.asked(m.MetadataRequest(topics=[
        m.MetadataRequest.MetadataRequestTopic(topic_id=secret, name=None)]), 12)
    assert (answer.topics[0].error_code, answer.topics[0].name) == (Errors.TOPIC_AUTHORIZATION_FAILED, None)
    answer = guarded.asked(m.DeleteTopicsRequest(topics=[
        m.DeleteTopicsRequest.DeleteTopicState(topic_id=secret, name=None)]), 6)
    assert (answer.responses[0].error_code, answer.responses[0].name) == (Errors.TOPIC_AUTHORIZATION_FAILED, None)


def test_pages_of_topics_tell_no_name_that_the_client_may_not_see(guarded):
    guarded.set(allowed(DESCRIBE, TOPIC, "secrets"))
    of = m.DescribeTopicPartitionsRequest
    answer = guarded.asked(of(response_partition_limit=1), 0)
    assert ([row.name for row in answer.topics], answer.next_cursor) == (["secrets"], None)
    answer = guarded.asked(of(cursor=of.Cursor(topic_name="orders", partition_index=0)), 0)
    assert [row.name for row in answer.topics] == ["secrets"]


def test_a_producer_that_expects_no_answer_is_cut_off(guarded):
    guarded.set()
    client = guarded.connected("alice")
    of = m.ProduceRequest
    client.send(of(acks=0, topic_data=[of.TopicProduceData(
        name="orders", partition_data=[of.PartitionProduceData(index=0, records=b"")])]), 7)
    with pytest.raises(ConnectionError):
        client.receive_frame()
    client.socket.close()


def test_a_partition_is_added_to_a_transaction_only_with_all_the_others(guarded):
    guarded.set(allowed(WRITE, ID), allowed(WRITE, TOPIC))
    of = m.AddPartitionsToTxnRequest
    answer = guarded.asked(of(v3_and_below_transactional_id="writer", v3_and_below_topics=[
        of.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("orders", "secrets")]), 3)
    assert {row.name: row.results_by_partition[0].partition_error_code
            for row in answer.results_by_topic_v3_and_below} == {
        "orders": Errors.OPERATION_NOT_ATTEMPTED, "secrets": Errors.TOPIC_AUTHORIZATION_FAILED}


def test_who_may_not_create_a_topic_does_not_create_it_by_asking_for_it(tmp_path):
    with Guarded(tmp_path / "data", **{"auto.create.topics.enable": "true"}) as guarded:
        asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="new")])
        guarded.set(allowed(DESCRIBE, TOPIC, "new"))
        assert guarded.asked(asked, 9).topics[0].error_code == Errors.TOPIC_AUTHORIZATION_FAILED
        asked.allow_auto_topic_creation = False
        assert guarded.asked(asked, 9).topics[0].error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
        asked.allow_auto_topic_creation = True
        guarded.set(allowed(DESCRIBE, TOPIC, "new"), allowed(CREATE, TOPIC, "new"))
        assert guarded.asked(asked, 9).topics[0].error_code == Errors.LEADER_NOT_AVAILABLE


# --- a client of others -----------------------------------------------------------------------------


def admin_of(server, name="admin", **more):
    return {"bootstrap.servers": server.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", "log_level": 0,
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": name, "sasl.password": USERS[name], **more}


def binding(kind, name, operation, *, principal="User:alice", pattern=ResourcePatternType.LITERAL):
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


EVERY = AclBindingFilter(
    Kind.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)


def test_librdkafka_creates_describes_and_deletes_acls_and_they_count_at_once_and_after_a_restart(in_memory):
    path = in_memory / "data"

    def written(server):
        producer = confluent_kafka.Producer(admin_of(server, "alice", **{"message.timeout.ms": 10_000}))
        errors = []
        producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error and error.code()))
        producer.flush(30)
        return errors

    arguments = {"listen": "SASL_PLAINTEXT://127.0.0.1:0", "topics": {"orders": 1}, "users": USERS, "config": CONFIG,
                 "authorizer": True}
    bindings = [binding(Kind.TOPIC, "ord", AclOperation.WRITE, pattern=ResourcePatternType.PREFIXED),
                binding(Kind.GROUP, "*", AclOperation.READ), binding(Kind.TOPIC, "orders", AclOperation.READ)]
    with seglog.serve(path, **arguments) as server:
        admin = AdminClient(admin_of(server))
        assert written(server) == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]
        for one in admin.create_acls(bindings).values():
            one.result(30)
        assert written(server) == [None]
        assert set(admin.describe_acls(EVERY).result(30)) == set(bindings)
        named = AclBindingFilter(
            Kind.TOPIC, "orders", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY)
        assert set(admin.describe_acls(named).result(30)) == {bindings[0], bindings[2]}
        assert stat.S_IMODE((path / FILE_NAME).stat().st_mode) == 0o600
        other = AdminClient(admin_of(server, "alice"))
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            other.create_acls(bindings[:1])[bindings[0]].result(30)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert len(read_acls(path)) == 3
    with seglog.serve(path, **arguments) as server:
        admin = AdminClient(admin_of(server))
        assert written(server) == [None]
        consumer = confluent_kafka.Consumer(admin_of(
            server, "alice", **{"group.id": "any", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer.consume(2, 30)] == [b"x"] * 2
        consumer.close()
        assert [len(one.result(30)) for one in admin.delete_acls([EVERY]).values()] == [3]
        assert admin.describe_acls(EVERY).result(30) == []
        assert written(server) == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize(("one", "words"), [
    ({"resource_type": 1}, "Invalid resourceType"), ({"resource_type": 99}, "Invalid resourceType"),
    ({"resource_pattern_type": 1}, "Invalid patternType"), ({"operation": 1}, "Invalid operation"),
    ({"permission_type": 0}, "Invalid permissionType"), ({"principal": "alice"}, "no colon"),
    ({"principal": ":"}, "type and a name"), ({"host": ""}, "type and a name"), ({"resource_name": ""}, "be empty"),
    ({"resource_type": 4, "resource_name": "cluster"}, "only valid name"), ({"resource_name": "x" * 1025}, "at most"),
], ids=range(11))
def test_an_acl_that_kafka_refuses_is_refused_and_the_others_are_created(guarded, one, words):
    guarded.set()
    good = {"resource_type": 2, "resource_name": "x", "principal": "User:x", "host": "*", "operation": 3,
            "permission_type": 3}
    made = m.CreateAclsRequest.AclCreation
    answer = guarded.asked(m.CreateAclsRequest(creations=[made(**{**good, **one}), made(**good)]), 3, "admin")
    assert [row.error_code for row in answer.results] == [Errors.INVALID_REQUEST, 0]
    assert words in answer.results[0].error_message
    assert len(read_acls(guarded.server.path)) == 1


def test_an_acl_of_each_operation_of_kafka_440_can_be_made(guarded):
    guarded.set()
    made = m.CreateAclsRequest.AclCreation
    answer = guarded.asked(m.CreateAclsRequest(creations=[made(
        resource_type=5, resource_name="writer", resource_pattern_type=3, principal="User:x", host="*",
        operation=number, permission_type=3) for number in range(2, 16)]), 3, "admin")
    assert [row.error_code for row in answer.results] == [0] * 14
    assert len(read_acls(guarded.server.path)) == 14


# --- starting ---------------------------------------------------------------------------------------


def test_a_server_on_which_nobody_could_do_anything_does_not_start(in_memory):
    with pytest.raises(InvalidArgumentError, match="nobody may do anything"), \
            seglog.serve(in_memory / "data", authorizer=True):
        pass
    for config in ({"super.users": "alice"}, {"super.users": "User:"}):
        with pytest.raises(InvalidConfigError, match=r"super\.users"), \
                seglog.serve(in_memory / "data", authorizer=True, config=config):
            pass
    with seglog.serve(in_memory / "data", authorizer=True, config={"allow.everyone.if.no.acl.found": True}) as server, \
            WireClient(server) as client:
        assert not client.ask(m.MetadataRequest(topics=None), 9).topics
        assert not refusals(client.ask(m.DescribeLogDirsRequest(topics=None), 4))


def test_super_users_by_the_name_of_everybody_are_one_user_as_in_kafka_and_the_server_says_so(in_memory, caplog):
    with pytest.raises(InvalidArgumentError, match="nobody may do anything"), \
            seglog.serve(in_memory / "data", authorizer=True, config={"super.users": "User:*"}):
        pass
    assert "a user with the name *, not everybody" in caplog.text
    caplog.clear()
    with seglog.serve(in_memory / "data", topics={"orders": 1}, authorizer=True,
                      config={"super.users": "User:*;User:admin"}) as server, WireClient(server) as client:
        assert not client.ask(m.MetadataRequest(topics=None), 9).topics     # User:ANONYMOUS
        assert "a user with the name *, not everybody" in caplog.text


def test_a_server_without_an_authorizer_says_that_acls_do_not_count(in_memory, caplog):
    path = in_memory / "data"
    path.mkdir()
    (path / FILE_NAME).write_bytes(b"damaged")
    with seglog.serve(path):
        assert "every client may do everything" in caplog.text
    with pytest.raises(CorruptSettingsError, match="acls"), \
            seglog.serve(path, authorizer=True, config={"super.users": "User:admin"}):
        pass
