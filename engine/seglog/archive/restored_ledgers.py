"""Queues, managed ledgers and ledgers that are being restored: staged beside their place, checked, indexed, renamed.

What is written is what a kill of the writer would have left at the moment of the backup: the next opening recovers the
ledger that was growing, and delivers again what was in flight.
"""
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from seglog.backups.manifest import LedgerBackup
from seglog.backups.pieces import PieceStore
from seglog.errors import CorruptIndexError, CorruptRecordError
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.fs.staging import Staging
from seglog.ledger.entry_writer import SEGMENT
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class RestoredLedger:
    """A queue, a managed ledger or a ledger that was restored: `kind` says which. `damaged`: its .log files that the
    source had damaged; they have no indexes."""

    name: str
    kind: str
    path: Path
    size_bytes: int
    damaged: tuple[str, ...] = ()


def restore_ledger(
    fs: FileSystem, path: Path, backed: LedgerBackup, pieces: PieceStore, told: Callable[[int], None]
) -> RestoredLedger:
    """`told` is called with the bytes of each file that is done. Raises InvalidArgumentError if `path` exists,
    CorruptBackupError, StorageError."""
    damaged = []
    with Staging.beside(fs, path) as staging:
        made: set[str] = {""}
        data = pieces.get_each(piece for file in backed.files for piece in file.pieces)
        for file in backed.files:
            _make_directories(fs, staging.path, os.path.dirname(file.name), made)
            with fs.create(staging.path / file.name) as written:
                for raw in islice(data, len(file.pieces)) if file.inline is None else [file.inline]:
                    written.append(raw)
                fs.set_mode(written.path, file.mode)
                fs.set_mtime(written.path, file.mtime_ns)
                written.sync()
            told(file.size_bytes)
            if names.is_log_file(os.path.basename(file.name)) and not _index(fs, staging.path / file.name, file.mode):
                damaged.append(file.name)
        staging.publish()
    return RestoredLedger(path.name, backed.kind.value, path, backed.size_bytes, tuple(damaged))


def _make_directories(fs: FileSystem, root: Path, inside: str, made: set[str]) -> None:
    if inside not in made:
        _make_directories(fs, root, os.path.dirname(inside), made)
        fs.mkdir(root / inside)
        made.add(inside)


def _index(fs: FileSystem, log: Path, mode: int) -> bool:
    """Write the indexes of a ledger's .log, after a look at every batch. Returns whether none is damaged."""
    segment = Segment(log, is_last=False)
    try:
        built = index_bytes(segment, SEGMENT)
    except (CorruptRecordError, CorruptIndexError):
        return False
    finally:
        segment.close()
    for suffix, raw in built.files(SEGMENT):
        with fs.create(log.with_suffix(suffix)) as file:
            file.append(raw)
            fs.set_mode(file.path, mode)
            file.sync()
    return True
