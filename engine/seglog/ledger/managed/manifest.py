"""`manifest`: which ledgers a managed ledger consists of. docs/formats/managed_ledger.md.

Only formats, parses and replaces the file; ledger.managed.managed_ledger decides its contents. A change is a line after
the complete manifest, until these lines are as long as it: so a roll costs the same however many ledgers there are.
"""
import itertools
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from seglog.errors import CorruptManifestError, NotALogError, SeglogError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.directory_kinds import MANIFEST
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.ledger.ledger_metadata import MAX_ID, LedgerEnd, number, texts

FORMAT = "seglog-managed-ledger"
# Version 1 is one line.
VERSION, OLDEST = 2, 1
CHANGE_FORMAT = "seglog-managed-ledger-change"
FILE_NAME = MANIFEST
NO_MANIFEST_HINT = "pass a topic's directory, which has one; `seglog ledger recover --apply` rebuilds a lost one"
# Changes may take this much, however short the complete manifest is.
MIN_CHANGES_BYTES = 4096
# A change with more new ledgers is not written as a change.
MOST_ADDED = 8
LEDGER_PREFIX = "ledger-"


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger in the manifest. `end` is None if it was not sealed when the manifest was written."""

    ledger_id: int
    created_ms: int
    end: LedgerEnd | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """`last_index`, `last_timestamp`: from the broker metadata of entries up to the last sealed ledger, -1 for none."""

    ledgers: tuple[LedgerInfo, ...] = ()
    next_ledger_id: int = 0
    last_index: int = -1
    last_timestamp: int = -1
    properties: Mapping[str, str] = field(default_factory=dict)

    def with_(self, **changes: object) -> "Manifest":
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        return format_json(
            FORMAT, VERSION,
            ledgers=list(map(_line, self.ledgers)),
            next_ledger_id=self.next_ledger_id, last_index=self.last_index, last_timestamp=self.last_timestamp,
            properties=dict(self.properties),
        )

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Write it durably, in one step. Raises StorageError."""
        write_atomically(fs, directory / FILE_NAME, self.to_bytes())

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the file. Raises NotALogError if there is none, CorruptManifestError, UnsupportedVersionError."""
        return cls.parse(_read_bytes(directory), file=directory / FILE_NAME)

    @classmethod
    def parse(cls, raw: bytes, *, file: Path | None = None) -> "Manifest":
        """Parse the file. Raises CorruptManifestError, UnsupportedVersionError."""
        whole, _, changes = raw.partition(b"\n")
        manifest = parse_json(whole, FORMAT, VERSION, file, _manifest, CorruptManifestError, oldest=OLDEST)
        while changes:
            line, end, changes = changes.partition(b"\n")
            try:
                manifest = manifest._changed(line, file)
            except CorruptManifestError:
                # The last line may be what a crash left of a write: shorter, or with missing sectors. A complete line
                # with only a wrong byte, including its last one, was acknowledged to a caller.
                is_torn = b"\0" in line or not end
                if changes or not is_torn or (line[-1:] != b"\0" and manifest._is_change(line[:-1])):
                    raise
        return manifest

    def _is_change(self, line: bytes) -> bool:
        try:
            self._changed(line, None)
        except SeglogError:
            return False
        return True

    def _changed(self, line: bytes, file: Path | None) -> "Manifest":
        return parse_json(line, CHANGE_FORMAT, 1, file, self._with_change, CorruptManifestError)

    def _with_change(self, body: dict[str, object]) -> "Manifest":
        """Return the manifest after a change, in the form of `change_since`."""
        dropped, kept, listed = number(body["dropped"]), number(body["kept"]), body["ledgers"]
        if not isinstance(listed, list) or dropped + kept > len(self.ledgers):
            raise ValueError("a change to other ledgers")
        return _checked(
            (*self.ledgers[dropped : dropped + kept], *map(_info, listed)), number(body["next_ledger_id"]),
            number(body["last_index"], low=-1), number(body["last_timestamp"], low=-1),
            texts(body["properties"]) if "properties" in body else self.properties,
        )

    def change_since(self, before: "Manifest") -> bytes | None:
        """Return the line that turns `before` into this manifest; None if that is not short."""
        first = self.ledgers[0].ledger_id if self.ledgers else self.next_ledger_id
        dropped = bisect_left(before.ledgers, first, key=lambda info: info.ledger_id)
        kept = min(len(before.ledgers) - dropped, len(self.ledgers))
        while kept and before.ledgers[dropped + kept - 1] is not self.ledgers[kept - 1]:
            kept -= 1
        is_other = before.ledgers[dropped : dropped + kept] != self.ledgers[:kept]
        if is_other or len(self.ledgers) - kept > MOST_ADDED:
            return None
        changed: dict[str, object] = {
            "dropped": dropped, "kept": kept, "ledgers": list(map(_line, self.ledgers[kept:]))
        }
        if self.properties != before.properties:
            changed["properties"] = dict(self.properties)
        return format_json(
            CHANGE_FORMAT, 1, indent=None, next_ledger_id=self.next_ledger_id, last_index=self.last_index,
            last_timestamp=self.last_timestamp, **changed,
        )


class ManifestFile:
    """The manifest file of a directory, for the holder of the directory's lock to write."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        # The sizes of the complete manifest (0: it must be written next) and of the changes after it.
        self._whole_bytes = self._changes_bytes = 0

    def read(self) -> Manifest:
        """Read it. Raises what Manifest.read raises, and StorageError."""
        raw = _read_bytes(self._directory)
        manifest = Manifest.parse(raw, file=self._directory / FILE_NAME)
        # "version" is the last member. No change is appended to an older version: a program that knows only that
        # version must see the newer number, and not what looks like damage.
        is_current = raw.partition(b"\n")[0].endswith(b'"version": %d}' % VERSION)
        self._whole_bytes = len(raw) if is_current else 0
        if raw.find(b"\n") + 1 < len(raw):
            # A change may be only in the page cache, if its sync failed.
            self.write(manifest)
        return manifest

    def write(self, manifest: Manifest) -> None:
        """Write the complete manifest durably, in one step. Raises StorageError."""
        raw = manifest.to_bytes()
        self._whole_bytes = 0       # unknown, if that fails
        write_atomically(self._fs, self._directory / FILE_NAME, raw)
        self._whole_bytes, self._changes_bytes = len(raw), 0

    def put(self, before: Manifest, manifest: Manifest) -> None:
        """Write `manifest` over `before`. A failure leaves one of them, or an incomplete change."""
        change = manifest.change_since(before) if self._whole_bytes else None
        most = max(self._whole_bytes, MIN_CHANGES_BYTES) - self._changes_bytes
        if change is None or len(change) > most:
            self.write(manifest)
            return
        whole_bytes, self._whole_bytes = self._whole_bytes, 0
        with self._fs.open_write(self._directory / FILE_NAME) as file:
            file.append(change)
            file.sync()
        self._whole_bytes = whole_bytes
        self._changes_bytes += len(change)


