"""A managed ledger and its cursors beside an obvious model of them: lists and sets. Programs drive both.

The model knows an entry by its number. `check` compares everything that can be asked.
"""
import copy
import random
from dataclasses import dataclass, field

from seglog.clock import ManualClock
from seglog.ledger.position import EARLIEST, Position
from seglog.pulsar import ManagedLedger
from support import descriptors
from support.topics import batch

CONFIG = {"managedLedgerMaxEntriesPerLedger": 4, "managedLedgerDefaultMarkDeleteRateLimit": 0}


@dataclass
class Added:
    number: int
    count: int
    publish_time: int
    broker_timestamp: int | None
    index: int | None

    @property
    def time(self):
        return self.publish_time if self.broker_timestamp is None else self.broker_timestamp


@dataclass
class Subscription:
    """`done`: positions wholly acknowledged. `parts`: position -> numbers of messages."""

    done: set = field(default_factory=set)
    parts: dict = field(default_factory=dict)

    def live(self, positions):
        return [p for p in positions if p not in self.done]

    def mark_delete(self, positions, before):
        """The last of the done ones in a row, from the first; what is before the first was passed."""
        mark = before
        for position in positions:
            if position not in self.done:
                break
            mark = max(mark, position)
        return mark


class TopicProgram:
    def __init__(self, path, fs=None, on_promise=lambda promise: None):
        self.path = path
        self.fs = fs
        self.clock = ManualClock(1_000)
        self.entries = {}           # position -> Added, of what is not trimmed
        self.subscriptions = {}
        self.trimmed = set()
        self.made = 0
        self.last_index = -1
        self.last_time = -1
        self.on_promise = on_promise
        self.on = "timestamp,index"
        self.open()

    # --- steps -------------------------------------------------------------------------------

    def open(self):
        self.topic = ManagedLedger(self.path, config=CONFIG, fs=self.fs, clock=self.clock)
        self.topic.interceptors = self.on

    def reopen(self):
        self.topic.close()
        self.open()

    def add(self, counts, publish_times):
        made, entries = [], []
        now_ms = self.clock.now_ms()
        for count, publish_time in zip(counts, publish_times, strict=True):
            if "index" in self.on:
                self.last_index += count
            if "timestamp" in self.on:
                self.last_time = max(self.last_time, now_ms)
            made.append(Added(
                self.made, count, publish_time, self.last_time if "timestamp" in self.on else None,
                self.last_index if "index" in self.on else None,
            ))
            entries.append((batch(self.made, count, publish_time), count))
            self.made += 1
        positions = self.topic.add_entries(entries)
        assert list(positions) == sorted(positions)
        assert not self.entries or positions[0] > max(self.entries)
        self.entries.update(zip(positions, made, strict=True))
        self.forget_trimmed()       # adding may roll, and rolling trims
        self.on_promise(self)

    def switch(self, on):
        self.on = on
        self.topic.interceptors = on

    def pass_time(self, ms):
        self.clock.set(max(self.clock.now_ms() + ms, 0))

    def rest(self):
        descriptors.rest()

    def roll(self):
        self.topic.roll()
        self.forget_trimmed()

    def subscribe(self, name, initial):
        if name not in self.subscriptions:
            self.topic.open_cursor(name, initial)
            self.subscriptions[name] = Subscription(set(self.entries) if initial == "latest" else set())
            self.forget_trimmed()
            self.on_promise(self)

    def unsubscribe(self, name):
        if name in self.subscriptions:
            del self.subscriptions[name]
            self.topic.delete_cursor(name)
            self.forget_trimmed()
            self.on_promise(self)

    def acknowledge(self, name, numbers):
        """Entries by their place among those that are there."""
        positions = self.chosen(numbers)
        if name in self.subscriptions and positions:
            self.subscriptions[name].done.update(positions)
            self.topic.cursors[name].acknowledge_many(positions)
            self.forget_trimmed()
            self.on_promise(self)

    def acknowledge_part(self, name, number, indexes):
        positions = self.chosen([number])
        if name not in self.subscriptions or not positions:
            return
        position, subscription = positions[0], self.subscriptions[name]
        count = self.entries[position].count
        indexes = {index % count for index in indexes}
        if position not in subscription.done and indexes:
            part = subscription.parts.setdefault(position, set())
            part |= indexes
            if len(part) == count:
                subscription.done.add(position)
            self.topic.cursors[name].acknowledge(position, indexes, count)
            self.forget_trimmed()
            self.on_promise(self)

    def mark_delete(self, name, number):
        positions = self.chosen([number])
        if name in self.subscriptions and positions:
            self.subscriptions[name].done.update(p for p in self.entries if p <= positions[0])
            self.topic.cursors[name].mark_delete(positions[0])
            self.forget_trimmed()
            self.on_promise(self)

    def seek(self, name, number):
        positions = self.chosen([number])
        if name in self.subscriptions and positions:
            self.subscriptions[name] = Subscription({p for p in self.entries if p < positions[0]})
            # Nothing of before a seek back is promised any more, and what it brought again is from its call on.
            self.topic.cursors[name].seek(positions[0])
            self.forget_trimmed()
            self.on_promise(self)

    def chosen(self, numbers):
        positions = sorted(self.entries)
        return sorted({positions[number % len(positions)] for number in numbers}) if positions else []

    def forget_trimmed(self):
        """Take over what was trimmed: whole sealed ledgers from the first on, which every subscription has passed."""
        there = {info.ledger_id for info in self.topic.ledgers}
        gone = sorted(p for p in self.entries if p.ledger_id not in there)
        for position in gone:
            assert self.subscriptions, "trimmed without a cursor"
            assert all(position in s.done for s in self.subscriptions.values()), position
            del self.entries[position]
            self.trimmed.add(position.ledger_id)

    # --- comparing ---------------------------------------------------------------------------

    def check(self):
        topic, positions = self.topic, sorted(self.entries)
        assert [entry.position for entry in topic] == positions
        assert (topic.entry_count, topic.last_index) == (len(positions), self.last_index)
        for entry in topic:
            made = self.entries[entry.position]
            assert entry.headers_and_payload == batch(made.number, made.count, made.publish_time)
            assert (entry.broker_timestamp, entry.index) == (made.broker_timestamp, made.index)
        for name, subscription in self.subscriptions.items():
            cursor = topic.cursors[name]
            live = subscription.live(positions)
            assert cursor.backlog == len(live)
            cursor.rewind()
            assert [entry.position for entry in cursor.read(10**6)] == live
            marked = subscription.mark_delete(positions, cursor.mark_delete_position)
            assert cursor.mark_delete_position == marked
            for position in positions:
                assert cursor.is_acknowledged(position) == (position in subscription.done)
                expected = subscription.parts.get(position, set()) if position in live else set()
                assert cursor.acknowledged_batch_indexes(position) == expected
        assert topic.cursors.keys() == self.subscriptions.keys()
        self.check_searches(positions)

    def check_searches(self, positions):
        topic = self.topic
        for time in {t + d for made in self.entries.values() for t in (made.time,) for d in (-1, 0, 1)}:
            found = next((p for p in positions if self.entries[p].time >= time), None)
            assert topic.position_at_time(time) == found, time
        for index in range(-1, self.last_index + 2):
            with_index = [p for p in positions if self.entries[p].index is not None and self.entries[p].index >= index]
            assert topic.position_at_index(index) == (with_index[0] if with_index else None), index
        for n, position in enumerate(positions):
            assert topic.next_valid(position) == (positions[n + 1] if n + 1 < len(positions) else None)
            assert topic.previous_valid(position) == (positions[n - 1] if n else None)
            assert topic.entries_between(EARLIEST, position) == n + 1
            newest = topic.find_newest_matching(lambda entry, limit=position: entry.position <= limit)
            assert newest == position
        assert topic.find_newest_matching(lambda entry: entry.position < Position(0, 0)) is None


