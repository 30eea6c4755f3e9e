"""Programs of appends, rolls, cuts and reopenings, and a `Log` that runs them as the real one does.

A program is the text that tests/oracle/kafka/src/reader/Program.java reads: a configuration, then a step a line.
"""
import base64
import random
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from seglog.config import MIB
from seglog.format import names
from seglog.format.batch import end_marker
from seglog.state.log_dir_state import LogDirState
from support.conversion import UnsyncedFs
from support.producer_programs import DAY_MS, KAFKAS
from support.written_logs import CODECS

BEGINNING_MS = 1_700_000_000_000
FS = UnsyncedFs()


class LogRun:
    """Runs steps on a log of ours, also on what Kafka left: `clean` is how it stopped.

    `cut`: base offsets of segments that went on after the log was opened again or truncated. Kafka counts the bytes
    to their next index entry anew.
    """

    def __init__(
        self, directory: Path, config: dict[str, object], now_ms: int = BEGINNING_MS, log_start_offset: int = 0,
        clean: bool = True,
    ) -> None:
        self.directory = directory
        self.config = config
        self.clock = ManualClock(now_ms)
        self.cut: set[int] = set()
        log_dir = directory.parent
        log_dir.mkdir(parents=True, exist_ok=True)
        if directory.exists():
            # As a broker would have left the log dir that this log comes from.
            parsed = names.parse_partition_dir(directory.name)
            with LogDirState(FS, log_dir) as state:
                where = parsed.topic, parsed.partition
                state.put_offset(names.LOG_START_OFFSET_CHECKPOINT, where, log_start_offset or None)
            (log_dir / names.CLEAN_SHUTDOWN).touch()
            if not clean:
                (log_dir / names.CLEAN_SHUTDOWN).unlink()
        self._open()

    def _open(self):
        self.log = seglog.open(self.directory, config=self.config, fsync="never", clock=self.clock, fs=FS)
        assert self.log.recovery.lost == ()
        self._note_cut()

    def _note_cut(self):
        active = self.log.segments[-1]
        if active.size_bytes:
            self.cut.add(active.base_offset)

    def close(self):
        self.log.close()

    def run(self, step):
        verb, *words = step.split()
        answer = getattr(self, f"_{verb}")(*words) or {}
        log = self.log
        return answer | {"start": log.log_start_offset, "end": log.log_end_offset, "stable": log.last_stable_offset}

    def _append(self, origin, raw, epoch):
        try:
            found = self.log.append_batch(base64.b64decode(raw), leader_epoch=int(epoch))
        except tuple(KAFKAS) as refusal:
            return {"refused": type(refusal)}
        return {"first": found.first_offset, "last": found.last_offset}

    def _follow(self, raw):
        self.log.append_batch(base64.b64decode(raw), assign_offsets=False)

    def _roll(self):
        self.log.roll()

    def _truncate(self, offset):
        if int(offset) < self.log.log_end_offset:
            self.log.truncate_to(int(offset))
            self._note_cut()

    def _clock(self, now_ms):
        self.clock.set(int(now_ms))

    def _start(self, offset):
        self.log.delete_records(int(offset))

    def _reopen(self, now_ms):
        self.log.close()
        self.clock.set(int(now_ms))
        self._open()

    def _look(self):
        return {"segments": [[segment.base_offset, segment.size_bytes] for segment in self.log.segments]}


# What Kafka has to be told besides: to delete no record by its age, and files at once.
KAFKAS_OWN = {"retention.ms": -1, "file.delete.delay.ms": 0}


def header(config: dict[str, object], now_ms: int, log_start_offset: int) -> str:
    """The first line of a program for Kafka."""
    pairs = [f"{key}={value}" for key, value in (config | KAFKAS_OWN).items()]
    return " ".join(["config", str(now_ms), str(log_start_offset), *pairs])


