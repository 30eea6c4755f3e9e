"""`properties.json`: a small map of text to text, replaced as a whole. docs/formats/delayed_snapshots.md."""
import threading
from collections.abc import Mapping
from pathlib import Path

from seglog.errors import CorruptManifestError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.ledger.ledger_metadata import changed_properties, number, texts

FORMAT = "seglog-properties"
VERSION = 1
FILE_NAME = "properties.json"
# This many ids are reserved on the disk at a time: a crash loses the rest of them, which costs nothing.
IDS_AT_ONCE = 1000


class PropertyFile:
    """The properties and assigned ledger ids of a tracker without a cursor. Thread-safe.

    Has the same interface as a cursor: `properties`, `update_properties`.
    """

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        """Read the file. Raises CorruptManifestError, UnsupportedVersionError, StorageError."""
        self._fs = fs
        self._path = directory / FILE_NAME
        # Guards the fields below, and the file.
        self._lock = threading.Lock()
        self._properties: dict[str, str] = {}
        self._reserved = self._next_id = 0
        try:
            raw = read_file(self._path)
        except FileNotFoundError:
            return
        self._properties, self._reserved = parse_json(raw, FORMAT, VERSION, self._path, _members, CorruptManifestError)
        self._next_id = self._reserved

    @property
    def properties(self) -> dict[str, str]:
        """A copy."""
        with self._lock:
            return dict(self._properties)

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, and remove those that are None; durable, and all or nothing. Raises
        InvalidArgumentError, StorageError."""
        with self._lock:
            changed = changed_properties(self._properties, changes)
            if changed != self._properties:
                self._write(changed, self._reserved)
                self._properties = changed

    def new_ledger_id(self) -> int:
        """Return an id that was never used before. Raises StorageError."""
        with self._lock:
            if self._next_id == self._reserved:
                self._write(self._properties, self._reserved + IDS_AT_ONCE)
                self._reserved += IDS_AT_ONCE
            self._next_id += 1
            return self._next_id - 1

    def _write(self, properties: Mapping[str, str], next_id: int) -> None:
        write_atomically(
            self._fs, self._path, format_json(FORMAT, VERSION, properties=dict(properties), next_id=next_id)
        )


def _members(body: dict[str, object]) -> tuple[dict[str, str], int]:
    return texts(body["properties"]), number(body["next_id"])
