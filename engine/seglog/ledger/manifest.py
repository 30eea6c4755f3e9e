"""`manifest`: which ledgers a managed ledger consists of. docs/formats/managed_ledger.md.

Formatting, parsing and replacing the file only; seglog.ledger.managed_ledger decides what it says.
"""
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from seglog.errors import CorruptManifestError, NotALogError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.ledger.ledger_metadata import MAX_ID, LedgerEnd, number, texts

FORMAT = "seglog-managed-ledger"
VERSION = 1
FILE_NAME = "manifest"
LEDGER_PREFIX = "ledger-"


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the manifest has it. `end` None: it was not sealed when the manifest was written."""

    ledger_id: int
    created_ms: int
    end: LedgerEnd | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """`last_index`, `last_timestamp`: of the broker's part of the entries up to the last sealed ledger, -1 for none."""

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
            ledgers=[
                [info.ledger_id, info.created_ms]
                + ([] if (end := info.end) is None else [
                    end.entries, end.length_bytes, end.max_timestamp, end.sealed_ms
                ])
                for info in self.ledgers
            ],
            next_ledger_id=self.next_ledger_id, last_index=self.last_index, last_timestamp=self.last_timestamp,
            properties=dict(self.properties),
        )

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Durably, in one step. Raises StorageError."""
        write_atomically(fs, directory / FILE_NAME, self.to_bytes())

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Raises NotALogError where there is none, CorruptManifestError, UnsupportedVersionError."""
        path = directory / FILE_NAME
        try:
            raw = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotALogError(f"no managed ledger: it has no {FILE_NAME}", file=directory) from None
        return cls.parse(raw, file=path)

    @classmethod
    def parse(cls, raw: bytes, *, file: Path | None = None) -> "Manifest":
        """Raises CorruptManifestError, UnsupportedVersionError."""
        return parse_json(raw, FORMAT, VERSION, file, _manifest, CorruptManifestError)


def _manifest(body: dict[str, object]) -> Manifest:
    listed = body["ledgers"]
    if not isinstance(listed, list):
        raise TypeError("the ledgers are no list")
    ledgers = tuple(map(_info, listed))
    next_ledger_id = number(body["next_ledger_id"])
    ids = [info.ledger_id for info in ledgers]
    if any(one >= other for one, other in itertools.pairwise([*ids, next_ledger_id])):
        raise ValueError("the ids of the ledgers do not rise")
    return Manifest(
        ledgers, next_ledger_id, number(body["last_index"], low=-1), number(body["last_timestamp"], low=-1),
        texts(body["properties"]),
    )


def _info(value: object) -> LedgerInfo:
    if not isinstance(value, list) or len(value) not in (2, 6):
        raise TypeError("a ledger has two or six members")
    ledger_id, created_ms = number(value[0]), number(value[1], low=-MAX_ID)
    if len(value) == 2:
        return LedgerInfo(ledger_id, created_ms)
    end = LedgerEnd(number(value[2]), number(value[3]), number(value[4], low=-1), number(value[5], low=-MAX_ID))
    return LedgerInfo(ledger_id, created_ms, end)


def ledger_directory(directory: Path, ledger_id: int) -> Path:
    """Where a ledger of the managed ledger in `directory` lies."""
    return directory / f"{LEDGER_PREFIX}{ledger_id}"
