"""`.seglog.cursor-<name>`: the position of a cursor. docs/formats/reader_cursor.md.

The file has two slots. A commit writes over the earlier one, so that it takes one sync, and what a crash leaves half
written is not the commit before.
"""
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from seglog.errors import CorruptCheckpointError, InvalidArgumentError, StorageError, UnsupportedVersionError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.names import CURSOR_PREFIX, MAX_OFFSET
from seglog.fs.aside import SCRATCH_SUFFIX, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.lock import turns
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple

_LOG = Logger(__name__)

LOCK_SUFFIX = ".lock"
FORMAT = "seglog-reader-cursor"
VERSION = 2             # version 1, which is one commit without slots, is read
SLOT_BYTES = 512
_NO_NUMBER = -1         # of a commit of version 1
_BLANK = b" " * (SLOT_BYTES - 1) + b"\n"
# A reader without the lock may see half a commit. It then looks again.
_LOOKS, _PAUSE_S = 5, 0.001
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HINT = "set it with `seglog cursors reset`, or remove the file: the reader then begins at the start of the log"


class ReaderCursor(NamedTuple):
    """offset: the next offset to read. committed_at_ms: when it was committed."""

    name: str
    offset: int
    committed_at_ms: int

    @classmethod
    def read(cls, directory: Path, name: str) -> "ReaderCursor | None":
        """The cursor, or None if nothing was committed. Raises CorruptCheckpointError, UnsupportedVersionError,
        StorageError."""
        path = cursor_path(directory, name)
        for _ in range(_LOOKS):
            try:
                raw = read_file(path)
            except FileNotFoundError:
                return None
            slots = _slots(raw, path)
            if not _has_half(slots, raw):
                break
            time.sleep(_PAUSE_S)
        return _later(slots)

    @classmethod
    def parse(cls, raw: bytes, path: Path) -> "ReaderCursor":
        """The later of the file's two commits. Raises CorruptCheckpointError, UnsupportedVersionError."""
        return _later(_slots(raw, path))

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        """From the members of a slot. Raises ValueError, KeyError."""
        name, offset, committed_at_ms = body["name"], body["offset"], body["committed_at_ms"]
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r:.60} is not text")
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise ValueError(f"the offset {offset!r:.60} is not an integer from 0 to {MAX_OFFSET}")
        if type(committed_at_ms) is not int:
            raise ValueError(f"the time {committed_at_ms!r:.60} is not an integer")
        return cls(name, offset, committed_at_ms)

    def to_bytes(self) -> bytes:
        """A file with this one commit."""
        return self._slot(0) + _BLANK

    def _slot(self, number: int) -> bytes:
        line = format_json(
            FORMAT, VERSION, number=number, name=self.name, offset=self.offset, committed_at_ms=self.committed_at_ms
        )
        return line[:-1].ljust(SLOT_BYTES - 1) + line[-1:]

    def put(self, fs: FileSystem, directory: Path) -> None:
        """Replace the file durably, with what it held. The caller holds the lock of the log dir. Raises StorageError;
        then it is unchanged."""
        write_atomically(fs, cursor_path(directory, self.name), self.to_bytes())

    def commit(self, fs: FileSystem, directory: Path, *, durably: bool = True) -> None:
        """Write it over the earlier of the file's two commits. The caller holds the lock of the log dir.

        Not `durably`: a power cut may leave the commit before it, or an earlier one. Raises StorageError; then the
        commit before it counts, though this one may come back after a crash.
        """
        path = cursor_path(directory, self.name)
        try:
            slots = _slots(read_file(path), path)
        except (FileNotFoundError, CorruptCheckpointError):
            slots = []
        if len(slots) < 2:
            self.put(fs, directory)
            return
        numbers = [-1 if slot is None else slot.number for slot in slots]
        at = numbers.index(min(numbers)) * SLOT_BYTES
        try:
            with fs.open_write(path) as file:
                file.write_at(at, self._slot(max(numbers) + 1))
                if durably:
                    file.sync_data()
        except StorageError:
            with suppress(StorageError), fs.open_write(path) as file:
                file.write_at(at, _BLANK)
            raise


class _Slot(NamedTuple):
    """A commit in a file. `number`: larger than that of the commit before it."""

    number: int
    cursor: ReaderCursor


