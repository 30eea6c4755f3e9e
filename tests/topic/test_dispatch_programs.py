"""Random lives of a topic with delayed messages and two subscriptions, over every kind of tracker: 10 of them, 600 in
`make torture`. Nothing is lost, nothing early, and nothing twice but after a rewind, or where an acknowledgement was
not on the disk yet. Some entries are batches, acknowledged message by message; some are relocated
(seglog.delayed.relocate).
"""
import os
import random
import shutil

import pytest

from seglog.clock import ManualClock
from seglog.delayed.worker import InlineWorker
from seglog.pulsar import ManagedLedger
from seglog.topic import delayed_index
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import batch, delayed, message, numbers

PROGRAMS = 600 if os.environ.get("SEGLOG_TORTURE") else 10
BATCH = 5
NOW = 1_700_000_000_000
KINDS = [
    {"enableBucketDelayedDeliveryTracker": False},
    {},
    {"enableShareDelayedMessageIndex": True},
]
NAMES = ("one", "other")


class Program:
    def __init__(self, seed, directory):
        self.chance = random.Random(seed)
        self.directory, self.generation = directory, 0
        self.clock = ManualClock(NOW)
        self.due = {}  # number -> when
        self.position = {}  # number -> position
        self.moved = {name: {} for name in NAMES}  # number -> when instead
        self.cancelled = {name: set() for name in NAMES}
        self.doubtful = set()
        self.given = {name: set() for name in NAMES}  # since the last rewind
        self.acked = {name: set() for name in NAMES}
        self.got = {name: set() for name in NAMES}  # ever
        self.count = {}  # number -> how many messages, of those that are batches
        self.parts = {name: {} for name in NAMES}  # number -> messages that are acknowledged
        self.relocated = 0
        self.kind = self.chance.randrange(3)
        self.open()

    @property
    def path(self):
        return self.directory / f"t{self.generation}"

    def open(self):
        config = {"managedLedgerMaxEntriesPerLedger": 7, "defaultRetentionTimeInMinutes": 0}
        self.log = ManagedLedger(self.path, config=config, clock=self.clock, fsync="never")
        cursors = [self.log.open_cursor(name, "earliest") for name in NAMES]
        settings = {
            "delayedDeliveryLedgerStepPerBucket": self.chance.choice([0, 2]),
            "delayedDeliveryMinIndexCountPerBucket": self.chance.choice([3, 10]),
            "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": self.chance.choice([-1, 2]),
            "delayedDeliveryMaxNumBuckets": self.chance.choice([-1, 2]),
            "seglog.delayed.relocate": self.chance.random() < 0.7,
        }
        self.delivery = DelayedDelivery(
            self.log, settings | KINDS[self.kind], clock=self.clock, new_worker=InlineWorker
        )
        self.dispatchers = {cursor.name: self.delivery.dispatcher(cursor) for cursor in cursors}
        self.given = {name: set() for name in NAMES}

    def close(self):
        self.delivery.close()
        self.log.close()

    def run(self, steps):
        acts = [self.publish] * 4 + [self.consume] * 8 + [self.step_clock] * 4 + [
            self.rewind, self.restart, self.crash, self.cancel, self.reschedule, self.redeliver, self.acknowledge_part
        ]
        for _ in range(steps):
            self.chance.choice(acts)()
            self.look()
        self.drain()
        self.close()

    def publish(self):
        for _ in range(self.chance.randrange(1, 10)):
            number = len(self.due)
            delay = self.chance.choice([None, 0, self.chance.randrange(20_000), self.chance.randrange(3000), 5000])
            if self.chance.random() < 0.1:
                delay = 100_000 + self.chance.randrange(500_000)
            self.due[number] = 0 if delay is None else self.clock.now_ms() + delay
            entry = message(number) if delay is None else delayed(number, self.due[number])
            if self.chance.random() < 0.2:
                self.count[number] = 3
                entry = batch(number, 3, deliver_at=None if delay is None else self.due[number])
            self.position[number] = self.log.add_entry(entry)

    def consume(self):
        name = self.chance.choice(NAMES)
        entries = self.dispatchers[name].read(self.chance.choice([1, 3, 50]))
        for number in numbers(entries):
            assert self.when(name, number) <= self.clock.now_ms(), f"{number} early"
            assert number not in self.given[name], f"{number} twice"
            assert number not in self.acked[name], f"{number} although acknowledged"
            assert number not in self.cancelled[name], f"{number} although cancelled"
            self.given[name].add(number)
            self.got[name].add(number)
        chosen = [number for number in self.given[name] - self.acked[name] if self.chance.random() < 0.95]
        self.dispatchers[name].cursor.acknowledge_many(self.position[number] for number in chosen)
        self.acked[name].update(chosen)

    def acknowledge_part(self):
        """Of a batch, delayed or not; the last message of it acknowledges all."""
        name = self.chance.choice(NAMES)
        waiting = [number for number in self.count if number not in self.acked[name]]
        if waiting:
            number, index = self.chance.choice(waiting), self.chance.randrange(3)
            self.dispatchers[name].cursor.acknowledge(self.position[number], [index], self.chance.choice([3, None]))
            parts = self.parts[name].setdefault(number, set())
            parts.add(index)
            if len(parts) == 3:
                self.acked[name].add(number)
                self.got[name].add(number)      # nobody will be given it

    def look(self):
        """What is delayed, sorted, by sets."""
        for name in NAMES:
            cursor = self.dispatchers[name].cursor
            for number, parts in self.parts[name].items():
                expected = set() if number in self.acked[name] else parts
                assert cursor.acknowledged_batch_indexes(self.position[number]) == expected, number
            self.relocated += sum(map(len, cursor.aside.values()))
            now = self.clock.now_ms()
            over = {one: self.acked[one] | self.cancelled[one] for one in NAMES}
            done = over["one"] & over["other"] if self.is_shared else over[name]
            later = sorted(
                (self.when(name, number), *self.position[number])
                for number in self.due
                if self.when(name, number) > now and number not in done
            )
            assert [tuple(found) for found in self.delivery.tracker(cursor).list(now + 1, 2**63)] == later

    def step_clock(self):
        self.clock.advance(self.chance.choice([1, 500, 2000, 5000]))
        self.clock.advance_monotonic(20_000)

    def rewind(self):
        name = self.chance.choice(NAMES)
        self.dispatchers[name].rewind()
        self.given[name].clear()

    def redeliver(self):
        name = self.chance.choice(NAMES)
        again = {number for number in self.given[name] if self.chance.random() < 0.3}
        self.dispatchers[name].redeliver(self.position[number] for number in again)
        self.given[name] -= again - self.acked[name]

    def cancel(self):
        if self.due:
            number = self.chance.choice(sorted(self.due))
            name = self.chance.choice(NAMES)
            if self.dispatchers[name].cancel(self.position[number]):
                for one in NAMES if self.is_shared else [name]:
                    # Of a shared index, one may have it already that the other waits for: after a rewind, say.
                    self.cancelled[one].add(number)
                    self.acked[one].add(number)

    @property
    def is_shared(self):
        return "enableShareDelayedMessageIndex" in KINDS[self.kind]

    def when(self, name, number):
        return self.moved[name].get(number, self.due[number])

    def reschedule(self):
        if self.due:
            number = self.chance.choice(sorted(self.due))
            name = self.chance.choice(NAMES)
            tracker = self.delivery.tracker(self.dispatchers[name].cursor)
            at = self.clock.now_ms() + self.chance.choice([0, 100, 3000, 30_000])
            if tracker.reschedule(*self.position[number], at):
                for one in NAMES if self.is_shared else [name]:
                    self.moved[one][number] = at

    def restart(self):
        self.close()
        was_shared = self.is_shared
        self.kind = self.chance.randrange(3)
        if self.is_shared and not was_shared:
            for number in {number for moved in self.moved.values() for number in moved}:
                times = [self.when(name, number) for name in NAMES if number not in self.acked[name]]
                for name in NAMES if times else ():
                    self.moved[name][number] = max(times)
        self.open()

    def crash(self):
        """The process dies: what is on the disk is opened elsewhere. Acknowledgements not flushed are gone."""
        for name in NAMES:
            if self.chance.random() < 0.5:
                self.dispatchers[name].cursor.flush()
        self.log.flush()
        before = self.path
        self.generation += 1
        shutil.copytree(before, self.path)
        self.close()
        shutil.rmtree(before)
        self.open()
        for name in NAMES:
            cursor = self.log.open_cursor(name)
            self.acked[name] = {
                number for number in self.acked[name] if cursor.is_acknowledged(self.position[number])
            } | self.cancelled[name]
            for number, parts in self.parts[name].items():
                if number not in self.acked[name]:
                    parts &= cursor.acknowledged_batch_indexes(self.position[number])

    def drain(self):
        self.clock.advance(10**6)
        self.clock.advance_monotonic(10**6)
        for name in NAMES:
            for _ in range(3):
                while entries := self.dispatchers[name].read(20):
                    assert not self.cancelled[name] & set(numbers(entries))
                    self.got[name].update(numbers(entries))
                    self.dispatchers[name].cursor.acknowledge_many(entry.position for entry in entries)
            self.dispatchers[name].rewind()
        for name in NAMES:
            while entries := self.dispatchers[name].read(20):
                self.got[name].update(numbers(entries))
                self.dispatchers[name].cursor.acknowledge_many(entry.position for entry in entries)
            missing = self.due.keys() - self.got[name] - self.cancelled[name]
            assert not missing, f"{name} never got {sorted(missing)}"
            assert self.dispatchers[name].cursor.backlog == 0


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_nothing_is_lost_or_early_or_twice(first, in_memory, monkeypatch):
    monkeypatch.setattr(delayed_index, "RELOCATE_AHEAD_MS", 1_000)
    monkeypatch.setattr(delayed_index, "RELOCATE_ONE_OF", 3)
    relocated = 0
    for seed in range(first, first + BATCH):
        try:
            program = Program(seed, in_memory / str(seed))
            program.run(80)
            relocated += program.relocated
        except Exception as e:
            e.add_note(f"seed {seed}")
            raise
    assert relocated
