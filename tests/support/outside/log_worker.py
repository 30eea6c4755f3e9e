"""A process that changes a log, and notes each call before and after it. Public doors of seglog only.

    recording.run("support.outside.log_worker", '{"path": "disk/data/orders-0", "kind": "appends", "seed": 1, ...}')

Notes (notes.py; the witness is log_witness.py):

    has START END NUMBERS   the log was opened (again), and this is in it
    durable OFFSET          log.durable_offset says so
    give NUMBERS            these are about to be appended; then
    took NUMBERS FIRST      they were, from this offset on
    wrote NUMBERS FIRST     the same of an append that does not wait; then
    synced OFFSETS          when_durable says so
    cut OFFSET              truncate_to is about to be called; then
    ends END                it returned
    delete OFFSET, starts START         the same for delete_records
    begins START            where the log begins now that its retention has run; it may begin later at any time
    flush, flushed          flush() or roll() is about to be called, and returned
    snapshot DST, snapped END           the same for snapshot()
    failed WHAT             a call raised this. The log is closed then, and opened again, as the manual says
    close, closed           close() returned
    dead WHAT               the log could not be opened again: the end
"""
import os
from array import array

import seglog
from seglog.errors import OffsetOutOfRangeError
from support.outside.worker import Worker

CONFIG = {
    "segment.bytes": 16_000, "index.interval.bytes": 500, "max.message.bytes": 6000, "flush.ms": 20,
    "seglog.time.index.minute.enabled": True, "num.recovery.threads.per.data.dir": 1,
}
WEIGHTS = {
    "appends": {"append": 90, "roll": 2, "flush": 3, "durable": 3, "reopen": 2},
    "cuts": {"append": 75, "cut": 10, "delete": 6, "roll": 3, "flush": 2, "reopen": 4},
    "closings": {"append": 60, "cut": 8, "cut and close": 12, "reopen": 8, "roll": 5},
    "size": {"append": 88, "roll": 4, "retain": 3, "flush": 2, "reopen": 3},
    "time": {"append": 88, "roll": 4, "retain": 3, "flush": 2, "reopen": 3},
    "neighbours": {"append": 50, "neighbour": 25, "roll": 6, "cut": 4, "delete": 3, "reopen": 8, "leave": 4},
    "beside": {"append": 85, "roll": 4, "flush": 11},
    "backups": {"append": 80, "snapshot": 5, "roll": 4, "cut": 4, "delete": 4, "reopen": 3},
}

# Threads that append and do not wait, beside one that does nothing but flush; the segments are short.
BESIDE_BYTES = 4000

# Kinds of logs that delete by themselves, in a thread of their own.
KEPT_BYTES = 20_000
RETENTION = {
    "size": {"retention.bytes": KEPT_BYTES, "file.delete.delay.ms": 5, "segment.bytes": 8000},
    "time": {
        "retention.ms": 60, "seglog.retention.granularity": "batch", "seglog.retention.head.rewrite.ratio": 0.2,
        "file.delete.delay.ms": 5, "segment.bytes": 8000,
    },
}


def value_of(number):
    """Short ones, which share a sector, and some that span several."""
    size = number * 131 % 900 if number % 5 else number * 37 % 3500
    return b"%d." % number + b"v" * size


def number_of(value):
    """The number of a value; None if it is none of ours."""
    head = bytes(value[:20]).split(b".")[0]
    return int(head) if head.isdigit() and bytes(value) == value_of(int(head)) else None


