"""The answers of Kafka 3.9.1 to the conversation of whole_conversation.py, those of 4.4.0 to newest_conversation.py."""

import gzip
import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN, NEWEST = FOLDER / "conversation.json.gz", FOLDER / "newest_conversation.json.gz"


@cache
def read_golden(file=GOLDEN):
    return json.loads(gzip.decompress(file.read_bytes()))


def write_golden(held, file=GOLDEN):
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(answer, sort_keys=True)}" for key, answer in sorted(held.items())
    )
    file.write_bytes(gzip.compress(f"{{\n{lines}\n}}\n".encode(), 9, mtime=0))
