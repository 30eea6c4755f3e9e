"""Repairs a managed ledger that does not open by itself: damage in its last ledger, or in its manifest.

    plan = plan_recovery("topics/orders")       # reads only
    plan.apply()

After a crash, opening does everything that is needed. This is for what no crash leaves: a missing or damaged manifest
is rebuilt from the ledgers; damage in the middle of an unsealed ledger is truncated, on request. A sealed ledger whose
length has changed since it was sealed cannot be read: it is sealed again with its remaining entries.
"""
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from seglog.clock import SystemClock
from seglog.errors import CorruptManifestError, NotALogError, UnsupportedVersionError
from seglog.fs import lock
from seglog.fs.files import FileSystem, checked_fs
from seglog.ledger.broker_state import BrokerState, last_state
from seglog.ledger.ledger import LOG_NAME, Ledger, reseal_ledger
from seglog.ledger.ledger_metadata import LedgerEnd, LedgerMetadata
from seglog.ledger.ledger_recovery import LedgerCheck, check_ledger
from seglog.ledger.managed.compacted_home import compacted_ids, is_compacted_home
from seglog.ledger.managed.cursor_file import CursorState, cursor_files
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.managed.manifest import LEDGER_PREFIX, LedgerInfo, Manifest, ledger_directory
from seglog.ledger.managed.relocated_entries import DIRECTORY as RELOCATED
from seglog.ledger.snapshot_storage import DIRECTORY as SNAPSHOTS
from seglog.segment.positions import LostRange


@dataclass(slots=True)
class RecoveryPlan:
    """What `apply` would do. `lost`: what would be truncated; `bad_middles`: the part of it that is not a torn tail."""

    path: Path
    ledger_ids: list[int] = field(default_factory=list)
    makes_manifest: bool = False
    open_ledgers: list[int] = field(default_factory=list)
    resealed_ledgers: list[int] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    bad_middles: int = 0

    def apply(self, *, truncate: bool = False, fs: FileSystem | None = None) -> None:
        """Carry it out, durably. `truncate`: also truncate at damage in the middle; otherwise that raises
        CorruptRecordError, after everything before it is done. Raises LogLockedError while it is being written,
        StorageError."""
        fs = checked_fs(fs)
        with lock.lock_partition(fs, self.path):
            for ledger_id in self.open_ledgers:
                Ledger.open(ledger_directory(self.path, ledger_id), fs=fs, held=True, truncate=truncate).close()
            ends = {
                ledger_id: reseal_ledger(
                    ledger_directory(self.path, ledger_id), fs, SystemClock().now_ms(), truncate=truncate
                )
                for ledger_id in self.resealed_ledgers
            }
            if self.makes_manifest:
                self._make_manifest(fs)
            elif ends:
                manifest = Manifest.read(self.path)
                infos = (replace(info, end=ends.get(info.ledger_id, info.end)) for info in manifest.ledgers)
                left = tuple(info for info in infos if info.end is None or info.end.entries)
                manifest.with_(ledgers=left).write(fs, self.path)
        OpenManagedLedger(self.path, fs=fs).close()

    def _make_manifest(self, fs: FileSystem) -> None:
        infos, state = [], BrokerState()
        for ledger_id in self.ledger_ids:
            with Ledger.open(ledger_directory(self.path, ledger_id), fs=fs, held=True) as ledger:
                infos.append(LedgerInfo(ledger_id, ledger.created_ms, ledger.end))
                state = last_state(ledger.read, ledger.last_entry_id, state)
        # No id may be assigned twice: cursors may have been further than the remaining ledgers.
        others = _ids_of_cursors(self.path), _ids_of_delayed(self.path), compacted_ids(self.path)
        last_id = max(chain(self.ledger_ids, *others), default=-1)
        Manifest(tuple(infos), last_id + 1, state.index, state.timestamp).write(fs, self.path)


def plan_recovery(path: str | os.PathLike[str]) -> RecoveryPlan:
    """Plan a recovery; only reads. Raises NotALogError; CorruptManifestError for a damaged ledger.json: that is not
    rebuilt, since nothing else knows the end of the ledger."""
    plan = RecoveryPlan(Path(os.path.abspath(path)))
    if is_compacted_home(plan.path):
        raise NotALogError(
            "not a managed ledger: it has the compacted ledgers of one", file=plan.path,
            hint=f"pass the topic's directory, {plan.path.parent}",
        )
    found = sorted(
        int(name.removeprefix(LEDGER_PREFIX)) for name in os.listdir(plan.path)
        if name.startswith(LEDGER_PREFIX) and name.removeprefix(LEDGER_PREFIX).isdigit()
    )
    try:
        plan.ledger_ids = [info.ledger_id for info in Manifest.read(plan.path).ledgers]
        if not set(plan.ledger_ids) <= set(found):
            plan.makes_manifest = True
    except CorruptManifestError:
        plan.makes_manifest = True
    except NotALogError:
        if not found:
            raise
        plan.makes_manifest = True
    if plan.makes_manifest:
        # A ledger being created or removed has no ledger.json, or no acknowledged entry.
        plan.ledger_ids = [n for n in found if (ledger_directory(plan.path, n) / "ledger.json").exists()]
    for ledger_id in plan.ledger_ids:
        directory = ledger_directory(plan.path, ledger_id)
        end = LedgerMetadata.read(directory).end
        if end is None:
            plan.open_ledgers.append(ledger_id)
            _plan_ledger(plan, check_ledger(directory / LOG_NAME))
        elif os.path.getsize(directory / LOG_NAME) != end.length_bytes:
            plan.resealed_ledgers.append(ledger_id)
            _plan_resealed(plan, check_ledger(directory / LOG_NAME), end)
    return plan


def _plan_resealed(plan: RecoveryPlan, check: LedgerCheck, end: LedgerEnd) -> None:
    """Add what a sealed ledger would lose: damage, and missing bytes."""
    _plan_ledger(plan, check)
    missing_bytes = end.length_bytes - check.size_bytes
    if missing_bytes > 0 and not check.damages:
        plan.lost.append(LostRange(
            os.fspath(check.path), check.size_bytes, missing_bytes, check.next_id, end.entries - 1,
            f"the ledger was sealed with {end.length_bytes} bytes, but has {check.size_bytes}",
        ))


def _ids_of_cursors(path: Path) -> Iterator[int]:
    for file in cursor_files(path):
        with contextlib.suppress(CorruptManifestError, UnsupportedVersionError):
            acknowledged = CursorState.read(file).acknowledged
            yield acknowledged.mark_delete.ledger_id
            yield from acknowledged.entries
            yield from acknowledged.aside


def _ids_of_delayed(path: Path) -> Iterator[int]:
    """Yield the ids of all ledgers of snapshots and of relocated entries."""
    for found in chain(path.glob(f"{SNAPSHOTS}/*/{LEDGER_PREFIX}*"), path.glob(f"{RELOCATED}/*/{LEDGER_PREFIX}*")):
        number = found.name.removeprefix(LEDGER_PREFIX).partition(".")[0]
        if number.isdecimal():
            yield int(number)


def _plan_ledger(plan: RecoveryPlan, check: LedgerCheck) -> None:
    if check.damages:
        damage = check.damages[0]
        plan.bad_middles += not check.is_torn_tail
        size_bytes = check.size_bytes - damage.start
        plan.lost.append(LostRange(
            os.fspath(check.path), damage.start, size_bytes, damage.first_offset, -1, damage.reason
        ))
