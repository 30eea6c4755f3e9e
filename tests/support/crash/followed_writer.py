"""A writer that others follow: four threads append, a fifth cuts, deletes and rolls now and then. To be killed.

    python -m support.followed_writer PATH FSYNC LIFE SEED
"""
import random
import sys
import threading
import time
from zlib import crc32

import seglog

THREADS = 4
CONFIG = {
    "segment.bytes": 40_000, "index.interval.bytes": 500, "file.delete.delay.ms": 0, "flush.ms": 20,
    "linger.ms": 0,
}


def value_of(life, thread, number):
    """`<life> <thread> <number> <crc> <filling>`: torn bytes show."""
    head = b"%d %d %d" % (life, thread, number)
    return b"%s %d %s" % (head, crc32(head), b"f" * (number * 7 % 300))


def parsed(value):
    """(life, thread, number) of a value that is whole."""
    life, thread, number = map(int, value.split(b" ")[:3])
    assert value == value_of(life, thread, number), f"a torn record: {value!r}"
    return life, thread, number


def write(log, life, thread, waits):
    number = 0
    while True:
        if number % 3:
            log.append(value_of(life, thread, number), wait=waits)
            number += 1
        else:
            log.append_many([(None, value_of(life, thread, number + n)) for n in range(4)], wait=waits)
            number += 4
        time.sleep(0.002)


def main():
    path, fsync, life, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    log = seglog.open(path, fsync=fsync, config=CONFIG)
    print("open", flush=True)
    for thread in range(THREADS):
        threading.Thread(target=write, args=(log, int(life), thread, bool(thread % 2)), daemon=True).start()
    while True:
        time.sleep(chance.uniform(0.005, 0.06))
        end = log.log_end_offset
        with_room = max(log.log_start_offset, end - chance.randrange(120))
        match chance.randrange(8):
            case 0 | 1:
                log.truncate_to(with_room)
            case 2:
                log.roll()
            case 3 if end - log.log_start_offset > 3000:
                log.delete_records(end - 2500)


if __name__ == "__main__":
    main()
