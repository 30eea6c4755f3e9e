"""A managed ledger: a topic's entries, in a list of ledgers that grows at its end and is trimmed at its start.

    with ManagedLedger("topics/orders") as topic:
        position = topic.add_entry(headers_and_payload)
        cursor = topic.open_cursor("billing", initial="earliest")
        for entry in cursor.read(100):
            ...
            cursor.acknowledge(entry.position)

One process writes it, kept alone by a lock; its threads share it. How it is read: ledger.managed_reader. How it is
added to, rolled and trimmed: ledger.managed_appender. What its directory holds: docs/formats/managed_ledger.md.
A crash after any durable step is put right by who opens it next:

    open      recover and seal a ledger that was not sealed ── manifest ── delete what it does not name

A ledger of the directory that the manifest does not name holds no entry that anybody was promised.
"""
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from seglog._kernels.shield import shielded
from seglog.clock import Clock, SystemClock
from seglog.config import Fsync
from seglog.errors import (
    CorruptManifestError,
    InvalidArgumentError,
    LogClosedError,
    NotALogError,
    SeglogError,
)
from seglog.fs import lock
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.ledger.acknowledgements import Acknowledgements
from seglog.ledger.broker_state import BrokerState
from seglog.ledger.compacted_home import COMPACTION_CURSOR, slowest, tidy
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.cursor import Cursor
from seglog.ledger.cursor_file import DIRECTORY as CURSORS
from seglog.ledger.cursor_file import CursorState, cursor_files, cursor_path
from seglog.ledger.extent import LedgerExtent
from seglog.ledger.ledger_metadata import changed_properties, checked_properties
from seglog.ledger.managed_appender import ManagedAppender
from seglog.ledger.manifest import FILE_NAME, LEDGER_PREFIX, Manifest, ledger_directory
from seglog.ledger.position import EARLIEST, LATEST, Position
from seglog.segment.answers import LostRange
from seglog.segment.housekeeping import Housekeeping


