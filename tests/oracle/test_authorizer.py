"""What is golden of the authorizer is what Kafka's StandardAuthorizer decides."""
import gzip
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden/authorizer.json.gz"
KINDS = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
OPERATIONS = ["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
              "ALTER_CONFIGS", "IDEMPOTENT_WRITE"]
NAMES = ["a", "ab", "abc", "abd", "b", "orders", "orders-1", "o", "kafka-cluster", "hardcode", "h"]
PRINCIPALS = ["User:alice", "User:bob", "User:root", "Robot:alice", "User:ANONYMOUS"]
HOSTS = ["10.0.0.1", "10.0.0.2"]


def made(seed):
    """ACLs that often meet, and questions about them."""
    rnd = random.Random(seed)
    kinds = KINDS if seed % 3 else KINDS[:1]
    operations = OPERATIONS if seed % 2 else ["READ", "WRITE", "DESCRIBE"]
    acls = [[
        rnd.choice(kinds), rnd.choice([*NAMES, "*"]), rnd.choice(["LITERAL", "LITERAL", "PREFIXED"]),
        rnd.choice([*PRINCIPALS[:4], "User:*"]), rnd.choice(["*", *HOSTS]), rnd.choice([*operations, "ALL"]),
        rnd.choice(["ALLOW", "ALLOW", "DENY"])] for _ in range(rnd.choice([0, 1, 1, 2, 3, 5, 10]))]
    return {
        "super_users": rnd.choice(["", "User:root", "User:root;Robot:alice"]), "allow_everyone": rnd.random() < 0.25,
        "acls": [list(acl) for acl in dict.fromkeys(map(tuple, acls))],
        "asks": [[rnd.choice(PRINCIPALS), rnd.choice(HOSTS), rnd.choice(operations), rnd.choice(kinds),
                  rnd.choice(NAMES)] for _ in range(25)],
        "somes": [[rnd.choice(PRINCIPALS[:3]), rnd.choice(HOSTS), rnd.choice(["READ", "WRITE"]), "TOPIC"]
                  for _ in range(5)],
    }


def decided(cases):
    """What the real one says: for each case the digits of its questions, and of those without a name."""
    lines = []
    for case in cases:
        lines.append(["new", case["super_users"], str(case["allow_everyone"]).lower()])
        lines += [[what, *one] for what, all_of in (("acl", "acls"), ("ask", "asks"), ("some", "somes"))
                  for one in case[all_of]]
    done = subprocess.run(
        [HERE / "kafka/java.sh", "4.1.1", "Authorize"], input="".join("\t".join(line) + "\n" for line in lines),
        stdout=subprocess.PIPE, check=True, text=True)
    digits = iter(done.stdout.split())
    return [["".join(next(digits) for _ in case[what]) for what in ("asks", "somes")] for case in cases]


def test_golden_decisions_are_those_of_today():
    """With SEGLOG_UPDATE_GOLDEN=1 they are regenerated."""
    if os.environ.get("SEGLOG_UPDATE_GOLDEN"):
        cases = [made(seed) for seed in range(400)]
        for case, asked in zip(cases, decided(cases), strict=True):
            case["asked"] = asked
        GOLDEN.write_bytes(gzip.compress(json.dumps(cases, separators=(",", ":")).encode(), 9, mtime=0))
    golden = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    assert decided(golden) == [case["asked"] for case in golden]
