"""A managed ledger, a queue or a ledger as its backup finds it, while its writer changes it.

    small files read ── ends of what grows ── nothing grew, no small file changed: this was the moment ── ledgers stored
            └──────────────── otherwise again, without what is stored already ────────────────┘

Two kinds of files grow: the .log of a ledger that is not sealed, and the journal of a queue. Each is followed to its
last whole batch or record. A moment is found if none of them grew between the last of these looks and the first of a
second one. All other files are told apart by inode, size and time, before and after that. So a backup holds what a kill
of the writer at that moment would have left, with every priority of a queue.
"""
import os
import time
from collections.abc import Callable
from pathlib import Path

from seglog._kernels.crc import crc32c
from seglog._kernels.segment_scan import scan
from seglog.archive.moments import (
    LOOKS_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    TICK_NS,
    ChangedError,
    Copied,
    FileCopy,
    as_changes,
    crc_of,
    ends_of,
    fingerprint_of,
    identity_of,
    store_copies,
    worth_keeping,
)
from seglog.backups.manifest import BackedFile, Identity, LastBatch, LedgerBackup, is_file_of_ledgers
from seglog.backups.pieces import Piece, PieceStore
from seglog.errors import CorruptManifestError, SeglogError, StorageError
from seglog.format.dialect import dialect_of
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.ledger.entry_writer import SEGMENT
from seglog.ledger.ledger_metadata import FILE_NAME as LEDGER_FILE
from seglog.ledger.ledger_metadata import LedgerMetadata
from seglog.ledger.managed.journal import FILE_NAME as JOURNAL_FILE
from seglog.ledger.managed.journal import next_record, parse_journal
from seglog.named_tuple import NamedTuple
from seglog.segment.batches import SCAN_BATCHES, SCAN_BYTES
from seglog.segment.recovery import check_behind

# How often all that grows is looked at before the other files are looked at again. Each takes microseconds.
_TRIES = 1000
_DEPTH_MAX = 5              # priority/1/delayed/<name>/ledger-0
# A write that is under way shows in the first bytes behind the end: zeros are written ahead of a journal's.
_BEHIND_BYTES = 64
_DIALECT = dialect_of(Path("00000000000000000000.log"))


class _Found(NamedTuple):
    identity: Identity
    mode: int