class Author:
    """Writes a program while `LogRun` runs it: every step is one that makes sense where the log stands."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.config = {
            "segment.bytes": rng.choice([700, 1500, 4000, MIB, MIB]),
            "index.interval.bytes": rng.choice([0, 50, 300, 4096]),
            "segment.index.bytes": rng.choice([48, 120, 10 * MIB, 10 * MIB, 10 * MIB]),
            "segment.ms": rng.choice([60_000, DAY_MS, DAY_MS]),
            "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        }
        # When an index is full then depends on how often the log was opened: see LogRun.cut.
        self.has_small_index = self.config["segment.index.bytes"] <= 120
        self.rolls_by_itself = (
            self.has_small_index or self.config["segment.bytes"] < MIB or self.config["segment.ms"] < DAY_MS
        )
        self.now_ms = BEGINNING_MS
        self.epoch = 0
        # Producer -> epoch and next sequence; the even ones are transactional.
        self.producers = {p: [0, rng.choice([0, 2**31 - 4])] for p in (1, 2, 3, 4)}
        self.sent: list[str] = []
        self.jumps = rng.random() < 0.2

    def steps(self, run: LogRun, count: int):
        """(step, answer of ours), about as many as asked."""
        kinds = {
            self.plain: 12, self.data: 6, self.marker: 4, self.repeat: 2, self.follow: 3, self.tick: 3, self.look: 3,
            self.roll: 1, self.truncate: 1, self.start: 1, self.reopen: 1,
        }
        for _ in range(count):
            (kind,) = self.random.choices(list(kinds), list(kinds.values()))
            step = kind(run.log)
            answer = run.run(step)
            # Kafka makes room for an append before it asks the producers; we do so for what is appended alone.
            was_written = "refused" not in answer and answer.get("last", answer["end"]) >= answer["end"] - 1
            if was_written or not self.rolls_by_itself:
                yield step, answer

    def records(self):
        rng = self.random
        return [
            (rng.choice([None, b"key"]), rng.choice([None, rng.randbytes(rng.randrange(40))]), (), self.timestamp())
            for _ in range(rng.choice([1, 1, 2, 5]))
        ]

    def timestamp(self):
        return self.now_ms + self.random.choice([0, 0, self.random.randint(-60_000, 60_000)])

    def append(self, origin, records, **fields):
        raw = seglog.build_batch(records, codec=self.random.choice(CODECS), timestamp=self.now_ms, **fields)
        return f"append {origin} {base64.b64encode(raw).decode()} {self.epoch}"

    def plain(self, log):
        if self.random.random() < 0.1:      # Kafka notes an epoch also of an append that its producer state refuses
            self.epoch += 1
        records = self.records()
        # Not of a producer, which would be forgotten as one from 1970; nor where the clock that then counts instead
        # says when to roll: a segment that is truncated began, in Kafka, when the log was opened.
        if self.config["segment.ms"] == DAY_MS and self.random.random() < 0.2:
            records = [(*record[:3], -1) for record in records]
        return self.append("client", records)

    def data(self, log):
        producer = self.random.choice(list(self.producers))
        epoch, sequence = self.producers[producer]
        records = self.records()
        step = self.append(
            "client", records, producer_id=producer, producer_epoch=epoch, transactional=producer % 2 == 0,
            base_sequence=self.random.choice([sequence] * 9 + [0]))
        self.producers[producer][1] = (sequence + len(records)) % 2**31
        self.sent.append(step)
        return step

    def marker(self, log):
        producer = self.random.choice([2, 4])
        if self.random.random() < 0.2:
            self.producers[producer] = [self.producers[producer][0] + 1, 0]
        return self.append(
            "coord", [end_marker(self.random.random() < 0.4, 0)], producer_id=producer,
            producer_epoch=self.producers[producer][0], transactional=True, control=True)

    def repeat(self, log):
        if not self.sent:
            return self.plain(log)
        step = self.random.choice(self.sent[-8:])
        return f"{step.rsplit(' ', 1)[0]} {self.epoch}"

    def follow(self, log):
        offset, raw = log.log_end_offset, b""
        if self.jumps and self.random.random() < 0.2:
            offset += 2**31 - self.random.randrange(100)
        # Several batches at once that need more entries than an index has room for make Kafka fail.
        for _ in range(1 if self.has_small_index else self.random.choice([1, 1, 3])):
            self.epoch += self.random.random() < 0.2
            offset += self.random.choice([0, 0, 1, 50])
            records = self.records()[:2]
            raw += seglog.build_batch(records, base_offset=offset, leader_epoch=self.epoch)
            offset += len(records)
        return f"follow {base64.b64encode(raw).decode()}"

    def tick(self, log):
        self.now_ms += self.random.choice([1, 1000, 30_000, 100_000])
        return f"clock {self.now_ms}"

    def look(self, log):
        return "look"

    def roll(self, log):
        return "roll"

    def truncate(self, log):
        """At the end of a batch: in a hole, Kafka goes on at that offset until it is opened again."""
        if self.has_small_index:
            return "roll"
        ends = [batch.last_offset + 1 for batch in log.batches()]
        return f"truncate {self.random.choice([log.log_end_offset, *ends[-12:]])}"

    def start(self, log):
        return f"start {self.random.randint(log.log_start_offset, log.log_end_offset)}"

    def reopen(self, log):
        if self.has_small_index:
            return "roll"
        self.now_ms += self.random.choice([0, 1000])
        return f"reopen {self.now_ms}"
