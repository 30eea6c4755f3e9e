"""The ACLs that clients make: DescribeAcls, CreateAcls, DeleteAcls. (AclApis, AclControlManager, AclBindingFilter)"""
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from seglog.coordinators.refusals import error_of, message_of
from seglog.endpoint.authorizer import Authorizer
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.state.acls import (
    ACLS_MAX,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    checked_acl,
)
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_NO_AUTHORIZER = "No Authorizer is configured."
_ANY, _MATCH = 1, 2         # in filters: everything; every pattern that a name matches
_ENTRY_BYTES = 100          # of an entry in an answer, besides its texts

_Described = DescribeAclsResponse.DescribeAclsResource
_Meant = TypeVar("_Meant")


class AclAdmin:
    """The handlers of these APIs. Without an authorizer, they are refused as by a broker without one."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self._authorizer = authorizer
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.DESCRIBE_ACLS: self.describe,
            ApiKey.CREATE_ACLS: self.create,
            ApiKey.DELETE_ACLS: self.delete,
        }

    async def describe(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        if self._authorizer is None:
            return DescribeAclsResponse(error_code=Errors.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)
        try:
            wanted = _Filter(request)
        except InvalidArgumentError as error:
            return DescribeAclsResponse(error_code=Errors.INVALID_REQUEST, error_message=error.what)
        found: dict[tuple[ResourceType, str, PatternType], _Described] = {}
        for acl in self._authorizer.acls:
            if context.work.is_heavy:
                await context.work.pause()
            if not wanted.takes(acl):
                continue
            await context.work.step(size_bytes=_size_bytes(acl))
            row = found.get(acl[:3])
            if row is None:
                row = found[acl[:3]] = _Described(
                    resource_type=acl.resource_type.value, resource_name=acl.resource_name,
                    pattern_type=acl.pattern_type.value)
            row.acls.append(DescribeAclsResponse.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation.value,
                permission_type=acl.permission.value))
        return DescribeAclsResponse(error_message=None, resources=list(found.values()))

    async def create(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        """Each entry is created or refused by itself; all that are created are durable before the answer."""
        rows, due = await self._judged(request.creations, CreateAclsResponse.AclCreationResult, _acl, context)

        def change(acls: set[Acl]) -> None:
            for row, acl in due:
                if acl not in acls and len(acls) >= ACLS_MAX:
                    row.error_code, row.error_message = Errors.POLICY_VIOLATION, f"There are {ACLS_MAX} ACLs already"
                else:
                    acls.add(acl)

        if self._authorizer is not None and due:
            try:
                await self._authorizer.change(change)
            except SeglogError as error:
                for row, _ in due:
                    row.error_code, row.error_message = error_of(error), message_of(error)
            created = [str(acl) for row, acl in due if not row.error_code]
            if created:
                context.security.acls_changed(context.client_host, context.principal, "created", created)
        return CreateAclsResponse(results=rows)

    async def delete(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        """What each filter finds is deleted, all of it durably before the answer."""
        rows, due = await self._judged(request.filters, DeleteAclsResponse.DeleteAclsFilterResult, _Filter, context)
        if self._authorizer is None or not due:
            return DeleteAclsResponse(filter_results=rows)
        deleted: set[Acl] = set()
        before = self._authorizer.acls
        for row, wanted in due:
            for acl in before:
                if context.work.is_heavy:
                    await context.work.pause()
                if wanted.takes(acl):
                    await context.work.step(size_bytes=_size_bytes(acl))
                    deleted.add(acl)
                    row.matching_acls.append(DeleteAclsResponse.DeleteAclsMatchingAcl(
                        error_message=None, resource_type=acl.resource_type.value, resource_name=acl.resource_name,
                        pattern_type=acl.pattern_type.value, principal=acl.principal, host=acl.host,
                        operation=acl.operation.value, permission_type=acl.permission.value))
        try:
            await self._authorizer.change(lambda acls: acls.difference_update(deleted))
        except SeglogError as error:
            for row, _ in due:
                row.error_code, row.error_message, row.matching_acls = error_of(error), message_of(error), []
            return DeleteAclsResponse(filter_results=rows)
        if deleted:
            context.security.acls_changed(
                context.client_host, context.principal, "deleted", [str(acl) for acl in deleted])
        return DeleteAclsResponse(filter_results=rows)

    async def _judged(
        self, asked: Iterable[Any], row_of: Callable[..., Any], meaning: Callable[[Any], _Meant],
        context: RequestContext,
    ) -> tuple[list[Any], list[tuple[Any, _Meant]]]:
        """A row of the answer for each of `asked`, and those with what they mean that are not refused by themselves."""
        rows: list[Any] = []
        due: list[tuple[Any, _Meant]] = []
        for one in asked:
            await context.work.step()
            row = row_of(error_message=None)
            rows.append(row)
            if self._authorizer is None:
                row.error_code, row.error_message = Errors.SECURITY_DISABLED, _NO_AUTHORIZER
                continue
            try:
                due.append((row, meaning(one)))
            except InvalidArgumentError as error:
                row.error_code, row.error_message = Errors.INVALID_REQUEST, error.what
        return rows, due


def _acl(one: CreateAclsRequest.AclCreation) -> Acl:
    """Raises InvalidArgumentError."""
    return checked_acl(Acl(
        _named(ResourceType, one.resource_type, "resourceType"), one.resource_name,
        _named(PatternType, one.resource_pattern_type, "patternType"), one.principal, one.host,
        _named(Operation, one.operation, "operation"), _named(Permission, one.permission_type, "permissionType")))


def _named(kind: Any, number: int, what: str) -> Any:
    try:
        return kind(number)
    except ValueError:
        raise InvalidArgumentError(f"Invalid {what} {number}") from None


class _Filter:
    """Which entries a client means. Raises InvalidArgumentError for numbers that no filter has."""

    def __init__(self, asked: Any) -> None:
        self._type = _wanted(ResourceType, asked.resource_type_filter, "resourceType")
        self._pattern = asked.pattern_type_filter
        if self._pattern != _MATCH:
            _wanted(PatternType, self._pattern, "patternType")
        self._name = asked.resource_name_filter
        self._principal, self._host = asked.principal_filter, asked.host_filter
        self._operation = _wanted(Operation, asked.operation, "operation")
        self._permission = _wanted(Permission, asked.permission_type, "permissionType")

    def takes(self, acl: Acl) -> bool:
        return (
            self._type in (None, acl.resource_type) and self._operation in (None, acl.operation)
            and self._permission in (None, acl.permission) and self._principal in (None, acl.principal)
            and self._host in (None, acl.host) and self._has_name(acl)
        )

    def _has_name(self, acl: Acl) -> bool:
        if self._pattern not in (_ANY, _MATCH, acl.pattern_type.value):
            return False
        if self._name in (None, acl.resource_name):
            return True
        if self._pattern != _MATCH:
            return False
        if acl.pattern_type is PatternType.LITERAL:
            return acl.resource_name == WILDCARD
        return bool(self._name.startswith(acl.resource_name))


def _wanted(kind: Any, number: int, what: str) -> Any:
    return None if number == _ANY else _named(kind, number, what)


def _size_bytes(acl: Acl) -> int:
    return _ENTRY_BYTES + len(acl.resource_name) + len(acl.principal) + len(acl.host)
