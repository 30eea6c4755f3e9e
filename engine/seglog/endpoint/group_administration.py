"""Administrators' requests: DescribeGroups, ListGroups, DeleteGroups, in all their versions."""

from seglog.coordinators.group import Group, GroupState
from seglog.coordinators.groups import GroupCoordinator
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

_CLASSIC, _CONSUMER = "classic", "consumer"
# AclEntry.supportedOperations(GROUP): READ, DELETE, DESCRIBE, as bits.
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8
UNKNOWN_OPERATIONS = -(1 << 31)
_WITH_NOT_FOUND = 6     # the first version of DescribeGroups in which an unknown group is an error (KIP-1043)


class GroupAdministration:
    """Answers these requests from the coordinator's groups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
        }

    async def describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        operations = ALL_OPERATIONS if request.include_authorized_operations else UNKNOWN_OPERATIONS
        groups = []
        for group_id in dict.fromkeys(request.groups):
            await context.work.step()
            row = self._describe(group_id, operations, context.version)
            await context.work.step(len(row.members), size_bytes=sum(
                len(member.member_metadata) + len(member.member_assignment) for member in row.members))
            groups.append(row)
        return DescribeGroupsResponse(groups=groups)

    def _describe(self, group_id: str, operations: int, version: int) -> DescribeGroupsResponse.DescribedGroup:
        described = DescribeGroupsResponse.DescribedGroup
        error = self._coordinator.check(group_id, may_be_empty=True)
        if error is not None:
            return described(group_id=group_id, error_code=error)
        group = self._coordinator.get(group_id)
        if not isinstance(group, Group) and version >= _WITH_NOT_FOUND:
            why = "not found" if group is None else "is not a classic group"
            return described(
                group_id=group_id, error_code=Errors.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {why}.",
                group_state=GroupState.DEAD.value)
        if not isinstance(group, Group):
            return described(group_id=group_id, group_state=GroupState.DEAD.value, authorized_operations=operations)
        # Subscriptions and assignments mean something only while the group is stable.
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return described(
            group_id=group_id, group_state=group.state.value, protocol_type=group.protocol_type or "",
            protocol_data=protocol or "", authorized_operations=operations,
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id, group_instance_id=member.group_instance_id,
                    client_id=member.client_id, client_host=member.client_host,
                    member_metadata=b"" if protocol is None else member.metadata(protocol),
                    member_assignment=b"" if protocol is None else member.assignment,
                )
                for member in group.members.values()
            ],
        )

    async def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        groups = []
        for group in list(self._coordinator.groups.values()):
            await context.work.step(size_bytes=len(group.group_id))
            kind = _CLASSIC if isinstance(group, Group) else _CONSUMER
            if (not states or group.state.value.lower() in states) and (not types or kind in types):
                groups.append(ListGroupsResponse.ListedGroup(
                    group_id=group.group_id, protocol_type=group.protocol_type or "", group_state=group.state.value,
                    group_type=kind,
                ))
        return ListGroupsResponse(error_code=self._coordinator.unready or Errors.NONE, groups=groups)

    async def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
        row, rows = DeleteGroupsResponse.DeletableGroupResult, []
        for group_id in dict.fromkeys(request.groups_names):
            await context.work.step()
            rows.append(row(group_id=group_id, error_code=await self._delete(group_id, context)))
        return DeleteGroupsResponse(results=rows)

    async def _delete(self, group_id: str, context: RequestContext) -> Errors:
        error = self._coordinator.check(group_id, may_be_empty=True)
        if error is not None:
            return error
        group = self._coordinator.get(group_id)
        if group is None:
            return Errors.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return Errors.NON_EMPTY_GROUP
        if isinstance(group, Group):
            for member_id in list(group.pending_members):
                group.forget_pending(member_id)
        removed = group.offsets.remove_all()
        group.become(GroupState.DEAD, self._coordinator.now_ms())
        context.log_deleted("group", group_id)
        return await self._coordinator.remove(group, removed)
