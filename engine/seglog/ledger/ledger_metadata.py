"""`ledger.json`: a ledger's id and properties, and, once it is sealed, its end. docs/formats/ledger.md.

Only formats, parses and replaces the file; seglog.ledger.ledger decides its contents.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from seglog.config import Fsync
from seglog.errors import CorruptManifestError, InvalidArgumentError, NotALogError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.directory_kinds import LEDGER_METADATA
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

FORMAT = "seglog-ledger"
VERSION = 2
# Version 1 has no synced_bytes.
OLDEST = 1
FILE_NAME = LEDGER_METADATA
MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a sealed ledger. `max_timestamp`: the largest of its entries' times in ms, -1 if none has one."""

    entries: int
    length_bytes: int
    max_timestamp: int
    sealed_ms: int


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """`end` is None if it was never sealed: its writer is active, or died. `fsync`: how it is written (config.Fsync).

    `synced_bytes`: a sync returned after this many bytes of the .log were written, so they are on the disk. 0: unknown.
    """

    ledger_id: int
    created_ms: int
    fsync: Fsync = "batch"
    properties: Mapping[str, str] = field(default_factory=dict)
    end: LedgerEnd | None = None
    synced_bytes: int = 0

    def sealed(self, end: LedgerEnd) -> "LedgerMetadata":
        return replace(self, end=end, synced_bytes=end.length_bytes)

    def synced_to(self, synced_bytes: int) -> "LedgerMetadata":
        return replace(self, synced_bytes=synced_bytes)

    def to_bytes(self) -> bytes:
        end = self.end
        return format_json(
            FORMAT, VERSION, ledger_id=self.ledger_id, created_ms=self.created_ms, fsync=self.fsync,
            properties=dict(self.properties), synced_bytes=self.synced_bytes,
            end=None if end is None else {
                "entries": end.entries, "length_bytes": end.length_bytes, "max_timestamp": end.max_timestamp,
                "sealed_ms": end.sealed_ms,
            },
        )

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Write it durably, in one step. Raises StorageError."""
        write_atomically(fs, directory / FILE_NAME, self.to_bytes())

    @classmethod
    def read(cls, directory: Path) -> "LedgerMetadata":
        """Read the file. Raises NotALogError if there is none, CorruptManifestError, UnsupportedVersionError."""
        path = directory / FILE_NAME
        try:
            raw = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotALogError(f"not a ledger: it has no {FILE_NAME}", file=directory) from None
        return cls.parse(raw, file=path)

    @classmethod
    def parse(cls, raw: bytes, *, file: Path | None = None) -> "LedgerMetadata":
        """Parse the file. Raises CorruptManifestError, UnsupportedVersionError."""
        return parse_json(raw, FORMAT, VERSION, file, _metadata, CorruptManifestError, oldest=OLDEST)


def _metadata(body: dict[str, object]) -> LedgerMetadata:
    end = body["end"]
    parsed = None
    if end is not None:
        if not isinstance(end, dict):
            raise TypeError("the end must be an object")
        parsed = LedgerEnd(
            number(end["entries"]), number(end["length_bytes"]), number(end["max_timestamp"], low=-1),
            number(end["sealed_ms"], low=-MAX_ID),
        )
    fsync = body["fsync"]
    if fsync not in get_args(Fsync):
        raise ValueError(f"unknown fsync {fsync!r}")
    return LedgerMetadata(
        number(body["ledger_id"]), number(body["created_ms"], low=-MAX_ID), cast("Fsync", fsync),
        texts(body["properties"]), parsed, number(body["synced_bytes"] if body["version"] != 1 else 0),
    )


def number(value: object, *, low: int = 0) -> int:
    """Return `value` if it is an int64 of `low` or more. Raises TypeError, ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not a number: {value!r}")
    if not low <= value <= MAX_ID:
        raise ValueError(f"not a number of {low} or more: {value}")
    return value


def texts(value: object) -> dict[str, str]:
    """Return `value` if it maps text to text, as properties do. Raises TypeError."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("properties must be an object of texts")
    return value


def checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy. Raises InvalidArgumentError if a name or a value is not text."""
    _check_mapping(properties)
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"a property's name and value must be text, not {name!r}: {value!r}",
                hint="encode it as text: str(value), or json.dumps(value)",
            )
    return dict(properties)


def changed_properties(properties: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the properties with `changes` applied; None removes one. Raises InvalidArgumentError."""
    _check_mapping(changes)
    added = checked_properties({name: value for name, value in changes.items() if value is not None})
    return {name: value for name, value in properties.items() if name not in changes} | added


def _check_mapping(properties: object) -> None:
    if not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties must be a mapping of text to text, not {repr(properties)[:80]}")
