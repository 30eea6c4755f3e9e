"""The cursors of a managed ledger: opening, deleting and writing them, and the position of the slowest."""
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from seglog._kernels.shield import shielded
from seglog.errors import CorruptManifestError, InvalidArgumentError, SeglogError
from seglog.fs.aside import make_directories
from seglog.ledger.ledger_metadata import checked_properties
from seglog.ledger.managed.acknowledgements import Acknowledgements
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR, slowest, tidy
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.cursor_file import DIRECTORY, CursorState, cursor_files, cursor_path, with_journal
from seglog.ledger.managed.journal import JournalContents, read_journal
from seglog.ledger.managed.reader import ManagedReader
from seglog.ledger.managed.tail import ManagedTail
from seglog.ledger.position import EARLIEST, LATEST, Position, checked_position


class ManagedCursors:
    """Cursors by name. A cursor refers to `topic`, whose entries it reads, and to this. Guarded by the tail's lock."""

    def __init__(self, tail: ManagedTail) -> None:
        self._tail = tail
        self.by_name: dict[str, ManagedCursor] = {}
        # How often one was created or deleted: notes about all of them are valid until this number changes.
        self.changes = 0

    def load(self, topic: ManagedReader) -> None:
        """Load the cursors in the directory."""
        tail = self._tail
        extent, next_ledger_id = tail.current(), tail.manifest.next_ledger_id
        files = cursor_files(tail.path)
        journal: JournalContents | None = None
        if files:       # as with the manifest
            tail.fs.sync_directory(tail.path / DIRECTORY)
        for path in files:
            state = CursorState.read(path)
            if state.journal is not None:
                journal = journal or read_journal(tail.path)
                state = with_journal(state, journal, path)
            if cursor_path(tail.path, state.name) != path:
                raise CorruptManifestError(f"the file of cursor {state.name!r} has the wrong name", file=path)
            found = replace(state, acknowledged=state.acknowledged.within(extent, next_ledger_id))
            cursor = self.by_name[state.name] = ManagedCursor(state.name, topic, self, found)
            cursor._is_dirty = state.journal is not None    # the file may lack what only the journal has
            if state.acknowledged.reaches(next_ledger_id):
                # Put together from copies of different times. On the disk before a ledger gets one of these ids: the
                # next opening would take its entries for acknowledged.
                cursor._write()
        tidy(tail.fs, tail.path, self.by_name.get(COMPACTION_CURSOR))

    def open(
        self, topic: ManagedReader, name: str, initial: object, properties: Mapping[str, str] | None
    ) -> ManagedCursor:
        """See ManagedLedger.open_cursor."""
        tail = self._tail
        cursor_path(tail.path, name)
        if not isinstance(initial, Position) and initial not in ("latest", "earliest"):
            raise InvalidArgumentError(
                f'the initial position must be "latest", "earliest" or a Position, not {initial!r}'
            )
        if isinstance(initial, Position):
            begin = checked_position(initial)
        else:
            begin = LATEST if initial == "latest" else EARLIEST
        checked = checked_properties({} if properties is None else properties)
        return tail.change_whole(lambda: self._open(topic, name, begin, checked))

    def _open(self, topic: ManagedReader, name: str, begin: Position, properties: dict[str, str]) -> ManagedCursor:
        tail = self._tail
        cursor = self.by_name.get(name)
        if cursor is None:
            extent = tail.current()
            mark_delete = extent.position(extent.before(begin) - 1) or EARLIEST
            state = CursorState(name, Acknowledgements(mark_delete), properties)
            make_directories(tail.fs, tail.path / DIRECTORY)
            tail.with_room(partial(state.write, tail.fs, tail.path))
            cursor = self.by_name[name] = ManagedCursor(name, topic, self, state)
            self.changes += 1
        return cursor

    def delete(self, name: str) -> None:
        """See ManagedLedger.delete_cursor."""
        self._tail.refuse()
        shielded(self._delete, name, self.by_name.get(name))

    def _delete(self, name: str, cursor: ManagedCursor | None) -> None:
        if cursor is None:
            raise InvalidArgumentError(f"there is no cursor {name!r}")
        # Its lock: otherwise a background write that is under way would bring the file back.
        with cursor._lock:
            self._tail.change_shielded(lambda: self._remove(name, cursor))

    def _remove(self, name: str, cursor: ManagedCursor) -> None:
        tail = self._tail
        if self.by_name.get(name) is not cursor:        # another thread was faster
            raise InvalidArgumentError(f"there is no cursor {name!r}")
        with tail.changing():
            tail.fs.unlink(cursor_path(tail.path, name))
            tail.fs.sync_directory(tail.path / DIRECTORY)
            del self.by_name[name]
            self.changes += 1
            cursor._abandon()

    def passed(self) -> Position | None:
        """Return the position that every cursor has passed; None if nothing may be trimmed."""
        config = self._tail.config
        passed = LATEST if config.retention_minutes or config.retention_mb else None
        return slowest({name: cursor.mark_delete_position for name, cursor in self.by_name.items()}, passed)

    def flush(self) -> None:
        """Write what is due of each cursor to the disk."""
        for cursor in list(self.by_name.values()):
            cursor.flush()

    def close(self) -> None:
        """Flush and close the cursors."""
        for cursor in list(self.by_name.values()):
            cursor.close()

    def abandon(self) -> None:
        """Abandon all cursors without writing."""
        for cursor in self.by_name.values():
            cursor._abandon()

    def wait_for_writes(self) -> None:
        """Return when no thread writes a cursor's file."""
        for cursor in list(self.by_name.values()):
            with cursor._lock:
                pass

    def tell(self) -> None:
        """After closing: raise LogFailedError if acknowledgements that were accepted could not be stored."""
        failure = self._tail.failure
        names = sorted(name for name, cursor in self.by_name.items() if cursor._has_unstored)
        if failure is not None and names:
            error = self._tail.failed(failure)
            error.what = f"acknowledgements of cursor {', '.join(names)} were not stored: {error.what}"
            error.hint = f"their entries are delivered again; {error.hint}"
            raise error

    # --- what a cursor calls --------------------------------------------------------------

    def write_cursor(self, state: CursorState) -> None:
        """Write a cursor's file; with the cursor's lock. Adds continue meanwhile."""
        tail = self._tail
        tail.refuse()
        try:
            tail.with_room(partial(state.write, tail.fs, tail.path))
        except SeglogError as error:
            tail.fail_outside(error)
            raise

    def cursor_passed(self, before: Position, now: Position) -> None:
        """Trim if the cursor passed a ledger."""
        tail = self._tail
        extent = tail.shown.extent
        if extent is None or not extent.infos or now.ledger_id < extent.ids[0]:
            return
        if before.ledger_id == extent.ids[-1] and extent.infos[-1].end is None:
            return      # it is in the ledger that grows
        slot = extent.slot_of(max(before.ledger_id, extent.ids[0]))
        end = extent.infos[slot].end
        passes = now.ledger_id > before.ledger_id or (end is not None and now.entry_id == end.entries - 1)
        if passes and tail.refusal is None and tail.failure is None:
            tail.change(self._trim)

    def _trim(self) -> None:
        with self._tail.changing():
            self._tail.trim()
