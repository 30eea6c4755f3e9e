"""A process that changes a partition directory as a broker does while it runs: appends, rolls, deletes by retention.

    python busy_broker.py LOG_DIR/orders-0 [lock]

Kafka's order of steps: a batch, then its index entries (the active segment's indexes are mapped at full size, zeros
behind the entries); a roll adds the closing time entry and trims both; retention renames .log, .index, .timeindex to
`.deleted`, one after the other, lets the leader epochs begin with the next segment, and removes the files later. With
`lock` it holds the log dir's .lock, as a broker does. Prints "ready" when the first segment is there, then the number
of rolls when stdin is closed. The file `pulse`, beside LOG_DIR, tells whether it got on meanwhile.
"""
import fcntl
import mmap
import os
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support import plain_format as plain
from support.pulse import Pulse

INTERVAL, SEGMENT_BYTES, INDEX_BYTES, KEPT = 256, 6000, 1600, 3
DELETE_DELAY_S = 0.15


class Active:
    """The segment that is appended to."""

    def __init__(self, directory, base_offset):
        self.base_offset = base_offset
        self.stem = directory / f"{base_offset:020d}"
        self.log = open(f"{self.stem}.log", "wb", buffering=0)      # noqa: SIM115 - closed by close()
        self.index, self.times = self.mapped(".index", 8), self.mapped(".timeindex", 12)
        self.size = self.since_entry = self.entries = self.time_entries = 0
        self.largest = (-1, -1)

    def mapped(self, suffix, entry_size):
        size = INDEX_BYTES // entry_size * entry_size
        with open(f"{self.stem}{suffix}", "wb+") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)

    def append(self, batch, offset, timestamp):
        self.log.write(batch)
        self.largest = max(self.largest, (timestamp, offset - self.base_offset))
        if self.since_entry > INTERVAL:
            struct.pack_into(">ii", self.index, 8 * self.entries, offset - self.base_offset, self.size)
            self.entries += 1
            self.add_time()
            self.since_entry = 0
        self.size += len(batch)
        self.since_entry += len(batch)

    def add_time(self):
        struct.pack_into(">qi", self.times, 12 * self.time_entries, *self.largest)
        self.time_entries += 1

    def close(self):
        last, = struct.unpack_from(">q", self.times, 12 * (self.time_entries - 1))
        if last < self.largest[0]:
            self.add_time()
        for suffix, map_, size in ((".timeindex", self.times, 12 * self.time_entries),
                                   (".index", self.index, 8 * self.entries)):
            map_.close()
            os.truncate(f"{self.stem}{suffix}", size)
        self.log.close()


def delete(stem):
    """LogSegment.changeFileSuffixes: the files that are to be removed later."""
    gone = []
    for suffix in (".log", ".index", ".timeindex"):
        os.rename(f"{stem}{suffix}", f"{stem}{suffix}.deleted")
        gone.append(f"{stem}{suffix}.deleted")
        time.sleep(0.0005)      # a reader comes in between now and then
    return gone


def put_epochs(directory, start):
    """CheckpointFile.write"""
    path = directory / "leader-epoch-checkpoint"
    path.with_suffix(".tmp").write_text(f"0\n1\n0 {start}\n")
    os.replace(path.with_suffix(".tmp"), path)


def main(directory, lock):
    if lock:
        held = open(directory.parent / ".lock", "w")        # noqa: SIM115 - held until the process ends
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    put_epochs(directory, 0)
    offset, rolls = 0, 0
    segments, deleted = deque(), deque()
    pulse = Pulse(directory.parent.parent / "pulse")
    active = Active(directory, offset)
    while not select.select([sys.stdin], [], [], 0)[0]:
        pulse.beat()
        timestamp = 1_700_000_000_000 + offset
        record = plain.record_v2(value=b"x" * 60)
        batch = plain.batch_v2(record, base_offset=offset, base_timestamp=timestamp, max_timestamp=timestamp)
        active.append(batch, offset, timestamp)
        offset += 1
        if active.size > SEGMENT_BYTES:
            active.close()
            segments.append(active.stem)
            active = Active(directory, offset)
            rolls += 1
            if rolls == KEPT + 1:
                print("ready", flush=True)
        if len(segments) > KEPT:
            deleted.append((time.monotonic() + DELETE_DELAY_S, delete(segments.popleft())))
            put_epochs(directory, int(segments[0].name))
        while deleted and deleted[0][0] < time.monotonic():
            for path in deleted.popleft()[1]:
                os.unlink(path)
    print(rolls, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["lock"])
