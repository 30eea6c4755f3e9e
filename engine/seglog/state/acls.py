"""The access control list of a log dir: who may do what, by Kafka's rules. docs/formats/acls.md

An entry names a resource, literally or by a prefix, and a principal, a host and an operation that it allows or denies
there. Whoever may write the file may do everything, so only its owner can.
"""
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError, SeglogError
from seglog.format.checked_json import format_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.named_tuple import NamedTuple
from seglog.state.owners_json import read_owners_json

FILE_NAME = ".seglog.acls"
FORMAT = "seglog-acls"
VERSION = 1

ACLS_MAX = 10_000       # an entry takes about 200 bytes, and the file is written as a whole
TEXT_LENGTH_MAX = 1024  # of a name, a principal or a host
WILDCARD = "*"          # as a literal name: every resource; as a host: every host
ANY_USER = "User:*"
CLUSTER_NAME = "kafka-cluster"      # Resource.CLUSTER_NAME

_HINT = "restore the file from a backup; or remove it, and create the entries again"


class ResourceType(Enum):
    """What an entry is about. The value is Kafka's number (ResourceType)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(Enum):
    """How the name of an entry's resource is meant. The value is Kafka's number (PatternType)."""

    LITERAL = 3
    PREFIXED = 4


class Operation(Enum):
    """What an entry allows or denies. The value is Kafka's number (AclOperation)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(Enum):
    """The value is Kafka's number (AclPermissionType)."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """An entry. `principal`: such as "User:alice", or "User:*" for every user; `host`: an address, or "*"."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (f"{self.permission.name} {self.principal} from {self.host} {self.operation.name} "
                f"{self.resource_type.name} {self.pattern_type.name} {self.resource_name}")


def checked_acl(acl: Acl) -> Acl:
    """Raises InvalidArgumentError for an entry that Kafka refuses, or one with a text that is too long.
    (AclControlManager.validateNewAcl, AclApis.handleCreateAcls)"""
    fault = _fault(acl)
    if fault is not None:
        raise InvalidArgumentError(fault)
    return acl


def _fault(acl: Acl) -> str | None:
    if not acl.resource_name:
        return "Resource name should not be empty"
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    kind, colon, name = acl.principal.partition(":")
    if not colon:
        return (f"Could not parse principal from `{acl.principal:.100}` (no colon is present separating the principal "
                "type from the principal name)")
    if not kind or not name or not acl.host:
        return "The principal needs a type and a name, and the host must not be empty"
    if any(len(text) > TEXT_LENGTH_MAX for text in (acl.resource_name, acl.principal, acl.host)):
        return f"A name, a principal and a host have at most {TEXT_LENGTH_MAX} characters"
    return None


def read_acls(log_dir: Path) -> frozenset[Acl]:
    """The entries of a log dir; none if there is no file. Raises CorruptSettingsError, UnsupportedVersionError,
    StorageError."""
    found = read_owners_json(log_dir / FILE_NAME, "ACLs", FORMAT, VERSION, _acls, _HINT)
    return frozenset() if found is None else found


def write_acls(fs: FileSystem, log_dir: Path, acls: Iterable[Acl]) -> None:
    """Replace the entries of a log dir, durably; only the owner can read the file. Raises InvalidArgumentError if there
    are too many, StorageError."""
    entries = [
        {name: value.name if isinstance(value, Enum) else value for name, value in acl._asdict().items()}
        for acl in sorted(acls, key=_order)
    ]
    if len(entries) > ACLS_MAX:
        raise InvalidArgumentError(f"a log dir has at most {ACLS_MAX} ACLs")
    write_atomically(fs, log_dir / FILE_NAME, format_json(FORMAT, VERSION, acls=entries), mode=0o600)


def _order(acl: Acl) -> tuple[object, ...]:
    return tuple(value.value if isinstance(value, Enum) else value for value in acl)


def _acls(body: dict[str, Any]) -> frozenset[Acl]:
    entries = body["acls"]
    if not isinstance(entries, list) or len(entries) > ACLS_MAX:
        raise ValueError(f"not a list of at most {ACLS_MAX} entries")
    return frozenset(_acl(entry) for entry in entries)


def _acl(entry: dict[str, Any]) -> Acl:
    texts = entry["resource_name"], entry["principal"], entry["host"]
    if not all(isinstance(text, str) for text in texts) or entry.keys() != set(Acl._fields):
        raise ValueError("an entry has other members than expected")
    try:
        return checked_acl(Acl(
            ResourceType[entry["resource_type"]], entry["resource_name"], PatternType[entry["pattern_type"]],
            entry["principal"], entry["host"], Operation[entry["operation"]], Permission[entry["permission"]]))
    except SeglogError as error:
        raise ValueError(error.what) from None
