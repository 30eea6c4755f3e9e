"""`cursors/<name>.cursor`: the position of a subscription. docs/formats/cursor.md.

Only formats, parses and replaces the file; seglog.ledger.managed.cursor decides its contents.
"""
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from seglog.errors import CorruptManifestError, InvalidArgumentError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.ledger.ledger_metadata import MAX_ID, number, texts
from seglog.ledger.managed.acknowledgements import Acknowledgements, PartOfBatch, bitmap_class
from seglog.ledger.managed.journal import JournalContents, JournalKind, acknowledge, covered_by
from seglog.ledger.position import Position

if TYPE_CHECKING:
    from pyroaring import BitMap

FORMAT = "seglog-cursor"
# Version 1 has no "aside". Version 3 has a "journal", and only cursors that have one are written so: an older seglog
# must not take the acknowledgements in the file for all of them.
VERSION, WITHOUT_JOURNAL, OLDEST = 3, 2, 1
DIRECTORY = "cursors"
SUFFIX = ".cursor"
_MAX_NAME_BYTES = 255 - len(SUFFIX) - len(".tmp")


@dataclass(frozen=True, slots=True)
class CursorState:
    """The contents of a cursor's file."""

    name: str
    acknowledged: Acknowledgements
    properties: Mapping[str, str] = field(default_factory=dict)
    # The id of a journal, and the position up to which its acknowledgements are in this.
    journal: tuple[int, int] | None = None

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged; (-1, -1) if nothing is."""
        return self.acknowledged.mark_delete

    def to_bytes(self) -> bytes:
        acknowledged = self.acknowledged
        journal: dict[str, Any] = {} if self.journal is None else {"journal": list(self.journal)}
        return format_json(
            FORMAT, VERSION if journal else WITHOUT_JOURNAL, **journal, name=self.name,
            mark_delete=list(acknowledged.mark_delete),
            acknowledged=[[ledger_id, _text_of(ids)] for ledger_id, ids in acknowledged.entries.items()],
            batches=[
                [*at, part.size, _text_of(part.indexes)]
                for parts in (acknowledged.batches, acknowledged.aside_parts) for at, part in sorted(parts.items())
            ],
            aside=[[ledger_id, _text_of(ids)] for ledger_id, ids in sorted(acknowledged.aside.items())],
            properties=dict(self.properties),
        )

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Write it durably, in one step, into the managed ledger's directory. Raises StorageError."""
        write_atomically(fs, cursor_path(directory, self.name), self.to_bytes())

    @classmethod
    def read(cls, path: Path) -> "CursorState":
        """Read the file. Raises CorruptManifestError, UnsupportedVersionError."""
        return cls.parse(read_file(path), file=path)

    @classmethod
    def parse(cls, raw: bytes, *, file: Path | None = None) -> "CursorState":
        """Parse the file. Raises CorruptManifestError, UnsupportedVersionError."""
        return parse_json(raw, FORMAT, VERSION, file, _state, CorruptManifestError, oldest=OLDEST)


def cursor_path(directory: Path, name: str) -> Path:
    """Return the path of a cursor's file. Raises InvalidArgumentError for a name that cannot be a file name."""
    try:
        quoted = quote(name, safe="").replace(".", "%2E") if isinstance(name, str) else ""
    except UnicodeEncodeError:      # half of a surrogate pair
        quoted = ""
    if not quoted or len(quoted) > _MAX_NAME_BYTES:
        raise InvalidArgumentError(f"a cursor's name has 1 to {_MAX_NAME_BYTES} characters, quoted: {repr(name)[:80]}")
    return directory / DIRECTORY / (quoted + SUFFIX)


def cursor_files(directory: Path) -> list[Path]:
    """Return the files of all cursors of a managed ledger."""
    try:
        return sorted((directory / DIRECTORY).glob(f"*{SUFFIX}"))
    except FileNotFoundError:
        return []


def _text_of(ids: "BitMap") -> str:
    optimized = ids.copy()      # the live one changes often, which is slow with runs
    optimized.run_optimize()
    return base64.b64encode(optimized.serialize()).decode()


def _bitmap_of(value: object) -> "BitMap":
    if not isinstance(value, str):
        raise TypeError("a bitmap must be text")
    return bitmap_class().deserialize(base64.b64decode(value, validate=True))


def _state(body: dict[str, object]) -> CursorState:
    name, properties = body["name"], texts(body["properties"])
    if not isinstance(name, str):
        raise TypeError("the name must be text")
    acknowledged = Acknowledgements(_position(*_list(body["mark_delete"], 2)))
    for item in _list(body["acknowledged"]):
        ledger_id, ids = _list(item, 2)
        acknowledged.entries[number(ledger_id)] = _bitmap_of(ids)
    for item in _list(body["aside"]) if body["version"] != 1 else ():
        ledger_id, ids = _list(item, 2)
        acknowledged.aside[number(ledger_id)] = _bitmap_of(ids)
    for item in _list(body["batches"]):
        ledger_id, entry_id, size, indexes = _list(item, 4)
        part, position = PartOfBatch(number(size, low=1), _bitmap_of(indexes)), _position(ledger_id, entry_id)
        parts = acknowledged.aside_parts if acknowledged.is_aside(position) else acknowledged.batches
        parts[position] = part
    journal = None
    if body["version"] == VERSION:
        journal_id, up_to = _list(body["journal"], 2)
        journal = number(journal_id, low=1), number(up_to)
    return CursorState(name, acknowledged, properties, journal)


def with_journal(state: CursorState, journal: JournalContents | None, file: Path) -> CursorState:
    """Return the state with the acknowledgements in the journal that its file does not have.

    It then covers the whole journal: each opening that appends begins another one. Raises CorruptJournalError.
    """
    if state.journal is None:
        return state
    begin = covered_by(journal, state.journal, file)
    assert journal is not None
    for record in journal.records:
        if record.kind is JournalKind.ACKED and record.position >= begin and record.subscription == state.name:
            acknowledge(state.acknowledged, record.items)
    return replace(state, journal=(journal.journal_id, MAX_ID))


def _list(value: object, length: int | None = None) -> list[object]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise TypeError(f"expected a list of {length or 'some'} members")
    return value


def _position(ledger_id: object, entry_id: object) -> Position:
    position = Position(number(ledger_id, low=-1), number(entry_id, low=-1))
    if position.entry_id == MAX_ID:
        raise ValueError("not a position")
    return position
