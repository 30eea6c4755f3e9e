"""Logs as `seglog.open` writes them, one for each thing that a log can be made of: for a witness to look at.

`WRITERS` maps a name to its configuration and to a function that opens the log, as often as it likes, and writes it.
"""
import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from seglog.format.batch import end_marker
from seglog.format.names import PARTITION_METADATA, log_files
from seglog.fs.files import OsFileSystem
from support.conversion import UnsyncedFs

NOW = 1_700_000_000_000
MINUTE_MS = 60_000
# Keys that Kafka does not have.
OURS = {
    "seglog.time.index.minute.enabled", "seglog.time.index.ranges.enabled", "seglog.segment.idle.roll", "linger.ms",
    "seglog.linger.bytes",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Columns of five records: offsets, bytes, validity.
KEYS = (array("i", [0, 1, 1, 2, 2, 3]), b"ace", bytes([0b11101]))
VALUES = (array("i", [0, 1, 3, 3, 3, 4]), b"1225", bytes([0b11011]))
# Small enough that a hundred records fill several segments, with several index entries in each.
# A log that compacts by itself leaves what is compared as it was written.
SMALL = {"segment.bytes": 3000, "index.interval.bytes": 300, "min.compaction.lag.ms": 10**15}


class Writer:
    """A partition directory, its configuration and a clock. Equal names write equal logs."""

    def __init__(self, directory: Path, config: dict[str, object]) -> None:
        self.directory = directory
        self.config = config
        self.clock = ManualClock(NOW)
        self.random = random.Random(directory.name)

    def open(self, **options):
        # Nobody pulls a plug here.
        options.setdefault("fsync", "never")
        options.setdefault("fs", UnsyncedFs())
        # No topic setting of Kafka's: a broker that serves the log does not get it.
        config = {"transaction.max.timeout.ms": 2**31 - 1} | self.config | options.pop("config", {})
        return seglog.open(self.directory, config=config, clock=self.clock, **options)

    def record(self):
        """(key, value, headers, timestamp), now and then without a key or a value, with headers, out of order."""
        rng = self.random
        key = rng.choice([None, b"", b"key-%d" % rng.randrange(20)])
        value = rng.choice([None, b"", *[rng.choice([b"ab", b"xyz", b"\0"]) * rng.randrange(60) for _ in range(6)]])
        headers = rng.choice([(), (), (("source", b"web"), ("null", None), ("source", b""))])
        self.clock.advance(rng.randrange(20_000))
        return key, value, headers, self.clock.now_ms() - rng.choice([0, 0, 0, 100, 90_000])

    def records(self, most=12):
        return [self.record() for _ in range(self.random.randint(1, most))]

    def one(self, log):
        key, value, headers, timestamp = self.record()
        return log.append(value, key=key, headers=headers, timestamp=timestamp)

    def fill(self, log, rounds=12):
        """Append by every door for records."""
        for _ in range(rounds):
            self.one(log)
            log.append(b"now")
            log.append_many(self.records())
            times = array("q", [self.clock.now_ms() + n for n in range(5)])
            log.append_columns(timestamps=times, keys=KEYS, values=VALUES)

    def batch(self, **fields):
        return seglog.build_batch(self.records(), **fields)


def killed(write: Callable[[], None]) -> None:
    """Run `write` in a process of its own that ends at once after it, and closes nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@dataclass(frozen=True)
class Kind:
    """One kind of log. `config`: of the topic."""

    config: dict[str, object]
    write: Callable[[Writer], None]


WRITERS: dict[str, Kind] = {}


def kind(name, **more):
    """Note a function as a writer of logs; `more` are keys beside those of SMALL, with underscores."""
    def note(write):
        WRITERS[name] = Kind(SMALL | {key.replace("_", "."): value for key, value in more.items()}, write)
        return write
    return note


def write(name: str, directory: Path) -> None:
    """Write the log of that name, and close it."""
    WRITERS[name].write(Writer(directory, WRITERS[name].config))


def topic_config(name: str) -> dict[str, object]:
    """What a broker is told of that log: our configuration without the keys that are ours alone."""
    return {key: value for key, value in WRITERS[name].config.items() if key not in OURS}


# --- codecs and doors ------------------------------------------------------------------------------


def _every_door(writer):
    with writer.open() as log:
        writer.fill(log)
        log.append_batch(writer.batch(codec="gzip"))


def _ready_batches(writer, codec):
    with writer.open() as log:
        for _ in range(40):
            log.append_batch(writer.batch(codec=codec))


for codec in CODECS:
    kind(f"codec-{codec}", compression_type="uncompressed" if codec == "none" else codec)(_every_door)
    kind(f"ready-{codec}")(lambda writer, codec=codec: _ready_batches(writer, codec))


@kind("large-records", max_message_bytes=200_000, segment_bytes=300_000, compression_type="zstd")
def _large_records(writer):
    with writer.open() as log:
        for size in (0, 1, 299, 300, 301, 5_000, 100_000, 150_000):
            log.append(writer.random.randbytes(size))
            log.append(bytes(size))


@kind("empty")
def _empty(writer):
    writer.open().close()


@kind("one-record")
def _one_record(writer):
    with writer.open() as log:
        log.append(b"only")


@kind("old-formats")
def _old_formats(writer):
    """Message sets of v0 and v1 from old producers, which stay in their format, between batches of v2."""
    with writer.open() as log:
        for n in range(30):
            magic = n % 3
            records = [(b"k%d" % n, b"v" * writer.random.randrange(40)) for _ in range(3)]
            timestamp = -1 if magic == 0 else NOW + n
            log.append_batch(seglog.build_batch(records, magic=magic, codec=CODECS[n % 4], timestamp=timestamp))


@kind("mirror", cleanup_policy="compact")
def _mirror(writer):
    """Batches with the offsets and epochs that they had in a compacted log elsewhere, and its holes."""
    with writer.open() as log:
        offset, epoch = 1000, 3
        for n in range(40):
            records = [(b"k%d" % writer.random.randrange(9), b"v" * 30) for _ in range(writer.random.randint(1, 3))]
            raw = seglog.build_batch(
                records, base_offset=offset, leader_epoch=epoch, timestamp=NOW + n * 1000, codec=CODECS[n % 5])
            log.append_batch(raw, assign_offsets=False)
            offset += len(records) + writer.random.choice([0, 0, 1, 70])
            epoch += writer.random.choice([0, 0, 0, 2])


# --- what a topic asks for -------------------------------------------------------------------------


@kind("compacted", cleanup_policy="compact", compression_type="lz4")
def _compacted(writer):
    with writer.open() as log:
        for n in range(60):
            log.append(None if n % 7 == 0 else b"v%d" % n, key=b"k%d" % (n % 10), timestamp=NOW + n)
            log.append_many([(b"k%d" % m, b"%d" % n) for m in range(3)])


@kind("log-append-time", message_timestamp_type="LogAppendTime")
def _log_append_time(writer):
    with writer.open() as log:
        writer.fill(log)
        for codec in CODECS:
            writer.clock.advance(MINUTE_MS)
            log.append_batch(writer.batch(codec=codec, timestamp=12345))


@kind("no-times")
def _no_times(writer):
    """Records whose producer gave no time."""
    with writer.open() as log:
        for _ in range(40):
            log.append_batch(seglog.build_batch([(b"k", b"v" * 60)], timestamp=-1))


@kind("minute-index", seglog_time_index_minute_enabled=True)
def _minute_index(writer):
    with writer.open() as log:
        writer.fill(log)
    with writer.open() as log:
        writer.fill(log)


@kind("time-ranges", seglog_time_index_ranges_enabled=True)
def _time_ranges(writer):
    with writer.open() as log:
        writer.fill(log)
        log.roll()
        writer.fill(log)


# --- rolling ---------------------------------------------------------------------------------------


@kind("roll-time", segment_bytes=1 << 20, segment_ms=60_000)
def _roll_time(writer):
    with writer.open() as log:
        writer.fill(log)


@kind("roll-jitter", segment_bytes=1 << 20, segment_ms=200_000, segment_jitter_ms=150_000)
def _roll_jitter(writer):
    with writer.open() as log:
        writer.fill(log)


@kind("roll-index-full", segment_bytes=1 << 20, segment_index_bytes=60)
def _roll_index_full(writer):
    with writer.open() as log:
        writer.fill(log)


@kind("roll-offset-overflow")
def _roll_offset_overflow(writer):
    with writer.open() as log:
        writer.fill(log, rounds=2)
        for offset in (2**31 - 2, 2**31 - 1, 2**31 + 5, 5 * 2**31, 5 * 2**31 + 1):
            log.append_batch(writer.batch(base_offset=offset + log.log_end_offset), assign_offsets=False)
        writer.fill(log, rounds=2)


@kind("roll-by-hand")
def _roll_by_hand(writer):
    with writer.open() as log:
        for _ in range(4):
            writer.fill(log, rounds=1)
            log.roll()


@kind("roll-idle", seglog_segment_idle_roll=True, segment_ms=1_000_000)
def _roll_idle(writer):
    with writer.open() as log:
        for _ in range(3):
            writer.fill(log, rounds=1)
            writer.clock.advance(1_000_001)
            log._maintain()


# --- producers -------------------------------------------------------------------------------------


class Producer:
    """An idempotent or transactional producer, and its coordinator."""

    def __init__(self, writer, producer_id, epoch=0, sequence=0):
        self.writer, self.producer_id, self.epoch, self.sequence = writer, producer_id, epoch, sequence

    def send(self, log, *, transactional=False, codec="none", keyed=False):
        records = [
            (b"key" if keyed else key, value, headers) for key, value, headers, _ in self.writer.records(6)
        ]
        raw = seglog.build_batch(
            records, codec=codec, timestamp=self.writer.clock.now_ms(), producer_id=self.producer_id,
            producer_epoch=self.epoch, base_sequence=self.sequence, transactional=transactional)
        self.sequence = (self.sequence + len(records)) % 2**31
        return log.append_batch(raw), raw

    def end(self, log, *, commit):
        marker = seglog.build_batch(
            [end_marker(commit, 0)], timestamp=self.writer.clock.now_ms(), producer_id=self.producer_id,
            producer_epoch=self.epoch, transactional=True, control=True)
        return log.append_batch(marker)


@kind("idempotent")
def _idempotent(writer):
    producers = [Producer(writer, 100 + n, sequence=n * (2**31 - 9)) for n in range(2)]
    with writer.open() as log:
        for n in range(40):
            result, raw = producers[n % 2].send(log, codec=CODECS[n % 5])
            if n % 8 == 0:
                again = log.append_batch(raw)
                assert (again.is_duplicate, again.first_offset) == (True, result.first_offset)
            if n == 20:
                producers[0].epoch, producers[0].sequence = 1, 0


@kind("transactional")
def _transactional(writer):
    """Committed, aborted, interleaved over segments, and one that is left open."""
    one, two, three = (Producer(writer, 200 + n) for n in range(3))
    with writer.open() as log:
        for n in range(12):
            for _ in range(3):
                one.send(log, transactional=True, codec=CODECS[n % 5])
                two.send(log, transactional=True)
                log.append(b"of nobody's transaction")
            one.end(log, commit=n % 2 == 0)
            if n % 3 == 2:
                two.end(log, commit=n % 2 == 1)
        two.end(log, commit=False)
        three.send(log, transactional=True)
        log.append(b"behind an open transaction")
        one.send(log, transactional=True)
        one.end(log, commit=False)


# --- cut, opened again, recovered ------------------------------------------------------------------


@kind("truncated")
def _truncated(writer):
    """Inside of the active segment, at the beginning of one, in one before, to nothing; each time it goes on."""
    with writer.open() as log:
        for place in (lambda: log.log_end_offset - 3, lambda: log.segments[-1].base_offset,
                      lambda: log.segments[1].base_offset + 5, lambda: 0):
            writer.fill(log, rounds=6)
            log.truncate_to(place())
        writer.fill(log, rounds=4)
        log.truncate_to(log.segments[1].base_offset + 5)


@kind("truncated-transactions")
def _truncated_transactions(writer):
    _transactional(writer)
    with writer.open() as log:
        log.truncate_to(log.log_end_offset * 3 // 4)
        Producer(writer, 200, sequence=0, epoch=5).send(log, transactional=True)


@kind("linger", linger_ms=3_600_000, seglog_linger_bytes=900)
def _linger(writer):
    with writer.open() as log:
        for _ in range(60):
            writer.one(log)


@kind("epochs")
def _epochs(writer):
    for epoch in (0, 0, 2, 7):
        with writer.open(leader_epoch=epoch) as log:
            writer.fill(log, rounds=2)
    with writer.open() as log:
        log.append_batch(writer.batch(), leader_epoch=9)
        log.truncate_to(log.log_end_offset - 30)
        writer.fill(log, rounds=1)


@kind("synced")
def _synced(writer):
    with writer.open(fsync="batch", fs=OsFileSystem()) as log:
        writer.fill(log, rounds=2)
    with writer.open(fsync="interval", config={"flush.ms": 0, "flush.messages": 3}) as log:
        writer.fill(log, rounds=2)


@kind("reopened")
def _reopened(writer):
    for _ in range(8):
        with writer.open() as log:
            for _ in range(5):
                writer.one(log)


@kind("killed")
def _killed(writer):
    """A process dies three times, its last batch torn; the next one goes on."""
    def append():
        writer.fill(writer.open())
    for torn in (b"", b"half of a batch", bytes(5000)):
        killed(append)
        last = log_files(writer.directory)[-1]
        with open(last, "ab") as file:
            file.write(torn)
        with writer.open() as log:
            writer.fill(log, rounds=1)


@kind("killed-in-transactions")
def _killed_in_transactions(writer):
    killed(lambda: _transactional(writer))
    with writer.open() as log:
        Producer(writer, 300).send(log, transactional=True)


@kind("quarantined", segment_bytes=1 << 20)
def _quarantined(writer):
    killed(lambda: writer.fill(writer.open()))
    (path,) = log_files(writer.directory)
    raw = bytearray(path.read_bytes())
    for share in (5, 3, 2):
        raw[len(raw) // share] ^= 0x40
    path.write_bytes(raw)
    with writer.open(config={"seglog.recovery.mode": "quarantine"}) as log:
        assert len(log.recovery.lost) == 3
        writer.fill(log, rounds=1)


# The last ones: where a log dir holds log start offsets, a killed writer costs the mark of a clean stop for longer.


@kind("deleted-records")
def _deleted_records(writer):
    with writer.open() as log:
        writer.fill(log)
        log.delete_records(log.segments[2].base_offset + 3)
        writer.fill(log, rounds=2)


@kind("deleted-all")
def _deleted_all(writer):
    with writer.open() as log:
        writer.fill(log)
        log.delete_records(log.log_end_offset)
    with writer.open() as log:
        log.append(b"goes on")


# --- backups ---------------------------------------------------------------------------------


@kind("backed-up")
def _backed_up(writer):
    """Of a log with transactions, which is cut and goes on; in the place of an empty one that a broker made."""
    backup, source = writer.directory, Path(tempfile.mkdtemp(), writer.directory.name)
    metadata = backup / PARTITION_METADATA
    topic = metadata.read_bytes() if metadata.exists() else None
    shutil.rmtree(backup, ignore_errors=True)
    writer.directory = source
    try:
        _transactional(writer)
        with writer.open(leader_epoch=5) as log:
            writer.fill(log)
            log.snapshot(backup)
            log.truncate_to(log.log_end_offset // 2)
            writer.fill(log)
    finally:
        shutil.rmtree(source.parent)
    if topic is not None:
        metadata.write_bytes(topic)
