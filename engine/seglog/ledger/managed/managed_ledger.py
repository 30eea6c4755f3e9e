"""A managed ledger: a topic's entries, in a list of ledgers that grows at its end and is trimmed at its start.

    with ManagedLedger("topics/orders") as topic:
        position = topic.add_entry(headers_and_payload)
        cursor = topic.open_cursor("billing", initial="earliest")
        for entry in cursor.read(100):
            ...
            cursor.acknowledge(entry.position)

    ManagedReader ── ManagedLedger ─┬─ ManagedTail       its last ledger and the manifest: rolled, trimmed, reloaded
                                    ├─ ManagedAppender   its adds
                                    └─ ManagedCursors    its subscriptions

One process writes it, guarded by a lock; its threads share it. The parts are in the files of these names. For what its
directory contains, see docs/formats/managed_ledger.md. After a crash at any durable step, the next opening repairs it
(ManagedTail.open).

A ledger in the directory that the manifest does not name has no entry that was acknowledged to a caller.
"""
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar, get_args

from seglog._kernels.shield import shielded
from seglog._kernels.unclosed import Unclosed
from seglog.clock import Clock, checked_clock
from seglog.config import Fsync
from seglog.errors import InvalidArgumentError, NotALogError
from seglog.format.directory_kinds import refuse_other_place
from seglog.fs import lock
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.refusals import as_path, refusals
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.ledger_metadata import changed_properties
from seglog.ledger.managed.appender import ManagedAppender
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.cursors import ManagedCursors
from seglog.ledger.managed.journal import give_back_reserve
from seglog.ledger.managed.manifest import FILE_NAME, NO_MANIFEST_HINT
from seglog.ledger.managed.reader import ManagedReader
from seglog.ledger.managed.tail import ManagedTail
from seglog.ledger.position import Position, Positions
from seglog.segment.positions import LostRange
from seglog.threads.late_close import close_in_order
from seglog.threads.maintenance import MaintenanceThread

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


