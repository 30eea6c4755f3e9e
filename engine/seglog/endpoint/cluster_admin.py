"""What an administrator asks of a cluster, as a single node without an authorizer answers it: ACLs, elections of
leaders, reassignments of replicas."""
from seglog.coordinators.refusals import unknown_topic
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import Topics
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ApiKey,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_NO_AUTHORIZER = "No Authorizer is configured."
_ELECTION_TYPES = (0, 1)        # preferred, unclean (ElectionType)


class ClusterAdmin:
    """The handlers of these APIs. `node_id`: of the only node."""

    def __init__(self, topics: Topics, node_id: int) -> None:
        self._topics = topics
        self._node_id = node_id
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.DESCRIBE_ACLS: self.describe_acls,
            ApiKey.CREATE_ACLS: self.create_acls,
            ApiKey.DELETE_ACLS: self.delete_acls,
            ApiKey.ELECT_LEADERS: self.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
        }

    # --- ACLs ------------------------------------------------------------------------------------

    async def describe_acls(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=Errors.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)

    async def create_acls(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        rows = []
        for _ in request.creations:
            await context.work.step()
            rows.append(CreateAclsResponse.AclCreationResult(
                error_code=Errors.SECURITY_DISABLED, error_message=_NO_AUTHORIZER))
        return CreateAclsResponse(results=rows)

    async def delete_acls(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        rows = []
        for _ in request.filters:
            await context.work.step()
            rows.append(DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=Errors.SECURITY_DISABLED, error_message=_NO_AUTHORIZER))
        return DeleteAclsResponse(filter_results=rows)

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
        return AlterPartitionReassignmentsResponse(error_message=None, responses=responses)

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None)       # none is ever under way


_WORDS = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    Errors.INVALID_TOPIC_EXCEPTION: "No topic can have this name.",
    Errors.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    Errors.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
    Errors.INVALID_REPLICA_ASSIGNMENT: "Every partition is assigned to the only broker.",
}
