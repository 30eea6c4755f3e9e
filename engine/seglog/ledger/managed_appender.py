"""How a managed ledger is added to, rolled and trimmed.

    add       check (_kernels.entry_batch) ── into the last ledger (ledger.entry_writer) ── wait, without the lock
    roll      seal the last ledger ── make the next one ── manifest ── add to it
    trim      manifest without the ledgers ── delete them

What is refused changes nothing, and uses no index up. What fails from a write on leaves the managed ledger read-only:
opening it again finds out what is on the disk.
"""
import abc
import logging
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from seglog._kernels.entry_batch import CheckedEntries, check_entries
from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import Fsync
from seglog.errors import (
    InvalidArgumentError,
    LogClosedError,
    LogFailedError,
    RecordTooLargeError,
    StorageError,
)
from seglog.fs import lock
from seglog.fs.files import FileSystem
from seglog.ledger.broker_state import BrokerState, last_state
from seglog.ledger.config import TIMESTAMP, ManagedLedgerConfig
from seglog.ledger.entry_writer import SEGMENT, EntryWriter
from seglog.ledger.extent import LedgerExtent
from seglog.ledger.ledger import DELETED_SUFFIX, Ledger, delete_ledger, remove_directory
from seglog.ledger.managed_reader import ManagedReader
from seglog.ledger.manifest import LEDGER_PREFIX, LedgerInfo, Manifest, ledger_directory
from seglog.ledger.position import Position, Positions
from seglog.segment.write_gate import WriteGate

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("seglog")

R = TypeVar("R")

# What an entry may need in the file beside its bytes: the broker's part, the record, a batch.
_OVERHEAD_BYTES = 128


class ManagedGate(WriteGate):
    """What threads write to a managed ledger by. Whoever has the lock may wait for a ledger's files (its seal)."""

    def __init__(self, managed: "ManagedAppender") -> None:
        super().__init__(managed.path, "managed ledger")
        self._managed = weakref.ref(managed)        # which is let go of when nobody has it

    def mend(self) -> None:
        managed = self._managed()
        if managed is not None:
            managed._mend_from_disk()

    def settle(self, error: BaseException) -> None:
        managed = self._managed()
        if managed is not None and error is self.failure:
            managed._forget_what_was_tried()
        super().settle(error)


