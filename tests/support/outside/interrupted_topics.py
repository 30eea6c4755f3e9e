"""Ledgers, cursors of managed ledgers and delayed messages, for interrupts in them."""
import itertools

from seglog.pulsar import Ledger, ManagedLedger
from support.interrupted_topic import Topic
from support.outside.doors import Doors
from support.topics import message, numbers

CONFIG = {"brokerEntryMetadataInterceptors": ["timestamp", "index"], "managedLedgerMaxEntriesPerLedger": 40,
          "managedLedgerMinLedgerRolloverTimeMinutes": 0, "defaultRetentionTimeInMinutes": 0}


class LedgerDoor(Doors):
    """Every thread adds to a ledger and reads in it; the main one seals it now and then, and makes the next one."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.ids, self.values = itertools.count(), itertools.count()
        self.acknowledged = {}      # entry id: entry

    def opened(self):
        if self.subject is not None:
            self.check_sealed(self.subject.path)
        self.acknowledged = {}
        ledger_id = next(self.ids)
        return Ledger.create(self.path / f"{ledger_id}", ledger_id, fsync=("batch", "never")[ledger_id % 2])

    def check_sealed(self, path):
        with Ledger.open(path) as ledger:
            found = dict(ledger.read_range(0, ledger.last_entry_id)) if ledger.entry_count else {}
            if missing := self.acknowledged.items() - {n: bytes(entry) for n, entry in found.items()}.items():
                self.violated(f"{path.name}: not as they were acknowledged: {sorted(missing)[:5]}")
            if len({bytes(entry) for entry in found.values()}) != len(found):
                self.violated(f"{path.name}: an entry is there twice")

    def deed_of_main(self, number):
        if self.turns % 25 == 0:
            self.subject.flush()
        elif self.turns % 41 == 0:
            self.subject.seal()
        else:
            self.deed(number)

    def deed(self, number):
        ledger, acknowledged = self.subject, self.acknowledged
        if number % 3 == 2 and (count := ledger.entry_count):
            for _, entry in ledger.read_range(max(count - 10, 0), count - 1):
                if not bytes(entry).isdigit():
                    self.violated(f"{bytes(entry)} was never added")
            return
        entry = b"%d" % next(self.values)
        at = ledger.add(entry)
        if self.subject is ledger:
            acknowledged[at] = entry

    def finish(self):
        self.subject.close()
        self.check_sealed(self.subject.path)


class ManagedDoor(Doors):
    """Threads with odd numbers add; the others read and acknowledge by a cursor each. What all have acknowledged is
    trimmed."""

    def __init__(self, threads, **arguments):
        super().__init__(threads=threads, **arguments)
        self.values = itertools.count()
        self.added = {}             # position: value
        self.names = [f"reader-{number}" for number in range(0, threads, 2)]
        self.tried = {name: set() for name in self.names}           # begun to be acknowledged
        self.acknowledged = {name: set() for name in self.names}    # the call returned

    def opened(self):
        topic = ManagedLedger(self.path, config=CONFIG, fsync="never")
        for name in self.names:
            topic.open_cursor(name, "earliest")
        return topic

    def deed_of_main(self, number):
        topic = self.subject
        if self.turns % 19 == 0:
            topic.roll()
        elif self.turns % 13 == 0:
            topic.trim()
        elif self.turns % 11 == 0:
            topic.flush()
        elif self.turns % 7 == 0:
            topic.open_cursor("passing")
            topic.delete_cursor("passing")
        elif self.turns % 3 == 0:
            self.add(topic)
        else:
            self.deed(number)

    def deed(self, number):
        topic = self.subject
        if number % 2:
            self.add(topic)
        else:
            self.read(topic, f"reader-{number}")

    def add(self, topic):
        value = next(self.values)
        self.added[topic.add_entry(message(value))] = value

    def read(self, topic, name):
        cursor, tried, acknowledged = topic.open_cursor(name), self.tried[name], self.acknowledged[name]
        before = cursor.mark_delete_position
        for entry in cursor.read(1 + self.turns % 5):
            if entry.position in acknowledged:
                self.violated(f"{name} gets {entry.position} again")
            tried.add(entry.position)
            cursor.acknowledge(entry.position)
            acknowledged.add(entry.position)
        if cursor.mark_delete_position < before:
            self.violated(f"{name} went back from {before}")
        if not cursor.has_more():
            cursor.rewind()

    def finish(self):
        self.subject.close()
        with ManagedLedger(self.path, config=CONFIG) as topic:
            entries = list(topic)
            found = dict(zip([entry.position for entry in entries], numbers(entries), strict=True))
            if len(set(found.values())) != len(found):
                self.violated("an entry is there twice")
            by_all = set.intersection(*self.tried.values())
            for position, value in self.added.items():
                if position not in by_all and found.get(position) != value:
                    self.violated(f"{value} was acknowledged at {position}, where {found.get(position)} is")
            for name in self.names:
                cursor = topic.open_cursor(name)
                for position in found:
                    if position in self.acknowledged[name] and not cursor.is_acknowledged(position):
                        self.violated(f"{name} does not know any more that it has acknowledged {position}")
                    if position not in self.tried[name] and cursor.is_acknowledged(position):
                        self.violated(f"{name} has never seen {position}")


class DelayedDoor(Doors):
    """The main thread publishes, cancels and reschedules, the others take what is due."""

    def opened(self):
        if self.subject is None:
            return Topic(self.path, 1)
        self.subject.open()
        return self.subject

    def deed_of_main(self, number):
        topic = self.subject
        topic.chance.choice((topic.publish, topic.publish, topic.read, topic.cancel, topic.reschedule))()

    def deed(self, number):
        self.subject.read()

    def finish(self):
        self.subject.close()
        self.subject.drain()
