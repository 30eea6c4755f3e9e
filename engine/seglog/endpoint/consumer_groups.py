"""Requests of groups of the new protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""
import uuid
from functools import partial

from seglog.coordinators.assignors import Assignment
from seglog.coordinators.consumer_group import ConsumerGroup, ConsumerMember, Subscription
from seglog.coordinators.consumer_heartbeats import HeartbeatRequest, HeartbeatResult, RefusedHeartbeatError
from seglog.coordinators.groups import GroupCoordinator, OtherProtocolError
from seglog.coordinators.internal_topic import has_room
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.endpoint.authorizer import Authorizer
from seglog.endpoint.group_administration import ALL_OPERATIONS, UNKNOWN_OPERATIONS
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import Topics
from seglog.state.acls import Operation, ResourceType
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_OWN_IDS = 1        # the first version in which a client makes its member id itself
# ConsumerGroupMember's type: 0 would be a member of the classic protocol.
_CONSUMER = 1


class ConsumerGroups:
    """Translates these requests for `ConsumerHeartbeats`, and its results into answers."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics, authorizer: Authorizer | None = None) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._authorizer = authorizer
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
        }

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        try:
            result = await self._heartbeat(request, context)
        except RefusedHeartbeatError as refused:
            result = HeartbeatResult(refused.error, str(refused))
        assignment = result.assignment
        await context.work.step(0 if assignment is None else sum(map(len, assignment.values())))
        return ConsumerGroupHeartbeatResponse(
            error_code=result.error, error_message=result.message, member_id=result.member_id,
            member_epoch=result.epoch, heartbeat_interval_ms=result.interval_ms,
            assignment=None if assignment is None else await context.work.made(_given, assignment))

    async def _heartbeat(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> HeartbeatResult:
        coordinator, member_id = self._coordinator, request.member_id
        for name, value in (
            ("GroupId", request.group_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id)
        ):
            if value is not None and not value.strip():
                raise RefusedHeartbeatError(Errors.INVALID_REQUEST, f"{name} can't be empty.")
        error = coordinator.check(request.group_id)
        if error is not None:
            return HeartbeatResult(error)
        if not member_id and (request.member_epoch != 0 or context.version >= _OWN_IDS):
            raise RefusedHeartbeatError(Errors.INVALID_REQUEST, "MemberId can't be empty.")
        names = (member_id, request.instance_id, request.rack_id, context.client_id, request.server_assignor,
                 request.subscribed_topic_regex, *(request.subscribed_topic_names or ()))
        if not has_room(*names):
            raise RefusedHeartbeatError(Errors.INVALID_REQUEST, "a name is too long")
        beat = HeartbeatRequest(
            member_id or str(uuid.uuid4()), request.member_epoch, context.client_id or "", context.client_host,
            request.instance_id, request.rack_id, request.rebalance_timeout_ms, request.subscribed_topic_names,
            request.subscribed_topic_regex, request.server_assignor, _owned(request))
        coordinator.consumers.check(beat)
        try:
            group = coordinator.get(request.group_id) if request.member_epoch else coordinator.consumer_to_join(
                request.group_id)
        except OtherProtocolError:       # members of the classic protocol are in it
            group = coordinator.get(request.group_id)
        if group is None and request.member_epoch == 0:
            return HeartbeatResult(Errors.POLICY_VIOLATION, "there is no room for another group")
        if not isinstance(group, ConsumerGroup):
            what = f"Group {request.group_id} not found." if group is None else (
                f"Group {request.group_id} is not a consumer group.")
            raise RefusedHeartbeatError(Errors.GROUP_ID_NOT_FOUND, what)
        told = Subscription(
            beat.instance_id, beat.rack_id, beat.client_id, beat.client_host, tuple(beat.topics or ()), beat.regex,
            assignor=beat.assignor)
        if not coordinator.has_room_for_consumer(group, beat.member_id, told):
            return HeartbeatResult(Errors.GROUP_MAX_SIZE_REACHED, "there is no room for another member")
        answer: PendingAnswer[HeartbeatResult] = PendingAnswer()
        try:
            coordinator.consumers.heartbeat(group, beat, partial(self._may_read, context), answer.give)
        finally:
            coordinator.drop_if_new(group)
        return await answer

    def _may_read(self, context: RequestContext, topic: str) -> bool:
        """Whether a regular expression of this client may match the topic."""
        return self._authorizer is None or self._authorizer.allows(
            context.principal, context.client_host.removeprefix("/"), Operation.DESCRIBE, ResourceType.TOPIC, topic)

    async def describe(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        operations = ALL_OPERATIONS if request.include_authorized_operations else UNKNOWN_OPERATIONS
        rows, described = [], ConsumerGroupDescribeResponse.DescribedGroup
        for group_id in dict.fromkeys(request.group_ids):
            await context.work.step()
            group = self._coordinator.get(group_id)
            error = self._coordinator.check(group_id)
            if error is not None:
                rows.append(described(group_id=group_id, error_code=error))
            elif not isinstance(group, ConsumerGroup):
                why = "not found" if group is None else "is not a consumer group"
                rows.append(described(
                    group_id=group_id, error_code=Errors.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {why}."))
            else:
                row = described(
                    group_id=group_id, group_state=group.state.value, group_epoch=group.epoch,
                    assignment_epoch=group.target_epoch, assignor_name=self._coordinator.consumers.assignor_of(group),
                    authorized_operations=operations)
                for member in list(group.members.values()):
                    await context.work.step(
                        1 + sum(map(len, member.current.owned.values())),
                        size_bytes=member.told.size_bytes)
                    row.members.append(self._member(group, member))
                rows.append(row)
        return ConsumerGroupDescribeResponse(groups=rows)

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroupDescribeResponse.Member:
        told = member.told
        return ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id, instance_id=told.instance_id, rack_id=told.rack_id,
            member_epoch=member.current.epoch, client_id=told.client_id, client_host=told.client_host,
            subscribed_topic_names=list(told.topics), subscribed_topic_regex=told.regex or "",
            assignment=self._assignment(member.current.owned),
            target_assignment=self._assignment(group.target.get(member.member_id, {})), member_type=_CONSUMER)

    def _assignment(self, assignment: Assignment) -> ConsumerGroupDescribeResponse.Assignment:
        row = ConsumerGroupDescribeResponse.TopicPartitions
        named = [(self._topics.name_of_id(topic_id), topic_id, numbers) for topic_id, numbers in assignment.items()]
        return ConsumerGroupDescribeResponse.Assignment(topic_partitions=[
            row(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
            for name, topic_id, numbers in named if name])      # not of a topic that was deleted


def _given(assignment: Assignment) -> ConsumerGroupHeartbeatResponse.Assignment:
    row = ConsumerGroupHeartbeatResponse.TopicPartitions
    return ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=[
        row(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in assignment.items()])


def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for row in request.topic_partitions:
        owned.setdefault(row.topic_id, set()).update(row.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