class LogWorker(Worker):
    beside = ("flush", "roll", "durable", "durable", "durable")

    def __init__(self, path, kind, seed, fsync, threads, steps):
        super().__init__(path, kind, seed, fsync, threads, steps)
        self.weights = WEIGHTS[kind]
        self.config = CONFIG | RETENTION.get(kind, {})
        if kind == "beside":
            self.config = self.config | {"segment.bytes": BESIDE_BYTES}
            self.beside, self.beside_every_s = ("flush",), 0.0002
        self.snapshots = 0
        self.log = None
        self.log_dir = None         # of the kind "neighbours": its logs come and go beside this one

    def open(self):
        if self.kind == "neighbours":
            self.log_dir = self.log_dir or seglog.open_dir(
                os.path.dirname(self.path), config=self.config, fsync=self.fsync
            )
            self.log = self.log_dir.log("orders", 0)
        else:
            self.log = seglog.open(self.path, config=self.config, fsync=self.fsync)
        log = self.log
        records = self.records()
        start = records[0].offset if records else log.log_start_offset
        self.note("has", start, log.log_end_offset, [number_of(r.value) for r in records])
        self.note("durable", log.durable_offset)

    def records(self):
        """All of them; again if the log's own retention was quicker."""
        while True:
            try:
                return list(self.log.read())
            except OffsetOutOfRangeError:
                continue

    def add(self, chance):
        if self.kind == "beside":
            self.write(chance)
            return
        numbers = self.numbers(chance.choice([1, 1, 1, 1, 2, 4]))
        as_columns = chance.random() < 0.2
        self.note("give", numbers)
        values = [value_of(n) for n in numbers]
        if as_columns:      # in as many batches as it takes
            offsets = [0]
            for value in values:
                offsets.append(offsets[-1] + len(value))
            last = self.log.append_columns(values=(array("i", offsets), b"".join(values)))
        elif len(numbers) == 1:
            last = self.log.append(values[0])
        else:
            while sum(map(len, values)) > 5000:
                numbers.pop(), values.pop()
            last = self.log.append_many([(None, value) for value in values])
        self.note("took", numbers, last - len(numbers) + 1)

    def write(self, chance):
        """Append a record without waiting for the disk."""
        numbers = self.numbers(1)
        self.note("give", numbers)
        written = self.log.append(value_of(numbers[0]), wait=False)
        self.note("wrote", numbers, written.result)

        def told(error):
            if error is None:
                self.note("synced", [written.result])

        self.log.when_durable(written, told)

    def do(self, deed, chance):
        log = self.log
        match deed:
            case "append":
                self.add(chance)
            case "roll" | "flush":
                self.note("flush")
                getattr(log, deed)()
                self.note("flushed")
            case "durable":
                self.note("durable", log.durable_offset)
            case "retain":
                log.delete_old_segments()
                self.note("begins", log.log_start_offset)
            case "cut":
                self.cut(chance.choice([1, 3, 12, 40]))
            case "cut and close":
                self.cut(chance.choice([1, 1, 3]))
                self.do("reopen", chance)
            case "delete":
                offset = chance.randint(log.log_start_offset, log.log_end_offset)
                self.note("delete", offset)
                self.note("starts", log.delete_records(offset))
            case "snapshot":
                self.snapshots += 1
                target = os.path.join(os.path.dirname(os.path.dirname(self.path)), "backups", f"b{self.snapshots}-0")
                self.note("snapshot", os.path.basename(target))
                self.note("snapped", log.snapshot(target))
            case "reopen":
                self.reopen()
            case "neighbour":
                self.neighbour(chance)
            case "leave":
                self.close()
                self.leave()
                self.open()

    def neighbour(self, chance):
        """What happens to another log of the log dir, whose lines and marks are written with those of this one."""
        log_dir, number = self.log_dir, chance.randint(1, 3)
        if ("orders", number) in log_dir.partitions() and chance.random() < 0.3:
            log_dir.delete("orders", number)
            assert log_dir.log("orders", number).log_end_offset == 0
        with log_dir.log("orders", number) as log:
            log.append(b"a neighbour's")
            if chance.random() < 0.3:
                log.roll()
            if chance.random() < 0.2:
                log.truncate_to(chance.randint(log.log_start_offset, log.log_end_offset))
            elif chance.random() < 0.2:
                log.delete_records(log.log_end_offset)

    def leave(self):
        log_dir, self.log_dir = self.log_dir, None
        if log_dir is not None:
            log_dir.close()

    def cut(self, records):
        offset = max(self.log.log_end_offset - records, self.log.log_start_offset)
        self.note("cut", offset)
        self.note("ends", self.log.truncate_to(offset))

    def close(self):
        self.note("close")
        self.log.close()
        self.note("closed")

    def let_go(self):
        try:
            if self.log is not None:
                self.log.close()
        finally:
            self.leave()


main = LogWorker.main
