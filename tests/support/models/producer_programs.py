"""Programs of idempotent and transactional appends, and a log in memory that runs them by the engine's producer state.

A program is the text that tests/oracle/kafka/src/reader/Program.java reads, a step a line. `ProducerLog.run` answers
a step as the real log does: {"first", "last"}, {"refused"} or {"aborted"}, and {"end", "stable"}. Only what
lies behind the high watermark is truncated.
"""
import base64
import gzip
import json
import random
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError
from seglog.fs.files import OsFileSystem
from seglog.segment.transaction_index import TransactionIndex, encode
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_snapshots import ProducerSnapshots, rebuild
from seglog.state.producer_state import Duplicate, Origin
from support.producers import ABORT, COMMIT, aborted_transactions, batch

BEGINNING_MS = 1_700_000_000_000
DAY_MS = 86_400_000
ORIGINS = {"client": Origin.CLIENT, "coord": Origin.COORDINATOR}
# What a broker says, by our errors. A marker of a fenced coordinator does not fit its transaction either.
KAFKAS = {
    InvalidProducerEpochError: {"InvalidProducerEpochException"},
    InvalidTxnStateError: {"InvalidTxnStateException", "TransactionCoordinatorFencedException"},
    OutOfOrderSequenceError: {"OutOfOrderSequenceException"},
}


class ProducerLog:
    """Batches by segment, in memory; producer snapshots in `directory`."""

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir(parents=True)
        self.now_ms = BEGINNING_MS
        self.segments = {0: []}     # base offset -> batches
        self.lines = {0: []}        # base offset -> lines of the .txnindex
        self.end = self.high_watermark = 0
        self.open()

    def open(self):
        self.snapshots = ProducerSnapshots(OsFileSystem(), self.directory)
        self.snapshots.remove_strays(list(self.segments))
        self.state = self.rebuilt(clean=True)

    def rebuilt(self, *, clean=False):
        return rebuild(
            self.snapshots, list(self.segments), self.tables_from, log_start_offset=0, log_end_offset=self.end,
            now_ms=self.now_ms, expiration_ms=DAY_MS, clean=clean,
        )

    def tables_from(self, offset):
        for batches in self.segments.values():
            raw = b"".join(bytes(b.raw()) for b in batches if b.last_offset >= offset)
            if raw:
                yield scan(Window(raw))

    def run(self, step):
        verb, *words = step.split()
        answer = getattr(self, verb)(*words) or {}
        return answer | {"end": self.end, "stable": self.state.last_stable_offset(self.high_watermark)}

    def append(self, origin, raw):
        # Its base offset, which is under no checksum, is where the log ends.
        table = scan(Window(self.end.to_bytes(8) + base64.b64decode(raw)[8:]))
        try:
            found = self.state.prepare(table, ORIGINS[origin])
        except tuple(KAFKAS) as refusal:
            return {"refused": type(refusal)}
        if isinstance(found, Duplicate):
            return {"first": found.first_offset, "last": found.last_offset}
        base = max(self.segments)
        self.segments[base] += table
        self.lines[base] += self.state.apply(found)
        self.end = table[-1].last_offset + 1
        return {"first": table[0].base_offset, "last": table[-1].last_offset}

    def hw(self, offset):
        self.high_watermark = int(offset)
        self.state.on_high_watermark_updated(self.high_watermark)

    def roll(self):
        self.snapshots.take(self.state, self.end)
        self.segments[self.end], self.lines[self.end] = [], []

    def truncate(self, offset):
        self.end = int(offset)
        for base in [b for b in self.segments if b > self.end]:
            del self.segments[base], self.lines[base]
        base = max(self.segments)
        self.segments[base] = [b for b in self.segments[base] if b.last_offset < self.end]
        raw = encode(self.lines[base])
        self.lines[base] = list(TransactionIndex(raw[: TransactionIndex(raw).size_up_to(self.end)]))
        self.state = self.rebuilt()
        self.hw(self.end)

    def reopen(self, now_ms):
        self.close()
        self.now_ms = int(now_ms)
        self.open()
        self.hw(self.end)

    def close(self):
        """What is on disk then."""
        self.snapshots.take(self.state, self.end)
        return on_disk(self.directory, self.lines)

    def aborted(self, offset):
        offset = int(offset)
        if offset >= self.state.last_stable_offset(self.high_watermark):
            return {"aborted": []}
        begin = max(base for base in self.segments if base <= offset)
        stop = min((base for base in self.segments if base > offset), default=self.end)
        indexes = [TransactionIndex(encode(lines)) for base, lines in self.lines.items() if base >= begin]
        found = aborted_transactions(indexes, offset, stop)
        return {"aborted": [[a.producer_id, a.first_offset] for a in found]}


def agree(mine, kafkas):
    """Is an answer of ProducerLog that of the real log? A refusal by its meaning; the words may differ."""
    rest = [{k: v for k, v in answer.items() if k not in ("refused", "why")} for answer in (mine, kafkas)]
    return kafkas.get("refused") in KAFKAS.get(mine.get("refused"), {None}) and rest[0] == rest[1]


