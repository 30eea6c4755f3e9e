"""The growing end of a managed ledger: its last ledger and the manifest; rolling, trimming, reloading, closing.

    roll      seal the last ledger ── create the next one ── manifest
    trim      manifest without the ledgers ── delete them
    open      recover and seal a ledger that was not sealed ── manifest ── delete what it does not name

ledger.managed.appender adds entries to the last ledger. For lock, refusal and failure, see threads.write_gate. A
failure from a write on leaves the managed ledger read-only: opening it again finds out what is on the disk.
"""
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import Fsync
from seglog.errors import CorruptManifestError, LogClosedError, StorageError
from seglog.fs import lock
from seglog.fs.files import FileSystem
from seglog.fs.refusals import with_room
from seglog.ledger.broker_state import BrokerState, last_state
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry_writer import SEGMENT, EntryWriter
from seglog.ledger.ledger import DELETED_SUFFIX, Ledger, delete_ledger, remove_directory
from seglog.ledger.managed.extent import LedgerExtent, ShownLedgers
from seglog.ledger.managed.manifest import (
    FILE_NAME,
    LEDGER_PREFIX,
    LedgerInfo,
    Manifest,
    ManifestFile,
    ledger_directory,
)
from seglog.ledger.position import Position
from seglog.logger import Logger
from seglog.segment.positions import LostRange
from seglog.threads.write_gate import WriteGate

logger = Logger("seglog")

R = TypeVar("R")

# What an entry may need in the file besides its bytes: broker metadata, the record, a batch.
OVERHEAD_BYTES = 128


