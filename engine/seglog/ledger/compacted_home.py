"""Where the compacted ledger of a managed ledger lies, and how one takes the place of another.

    compacted/ledger-7.new     being made
    compacted/ledger-7         the one that the cursor __compaction points to (its property CompactedTopicLedger)

    made: sealed, all of it on the disk ── the cursor: pointer and mark-delete position, one write ── renamed without
    ".new" ── the one before is deleted

So a ledger with ".new" that the cursor does not point to was never used, and the next opening removes it. The cursor
has pointed to each ledger without ".new". If one of these is later than the pointer, or there is no pointer, the
pointer was lost: that is an error, for without its ledger the topic lacks keys. docs/formats/compacted_ledger.md
"""
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from seglog.errors import CorruptManifestError, NotALogError
from seglog.fs.files import FileSystem
from seglog.ledger.compacted_ledger import CompactedLedger
from seglog.ledger.ledger import DELETED_SUFFIX, delete_ledger, remove_directory
from seglog.ledger.manifest import FILE_NAME as MANIFEST_NAME
from seglog.ledger.manifest import LEDGER_PREFIX
from seglog.ledger.position import EARLIEST, Position

logger = logging.getLogger("seglog")

# Pulsar's names: Compactor.COMPACTION_SUBSCRIPTION, COMPACTED_TOPIC_LEDGER_PROPERTY
COMPACTION_CURSOR = "__compaction"
LEDGER_PROPERTY = "CompactedTopicLedger"
DIRECTORY = "compacted"
NEW_SUFFIX = ".new"


def compacted_directory(topic: Path, ledger_id: int, *, is_new: bool = False) -> Path:
    """Of a compacted ledger of the managed ledger in `topic`."""
    return topic / DIRECTORY / f"{LEDGER_PREFIX}{ledger_id}{NEW_SUFFIX if is_new else ''}"


def is_compacted_home(path: Path) -> bool:
    """Whether a directory is the one that holds a topic's compacted ledgers, which are no topic of their own."""
    path = Path(os.path.abspath(path))
    return path.name == DIRECTORY and (path.parent / MANIFEST_NAME).exists()


class Pointer(Protocol):
    """The cursor __compaction, or what its file says."""

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def mark_delete_position(self) -> Position: ...


def pointed_to(topic: Path, cursor: Pointer | None) -> int | None:
    """The id of the compacted ledger; None where the topic was never compacted.

    `cursor` None: there is no such cursor. Raises CorruptManifestError where the pointer was lost.
    """
    text = None if cursor is None else cursor.properties.get(LEDGER_PROPERTY)
    mark_delete = EARLIEST if cursor is None else cursor.mark_delete_position
    if text is not None and not text.isdecimal():
        raise CorruptManifestError(f"the cursor {COMPACTION_CURSOR} points to {text!r}, which is no ledger", file=topic)
    pointer = None if text is None else int(text)
    lost = [n for n in _once_used(topic) if pointer is None or n > pointer]
    if lost or (pointer is None and mark_delete > EARLIEST):
        what = f"compacted ledger {lost[-1]}" if lost else f"a compacted ledger up to {mark_delete}"
        where = "has no pointer" if pointer is None else f"points to {pointer}"
        raise CorruptManifestError(
            f"{what} was in use, and the cursor {COMPACTION_CURSOR} {where}: without it keys would be missing",
            file=topic,
            hint="bring the cursor's file back from a backup; or, where the topic still has all its entries, remove "
            f"the directory {DIRECTORY} and the cursor, and compact it from its beginning",
        )
    return pointer


def open_compacted(topic: Path, ledger_id: int) -> CompactedLedger:
    """The compacted ledger that the cursor points to. Raises CorruptManifestError where it is not there, or is none."""
    path = compacted_directory(topic, ledger_id)
    if not path.exists() and (new := compacted_directory(topic, ledger_id, is_new=True)).exists():
        path = new      # a crash came before it got its name, and nobody has opened the topic to write since
    try:
        found = CompactedLedger(path)
    except NotALogError as gone:
        raise CorruptManifestError(
            f"compacted ledger {ledger_id} is not there: keys would be missing", file=path,
            hint="bring it back from a backup",
        ) from gone
    if found.ledger_id != ledger_id:
        raise CorruptManifestError(f"a ledger {found.ledger_id} lies where compacted ledger {ledger_id} was", file=path)
    return found


def slowest(cursors: dict[str, Position], otherwise: Position | None) -> Position | None:
    """Up to where the topic may be trimmed: where every cursor has come; `otherwise` for one without subscriptions.

    The cursor of compaction only holds back: a topic without subscriptions is not trimmed because it was compacted.
    """
    positions = [position for name, position in cursors.items() if name != COMPACTION_CURSOR]
    passed = min(positions) if positions else otherwise
    return min(passed, cursors.get(COMPACTION_CURSOR, passed)) if passed is not None else None


def tidy(fs: FileSystem, topic: Path, cursor: Pointer | None) -> None:
    """Finish, or take back, what a crash interrupted. Where the pointer was lost, everything stays as it is."""
    directory = topic / DIRECTORY
    if not directory.is_dir():
        return
    try:
        pointer = pointed_to(topic, cursor)
    except CorruptManifestError as error:       # compacting, and reading what is compacted, raise it
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
    """Give the ledger that the cursor points to now its name; where it lies then."""
    path = compacted_directory(topic, ledger_id)
    fs.rename(compacted_directory(topic, ledger_id, is_new=True), path)
    fs.sync_directory(path.parent)
    return path


def compacted_ids(topic: Path) -> list[int]:
    """The ids of all compacted ledgers that lie there, in use, being made or being removed."""
    numbers = [name.removeprefix(LEDGER_PREFIX).partition(".")[0] for name in _names(topic)]
    return sorted({int(number) for number in numbers if number.isdecimal()})


def _once_used(topic: Path) -> list[int]:
    """The ids of those without a suffix, which rise."""
    numbers = [name.removeprefix(LEDGER_PREFIX) for name in _names(topic)]
    return sorted(int(number) for number in numbers if number.isdecimal())


def _names(topic: Path) -> list[str]:
    try:
        names = os.listdir(topic / DIRECTORY)
    except FileNotFoundError:
        return []
    return [name for name in names if name.startswith(LEDGER_PREFIX)]
