"""seglog.compaction.merge.bytes: small neighbours become one batch, the same record for record; no others are mixed."""
import json
import random
import shutil
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog import build_batch
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.format.batch import end_marker
from seglog.format.compression import Codec, decompressor
from seglog.log.log import Log
from seglog.upkeep.cleaner import clean
from seglog.upkeep.merged_batches import MergedBatches
from seglog.verification.verify import verify
from support import plain_format as plain
from support.golden import unpack
from support.lookups import offset_at

NOW = 1_700_000_000_000
COMPACT_CASES = sorted((unpack("kafka") / "pairs" / "compact").iterdir())


class Written:
    """Batches one behind the other, of all kinds that there are, few of each so that neighbours often fit together."""

    def __init__(self, rng, keys=9):
        self.rng, self.keys = rng, keys
        self.offset = rng.choice([0, 1, 2**33])
        self.sequence = {}
        self.epoch = 3
        self.made = []

    def add(self):
        rng = self.rng
        magic = rng.choice([0, 1, 1, 2, 2, 2])
        for _ in range(rng.randrange(1, 6)):
            self.offset += rng.choice([0, 0, 0, 0, 1, 5])
            self.made.append(self._of_v2() if magic == 2 else self._messages(magic))

    def _records(self):
        rng = self.rng
        return [
            (b"key %d" % rng.randrange(self.keys), None if rng.random() < 0.1 else b"v" * rng.randrange(90))
            for _ in range(rng.randrange(1, 4))
        ]

    def _messages(self, magic):
        rng, records = self.rng, self._records()
        how = {} if magic == 0 else {
            "timestamp": NOW + rng.randrange(2), "timestamp_type": rng.choice(["CreateTime", "LogAppendTime"])
        }
        raw = build_batch(
            records, magic=magic, codec=rng.choice(["gzip", "gzip", "lz4", "none"]), base_offset=self.offset, **how
        )
        self.offset += len(records)
        return raw

    def marker(self, producer):
        self.offset += 1
        return build_batch(
            [end_marker(True, 0)], base_offset=self.offset - 1, timestamp=NOW, producer_id=producer, producer_epoch=1,
            transactional=True, control=True, leader_epoch=self.epoch,
        )

    def _of_v2(self):
        rng, records = self.rng, self._records()
        how = {"codec": rng.choice(["none", "none", "lz4", "zstd"]), "leader_epoch": self.epoch}
        self.epoch += rng.random() < 0.1
        kind = rng.random()
        if kind < 0.5:
            producer = rng.randrange(2)
            how |= {
                "producer_id": producer, "producer_epoch": rng.choice([0, 0, 0, 1]),
                "base_sequence": self.sequence.get(producer, 2**31 - 5), "transactional": rng.random() < 0.3,
            }
            if rng.random() < 0.1:
                how["base_sequence"] += 1
            self.sequence[producer] = (how["base_sequence"] + len(records)) & (2**31 - 1)
            how["base_sequence"] &= 2**31 - 1
        elif kind < 0.6:
            records = [end_marker(True, 0)]
            how |= {"codec": "none", "producer_id": 1, "producer_epoch": 0, "transactional": True, "control": True}
        elif kind < 0.7:
            how["delete_horizon_ms"] = NOW + rng.randrange(2)
        elif kind < 0.8:
            how["timestamp_type"] = "LogAppendTime"
        raw = build_batch(records, base_offset=self.offset, timestamp=NOW + rng.randrange(2), **how)
        self.offset += len(records)
        return raw


def table_of(raw):
    return scan(Window(raw), check_crc=True, min_offset=0, decompress=decompressor())


def records_of(raw):
    return [
        (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers))
        for batch in table_of(raw) for r in batch
    ]