class OpenManagedLedger(ManagedReader, Unclosed):
    """A managed ledger that is open for writing. `seglog.pulsar.ManagedLedger` adds compaction by itself, and documents
    arguments and errors."""

    # Every read uses these; the other attributes are in a dict, since a compiled base makes no room for them.
    __slots__ = ("_opened", "_shown", "config")

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
            raise InvalidArgumentError(f'fsync must be "batch", "interval" or "never", not {fsync!r}')
        path, fs, clock = Path(os.path.abspath(as_path(path))), checked_fs(fs), checked_clock(clock)
        with refusals("list", path):
            refuse_other_place(path, NotALogError(
                f"not a managed ledger: it has no {FILE_NAME}", file=path,
                hint="pass a topic's directory, or one that is new or empty",
            ))
        if not create and not (path / FILE_NAME).exists():
            raise NotALogError(f"not a managed ledger: it has no {FILE_NAME}", file=path, hint=NO_MANIFEST_HINT)
        make_directories(fs, path)
        super().__init__(path, config, fs, clock)
        self.fsync = fsync
        self._maintenance: MaintenanceThread | None = None
        # Replaced as a whole.
        self._chores: tuple[Callable[[], None], ...] = ()
        self._shared_parts: dict[type, object] = {}
        taken: list[lock.Lock] = []     # released wherever an interrupt comes
        try:
            shielded(lambda: taken.append(lock.lock_partition(fs, path)))
            self._tail = tail = ManagedTail(path, self._shown, config, fs, clock, fsync, taken[0])
            self._appender = ManagedAppender(tail)
            self._cursors = ManagedCursors(tail)
            give_back_reserve(fs, path)
            # What recovery removed from the last ledger at opening, or None.
            self.lost: LostRange | None = tail.open()
            self._cursors.load(self)
            tail.passed = self._cursors.passed
            if fsync == "interval" or config.compaction_threshold_bytes:
                shielded(self._start_maintenance)
            self._is_unclosed = True
        except BaseException:
            shielded(self._give_up, taken)
            raise

    def _start_maintenance(self) -> None:
        config = self.config
        period_s = config.flush_ms / 1000 if self.fsync == "interval" else config.compaction_monitor_s
        self._maintenance = MaintenanceThread(self, period_s=period_s, linger_s=period_s)

    def _give_up(self, taken: list[lock.Lock]) -> None:
        """Release everything that a failed opening took."""
        self._is_unclosed = False
        if self._maintenance is not None:
            self._maintenance.stop()
        self._shown.extent = None
        for held in taken:
            held.release()

    def __repr__(self) -> str:
        extent = self._shown.extent
        if extent is None:
            return f"<ManagedLedger {self.path.name}: closed>"
        return f"<ManagedLedger {self.path.name}: {extent.count} entries in {len(extent.infos)} ledgers>"

    # --- state --------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._shown.extent is None

    @property
    def properties(self) -> dict[str, str]:
        """A copy."""
        return dict(self._tail.manifest.properties)

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, remove those that are None, in one durable step. Raises LogClosedError, LogFailedError."""
        self._tail.change_shielded(lambda: _put_properties(self._tail, changes))

    def new_ledger_id(self) -> int:
        """Return an id that no ledger here ever had or will have, even after a crash: for a ledger of the caller."""
        return self._tail.change_whole(lambda: _take_ledger_id(self._tail))

    # --- adding ------------------------------------------------------------------------------
    # ledger.managed.appender checks and writes entries, and waits for them.

    @property
    def interceptors(self) -> frozenset[str]:
        """What broker metadata entries get from now on: "timestamp", "index". May be set at any time."""
        return self._appender.interceptors

    @interceptors.setter
    def interceptors(self, names: Iterable[str]) -> None:
        self._appender.interceptors = ManagedLedgerConfig.of({"brokerEntryMetadataInterceptors": names}).interceptors

    @property
    def last_index(self) -> int:
        """The index of the last message that got one; -1 if none did."""
        return self._tail.state.index

    def add_entry(self, headers_and_payload: "Buffer", n_messages: int | None = None) -> Position:
        """Add an entry as a producer sends it, and return its position. Broker metadata is added here.

        `n_messages`: the entry's number of messages; read from its metadata if not given.

        Raises InvalidArgumentError for bytes that are not an entry, and for an entry with broker metadata;
        RecordTooLargeError (maxMessageSize), LogClosedError, LogFailedError. A failed add uses up no index.
        """
        return self._appender.add_entry(headers_and_payload, n_messages)

    def add_entries(self, entries: "Iterable[Buffer | tuple[Buffer, int]]") -> Positions:
        """Add several entries, each alone or with its number of messages, by one write per ledger; return their
        positions.

        All are checked before the first is added. Raises what `add_entry` raises.
        """
        return self._appender.add_entries(entries)

    def flush(self) -> None:
        """Return when all added entries are on the disk, with every `fsync`. Raises LogClosedError, LogFailedError."""
        self._appender.flush()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each add, in the adding thread: it must be quick, and never raise."""
        self._appender.listen(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`; has no effect if it is not registered."""
        self._appender.unlisten(listener)

    # --- rolling and trimming ----------------------------------------------------------------

    def roll(self) -> None:
        """Seal the last ledger; the next entry starts a new one. Raises LogClosedError, LogFailedError."""
        self._tail.change_whole(self._tail.roll)

    def trim(self) -> list[int]:
        """Delete the first sealed ledgers that every cursor has passed and that need not be retained; return their ids.

        A ledger is deleted when its retention time is over, or if the ledgers after it still have the retention size.
        Without any cursor and retention settings, all are kept (Pulsar would delete them). A roll does this
        automatically, and so does a cursor that passes a ledger.
        Raises LogClosedError, LogFailedError.
        """
        return self._tail.change_whole(self._tail.trim)

    # --- cursors -----------------------------------------------------------------------------

    @property
    def cursors(self) -> dict[str, ManagedCursor]:
        """All cursors, by name."""
        return dict(self._cursors.by_name)

    @property
    def cursor_changes(self) -> int:
        """How often a cursor was created or deleted since this was opened."""
        return self._cursors.changes

    def open_cursor(
        self,
        name: str,
        initial: Position | Literal["latest", "earliest"] = "latest",
        properties: Mapping[str, str] | None = None,
    ) -> ManagedCursor:
        """Return the cursor of that name, created durably if there is none: always the same object.

        A new one begins after the last entry, at the first one, or at a position, with `properties`. Raises
        InvalidArgumentError for an empty or too long name, LogClosedError, LogFailedError.
        """
        return self._cursors.open(self, name, initial, properties)

    def delete_cursor(self, name: str) -> None:
        """Delete a subscription's cursor, durably. Raises InvalidArgumentError if there is none."""
        self._cursors.delete(name)

    # --- background work ---------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Do what is due by the clock: the sync of fsync="interval", the roll of an old ledger, trimming, cursors.

        A thread calls it with fsync="interval", and if there is a compaction threshold. Raises LogClosedError,
        LogFailedError.
        """
        if self.fsync == "interval":
            self.flush()
        self._tail.change_whole(self._tail.roll_if_full)
        self._cursors.flush()
        for chore in self._chores:
            chore()

    def _add_chore(self, chore: Callable[[], None]) -> None:
        """Call `chore` at the end of each _maintain() from now on. It must not raise."""
        self._chores = (*self._chores, chore)

    def _remove_chore(self, chore: Callable[[], None]) -> None:
        """Stop calling `chore`; has no effect if it is not registered."""
        self._chores = tuple(kept for kept in self._chores if kept != chore)

    def _shared(self, kind: type[T]) -> T:
        """Return the object of this class that all users of this managed ledger share; the first call makes it."""
        found: T = self._shared_parts.setdefault(kind, kind())  # type: ignore[assignment]
        return found

    def _write_lingering(self) -> None:
        """Do nothing: no records linger here."""

    def _stop_lingering(self) -> None:
        """Do nothing: no records linger here."""

    # --- closing -----------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise LogClosedError if it was closed, ForkedHandleError in a forked child."""
        self._current()
        self._tail.held.check()

    def _check_writable(self) -> None:
        """Raise LogFailedError if a failed write or sync left it read-only."""
        self._tail.refuse()

    def close(self) -> None:
        """Make everything durable, seal the last ledger, and close. Idempotent; what was read stays readable.

        After a failed write or sync it only closes: the next opening recovers. The same in a forked child, whose parent
        continues. Raises LogFailedError if making it durable fails now, if it failed in the background and no caller
        has got that error, and if acknowledgements were accepted and never stored: it is closed then, too. A signal's
        handler may call it: if it interrupts a call of the same thread, it is closed right after that.
        """
        if not self.closed:
            close_in_order(self._close_once, self.path)

    def _close_once(self) -> None:
        try:
            self._close()
        finally:
            if self._maintenance is not None:
                self._maintenance.stop()

    def _close(self) -> None:
        tail = self._tail
        is_ours = tail.held.held        # not in a forked child
        try:
            tail.close(self._cursors.close)
        finally:
            self._shown.extent = None           # from here on, nothing begins
            if is_ours:
                # After a failure nothing above waited for a write under way, of a cursor, the manifest or a ledger. It
                # must not change what the next process to open this writes.
                self._cursors.wait_for_writes()
                tail.wait_for_writes()
            self._let_go()
        if is_ours:
            tail.tell()
            self._cursors.tell()

    def _heard(self) -> None:
        """Note that the caller raises a failure in `shield.unheard` itself: closing need not raise it again."""
        self._tail.heard()

    def _let_go(self) -> None:
        self._shown.extent = None
        self._is_unclosed = False
        self._cursors.abandon()
        self._tail.let_go()

    def _collected(self) -> None:
        """Warn: it was garbage-collected without being closed."""
        if os is None:      # the interpreter has ended, and its modules are empty
            return
        if not self.closed and self._tail.held.held:
            said = repr(self)
            try:
                if self._maintenance is not None:
                    self._maintenance.stop()
                self._let_go()
            finally:
                warnings.warn(
                    f"{said} was not closed: its next opening recovers", ResourceWarning, stacklevel=2, source=self
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _put_properties(tail: ManagedTail, changes: Mapping[str, str | None]) -> None:
    properties = changed_properties(tail.manifest.properties, changes)      # refuses a wrong property
    with tail.changing():
        tail.put(tail.manifest.with_(properties=properties))


def _take_ledger_id(tail: ManagedTail) -> int:
    ledger_id = tail.manifest.next_ledger_id
    tail.put(tail.manifest.with_(next_ledger_id=ledger_id + 1))
    return ledger_id
