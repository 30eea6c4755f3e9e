"""A managed ledger opened only for reading: no lock, no recovery, nothing on the disk changes.

A ledger that was not sealed is read up to its last complete batch, as of now: it may still be written, or its writer
may have died.
"""
import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog.clock import SystemClock
from seglog.errors import CorruptManifestError, NotALogError
from seglog.fs.files import OsFileSystem
from seglog.fs.refusals import as_path
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.cursor_file import CursorState, cursor_files, with_journal
from seglog.ledger.managed.extent import LedgerExtent
from seglog.ledger.managed.journal import read_journal
from seglog.ledger.managed.manifest import LedgerInfo, Manifest, ledger_directory
from seglog.ledger.managed.reader import ManagedReader


class ClosedManagedLedger(ManagedReader):
    """Use it as a context manager, or close it. Raises NotALogError, CorruptManifestError, StorageError."""

    def __init__(self, path: str | os.PathLike[str], config: ManagedLedgerConfig | None = None) -> None:
        super().__init__(
            Path(os.path.abspath(as_path(path))), config or ManagedLedgerConfig(), OsFileSystem(), SystemClock(),
            read_only=True,
        )
        self.manifest = Manifest.read(self.path)
        infos = list(self.manifest.ledgers)
        # Whether the last ledger was sealed when this was opened, according to the manifest.
        self.is_sealed = not infos or infos[-1].end is not None
        if not self.is_sealed:
            ledger_id = infos[-1].ledger_id
            try:
                ledger = Ledger.open(ledger_directory(self.path, ledger_id), read_only=True)
            except NotALogError as gone:
                raise CorruptManifestError(f"ledger {ledger_id} is missing", file=self.path) from gone
            self._opened[ledger_id] = ledger
            infos[-1] = LedgerInfo(ledger_id, infos[-1].created_ms, ledger.end)
        self._shown.extent = LedgerExtent(tuple(infos), None)

    def cursors(self) -> list[CursorState]:
        """Read the files of all cursors, limited to existing entries; sorted by name. Raises CorruptManifestError."""
        files = cursor_files(self.path)
        found = [(path, CursorState.read(path)) for path in files]
        journal = read_journal(self.path) if any(state.journal for _, state in found) else None
        return [
            replace(state, acknowledged=state.acknowledged.within(self.extent, self.manifest.next_ledger_id))
            for state in sorted((with_journal(state, journal, path) for path, state in found), key=lambda one: one.name)
        ]

    def _is_trimmed(self, ledger_id: int) -> bool:
        """By its writer, in another process, since this was opened."""
        return all(info.ledger_id != ledger_id for info in Manifest.read(self.path).ledgers)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._shown.extent = None
        for ledger in list(self._opened.values()):
            ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
