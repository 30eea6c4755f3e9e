"""Random transactions of several producers on one log, and which of their records readers of committed data are to see.

    program = TransactionProgram(seed, directory); program.run(60); program.check()
"""
import random
from dataclasses import dataclass, field

import seglog
from seglog.clock import ManualClock
from seglog.format.batch import build_batch

NOW = 1_790_000_000_000
TIMEOUT_MS = 60_000
PRODUCER_IDS = 5
RAW = 100           # ids from here on send encoded batches


@dataclass
class Transaction:
    first_offset: int
    state: str = "open"


@dataclass
class Model:
    """Records as (offset, value, transaction or None), and what is decided of them."""

    records: list = field(default_factory=list)
    transactions: list = field(default_factory=list)
    start: int = 0
    end: int = 0

    def stable(self):
        return min([t.first_offset for t in self.transactions if t.state == "open"] + [self.end])

    def committed(self):
        stable = self.stable()
        return [
            (offset, value) for offset, value, transaction in self.records
            if self.start <= offset < stable and (transaction is None or transaction.state == "committed")
        ]


class TransactionProgram:
    def __init__(self, seed, directory, fs=None):
        self.rng = rng = random.Random(seed)
        self.directory = directory
        self.clock = ManualClock(NOW)
        self.fs = fs
        self.config = {
            "segment.bytes": rng.choice([600, 2000, 10_000]), "index.interval.bytes": rng.choice([1, 200, 4096]),
            "compression.type": rng.choice(["producer", "zstd", "lz4", "gzip"]),
            "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            "transaction.max.timeout.ms": TIMEOUT_MS, "num.recovery.threads.per.data.dir": 1,
        }
        self.fsync = rng.choice(["batch", "never"])
        self.model = Model()
        self.number = 0
        self.story = []
        self.open()

    def open(self):
        self.producers = {}         # id: (Producer, Transaction or None)
        self.raw = {}               # id: [next sequence, Transaction or None]
        self.log = seglog.open(
            self.directory, config=self.config, fsync=self.fsync, clock=self.clock, fs=self.fs
        )

    def values(self):
        values = []
        for _ in range(self.rng.randint(1, 4)):
            self.number += 1
            values.append(b"%d." % self.number + b"v" * self.rng.choice([0, 5, 90]))
        return values

    def wrote(self, last, values, transaction):
        first = last - len(values) + 1
        assert first == self.model.end
        self.model.records += [(first + i, value, transaction) for i, value in enumerate(values)]
        self.model.end = last + 1

    def ended(self, transaction, marker, state):
        if marker is not None:
            assert marker == self.model.end
            self.model.end = marker + 1
        if transaction is not None:
            transaction.state = state

    # --- steps ---------------------------------------------------------------------------------------

    def plain(self):
        values = self.values()
        self.wrote(self.log.append_many([(b"k", value) for value in values]), values, None)

    def begin(self):
        producer_id = self.rng.randrange(PRODUCER_IDS)
        if producer_id in self.producers and self.rng.random() < 0.7:
            return
        old = self.producers.get(producer_id, (None, None))[1]
        left = old or self.found_open(producer_id)
        before = self.model.end
        producer = self.log.producer(producer_id)
        self.ended(left, before if left is not None and left.state == "open" else None, "aborted")
        producer.begin()
        self.producers[producer_id] = producer, None

    def found_open(self, producer_id):
        """What a former life left open."""
        return next((t for t in self.model.transactions if t.state == "open" and t.producer_id == producer_id), None)

    def append(self):
        if not self.producers:
            return
        producer_id = self.rng.choice(sorted(self.producers))
        producer, transaction = self.producers[producer_id]
        values = self.values()
        if transaction is None:
            transaction = Transaction(self.model.end)
            transaction.producer_id = producer_id
            self.model.transactions.append(transaction)
            self.producers[producer_id] = producer, transaction
        self.wrote(producer.append_many([(b"k", value) for value in values]), values, transaction)

    def end(self):
        if not self.producers:
            return
        producer_id = self.rng.choice(sorted(self.producers))
        producer, transaction = self.producers[producer_id]
        commit = self.rng.random() < 0.6
        marker = producer.commit() if commit else producer.abort()
        assert (marker is None) == (transaction is None)
        self.ended(transaction, marker, "committed" if commit else "aborted")
        producer.begin()
        self.producers[producer_id] = producer, None

    def send_ready(self):
        producer_id = RAW + self.rng.randrange(2)
        sequence, transaction = self.raw.get(producer_id, (0, None))
        if not self.raw.get(producer_id) and any(t.producer_id == producer_id for t in self.model.transactions):
            return      # of a former life: its sequences are gone
        values = self.values()
        raw = build_batch(
            [(b"k", value) for value in values], producer_id=producer_id, producer_epoch=3, base_sequence=sequence,
            transactional=True, timestamp=self.clock.now_ms(), codec=self.rng.choice(["none", "zstd"]),
        )
        if transaction is None:
            transaction = Transaction(self.model.end)
            transaction.producer_id = producer_id
            self.model.transactions.append(transaction)
        self.wrote(self.log.append_batch(raw).last_offset, values, transaction)
        self.raw[producer_id] = sequence + len(values), transaction

    def end_ready(self):
        for producer_id, (sequence, transaction) in self.raw.items():
            if transaction is not None and self.rng.random() < 0.7:
                commit = self.rng.random() < 0.5
                marker = self.log.end_transaction(producer_id, 3, commit=commit)
                self.ended(transaction, marker, "committed" if commit else "aborted")
                self.raw[producer_id] = sequence, None

    def time_out(self):
        """All that is open is aborted, and its producers are fenced."""
        self.plain()
        self.clock.advance(TIMEOUT_MS)
        self.log._maintain()       # if no thread of the log's has seen it yet
        for transaction in self.model.transactions:
            if transaction.state == "open":
                self.ended(transaction, self.model.end, "aborted")
                self.producers.pop(transaction.producer_id, None)
                self.raw[transaction.producer_id] = None
        self.raw = {key: value for key, value in self.raw.items() if value is not None}

    def roll(self):
        self.log.roll()

    def reopen(self):
        if self.rng.random() < 0.5:
            self.log.close()
        else:
            self.log._tail.let_go(clean=False)      # as when a process dies
        self.open()

    def delete(self):
        before = self.rng.randint(self.model.start, max(self.model.start, self.model.stable()))
        self.model.start = self.log.delete_records(before)

    def run(self, steps, *, without=()):
        names = {step: weight for step, weight in STEPS.items() if step.__name__ not in without}
        for step in self.rng.choices(list(names), names.values(), k=steps):
            self.story.append(step.__name__)
            self.clock.advance(self.rng.randint(0, 200))
            step(self)

    def check(self, log=None):
        if log is None:
            log = self.log
            log.flush()     # what a transaction wrote is seen when it is durable
        model = self.model
        assert log.log_end_offset == model.end, self.story
        assert log.last_stable_offset == max(model.stable(), model.start), self.story
        found = [(record.offset, record.value) for record in log.read(isolation="read_committed")]
        assert found == model.committed(), self.story
        assert [(r.offset, r.value) for r in log.read()] == [
            (offset, value) for offset, value, _ in model.records if offset >= model.start
        ], self.story


STEPS = {
    TransactionProgram.plain: 4, TransactionProgram.begin: 6, TransactionProgram.append: 12, TransactionProgram.end: 8,
    TransactionProgram.send_ready: 4, TransactionProgram.end_ready: 3, TransactionProgram.time_out: 1,
    TransactionProgram.roll: 2, TransactionProgram.delete: 1, TransactionProgram.reopen: 1,
}
