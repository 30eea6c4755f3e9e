"""Answers that contain only an error, for every API: for faults that a test plans, and for unexpected failures.

An error is where a broker has it, of the request as a whole or of each topic, partition or member, since clients look
for it only there. (AbstractRequest.getErrorResponse of each request; for errors that only parts can have, KafkaApis and
GroupCoordinatorService)
"""
from collections.abc import Callable
from typing import Any, TypeVar

from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from seglog.wire.messages import RESPONSES, ApiKey

_Row = TypeVar("_Row")


# Errors of a partition, not of the group: OffsetMetadataManager.fetchOffsets and deleteOffsets.
_OF_OFFSETS = frozenset({
    Errors.UNSTABLE_OFFSET_COMMIT, Errors.GROUP_SUBSCRIBED_TO_TOPIC, Errors.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.UNKNOWN_TOPIC_ID, Errors.TOPIC_AUTHORIZATION_FAILED,
})
# The first version of OffsetFetch with a place for an error of the group.
_WITH_GROUP_ERROR = 2
# Errors of a fetch session, which concern the request: FetchSession.
_OF_SESSIONS = frozenset({
    Errors.FETCH_SESSION_ID_NOT_FOUND, Errors.INVALID_FETCH_SESSION_EPOCH, Errors.FETCH_SESSION_TOPIC_ID_ERROR,
})
# Errors of a member that leaves, from the version on that names several: LeaveGroupResponse.
_OF_MEMBERS = frozenset({Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID})
_ANY_VERSION = 1 << 15


def error_answer(key: int, request: Any, error: Errors, version: int = _ANY_VERSION) -> Any:
    """An answer to `request` with `error`; None if the client expects no answer. `version`: of the request."""
    if key == ApiKey.OFFSET_FETCH and version < _WITH_GROUP_ERROR:
        return _offset_fetch_of_partitions(request, error)
    make = _BY_PARTS.get(ApiKey(key))
    if make is not None:
        return make(request, error)
    answer: Any = RESPONSES[key]()
    answer.error_code = error
    return answer


def _produce(request: m.ProduceRequest, error: Errors) -> Any:
    if request.acks == 0:
        return None
    return m.ProduceResponse(responses=[
        m.ProduceResponse.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            m.ProduceResponse.PartitionProduceResponse(index=part.index, error_code=error, base_offset=-1)
            for part in topic.partition_data
        ])
        for topic in request.topic_data
    ])


