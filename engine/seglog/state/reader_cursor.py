"""`.seglog.cursor-<name>`: the position of a named reader of a log. docs/formats/reader_cursor.md."""
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from seglog.errors import CorruptCheckpointError, InvalidArgumentError, UnsupportedVersionError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.names import MAX_OFFSET
from seglog.fs.aside import SCRATCH_SUFFIX, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.lock import turns
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.logger import Logger

_LOG = Logger(__name__)

PREFIX = ".seglog.cursor-"
LOCK_SUFFIX = ".lock"
FORMAT = "seglog-reader-cursor"
VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HINT = "set it with `seglog cursors reset`, or remove the file: the reader then begins at the start of the log"


@dataclass(frozen=True, slots=True)
class ReaderCursor:
    """offset: the next offset to read. committed_at_ms: when it was committed."""

    name: str
    offset: int
    committed_at_ms: int

    @classmethod
    def read(cls, directory: Path, name: str) -> Self | None:
        """The cursor, or None if nothing was committed. Raises CorruptCheckpointError, UnsupportedVersionError,
        StorageError."""
        path = cursor_path(directory, name)
        try:
            raw = read_file(path)
        except FileNotFoundError:
            return None
        return cls.parse(raw, path)

    @classmethod
    def parse(cls, raw: bytes, path: Path) -> Self:
        """Raises CorruptCheckpointError, UnsupportedVersionError."""
        try:
            found = parse_json(raw, FORMAT, VERSION, path, cls._of)
            if cursor_path(path.parent, found.name) != path:
                raise CorruptCheckpointError(f"the file is the cursor of another reader, {found.name!r}", file=path)
        except CorruptCheckpointError as error:
            error.hint = _HINT
            raise
        return found

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Self:
        name, offset, committed_at_ms = body["name"], body["offset"], body["committed_at_ms"]
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r:.60} is not text")
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise ValueError(f"the offset {offset!r:.60} is not an integer from 0 to {MAX_OFFSET}")
        if type(committed_at_ms) is not int:
            raise ValueError(f"the time {committed_at_ms!r:.60} is not an integer")
        return cls(name, offset, committed_at_ms)

    def to_bytes(self) -> bytes:
        return format_json(
            FORMAT, VERSION, name=self.name, offset=self.offset, committed_at_ms=self.committed_at_ms
        )

    def put(self, fs: FileSystem, directory: Path) -> None:
        """Write it durably. The caller holds the lock of the name. Raises StorageError; then it is unchanged."""
        write_atomically(fs, cursor_path(directory, self.name), self.to_bytes())


def committed_cursors(directory: Path) -> list[ReaderCursor]:
    """The cursors of all readers of a partition that have committed. Raises what ReaderCursor.read raises."""
    found = (ReaderCursor.read(directory, path.name.removeprefix(PREFIX)) for path in cursor_files(directory))
    return [cursor for cursor in found if cursor is not None]


def lower_cursors(
    fs: FileSystem, directory: Path, end: int, names: Iterable[str] | None = None,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Lower all positions beyond `end`, where the log ends or is about to be cut: readers would miss later appends.

    `names`: of the files in the directory, if it was just listed. `announce`: tells readers of the cut; it is called
    in any case, before a reader can commit again, so that a reader that sees the cut finds its position lowered, and
    one that does not is refused. Leaves alone a file that cannot be read. Raises StorageError, LogLockedError.
    """
    is_announced = False

    def lower() -> None:
        nonlocal is_announced
        try:
            _lower(fs, directory, end)
        finally:
            is_announced = True
            announce()

    try:
        if names is None or any(name.startswith(PREFIX) for name in names):
            # Readers commit under the same lock. Listed below it: a reader may be about to commit for the first time,
            # which its lock file shows.
            with turns(fs, directory.parent) as turn:
                turn.run(lower)
    finally:
        if not is_announced:
            announce()


def _lower(fs: FileSystem, directory: Path, end: int) -> None:
    with refusals("list", directory):
        found = os.listdir(directory)
    readers = {name.removeprefix(PREFIX).removesuffix(LOCK_SUFFIX) for name in found if name.startswith(PREFIX)}
    for name in sorted(filter(_is_name, readers)):
        try:
            cursor = ReaderCursor.read(directory, name)
        except (CorruptCheckpointError, UnsupportedVersionError) as error:
            _LOG.warning("cannot tell whether a reader's position is beyond the log end offset %d: %s", end, error)
            continue
        if cursor is not None and cursor.offset > end:
            replace(cursor, offset=end).put(fs, directory)
            _LOG.warning(
                "%s: moved reader %r back to offset %d, where the log was cut; it had committed %d",
                directory, name, end, cursor.offset,
            )


def checked_name(name: object) -> str:
    """Raises InvalidArgumentError if it is not a valid name of a reader."""
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidArgumentError(
            f"not a valid name of a reader: {name!r:.60}",
            hint="use 1 to 100 ASCII letters, digits, '.', '_' and '-', not ending in .tmp or .lock",
        )
    return name


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not name.endswith((SCRATCH_SUFFIX, LOCK_SUFFIX))


def cursor_path(directory: Path, name: str) -> Path:
    return directory / f"{PREFIX}{name}"


def lock_path(directory: Path, name: str) -> Path:
    """The path of the file that every reader with this name locks."""
    return directory / f"{PREFIX}{name}{LOCK_SUFFIX}"


def cursor_files(directory: Path) -> Iterator[Path]:
    """The cursor files of a partition, by name. Raises StorageError."""
    with refusals("list", directory):
        found = sorted(os.listdir(directory))
    for name in found:
        if is_cursor_file(name):
            yield directory / name


def is_cursor_file(name: str) -> bool:
    """Whether a file of this name in a partition directory is a cursor."""
    return name.startswith(PREFIX) and _is_name(name.removeprefix(PREFIX))
