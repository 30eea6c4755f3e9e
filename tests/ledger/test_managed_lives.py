"""A managed ledger that was left in the middle, by a failed call or a kill, and opened again before the power fails.

What recovery reads comes from the page cache, and a sync that failed may have dropped it for good (docs/durability.md):
a ledger must not be sealed with bytes that are on no disk.
"""
import pytest

from seglog.clock import ManualClock
from seglog.pulsar import ManagedLedger
from support.lives import Life, every_end
from support.topics import message, numbers

CONFIG = {
    "managedLedgerMaxEntriesPerLedger": 5, "managedLedgerDefaultMarkDeleteRateLimit": 0,
    "defaultRetentionTimeInMinutes": -1,
}


class TopicLife(Life):
    """A program over a managed ledger; `promised`: the numbers of entries that are on the disk by its word."""

    def __init__(self, record, fsync):
        super().__init__(record, fsync)
        self.path = record.root / "topics" / "orders"
        self.added, self.promised = [], []
        self.tried = 0

    def open(self):
        self.opened = ManagedLedger(
            self.path, config=CONFIG, fsync=self.fsync, fs=self.record, clock=ManualClock(1000)
        )
        self.added = numbers(self.opened)
        self.check(self.added, self.promised)
        self.promise()

    def check(self, found, promised):
        """What was promised is there, and of the rest no entry without those before it."""
        assert set(promised) <= set(found) <= set(range(self.tried))
        assert found == sorted(found)

    def add(self):
        number, self.tried = self.tried, self.tried + 1
        self.opened.add_entry(message(number, producer="p" * (1 + 97 * number % 500)))
        self.added.append(number)
        if self.fsync == "batch":
            self.promise()

    def promise(self):
        self.promised = list(self.added)
        self.record.mark(self.promised)

    def then(self, call):
        """Something that leaves all that was added on the disk."""
        call()
        self.promise()


def first_life(life):
    life.open()
    for _ in range(4):
        life.add()
    life.then(life.opened.flush)
    cursor = life.opened.open_cursor("one", "earliest")
    for _ in range(4):
        life.add()          # over the end of a ledger
    cursor.mark_delete(life.opened.last_position)
    life.add()
    life.then(life.opened.close)


def second_life(life):
    life.open()
    for _ in range(3):
        life.add()
    life.then(life.opened.flush)
    life.then(life.opened.close)
    life.open()
    life.add()


def look(life, state):
    with state.materialise() as disk, ManagedLedger(
        disk / "topics" / "orders", config=CONFIG, clock=ManualClock(1000)
    ) as topic:
        life.check(numbers(topic), state.marks[-1] if state.marks else [])
        topic.add_entry(message(life.tried))
        assert numbers(topic)[-1] == life.tried


@pytest.mark.parametrize("fsync", ["batch", "never"])
@pytest.mark.parametrize("how", ["failed", "killed"])
def test_what_the_first_life_left_in_the_page_cache_is_not_sealed(in_memory, how, fsync):
    # Each of the four looks at other calls.
    begin = 10 * (how == "killed") + 5 * (fsync == "never")
    every_end(
        in_memory, how, lambda record: TopicLife(record, fsync), first_life, second_life, look, begin=begin, step=20
    )
