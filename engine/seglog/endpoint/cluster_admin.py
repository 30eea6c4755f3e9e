"""What an administrator asks of a cluster, as a single node without a controller answers it: elections of leaders,
reassignments of replicas, quotas, the quorum, features, delegation tokens."""
from seglog.coordinators.refusals import unknown_topic
from seglog.endpoint.authentication import ANONYMOUS
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import Topics
from seglog.format.names import METADATA_TOPIC
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ApiKey,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_NO_QUOTAS = "This server has no quotas."
_NO_CONTROLLER = "This server is a single node without a controller, and has no quorum."
_FIXED_FEATURES = "This server is a single node without a controller: its features cannot be changed."
_WITH_ONE_RESULT = 2            # the first version of UpdateFeatures that has no result of each feature
_MATCH_TYPES = (0, 1, 2)        # exact, default, specified (DescribeClientQuotasRequest)
_QUOTA_ENTITIES = frozenset(("user", "client-id", "ip"))
_ELECTION_TYPES = (0, 1)        # preferred, unclean (ElectionType)


class ClusterAdmin:
    """The handlers of these APIs. `node_id`: of the only node; `log_dir`: the only one, as clients see it."""

    def __init__(self, topics: Topics, node_id: int, log_dir: str) -> None:
        self._topics = topics
        self._node_id = node_id
        self._log_dir = log_dir
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.ELECT_LEADERS: self.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe_client_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alter_client_quotas,
            ApiKey.DESCRIBE_QUORUM: self.describe_quorum,
            ApiKey.UPDATE_FEATURES: self.update_features,
            ApiKey.UNREGISTER_BROKER: self.unregister_broker,
            ApiKey.CREATE_DELEGATION_TOKEN: self.create_delegation_token,
            ApiKey.RENEW_DELEGATION_TOKEN: self.renew_delegation_token,
            ApiKey.EXPIRE_DELEGATION_TOKEN: self.expire_delegation_token,
            ApiKey.DESCRIBE_DELEGATION_TOKEN: self.describe_delegation_token,
        }

    # --- leaders ---------------------------------------------------------------------------------

    async def elect_leaders(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        """The only node leads every partition, so no election is needed."""
        if request.election_type not in _ELECTION_TYPES:
            return ElectLeadersResponse(error_code=Errors.INVALID_REQUEST)
        results = []
        if request.topic_partitions is None:        # of all, and only those that got another leader are told
            for name in self._topics.names():
                await context.work.step()
                results.append(ElectLeadersResponse.ReplicaElectionResult(topic=name))
        for topic in request.topic_partitions or ():
            rows = []
            for partition in topic.partitions:
                await context.work.step()
                error = self._fault(topic.topic, partition) or Errors.ELECTION_NOT_NEEDED
                rows.append(ElectLeadersResponse.PartitionResult(
                    partition_id=partition, error_code=error, error_message=_WORDS.get(error)))
            results.append(ElectLeadersResponse.ReplicaElectionResult(topic=topic.topic, partition_result=rows))
        return ElectLeadersResponse(replica_election_results=results)

    def _fault(self, topic: str, partition: int) -> Errors:
        if self._topics.topic(topic) is None:
            return unknown_topic(topic)
        return Errors.NONE if self._topics.has(topic, partition) else Errors.UNKNOWN_TOPIC_OR_PARTITION

    # --- replicas --------------------------------------------------------------------------------

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        """A partition may be assigned to the only node, where it is."""
        responses = []
        for topic in request.topics:
            rows = []
            for part in topic.partitions:
                await context.work.step()
                error = self._fault(topic.name, part.partition_index)
                if not error and part.replicas is None:
                    error = Errors.NO_REASSIGNMENT_IN_PROGRESS
                elif not error and part.replicas != [self._node_id]:
                    error = Errors.INVALID_REPLICA_ASSIGNMENT
                rows.append(AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                    partition_index=part.partition_index, error_code=error, error_message=_WORDS.get(error)))
            responses.append(AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name, partitions=rows))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, error_message=None,
            responses=responses)

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None)       # none is ever under way

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        """A partition may be moved to the only log dir, where it is."""
        rows: dict[str, dict[int, Errors]] = {}
        for one in request.dirs:
            for topic in one.topics:
                for number in topic.partitions:
                    await context.work.step()
                    error = self._fault(topic.name, number)
                    if one.path.rstrip("/") != self._log_dir:
                        error = Errors.LOG_DIR_NOT_FOUND
                    rows.setdefault(topic.name, {})[number] = error
        return AlterReplicaLogDirsResponse(results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=[
                AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error)
                for number, error in parts.items()])
            for name, parts in rows.items()
        ])

    # --- quotas and metrics of clients -----------------------------------------------------------

    async def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        """There are none. A filter that no client makes is refused, as by a broker."""
        types = [one.entity_type for one in request.components]
        error, words = Errors.NONE, ""
        if "" in types or any(one.match_type not in _MATCH_TYPES for one in request.components):
            error, words = Errors.INVALID_REQUEST, "Unexpected match type or empty entity type"
        elif len(set(types)) < len(types):
            error, words = Errors.INVALID_REQUEST, "Duplicate filter component entity type"
        elif (kinds := set(types) - _QUOTA_ENTITIES):
            error, words = Errors.UNSUPPORTED_VERSION, f"Custom entity type '{min(kinds)}' not supported"
        elif "ip" in types and len(types) > 1:
            error, words = Errors.INVALID_REQUEST, "Invalid entity filter component combination"
        return DescribeClientQuotasResponse(error_code=error, error_message=words, entries=None if error else [])

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, context: RequestContext
    ) -> AlterClientQuotasResponse:
        rows = []
        for entry in request.entries:
            await context.work.step(1 + len(entry.entity))
            rows.append(AlterClientQuotasResponse.EntryData(
                error_code=Errors.CLUSTER_AUTHORIZATION_FAILED, error_message=_NO_QUOTAS, entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=one.entity_type, entity_name=one.entity_name)
                    for one in entry.entity]))
        return AlterClientQuotasResponse(entries=rows)

    # --- the controller, which is not there ------------------------------------------------------

    async def describe_quorum(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        """No partition has a quorum, not even that of a log dir's `__cluster_metadata`, which is served to nobody. If
        that one were only unknown, Kafka's Admin would ask again and again."""
        topics = []
        for topic in request.topics:
            rows = []
            for part in topic.partitions:
                await context.work.step()
                is_quorums = topic.topic_name == METADATA_TOPIC and part.partition_index == 0
                rows.append(DescribeQuorumResponse.PartitionData(
                    partition_index=part.partition_index, error_message=_NO_CONTROLLER,
                    error_code=Errors.UNSUPPORTED_VERSION if is_quorums else Errors.UNKNOWN_TOPIC_OR_PARTITION))
            topics.append(DescribeQuorumResponse.TopicData(topic_name=topic.topic_name, partitions=rows))
        return DescribeQuorumResponse(topics=topics)

    async def update_features(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """The features that ApiVersions names are those of the release. Until version 2 brokers of 3.x say it of each
        feature, those of 4.x once for all: here clients find it in either place."""
        if not request.feature_updates:
            return UpdateFeaturesResponse(
                error_message=None if context.version >= _WITH_ONE_RESULT else "", results=[])
        results = []
        if context.version < _WITH_ONE_RESULT:
            for update in request.feature_updates:
                await context.work.step()
                results.append(UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=update.feature, error_code=Errors.INVALID_UPDATE_VERSION, error_message=_FIXED_FEATURES))
        return UpdateFeaturesResponse(
            error_code=Errors.INVALID_UPDATE_VERSION, error_message=_FIXED_FEATURES, results=results)

    async def unregister_broker(
        self, request: UnregisterBrokerRequest, context: RequestContext
    ) -> UnregisterBrokerResponse:
        if request.broker_id == self._node_id:
            return UnregisterBrokerResponse(
                error_code=Errors.CLUSTER_AUTHORIZATION_FAILED, error_message="The only node stays.")
        return UnregisterBrokerResponse(
            error_code=Errors.BROKER_ID_NOT_REGISTERED, error_message=f"Broker {request.broker_id} is not registered.")

    # --- delegation tokens, which nobody gets, as from a broker without a secret key for them -------

    async def create_delegation_token(
        self, request: CreateDelegationTokenRequest, context: RequestContext
    ) -> CreateDelegationTokenResponse:
        kind, _, name = context.principal.partition(":")
        return CreateDelegationTokenResponse(
            error_code=_no_token(context), issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1,
            principal_type=kind, principal_name=name, token_requester_principal_type=kind,
            token_requester_principal_name=name)

    async def renew_delegation_token(
        self, request: RenewDelegationTokenRequest, context: RequestContext
    ) -> RenewDelegationTokenResponse:
        return RenewDelegationTokenResponse(error_code=_no_token(context), expiry_timestamp_ms=-1)

    async def expire_delegation_token(
        self, request: ExpireDelegationTokenRequest, context: RequestContext
    ) -> ExpireDelegationTokenResponse:
        return ExpireDelegationTokenResponse(error_code=_no_token(context), expiry_timestamp_ms=-1)

    async def describe_delegation_token(
        self, request: DescribeDelegationTokenRequest, context: RequestContext
    ) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(error_code=_no_token(context))


def _no_token(context: RequestContext) -> Errors:
    """The refusal of a token; a client that has not logged in may not even ask for one."""
    return (Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if context.principal == ANONYMOUS
            else Errors.DELEGATION_TOKEN_AUTH_DISABLED)


_WORDS = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    Errors.INVALID_TOPIC_EXCEPTION: "No topic can have this name.",
    Errors.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    Errors.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
    Errors.INVALID_REPLICA_ASSIGNMENT: "Every partition is assigned to the only broker.",
}
