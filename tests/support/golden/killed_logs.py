"""Logs of six segments as a kill leaves them, for recoveries by real Kafka and by ours.

The real log writes them (`program`); then a kill is made up (`Kill.of`): checkpoints, snapshots and bytes that did not
reach the disk, damage. tests/golden/killed_logs.tar.gz holds some, with what real Kafka made of each.
"""
import base64
import random
from dataclasses import dataclass, replace
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptSnapshotError
from seglog.fs.files import OsFileSystem
from seglog.loading.loader import Loaded, load
from seglog.state.producer_snapshot import ProducerSnapshot
from support.producers import ABORT, COMMIT, batch

WRITTEN_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SETTINGS = {"index.interval.bytes": 150, "segment.index.bytes": 4096, "retention.ms": -1}


def program(rnd: random.Random, segments: int = 6) -> str:
    """Steps of Program.java: idempotent, transactional and plain batches, markers, later leader epochs, rolls."""
    steps = [f"config {WRITTEN_MS + 2 * DAY_MS} 0 " + " ".join(f"{key}={value}" for key, value in SETTINGS.items())]
    sequences = dict.fromkeys((1, 2, 3, 4), 0)      # of producers; even ones are transactional
    open_transactions: set[int] = set()
    epoch = 0
    for number in range(segments):
        if number:
            steps.append("roll")
            epoch += rnd.choice([0, 0, 1])
        for _ in range(rnd.randint(3, 6)):
            producer = rnd.choice([0, 1, 2, 2, 3, 4, 4])
            now = WRITTEN_MS + rnd.randint(0, 2) * DAY_MS + len(steps)
            if producer in open_transactions and rnd.random() < 0.5:
                open_transactions.remove(producer)
                made = batch(0, producer, timestamp=now, marker=(rnd.choice([ABORT, ABORT, COMMIT]), 0))
                steps.append(f"append coord {_text(made)} {epoch}")
                continue
            records = rnd.randint(1, 4)
            if producer == 0:
                made = batch(0, -1, -1, -1, records, now)
            else:
                made = batch(0, producer, 0, sequences[producer], records, now, producer % 2 == 0)
                sequences[producer] += records
                open_transactions |= {producer} if producer % 2 == 0 else set()
            steps.append(f"append client {_text(made)} {epoch}")
    return "\n".join(steps)


def _text(made) -> str:
    return base64.b64encode(bytes(made.raw())).decode()


@dataclass(frozen=True)
class Kill:
    """What is found after a kill besides the files of the directory."""

    log_start_offset: int
    recovery_point: int
    now_ms: int
    what: tuple[str, ...]       # for people
    settings: tuple[tuple[str, int], ...] = tuple(SETTINGS.items())

    @classmethod
    def of(cls, rnd: random.Random, directory: Path) -> "Kill":
        """Change a directory that the real log has closed into one that a kill has left."""
        logs = sorted(directory.glob("*.log"))
        bases = [int(log.stem) for log in logs]
        end = scan(Window(logs[-1].read_bytes()))[-1].last_offset + 1
        what = []
        kill = cls(0, rnd.choice([0, 0, *bases[1:], rnd.randint(0, end)]), WRITTEN_MS + 2 * DAY_MS, ())
        if rnd.random() < 0.4:
            kill = replace(kill, log_start_offset=rnd.choice([*bases[1:-1], rnd.randint(1, bases[-1])]))
        if rnd.random() < 0.3:
            kill = replace(kill, now_ms=WRITTEN_MS + 3 * DAY_MS)
            what.append("some producers have expired")
        lost = {"all": 1.0, "some": 0.5, "none": 0.0}[rnd.choice(["all", "some", "some", "none", "none"])]
        for snapshot in sorted(directory.glob("*.snapshot")):
            if rnd.random() < lost:
                snapshot.unlink()
                what.append(f"{snapshot.name} is missing")
            elif rnd.random() < 0.05:
                snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"\x55")
                what.append(f"{snapshot.name} is damaged")
        for index in sorted(directory.glob("*.txnindex")):
            if rnd.random() < 0.3 and int(index.name[:20]) >= _floor(bases, kill.recovery_point):
                index.write_bytes(index.read_bytes()[:-34])
                what.append(f"{index.name} lacks its last entry")
        if rnd.random() < 0.3:
            # As behind compaction: offsets between two segments that no batch has.
            log = rnd.choice(logs[bases.index(_floor(bases, kill.recovery_point)):])
            raw = log.read_bytes()
            table = scan(Window(raw))
            if len(table) > 1:
                log.write_bytes(raw[: table[-1].position])
                what.append(f"{log.name} lacks its last batch")
        if rnd.random() < 0.4:
            log = rnd.choice(logs[bases.index(_floor(bases, kill.recovery_point)):])
            raw = bytearray(log.read_bytes())
            at = rnd.choice([b.position for b in scan(Window(bytes(raw)))]) + 62
            raw[at] ^= 0x55
            log.write_bytes(raw)
            what.append(f"{log.name}: byte {at} is another")
        return replace(kill, what=tuple(what))

    def line(self, directory: Path) -> str:
        """For Recover.java."""
        settings = " ".join(f"{key}={value}" for key, value in self.settings)
        return f"{directory} {self.log_start_offset} {self.recovery_point} {self.now_ms} {settings}"

    def recover(self, directory: Path) -> Loaded:
        """Let ours recover the directory."""
        config = LogConfig.of(dict(self.settings) | {"seglog.recovery.mode": "truncate"})
        return load(
            OsFileSystem(), directory, config, clean=False, recovery_point=self.recovery_point,
            log_start_offset=self.log_start_offset, now_ms=self.now_ms,
        )


def _floor(bases: list[int], offset: int) -> int:
    return max(base for base in bases if base <= offset)


def meanings(directory: Path) -> dict[str, object]:
    """What each file says. Kafka writes producers in the order of a hash map, and keeps some files that say nothing.

    Its replay forgets a producer's coordinator epoch at the first batch behind a snapshot; ours does not.
    """
    found: dict[str, object] = {}
    for path in sorted(directory.iterdir()):
        raw = path.read_bytes()
        if path.suffix == ".snapshot":
            try:
                producers = ProducerSnapshot.parse(raw).producers
            except CorruptSnapshotError:
                found[path.name] = raw
                continue
            kept = [producer._replace(coordinator_epoch=-1) for producer in producers]
            found[path.name] = sorted(kept, key=lambda producer: producer.producer_id)
        elif path.name == "leader-epoch-checkpoint":
            found[path.name] = raw.decode().split()[1:]
        elif path.name != "partition.metadata" and (raw or path.suffix != ".txnindex"):
            found[path.name] = raw
    return found
