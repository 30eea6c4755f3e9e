"""Goes on with the journal of a queue that is damaged or missing: what can be read of it becomes the next journal."""
from pathlib import Path

from seglog.errors import CorruptJournalError
from seglog.fs import lock
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.ledger.managed.cursor_file import CursorState, cursor_files, with_journal
from seglog.ledger.managed.journal import (
    FILE_NAME,
    Change,
    JournalContents,
    JournalKind,
    QueueJournal,
    read_journal,
    whole_records,
)
from seglog.logger import Logger

logger = Logger("seglog")


def mend_journal(fs: FileSystem, directory: Path, subscription: str) -> bool:
    """Replace the journal of a subscription's managed ledger, if it is damaged or not that of its cursor, by one with
    the records that are whole. Returns whether it was.

    What the other records said is lost: jobs are delivered again, attempts restart at 1. Raises LogLockedError,
    StorageError, UnsupportedVersionError.
    """
    held = lock.lock_partition(fs, directory)
    try:
        states = [(path, CursorState.read(path)) for path in cursor_files(directory)]
        try:
            contents = read_journal(directory)
            for path, state in states:
                with_journal(state, contents, path)
            return False
        except CorruptJournalError as error:
            logger.warning("%s", error)
        found = _whole_of(directory)
        covered = [state.journal[0] for _, state in states if state.journal is not None]
        changes = [
            Change(record.kind, record.items, record.at_ms, record.holder, record.text)
            for record in found.records
            if record.subscription == subscription and record.kind is not JournalKind.SUBSCRIPTION
        ]
        # Records that list keys may be among those that are lost: let all entries be looked at.
        changes.append(Change(JournalKind.UNIQUE_TO, []))
        QueueJournal(fs, directory, max([found.journal_id, *covered]) + 1, subscription, changes, "batch").close()
        return True
    finally:
        held.release()


def _whole_of(directory: Path) -> JournalContents:
    try:
        raw = read_file(directory / FILE_NAME)
    except FileNotFoundError:
        raw = b""
    return whole_records(raw)
