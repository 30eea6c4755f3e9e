"""A reader of `support.followed_writer`, in a process of its own. It checks each record as it comes, at last the log.

    python -m support.followed_reader PATH STOP_FILE read|follow SEED

Ends with 0 when STOP_FILE is there and what it holds is what the log holds; prints how many records it saw.
"""
import random
import sys
import threading
import time
from pathlib import Path

import seglog
from seglog.errors import OffsetOutOfRangeError
from support.followed_writer import parsed

KEPT = 5000     # offsets: what is compared at the end


class Seen:
    """What a reader holds of the log: each record once, in order, and no gap."""

    def __init__(self):
        self.values = {}
        self.next_offset = None
        self.numbers = {}       # (life, thread) -> the last number
        self.count = self.cuts = self.jumps = 0

    def begin_at(self, offset):
        """After a deletion: what lies below is gone."""
        if self.next_offset is not None and offset > self.next_offset:
            self.jumps += 1
            self.next_offset = offset

    def add(self, record):
        life, thread, number = parsed(record.value)
        if self.next_offset is not None:
            assert record.offset <= self.next_offset, f"a gap: {record.offset} after {self.next_offset}"
            if record.offset < self.next_offset:
                self.cuts += 1
                for offset in range(record.offset, self.next_offset):
                    self.values.pop(offset, None)
        before = self.numbers.get((life, thread), -1)
        assert number > before, f"twice: {life} {thread} {number} after {before}"
        self.numbers[life, thread] = number
        self.values[record.offset] = record.value
        self.values.pop(record.offset - KEPT, None)
        self.next_offset = record.offset + 1
        self.count += 1


def close_at_the_end(follower, seen, stop):
    """Ends `follow` as another thread does: by closing, when all is seen."""
    while not stop.exists() or seen.next_offset != follower.log_end_offset:
        time.sleep(0.05)
    follower.close()


def follow(path, stop):
    seen = Seen()
    follower = seglog.follow(path)
    threading.Thread(target=close_at_the_end, args=(follower, seen, stop), daemon=True).start()
    start = "start"
    while True:
        try:
            for record in follower.follow(start):
                seen.add(record)
            return seen, seglog.follow(path)
        except OffsetOutOfRangeError:
            start = follower.log_start_offset
            seen.begin_at(start)


def read(path, stop, chance):
    """Random reads: whole batches, in order, and nothing that is torn."""
    follower = seglog.follow(path)
    seen = Seen()
    while not stop.exists():
        start, end = follower.log_start_offset, follower.log_end_offset
        first = chance.randint(start, max(start, end))
        expected = None
        try:
            for record in follower.read(first):
                parsed(record.value)
                assert expected is None or record.offset == expected, f"{record.offset} after {expected - 1}"
                expected = record.offset + 1
                seen.count += 1
                if chance.random() < 0.001:
                    break
            time.sleep(0.02)
            if end > start:
                parsed(follower[chance.randint(start, end - 1)].value)
        except OffsetOutOfRangeError:
            seen.jumps += 1
    return seen, follower


def main():
    path, stop, kind, seed = sys.argv[1:]
    if kind == "follow":
        seen, follower = follow(path, Path(stop))
        now = {record.offset: record.value for record in follower.read()}
        assert seen.next_offset == follower.log_end_offset, (seen.next_offset, follower.log_end_offset)
        for offset, value in now.items():
            if offset > follower.log_end_offset - KEPT and offset in seen.values:
                assert seen.values[offset] == value, f"another record at {offset}"
        held = [offset for offset in now if offset in seen.values]
        assert held == list(range(held[0], follower.log_end_offset)) if held else not now
    else:
        seen, follower = read(path, Path(stop), random.Random(int(seed)))
    print(f"{kind}: {seen.count} records, {seen.cuts} cuts, {seen.jumps} jumps")


if __name__ == "__main__":
    main()
