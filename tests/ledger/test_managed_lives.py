"""A managed ledger that was left in the middle, by a failed call or a kill, and opened again before the power fails.

What recovery reads comes from the page cache, and a sync that failed may have dropped it for good (docs/durability.md):
a ledger must not be sealed with bytes that are on no disk.
"""
import contextlib
import errno
import os
import shutil

import pytest

from seglog.clock import ManualClock
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.ledger.managed_ledger import ManagedLedger
from support.faultfs import FailingFs, RecordingFs
from support.topics import message, numbers

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
CONFIG = {
    "managedLedgerMaxEntriesPerLedger": 5, "managedLedgerDefaultMarkDeleteRateLimit": 0,
    "defaultRetentionTimeInMinutes": -1,
}


class Killed(BaseException):
    """What each call of a process that was killed gets."""


class Kill(FailingFs):
    """From change number `fail_at` on nothing happens any more, until it is another process's turn."""

    def __init__(self, fail_at):
        super().__init__(OsFileSystem(), fail_at=fail_at, error=errno.EINTR)

    def _refuse(self, word, path):
        return Killed(f"{word} {path}")


class Life:
    """A program over a managed ledger; `promised`: the numbers of entries that are on the disk by its word."""

    def __init__(self, record, fsync):
        self.record = record
        self.path = record.root / "topics" / "orders"
        self.fsync = fsync
        self.added, self.promised = [], []
        self.tried = 0
        self.topic = None

    def open(self):
        self.topic = ManagedLedger(
            self.path, config=CONFIG, fsync=self.fsync, fs=self.record, clock=ManualClock(1000)
        )
        self.added = numbers(self.topic)
        self.check(self.added, self.promised)
        self.promise()

    def check(self, found, promised):
        """What was promised is there, and of the rest no entry without those before it."""
        assert set(promised) <= set(found) <= set(range(self.tried))
        assert found == sorted(found)

    def add(self):
        number, self.tried = self.tried, self.tried + 1
        self.topic.add_entry(message(number, producer="p" * (1 + 97 * number % 500)))
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

    def leave(self):
        if self.topic is not None:
            with contextlib.suppress(Killed, StorageError):
                self.topic.close()


def first_life(life):
    life.open()
    for _ in range(4):
        life.add()
    life.then(life.topic.flush)
    cursor = life.topic.open_cursor("one", "earliest")
    for _ in range(4):
        life.add()          # over the end of a ledger
    cursor.mark_delete(life.topic.last_position)
    life.add()
    life.then(life.topic.close)


def second_life(life):
    life.open()
    for _ in range(3):
        life.add()
    life.then(life.topic.flush)
    life.then(life.topic.close)
    life.open()
    life.add()


def run(root, fs, fsync, states, seed):
    root.mkdir()
    record = RecordingFs(root, fs)
    life = Life(record, fsync)
    with contextlib.suppress(Killed, StorageError):
        first_life(life)
    life.leave()
    fs.heal()
    begin = record.steps
    second_life(life)
    for state in record.crash_states(limit=states, seed=seed, shuffled=True, after=begin):
        with state.materialise() as disk:
            try:
                with ManagedLedger(disk / "topics" / "orders", config=CONFIG, clock=ManualClock(1000)) as topic:
                    life.check(numbers(topic), state.marks[-1] if state.marks else [])
                    topic.add_entry(message(life.tried))
                    assert numbers(topic)[-1] == life.tried
            except Exception as error:
                error.add_note(state.story())
                raise
    life.leave()
    shutil.rmtree(root)


def calls_of(root, fsync):
    fs = FailingFs(OsFileSystem())
    (root / "whole").mkdir()
    first_life(Life(RecordingFs(root / "whole", fs), fsync))
    shutil.rmtree(root / "whole")
    return fs.calls


@pytest.mark.parametrize("fsync", ["batch", "never"])
@pytest.mark.parametrize("how", ["failed", "killed"])
def test_what_the_first_life_left_in_the_page_cache_is_not_sealed(in_memory, how, fsync):
    calls = calls_of(in_memory, fsync)
    step, states = (1, 60) if TORTURE else (5, 10)
    for k in range(0, len(calls), step):
        fs = Kill(k) if how == "killed" else FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=True)
        try:
            run(in_memory / f"{k}", fs, fsync, states, k)
        except Exception as error:
            error.add_note(f"{how} at call {k}: {calls[k]}")
            raise
