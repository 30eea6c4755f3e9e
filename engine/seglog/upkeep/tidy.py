"""What crashes, repairs and deletions have left in a log dir, and nobody needs: lists it, or removes it. Also what
conversions in place have left in the directory of their backups.

    backup             an index or a checkpoint that a repair replaced: .bak
    deleted file       a segment that retention or a cleaner has dropped, before its minute was over: .deleted
    scratch            a file that was being written when its writer died: .tmp; one of seglog's own, .seglog.*.tmp, if
                       it is an hour old: some of these are written without the log dir's lock
    deleted partition  of a topic that was deleted: -delete
    staging            a directory that a killed run of seglog was building
    stray partition    of a topic that the cluster does not know: -stray. A broker keeps it, in case that is wrong
    exchange journal   of a conversion in place whose backup was removed, or is not there yet: .seglog-exchange

Nothing else is touched: no .cleaned and no .swap, which the next start needs to complete a compaction; no -future,
which a broker continues to copy; no lock, no mark, no setting of ours; no quarantine/.
"""
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seglog.clock import SystemClock
from seglog.conversion.exchange_journal import SUFFIX
from seglog.format import names
from seglog.fs.aside import SCRATCH_SUFFIX
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import lock_log_dir
from seglog.fs.refusals import refusals
from seglog.fs.removal import remove_file, remove_tree
from seglog.fs.staging import leftovers, staged_beside

Kind = Literal[
    "backup", "deleted file", "scratch", "deleted partition", "staging", "stray partition", "exchange journal",
]

_FILE_KINDS: dict[str, Kind] = {
    names.BACKUP_SUFFIX: "backup", names.DELETED_SUFFIX: "deleted file", names.TMP_SUFFIX: "scratch",
}
# Files with a name of their own, in a partition directory and in a log dir, of which a .bak or a half-written one may
# be left.
_OF_PARTITION = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA)
_OF_LOG_DIR = (*names.OFFSET_CHECKPOINTS, names.META_PROPERTIES)
_OURS = ".seglog."
# Such a file is written in one go, then renamed: none that is this old has a living writer.
_STALE_MS = 3600 * 1000
_JOURNAL = re.compile(rf"(?s)(?P<of>.+){re.escape(SUFFIX)}(?:{re.escape(SCRATCH_SUFFIX)})?")


@dataclass(frozen=True, slots=True)
class Litter:
    """A file or a directory that can go. `size_bytes`: of all files in it, as long as they are readable."""

    path: Path
    kind: Kind
    size_bytes: int


def tidy(
    log_dir: Path, *, apply: bool = False, with_stray: bool = False, fs: FileSystem | None = None
) -> list[Litter]:
    """What can go in a log dir; removed with `apply`, under the log dir's lock. `with_stray`: also stray partitions.

    `log_dir` may be a directory of backups, too; the backups in it stay as they are.

    Raises LogLockedError if a broker or another writer holds the log dir, StorageError.
    """
    fs = checked_fs(fs)
    log_dir = Path(os.path.realpath(log_dir))
    with lock_log_dir(fs, log_dir) if apply else nullcontext():
        found = [one for one in _litter(log_dir) if with_stray or one.kind != "stray partition"]
        if apply:
            for one in found:
                if one.path.is_dir() and not one.path.is_symlink():
                    remove_tree(fs, one.path.parent, one.path.name)
                else:
                    remove_file(fs, one.path.parent, one.path.name)
    return found


def holds_backups(directory: Path) -> bool:
    """Whether conversions in place have worked here: it has a journal of one, or a result that was being built."""
    with refusals("list", directory):
        return any(_exchanged(name) is not None for name in os.listdir(directory))


def _exchanged(name: str) -> str | None:
    """The partition that this file or directory beside a backup belongs to, or None if it has another name."""
    partition = staged_beside(name)
    if partition is None:
        journal = _JOURNAL.fullmatch(name)
        if journal is None:
            return None
        partition = journal["of"]
    parsed = names.parse_partition_dir(partition)
    return partition if parsed is not None and not parsed.mark else None


def _litter_of_backups(directory: Path) -> Iterator[Litter]:
    with refusals("list", directory):
        listed = sorted(os.listdir(directory))
    for name in listed:
        path, partition = directory / name, _exchanged(name)
        if partition is None or path.is_symlink():
            continue
        if path.is_dir():
            if staged_beside(name) is not None:
                yield Litter(path, "staging", _size_of(path))
        elif name.endswith(SCRATCH_SUFFIX):
            yield Litter(path, "scratch", _size_of(path))
        elif name.endswith(SUFFIX) and not os.path.lexists(directory / partition):
            yield Litter(path, "exchange journal", _size_of(path))


def _litter(log_dir: Path) -> Iterator[Litter]:
    if holds_backups(log_dir):
        yield from _litter_of_backups(log_dir)
        return
    stagings = set(leftovers(log_dir))
    with refusals("list", log_dir):
        listed = sorted(path for path in log_dir.iterdir() if path not in stagings)
    for path in listed:
        parsed = names.parse_partition_dir(path.name) if path.is_dir() else None
        if parsed is None:
            kind = _kind_of_file(path, _OF_LOG_DIR)
            if kind is not None and path.is_file():
                yield Litter(path, kind, _size_of(path))
        elif parsed.mark == names.DELETE:
            yield Litter(path, "deleted partition", _size_of(path))
        elif parsed.mark == names.STRAY:
            yield Litter(path, "stray partition", _size_of(path))
        elif not parsed.mark:
            yield from _litter_of_partition(path)
    for path in sorted(stagings):
        yield Litter(path, "staging", _size_of(path))


def _litter_of_partition(directory: Path) -> Iterator[Litter]:
    with refusals("list", directory):
        listed = sorted(os.listdir(directory))
    for name in listed:
        path = directory / name
        kind = _kind_of_file(path, _OF_PARTITION)
        if kind is not None and path.is_file() and not path.is_symlink():
            yield Litter(path, kind, _size_of(path))


def _kind_of_file(path: Path, known: tuple[str, ...]) -> Kind | None:
    name = path.name
    if name.startswith(_OURS):
        return "scratch" if name.endswith(SCRATCH_SUFFIX) and _is_stale(path) else None
    parsed = names.parse_file_name(name)
    if parsed is not None:
        return _FILE_KINDS.get(parsed.state)
    for one in known:
        if name == one + names.BACKUP_SUFFIX:
            return "backup"
        if name in (one + SCRATCH_SUFFIX, one + names.TMP_SUFFIX):
            return "scratch"
    return None


def _is_stale(path: Path) -> bool:
    try:
        return SystemClock().now_ms() - path.lstat().st_mtime * 1000 > _STALE_MS
    except FileNotFoundError:       # renamed by its writer since
        return False


def _size_of(path: Path) -> int:
    """The bytes of a file, or of all files below a directory; links count nothing."""
    if path.is_symlink():
        return 0
    try:
        if not path.is_dir():
            return path.stat().st_size
        with os.scandir(path) as entries:
            return sum(_size_of(Path(entry.path)) for entry in entries)
    except OSError:
        return 0