class ManagedLedger(ManagedAppender):
    """Open a managed ledger's directory, and make it where it is not there.

    `config`: Pulsar's keys (docs/config.md). `fsync`: when an entry is on the disk: "batch" when it was added,
    concurrent adds sharing one sync; "interval" after flush.ms; "never" when the system writes it or a ledger is
    sealed. `create=False` refuses where there is none. Use it as a context manager, or close it.

    Raises LogLockedError where somebody writes it, NotALogError, CorruptManifestError, UnsupportedVersionError,
    StorageError; CorruptRecordError where the last ledger was synced entry by entry and is damaged in the middle.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | ManagedLedgerConfig | None = None,
        fsync: Fsync = "batch",
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        create: bool = True,
    ) -> None:
        if not isinstance(config, ManagedLedgerConfig):
            config = ManagedLedgerConfig.of(config or {})
        if fsync not in get_args(Fsync):
            raise InvalidArgumentError(f'fsync is "batch", "interval" or "never", not {fsync!r}')
        path, fs, clock = Path(os.path.abspath(path)), fs or OsFileSystem(), clock or SystemClock()
        if not create and not (path / FILE_NAME).exists():
            raise NotALogError(f"no managed ledger: it has no {FILE_NAME}", file=path)
        make_directories(fs, path)
        taken: list[lock.Lock] = []     # let go of wherever an interrupt comes
        self._housekeeping: Housekeeping | None = None
        # Replaced as a whole.
        self._chores: tuple[Callable[[], None], ...] = ()
        try:
            shielded(lambda: taken.append(lock.lock_partition(fs, path)))
            super().__init__(path, config, fs, clock, fsync, taken[0])
            # What recovery cut from the last ledger when it was opened, or None.
            self.lost: LostRange | None = None
            self._cursors: dict[str, Cursor] = {}
            self._open()
            if fsync == "interval" or config.compaction_threshold_bytes:
                shielded(self._start_housekeeping)
        except BaseException:
            shielded(self._give_up, taken)
            raise

    # --- opening -----------------------------------------------------------------------------

    def _start_housekeeping(self) -> None:
        config = self.config
        period_s = config.flush_ms / 1000 if self.fsync == "interval" else config.compaction_monitor_s
        self._housekeeping = Housekeeping(self, self.path.name, period_s=period_s, linger_s=period_s)

    def _give_up(self, taken: list[lock.Lock]) -> None:
        """Hold nothing of what an opening took that came to no managed ledger."""
        if self._housekeeping is not None:
            self._housekeeping.stop()
        self._extent = None
        for held in taken:
            held.release()

    def _open(self) -> None:
        names = sorted(name for name in os.listdir(self.path) if name.startswith(LEDGER_PREFIX))
        if (self.path / FILE_NAME).exists():
            manifest = Manifest.read(self.path)
        else:
            if names:
                raise CorruptManifestError(f"{len(names)} ledgers and no {FILE_NAME}", file=self.path)
            manifest = Manifest()
            manifest.write(self.fs, self.path)
        self._manifest = manifest
        self._state = BrokerState(manifest.last_index, manifest.last_timestamp)
        present = set(names)
        for info in manifest.ledgers:
            if ledger_directory(self.path, info.ledger_id).name not in present:
                raise CorruptManifestError(
                    f"ledger {info.ledger_id} is not there", file=ledger_directory(self.path, info.ledger_id)
                )
        if manifest.ledgers and manifest.ledgers[-1].end is None:
            ledger = self._recovered(manifest.ledgers[-1])
            self.lost = ledger.lost
            self._put_sealed(ledger)
        self._remove_strays(names)
        self._extent = LedgerExtent(self._manifest.ledgers, None)
        for path in cursor_files(self.path):
            state = CursorState.read(path)
            if cursor_path(self.path, state.name) != path:
                raise CorruptManifestError(f"the file of cursor {state.name!r} has another name", file=path)
            state = replace(state, acknowledged=state.acknowledged.within(self._extent, manifest.next_ledger_id))
            self._cursors[state.name] = Cursor(state.name, self, self, state)
        tidy(self.fs, self.path, self._cursors.get(COMPACTION_CURSOR))

    def __repr__(self) -> str:
        extent = self._extent
        if extent is None:
            return f"<ManagedLedger {self.path.name}: closed>"
        return f"<ManagedLedger {self.path.name}: {extent.count} entries in {len(extent.infos)} ledgers>"

    # --- what it is --------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._extent is None

    @property
    def properties(self) -> dict[str, str]:
        """A copy."""
        return dict(self._manifest.properties)

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, remove those that are None: all of it, durably. Raises LogClosedError, LogFailedError."""
        self._change(lambda: self._put_properties(changes))

    def _put_properties(self, changes: Mapping[str, str | None]) -> None:
        self._gate.is_changing = False      # a wrong property is refused
        properties = changed_properties(self._manifest.properties, changes)
        self._gate.is_changing = True
        self._put(self._manifest.with_(properties=properties))

    def new_ledger_id(self) -> int:
        """An id that no ledger here ever had or will have, also after a crash: for a ledger of the caller's own."""
        return self._change(self._take_ledger_id)

    def _take_ledger_id(self) -> int:
        ledger_id = self._manifest.next_ledger_id
        self._put(self._manifest.with_(next_ledger_id=ledger_id + 1))
        return ledger_id

    # --- cursors -----------------------------------------------------------------------------

    @property
    def cursors(self) -> dict[str, Cursor]:
        """By name, all that there are."""
        return dict(self._cursors)

    def open_cursor(
        self,
        name: str,
        initial: Position | Literal["latest", "earliest"] = "latest",
        properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The cursor of that name, made where there is none, durably: the same object to all who ask.

        A new one begins behind the last entry, at the first one, or at a position, with `properties`.
        Raises InvalidArgumentError for a name of 0 or too many characters, LogClosedError, LogFailedError.
        """
        cursor_path(self.path, name)
        if not isinstance(initial, Position) and initial not in ("latest", "earliest"):
            raise InvalidArgumentError(f'it begins at "latest", "earliest" or a Position, not {initial!r}')
        begin = {"latest": LATEST, "earliest": EARLIEST}.get(str(initial), initial)
        assert isinstance(begin, Position)
        return self._change(lambda: self._cursor(name, begin, checked_properties(properties or {})))

    def _cursor(self, name: str, begin: Position, properties: dict[str, str]) -> Cursor:
        cursor = self._cursors.get(name)
        if cursor is None:
            extent = self._current()
            mark_delete = extent.position(extent.before(begin) - 1) or EARLIEST
            state = CursorState(name, Acknowledgements(mark_delete), properties)
            make_directories(self.fs, self.path / CURSORS)
            state.write(self.fs, self.path)
            cursor = self._cursors[name] = Cursor(name, self, self, state)
        return cursor

    def delete_cursor(self, name: str) -> None:
        """Forget a subscription, durably. Raises InvalidArgumentError where there is none."""
        self._change(lambda: self._delete_cursor(name))

    def _delete_cursor(self, name: str) -> None:
        cursor = self._cursors.get(name)
        if cursor is None:
            self._gate.is_changing = False
            raise InvalidArgumentError(f"no cursor {name!r}")
        self.fs.unlink(cursor_path(self.path, name))
        self.fs.sync_directory(self.path / CURSORS)
        del self._cursors[name]
        cursor.abandon()

    def write_cursor(self, state: CursorState) -> None:
        """For the cursors, whose lock is held; adds go on meanwhile."""
        self._refuse()
        try:
            state.write(self.fs, self.path)
        except SeglogError as error:
            self._fail(error)
            raise

    def cursor_passed(self, before: Position, now: Position) -> None:
        """For the cursors: trim, where a ledger was passed."""
        extent = self._extent
        if extent is None or not extent.infos or now.ledger_id < extent.ids[0]:
            return
        slot = extent.slot_of(max(before.ledger_id, extent.ids[0]))
        end = extent.infos[slot].end
        passes = now.ledger_id > before.ledger_id or (end is not None and now.entry_id == end.entries - 1)
        if passes and self._gate.refusal is None and self._gate.failure is None:
            self._gate.change(self._trim_passed)

    def _trim_passed(self) -> None:
        self._gate.is_changing = True
        self._trim()

    def _passed(self) -> Position | None:
        passed = LATEST if self.config.retention_minutes or self.config.retention_mb else None
        return slowest({name: cursor.mark_delete_position for name, cursor in self._cursors.items()}, passed)

    # --- by itself ---------------------------------------------------------------------------

    def keep_house(self) -> None:
        """What is due by the clock: the sync of fsync="interval", the roll of an old ledger, trimming, cursors.

        A thread calls it with fsync="interval", and where there is a compaction.threshold. Raises LogClosedError,
        LogFailedError.
        """
        if self.fsync == "interval":
            self.flush()
        self._change(self._roll_if_full)
        for cursor in self.cursors.values():
            cursor.flush()
        for chore in self._chores:
            chore()

    def add_chore(self, chore: Callable[[], None]) -> None:
        """Call `chore` in keep_house() from now on, last. It must not raise."""
        self._chores = (*self._chores, chore)

    def remove_chore(self, chore: Callable[[], None]) -> None:
        """Call it no more; nothing where it is not called."""
        self._chores = tuple(kept for kept in self._chores if kept != chore)

    def _roll_if_full(self) -> None:
        active = self._current().active
        if active is not None and self._is_full(active, active.writer, 0):
            self._seal_active()
        self._trim()

    def write_lingering(self) -> None:
        """Nothing lingers."""

    # --- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, seal the last ledger, and let go. Twice is fine; what was read stays readable.

        After a failed write or sync it only lets go: the next opening recovers. So it does in a forked child, whose
        parent goes on. Raises LogFailedError where making it durable fails now, or failed in the background and no
        caller has met that: everything is let go of then, too.
        """
        if self._extent is None:
            return
        try:
            shielded(self._close)
        finally:
            if self._housekeeping is not None:
                self._housekeeping.stop()

    def _close(self) -> None:
        gate = self._gate
        is_ours = self._held.held       # not in a forked child
        try:
            if gate.failure is None and is_ours:
                for cursor in self.cursors.values():
                    cursor.close()
                gate.with_lock(self._finish)
        except BaseException as error:
            if error is gate.failure:
                gate.settle(error)
            raise
        finally:
            self._let_go()
        if is_ours:
            gate.tell()

    def _finish(self) -> None:
        self._mend()
        if self._extent is not None:
            self._gate.is_changing = True
            self._seal_active()

    def _let_go(self) -> None:
        self._extent = None
        if self._gate.failure is None:
            self._gate.refusal = self._closed_error
        for cursor in self._cursors.values():
            cursor.abandon()
        try:
            for ledger in list(self._opened.values()):
                ledger.abandon()
        finally:
            self._held.release()

    def _closed_error(self) -> LogClosedError:
        return LogClosedError("the managed ledger was closed", file=self.path)

    def __del__(self) -> None:
        if getattr(self, "_extent", None) is not None and self._held.held:
            warnings.warn(
                f"{self!r} was not closed: its next opening recovers", ResourceWarning, stacklevel=2, source=self
            )
            if self._housekeeping is not None:
                self._housekeeping.stop()
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