class MovingLedger:
    """The directory of one managed ledger, queue or ledger. `before`: what the last snapshot of the same directory has
    of it. `reread`: trust neither that nor the times of files.

    damage      what `copy` found damaged in a file that grows, with whole batches or records behind it; empty: nothing
    """

    def __init__(self, directory: Path, before: LedgerBackup | None = None, *, reread: bool = False) -> None:
        self.directory = directory
        self.damage = ""
        self._before = {} if before is None or reread else {file.name: file for file in before.files}
        self._tails = {} if before is None or reread else before.tails
        self._stored: dict[tuple[str, Identity], BackedFile] = {}       # by this run
        self._raw: dict[tuple[str, Identity], bytes] = {}               # read by this run
        self._growing: dict[tuple[str, int], _Growing] = {}             # by path and inode
        self._unfinished: set[str] = set()

    def copy(self, pieces: PieceStore, copied: Copied = lambda _: None) -> tuple[LedgerBackup, str]:
        """Store what the store lacks. Returns what the directory holds as of one moment, and its fingerprint.

        Raises StorageError, also if it changes faster than it can be copied.
        """
        what = ""
        try:
            for look in range(LOOKS_MAX):
                try:
                    return self._moment(pieces, copied)
                except ChangedError as change:
                    what = str(change)
                time.sleep(min(PAUSE_S * look, PAUSE_S_MAX))
        finally:
            for one in self._growing.values():
                one.close()
        raise StorageError(
            f"the directory changed each of {LOOKS_MAX} times that it was copied, at last: {what}",
            file=self.directory, hint="run again when less changes, or back up a snapshot of the file system",
        )

    def fingerprint(self) -> str:
        """What `copy` returns for the files as they are now; empty if they are just being changed."""
        try:
            return _fingerprint(self._listed())
        except ChangedError:
            return ""

    def _moment(self, pieces: PieceStore, copied: Copied) -> tuple[LedgerBackup, str]:
        found = self._settled()
        small, logs, growing = self._sorted(found)
        copies, tails = self._at_rest(small, logs, growing)
        now = self._listed()
        for name in found.keys() | now.keys():
            before, after = found.get(name), now.get(name)
            if name in growing and before is not None and after is not None:
                same = before.identity.inode == after.identity.inode
            else:
                same = before == after
            if not same:
                raise ChangedError(f"{name} was changed or removed")
        copies = [copy for copy in copies if copy.name not in self._unfinished]
        files = store_copies(copies, self._stored, pieces, copied)
        for copy in copies:
            if copy.raw is None and copy.name not in growing and identity_of(copy.path)[0] != copy.identity:
                raise ChangedError(f"{copy.name} was changed")
        made = LedgerBackup(self.directory.name, tuple(sorted(files, key=lambda file: file.name)), tails)
        fingerprint = "" if self.damage or any(now[name] != found[name] for name in growing) else _fingerprint(now)
        return made, fingerprint

    # --- files -----------------------------------------------------------------------------------

    def _settled(self) -> dict[str, _Found]:
        """The files, once a change of any of them would show."""
        found = self._listed()
        latest = max((file.identity.mtime_ns for name, file in found.items() if not _may_grow(name)), default=0)
        if 0 <= (ago_ns := time.time_ns() - latest) < TICK_NS:
            time.sleep((TICK_NS - ago_ns) / 1e9)
            found = self._listed()
        return found

    def _listed(self) -> dict[str, _Found]:
        """The files that a backup holds, by their paths in the directory. Raises ChangedError, StorageError."""
        found: dict[str, _Found] = {}

        def walk(directory: Path, prefix: str, depth: int) -> None:
            try:
                with refusals("list", directory):
                    listed = os.listdir(directory)
            except StorageError as error:
                if depth and not os.path.lexists(directory):
                    raise ChangedError(f"{prefix} was removed") from error
                raise
            for name in listed:
                path, inside = directory / name, prefix + name
                if is_file_of_ledgers(inside):
                    found[inside] = _Found(*identity_of(path))
                elif depth < _DEPTH_MAX and not name.startswith(".") and path.is_dir() and not path.is_symlink():
                    walk(path, f"{inside}/", depth + 1)

        walk(self.directory, "", 0)
        return found

    def _sorted(self, found: dict[str, _Found]) -> "tuple[dict[str, bytes], list[str], dict[str, _Growing]]":
        """The small files, the ledgers that are sealed, and what grows. Ledgers that are being made of others, which no
        opening would keep, are in `_unfinished`."""
        small: dict[str, bytes] = {}
        for name, file in found.items():
            if not _may_grow(name):
                key = name, file.identity
                if key not in self._raw:
                    with as_changes(self.directory / name):
                        self._raw[key] = read_file(self.directory / name)
                small[name] = self._raw[key]
        logs, growing, self._unfinished = [], {}, set()
        for name in sorted(filter(_may_grow, found)):
            place = name, found[name].identity.inode
            metadata_name = name[: name.rfind("/") + 1] + LEDGER_FILE
            if name.rpartition("/")[2] != JOURNAL_FILE:
                if not _is_open(small.get(metadata_name), self.directory / metadata_name):
                    logs.append(name)
                    continue
                if _is_in_the_making(name):
                    self._unfinished |= {name, metadata_name}
                    continue
            if place not in self._growing:
                with as_changes(self.directory / name):
                    self._growing[place] = self._followed(name)
            growing[name] = self._growing[place]
        return small, logs, growing

    def _followed(self, name: str) -> "_Growing":
        """A file that grows, from the batch on that was the last one when the store got it; else from its start."""
        path = self.directory / name
        if name.rpartition("/")[2] == JOURNAL_FILE:
            return _Growing(path, _next_record)
        before = self._before.get(name)
        identity, _ = identity_of(path)
        is_known = before is not None and self._is_prefix(before, path, identity, identity.size_bytes)
        return _Growing(path, _next_batches, self._tails[name].position if is_known else 0)

    def _at_rest(
        self, small: dict[str, bytes], logs: list[str], growing: "dict[str, _Growing]"
    ) -> tuple[list[FileCopy], dict[str, LastBatch]]:
        """The copies at a moment at which nothing grew."""
        for _ in range(_TRIES):
            for one in growing.values():
                one.catch_up()
            if all(one.stands_still() for one in growing.values()):
                break
        else:
            raise ChangedError("jobs or entries come without a pause")
        self.damage = ""
        copies = [
            FileCopy(name, self.directory / name, *identity_of(self.directory / name), len(raw), raw=raw)
            for name, raw in small.items()
        ]
        copies += [self._of_log(name) for name in logs]
        tails = {}
        for name, one in growing.items():
            identity, mode = identity_of(one.path)
            if name.rpartition("/")[2] == JOURNAL_FILE:
                raw, damage = one.journal()
                self.damage = self.damage or (damage and f"{name}: {damage}")
                copies.append(FileCopy(name, one.path, identity, mode, len(raw), raw=raw))
                continue
            if damage := one.skip_damage():
                self.damage = self.damage or f"{name}: {damage}"
            elif one.position:
                tails[name] = LastBatch(one.last, crc32c(one.view[one.last : one.position]))
            copies.append(self._grown(name, one.path, identity, mode, one.position))
        return copies, tails

    def _of_log(self, name: str) -> FileCopy:
        path = self.directory / name
        identity, mode = identity_of(path)
        before = self._before.get(name)
        if before is not None and before.identity == identity and name not in self._tails:
            return FileCopy(name, path, identity, mode, identity.size_bytes, before.pieces)
        return self._grown(name, path, identity, mode, identity.size_bytes)

    def _grown(self, name: str, path: Path, identity: Identity, mode: int, size_bytes: int) -> FileCopy:
        """What the store has of the file is kept, if it still begins so."""
        before = self._before.get(name)
        kept: tuple[Piece, ...] = ()
        if before is not None and self._is_prefix(before, path, identity, size_bytes):
            kept = worth_keeping(before.pieces, size_bytes - before.size_bytes)
        start = sum(piece.size_bytes for piece in kept)
        return FileCopy(name, path, identity, mode, size_bytes, kept, ends_of(start, size_bytes, []))

    def _is_prefix(self, before: BackedFile, path: Path, identity: Identity, size_bytes: int) -> bool:
        """Whether what the store has of a ledger that grew is still how it begins."""
        tail = self._tails.get(before.name)
        if tail is None or before.inode != identity.inode or before.size_bytes > size_bytes:
            return False
        return crc_of(path, tail.position, before.size_bytes) == tail.crc32c


