"""Entries that were moved out of a managed ledger's list of ledgers: docs/formats/relocated_entries.md.

One message with a long delay would keep its ledger and all later ones from being trimmed. So its entry is copied into a
small ledger, and the cursors that still need it set it aside. It keeps its position, which identifies it, so one copy
serves every subscription. Only the cursors count: a copy of an entry that no cursor has set aside is garbage.
"""
import os
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from seglog._kernels.shield import shielded
from seglog.errors import CorruptRecordError, NotALogError, SeglogError
from seglog.fs.aside import make_directories
from seglog.ledger.ledger import DELETED_SUFFIX, Ledger, delete_ledger, remove_directory
from seglog.ledger.managed.acknowledgements import bitmap
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.managed.manifest import LEDGER_PREFIX
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyroaring import BitMap
    from typing_extensions import Buffer

logger = Logger("seglog")

DIRECTORY = "relocated"
FORMAT_PROPERTY, VERSION = "seglog.relocated.version", "1"
# Ledger id, entry id and deliver_at, before the entry's bytes.
HEADER = struct.Struct(">QQQ")
# `tidy` looks for copies that no cursor needs at most this often.
TIDY_EVERY_NS = 1_000_000_000
# What is left of ledgers is copied, out of them or out of their copies, if it is at most this share of them; so many
# bytes at a time.
WORTH_SHARE, WORTH_BYTES = 0.75, 4 << 20


class Copy(NamedTuple):
    """The place of an entry's copy, and when its message is due."""

    ledger: Ledger
    entry_id: int
    deliver_at: int


class RelocatedEntry(StoredEntry):
    """An entry with its original position."""

    __slots__ = ()

    @property
    def data(self) -> memoryview:
        return super().data[HEADER.size :]


def relocated_directory(managed_ledger: Path, cursor_name: str) -> Path:
    """Return the directory of the copies made for a cursor of a managed ledger."""
    return managed_ledger / DIRECTORY / quote(cursor_name, safe="").replace(".", "%2E")