# --- a program that may end anywhere -------------------------------------------------------------


@dataclass
class Promise:
    """What the model knew when a call had returned."""

    entries: dict
    subscriptions: dict
    last_index: int

    @classmethod
    def of(cls, program):
        subscriptions = copy.deepcopy(program.subscriptions)
        return cls(dict(program.entries), subscriptions, program.last_index)


def run(program, seed):
    """Everything that changes a managed ledger, in some order."""
    chooser = random.Random(seed)
    program.subscribe("one", "earliest")
    for _ in range(22):
        some = [chooser.randrange(100) for _ in range(chooser.randint(1, 4))]
        name = chooser.choice(["one", "two"])
        step = chooser.choice(["add"] * 4 + [
            "roll", "reopen", "subscribe", "unsubscribe", "acknowledge", "acknowledge_part", "mark_delete",
            "mark_delete", "seek", "pass_time", "switch", "properties",
        ])
        match step:
            case "add":
                program.add([chooser.randint(1, 5) for _ in some], [n * 30 for n in some])
            case "roll" | "reopen":
                getattr(program, step)()
            case "subscribe":
                program.subscribe(name, chooser.choice(["earliest", "latest"]))
            case "unsubscribe":
                program.unsubscribe("two")
            case "acknowledge":
                program.acknowledge(name, some)
            case "acknowledge_part":
                program.acknowledge_part(name, some[0], some)
            case "mark_delete" | "seek":
                getattr(program, step)(name, some[0])
            case "pass_time":
                program.pass_time(some[0] - 30)
            case "switch":
                program.switch(chooser.choice(["index", "timestamp,index", "timestamp,index"]))
            case "properties":
                program.topic.update_properties({"step": str(some[0])})
    program.topic.close()


def check_after(path, last, following, added):
    """`last`: what was promised. `following`: what the call that was under way would have promised, or `last`."""
    with ManagedLedger(path, config=CONFIG, clock=ManualClock(10**6)) as topic:
        assert topic.lost is None or topic.lost.reason
        found = {entry.position: entry for entry in topic}
        for position, entry in found.items():
            made = added[position]
            assert entry.headers_and_payload == batch(made.number, made.count, made.publish_time), position
            assert (entry.index, entry.broker_timestamp) == (made.index, made.broker_timestamp)
        for position in last.entries:
            assert position in found or position not in following.entries, position
        assert last.last_index <= topic.last_index <= following.last_index
        for name, subscription in last.subscriptions.items():
            if name in following.subscriptions:
                check_cursor(topic.cursors[name], found, subscription, following.subscriptions[name])
        assert topic.cursors.keys() <= last.subscriptions.keys() | following.subscriptions.keys()
        topic.interceptors = "index"
        before, last_position = topic.last_index, max(added, default=None)
        position = topic.add_entry(batch(0, 3), 3)
        assert last_position is None or position > max(found, default=position._replace(ledger_id=-1))
        assert topic.read(position).index == before + 3


def check_cursor(cursor, found, last, following):
    for position in found:
        if cursor.is_acknowledged(position):
            assert position in last.done or position in following.done, position
        else:
            # Each acknowledgement was written before its call returned.
            assert position not in last.done or position not in following.done, position
        parts = cursor.acknowledged_batch_indexes(position)
        assert parts <= last.parts.get(position, set()) | following.parts.get(position, set())
    assert cursor.backlog == sum(not cursor.is_acknowledged(position) for position in found)