class ManagedAppender(ManagedReader):
    """The adds of a `ManagedLedger`, which opens and closes it."""

    def __init__(
        self, path: Path, config: ManagedLedgerConfig, fs: FileSystem, clock: Clock, fsync: Fsync, held: lock.Lock
    ) -> None:
        super().__init__(path, config, fs, clock)
        self.fsync = fsync
        self._held = held
        self._gate = ManagedGate(self)
        # Changed with its lock.
        self._interceptors = config.interceptors
        self._manifest = Manifest()
        self._state = BrokerState()
        # Replaced as a whole.
        self._listeners: tuple[Callable[[], None], ...] = ()

    # --- the broker's part -------------------------------------------------------------------

    @property
    def interceptors(self) -> frozenset[str]:
        """What is put in front of each entry from now on: "timestamp", "index". May be set at any time."""
        return self._interceptors

    @interceptors.setter
    def interceptors(self, names: Iterable[str]) -> None:
        self._interceptors = ManagedLedgerConfig.of({"brokerEntryMetadataInterceptors": names}).interceptors

    @property
    def last_index(self) -> int:
        """The index of the last message that got one; -1 where none did."""
        return self._state.index

    # --- adding ------------------------------------------------------------------------------

    def add_entry(self, headers_and_payload: "Buffer", n_messages: int | None = None) -> Position:
        """Add an entry as a producer sends it; where it stands. The broker's part is put in front here.

        `n_messages`: how many messages it holds; read from its metadata where it is not given.

        Raises InvalidArgumentError for an entry with a broker's part, CorruptRecordError for what is no entry,
        RecordTooLargeError (maxMessageSize), LogClosedError, LogFailedError. Whatever is raised, no index is used up.
        """
        data = headers_and_payload if type(headers_and_payload) is bytes else _as_bytes(headers_and_payload)
        return self._add(check_entries([data], [n_messages], self.config.max_message_bytes))[0]

    def add_entries(self, entries: "Iterable[Buffer | tuple[Buffer, int]]") -> Positions:
        """Add several, each alone or with the number of its messages, by one write a ledger; where they stand.

        All are checked before the first is added. Raises what `add_entry` raises.
        """
        listed = list(entries)
        limit = self.config.max_message_bytes
        try:
            checked = check_entries(cast("list[bytes]", listed), None, limit)
        except TypeError:
            # Back to slow path: not all of them are plain bytes.
            counts = [entry[1] if isinstance(entry, tuple) else None for entry in listed]
            plain = [_as_bytes(entry[0] if isinstance(entry, tuple) else entry) for entry in listed]
            checked = check_entries(plain, counts, limit)
        return self._add(checked) if len(checked) else Positions(())

    def _add(self, checked: CheckedEntries) -> Positions:
        runs, waits = self._gate.change(self._put_all, checked)
        for writer, number in waits:
            try:
                writer.await_put(number)
            except LogFailedError as error:
                self._fail(error)
                raise
        for listener in self._listeners:
            listener()
        return Positions(runs)

    def _put_all(self, checked: CheckedEntries) -> tuple[list[tuple[int, range]], list[tuple[EntryWriter, int]]]:
        self._held.check()
        count, done = len(checked), 0
        runs: list[tuple[int, range]] = []
        waits: list[tuple[EntryWriter, int]] = []
        self._gate.is_changing = True
        try:
            while done < count:
                ledger, writer = self._ledger_for(checked.size_between(done, done + 1))
                state = self._state
                stop = done + self._room(writer, checked, done)
                if TIMESTAMP in self._interceptors:
                    state = BrokerState(state.index, max(state.timestamp, self.clock.now_ms(), 0))
                first, number, index = writer.put_checked(checked, done, stop, state, self._interceptors)
                self._state = BrokerState(index, state.timestamp)   # only now: what is refused uses no index up
                ledger_id = ledger.ledger_id
                runs.append((ledger_id, range(first, first + stop - done)))
                waits.append((writer, number))
                done = stop
        except (RecordTooLargeError, InvalidArgumentError):
            self._gate.is_changing = False
            raise
        return runs, waits

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each add, in the thread that adds: it must be quick, and never raise."""
        self._gate.with_lock(self._set_listeners, lambda: (*self._listeners, listener))

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call it no more; nothing where it is not called."""
        if not self._held.held:
            return      # a forked child's: the lock may be that of a thread of its parent, for ever
        self._gate.with_lock(
            self._set_listeners, lambda: tuple(kept for kept in self._listeners if kept != listener)
        )

    def _set_listeners(self, changed: Callable[[], tuple[Callable[[], None], ...]]) -> None:
        self._listeners = changed()

    def _ledger_for(self, size_bytes: int) -> tuple[Ledger, EntryWriter]:
        """The last ledger; another one where that is full."""
        active = self._current().active
        if active is not None and not self._is_full(active, writer := active.writer, size_bytes):
            return active, writer
        active = shielded(self._roll)
        return active, active.writer

    def _is_full(self, active: Ledger, writer: EntryWriter, size_bytes: int) -> bool:
        """ManagedLedgerImpl.currentLedgerIsFull; and no ledger passes what a segment holds."""
        config = self.config
        if not writer.next_id:
            return False
        if size_bytes + _OVERHEAD_BYTES > SEGMENT.segment_bytes - writer.size_bytes:
            return True
        age_ms = self.clock.now_ms() - active.created_ms
        if age_ms >= config.max_rollover_ms:
            return True
        has_passed_quota = (
            writer.next_id >= config.max_entries_per_ledger or writer.size_bytes >= config.max_size_per_ledger_bytes
        )
        return has_passed_quota and age_ms >= config.min_rollover_ms

    def _room(self, writer: EntryWriter, checked: CheckedEntries, begin: int) -> int:
        """How many of the entries from `begin` on go into one write to this ledger: one at least."""
        count, config = len(checked) - begin, self.config
        bytes_left = min(config.max_size_per_ledger_bytes, SEGMENT.segment_bytes) - writer.size_bytes
        entries_left = max(config.max_entries_per_ledger - writer.next_id, 1)
        if count <= entries_left and checked.size_bytes + count * _OVERHEAD_BYTES <= bytes_left:
            return count
        room = 0
        while room < min(count, entries_left):
            bytes_left -= checked.size_between(begin + room, begin + room + 1) + _OVERHEAD_BYTES
            if room and bytes_left < 0:
                break
            room += 1
        return room

    def flush(self) -> None:
        """Return when all that was added is on the disk, whatever `fsync` is. Raises LogClosedError, LogFailedError."""
        active = self._gate.change(self._active)
        if active is not None:
            try:
                active.writer.flush()
            except LogClosedError:      # sealed meanwhile: it is on the disk
                return
            except LogFailedError as error:
                self._fail(error)
                raise

    def _active(self) -> Ledger | None:
        self._held.check()
        return self._current().active

    # --- rolling and trimming ----------------------------------------------------------------

    def roll(self) -> None:
        """Seal the last ledger; the next entry begins another one. Raises LogClosedError, LogFailedError."""
        self._change(self._seal_and_trim)

    def _seal_and_trim(self) -> None:
        self._seal_active()
        self._trim()

    def _roll(self) -> Ledger:
        """Begin another ledger, and trim what can go now."""
        self._seal_active()
        ledger_id = self._manifest.next_ledger_id
        ledger = Ledger.create(
            ledger_directory(self.path, ledger_id), ledger_id, fsync=self.fsync, fs=self.fs, clock=self.clock,
            held=True,
        )
        self._opened[ledger_id] = ledger        # to be let go of, whatever happens
        info = LedgerInfo(ledger_id, ledger.created_ms)
        self._put_manifest(*self._manifest.ledgers, info, next_ledger_id=ledger_id + 1)
        self._extent = LedgerExtent(self._manifest.ledgers, ledger)
        self._trim()
        return ledger

    def _seal_active(self) -> None:
        active = self._current().active
        if active is None:
            return
        active.seal()
        self._put_manifest(*self._manifest.ledgers[:-1], *sealed_info(active))
        self._extent = LedgerExtent(self._manifest.ledgers, None)
        if not active.entry_count:
            self._delete([active.ledger_id])

    def _put_manifest(self, *ledgers: LedgerInfo, next_ledger_id: int | None = None) -> None:
        manifest = self._manifest.with_(
            ledgers=ledgers, last_index=self._state.index, last_timestamp=self._state.timestamp
        )
        self._put(manifest if next_ledger_id is None else manifest.with_(next_ledger_id=next_ledger_id))

    def _put(self, manifest: Manifest) -> None:
        manifest.write(self.fs, self.path)
        self._manifest = manifest

    def trim(self) -> list[int]:
        """Delete the sealed ledgers, from the first on, that every cursor has passed and retention lets go; their ids.

        A ledger goes when its retention time is over, or when what is kept without it still has the retention size.
        Where there is no cursor and no retention is set, all are kept (Pulsar would delete them). Rolling does it by
        itself, and a cursor that passes a ledger.
        Raises LogClosedError, LogFailedError.
        """
        return self._change(self._trim)

    def _trim(self) -> list[int]:
        passed = self._passed()
        if passed is None:
            return []
        now_ms, kept_bytes = self.clock.now_ms(), self.size_bytes
        gone = []
        for info in self._manifest.ledgers:
            end = info.end
            if end is None or passed < Position(info.ledger_id, end.entries - 1):
                break
            kept_bytes -= end.length_bytes
            if not self._retention_is_over(now_ms - end.sealed_ms, kept_bytes):
                break
            gone.append(info.ledger_id)
        if gone:
            # Index and time stay those of the last sealed ledger: the entries behind it may not be on the disk.
            self._put(self._manifest.with_(ledgers=self._manifest.ledgers[len(gone) :]))
            self._extent = LedgerExtent(self._manifest.ledgers, self._current().active)
            self._delete(gone)
        return gone

    def _retention_is_over(self, age_ms: int, behind_bytes: int) -> bool:
        """Of a ledger that was sealed so long ago, and has so much behind it."""
        minutes, megabytes = self.config.retention_minutes, self.config.retention_mb
        if minutes == 0 and megabytes == 0:
            return True
        # Beside another limit a 0 says nothing, and neither does -1.
        return (minutes > 0 and age_ms >= minutes * 60_000) or (megabytes > 0 and behind_bytes >= megabytes << 20)

    @abc.abstractmethod
    def _passed(self) -> Position | None:
        """Up to where every cursor has come; None where nothing may go."""

    def _delete(self, ledger_ids: list[int]) -> None:
        """The manifest does not name them any more."""
        for ledger_id in ledger_ids:
            ledger = self._opened.pop(ledger_id, None)
            if ledger is not None:
                ledger.retire()
            try:
                delete_ledger(ledger_directory(self.path, ledger_id), self.fs)
            except StorageError as error:       # nothing hangs on it: opening again removes what is left
                logger.warning("ledger %s of %s is left over: %s", ledger_id, self.path, error)

    # --- refusing, failing, mending ----------------------------------------------------------

    def _refuse(self) -> None:
        """For before each change. Raises LogClosedError, LogFailedError, ForkedHandleError."""
        self._gate.check()
        self._held.check()

    def _change(self, section: Callable[[], R]) -> R:
        """A rare change, which no exception from outside reaches. Raises as `_refuse`.

        What goes wrong within leaves the disk in a state that only opening again finds out.
        """
        self._refuse()
        return shielded(self._gate.change, self._changing, section)

    def _changing(self, section: Callable[[], R]) -> R:
        self._held.check()
        self._gate.is_changing = True
        return section()

    def _fail(self, error: BaseException) -> None:
        """It is read-only from now on, by an error that was met without the lock."""
        if self._gate.failure is None:
            self._gate.fail(error)
            self._gate.settle(error)

    def _forget_what_was_tried(self) -> None:
        """Index and time are of what was added from now on: it does not go on."""
        active = self._extent and self._extent.active
        self._state = BrokerState(self._manifest.last_index, self._manifest.last_timestamp)
        if active:
            self._state = last_state(active.read, active.last_entry_id, self._state)

    def _mend_from_disk(self) -> None:
        """Take it up from the disk, as an opening does, if an exception left a change in the middle."""
        try:
            shielded(self._gate.with_lock, self._mend)
        except BaseException as error:
            if error is self._gate.failure:
                self._gate.settle(error)
            raise

    def _mend(self) -> None:
        gate = self._gate
        if not gate.is_torn or gate.failure is not None or self._extent is None:
            return
        gate.is_changing = True
        manifest = self._manifest = Manifest.read(self.path)
        self._state = BrokerState(manifest.last_index, manifest.last_timestamp)
        if manifest.ledgers and manifest.ledgers[-1].end is None:
            # This process may have it, with entries that somebody waits for.
            ledger = self._opened.get(manifest.ledgers[-1].ledger_id) or self._recovered(manifest.ledgers[-1])
            ledger.seal()
            self._put_sealed(ledger)
        self._remove_strays(os.listdir(self.path))
        self._extent = LedgerExtent(self._manifest.ledgers, None)
        gate.is_torn = False

    def _recovered(self, info: LedgerInfo) -> Ledger:
        """The last ledger as its writer left it, sealed."""
        ledger = Ledger.open(ledger_directory(self.path, info.ledger_id), fs=self.fs, clock=self.clock, held=True)
        if ledger.entry_count:
            self._opened[info.ledger_id] = ledger
        return ledger

    def _put_sealed(self, ledger: Ledger) -> None:
        """The manifest says where the last ledger ends, and what its entries came to."""
        self._state = last_state(ledger.read, ledger.last_entry_id, self._state)
        self._put_manifest(*self._manifest.ledgers[:-1], *sealed_info(ledger))
        if not ledger.entry_count:
            ledger.close()      # it goes: whoever has positions in it shall not come upon its files

    def _remove_strays(self, names: Iterable[str]) -> None:
        """Ledgers that were being made, or deleted."""
        known = {ledger_directory(self.path, info.ledger_id).name for info in self._manifest.ledgers}
        for name in sorted(names):
            number = name.removeprefix(LEDGER_PREFIX).removesuffix(DELETED_SUFFIX)
            if name in known or not name.startswith(LEDGER_PREFIX) or not number.isdigit():
                continue
            directory = self.path / name
            logger.info("%s: left by an interrupted change, removed", directory)
            ledger = self._opened.pop(int(number), None)
            if ledger is not None:
                ledger.abandon()
            if name.endswith(DELETED_SUFFIX):
                remove_directory(self.fs, directory)
            else:
                delete_ledger(directory, self.fs)


def sealed_info(ledger: Ledger) -> tuple[LedgerInfo, ...]:
    """The manifest's line of a ledger that was sealed; none where it is empty."""
    assert ledger.end is not None
    return (LedgerInfo(ledger.ledger_id, ledger.created_ms, ledger.end),) if ledger.end.entries else ()


def _as_bytes(entry: "Buffer") -> bytes:
    try:
        return bytes(memoryview(entry))
    except TypeError:
        raise InvalidArgumentError(f"an entry is bytes-like, not {type(entry).__name__}") from None
