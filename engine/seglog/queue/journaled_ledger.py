"""A managed ledger with its delayed messages, and the journal of what its subscriptions deliver.

    managed ledger ── cursors ──┐
    delayed delivery            ├── JournaledLedger ── Lane, one for each subscription that is in use
    journal ── leases ──────────┘

A queue's has one subscription, a topic's has many; their journal is one, so that acknowledgements of several
subscriptions share a sync. What the journal says of a subscription that nobody uses now is kept in `idle`.
"""
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import Fsync
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.errors import InvalidArgumentError, RecordTooLargeError, SeglogError
from seglog.fs.files import FileSystem
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.journal import Change, JournalRecord, QueueJournal, read_journal
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.position import Position
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.topic.delayed_index import INNER_CURSORS
from seglog.topic.leases import Leases

# A journal that is longer than this, and than twice the state it began with, is replaced.
CHECKPOINT_BYTES = 4 << 20


def weak_giver(journal: QueueJournal) -> Callable[[], bool]:
    """`journal.give_back`, without keeping the journal alive."""
    found = weakref.ref(journal)

    def give_back() -> bool:
        there = found()
        return there is not None and there.give_back()

    return give_back


class JournaledLedger:
    """Opened by `open`, then `begin`; or by `reopen`. Its owner's lock guards it.

    `states`: of each subscription in use, what makes the state that a new journal begins with. `covered`: the journal,
    and up to where its acknowledgements are in the cursors, too.
    """

    def __init__(
        self, path: Path, *, config: ManagedLedgerConfig, delayed: DelayedDeliveryConfig, fsync: Fsync,
        fs: FileSystem | None, clock: Clock,
    ) -> None:
        self.path, self.config, self.fsync, self.clock = path, config, fsync, clock
        self._delayed_config = delayed
        self._fs = fs
        self.states: dict[str, Callable[[], Iterator[Change]]] = {}
        self.idle: dict[str, Leases] = {}
        self.records: list[JournalRecord] = []

    def open(self, *, create: bool) -> None:
        """Open the managed ledger, and read its journal. After an error it is closed."""
        self.managed_ledger = ledger = OpenManagedLedger(
            self.path, config=self.config, fsync=self.fsync, fs=self._fs, clock=self.clock, create=create
        )
        try:
            self.delayed = DelayedDelivery(ledger, self._delayed_config, clock=self.clock)
            try:
                self._read_journal()
            except BaseException:
                self.delayed.close()
                raise
        except BaseException:
            ledger.close()
            raise

    def _read_journal(self) -> None:
        ledger, self.records, self._journal_id = self.managed_ledger, [], 0
        cursors = {name: cursor for name, cursor in ledger.cursors.items() if name not in INNER_CURSORS}
        self.idle = {name: Leases() for name in cursors}
        if any(cursor._journal is not None for cursor in cursors.values()):
            contents = read_journal(self.path)
            if contents is not None:
                self._journal_id, self.records = contents.journal_id, contents.records
        for record in self.records:
            # (That of a subscription that was deleted, or whose cursor was never in a journal, is over.)
            if record.subscription in self.idle and cursors[record.subscription]._journal is not None:
                self.idle[record.subscription].replay(record)
        self._journaled = [name for name, cursor in cursors.items() if cursor._journal is not None]

    def begin(self, *names: str) -> None:
        """Begin the next journal, with the state as of now; `names` have a number in it. Otherwise as `open`."""
        ledger = self.managed_ledger
        try:
            ledger._cursors.flush()     # what only the old journal has
            numbered = dict.fromkeys([*names, *(name for name in self._journaled if name in self.idle)])
            numbers = {name: number for number, name in enumerate(numbered)}
            self.journal = journal = QueueJournal(
                ledger._fs, ledger.path, self._journal_id + 1, list(numbered), self._state(numbers), self.fsync
            )
            self.records = []
            try:
                self._note_checkpoint()
                # (A list: cursors must not keep this alive.)
                self.covered = [(journal.journal_id, journal.position)]
                ledger._tail.give_back_reserve = weak_giver(journal)
                if ledger.fsync == "interval":
                    ledger._add_chore(journal.flush_quietly)
            except BaseException:
                journal.close()
                raise
        except BaseException:
            self._close_ledger()
            raise

    def add_all(self, entries: list[bytes]) -> list[Position | BaseException]:
        """Add entries of one message each, by one write; return their positions, or the error of each that was
        refused."""
        try:
            return [*self.managed_ledger.add_entries(entries)]
        except (RecordTooLargeError, InvalidArgumentError) as error:
            if len(entries) == 1:
                return [error]
            # All are checked before the first is added: so none was. Halves, so that one costs the others few writes.
            half = len(entries) // 2
            return [*self.add_all(entries[:half]), *self.add_all(entries[half:])]
        except SeglogError as error:
            return [error] * len(entries)

    def keep_in_journal(self, name: str) -> int:
        """From now on, the acknowledgements of a subscription are in the journal first; return its number there."""
        number, covered = self.journal.number_of(name), self.covered
        self.managed_ledger.cursors[name]._keep_in_journal(lambda: covered[0])
        return number

    def _state(self, numbers: dict[str, int]) -> Iterator[Change]:
        for name, number in numbers.items():
            state = self.states.get(name)
            leases = self.idle.get(name)
            changes = state() if state is not None else leases.changes() if leases is not None else ()
            for change in changes:
                yield change._replace(subscription=number)

    def note_covered(self) -> None:
        """All acknowledgements in the journal are in the cursors, too."""
        self.covered[0] = self.journal.journal_id, self.journal.position

    def checkpoint(self) -> None:
        """Write the files of the cursors, then begin the next journal: a crash in between finds the old one, whose
        acknowledgements are in the files."""
        shielded(self._checkpoint)

    def _checkpoint(self) -> None:
        self.managed_ledger._cursors.flush()
        self.journal.begin_next(self._state(self.journal.numbers))
        self._note_checkpoint()
        self.note_covered()

    def _note_checkpoint(self) -> None:
        self.checkpoint_at = max(CHECKPOINT_BYTES, 2 * self.journal.begin_bytes)

    def forget(self, name: str) -> None:
        """A subscription was removed: the next journal, which begins now, does not know it."""
        self.states.pop(name, None)
        self.idle.pop(name, None)
        self.journal.numbers.pop(name, None)
        self.checkpoint()

    def flush(self) -> None:
        """Return when everything before is on the disk."""
        self.managed_ledger.flush()
        self.journal.flush()

    def close(self) -> None:
        """Close it. Idempotent."""
        ledger = self.managed_ledger
        if ledger.closed:
            return
        try:
            self.delayed.close()
        finally:
            try:
                self.journal.close(flushes=ledger._tail.held.held)     # not in a forked child
            finally:
                ledger.close()

    def _close_ledger(self) -> None:
        try:
            self.delayed.close()
        finally:
            self.managed_ledger.close()
