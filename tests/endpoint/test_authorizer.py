"""What the authorizer decides, held against Kafka's StandardAuthorizer.

`tests/golden/authorizer.json.gz` has 400 sets of ACLs, 12 000 questions about them and the answers of the class of
Kafka 4.1.1: `asks` are (principal, host, operation, resource type, name), `somes` the same without a name, for
Authorizer.authorizeByResourceType; `asked` has a digit for each, 1 for allowed.
"""
import asyncio
import gzip
import json
from pathlib import Path

import pytest

from seglog.endpoint.authorizer import Authorizer, super_users_of
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.state.acls import FILE_NAME, Acl, Operation, PatternType, Permission, ResourceType, read_acls

GOLDEN = Path(__file__).parent.parent / "golden/authorizer.json.gz"


def acl_of(entry):
    kind, name, pattern, principal, host, operation, permission = entry
    return Acl(ResourceType[kind], name, PatternType[pattern], principal, host, Operation[operation],
               Permission[permission])


def test_every_decision_is_that_of_kafkas_standard_authorizer(in_memory):
    decided = 0
    for n, case in enumerate(json.loads(gzip.decompress(GOLDEN.read_bytes()))):
        authorizer = Authorizer(
            OsFileSystem(), in_memory, super_users_of(case["super_users"]), allow_without_acl=case["allow_everyone"])
        # Some are of clusters of other names, which no client can create.
        asyncio.run(authorizer.change(lambda acls, of=case["acls"]: acls.update(map(acl_of, of))))
        (in_memory / FILE_NAME).unlink(missing_ok=True)
        for _ in range(2):      # the second time, from what is kept
            answers = [
                "".join(str(int(authorizer.allows(who, host, Operation[operation], ResourceType[kind], name)))
                        for who, host, operation, kind, name in case["asks"]),
                "".join(str(int(authorizer.allows_some(who, host, Operation[operation], ResourceType[kind])))
                        for who, host, operation, kind in case["somes"])]
            assert answers == case["asked"], n
        decided += sum(map(len, answers))
    assert decided == 12_000


def test_an_entry_for_all_names_is_about_names_that_begin_with_an_asterisk_too(in_memory):
    """StandardAuthorizer (4.1.1, 4.4.0) passes over the entry "*" where it is a prefix of a longer name: it would let a
    client into the group "*x" though all groups are denied to it."""
    authorizer = Authorizer(OsFileSystem(), in_memory, allow_without_acl=True)
    asyncio.run(authorizer.change(lambda acls: acls.add(
        acl_of(["GROUP", "*", "LITERAL", "User:alice", "*", "READ", "DENY"]))))
    for name in ("*", "*x", "x"):
        assert not authorizer.allows("User:alice", "10.0.0.1", Operation.READ, ResourceType.GROUP, name), name


def test_a_change_that_cannot_be_stored_changes_no_decision(in_memory):
    class FullDisk(OsFileSystem):
        def create(self, *arguments, **more):
            raise StorageError("no space left", file=arguments[0])

    acl = acl_of(["TOPIC", "a", "LITERAL", "User:alice", "*", "READ", "ALLOW"])
    which = "User:alice", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "a"
    authorizer = Authorizer(FullDisk(), in_memory)
    with pytest.raises(StorageError):
        asyncio.run(authorizer.change(lambda acls: acls.add(acl)))
    assert not authorizer.allows(*which)
    assert not read_acls(in_memory)
    authorizer = Authorizer(OsFileSystem(), in_memory)
    assert not authorizer.allows(*which)
    asyncio.run(authorizer.change(lambda acls: acls.add(acl)))
    assert authorizer.allows(*which)
    asyncio.run(authorizer.change(lambda acls: acls.discard(acl)))
    assert not authorizer.allows(*which)
