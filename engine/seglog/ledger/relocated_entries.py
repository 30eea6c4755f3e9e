"""Entries that were moved out of a managed ledger's list of ledgers: docs/formats/relocated_entries.md.

One message with a long delay would keep its ledger, and all after it. Its entry is copied into a small ledger of the
subscription, and its cursor sets it aside. It keeps its position, by which everybody knows it. What counts is what the
cursor says: a copy of an entry that was not set aside, or was acknowledged, is left over.
"""
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from seglog.clock import Clock
from seglog.errors import NotALogError, SeglogError
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.ledger.ledger import DELETED_SUFFIX, Ledger, delete_ledger, remove_directory
from seglog.ledger.manifest import LEDGER_PREFIX
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("seglog")

DIRECTORY = "relocated"
FORMAT_PROPERTY, VERSION = "seglog.relocated.version", "1"
# Ledger id, entry id, deliver_at: before the entry's bytes.
_HEADER = struct.Struct(">QQQ")


class Copy(NamedTuple):
    """Where the copy of an entry is, and when its message is due."""

    ledger: Ledger
    entry_id: int
    deliver_at: int


class RelocatedEntry(StoredEntry):
    """An entry at the position where it was."""

    __slots__ = ()

    @property
    def data(self) -> memoryview:
        return super().data[_HEADER.size :]


def relocated_directory(managed_ledger: Path, cursor_name: str) -> Path:
    """Where the entries are that a cursor of a managed ledger has set aside."""
    return managed_ledger / DIRECTORY / quote(cursor_name, safe="").replace(".", "%2E")


class RelocatedEntries:
    """Those of one subscription. Guarded by its caller. Raises StorageError.

    `new_ledger_id`: an id that no ledger ever had. A ledger that cannot be read is logged and left alone: what it
    holds stays set aside.
    """

    def __init__(
        self, directory: Path, *, fs: FileSystem, clock: Clock, new_ledger_id: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._new_ledger_id = new_ledger_id
        self._copies: dict[Position, Copy] = {}
        self._ledgers: list[Ledger] = []
        for path in sorted(directory.glob(f"{LEDGER_PREFIX}*")) if directory.is_dir() else ():
            self._open(path)

    def _open(self, path: Path) -> None:
        if path.name.endswith(DELETED_SUFFIX):
            remove_directory(self._fs, path)
            return
        try:
            ledger = Ledger.open(path, fs=self._fs, clock=self._clock, held=True)
        except NotALogError:        # it was being made
            remove_directory(self._fs, path)
            return
        except SeglogError as error:
            logger.error("%s: messages that were relocated cannot be read: %s", path, error)
            return
        if ledger.properties.get(FORMAT_PROPERTY) != VERSION:
            logger.error("%s: not a ledger of relocated entries of version %s", path, VERSION)
            ledger.close()
            return
        try:
            self._take_in(ledger)
        except SeglogError as error:
            logger.error("%s: some of the messages that were relocated cannot be read: %s", path, error)

    def _take_in(self, ledger: Ledger) -> None:
        self._ledgers.append(ledger)
        for entry_id in range(ledger.entry_count):
            raw = ledger.read(entry_id)
            ledger_id, of_entry, deliver_at = _HEADER.unpack_from(raw)
            self._copies[Position(ledger_id, of_entry)] = Copy(ledger, entry_id, deliver_at)

    def add(self, entries: "Iterable[tuple[Position, int, Buffer]]") -> None:
        """Keep entries, each with its position and the time at which it is due: durably."""
        make_directories(self._fs, self._directory)
        ledger_id = self._new_ledger_id()
        ledger = Ledger.create(
            self._directory / f"{LEDGER_PREFIX}{ledger_id}", ledger_id, fs=self._fs, clock=self._clock, held=True,
            properties={FORMAT_PROPERTY: VERSION},
        )
        try:
            ledger.add_many([_HEADER.pack(*position, at) + bytes(data) for position, at, data in entries])
            ledger.seal()
        except BaseException:
            ledger.abandon()
            raise
        self._take_in(ledger)

    def times(self) -> Iterator[tuple[Position, int]]:
        """Each entry's position, and when it is due."""
        return ((position, copy.deliver_at) for position, copy in self._copies.items())

    def read(self, position: Position) -> RelocatedEntry | None:
        """The entry that was at this position; None if there is no copy of it. Raises CorruptRecordError."""
        copy = self._copies.get(position)
        return None if copy is None else RelocatedEntry(position, copy.ledger.record(copy.entry_id))

    def left_over(self, is_aside: Callable[[Position], bool]) -> list[Ledger]:
        """The ledgers of which no entry is set aside."""
        used = {id(copy.ledger) for position, copy in self._copies.items() if is_aside(position)}
        return [ledger for ledger in self._ledgers if id(ledger) not in used]

    def remove(self, ledgers: Iterable[Ledger]) -> None:
        """Delete ledgers. What their entries were acknowledged by is on the disk."""
        for ledger in ledgers:
            self._copies = {at: copy for at, copy in self._copies.items() if copy.ledger is not ledger}
            self._ledgers.remove(ledger)
            ledger.retire()
            delete_ledger(ledger.path, self._fs)

    def close(self) -> None:
        """What was read stays readable. Twice is fine."""
        for ledger in self._ledgers:
            ledger.close()


def remove_relocated(fs: FileSystem, managed_ledger: Path, cursor_names: Iterable[str]) -> None:
    """Remove what was relocated for cursors that are not there any more."""
    parent = managed_ledger / DIRECTORY
    if not parent.is_dir():
        return
    known = {relocated_directory(managed_ledger, name) for name in cursor_names}
    for directory in sorted(parent.iterdir()):
        if directory not in known and directory.is_dir():
            for name in sorted(os.listdir(directory)):
                remove_directory(fs, directory / name)
            remove_directory(fs, directory)