class ManagedTail(WriteGate):
    """The end of a `ManagedLedger`, which opens and closes it. Each field below is changed with the lock.

    A thread with the lock may wait for a ledger's files (its seal).
    """

    def __init__(
        self, path: Path, shown: ShownLedgers, config: ManagedLedgerConfig, fs: FileSystem, clock: Clock, fsync: Fsync,
        held: lock.Lock,
    ) -> None:
        super().__init__(path, "managed ledger")
        self.shown = shown
        self.config = config
        self.fs = fs
        self.clock = clock
        self.fsync = fsync
        self.held = held
        self.manifest = Manifest()
        self._file = ManifestFile(fs, path)
        # Index and time of the last entry that was added.
        self.state = BrokerState()
        # The position that every cursor has passed; None if nothing may be trimmed.
        self.passed: Callable[[], Position | None] = lambda: None
        # Gives back space that is reserved for something else; returns whether there was any.
        self.give_back_reserve: Callable[[], bool] = lambda: False

    # --- opening -----------------------------------------------------------------------------

    def open(self) -> LostRange | None:
        """Open the directory; if it is empty, make it a managed ledger. Return what recovery cut, if anything."""
        names = sorted(name for name in os.listdir(self.path) if name.startswith(LEDGER_PREFIX))
        if (self.path / FILE_NAME).exists():
            manifest = self._file.read()
            # Its writer may have seen this sync fail, or have died before it: make durable what is read.
            self.fs.sync_directory(self.path)
        else:
            if names:
                raise CorruptManifestError(f"{len(names)} ledgers but no {FILE_NAME}", file=self.path)
            manifest = Manifest()
            self._file.write(manifest)
        self.manifest = manifest
        self.state = BrokerState(manifest.last_index, manifest.last_timestamp)
        present = set(names)
        for info in manifest.ledgers:
            directory = ledger_directory(self.path, info.ledger_id)
            if directory.name not in present:
                raise CorruptManifestError(f"ledger {info.ledger_id} is missing", file=directory)
        lost = None
        if manifest.ledgers and manifest.ledgers[-1].end is None:
            ledger = self._recovered(manifest.ledgers[-1])
            lost = ledger.lost
            self._put_sealed(ledger)
        self._remove_strays(names)
        self.shown.extent = LedgerExtent(self.manifest.ledgers, None)
        return lost

    def _recovered(self, info: LedgerInfo) -> Ledger:
        """Recover and seal the last ledger that its writer left."""
        directory = ledger_directory(self.path, info.ledger_id)
        ledger = Ledger.open(directory, fs=self.fs, clock=self.clock, held=True)
        # It may have been sealed, but the sync of its name may have failed, or not been reached.
        self.fs.sync_directory(directory)
        if ledger.entry_count:
            self.shown.opened[info.ledger_id] = ledger
        return ledger

    def _put_sealed(self, ledger: Ledger) -> None:
        """Put the last ledger's end into the manifest, with the index and time of its entries."""
        self.state = last_state(ledger.read, ledger.last_entry_id, self.state)
        self._put_manifest(*self.manifest.ledgers[:-1], *_sealed_info(ledger))
        if not ledger.entry_count:
            ledger.close()      # it is removed: a caller with positions in it must not meet its files

    def _remove_strays(self, names: Iterable[str]) -> None:
        """Remove ledgers that were being created or deleted."""
        known = {ledger_directory(self.path, info.ledger_id).name for info in self.manifest.ledgers}
        for name in sorted(names):
            number = name.removeprefix(LEDGER_PREFIX).removesuffix(DELETED_SUFFIX)
            if name in known or not name.startswith(LEDGER_PREFIX) or not number.isdigit():
                continue
            directory = self.path / name
            logger.info("%s: left by an interrupted change, removed", directory)
            ledger = self.shown.opened.pop(int(number), None)
            if ledger is not None:
                ledger._abandon()
            if name.endswith(DELETED_SUFFIX):
                remove_directory(self.fs, directory)
            else:
                delete_ledger(directory, self.fs)

    # --- changing ----------------------------------------------------------------------------

    def current(self) -> LedgerExtent:
        """Return the ledgers as of now."""
        extent = self.shown.extent
        if extent is None:
            raise self.closed_error()
        return extent

    def refuse(self) -> None:
        """Check, without the lock, that it may change. Raises LogClosedError, LogFailedError, ForkedHandleError."""
        self.check()
        self.held.check()

    def change_shielded(self, section: Callable[[], R]) -> R:
        """Do `change` for rare changes, in which asynchronous exceptions are held back. Raises as `refuse`."""
        self.refuse()
        return shielded(self.change, self._while_held, section)

    def _while_held(self, section: Callable[[], R]) -> R:
        self.held.check()
        return section()

    def change_whole(self, section: Callable[[], R]) -> R:
        """The same for a section that is a change from its begin on: after an error within, only opening again finds
        out the state on disk."""
        return self.change_shielded(partial(self._whole, section))

    def _whole(self, section: Callable[[], R]) -> R:
        with self.changing():
            return section()

    def fail_outside(self, error: BaseException) -> None:
        """Make it read-only because of an error that occurred without the lock."""
        if self.failure is None:
            self.fail(error)
            self.settle(error)

    def put(self, manifest: Manifest) -> None:
        """Replace the manifest, durably."""
        self.with_room(partial(self._file.put, self.manifest, manifest))
        self.manifest = manifest

    def with_room(self, write: Callable[[], None]) -> None:
        """Write a small file, which a failure leaves as it was. If the disk is full, give back what is reserved and
        write again: this is how space is freed."""
        with_room(write, self.give_back_reserve)

    def _put_manifest(self, *ledgers: LedgerInfo, next_ledger_id: int | None = None) -> None:
        manifest = self.manifest.with_(
            ledgers=ledgers, last_index=self.state.index, last_timestamp=self.state.timestamp
        )
        self.put(manifest if next_ledger_id is None else manifest.with_(next_ledger_id=next_ledger_id))

    # --- rolling -----------------------------------------------------------------------------

    def ledger_for(self, size_bytes: int) -> tuple[Ledger, EntryWriter]:
        """Return the last ledger, or a new one if it is full."""
        active = self.current().active
        if active is not None and not self._is_full(active, writer := active.writer, size_bytes):
            return active, writer
        active = shielded(self._begin_ledger)
        return active, active.writer

    def _is_full(self, active: Ledger, writer: EntryWriter, size_bytes: int) -> bool:
        """Apply ManagedLedgerImpl.currentLedgerIsFull; besides, no ledger may exceed the size of a segment."""
        config = self.config
        if not writer.next_id:
            return False
        if size_bytes + OVERHEAD_BYTES > SEGMENT.segment_bytes - writer.size_bytes:
            return True
        age_ms = self.clock.now_ms() - active.created_ms
        if age_ms >= config.max_rollover_ms:
            return True
        has_passed_quota = (
            writer.next_id >= config.max_entries_per_ledger or writer.size_bytes >= config.max_size_per_ledger_bytes
        )
        return has_passed_quota and age_ms >= config.min_rollover_ms

    def roll(self) -> None:
        """Seal the last ledger; the next entry starts a new one."""
        self.seal_active()
        self.trim()

    def roll_if_full(self) -> None:
        """Roll the last ledger if it is full, or too old."""
        active = self.current().active
        if active is not None and self._is_full(active, active.writer, 0):
            self.seal_active()
        self.trim()

    def _begin_ledger(self) -> Ledger:
        """Start a new ledger, and trim what may be trimmed now."""
        self.seal_active()
        ledger_id = self.manifest.next_ledger_id
        ledger = Ledger.create(
            ledger_directory(self.path, ledger_id), ledger_id, fsync=self.fsync, fs=self.fs, clock=self.clock,
            held=True,
        )
        self.shown.opened[ledger_id] = ledger       # to be closed, whatever happens
        info = LedgerInfo(ledger_id, ledger.created_ms)
        self._put_manifest(*self.manifest.ledgers, info, next_ledger_id=ledger_id + 1)
        self.shown.extent = LedgerExtent(self.manifest.ledgers, ledger)
        self.trim()
        return ledger

    def seal_active(self) -> None:
        """Sync and seal the last ledger: nothing can be added to it afterwards."""
        active = self.current().active
        if active is None:
            return
        active.seal()
        self._put_manifest(*self.manifest.ledgers[:-1], *_sealed_info(active))
        self.shown.extent = LedgerExtent(self.manifest.ledgers, None)
        if not active.entry_count:
            self._delete([active.ledger_id])

    # --- trimming ----------------------------------------------------------------------------

    def trim(self) -> list[int]:
        """See ManagedLedger.trim."""
        passed = self.passed()
        if passed is None:
            return []
        now_ms, kept_bytes = self.clock.now_ms(), self.current().size_bytes
        gone = []
        for info in self.manifest.ledgers:
            end = info.end
            if end is None or passed < Position(info.ledger_id, end.entries - 1):
                break
            kept_bytes -= end.length_bytes
            if not self._retention_is_over(now_ms - end.sealed_ms, kept_bytes):
                break
            gone.append(info.ledger_id)
        if gone:
            # Index and time stay those of the last sealed ledger: the entries after it may not be on the disk.
            self.put(self.manifest.with_(ledgers=self.manifest.ledgers[len(gone) :]))
            self.shown.extent = LedgerExtent(self.manifest.ledgers, self.current().active)
            self._delete(gone)
        return gone

    def _retention_is_over(self, age_ms: int, behind_bytes: int) -> bool:
        """Whether a ledger that was sealed `age_ms` ago, and is followed by `behind_bytes`, need not be retained."""
        minutes, megabytes = self.config.retention_minutes, self.config.retention_mb
        if minutes == 0 and megabytes == 0:
            return True
        # Beside another limit, a 0 has no meaning, and neither has -1.
        return (minutes > 0 and age_ms >= minutes * 60_000) or (megabytes > 0 and behind_bytes >= megabytes << 20)

    def _delete(self, ledger_ids: list[int]) -> None:
        """Delete ledgers that the manifest no longer names."""
        for ledger_id in ledger_ids:
            ledger = self.shown.opened.pop(ledger_id, None)
            if ledger is not None:
                ledger._retire()
            try:
                delete_ledger(ledger_directory(self.path, ledger_id), self.fs)
            except StorageError as error:       # not important: the next opening removes what is left
                logger.warning("ledger %s of %s could not be deleted: %s", ledger_id, self.path, error)

    # --- failing and reloading -----------------------------------------------------------------

    def settle(self, error: BaseException) -> None:
        if error is self.failure:
            self._forget_what_was_tried()
        super().settle(error)

    def _forget_what_was_tried(self) -> None:
        """Reset index and time to those of added entries: the attempt does not continue."""
        extent = self.shown.extent
        active = extent.active if extent is not None else None
        self.state = BrokerState(self.manifest.last_index, self.manifest.last_timestamp)
        if active is not None:
            self.state = last_state(active.read, active.last_entry_id, self.state)

    def reload(self) -> None:
        """Read it again from the disk, as an opening does, if an exception interrupted a change."""
        try:
            shielded(self.with_lock, self._reload)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise

    def _reload(self) -> None:
        shown = self.shown
        if not self.is_torn or self.failure is not None or shown.extent is None:
            return
        with self.changing():
            manifest = self.manifest = self._file.read()
            self.state = BrokerState(manifest.last_index, manifest.last_timestamp)
            if manifest.ledgers and manifest.ledgers[-1].end is None:
                # This process may have it, with entries that callers wait for.
                ledger = shown.opened.get(manifest.ledgers[-1].ledger_id) or self._recovered(manifest.ledgers[-1])
                ledger.seal()
                self._put_sealed(ledger)
            self._remove_strays(os.listdir(self.path))
            shown.extent = LedgerExtent(self.manifest.ledgers, None)
            self.is_torn = False

    # --- closing -----------------------------------------------------------------------------

    def close(self, before: Callable[[], None]) -> None:
        """After `before`, make everything durable if nothing failed. Raises LogFailedError if that fails now."""
        try:
            if self.failure is None and self.held.held:
                before()
                self.with_lock(self._finish)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise

    def _finish(self) -> None:
        self._reload()
        if self.shown.extent is not None:
            with self.changing():
                self.seal_active()
        # With the lock: a thread that waits for it, even in the background, then finds that this was closed, not that
        # it failed.
        self.refusal = self.closed_error

    def wait_for_writes(self) -> None:
        """After a failure, return when no thread writes the manifest or a ledger, and none will."""
        self.with_lock(lambda: None)
        for ledger in list(self.shown.opened.values()):
            ledger._end_writes()

    def let_go(self) -> None:
        """Close everything that is open."""
        self.shown.extent = None
        if self.failure is None:
            self.refusal = self.closed_error
        try:
            for ledger in list(self.shown.opened.values()):
                ledger._abandon()
        finally:
            self.held.release()

    def closed_error(self) -> LogClosedError:
        """Make the error for a call on a closed managed ledger."""
        return LogClosedError("the managed ledger was closed", file=self.path)


def _sealed_info(ledger: Ledger) -> tuple[LedgerInfo, ...]:
    """Return the manifest's line for a sealed ledger; none if it is empty."""
    assert ledger.end is not None
    return (LedgerInfo(ledger.ledger_id, ledger.created_ms, ledger.end),) if ledger.end.entries else ()
