"""A process that tracks delayed messages over ledgers until it is killed; and what it noted down.

    python delayed_child.py DIRECTORY SEED

Every act is noted in DIRECTORY/journal, a line each, by a write that no kill undoes:

    A ledger entry deliver_at     published: the log has it
    G ledger entry                delivered
    c ledger entry                somebody is about to cancel it
    C ledger entry                it was cancelled, and that was answered

A child begins where the one before it was killed: it reads the log again, as a dispatcher does.
"""
import os
import random
import sys
import time
from pathlib import Path

from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage

# Buckets of a ledger or two, merged at once: there is always one being sealed, merged or deleted.
CONFIG = DelayedDeliveryConfig(ledger_step=0, min_index_count=30, max_indexes_per_segment=8, max_buckets=2)


def now_ms():
    return time.time_ns() // 1_000_000


class Journal:
    """What was noted down, and a place to go on."""

    def __init__(self, directory):
        path = Path(directory) / "journal"
        self.published, self.delivered, self.cancelled, self.doubtful = {}, [], set(), set()
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines():
            act, *numbers = line.split()
            ledger, entry, *at = map(int, numbers)
            if act == "A":
                self.published[ledger, entry] = at[0]
            elif act == "G":
                self.delivered.append((ledger, entry))
            else:
                (self.cancelled if act == "C" else self.doubtful).add((ledger, entry))
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def note(self, act, *numbers):
        os.write(self._fd, f"{act} {' '.join(map(str, numbers))}\n".encode())

    def close(self):
        os.close(self._fd)


class Dispatcher:
    """Reads the log into a tracker and delivers what is due, once each."""

    def __init__(self, directory):
        self.journal = Journal(directory)
        self.delivered = set(self.journal.delivered)
        self.tracker = BucketDelayedDeliveryTracker(LedgerSnapshotStorage(Path(directory) / "delayed"), CONFIG)
        for position, at in self.journal.published.items():
            self.read(position, at)

    def read(self, position, at):
        if position not in self.delivered and not self.tracker.contains_message(*position) and (
            not self.tracker.add_message(*position, at)
        ):
            self.deliver(position)

    def deliver(self, position):
        """What was delivered before the restart and is known to the tracker again, the cursor filters out."""
        if position not in self.delivered:
            self.delivered.add(position)
            self.journal.note("G", *position)

    def poll(self):
        for position in self.tracker.get_scheduled_messages(1000):
            self.deliver(position)

    def close(self):
        self.tracker.close()
        self.journal.close()


def main(directory, seed):
    chance = random.Random(seed)
    dispatcher = Dispatcher(directory)
    ledger = max((ledger for ledger, _ in dispatcher.journal.published), default=0) + 1
    print("ready", flush=True)
    while True:
        positions = [(ledger, entry) for entry in range(chance.randrange(10, 40))]
        for position in positions:
            at = now_ms() + chance.randrange(5, 400)
            dispatcher.journal.note("A", *position, at)
            dispatcher.read(position, at)
        position = chance.choice(positions)
        dispatcher.journal.note("c", *position)
        if dispatcher.tracker.cancel(*position):
            dispatcher.journal.note("C", *position)
        dispatcher.poll()
        ledger += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
