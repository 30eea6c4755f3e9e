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


def mend_journal(fs: FileSystem, directory: Path) -> bool:
    """Replace the journal of a managed ledger, if it is damaged or not that of its cursors, by one with the records
    that are whole. Returns whether it was.

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
        numbers = {name: number for number, name in enumerate(dict.fromkeys(
            [*(state.name for _, state in states if state.journal is not None),
             *(record.subscription for record in found.records)]
        ))}
        changes = [
            Change(record.kind, record.items, record.at_ms, record.holder, record.text, numbers[record.subscription])
            for record in found.records if record.kind is not JournalKind.SUBSCRIPTION
        ]
        # Records that list keys may be among those that are lost: let all entries be looked at.
        changes += [Change(JournalKind.UNIQUE_TO, [], subscription=number) for number in numbers.values()]
        QueueJournal(fs, directory, max([found.journal_id, *covered]) + 1, list(numbers), changes, "batch").close()
        return True
    finally:
        held.release()


def _whole_of(directory: Path) -> JournalContents:
    try:
        raw = read_file(directory / FILE_NAME)
    except FileNotFoundError:
        raw = b""
    return whole_records(raw)
