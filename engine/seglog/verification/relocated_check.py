"""Checks the relocated entries of a managed ledger: each entry that a cursor has set aside must have an intact copy.

Only reads. Its findings have the codes of verification.findings.
"""
import itertools
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.errors import CorruptManifestError, NotALogError, SeglogError, UnsupportedVersionError
from seglog.ledger.entry import Entry
from seglog.ledger.ledger import DELETED_SUFFIX, LOG_NAME, Ledger
from seglog.ledger.ledger_metadata import LedgerMetadata
from seglog.ledger.ledger_recovery import check_ledger
from seglog.ledger.managed.cursor_file import CursorState, cursor_files
from seglog.ledger.managed.relocated_entries import DIRECTORY, FORMAT_PROPERTY, HEADER, VERSION, copies_in
from seglog.ledger.position import Position
from seglog.verification.findings import Finding

if TYPE_CHECKING:
    from pyroaring import BitMap

# Of a topic: a file may say that billions of entries were set aside.
_LOST_TOLD_MAX = 1000


def check_relocated(topic: Path) -> Iterator[Finding]:
    """Check the managed ledger in `topic`; yields nothing if no entry was ever relocated. Raises StorageError."""
    aside = _set_aside(topic)
    whole: set[Position] = set()
    for path in sorted((topic / DIRECTORY).glob("*/*")):
        copies: set[Position] = set()
        damage = list(_check(path, copies))
        if damage:
            yield from damage
        elif not any(position.entry_id in aside[position.ledger_id][0] for position in copies
                     if position.ledger_id in aside):
            yield Finding("relocated_stray", os.fspath(path))
        whole |= copies
    lost = _without(aside, whole)
    if lost:
        # The topic's writer may have deleted a copy meanwhile, after its entry was acknowledged.
        now = _set_aside(topic)
        lost = {ledger_id: (ids & now[ledger_id][0], file) for ledger_id, (ids, file) in lost.items()
                if ledger_id in now}
    count = sum(len(ids) for ids, _ in lost.values())
    some = ((Position(ledger_id, entry_id), file) for ledger_id, (ids, file) in sorted(lost.items())
            for entry_id in ids)
    for position, file in itertools.islice(some, _LOST_TOLD_MAX):
        yield Finding("relocated_lost", os.fspath(file), found=str(position))
    if count > _LOST_TOLD_MAX:
        yield Finding("relocated_lost", os.fspath(topic), found=f"{count - _LOST_TOLD_MAX} more")


def _set_aside(topic: Path) -> "dict[int, tuple[BitMap, Path]]":
    """Return the entries that cursors have set aside, by ledger, with the file of the last such cursor."""
    found: dict[int, tuple[BitMap, Path]] = {}
    for file in cursor_files(topic):
        try:
            aside = CursorState.read(file).acknowledged.aside
        except (CorruptManifestError, UnsupportedVersionError):
            continue        # cursor_corrupt reports it
        except FileNotFoundError:       # deleted meanwhile
            continue
        for ledger_id, ids in aside.items():
            found[ledger_id] = (found[ledger_id][0] | ids if ledger_id in found else ids), file
    return found


def _without(
    aside: "dict[int, tuple[BitMap, Path]]", copies: Collection[Position]
) -> "dict[int, tuple[BitMap, Path]]":
    """Those of which there is no copy."""
    found = {ledger_id: (ids.copy(), file) for ledger_id, (ids, file) in aside.items()}
    for position in copies:
        if position.ledger_id in found:
            found[position.ledger_id][0].discard(position.entry_id)
    return {ledger_id: (ids, file) for ledger_id, (ids, file) in found.items() if ids}


def _check(path: Path, copies: set[Position]) -> Iterator[Finding]:
    """Check one ledger. Adds the positions with an intact copy to `copies`."""
    log = path / LOG_NAME
    try:
        metadata = LedgerMetadata.read(path)
    except (NotALogError, FileNotFoundError):
        return
    except SeglogError as error:
        yield Finding("relocated_damaged", os.fspath(path), found=error.what)
        return
    if path.name.endswith(DELETED_SUFFIX) or metadata.end is None:
        return      # being removed or created
    version = metadata.properties.get(FORMAT_PROPERTY)
    if version != VERSION:
        yield Finding("relocated_damaged", os.fspath(path), found=f"version {version}", expected=f"version {VERSION}")
        return
    for damage in check_ledger(log).damages:
        yield Finding._of_damage("relocated_damaged", log, damage)
    number = -1
    try:
        with Ledger.open(path, held=True, read_only=True) as ledger:
            for number, position, _ in copies_in(ledger):
                entry = Entry(ledger.read(number)[HEADER.size :])
                damages = entry.damage()
                for what in damages:
                    yield Finding("relocated_damaged", os.fspath(log), offset=number, found=what)
                if not damages:
                    copies.add(position)
    except SeglogError as error:
        yield Finding("relocated_damaged", os.fspath(log), offset=number + 1, found=error.what)
