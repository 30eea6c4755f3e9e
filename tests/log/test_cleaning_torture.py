"""Appends, reads in four processes, compaction, retention, hot backups and truncation, all at once: no reader ever sees
a wrong latest value, or misses one."""
import collections
import contextlib
import mmap
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import seglog
from support.table_reader import TOMBSTONE, read
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: ten minutes; otherwise two seconds, and until all has happened that is to happen.
SECONDS = 600 if os.environ.get("SEGLOG_TORTURE") else 2
SECONDS_MAX = SECONDS + 240
TESTS = Path(__file__).parents[1]
KEYS, READERS = 200, 4
CUT_MAX = 40        # records: what may be taken back
TABLE = {
    "cleanup.policy": "compact", "segment.bytes": 20_000, "min.cleanable.dirty.ratio": 0.1,
    "file.delete.delay.ms": 0, "index.interval.bytes": 500, "delete.retention.ms": 20_000,
}
EVENTS = {
    "segment.bytes": 20_000, "retention.ms": 1500, "retention.bytes": 200_000, "seglog.retention.granularity": "batch",
    "file.delete.delay.ms": 200,
}


class Table:
    """What was appended to the table: of each key the last version, certain once it is too old to be cut."""

    def __init__(self, log, floors):
        self.log, self.floors = log, floors
        self.recent = collections.deque()       # (offset, key, version, is a tombstone)
        self.version = 0

    def append(self, key, *, deletes):
        self.version += 1
        if deletes:     # from now on the key may be there or not
            self.allow_gone(key)
        value = None if deletes else b"%d.%d." % (key, self.version) + b"v" * (self.version % 200)
        offset = self.log.append(value, key=b"%d" % key, headers=[("version", b"%d" % self.version)])
        self.recent.append((offset, key, self.version, deletes))
        while len(self.recent) > CUT_MAX:
            _, key, version, deletes = self.recent.popleft()
            struct.pack_into("<q", self.floors, 8 * key, version)
            if deletes or any(recent[1] == key and recent[3] for recent in self.recent):
                self.allow_gone(key)

    def allow_gone(self, key):
        (floor,) = struct.unpack_from("<q", self.floors, 8 * key)
        struct.pack_into("<q", self.floors, 8 * key, floor | TOMBSTONE)

    def cut(self, records):
        """Within the active segment, which is never compacted: what a record has superseded is gone for good else."""
        offset = max(self.recent[-records][0], self.log.segments[-1].base_offset)
        while self.recent and self.recent[-1][0] >= offset:
            self.recent.pop()
        assert self.log.truncate_to(offset) == offset


def test_no_reader_sees_a_wrong_or_missing_latest_value(tmp_path):
    floors_path = tmp_path / "floors"
    floors_path.write_bytes(bytes(8 * KEYS))
    with open(floors_path, "r+b") as file:
        floors = mmap.mmap(file.fileno(), 0)
    rng = random.Random(5)
    cleaner = {"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 50}
    backups = []
    with contextlib.ExitStack() as stack:
        log_dir = stack.enter_context(seglog.open_dir(tmp_path / "data", fsync="never", cleaner=cleaner))
        table = Table(log_dir.log("table", config=TABLE), floors)
        events = log_dir.log("events", config=EVENTS)
        table.append(0, deletes=False)
        command = [sys.executable, "-m", "support.table_reader", table.log.path, floors_path]
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        readers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(READERS)
        ]
        assert [line_of(reader) for reader in readers] == ["begun\n"] * READERS
        counts = log_dir.cleaner.counts
        begun = time.monotonic()

        def is_enough():
            passed = time.monotonic() - begun
            happened = counts.compactions > 3 and counts.deleted_segments > 3 and events.log_start_offset and backups
            return passed > SECONDS and (happened or passed > SECONDS_MAX)

        while not is_enough() and all(reader.poll() is None for reader in readers):
            for _ in range(200):
                table.append(min(int(rng.expovariate(0.03)), KEYS - 1), deletes=rng.random() < 0.05)
                events.append(b"e" * 100)
            if rng.random() < 0.2 and len(table.recent) == CUT_MAX:
                table.cut(rng.randint(1, CUT_MAX))
            if rng.random() < 0.05:
                kept = tmp_path / "kept" / f"table-{len(backups)}"
                table.log.snapshot(kept)
                backups.append((kept, table.version, read(kept)))
            time.sleep(0.01)
        told = [reader.communicate()[0] for reader in readers]
        assert table.log.stats().uncleanable is None
        assert events.stats().uncleanable is None
        assert events.log_start_offset > 0
    assert [line for line in told if not line.startswith("read ")] == []
    assert all(int(line.split()[1]) > 0 for line in told)
    assert counts.compactions > 3
    assert counts.deleted_segments > 3
    # What was backed up is as it was, and the table itself has the last versions.
    for kept, version, before in backups:
        assert read(kept) == before
        assert all(found <= version for found, _ in before[0].values())
    found, wrong = read(tmp_path / "data" / "table-0")
    assert wrong == []
    for _, key, version, _ in table.recent:
        assert found[key][0] >= version