def on_disk(directory, lines=None):
    """The producers in each snapshot of a directory, and its .txnindex files, by offset, fit for JSON.

    `lines`: aborted transactions by base offset, where they are not in files.
    """
    snapshots = {
        path.stem: sorted(list(p) for p in ProducerSnapshot.read(path).producers)
        for path in directory.glob("*.snapshot")
    }
    indexes = {path.stem: path.read_bytes().hex() for path in directory.glob("*.txnindex")}
    indexes |= {f"{base:020d}": encode(aborted).hex() for base, aborted in (lines or {}).items()}
    # A cut may leave an empty file.
    return {"snapshots": snapshots, "indexes": {name: text for name, text in indexes.items() if text}}


GOLDEN = Path(__file__).parents[2] / "golden/producers.json.gz"


def write_golden(programs, told):
    rows = [[program, answers, disk] for program, (answers, disk) in zip(programs, told, strict=True)]
    GOLDEN.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0))


def read_golden(path):
    """(program, the real log's answers, what it left on disk) of each golden program."""
    return [tuple(row) for row in json.loads(gzip.decompress(path.read_bytes()))]


LAST_SEQUENCE = 2**31 - 1


class Author:
    """Writes a program while `log` runs it: mostly what producers do, and often what they should not."""

    def __init__(self, seed, log):
        self.random = random.Random(seed)
        self.log = log
        # Producer -> what it believes: epoch, next sequence, transaction open, epoch of its coordinator.
        start = self.random.choice([0, 0, LAST_SEQUENCE - 4])
        self.believed = {p: {"epoch": 0, "next": start, "open": False, "coordinator": 0} for p in (1, 2, 3, 4)}
        self.sent = []

    def steps(self, count):
        """(step, answer) of `count` steps."""
        for _ in range(count):
            kind = self.random.choices(
                [self.data, self.marker, self.repeat, self.odd, self.upkeep], [10, 5, 4, 4, 3])[0]
            step = kind()
            yield step, self.log.run(step)

    def append(self, origin, **fields):
        now = self.log.now_ms + self.log.end
        made = batch(0, timestamp=now, **fields)
        return f"append {origin} {base64.b64encode(bytes(made.raw())).decode()}"

    def data(self):
        """The next batch of a producer; of an even one in a transaction."""
        producer, believed = self.random.choice(list(self.believed.items()))
        fields = {
            "producer_id": producer, "epoch": believed["epoch"], "sequence": believed["next"],
            "records": self.random.randint(1, 4), "transactional": producer % 2 == 0,
        }
        believed["next"] = (believed["next"] + fields["records"]) % (LAST_SEQUENCE + 1)
        self.sent = [*self.sent, fields][-12:]
        return self.append("client", **fields)

    def marker(self):
        """A commit or abort of an even producer, which may bump its epoch (KIP-890)."""
        producer = self.random.choice([2, 4])
        believed = self.believed[producer]
        believed["coordinator"] += self.random.choice([0, 0, 1])
        if self.random.random() < 0.3:
            believed |= {"epoch": believed["epoch"] + 1, "next": 0}
        kind = self.random.choice([ABORT, ABORT, COMMIT])
        marker = (kind, believed["coordinator"])
        return self.append("coord", producer_id=producer, epoch=believed["epoch"], marker=marker)

    def repeat(self):
        """A batch of before, as it was or with another end."""
        if not self.sent:
            return self.data()
        fields = dict(self.random.choice(self.sent))
        if self.random.random() < 0.2:
            fields["records"] += 1
        return self.append("client", **fields)

    def odd(self):
        """A gap, an old or a new epoch, a fenced coordinator, a plain batch in a transaction, offsets of a group."""
        producer, believed = self.random.choice(list(self.believed.items()))
        fields = {
            "producer_id": producer, "epoch": believed["epoch"], "sequence": believed["next"], "records": 1,
            "transactional": producer % 2 == 0,
        }
        match self.random.randrange(8):
            case 0:
                fields["sequence"] = self.random.choice([0, believed["next"] + 1, LAST_SEQUENCE])
            case 1:
                fields["epoch"] = max(fields["epoch"] - 1, 0)
            case 2:
                believed |= {"epoch": believed["epoch"] + 1, "next": 1}
                fields |= {"epoch": believed["epoch"], "sequence": 0}
            case 3:
                fields["epoch"] += 1
            case 4:
                fields["transactional"] = not fields["transactional"]
            case 5:
                marker = (ABORT, max(believed["coordinator"] - 1, 0))
                return self.append("coord", producer_id=producer, epoch=believed["epoch"], marker=marker)
            case 6:
                fields |= {"sequence": -1, "transactional": True}
                return self.append("coord", **fields)
            case 7:
                return self.append("client", producer_id=-1, epoch=-1, sequence=-1)
        return self.append("client", **fields)

    def upkeep(self):
        end, readers = self.log.end, self.log.high_watermark
        match self.random.choices(["hw", "aborted", "roll", "truncate", "reopen"], [8, 6, 3, 1, 1])[0]:
            case "roll" if end > max(self.log.segments):
                return "roll"
            case "truncate" if end > readers:
                return f"truncate {self.random.choice(self.boundaries(readers, end)[:-1])}"
            case "reopen":
                return f"reopen {self.log.now_ms + self.random.choice([0, 1000, DAY_MS])}"
            case "aborted":
                return f"aborted {self.random.randint(0, end)}"
        return f"hw {self.random.choice(self.boundaries(readers, end))}"

    def boundaries(self, first, stop):
        """Where batches begin in [first, stop), and `stop`."""
        begins = [b.base_offset for batches in self.log.segments.values() for b in batches]
        return [*(b for b in begins if first <= b < stop), stop]
