"""The cursors of a managed ledger: opened, deleted, written, and up to where all of them have come."""
from collections.abc import Mapping
from dataclasses import replace

from seglog.errors import CorruptManifestError, InvalidArgumentError, SeglogError
from seglog.fs.aside import make_directories
from seglog.ledger.acknowledgements import Acknowledgements
from seglog.ledger.compacted_home import COMPACTION_CURSOR, slowest, tidy
from seglog.ledger.cursor import Cursor
from seglog.ledger.cursor_file import DIRECTORY, CursorState, cursor_files, cursor_path
from seglog.ledger.ledger_metadata import checked_properties
from seglog.ledger.managed_reader import ManagedReader
from seglog.ledger.managed_tail import ManagedTail
from seglog.ledger.position import EARLIEST, LATEST, Position, checked_position


class ManagedCursors:
    """By name. A cursor refers to `topic`, whose entries it reads, and to this. Changed with the tail's lock."""

    def __init__(self, tail: ManagedTail) -> None:
        self._tail = tail
        self.by_name: dict[str, Cursor] = {}
        # How often one was made or deleted: whatever was noted about all of them holds while this number stays.
        self.changes = 0

    def load(self, topic: ManagedReader) -> None:
        """Those that the directory has."""
        tail = self._tail
        extent, next_ledger_id = tail.current(), tail.manifest.next_ledger_id
        files = cursor_files(tail.path)
        if files:       # as the manifest's
            tail.fs.sync_directory(tail.path / DIRECTORY)
        for path in files:
            state = CursorState.read(path)
            if cursor_path(tail.path, state.name) != path:
                raise CorruptManifestError(f"the file of cursor {state.name!r} has another name", file=path)
            state = replace(state, acknowledged=state.acknowledged.within(extent, next_ledger_id))
            self.by_name[state.name] = Cursor(state.name, topic, self, state)
        tidy(tail.fs, tail.path, self.by_name.get(COMPACTION_CURSOR))

    def open(self, topic: ManagedReader, name: str, initial: object, properties: Mapping[str, str] | None) -> Cursor:
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

    def _open(self, topic: ManagedReader, name: str, begin: Position, properties: dict[str, str]) -> Cursor:
        tail = self._tail
        cursor = self.by_name.get(name)
        if cursor is None:
            extent = tail.current()
            mark_delete = extent.position(extent.before(begin) - 1) or EARLIEST
            state = CursorState(name, Acknowledgements(mark_delete), properties)
            make_directories(tail.fs, tail.path / DIRECTORY)
            state.write(tail.fs, tail.path)
            cursor = self.by_name[name] = Cursor(name, topic, self, state)
            self.changes += 1
        return cursor

    def delete(self, name: str) -> None:
        """See ManagedLedger.delete_cursor."""
        self._tail.change_whole(lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        tail = self._tail
        cursor = self.by_name.get(name)
        if cursor is None:
            tail.is_changing = False
            raise InvalidArgumentError(f"no cursor {name!r}")
        tail.fs.unlink(cursor_path(tail.path, name))
        tail.fs.sync_directory(tail.path / DIRECTORY)
        del self.by_name[name]
        self.changes += 1
        cursor.abandon()

    def passed(self) -> Position | None:
        """Up to where every cursor has come; None where nothing may go."""
        config = self._tail.config
        passed = LATEST if config.retention_minutes or config.retention_mb else None
        return slowest({name: cursor.mark_delete_position for name, cursor in self.by_name.items()}, passed)

    def flush(self) -> None:
        """What is due of each is on the disk."""
        for cursor in list(self.by_name.values()):
            cursor.flush()

    def close(self) -> None:
        """Durably."""
        for cursor in list(self.by_name.values()):
            cursor.close()

    def abandon(self) -> None:
        """Without a trace on the disk."""
        for cursor in self.by_name.values():
            cursor.abandon()

    # --- what a cursor asks for --------------------------------------------------------------

    def write_cursor(self, state: CursorState) -> None:
        """With the cursor's lock; adds go on meanwhile."""
        tail = self._tail
        tail.refuse()
        try:
            state.write(tail.fs, tail.path)
        except SeglogError as error:
            tail.fail_outside(error)
            raise

    def cursor_passed(self, before: Position, now: Position) -> None:
        """Trim if a ledger was passed."""
        tail = self._tail
        extent = tail.shown.extent
        if extent is None or not extent.infos or now.ledger_id < extent.ids[0]:
            return
        slot = extent.slot_of(max(before.ledger_id, extent.ids[0]))
        end = extent.infos[slot].end
        passes = now.ledger_id > before.ledger_id or (end is not None and now.entry_id == end.entries - 1)
        if passes and tail.refusal is None and tail.failure is None:
            tail.change(self._trim)

    def _trim(self) -> None:
        self._tail.is_changing = True
        self._tail.trim()