def kind_of(batch):
    """What all records of a batch share; None: it has none, or is a marker, or a message of its own."""
    if batch.is_control or not list(batch) or (batch.magic < 2 and not batch.codec):
        return None
    horizon = batch.delete_horizon_ms
    append_time = batch.max_timestamp if batch.timestamp_type else None
    kind = (batch.magic, batch.codec, append_time, horizon)
    if batch.magic < 2:
        return kind
    return (
        *kind, batch.max_timestamp == -1, batch.leader_epoch, batch.producer_id, batch.producer_epoch,
        batch.is_transactional,
    )


def goes_on(before, batch):
    """Whether the sequence of a producer does."""
    if batch.producer_id < 0:
        return True
    follows = before.base_sequence + batch.base_offset - before.base_offset
    return batch.base_offset == before.last_offset + 1 and batch.base_sequence == follows & (2**31 - 1)


def plain_size(batch):
    """Before compression; of v2 with the header."""
    raw = bytes(batch.raw())
    if batch.magic == 2:
        return 61 + len(decompressor()(batch.codec, 2, raw[61:])) if batch.codec else len(raw)
    outer, magic, attributes, _ = plain.decode_message(raw, 0, len(raw))
    return len(decompressor()(attributes & 7, magic, outer.value)) if attributes & 7 else len(raw)


def merged(made, limit, rng, stays_alone=lambda batch: False):
    packer = MergedBatches(limit, decompressor(), stays_alone)
    found, left = b"", list(made)
    while left:
        n = rng.randrange(1, 6)
        packer.add(memoryview(b"".join(left[:n])))
        left = left[n:]
        found += packer.take()
    return found + packer.finish()


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([1, 300, 1000, 100_000]))
def test_neighbours_that_share_everything_share_a_batch(seed, limit):
    rng = random.Random(seed)
    written = Written(rng)
    for _ in range(rng.randrange(1, 12)):
        written.add()
    before = b"".join(written.made)
    after = merged(written.made, limit, rng)
    assert records_of(after) == records_of(before)
    parts = list(table_of(before))
    made = []
    for batch in table_of(after):
        of = [parts.pop(0)]
        while of[-1].last_offset < batch.last_offset:
            of.append(parts.pop(0))
        made.append((batch, of))
        assert of[-1].last_offset == batch.last_offset
        if len(of) == 1:
            assert bytes(batch.raw()) == bytes(of[0].raw())
            continue
        assert plain_size(batch) <= limit
        assert {kind_of(part) for part in of} == {kind_of(batch)} != {None}
        assert all(goes_on(one, two) for one, two in pairwise(of))
        assert batch.magic < 2 or (batch.base_offset, batch.base_sequence) == (of[0].base_offset, of[0].base_sequence)
        if batch.magic == 1:
            check_wrapper(batch)
    assert not parts
    for (one, _), (two, of) in pairwise(made):
        shares = kind_of(one) == kind_of(two) is not None and goes_on(one, two)
        if shares and max(one.size_bytes, of[0].size_bytes) < limit:
            # (Of v2 without one of the headers, and with other deltas.)
            assert plain_size(one) + plain_size(of[0]) > limit - (100 if two.magic == 2 else 0)
    assert merged([bytes(b.raw()) for b in table_of(after)], limit, rng) == after, "a second time changes nothing"


def check_wrapper(batch):
    """Of v1: its offset is that of the last message, and the others are relative to the first one."""
    raw = bytes(batch.raw())
    outer, magic, attributes, _ = plain.decode_message(raw, 0, len(raw))
    data, at, inner = decompressor()(attributes & 7, magic, outer.value), 0, []
    while at < len(data):
        record, inner_magic, _, at = plain.decode_message(bytes(data), at, len(data))
        assert inner_magic == 1
        inner.append(record.offset)
    assert inner[0] == 0
    assert [outer.offset - inner[-1] + offset for offset in inner] == [r.offset for r in batch]


def test_a_batch_that_stays_alone_joins_nothing():
    made = [
        build_batch([(b"k", b"v")], base_offset=n, timestamp=NOW, producer_id=4, producer_epoch=0, base_sequence=n)
        for n in range(9)
    ]
    after = merged(made, 10_000, random.Random(1), lambda batch: batch.last_offset == 5)
    assert [(b.base_offset, b.last_offset) for b in table_of(after)] == [(0, 4), (5, 5), (6, 8)]