def _fetch(request: m.FetchRequest, error: Errors) -> Any:
    if error in _OF_SESSIONS:
        return m.FetchResponse(error_code=error)
    return m.FetchResponse(responses=[
        m.FetchResponse.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            m.FetchResponse.PartitionData(
                partition_index=part.partition, error_code=error, high_watermark=-1, records=b"")
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _list_offsets(request: m.ListOffsetsRequest, error: Errors) -> Any:
    return m.ListOffsetsResponse(topics=[
        m.ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[
            m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _metadata(request: m.MetadataRequest, error: Errors) -> Any:
    return m.MetadataResponse(topics=[
        m.MetadataResponse.MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ])


def with_error_in_topics(answer: Any, error: Errors) -> Any:
    """This answer to a Metadata request, with the error of each topic, and none of their partitions."""
    if error is Errors.REBOOTSTRAP_REQUIRED:
        return m.MetadataResponse(error_code=error)
    for row in answer.topics:
        row.error_code, row.partitions = error, []
    return answer


def _offset_commit(request: m.OffsetCommitRequest, error: Errors) -> Any:
    return m.OffsetCommitResponse(topics=[
        m.OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[
            m.OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _txn_offset_commit(request: m.TxnOffsetCommitRequest, error: Errors) -> Any:
    return m.TxnOffsetCommitResponse(topics=[
        m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=[
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _offset_fetch(request: m.OffsetFetchRequest, error: Errors) -> Any:
    groups = request.groups
    if error in _OF_OFFSETS and (request.topics or any(group.topics for group in groups)):
        return _offset_fetch_of_partitions(request, error)
    return m.OffsetFetchResponse(error_code=error, groups=[
        m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in groups
    ])


def _offset_fetch_of_partitions(request: m.OffsetFetchRequest, error: Errors) -> Any:
    of = m.OffsetFetchResponse
    return of(
        topics=[
            of.OffsetFetchResponseTopic(name=topic.name, partitions=[
                of.OffsetFetchResponsePartition(partition_index=number, committed_offset=-1, error_code=error)
                for number in topic.partition_indexes
            ])
            for topic in request.topics or ()
        ],
        groups=[
            of.OffsetFetchResponseGroup(group_id=group.group_id, topics=[
                of.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=[
                    of.OffsetFetchResponsePartitions(partition_index=number, committed_offset=-1, error_code=error)
                    for number in topic.partition_indexes
                ])
                for topic in group.topics or ()
            ])
            for group in request.groups
        ])


def _offset_delete(request: m.OffsetDeleteRequest, error: Errors) -> Any:
    of = m.OffsetDeleteResponse
    if error not in _OF_OFFSETS:
        return of(error_code=error)
    return of(topics=[
        of.OffsetDeleteResponseTopic(name=topic.name, partitions=[
            of.OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _leave_group(request: m.LeaveGroupRequest, error: Errors) -> Any:
    if error not in _OF_MEMBERS or not request.members:
        return m.LeaveGroupResponse(error_code=error)
    return m.LeaveGroupResponse(members=[
        m.LeaveGroupResponse.MemberResponse(
            member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
        for member in request.members
    ])


def _find_coordinator(request: m.FindCoordinatorRequest, error: Errors) -> Any:
    return m.FindCoordinatorResponse(error_code=error, node_id=-1, port=-1, coordinators=[
        m.FindCoordinatorResponse.Coordinator(key=key, node_id=-1, port=-1, error_code=error)
        for key in request.coordinator_keys
    ])


def _offsets_for_epochs(request: m.OffsetForLeaderEpochRequest, error: Errors) -> Any:
    return m.OffsetForLeaderEpochResponse(topics=[
        m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=[
            m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=part.partition, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _create_topics(request: m.CreateTopicsRequest, error: Errors) -> Any:
    return m.CreateTopicsResponse(topics=[
        m.CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_code=error) for topic in request.topics
    ])


def _delete_topics(request: m.DeleteTopicsRequest, error: Errors) -> Any:
    row = m.DeleteTopicsResponse.DeletableTopicResult
    return m.DeleteTopicsResponse(responses=[
        *(row(name=topic.name, topic_id=topic.topic_id, error_code=error) for topic in request.topics),
        *(row(name=name, error_code=error) for name in request.topic_names),
    ])


def _create_partitions(request: m.CreatePartitionsRequest, error: Errors) -> Any:
    return m.CreatePartitionsResponse(results=[
        m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name, error_code=error)
        for topic in request.topics
    ])


def _delete_records(request: m.DeleteRecordsRequest, error: Errors) -> Any:
    return m.DeleteRecordsResponse(topics=[
        m.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=[
            m.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1, error_code=error)
            for part in topic.partitions
        ])
        for topic in request.topics
    ])


def _add_partitions(request: m.AddPartitionsToTxnRequest, error: Errors) -> Any:
    return m.AddPartitionsToTxnResponse(error_code=error, results_by_topic_v3_and_below=[
        m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[
            m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=number, partition_error_code=error)
            for number in topic.partitions
        ])
        for topic in request.v3_and_below_topics
    ])


def _describe_groups(request: m.DescribeGroupsRequest, error: Errors) -> Any:
    return m.DescribeGroupsResponse(groups=[
        m.DescribeGroupsResponse.DescribedGroup(group_id=group, error_code=error) for group in request.groups
    ])


def _describe_consumer_groups(request: m.ConsumerGroupDescribeRequest, error: Errors) -> Any:
    return m.ConsumerGroupDescribeResponse(groups=[
        m.ConsumerGroupDescribeResponse.DescribedGroup(error_code=error, group_id=name) for name in request.group_ids])


def _delete_groups(request: m.DeleteGroupsRequest, error: Errors) -> Any:
    return m.DeleteGroupsResponse(results=[
        m.DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=error)
        for group in request.groups_names
    ])


def _of_resources(row: Callable[..., _Row], request: Any, error: Errors) -> list[_Row]:
    return [
        row(error_code=error, resource_type=resource.resource_type, resource_name=resource.resource_name)
        for resource in request.resources
    ]


def _describe_configs(request: m.DescribeConfigsRequest, error: Errors) -> Any:
    return m.DescribeConfigsResponse(
        results=_of_resources(m.DescribeConfigsResponse.DescribeConfigsResult, request, error))


def _alter_configs(request: m.AlterConfigsRequest, error: Errors) -> Any:
    return m.AlterConfigsResponse(
        responses=_of_resources(m.AlterConfigsResponse.AlterConfigsResourceResponse, request, error))


def _incremental_alter_configs(request: m.IncrementalAlterConfigsRequest, error: Errors) -> Any:
    return m.IncrementalAlterConfigsResponse(
        responses=_of_resources(m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, request, error))


def _describe_producers(request: m.DescribeProducersRequest, error: Errors) -> Any:
    return m.DescribeProducersResponse(topics=[
        m.DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[
            m.DescribeProducersResponse.PartitionResponse(partition_index=number, error_code=error)
            for number in topic.partition_indexes
        ])
        for topic in request.topics
    ])


def _create_acls(request: m.CreateAclsRequest, error: Errors) -> Any:
    return m.CreateAclsResponse(results=[
        m.CreateAclsResponse.AclCreationResult(error_code=error) for _ in request.creations])


def _delete_acls(request: m.DeleteAclsRequest, error: Errors) -> Any:
    return m.DeleteAclsResponse(filter_results=[
        m.DeleteAclsResponse.DeleteAclsFilterResult(error_code=error) for _ in request.filters])


def _describe_transactions(request: m.DescribeTransactionsRequest, error: Errors) -> Any:
    return m.DescribeTransactionsResponse(transaction_states=[
        m.DescribeTransactionsResponse.TransactionState(transactional_id=name, error_code=error)
        for name in request.transactional_ids
    ])


def _alter_users(request: m.AlterUserScramCredentialsRequest, error: Errors) -> Any:
    names = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
    return m.AlterUserScramCredentialsResponse(results=[
        m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user=name, error_code=error)
        for name in names
    ])


def _alter_replica_log_dirs(request: m.AlterReplicaLogDirsRequest, error: Errors) -> Any:
    return m.AlterReplicaLogDirsResponse(results=[
        m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[
            m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error)
            for number in topic.partitions])
        for one in request.dirs for topic in one.topics
    ])


def _alter_quotas(request: m.AlterClientQuotasRequest, error: Errors) -> Any:
    return m.AlterClientQuotasResponse(entries=[
        m.AlterClientQuotasResponse.EntryData(error_code=error, entity=[
            m.AlterClientQuotasResponse.EntityData(entity_type=one.entity_type, entity_name=one.entity_name)
            for one in entry.entity])
        for entry in request.entries
    ])


def _describe_topic_partitions(request: m.DescribeTopicPartitionsRequest, error: Errors) -> Any:
    return m.DescribeTopicPartitionsResponse(next_cursor=None, topics=[
        m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=error)
        for topic in request.topics
    ])


def _elect_leaders(request: m.ElectLeadersRequest, error: Errors) -> Any:
    # The first version has no error but those of partitions.
    return m.ElectLeadersResponse(error_code=error, replica_election_results=[
        m.ElectLeadersResponse.ReplicaElectionResult(topic=topic.topic, partition_result=[
            m.ElectLeadersResponse.PartitionResult(partition_id=number, error_code=error)
            for number in topic.partitions])
        for topic in request.topic_partitions or ()
    ])


def _write_markers(request: m.WriteTxnMarkersRequest, error: Errors) -> Any:
    return m.WriteTxnMarkersResponse(markers=[
        m.WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[
            m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=[
                m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(partition_index=number, error_code=error)
                for number in topic.partition_indexes])
            for topic in marker.topics])
        for marker in request.markers
    ])


_BY_PARTS: dict[ApiKey, Callable[[Any, Errors], Any]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer_groups,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offsets_for_epochs,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
}
