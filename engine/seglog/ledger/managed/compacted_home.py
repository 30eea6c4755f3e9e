"""Where the compacted ledger of a managed ledger is, and how a new one replaces it.

    compacted/ledger-7.new     being written
    compacted/ledger-7         the one that the cursor __compaction points to (its property CompactedTopicLedger)

    written: sealed, all of it on the disk ── the cursor: pointer and mark-delete position, one write ── renamed without
    ".new" ── the previous one is deleted

So a ledger with ".new" to which the cursor does not point was never used, and the next opening removes it. The cursor
has pointed to each ledger without ".new". If one of these is later than the pointer, or there is no pointer, the
pointer was lost: this is an error, because without that ledger the topic lacks keys. docs/formats/compacted_ledger.md
"""
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from seglog.errors import CorruptManifestError, NotALogError
from seglog.fs.files import FileSystem
from seglog.fs.refusals import as_path
from seglog.ledger.compacted.compacted_ledger import CompactedLedger
from seglog.ledger.ledger import DELETED_SUFFIX, delete_ledger, remove_directory
from seglog.ledger.managed.manifest import FILE_NAME as MANIFEST_NAME
from seglog.ledger.managed.manifest import LEDGER_PREFIX
from seglog.ledger.position import EARLIEST, Position
from seglog.logger import Logger

logger = Logger("seglog")

# Pulsar's names: Compactor.COMPACTION_SUBSCRIPTION, COMPACTED_TOPIC_LEDGER_PROPERTY
COMPACTION_CURSOR = "__compaction"
LEDGER_PROPERTY = "CompactedTopicLedger"
DIRECTORY = "compacted"
NEW_SUFFIX = ".new"


def compacted_directory(topic: Path, ledger_id: int, *, is_new: bool = False) -> Path:
    """Return the directory of a compacted ledger of the managed ledger in `topic`."""
    return topic / DIRECTORY / f"{LEDGER_PREFIX}{ledger_id}{NEW_SUFFIX if is_new else ''}"


def is_compacted_home(path: Path) -> bool:
    """Whether a directory is the one with a topic's compacted ledgers, which is not a topic itself."""
    path = Path(os.path.abspath(as_path(path)))
    return path.name == DIRECTORY and (path.parent / MANIFEST_NAME).exists()


class Pointer(Protocol):
    """The cursor __compaction, or the contents of its file."""

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def mark_delete_position(self) -> Position: ...


def pointed_to(topic: Path, cursor: Pointer | None) -> int | None:
    """Return the id of the compacted ledger; None if the topic was never compacted.

    `cursor` is None if there is no such cursor. Raises CorruptManifestError if the pointer was lost.
    """
    text = None if cursor is None else cursor.properties.get(LEDGER_PROPERTY)
    mark_delete = EARLIEST if cursor is None else cursor.mark_delete_position
    if text is not None and not text.isdecimal():
        raise CorruptManifestError(f"the cursor {COMPACTION_CURSOR} points to {text!r}: not a ledger", file=topic)
    pointer = None if text is None else int(text)
    lost = [n for n in _once_used(topic) if pointer is None or n > pointer]
    if lost or (pointer is None and mark_delete > EARLIEST):
        what = f"compacted ledger {lost[-1]}" if lost else f"a compacted ledger up to {mark_delete}"
        where = "has no pointer" if pointer is None else f"points to {pointer}"
        raise CorruptManifestError(
            f"{what} was in use, but the cursor {COMPACTION_CURSOR} {where}: keys would be missing",
            file=topic,
            hint="restore the cursor's file from a backup; or, if the topic still has all its entries, remove "
            f"the directory {DIRECTORY} and the cursor, and compact the topic from its beginning",
        )
    return pointer


def open_compacted(topic: Path, ledger_id: int) -> CompactedLedger:
    """Open the compacted ledger to which the cursor points. Raises CorruptManifestError if it is missing or is none."""
    path = compacted_directory(topic, ledger_id)
    if not path.exists() and (new := compacted_directory(topic, ledger_id, is_new=True)).exists():
        path = new      # it was not renamed before a crash, and the topic was not opened for writing since
    try:
        found = CompactedLedger(path)
    except NotALogError as gone:
        raise CorruptManifestError(
            f"compacted ledger {ledger_id} is missing: keys would be missing", file=path,
            hint="restore it from a backup",
        ) from gone
    if found.ledger_id != ledger_id:
        raise CorruptManifestError(f"ledger {found.ledger_id} is where compacted ledger {ledger_id} was", file=path)
    return found


def slowest(cursors: dict[str, Position], otherwise: Position | None) -> Position | None:
    """Return up to where the topic may be trimmed: the slowest cursor's position; `otherwise` without subscriptions.

    The cursor of compaction can only hold back: compacting a topic without subscriptions does not let it be trimmed.
    """
    positions = [position for name, position in cursors.items() if name != COMPACTION_CURSOR]
    passed = min(positions) if positions else otherwise
    return min(passed, cursors.get(COMPACTION_CURSOR, passed)) if passed is not None else None


def tidy(fs: FileSystem, topic: Path, cursor: Pointer | None) -> None:
    """Finish or undo what a crash interrupted. If the pointer was lost, everything stays as it is."""
    directory = topic / DIRECTORY
    if not directory.is_dir():
        return
    try:
        pointer = pointed_to(topic, cursor)
    except CorruptManifestError as error:       # compacting the topic, or reading the compacted topic, raises it
        logger.error("%s", error)
        return
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if name.endswith(DELETED_SUFFIX):
            remove_directory(fs, path)
        elif pointer is not None and path == compacted_directory(topic, pointer, is_new=True):
            adopt(fs, topic, pointer)
        elif name.startswith(LEDGER_PREFIX) and (pointer is None or path != compacted_directory(topic, pointer)):
            logger.info("%s: left by an interrupted compaction, removed", path)
            delete_ledger(path, fs)


def adopt(fs: FileSystem, topic: Path, ledger_id: int) -> Path:
    """Rename the ledger to which the cursor now points; return its directory."""
    path = compacted_directory(topic, ledger_id)
    fs.rename(compacted_directory(topic, ledger_id, is_new=True), path)
    fs.sync_directory(path.parent)
    return path


def compacted_ids(topic: Path) -> list[int]:
    """Return the ids of all compacted ledgers found: in use, being written or being removed."""
    numbers = [name.removeprefix(LEDGER_PREFIX).partition(".")[0] for name in _names(topic)]
    return sorted({int(number) for number in numbers if number.isdecimal()})


def _once_used(topic: Path) -> list[int]:
    """Return the ids of those without a suffix, in ascending order."""
    numbers = [name.removeprefix(LEDGER_PREFIX) for name in _names(topic)]
    return sorted(int(number) for number in numbers if number.isdecimal())


def _names(topic: Path) -> list[str]:
    try:
        names = os.listdir(topic / DIRECTORY)
    except FileNotFoundError:
        return []
    return [name for name in names if name.startswith(LEDGER_PREFIX)]
