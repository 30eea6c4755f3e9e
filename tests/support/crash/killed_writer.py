"""A process that changes a log until it is killed, and tells a witness of each call before and after it.

    python -m support.killed_writer PARTITION SEED FSYNC THREADS

A line goes out by one write, so that what the witness has read was said before the kill:

    open END               the log is open, and ends there
    give N                 the value of number N is about to be appended
    took N OFFSET          it was, and has this offset
    cut OFFSET             truncate_to is about to be called; then
    ends END               it returned
    delete OFFSET          delete_records is about to be called; then
    starts START           it returned
"""
import os
import random
import sys
import threading

import seglog

CONFIG = {"segment.bytes": 20_000, "index.interval.bytes": 500, "seglog.time.index.minute.enabled": True}


def value_of(number):
    return b"%d." % number + b"v" * (number * 131 % 900)


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Numbers:
    """Each number is given once, whatever process counts."""

    def __init__(self, seed):
        self._next = seed * 1_000_000
        self._lock = threading.Lock()

    def take(self):
        with self._lock:
            self._next += 1
            return self._next


def append(log, numbers, rng):
    count = rng.choice([1, 1, 1, 3])
    given = [numbers.take() for _ in range(count)]
    for number in given:
        say("give", number)
    if count == 1:
        last = log.append(value_of(given[0]))
    else:
        last = log.append_many([(None, value_of(number)) for number in given])
    for n, number in enumerate(given):
        say("took", number, last - count + 1 + n)


def change(log, numbers, rng):
    deed = rng.choices(["append", "roll", "flush", "cut", "delete"], [90, 2, 3, 3, 2])[0]
    if deed == "append":
        append(log, numbers, rng)
    elif deed == "roll":
        log.roll()
    elif deed == "flush":
        log.flush()
    elif deed == "cut":
        offset = max(log.log_end_offset - rng.choice([1, 5, 50]), log.log_start_offset)
        say("cut", offset)
        say("ends", log.truncate_to(offset))
    else:
        offset = rng.randint(log.log_start_offset, log.log_end_offset)
        say("delete", offset)
        say("starts", log.delete_records(offset))


def main(path, seed, fsync, threads):
    rng = random.Random(seed)
    numbers = Numbers(seed)
    log = seglog.open(path, config=CONFIG, fsync=fsync)
    say("open", log.log_end_offset)

    def go_on(rng):
        while True:
            append(log, numbers, rng)

    for n in range(threads - 1):
        threading.Thread(target=go_on, args=(random.Random(seed + n),), daemon=True).start()
    while True:
        if threads > 1:
            append(log, numbers, rng)
            continue
        change(log, numbers, rng)
        if rng.random() < 0.01:
            log.close()
            log = seglog.open(path, config=CONFIG, fsync=fsync)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
