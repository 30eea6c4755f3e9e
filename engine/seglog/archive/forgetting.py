"""`seglog backup forget` removes snapshots, `prune` the objects that no snapshot names any more."""
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from seglog.archive.checking import Usage, object_directories, object_files
from seglog.backups.manifest import Snapshot
from seglog.backups.pieces import ZSTD_SUFFIX
from seglog.backups.repository import Repository
from seglog.errors import CorruptBackupError, InvalidArgumentError
from seglog.fs.aside import SCRATCH_SUFFIX


@dataclass(frozen=True, slots=True)
class ForgetRun:
    """The snapshots that are removed, and those that stay, the oldest first."""

    forgotten: tuple[Snapshot, ...]
    kept: tuple[Snapshot, ...]


@dataclass(slots=True)
class PruneRun:
    """What `prune` removed, or would remove: objects that no snapshot names, and files that killed runs left."""

    objects: int = 0
    size_bytes: int = 0
    leftovers: int = 0
    kept_objects: int = 0
    kept_bytes: int = 0
    paths: list[str] = field(default_factory=list, repr=False)


def forget(repository: Repository, keep_last: int, keep_daily: int, keep_weekly: int, *, dry_run: bool) -> ForgetRun:
    """Keep, of each source, the last snapshots, and the last one of each of so many days and weeks (UTC) that have one.

    Raises InvalidArgumentError if nothing at all would stay, CorruptBackupError if a snapshot is damaged.
    """
    counts = (keep_last, keep_daily, keep_weekly)
    if not all(type(count) is int and count >= 0 for count in counts):
        raise InvalidArgumentError(f"how many to keep must be whole numbers from 0 on, not {counts}")
    if not any(counts):
        raise InvalidArgumentError(
            "nothing would be kept", file=repository.path, hint="say what stays: --keep-last 1, --keep-daily, ..."
        )
    snapshots = repository.snapshots()
    kept = _kept(snapshots, *counts)
    gone = tuple(snapshot for snapshot in snapshots if snapshot.id not in kept)
    if not dry_run:
        repository.remove_snapshots(snapshot.id for snapshot in gone)
    return ForgetRun(gone, tuple(snapshot for snapshot in snapshots if snapshot.id in kept))


def _kept(snapshots: Iterable[Snapshot], last: int, daily: int, weekly: int) -> set[str]:
    of_source: defaultdict[tuple[str, str], list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        of_source[snapshot.host, snapshot.source].append(snapshot)
    kept: set[str] = set()
    for each in of_source.values():
        newest = list(reversed(each))
        kept.update(snapshot.id for snapshot in newest[:last])
        for count, period in ((daily, "%Y-%m-%d"), (weekly, "%G-%V")):
            periods: dict[str, str] = {}
            for snapshot in newest:
                moment = datetime.fromtimestamp(snapshot.began_at_ms / 1000, UTC)
                periods.setdefault(f"{moment:{period}}", snapshot.id)
            kept.update(list(periods.values())[:count])
    return kept


def prune(repository: Repository, *, dry_run: bool) -> PruneRun:
    """Remove what no snapshot names. Raises CorruptBackupError if it is unknown what one names: then nothing goes."""
    pieces = repository.pieces()
    usage = Usage(repository, pieces)
    for path, what, _ in usage.damaged:
        raise CorruptBackupError(
            f"nothing was removed, because it is unknown which objects a snapshot needs: {what}", file=path,
            hint="`seglog backup check` lists the damage; remove a snapshot's file that cannot be saved, then prune",
        )
    done = PruneRun()
    for file in object_files(repository):
        digest = file.name.removesuffix(ZSTD_SUFFIX)
        if digest in usage.users:
            done.kept_objects += 1
            done.kept_bytes += file.size_bytes
        else:
            done.objects += 1
            done.size_bytes += file.size_bytes
            done.paths.append(pieces.path_of(digest, file.name[len(digest) :]))
    for directory in (*object_directories(repository), f"{repository.path}/snapshots"):
        for file in repository.store.files(directory):
            if file.name.endswith(SCRATCH_SUFFIX):
                done.leftovers += 1
                done.paths.append(f"{directory}/{file.name}")
    if not dry_run:
        repository.check_alone()
        repository.drop_from_register(usage.gone)
        for _ in repository.store.each(repository.remove, done.paths):
            pass
    return done
