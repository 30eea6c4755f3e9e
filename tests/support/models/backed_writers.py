"""Writers that go on while they are backed up, and what each of them held after each of its changes.

    with writer.lock: moment = writer.moment()      # before a backup
    ...
    writer.check(moment, restored directory)        # it is one of the states from then on until now

Every writer notes a change with the lock that it makes it with, so a state between two changes is never one.
"""
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import count

import seglog
from seglog.upkeep.cleaner import clean
from support.waiting import wait_for


class Writer:
    """A thread that runs `step` again and again, with the lock, and notes (what changed, ...) in `changes`."""

    def __init__(self):
        self.lock, self.changes, self.stop, self.error = threading.Lock(), [], threading.Event(), None
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self.stop.is_set():
                with self.lock:
                    self.step()
                if len(self.changes) % 10 == 0:
                    time.sleep(0.01)        # for the other threads, and so that a backup finds a moment
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self._thread.join()
        if self.error:
            raise self.error

    def count(self):
        with self.lock:
            return len(self.changes)

    def await_changes(self, changes=10):
        before = self.count()
        wait_for(lambda: self.error or self.count() >= before + changes)
        if self.error:
            raise self.error

    def since(self, moment):
        """The number of changes that a moment came after, the state then, and the changes that followed."""
        number, state = moment
        with self.lock:
            return state, self.changes[number:]


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

    def open(self):
        """The transactions that have records and no marker."""
        return {number for _, number in self.records.values() if number is not None} - self.ends.keys()

    def committed(self):
        stable = min((one for one, (_, number) in self.records.items() if number in self.open()), default=self.end)
        return [
            (one, value) for one, (value, number) in self.records.items()
            if one < stable and (number is None or self.ends[number][1])
        ]


class BusyLog(Writer):
    """Appends, transactions that are committed or aborted, truncations, deletions of the oldest records."""

    def __init__(self, log, seed=3):
        super().__init__()
        self.log, self._chance = log, random.Random(seed)
        self._state, self._values, self._transactions = LogState(), count(), count()
        self._producer, self._transaction = log.producer(7), None

    def note(self, *change):
        self.changes.append(change)
        self._state = self._state.after(change)

    def moment(self):
        return len(self.changes), self._state

    def step(self):
        dice = self._chance.random()
        if self._transaction is not None:
            self._in_transaction(dice)
        elif dice < 0.04:
            self._producer.begin()
            self._transaction = next(self._transactions)
        elif dice < 0.06:
            self._cut()
        elif dice < 0.065:
            offset = max(self.log.log_start_offset, self.log.log_end_offset - 300)
            self.log.delete_records(offset)
            self.note("start", offset)
        else:
            value = b"%d" % next(self._values)
            self.note("append", self.log.append(value), value, None)

    def _in_transaction(self, dice):
        if dice < 0.7:
            value = b"%d in a transaction" % next(self._values)
            self.note("append", self._producer.append(value), value, self._transaction)
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
        self._producer = self.log.producer(7)
        opened = self._state.open()
        if self.log.log_end_offset > offset:
            number, = opened
            self.note("marker", offset, number, False)
        assert self.log.log_end_offset == self._state.end

    def check(self, moment, path):
        with seglog.open_partition(path) as partition:
            start, end = partition.log_start_offset, partition.log_end_offset
            found = [(record.offset, record.value) for record in partition.read()]
            committed = [(record.offset, record.value) for record in partition.read(isolation="read_committed")]
        state, changes = self.since(moment)
        for change in [None, *changes]:
            state = state if change is None else state.after(change)
            if (state.start, state.end) == (start, end) and found == [
                (one, value) for one, (value, _) in state.records.items()
            ] and committed == state.committed():
                return
        raise AssertionError(f"{path}: records {start} to {end} were never those of the log")


class BusyTable(Writer):
    """Appends records with few keys to a log that is compacted meanwhile, by a thread of its own."""

    def __init__(self, log, seed=3):
        super().__init__()
        self.log, self._chance = log, random.Random(seed)
        self._cleaning = threading.Thread(target=self._clean)

    def __enter__(self):
        self._cleaning.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._cleaning.join()

    def _clean(self):
        while not self.stop.wait(0.1):
            clean(self.log, should_stop=self.stop.is_set)

    def moment(self):
        return len(self.changes), None

    def step(self):
        key, value = b"%d" % self._chance.randrange(40), b"%d" % len(self.changes)
        assert self.log.append(value, key=key) == len(self.changes)
        self.changes.append((key, value))

    def check(self, moment, path):
        """Each key's last record is there, and nothing else than records that were written at these offsets."""
        with seglog.open_partition(path) as partition:
            end = partition.log_end_offset
            found = [(record.offset, record.key, record.value) for record in partition.read()]
        assert moment[0] <= end <= self.count()
        assert all(self.changes[offset] == (key, value) for offset, key, value in found)
        assert {key: value for _, key, value in found} == dict(self.changes[:end])
        return end - len(found)


class BusyQueue(Writer):
    """Puts, takes and acknowledges, in three priorities. `left`: what a queue before it had left."""

    def __init__(self, queue, left=frozenset()):
        super().__init__()
        self.queue, self.left = queue, set(left)
        self._chance, self._held = random.Random(3), []
        self._number = max(map(int, self.left), default=-1) + 1

    def moment(self):
        return len(self.changes), frozenset(self.left)

    def step(self):
        dice = self._chance.random()
        if len(self.left) < 5 or (dice < 0.5 and len(self.left) < 200):
            value = b"%d" % self._number
            self.queue.put(value, priority=self._chance.randrange(3))
            self.left.add(value)
            self.changes.append(("put", value))
            self._number += 1
        elif self._held and dice < 0.85:
            job = self._held.pop(self._chance.randrange(len(self._held)))
            job.ack()
            self.left.remove(job.value)
            self.changes.append(("done", job.value))
        elif (job := self.queue.get(timeout=0)) is not None:
            self._held.append(job)
        if len(self._held) > 20:
            for job in self._held[:10]:
                job.nack(0)
            del self._held[:10]

    def check(self, moment, path):
        with seglog.Queue(path, create=False) as queue:
            jobs = [job.value for job in queue.get_many(10_000, timeout=0)]
            assert not list(queue.dead)
        found = set(jobs)
        assert len(found) == len(jobs)
        state, changes = self.since(moment)
        state = set(state)
        for change in [None, *changes]:
            if change is not None:
                (state.add if change[0] == "put" else state.remove)(change[1])
            if state == found:
                return
        raise AssertionError(f"{path}: these {len(found)} jobs were never those of the queue")


OWNER = """
import sys, seglog
with seglog.Queue(sys.argv[1], attach=True, lease=3600, max_attempts=None) as queue:
    print("has it", flush=True)
    sys.stdin.read()
"""


def owner_of(path):
    """A process that has the queue until it is killed, or its standard input ends."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout.readline() == "has it\n"
    return owner