class RelocatedHome:
    """What all users of one managed ledger share of its relocated entries: open while there is a user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._entries: RelocatedEntries | None = None

    def join(self, managed_ledger: OpenManagedLedger) -> "RelocatedEntries":
        with self._lock:
            if self._entries is None:
                self._entries = RelocatedEntries(managed_ledger)
            self._users += 1
            return self._entries

    def leave(self) -> None:
        """Leave; the last user closes it. What was read stays readable."""
        with self._lock:
            self._users -= 1
            if not self._users and self._entries is not None:
                self._entries.close()
                self._entries = None


class RelocatedEntries:
    """The relocated entries of one managed ledger. Thread-safe. Raises StorageError.

    A ledger that cannot be read is logged. It is kept as long as a cursor has an entry set aside that has no copy in
    another ledger: it may be in this one.
    """

    def __init__(self, managed_ledger: OpenManagedLedger) -> None:
        self._topic = managed_ledger
        self._fs = managed_ledger._fs
        # Guards the fields below. Held from a copy until its cursors have set the entry aside, so that it is not taken
        # for garbage meanwhile. Taken after a tracker's lock, before a cursor's.
        self.lock = threading.RLock()
        self._copies: dict[Position, Copy] = {}
        self._ledgers: list[Ledger] = []
        # By path, the entries whose copies are there: ledger id -> entry ids.
        self._held: dict[Path, dict[int, BitMap]] = {}
        self._unreadable: list[Path] = []
        # Not right after opening: most topics that are opened are closed soon.
        self._tidied_ns = managed_ledger._clock.monotonic_ns()
        parent = managed_ledger.path / DIRECTORY
        known = {relocated_directory(managed_ledger.path, name) for name in managed_ledger.cursors}
        for directory in sorted(parent.iterdir()) if parent.is_dir() else ():
            for path in sorted(directory.glob(f"{LEDGER_PREFIX}*")):
                self._open(path)
            if directory not in known and directory.is_dir() and not os.listdir(directory):
                remove_directory(self._fs, directory)

    def _open(self, path: Path) -> None:
        if path.name.endswith(DELETED_SUFFIX):
            remove_directory(self._fs, path)
            return
        try:
            ledger = Ledger.open(path, fs=self._fs, clock=self._topic._clock, held=True)
        except NotALogError:        # it was being created
            remove_directory(self._fs, path)
            return
        except SeglogError as error:
            logger.error("%s: relocated messages cannot be read: %s", path, error)
            self._unreadable.append(path)
            return
        if ledger.properties.get(FORMAT_PROPERTY) != VERSION:
            logger.error("%s: not a ledger of relocated entries of version %s", path, VERSION)
            self._unreadable.append(path)
            ledger.close()
            return
        try:
            self._take_in(ledger)
        except SeglogError as error:
            logger.error("%s: some relocated messages cannot be read: %s", path, error)
            self._unreadable.append(path)

    def _take_in(self, ledger: Ledger) -> None:
        self._ledgers.append(ledger)
        held = self._held[ledger.path] = {}
        for entry_id, position, deliver_at in copies_in(ledger):
            old = self._copies.get(position)
            if old is not None and old.ledger is not ledger:        # a crash left both
                self._held[old.ledger.path][position.ledger_id].discard(position.entry_id)
            self._copies[position] = Copy(ledger, entry_id, deliver_at)
            held.setdefault(position.ledger_id, bitmap()).add(position.entry_id)

    def add(self, cursor_name: str, entries: "Iterable[tuple[Position, int, Buffer]]") -> None:
        """Keep copies of entries durably, each given with its position and the due time it was published with; skips
        those that are already kept. `cursor_name`: the cursor that needs them."""
        with self.lock:
            new = [(position, at, data) for position, at, data in entries if position not in self._copies]
            if not new:
                return
            self._write(
                relocated_directory(self._topic.path, cursor_name),
                [HEADER.pack(*position, at) + bytes(data) for position, at, data in new],
            )

    def _write(self, directory: Path, copies: list[bytes]) -> None:
        """Keep copies, with their headers, durably, in a new ledger of a directory."""
        make_directories(self._fs, directory)
        ledger_id = self._topic.new_ledger_id()
        ledger = Ledger.create(
            directory / f"{LEDGER_PREFIX}{ledger_id}", ledger_id, fs=self._fs, clock=self._topic._clock, held=True,
            properties={FORMAT_PROPERTY: VERSION},
        )
        try:
            ledger.add_many(copies)
            ledger.seal()
        except BaseException:
            ledger._abandon()
            raise
        shielded(self._take_in, ledger)     # otherwise an interrupt could leave a part of it known

    @property
    def count(self) -> int:
        return len(self._copies)

    def times(self) -> list[tuple[Position, int]]:
        """Return each entry's position, and the due time it was published with."""
        with self.lock:
            return [(position, copy.deliver_at) for position, copy in self._copies.items()]

    def read(self, position: Position) -> RelocatedEntry | None:
        """Return the entry that was at this position; None if there is no copy of it. Raises CorruptRecordError."""
        with self.lock:
            copy = self._copies.get(position)
            return None if copy is None else RelocatedEntry(position, copy.ledger.record(copy.entry_id))

    def tidy(self) -> None:
        """Delete, now and then, the ledgers of which no cursor has an entry set aside, and put those together of which
        a part is needed. Their acknowledgement is on the disk before."""
        now_ns = self._topic._clock.monotonic_ns()
        with self.lock:
            if now_ns - self._tidied_ns < TIDY_EVERY_NS:
                return
            self._tidied_ns = now_ns
            if not self._ledgers and not self._unreadable:
                return
            cursors = list(self._topic.cursors.values())
            # (No list of what a cursor has set aside: its file may say billions.)
            asides = [cursor.aside for cursor in cursors]
            needed = {path: _common(held, asides) for path, held in self._held.items()}
            gone = {path for path, common in needed.items() if not common}
            if all(self._copies_of(aside) >= sum(map(len, aside.values())) for aside in asides):
                gone.update(self._unreadable)
            sparse = self._sparse(needed)
            if not gone and not sparse:
                return
            for cursor in cursors:
                if not cursor.closed:       # otherwise it was deleted
                    cursor.flush()
            if sparse:
                self._write(next(iter(sparse)).parent, [copy for copies in sparse.values() for copy in copies])
            shielded(self._remove, {*gone, *sparse})

    def _copies_of(self, aside: "dict[int, BitMap]") -> int:
        """How many of these entries have a copy that can be read."""
        return sum(
            ids.intersection_cardinality(aside[at])
            for held in self._held.values() for at, ids in held.items() if at in aside
        )

    def _sparse(self, needed: "dict[Path, dict[int, BitMap]]") -> dict[Path, list[bytes]]:
        """The first ledgers, all of one directory, of which only a part is needed, as many as are put together now; and
        the copies that are needed, with their headers."""
        found: dict[Path, list[bytes]] = {}
        size_bytes = 0
        for ledger in self._ledgers:
            path, count = ledger.path, sum(map(len, needed[ledger.path].values()))
            if not 0 < count <= WORTH_SHARE * ledger.entry_count or (found and path.parent != next(iter(found)).parent):
                continue
            try:
                copies = self._raw_in(needed[path])
            except CorruptRecordError:      # it stays
                continue
            part_bytes = sum(map(len, copies))
            if found and size_bytes + part_bytes > WORTH_BYTES:
                break
            found[path] = copies
            size_bytes += part_bytes
        return found

    def _raw_in(self, needed: "dict[int, BitMap]") -> list[bytes]:
        """These copies of a ledger, with their headers."""
        copies = [self._copies[Position(at, entry_id)] for at, ids in needed.items() for entry_id in ids]
        return [bytes(copy.ledger.read(copy.entry_id)) for copy in copies]

    def _remove(self, paths: Collection[Path]) -> None:
        self._copies = {at: copy for at, copy in self._copies.items() if copy.ledger.path not in paths}
        self._unreadable = [path for path in self._unreadable if path not in paths]
        for ledger in self._ledgers:
            if ledger.path in paths:
                ledger._retire()
        self._ledgers = [ledger for ledger in self._ledgers if ledger.path not in paths]
        self._held = {path: held for path, held in self._held.items() if path not in paths}
        for path in sorted(paths):
            delete_ledger(path, self._fs)

    def close(self) -> None:
        """Close it. Idempotent; what was read stays readable."""
        for ledger in self._ledgers:
            ledger.close()


def _common(held: "dict[int, BitMap]", asides: "Sequence[dict[int, BitMap]]") -> "dict[int, BitMap]":
    """Of these entries, by ledger, those that one of the cursors has set aside."""
    found = {}
    for at, ids in held.items():
        needed = [ids & aside[at] for aside in asides if at in aside]
        if any(needed):
            found[at] = bitmap().union(*needed)
    return found


def copies_in(ledger: Ledger) -> Iterator[tuple[int, Position, int]]:
    """Yield (entry id, position of the original entry, deliver_at) of each copy. Raises CorruptRecordError."""
    for entry_id in range(ledger.entry_count):
        raw = ledger.read(entry_id)
        if len(raw) < HEADER.size:
            raise CorruptRecordError(f"a copy of an entry has {len(raw)} bytes", file=ledger.path, offset=entry_id)
        ledger_id, of_entry, deliver_at = HEADER.unpack_from(raw)
        yield entry_id, Position(ledger_id, of_entry), deliver_at


def positions_aside(cursor: ManagedCursor) -> Iterator[Position]:
    """Yield the entries that a cursor has set aside."""
    return (Position(ledger_id, entry_id) for ledger_id, ids in cursor.aside.items() for entry_id in ids)
