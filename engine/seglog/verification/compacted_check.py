"""Checks the compacted ledger of a managed ledger: that it exists, intact, in order, with the right last message.

Only reads. Its findings have the codes of verification.findings.
"""
import os
from collections.abc import Iterator
from pathlib import Path

from seglog.errors import CorruptManifestError, SeglogError, UnsupportedVersionError
from seglog.ledger.compacted.compacted_ledger import CompactedLedger
from seglog.ledger.ledger import LOG_NAME
from seglog.ledger.ledger_recovery import check_ledger
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR, DIRECTORY, open_compacted, pointed_to
from seglog.ledger.managed.cursor_file import CursorState, cursor_path
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import EARLIEST
from seglog.verification.findings import Finding


def check_compacted(topic: Path) -> Iterator[Finding]:
    """Check the managed ledger in `topic`; yields nothing if it was never compacted. Raises StorageError,
    UnsupportedVersionError."""
    directory = topic / DIRECTORY
    file = cursor_path(topic, COMPACTION_CURSOR)
    if not directory.is_dir() and not file.exists():
        return
    try:
        cursor = CursorState.read(file) if file.exists() else None
    except CorruptManifestError:
        return      # cursor_corrupt reports it
    try:
        pointer = pointed_to(topic, cursor)
        compacted = None if pointer is None else open_compacted(topic, pointer)
    except UnsupportedVersionError:
        raise       # as for every other file: its contents are unknown here
    except SeglogError as error:
        yield Finding("compacted_lost", os.fspath(directory), found=error.what)
        return
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if compacted is None or path.name != compacted.path.name:
            yield Finding("compacted_stray", os.fspath(path))
    if compacted is not None:
        yield from check_compacted_ledger(compacted)


def check_compacted_ledger(compacted: CompactedLedger) -> Iterator[Finding]:
    """Check every entry of a compacted ledger, their order, and the last message."""
    log = compacted.path / LOG_NAME
    check = check_ledger(log)
    for damage in check.damages:
        yield Finding._of_damage("compacted_damaged", log, damage)
    if check.damages:
        return
    before, last, number = EARLIEST, MessagePosition.EARLIEST, -1
    try:
        for number, stored in enumerate(compacted):
            for what in stored.entry.damage():
                yield Finding("compacted_damaged", os.fspath(log), offset=number, found=what)
            if not before < stored.position <= compacted.horizon:
                expected = f"after {before}, up to {compacted.horizon}"
                yield Finding(
                    "compacted_damaged", os.fspath(log), offset=number, found=str(stored.position), expected=expected
                )
            before = stored.position
            last = last_message(stored.position, stored.entry) or last
    except SeglogError as error:
        yield Finding("compacted_damaged", os.fspath(log), offset=number + 1, found=error.what)
        return
    if last != compacted.get_last_message_position():
        said = str(compacted.get_last_message_position())
        yield Finding("compacted_damaged", os.fspath(compacted.path), found=said, expected=str(last))
