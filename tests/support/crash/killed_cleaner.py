"""A process that appends to a compacted log and compacts it until it is killed.

    python -m support.killed_cleaner PARTITION SEED

`took KEY OFFSET` goes out by one write when an append has returned, `cleaned END` when a compaction has.
"""
import os
import random
import sys

from seglog.log.log import Log
from seglog.upkeep.cleaner import clean

CONFIG = {"cleanup.policy": "compact", "segment.bytes": 4000, "index.interval.bytes": 300, "delete.retention.ms": 0}


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(path, seed):
    rng = random.Random(seed)
    with Log(path, config=CONFIG) as log:
        while True:
            for _ in range(rng.randrange(10, 60)):
                key = rng.randrange(30)
                offset = log.append(b"v" * rng.randrange(100), key=b"%d" % key)
                say("took", key, offset)
            say("cleaned", clean(log).end_offset)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
