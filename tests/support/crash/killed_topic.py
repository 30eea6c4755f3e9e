"""A process that publishes, reads, cancels and reschedules delayed messages by several threads until it is killed; and
what it noted down, held against a set-and-sort model.

    python killed_topic.py DIRECTORY SEED LIFE

Every act is noted in DIRECTORY/journal, a line each, by a write that no kill undoes:

    P number deliver_at     published: the log has it
    G number time           delivered at this time
    a number                somebody is about to acknowledge it
    c number, C number      somebody is about to cancel it; it was cancelled, and that was answered
    r number at, R number at    the same of rescheduling
    N number                neither: it was answered that the message is not pending
"""
import os
import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from seglog.ledger.managed import relocated_entries
from seglog.pulsar import ManagedLedger
from seglog.topic import delayed_index
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import delayed, numbers

SETTINGS = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 20,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 6, "delayedDeliveryMaxNumBuckets": 2,
    "seglog.delayed.relocate": True,
}
KINDS = ({"enableBucketDelayedDeliveryTracker": False}, {}, {"enableShareDelayedMessageIndex": True}, {})
CONFIG = {"managedLedgerMaxEntriesPerLedger": 10, "defaultRetentionTimeInMinutes": 0}
READERS, PUBLISHERS = 2, 2


def now_ms():
    return time.time_ns() // 1_000_000


class Journal:
    """The lines so far, and a place to go on."""

    def __init__(self, directory):
        self.path = Path(directory) / "journal"
        text = self.path.read_text() if self.path.exists() else ""
        self.lines = [(act, int(number), *map(int, rest)) for act, number, *rest in map(str.split, text.splitlines())]
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def note(self, *what):
        os.write(self._fd, (" ".join(map(str, what)) + "\n").encode())

    def close(self):
        os.close(self._fd)


def open_topic(directory, life):
    """(managed ledger, delayed delivery, dispatcher) with another kind of tracker in each life."""
    # All is over in a second: so messages are relocated that are due soon, and often.
    delayed_index.RELOCATE_AHEAD_MS, delayed_index.RELOCATE_EVERY_NS = 20, 20_000_000
    relocated_entries.TIDY_EVERY_NS = 20_000_000
    log = ManagedLedger(Path(directory) / "t", config=CONFIG)
    delivery = DelayedDelivery(log, SETTINGS | KINDS[life % len(KINDS)])
    return log, delivery, delivery.dispatcher(log.open_cursor("one", "earliest"))


def live(directory, seed, life):
    journal = Journal(directory)
    log, delivery, dispatcher = open_topic(directory, life)
    tracker = delivery.tracker(dispatcher.cursor)
    made = max((number for act, number, *_ in journal.lines if act == "P"), default=-1) + 1000
    lock, known = threading.Lock(), {}
    # Messages are relocated out of ledgers that are acknowledged but for them: in lives in which readers acknowledge.
    acknowledges = 0.8 if life % 3 == 0 else 1

    def publish(chance):
        nonlocal made
        while True:
            with lock:
                made += 1
                number = made
            at = now_ms() + chance.choice([-1, 0, chance.randrange(60), chance.randrange(400), 800])
            position = log.add_entry(delayed(number, at, at))
            journal.note("P", number, at)
            known[number] = position
            # This one, which no reader may have met yet; or any.
            number = number if chance.random() < 0.7 else chance.choice(list(known))
            act = chance.random()
            if act < 0.25:
                journal.note("c", number)
                journal.note("C" if dispatcher.cancel(known[number]) else "N", number)
            elif act < 0.5:
                at = now_ms() + chance.choice([0, 30, 200, 1000])
                journal.note("r", number, at)
                if tracker.reschedule(*known[number], at):
                    journal.note("R", number, at)
                else:
                    journal.note("N", number)

    def read(chance):
        while True:
            for entry in dispatcher.read(chance.choice([1, 5, 50]), timeout=0.05):
                (number,) = numbers([entry])
                journal.note("G", number, now_ms())
                if chance.random() < acknowledges:
                    journal.note("a", number)
                    dispatcher.cursor.acknowledge(entry.position)

    for n in range(READERS + PUBLISHERS):
        work = read if n < READERS else publish
        threading.Thread(target=work, args=(random.Random(f"{seed} {life} {n}"),), daemon=True).start()
    print("ready", flush=True)
    time.sleep(60)


def check(lines, drained):
    """`lines`: the journal. `drained`: the numbers that came after the last life, when all was due."""
    due, doubt, given, done, cancelled = {}, defaultdict(set), defaultdict(list), set(), set()
    moving = {}
    for act, number, *rest in lines:
        if act == "P":
            due.setdefault(number, rest[0])
        elif act == "G":
            # It was taken before that was noted: a decision that was answered meanwhile does not count yet.
            given[number].append(rest[0])
        elif act == "a":
            done.add(number)
        elif act == "C":
            cancelled.add(number)
        elif act == "r":
            moving[number] = rest[0]
            doubt[number].add(rest[0])
        elif act == "R":
            moving.pop(number, None)
    for number, times in given.items():
        assert number not in cancelled, f"{number} was delivered although it was cancelled"
        earliest = min({due.get(number, 0)} | doubt[number])
        assert min(times) >= earliest, f"{number} was delivered early: at {times}, due at {earliest}"
    assert not cancelled & drained, f"delivered although cancelled: {sorted(cancelled & drained)}"
    missing = due.keys() - given.keys() - cancelled - drained
    in_doubt = {number for act, number, *_ in lines if act == "c"}
    assert not missing - in_doubt, f"never delivered: {sorted(missing - in_doubt)}"
    # What was not acknowledged comes again.
    assert not due.keys() - done - cancelled - drained - in_doubt
    return len(due), len(cancelled), sum(act == "R" for act, *_ in lines)


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
