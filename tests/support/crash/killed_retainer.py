"""A process whose log deletes by itself what is old, until it is killed; a witness hears of each append.

    python -m support.killed_retainer PARTITION SEED CONFIG_JSON

    took OFFSET TIMESTAMP      the record at OFFSET was appended, with this time
"""
import json
import os
import random
import sys
import time

import seglog


def value_of(offset):
    return b"%d." % offset + b"v" * (offset * 131 % 700)


def main():
    path, seed, config = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    rng = random.Random(seed)
    log = seglog.open(path, config=config, fsync=rng.choice(["batch", "never"]))
    while True:
        offset, now_ms = log.log_end_offset, time.time_ns() // 1_000_000
        assert log.append(value_of(offset), timestamp=now_ms) == offset
        os.write(1, b"took %d %d\n" % (offset, now_ms))
        if rng.random() < 0.01:
            log.roll()
        if rng.random() < 0.1:
            time.sleep(0.002)


if __name__ == "__main__":
    main()