def test_messages_of_another_format_in_a_wrapper_stay_as_they_are():
    """KAFKA-4298: as v1 they would get the wrapper's time."""
    mixed = plain.message(
        1, None, seglog.format.compression.compress(Codec.GZIP, 1, b"".join(
            plain.message(n, b"k", b"v", magic=n % 2, timestamp=NOW) for n in range(2))),
        attributes=Codec.GZIP | plain.LOG_APPEND_TIME, timestamp=NOW,
    )
    wrapper = build_batch(
        [(b"k", b"v")], magic=1, codec="gzip", base_offset=2, timestamp=NOW, timestamp_type="LogAppendTime")
    assert merged([mixed, wrapper], 10_000, random.Random(1)) == mixed + wrapper


def opened(path, config, clock):
    return Log(path, config=config, fsync="never", clock=clock)


@pytest.mark.parametrize("seed", range(6))
def test_a_log_that_is_merged_is_the_same_record_by_record(seed, in_memory):
    """Two rounds with tombstones and producers, beside the same log without merging; every lookup agrees."""
    clock, rng = ManualClock(NOW), random.Random(seed)
    config = {
        "cleanup.policy": "compact", "segment.bytes": 3000, "index.interval.bytes": 200, "delete.retention.ms": 1000,
        "seglog.compaction.upgrade.format": seed == 5,
    }
    path = in_memory / "one" / "merged-0"
    with opened(path, config, clock) as log:
        written = Written(rng, keys=300)
        written.offset = 0
        for _ in range(120):
            written.add()
        for raw in (*written.made, written.marker(0), written.marker(1)):
            log.append_batch(raw, assign_offsets=False)
        log.roll()
    found = {}
    for name, limit in (("as Kafka", 0), ("merged", 1500)):
        copy = in_memory / name / path.name
        shutil.copytree(path.parent, copy.parent)
        clock = ManualClock(NOW + 10_000)
        with opened(copy, config | {"seglog.compaction.merge.bytes": limit}, clock) as log:
            for _ in range(2):
                assert clean(log).outcome == "cleaned"
                log.append(b"v", key=b"key 3", timestamp=clock.now_ms())
                log.roll()
                clock.advance(5000)
            rows = [record_of(r) for r in log.read()]
            assert [record_of(log[row[0]]) for row in rows[::7]] == rows[::7]
            found[name] = (
                rows, [record_of(r) for r in log.read(control=True)],
                [record_of(r) for r in log.read(isolation="read_committed")],
                [offset_at(log, NOW + n) for n in (-1, 0, 1, 2, 10_000, 15_000)], log.producers,
                [(b.base_offset, b.last_offset) for b in log.batches() if b.producer_id >= 0][-1],
            )
            found[name, "batches"] = sum(1 for _ in log.batches())
        assert verify(copy).ok
    assert found["merged"] == found["as Kafka"]
    assert found["merged", "batches"] <= found["as Kafka", "batches"] - 5


def record_of(record):
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


@pytest.mark.parametrize("case", COMPACT_CASES, ids=lambda case: case.name)
def test_golden_logs_merged_hold_what_kafka_leaves(case, in_memory):
    """The data records of after-3.9.1; where the clock of a file matters it is left aside: no legacy tombstones go."""
    meta = json.loads((case / "meta.json").read_text())
    name = f"{case.name}-0"
    results = {}
    for limit in (0, 100_000):
        directory = in_memory / str(limit) / name
        shutil.copytree(case / "before" / name, directory)
        config = meta["config"] | {"seglog.compaction.merge.bytes": limit}
        with Log(directory, config=config, fsync="never", clock=ManualClock(meta["now"]), create=False) as log:
            clean(log)
            results[limit] = [record_of(r) for r in log.read(control=True)], sum(1 for _ in log.batches())
    assert results[0][0] == results[100_000][0]
    assert results[100_000][1] <= results[0][1]