def _read_bytes(directory: Path) -> bytes:
    try:
        return read_file(directory / FILE_NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise NotALogError(
            f"not a managed ledger: it has no {FILE_NAME}", file=directory, hint=NO_MANIFEST_HINT) from None


def _manifest(body: dict[str, object]) -> Manifest:
    listed = body["ledgers"]
    if not isinstance(listed, list):
        raise TypeError("the ledgers must be a list")
    return _checked(
        tuple(map(_info, listed)), number(body["next_ledger_id"]), number(body["last_index"], low=-1),
        number(body["last_timestamp"], low=-1), texts(body["properties"]),
    )


def _checked(
    ledgers: tuple[LedgerInfo, ...], next_ledger_id: int, last_index: int, last_timestamp: int,
    properties: Mapping[str, str],
) -> Manifest:
    ids = [info.ledger_id for info in ledgers]
    if any(one >= other for one, other in itertools.pairwise([*ids, next_ledger_id])):
        raise ValueError("the ids of the ledgers do not rise")
    return Manifest(ledgers, next_ledger_id, last_index, last_timestamp, properties)


def _line(info: LedgerInfo) -> list[int]:
    end = info.end
    sealed = [] if end is None else [end.entries, end.length_bytes, end.max_timestamp, end.sealed_ms]
    return [info.ledger_id, info.created_ms, *sealed]


def _info(value: object) -> LedgerInfo:
    if not isinstance(value, list) or len(value) not in (2, 6):
        raise TypeError("a ledger must have two or six members")
    ledger_id, created_ms = number(value[0]), number(value[1], low=-MAX_ID)
    if len(value) == 2:
        return LedgerInfo(ledger_id, created_ms)
    end = LedgerEnd(number(value[2]), number(value[3]), number(value[4], low=-1), number(value[5], low=-MAX_ID))
    return LedgerInfo(ledger_id, created_ms, end)


def ledger_directory(directory: Path, ledger_id: int) -> Path:
    """Return the directory of a ledger of the managed ledger in `directory`."""
    return directory / f"{LEDGER_PREFIX}{ledger_id}"