class _Unit(NamedTuple):
    """Whole batches, or a record of a journal: where the last one begins and ends, and the next entry's id, or the
    journal's."""

    last: int
    end: int
    next_id: int


class _Growing:
    """A file that grows: its bytes, and where its last whole batch or record ends (`position`) and begins (`last`).

    `after` finds what follows a position. `start`: where a batch begins that is whole.
    """

    def __init__(
        self, path: Path, after: Callable[[memoryview, int, int], _Unit | None], start: int = 0
    ) -> None:
        self.path = path
        self.position = self.last = start
        self._next_id = 0
        self._after = after
        self._behind = b""
        self._map = FileMapping(path)
        self.view = memoryview(self._map)
        self._inode = identity_of(path)[0].inode

    def catch_up(self) -> None:
        """Go on to the last whole batch or record. Raises ChangedError if the file is another one."""
        with as_changes(self.path):
            status = os.stat(self.path)
            if status.st_ino != self._inode or status.st_size < self.position:
                raise ChangedError(f"{self.path.name} was replaced or truncated")
            if status.st_size != len(self.view):
                self._map = FileMapping(self.path)
                self.view = memoryview(self._map)
            while (unit := self._after(self.view, self.position, self._next_id)) is not None:
                self.last, self.position, self._next_id = unit
            self._behind = bytes(self.view[self.position : self.position + _BEHIND_BYTES])
            self._map.check_whole()

    def stands_still(self) -> bool:
        """Whether nothing was added since `catch_up`."""
        with as_changes(self.path):
            status = os.stat(self.path)
        if status.st_ino != self._inode or status.st_size != len(self.view):
            return False
        if any(self._behind):       # a write that is under way, or never ended
            position = self.position
            self.catch_up()
            return self.position == position
        return bytes(self.view[self.position : self.position + _BEHIND_BYTES]) == self._behind

    def skip_damage(self) -> str:
        """Go to the end of the file if whole batches follow damage. Returns what is damaged."""
        if not any(self._behind):
            return ""
        with as_changes(self.path):
            check = check_behind(self.path, 0, self.position, self._next_id, SEGMENT)
        if not (check.has_run_behind_damage or check.foreign_magics):
            return ""
        start = self.position
        self.position = check.size_bytes
        return f"byte {start}: {check.damages[0].reason if check.damages else 'a batch with another magic'}"

    def journal(self) -> tuple[bytes, str]:
        """The bytes of a journal up to its end, and what is damaged in it: then all its bytes, as an opening refuses
        it. Zeros are written ahead, and the record behind them may be under way."""
        if any(self._behind) or bytes(self.view[self.position :]).strip(b"\0"):
            whole = bytes(self.view).rstrip(b"\0")
            try:
                parse_journal(whole, file=self.path)
            except SeglogError as error:
                return whole, error.what
        return bytes(self.view[: self.position]), ""

    def close(self) -> None:
        self.view.release()


def _next_batches(view: memoryview, position: int, next_id: int) -> _Unit | None:
    if position >= len(view):
        return None
    table = scan(
        _DIALECT.window(view), position, check_crc=True, max_batches=SCAN_BATCHES, max_bytes=SCAN_BYTES,
        min_offset=next_id,
    )
    return _Unit(table[-1].position, table.end, table[-1].last_offset + 1) if len(table) else None


def _next_record(view: memoryview, position: int, journal_id: int) -> _Unit | None:
    found = next_record(view, position, journal_id)
    return None if found is None else _Unit(position, *found)


def _may_grow(name: str) -> bool:
    return name.endswith(".log") or name.rpartition("/")[2] == JOURNAL_FILE


def _is_in_the_making(name: str) -> bool:
    """Whether a ledger that is not sealed is one that others are written to: nothing names it before it is sealed."""
    return not {"compacted", "delayed", "relocated"}.isdisjoint(name.split("/"))


def _is_open(metadata: bytes | None, path: Path) -> bool:
    """Whether the ledger of a .log may grow. One that cannot be told is stored as it is."""
    if metadata is None:
        return False
    try:
        return LedgerMetadata.parse(metadata, file=path.parent / LEDGER_FILE).end is None
    except CorruptManifestError:
        return False


def _fingerprint(found: dict[str, _Found]) -> str:
    """Empty if a file was written just now: another write may leave its size and time as they are."""
    latest = max((file.identity.mtime_ns for file in found.values()), default=0)
    if 0 <= time.time_ns() - latest < TICK_NS:
        return ""
    return fingerprint_of({name: file.identity for name, file in found.items()}, (None, None, None))
