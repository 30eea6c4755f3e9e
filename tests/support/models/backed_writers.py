"""Writers in processes of their own that go on while they are backed up, and what each of them held after each of its
changes.

    with Watched("log", log dir / "orders-0", notes) as writer:
        moment = writer.moment()                    # before a backup
        ...
        writer.check(moment, restored directory)    # it is one of the states from then on until now

    python -m support.backed_writers KIND DIRECTORY NOTES           the process of one

A process notes each change after it has made it: so of what a backup has seen, all but the last change is noted when it
ends, and the judge waits for one more.
"""
import ast
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import seglog
from seglog.upkeep.cleaner import clean
from support.backed_log import CONFIG
from support.waiting import wait_for

TESTS = Path(__file__).parents[2]
SMALL_SEGMENTS = CONFIG | {"segment.bytes": 4000}
COMPACTED = SMALL_SEGMENTS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01,
                              "max.compaction.lag.ms": 100}
SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": 50, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


# --- in its process ------------------------------------------------------------------------------


class Writer:
    """Runs `step` again and again until the standard input ends, and writes each change to the notes."""

    def __init__(self, notes):
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND)
        self.stop = threading.Event()
        self.changes = 0

    def note(self, *change):
        os.write(self._notes, f"{change!r}\n".encode())
        self.changes += 1

    def run(self):
        threading.Thread(target=self._await_end, daemon=True).start()
        while not self.stop.is_set():
            self.step()
            if self.changes % 10 == 0:
                time.sleep(0.01)        # so that a backup finds a moment

    def _await_end(self):
        sys.stdin.read()
        self.stop.set()


class BusyLog(Writer):
    """Appends, transactions that are committed or aborted, truncations, deletions of the oldest records."""

    def __init__(self, path, notes):
        super().__init__(notes)
        self.log, self._chance = seglog.open(path, config=SMALL_SEGMENTS, fsync="never"), random.Random(3)
        self._values, self._transactions = count(), count()
        self._producer, self._transaction = self.log.producer(7), None
        self._transactions_at = {}      # {offset of a record: number of its transaction}

    def step(self):
        dice = self._chance.random()
        if self._transaction is not None:
            self._in_transaction(dice)
        elif dice < 0.1:
            self._producer.begin()
            self._transaction = next(self._transactions)
        elif dice < 0.12:
            self._cut()
        elif dice < 0.125:
            offset = max(self.log.log_start_offset, self.log.log_end_offset - 300)
            self.log.delete_records(offset)
            self.note("start", offset)
        else:
            value = next(self._values)
            self.note("append", self.log.append(b"%d" % value), value, None)

    def _in_transaction(self, dice):
        if dice < 0.7:
            value = next(self._values)
            offset = self._producer.append(b"%d" % value)
            self._transactions_at[offset] = self._transaction
            self.note("append", offset, value, self._transaction)
            return
        is_committed = dice < 0.85
        marker = self._producer.commit() if is_committed else self._producer.abort()
        if marker is not None:
            self.note("marker", marker, self._transaction, is_committed)
        self._transaction = None

    def _cut(self):
        """A truncation may open a transaction again, which the next producer with this id aborts."""
        offset = max(self.log.log_start_offset, self.log.log_end_offset - self._chance.randrange(12))
        self.log.truncate_to(offset)
        self.note("cut", offset)
        stable = self.log.last_stable_offset
        self._producer = self.log.producer(7)
        if self.log.log_end_offset > offset:
            self.note("marker", offset, self._transactions_at[stable], False)


class BusyTable(Writer):
    """Appends records with few keys to a log that is compacted meanwhile, by a thread of its own."""

    def __init__(self, path, notes):
        super().__init__(notes)
        self.log, self._chance = seglog.open(path, config=COMPACTED, fsync="never"), random.Random(3)
        threading.Thread(target=self._clean, daemon=True).start()

    def _clean(self):
        while not self.stop.wait(0.05):
            clean(self.log, should_stop=self.stop.is_set)

    def step(self):
        key = self._chance.randrange(40)
        assert self.log.append(b"%d" % self.changes, key=b"%d" % key) == self.changes
        self.note(key)


class BusyQueue(Writer):
    """Puts, takes and acknowledges, in three priorities, through a queue that another process may have."""

    def __init__(self, path, notes):
        super().__init__(notes)
        self.queue = seglog.Queue(path, attach=True, config=SMALL_LEDGERS, lease=3600, max_attempts=None)
        self._chance, self._held, self._left, self._numbers = random.Random(3), [], 0, count()

    def step(self):
        dice = self._chance.random()
        if self._left < 5 or (dice < 0.5 and self._left < 200):
            number = next(self._numbers)
            self.queue.put(b"%d" % number, priority=self._chance.randrange(3))
            self._left += 1
            self.note("put", number)
        elif self._held and dice < 0.85:
            job = self._held.pop(self._chance.randrange(len(self._held)))
            job.ack()
            self._left -= 1
            self.note("done", int(job.value))
        elif (job := self.queue.get(timeout=0)) is not None:
            self._held.append(job)
        if len(self._held) > 20:
            for job in self._held[:10]:
                job.nack(0)
            del self._held[:10]


class QueueOwner(Writer):
    """Has the queue, and does nothing."""

    def __init__(self, path, notes):
        super().__init__(notes)
        self.queue = seglog.Queue(path, attach=True, config=SMALL_LEDGERS, lease=3600, max_attempts=None)
        self.note("has it")

    def step(self):
        self.stop.wait()


