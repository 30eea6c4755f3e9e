"""Decides who may do what, by the rules of Kafka's StandardAuthorizer, from the ACLs that are stored with the log dir
(seglog.state.acls).

    a super user                                    allowed
    an entry that denies it                         denied
    an entry that allows it, or what implies it     allowed
    no entry is about the resource                  as allow.everyone.if.no.acl.found says
    otherwise                                       denied

Only of a name that is longer and begins with "*" the class does not ask the entries for "*", so that what they deny is
allowed there; here they are about every name.
"""
import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from seglog.errors import InvalidConfigError
from seglog.fs.files import FileSystem
from seglog.logger import Logger
from seglog.state.acls import (
    ANY_USER,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    read_acls,
    write_acls,
)

_LOG = Logger(__name__)

# What one who may do the other may do, too. (AclEntry.implyingOperations)
_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
# Decisions that are kept until an entry changes.
_KEPT_MAX = 10_000


def super_users_of(text: str) -> frozenset[str]:
    """Parse super.users: "User:alice;User:CN=bob,O=x". Raises InvalidConfigError."""
    found = [part.strip() for part in text.split(";") if part.strip()]
    for principal in found:
        if not all(principal.partition(":")):
            raise InvalidConfigError(f"super.users: {principal!r} is not TYPE:NAME, such as User:alice")
    if ANY_USER in found:
        _LOG.warning(
            "super.users: %s is a user with the name *, not everybody, as in Kafka; to let everybody do something, add "
            "an ACL for %s, or set allow.everyone.if.no.acl.found=true", ANY_USER, ANY_USER)
    return frozenset(found)


class Authorizer:
    """Use it in the loop's thread. `acls`: the entries as they are."""

    def __init__(
        self, fs: FileSystem, log_dir: Path, super_users: Iterable[str] = (), *, allow_without_acl: bool = False,
    ) -> None:
        """Raises what `read_acls` does."""
        self._fs = fs
        self._log_dir = log_dir
        self._super_users = frozenset(super_users)
        self._allow_without_acl = allow_without_acl
        self._changing = asyncio.Lock()
        self._take(read_acls(log_dir))

    def _take(self, acls: frozenset[Acl]) -> None:
        self.acls = acls
        # By resource type and name, the literal ones and those of prefixes; the lengths of the latter.
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = {}
        for acl in acls:
            into = self._literal if acl.pattern_type is PatternType.LITERAL else self._prefixed
            into.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
        self._lengths = sorted({len(name) for _, name in self._prefixed})
        self._kept: dict[tuple[Any, ...], bool] = {}

    def is_open_to_somebody(self) -> bool:
        """Whether anybody may do anything. Whoever names the super user `User:*` does not mean one of that name."""
        return bool(self._super_users - {ANY_USER} or self._allow_without_acl or self.acls)

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether this principal, from this host, may do this to the resource."""
        which = principal, host, operation, kind, name
        found = self._kept.get(which)
        if found is None:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            found = self._kept[which] = self._decide(*which)
        return found

    def _decide(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        has_acl = is_allowed = False
        implying = _IMPLIED_BY.get(operation, frozenset())
        for acl in self._about(kind, name):
            has_acl = True
            if acl.principal not in (principal, ANY_USER) or acl.host not in (host, WILDCARD):
                continue
            if acl.operation in (operation, Operation.ALL):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
            elif acl.permission is Permission.ALLOW and acl.operation in implying:
                is_allowed = True
        return is_allowed or (self._allow_without_acl and not has_acl)

    def _about(self, kind: ResourceType, name: str) -> Iterable[Acl]:
        yield from self._literal.get((kind, name), ())
        if name != WILDCARD:
            yield from self._literal.get((kind, WILDCARD), ())
        for length in self._lengths:
            if length > len(name):
                break
            yield from self._prefixed.get((kind, name[:length]), ())

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether this principal may do this to some resource of the type, whichever may exist.
        (Authorizer.authorizeByResourceType)"""
        # Asked of a name that nobody has entries for: super users, and servers that are open without entries.
        if self.allows(principal, host, operation, kind, "hardcode"):
            return True
        denied_names, denied_prefixes, allowed = set(), set(), []
        for acl in self.acls:
            if acl.resource_type is not kind or acl.operation not in (operation, Operation.ALL) or (
                acl.principal not in (principal, ANY_USER) or acl.host not in (host, WILDCARD)
            ):
                continue
            if acl.permission is Permission.ALLOW:
                allowed.append(acl)
            elif acl.pattern_type is PatternType.PREFIXED:
                denied_prefixes.add(acl.resource_name)
            elif acl.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(acl.resource_name)
        for acl in allowed:
            name, is_literal = acl.resource_name, acl.pattern_type is PatternType.LITERAL
            if is_literal and name == WILDCARD:
                return True
            if (not is_literal or name not in denied_names) and not any(
                name[:length] in denied_prefixes for length in range(1, len(name) + 1)
            ):
                return True
        return False

    async def change(self, change: Callable[[set[Acl]], object]) -> None:
        """Let `change` change a copy of the entries, and store that, durably, unless it is the same. Raises what
        `write_acls` does, and then nothing has changed."""
        async with self._changing:
            changed = set(self.acls)
            change(changed)
            if changed == self.acls:
                return
            await asyncio.shield(
                asyncio.get_running_loop().run_in_executor(None, write_acls, self._fs, self._log_dir, changed))
            self._take(frozenset(changed))
