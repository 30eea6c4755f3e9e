"""The last sequence id of each named producer of a topic: a message with a repeated or lower one is not stored again.

    an entry has its producer's name and sequence id ── durable together with the message
       └── now and then, the cursor `pulsar.dedup` stores what producers have reached, up to its mark-delete position

So opening reads the entries after that position only. It is what Pulsar's broker does (MessageDeduplication): it goes
on where seglog stopped, and the other way round.
"""
import re
from contextlib import suppress

from seglog._kernels.quick_lock import QuickLock
from seglog.errors import CorruptRecordError, SeglogError
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.queue.journaled_ledger import JournaledLedger
from seglog.topic.delayed_index import DAMAGED, DEDUPLICATION_CURSOR

# Entries between two times at which the state is stored. (brokerDeduplicationEntriesInterval)
SNAPSHOT_ENTRIES = 1000
# Names that seglog gives to messages of no named producer: see DelayedDelivery.
UNNAMED = re.compile(r"seglog-[0-9a-f]{12}")
_READ = 100


class Sequences:
    """`last`: by name. Thread-safe; a producer's own calls come one after another."""

    def __init__(self, home: JournaledLedger, *, create: bool) -> None:
        ledger = home.managed_ledger
        self._home = home
        self._cursor: ManagedCursor = (
            ledger.open_cursor(DEDUPLICATION_CURSOR, "latest") if create else ledger.cursors[DEDUPLICATION_CURSOR]
        )
        # Guards the fields below. Taken before the lock of the cursor.
        self._lock = QuickLock()
        self.last: dict[str, int] = {}
        # Of each add that is under way, the last entry before it.
        self._under_way: dict[str, Position] = {}
        self._stored = 0
        # An add was interrupted: its entry may be there.
        self._is_unsure = True
        self._read_up()

    def _read_up(self) -> None:
        """Read what is stored, and the entries after it."""
        for name, text in self._cursor.properties.items():
            if text.isascii() and text.isdigit():
                self.last[name] = max(int(text), self.last.get(name, -1))
        after = self._cursor.mark_delete_position
        ledger = self._home.managed_ledger
        while (position := ledger.next_valid(after)) is not None:
            try:
                entries = ledger.read_entries(position, _READ)
            except DAMAGED:
                try:
                    entries = [ledger.read(position)]
                except DAMAGED:
                    entries = []        # its reader reports it
            for entry in entries:
                self._note_entry(entry)
            after = entries[-1].position if entries else position
        self._is_unsure = False

    def _note_entry(self, entry: StoredEntry) -> None:
        try:
            metadata = entry.entry.metadata
        except CorruptRecordError:
            return
        if not UNNAMED.fullmatch(metadata.producer_name):
            reached = max(metadata.sequence_id, metadata.highest_sequence_id)
            self.last[metadata.producer_name] = max(reached, self.last.get(metadata.producer_name, -1))

    def last_of(self, name: str) -> int:
        """The last sequence id of a producer; -1 if it has none."""
        with self._lock:
            # (Its last call may have been interrupted before it could tell.)
            if self._is_unsure or name in self._under_way:
                self._read_up()
            return self.last.get(name, -1)

    def begin(self, name: str) -> None:
        """A producer is about to add a message."""
        with self._lock:
            self._under_way[name] = self._home.managed_ledger.last_position or EARLIEST

    def end(self, name: str, sequence_id: int | None, error: BaseException | None) -> None:
        """It was added with this sequence id; or it was not, because of this error."""
        with self._lock:
            if error is None and sequence_id is not None:
                self.last[name] = max(sequence_id, self.last.get(name, -1))
            elif not isinstance(error, SeglogError):
                self._is_unsure = True
            self._under_way.pop(name, None)

    def leave(self, name: str) -> None:
        """A producer is closed."""
        with self._lock:
            if self._under_way.pop(name, None) is not None:
                self._is_unsure = True

    def added(self, entries: int) -> None:
        """So many entries were added, by whomever: store the state if it is time."""
        with self._lock:
            self._stored += entries
            if self._stored >= SNAPSHOT_ENTRIES and not self._is_unsure:
                self._store()

    def store(self) -> None:
        """Store the state, before closing."""
        with self._lock:
            if not self._is_unsure and self._stored:
                self._store()

    def _store(self) -> None:
        self._stored = 0
        last = self._home.managed_ledger.last_position
        reached = min([last or EARLIEST, *self._under_way.values()])
        if last is None or reached <= self._cursor.mark_delete_position:
            return
        known = self._cursor.properties
        changes = {name: str(one) for name, one in self.last.items() if known.get(name) != str(one)}
        # A failure is that of the topic: the next change raises it. This one was made.
        with suppress(SeglogError):
            # The state must not be ahead of the entries: a producer would take lost messages for stored ones.
            self._home.managed_ledger.flush()
            self._cursor.mark_delete(reached, changes)