WRITERS = {"log": BusyLog, "table": BusyTable, "queue": BusyQueue, "owner": QueueOwner}


def main():
    kind, path, notes = sys.argv[1:]
    WRITERS[kind](Path(path), notes).run()


# --- in the process of the test ------------------------------------------------------------------


class Running:
    """The process of a writer. `changes`: what it has noted, as of the last look."""

    def __init__(self, kind, path, notes):
        notes.touch()
        self.path, self.changes, self._notes, self._read_bytes = path, [], notes, 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.backed_writers", kind, path, notes], stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        assert self._process.wait(60) in (0, -9)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def count(self):
        with open(self._notes, "rb") as file:
            file.seek(self._read_bytes)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self.changes += map(ast.literal_eval, whole.decode().splitlines())
        return len(self.changes)

    def await_changes(self, changes=10):
        before = self.count()
        wait_for(lambda: self._process.poll() is not None or self.count() >= before + changes)
        assert self._process.poll() in (None, -9), "the writer failed"


class Watched(Running):
    """A writer that is judged."""

    def __init__(self, kind, path, notes):
        super().__init__(kind, path, notes)
        self._judge = JUDGES[kind]
        self._known = 0, self._judge()

    def moment(self):
        """The number of changes that are noted, and the state then."""
        before, state = self._known
        for change in self.changes[before : self.count()]:
            state = state.after(change)
        self._known = len(self.changes), state
        return self._known

    def check(self, moment, path):
        """Fail unless what was restored to `path` is a state from the moment on."""
        self.await_changes(1)
        number, state = moment
        found, near = self._judge.read(path), ""
        for change in [None, *self.changes[number:]]:
            state = state if change is None else state.after(change)
            why = state.differs_from(found)
            if not why:
                return
            near = near or why
        raise AssertionError(
            f"{path}: never that of {self.path.name} in the changes {number} to {len(self.changes)}: {near}")


@dataclass(frozen=True)
class LogState:
    """`records`: {offset: (value, number of its transaction or None)}; `ends`: {number: (offset of its marker,
    whether it was committed)}."""

    start: int = 0
    end: int = 0
    records: dict = field(default_factory=dict)
    ends: dict = field(default_factory=dict)

    def after(self, change):
        what, offset, *more = change
        if what == "append":
            value, transaction = more
            return replace(self, end=offset + 1, records=self.records | {offset: (value, transaction)})
        if what == "marker":
            transaction, is_committed = more
            return replace(self, end=offset + 1, ends=self.ends | {transaction: (offset, is_committed)})
        if what == "start":
            kept = {one: record for one, record in self.records.items() if one >= offset}
            return replace(self, start=offset, records=kept)
        assert what == "cut"
        return replace(
            self, end=offset, records={one: record for one, record in self.records.items() if one < offset},
            ends={number: end for number, end in self.ends.items() if end[0] < offset},
        )

    def committed(self):
        opened = {number for _, number in self.records.values() if number is not None} - self.ends.keys()
        stable = min((one for one, (_, number) in self.records.items() if number in opened), default=self.end)
        return [
            (one, value) for one, (value, number) in self.records.items()
            if one < stable and (number is None or self.ends[number][1])
        ]

    @staticmethod
    def read(path):
        with seglog.open_partition(path) as partition:
            return (
                (partition.log_start_offset, partition.log_end_offset),
                [(record.offset, int(record.value)) for record in partition.read()],
                [(record.offset, int(record.value)) for record in partition.read(isolation="read_committed")],
            )

    def differs_from(self, found):
        ends, records, committed = found
        if ends != (self.start, self.end):
            return f"offsets {ends}"
        ours = [(one, value) for one, (value, _) in self.records.items()]
        if records != ours:
            return f"offsets {ends}: records {sorted(set(records) ^ set(ours))[:9]}"
        if committed != (ours := self.committed()):
            return f"offsets {ends}: committed records {sorted(set(committed) ^ set(ours))[:9]}"
        return ""


class TableState:
    """Each key's last record is there, and nothing else than records that were written at these offsets."""

    def __init__(self, keys=None, end=0):
        self.keys, self.end = [] if keys is None else keys, end        # one list for all states

    def after(self, change):
        if len(self.keys) == self.end:
            self.keys += change
        return TableState(self.keys, self.end + 1)

    @staticmethod
    def read(path):
        with seglog.open_partition(path) as partition:
            return partition.log_end_offset, [
                (record.offset, int(record.key), int(record.value)) for record in partition.read()]

    def differs_from(self, found):
        end, records = found
        if end != self.end:
            return f"the end offset {end}"
        if any((key, value) != (self.keys[offset], offset) for offset, key, value in records):
            return f"end {end}: a record of another offset"
        if {key: value for _, key, value in records} != {self.keys[offset]: offset for offset in range(end)}:
            return f"end {end}: other last records"
        return ""


@dataclass(frozen=True)
class QueueState:
    left: frozenset = frozenset()

    def after(self, change):
        _, number = change
        return QueueState(self.left ^ {number})

    @staticmethod
    def read(path):
        with seglog.Queue(path, create=False) as queue:
            found = [int(job.value) for job in queue.get_many(10_000, timeout=0)]
            assert not list(queue.dead)
        assert len(set(found)) == len(found)
        return set(found)

    def differs_from(self, found):
        return f"jobs {sorted(found ^ self.left)[:9]}" if found != self.left else ""


JUDGES = {"log": LogState, "table": TableState, "queue": QueueState}


if __name__ == "__main__":
    main()
