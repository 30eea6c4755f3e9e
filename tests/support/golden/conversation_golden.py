"""The answers of Kafka 3.9.1 to the conversation of whole_conversation.py."""

import gzip
import json
from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden/conversation.json.gz"


@cache
def read_golden():
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))


def write_golden(held):
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(answer, sort_keys=True)}" for key, answer in sorted(held.items())
    )
    GOLDEN.write_bytes(gzip.compress(f"{{\n{lines}\n}}\n".encode(), 9, mtime=0))