def _slots(raw: bytes, path: Path) -> list[_Slot | None]:
    """What the slots of a file hold; None for one that is blank or holds half a commit. A file of version 1 has one.

    Raises CorruptCheckpointError if no slot holds a commit, UnsupportedVersionError.
    """
    if len(raw) != 2 * SLOT_BYTES:
        only = _parsed(raw, path)
        if only.number != _NO_NUMBER:
            raise CorruptCheckpointError(
                f"not a {FORMAT} file: {len(raw)} bytes instead of {2 * SLOT_BYTES}", file=path, hint=_HINT
            )
        return [only]
    found: list[_Slot | None] = []
    damage: CorruptCheckpointError | None = None
    for slot in _halves(raw):
        try:
            found.append(_parsed(slot, path))
        except CorruptCheckpointError as error:
            found.append(None)
            damage = error if slot != _BLANK or damage is None else damage
    if damage is not None and not any(found):
        raise damage
    return found


def _parsed(raw: bytes, path: Path) -> _Slot:
    try:
        found = parse_json(raw, FORMAT, VERSION, path, _slot_of, oldest=1)
        if cursor_path(path.parent, found.cursor.name) != path:
            raise CorruptCheckpointError(f"the file is the cursor of another reader, {found.cursor.name!r}", file=path)
    except CorruptCheckpointError as error:
        error.hint = _HINT
        raise
    return found


def _slot_of(body: dict[str, Any]) -> _Slot:
    number = _NO_NUMBER if body["version"] == 1 else body["number"]
    if body["version"] > 1 and (type(number) is not int or not 0 <= number < 1 << 63):
        raise ValueError(f"the number {number!r:.60} is not one of a commit")
    return _Slot(number, ReaderCursor.of(body))


def _later(slots: Iterable[_Slot | None]) -> ReaderCursor:
    return max(filter(None, slots), key=lambda slot: slot.number).cursor


def _has_half(slots: Iterable[_Slot | None], raw: bytes) -> bool:
    """Whether one slot holds half a commit. (The other then holds a whole one.)"""
    return any(slot is None and half != _BLANK for slot, half in zip(slots, _halves(raw), strict=False))


def _halves(raw: bytes) -> tuple[bytes, bytes]:
    return raw[:SLOT_BYTES], raw[SLOT_BYTES:]


def committed_cursors(directory: Path) -> list[ReaderCursor]:
    """The cursors of all readers of a partition that have committed. Raises what ReaderCursor.read raises."""
    found = (ReaderCursor.read(directory, path.name.removeprefix(CURSOR_PREFIX)) for path in cursor_files(directory))
    return [cursor for cursor in found if cursor is not None]


def lower_cursors(
    fs: FileSystem, directory: Path, end: int, names: Iterable[str] | None = None,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Lower all positions beyond `end`, where the log ends or is about to be truncated: readers would miss later
    appends.

    `names`: of the files in the directory, if it was just listed. `announce`: tells readers of the truncation; it is
    called in any case, before a reader can commit again, so that a reader that sees the truncation finds its position
    lowered, and one that does not is refused. Leaves alone a file that cannot be read. Raises StorageError,
    LogLockedError.
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
        if names is None or any(name.startswith(CURSOR_PREFIX) for name in names):
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
    ours = filter(lambda name: name.startswith(CURSOR_PREFIX), found)
    readers = {name.removeprefix(CURSOR_PREFIX).removesuffix(LOCK_SUFFIX) for name in ours}
    for name in sorted(filter(_is_name, readers)):
        try:
            cursor = ReaderCursor.read(directory, name)
        except (CorruptCheckpointError, UnsupportedVersionError) as error:
            _LOG.warning("cannot tell whether a reader's position is beyond the log end offset %d: %s", end, error)
            continue
        if cursor is not None and cursor.offset > end:
            cursor._replace(offset=end).put(fs, directory)
            _LOG.warning(
                "%s: moved reader %r back to offset %d, where the log was truncated; it had committed %d",
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
    return directory / f"{CURSOR_PREFIX}{name}"


def lock_path(directory: Path, name: str) -> Path:
    """The path of the file that every reader with this name locks."""
    return directory / f"{CURSOR_PREFIX}{name}{LOCK_SUFFIX}"


def cursor_files(directory: Path) -> Iterator[Path]:
    """The cursor files of a partition, by name. Raises StorageError."""
    with refusals("list", directory):
        found = sorted(os.listdir(directory))
    for name in found:
        if is_cursor_file(name):
            yield directory / name


def is_cursor_file(name: str) -> bool:
    """Whether a file of this name in a partition directory is a cursor."""
    return name.startswith(CURSOR_PREFIX) and _is_name(name.removeprefix(CURSOR_PREFIX))
