"""Random programs: appends at every format version, that version changed in between, cuts, fetches at every version."""
import os
import random

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.format.compression import decompressor

NOW = 1_700_000_000_000
PROGRAMS = 400 if os.environ.get("SEGLOG_TORTURE") else 20
STEPS = 60


class Program:
    """A log, a model of its records as (offset, timestamp or None, key, value), and slices with the bytes they had."""

    def __init__(self, seed, path):
        self.random = random.Random(seed)
        self.path = path
        self.version = None
        self.model = []
        self.start = 0
        self.end = 0
        self.held = []
        self.log = None
        self.open()

    def open(self):
        config = {"segment.bytes": 4000, "index.interval.bytes": 200}
        self.log = seglog.open(self.path, config=config, fsync="never", clock=ManualClock(NOW))

    def run(self):
        steps = [
            self.append, self.append_many, self.append_ready, self.append_ready, self.change_version, self.truncate,
            self.delete, self.roll, self.reopen, self.hold, self.fetch_all, self.fetch_all,
        ]
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.fetch_all()
        self.mirror()
        self.log.close()
        for fetched, before in self.held:
            assert bytes(fetched.view()) == before
            if not fetched.is_converted:
                assert sent(fetched) == before

    def records(self, *, count, has_time=True):
        rng = self.random
        return [
            (
                rng.choice([None, b"k%d" % rng.randrange(9)]),
                rng.choice([None, b"", rng.randbytes(rng.randrange(200))]),
                (),
                NOW - rng.randrange(1000) if has_time else None,
            )
            for _ in range(count)
        ]

    def note(self, records, stored):
        for key, value, _, time in records:
            self.model.append((self.end, time if stored else None, key, value))
            self.end += 1

    def append(self):
        record, = self.records(count=1)
        assert self.log.append(record[1], key=record[0], timestamp=record[3]) == self.end
        self.note([record], 2 if self.version is None else self.version)

    def append_many(self):
        records = self.records(count=self.random.randrange(1, 6))
        self.log.append_many(records, atomic=self.random.random() < 0.5)
        self.note(records, 2 if self.version is None else self.version)

    def append_ready(self):
        came = self.random.randrange(3)
        codec = self.random.choice(["none", "gzip", "snappy", "lz4"])
        records = self.records(count=self.random.randrange(1, 6), has_time=came > 0)
        plain = [record[:3] for record in records] if came == 0 else records
        result = self.log.append_batch(seglog.build_batch(plain, magic=came, codec=codec))
        assert (result.first_offset, result.last_offset) == (self.end, self.end + len(records) - 1)
        self.note(records, came if self.version is None else self.version)

    def change_version(self):
        self.version = self.random.choice([0, 1, 2, None])
        self.log.configure({"message.format.version": self.version})

    def truncate(self):
        if self.random.random() < 0.3:
            end = self.log.truncate_to(self.random.randint(self.start, self.end))
            self.model = [record for record in self.model if record[0] < end]
            self.end = end

    def delete(self):
        if self.random.random() < 0.3:
            self.start = self.log.delete_records(self.random.randint(self.start, self.end))

    def roll(self):
        self.log.roll()

    def reopen(self):
        self.log.close()
        self.open()

    def hold(self):
        offset, magic = self.random.randint(self.start, self.end), self.random.choice([None, None, 0, 1])
        fetched = self.log.fetch(offset, self.random.randrange(1500), magic=magic)
        self.held.append((fetched, bytes(fetched.view())))

    def mirror(self):
        """With the same offsets, with others, with those that follow each other: the records of the model."""
        for name, options in (("same", {}), ("other", {"preserve_offsets": False}), ("dense", {"close_gaps": True})):
            config = {"segment.bytes": 9000}
            directory = self.path.parent / name / "orders-0"
            with seglog.open(directory, config=config, fsync="never", clock=ManualClock(NOW)) as target:
                if name != "same":
                    target.append(b"before")
                seglog.mirror(self.log, target, **options)
                got = [
                    (r.offset, None if r.timestamp == -1 else r.timestamp, r.key, r.value) for r in target.read()
                    if r.value != b"before"
                ]
                # A mirror begins with a whole batch: what was deleted of it comes along.
                wanted = [record for record in self.model if record[0] >= self.start]
                got = got[len(got) - len(wanted) :]
                if name == "same":
                    assert got == wanted
                else:
                    assert [record[1:] for record in got] == [record[1:] for record in wanted]
                    assert [r.offset for r in target.read()] == list(range(target.log_end_offset))
                assert all(batch.crc_is_valid() for batch in target.batches())

    def fetch_all(self):
        magic = self.random.choice([None, 0, 1, 2])
        first = offset = self.random.randint(self.start, self.end)
        got = []
        while True:
            raw = bytes(self.log.fetch(offset, self.random.choice([0, 200, 1 << 20]), magic=magic).view())
            batches = list(scan(Window(raw), check_crc=True, decompress=decompressor()))
            if not batches:
                break
            assert all(batch.magic <= (2 if magic is None else magic) for batch in batches)
            got += [
                (r.offset, None if r.timestamp == -1 else r.timestamp, r.key, r.value)
                for batch in batches for r in batch if r.offset >= offset
            ]
            offset = batches[-1].last_offset + 1
        wanted = [record for record in self.model if record[0] >= max(first, self.start)]
        if magic == 0:
            wanted = [(offset, None, key, value) for offset, _, key, value in wanted]
        assert got == wanted


def sent(fetched):
    """What os.sendfile sends of a slice."""
    read, write = os.pipe()
    try:
        assert fetched.sendfile(write) == len(fetched)
        return os.read(read, len(fetched) + 1) if len(fetched) else b""
    finally:
        os.close(read), os.close(write)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_program_fetches_what_the_model_says(seed, in_memory):
    Program(seed, in_memory / "orders-0").run()
