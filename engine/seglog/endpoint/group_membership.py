"""Members' requests: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, in all their versions."""
from functools import partial

from seglog.coordinators.group import Group
from seglog.coordinators.group_member import JoinResult, SyncResult
from seglog.coordinators.groups import GroupCoordinator, OtherProtocolError
from seglog.coordinators.internal_topic import has_room
from seglog.coordinators.offsets_topic import AnyGroup
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.rebalancing import JoinRequest
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# FindCoordinatorRequest.CoordinatorType
_GROUP, _TRANSACTION = 0, 1
# Looked up before the loop goes on, in a request with many.
_KEYS_AT_ONCE = 64
# A member id is its client id or instance id plus this many characters.
_UUID_CHARACTERS = 37


class GroupMembership:
    """Translates these requests for `Rebalancing`, and its results into answers."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._rebalancing = coordinator.rebalancing
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
        }

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """The coordinator is always this node. The first request creates its topic."""
        error = Errors.NONE
        keys = request.coordinator_keys if context.version >= 4 else [request.key]
        # In older versions the message on success is "NONE", as Kafka sends it.
        message = Errors.NONE.name if context.version < 4 else ""
        ensure = {_GROUP: self._coordinator.topic.ensure, _TRANSACTION: self._coordinator.ensure_transactions}.get(
            request.key_type)
        if ensure is not None:
            for at in range(0, len(keys), _KEYS_AT_ONCE):
                some = keys[at : at + _KEYS_AT_ONCE]
                await context.work.step(len(some))
                await ensure(*some)
        else:
            error, message = Errors.INVALID_REQUEST, f"unknown key type {request.key_type}; expected 0 or 1"
        node_id, host, port = self._coordinator.node_id, context.host, context.port
        if error is not Errors.NONE:
            node_id, host, port = -1, "", -1
        if context.version < 4:
            return FindCoordinatorResponse(
                error_code=error, error_message=message, node_id=node_id, host=host, port=port
            )
        return await context.work.made(lambda: FindCoordinatorResponse(coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=message
            )
            for key in keys
        ]))

    async def join_group(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        result = await self._join(request, context)
        # The leader gets what all the others sent.
        await context.work.step(len(result.members), sum(len(metadata) for _, _, metadata in result.members))
        name = result.protocol_name
        return JoinGroupResponse(
            error_code=result.error, generation_id=result.generation, protocol_type=result.protocol_type,
            protocol_name="" if name is None and context.version < 7 else name, leader=result.leader,
            skip_assignment=result.skip_assignment, member_id=result.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=member_id, group_instance_id=group_instance_id, metadata=metadata
                )
                for member_id, group_instance_id, metadata in result.members
            ],
        )

    async def _join(self, request: JoinGroupRequest, context: RequestContext) -> JoinResult:
        coordinator, config, member_id = self._coordinator, self._coordinator.config, request.member_id
        error = coordinator.check(request.group_id)
        if error is not None:
            return JoinResult(member_id, error)
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return JoinResult(member_id, Errors.INVALID_SESSION_TIMEOUT)
        names = (request.group_instance_id, context.client_id, request.protocol_type,
                 *(protocol.name for protocol in request.protocols))
        if not has_room(*names, more=_UUID_CHARACTERS):
            return JoinResult(member_id, Errors.INVALID_REQUEST)
        try:
            group = coordinator.classic(request.group_id) if member_id else coordinator.classic_to_join(
                request.group_id)
        except OtherProtocolError:       # members of the new protocol are in it
            return JoinResult(member_id, Errors.INCONSISTENT_GROUP_PROTOCOL)
        if group is None:
            return JoinResult(member_id, Errors.UNKNOWN_MEMBER_ID if member_id else Errors.POLICY_VIOLATION)
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        member, name = group.members.get(member_id), request.group_instance_id or context.client_id
        if not coordinator.has_room_for_member(member, (context.client_id, request.group_instance_id, name), protocols):
            return JoinResult(member_id, Errors.GROUP_MAX_SIZE_REACHED)
        answer: PendingAnswer[JoinResult] = PendingAnswer()
        self._rebalancing.join(group, member_id, JoinRequest(
            group_instance_id=request.group_instance_id, client_id=context.client_id or "",
            client_host=context.client_host,
            # Version 0 has no rebalance timeout.
            rebalance_timeout_ms=request.session_timeout_ms if context.version == 0 else request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms, protocol_type=request.protocol_type,
            protocols=protocols,
            needs_known_id=context.version >= 4 and request.group_instance_id is None,
            may_skip_assignment=context.version >= 9,
        ), answer.give)
        # If the client leaves, the group goes on without this answer; its session ends the member.
        with context.peer.watched(partial(answer.give, JoinResult(member_id, Errors.REBALANCE_IN_PROGRESS))):
            return await answer

    async def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        result = await self._sync(request, context)
        await context.work.step(size_bytes=len(result.assignment))
        return SyncGroupResponse(
            error_code=result.error, protocol_type=result.protocol_type, protocol_name=result.protocol_name,
            assignment=result.assignment,
        )

    async def _sync(self, request: SyncGroupRequest, context: RequestContext) -> SyncResult:
        names = request.protocol_type, request.protocol_name
        if context.version >= 5 and None in names:
            return SyncResult(Errors.INCONSISTENT_GROUP_PROTOCOL)
        error = self._coordinator.check(request.group_id)
        if error is not None:
            return SyncResult(error)
        group = self._coordinator.classic(request.group_id)
        if group is None:
            return SyncResult(Errors.UNKNOWN_MEMBER_ID)
        size_bytes = sum(len(one.assignment) for one in request.assignments)
        if size_bytes and not self._coordinator.has_room_for_assignments(group, size_bytes):
            return SyncResult(Errors.GROUP_MAX_SIZE_REACHED)
        answer: PendingAnswer[SyncResult] = PendingAnswer()
        self._rebalancing.sync(
            group, request.member_id, request.group_instance_id, request.generation_id, *names,
            {assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments},
            answer.give,
        )
        with context.peer.watched(partial(answer.give, SyncResult(Errors.REBALANCE_IN_PROGRESS))):
            return await answer

    async def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        error = self._coordinator.check(request.group_id)
        if error is Errors.COORDINATOR_LOAD_IN_PROGRESS:
            error = Errors.NONE     # its groups are not known yet, and Kafka's clients leave their group on an error
        elif error is None:
            group = self._coordinator.classic(request.group_id)
            error = Errors.UNKNOWN_MEMBER_ID if group is None else self._rebalancing.heartbeat(
                group, request.member_id, request.group_instance_id, request.generation_id
            )
        return HeartbeatResponse(error_code=error)

    async def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        error = self._coordinator.check(request.group_id)
        if error is not None:
            return LeaveGroupResponse(error_code=error)
        leaving = request.members
        if context.version < 3:
            leaving = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        group = self._coordinator.get(request.group_id)
        rows = []
        for member in leaving:
            await context.work.step()
            rows.append(LeaveGroupResponse.MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id,
                error_code=await self._leave(
                    group, member.member_id, member.group_instance_id, member.reason or "no reason was given"),
            ))
        if context.version < 3:
            return LeaveGroupResponse(error_code=rows[0].error_code)
        return LeaveGroupResponse(members=rows)

    async def _leave(
        self, group: AnyGroup | None, member_id: str, group_instance_id: str | None, reason: str
    ) -> Errors:
        if group is None:
            return Errors.UNKNOWN_MEMBER_ID
        if isinstance(group, Group):
            return self._rebalancing.leave(group, member_id, group_instance_id, reason)
        removed: PendingAnswer[Errors] = PendingAnswer()    # an operator removes it
        self._coordinator.consumers.remove_member(group, member_id, group_instance_id, removed.give)
        return await removed
