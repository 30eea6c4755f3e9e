"""`seglog backup create`: one snapshot of a log, a queue, a managed ledger or a log dir, while they are in use."""
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from seglog.archive.ledger_moments import MovingLedger
from seglog.archive.log_dir_lines import LogDirLines
from seglog.archive.moments import MovingPartition
from seglog.archive.stored_objects import StoredObjects
from seglog.backups.manifest import (
    INLINE_BYTES,
    LOG_DIR_FILES,
    BackedFile,
    LedgerBackup,
    PartitionBackup,
    Snapshot,
    SnapshotLedger,
    SnapshotPartition,
    in_pieces,
)
from seglog.backups.pieces import PieceStore
from seglog.backups.repository import Repository, this_host
from seglog.clock import Clock, checked_clock
from seglog.errors import CorruptBackupError, InvalidArgumentError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.directory_kinds import has_ledgers, refuse_mixed
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.mapping import read_file
from seglog.fs.refusals import missing, refusals
from seglog.state.quarantine import quarantined_bytes
from seglog.stores.open_store import AnyPath
from seglog.stores.store import LocalStore

Progress = Callable[[int, int], None]

# Copied first, in this order: then no committed offset is behind the data, and every partition is in the metadata.
_FIRST = (names.METADATA_TOPIC, "__transaction_state", "__consumer_offsets", "__share_group_state")


@dataclass(frozen=True, slots=True)
class BackupRun:
    """What `backup` did.

    snapshot            its `left_out` names the partitions, queues and ledgers that could not be copied
    read_bytes          of the source
    stored_objects, stored_bytes    that were added to the store
    unchanged           partitions, queues and ledgers that are as the last snapshot has them
    is_new              the run made the snapshot; else nothing had changed, and it is the last one
    damaged             {partition, queue or ledger: what}: a segment, ledger or journal that was growing has damage
                        that whole batches or records follow, or a batch of a partition that this run read has a wrong
                        checksum. It was stored byte by byte. What an earlier run stored is not checked again: `restore`
                        and `verify` find all damage
    quarantined         {partition: bytes} in quarantine/ of the source, which no backup holds: damaged bytes that a
                        recovery took out of the log
    missing_objects     objects that the last snapshot needs, and that were gone from the store, or of another size. The
                        new snapshot needs none of them, unless it was stored again, from what the source has now
    """

    snapshot: Snapshot
    read_bytes: int
    stored_objects: int
    stored_bytes: int
    unchanged: int
    is_new: bool = True
    damaged: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)
    missing_objects: int = 0


def backup(
    src: str | os.PathLike[str], store: AnyPath, *, options: Mapping[str, str] | None = None,
    compression: str | None = None, reread: bool = False, dry_run: bool = False, progress: Progress | None = None,
    clock: Clock | None = None, fs: FileSystem | None = None,
) -> BackupRun:
    """Back up `src` to a store, which is created if need be: a partition directory, a managed ledger, a queue or a
    ledger, or a directory with any of these directly below, such as a log dir.

    `src` may be in use, by seglog or by a Kafka broker: nothing in it is locked or changed. Each partition, queue or
    ledger is backed up as of one moment; they have different moments. What the store has already is not stored again.

    `compression`: "zstd" or "none" for the objects of a new store. `reread`: read all files, and trust neither the last
    snapshot nor the times of files; read also the objects of the store that they need, and store again what is damaged.
    `progress` is called with (bytes done, bytes in all).

    Raises LogLockedError if another run changes the store, InvalidArgumentError, NotALogError if there is no log,
    StorageError. Nothing of a run that fails can be seen; the next one finds what it has stored.
    """
    repository = Repository(store, options, checked_fs(fs))
    return back_up(
        src, repository, compression=compression, reread=reread, dry_run=dry_run, progress=progress, clock=clock
    )


def back_up(
    src: str | os.PathLike[str], repository: Repository, *, compression: str | None = None, reread: bool = False,
    dry_run: bool = False, progress: Progress | None = None, clock: Clock | None = None,
    following: Snapshot | None = None, is_followed: bool = False, objects: StoredObjects | None = None,
) -> BackupRun:
    """As `backup`. `objects`: of the store, as runs before have seen them.
    `is_followed`: if nothing has changed, return the last snapshot, and make none. `following`: the
    last one that this `follow` made, which is removed if the new one is of the same hour."""
    source = Path(os.path.abspath(src))
    directories = _directories(source)
    _check_apart(source, repository)
    repository.check_place()        # before a lock file is made there
    with nullcontext() if dry_run else repository.alone():
        if not dry_run:
            repository.begin(compression)
        is_log_dir = directories != [source]
        with LogDirLines(source if is_log_dir else source.parent) as lines:
            run = _Run(
                repository, source, directories, is_log_dir, lines, objects or StoredObjects(repository),
                checked_clock(clock), progress,
            )
            done = run.all(reread=reread, dry_run=dry_run, is_followed=is_followed)
        if following is not None and done.is_new and _hour_of(done.snapshot) == _hour_of(following):
            repository.remove_snapshots([following.id])
        return done


def _hour_of(snapshot: Snapshot) -> int:
    return snapshot.began_at_ms // 3_600_000


class _Run:
    """One run over a source."""

    def __init__(
        self, repository: Repository, source: Path, directories: list[Path], is_log_dir: bool, lines: LogDirLines,
        objects: StoredObjects, clock: Clock, progress: Progress | None,
    ) -> None:
        self.repository = repository
        self.source = source
        self.directories = directories
        self.is_log_dir = is_log_dir
        self._lines = lines
        self._objects = objects
        objects.missing.clear()
        self.clock = clock
        self.began_at_ms = clock.now_ms()
        self.read_bytes = 0
        self.unchanged = 0
        self.left_out: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(map(_size_bytes, directories)) if progress is not None else 0

    def all(self, *, reread: bool, dry_run: bool, is_followed: bool) -> BackupRun:
        pieces = self.repository.pieces(dry_run=dry_run, reread=reread)
        before = self._last_snapshot()
        known = {part.name: part for part in before.parts} if before is not None else {}
        parts: list[SnapshotPartition | SnapshotLedger] = []
        for directory in self.directories:
            done_bytes = self._done_bytes
            try:
                with refusals("list", directory):
                    refuse_mixed(directory)
                parts.append(self._part(directory, known.get(directory.name), pieces, reread=reread))
            except (SeglogError, OSError) as error:
                if pieces.failed or not self.is_log_dir or not isinstance(error, SeglogError):
                    raise
                if not os.path.lexists(directory):
                    continue        # its topic was deleted meanwhile
                self.left_out[directory.name] = str(error)
            if self._progress is not None:
                self._done_bytes = done_bytes + _size_bytes(directory)
                self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)
        files = self._log_dir_files(pieces) if self.is_log_dir else ()
        snapshot = Snapshot(
            self.repository.new_id(self.began_at_ms), str(self.source), this_host(), self.is_log_dir, self.began_at_ms,
            max(self.clock.now_ms(), self.began_at_ms),
            tuple(part for part in parts if isinstance(part, SnapshotPartition)), files, self.left_out,
            pieces.stored_bytes, tuple(part for part in parts if isinstance(part, SnapshotLedger)),
        )
        is_new = not is_followed or before is None or not _says_the_same(before, snapshot)
        if before is not None and not is_new:
            snapshot = before
        elif not dry_run:
            self.repository.put_snapshot(snapshot)
        return BackupRun(
            snapshot, self.read_bytes, pieces.stored, pieces.stored_bytes, self.unchanged, is_new, self.damaged,
            {one.name: size_bytes for one in self.directories if (size_bytes := quarantined_bytes(one))},
            len(self._objects.missing),
        )

    def _last_snapshot(self) -> Snapshot | None:
        """The last snapshot of this source on this machine: inodes mean nothing elsewhere."""
        for snapshot_id in reversed(self.repository.snapshot_ids(may_be_missing=True)):
            try:
                found = self.repository.find_snapshot(snapshot_id)
            except CorruptBackupError:
                continue        # `check` finds it; this run stores all that the snapshot names and the source has
            if found is not None and (found.source, found.host) == (str(self.source), this_host()):
                return found
        return None

    def _part(
        self, directory: Path, known: SnapshotPartition | SnapshotLedger | None, pieces: PieceStore, *, reread: bool
    ) -> SnapshotPartition | SnapshotLedger:
        taken_at_ms = self.clock.now_ms()
        is_known = known is not None and known.fingerprint and not reread
        if known is not None and is_known and self._moving(directory).fingerprint() == known.fingerprint:
            with suppress(CorruptBackupError):
                if self._objects.has_all(known, pieces):
                    self.unchanged += 1
                    return replace(known, taken_at_ms=taken_at_ms)
        before = self._as_stored(known, pieces)
        moving = self._moving(directory, before, reread=reread)
        found, fingerprint = moving.copy(pieces, self._copied)
        if moving.damage:
            self.damaged[directory.name] = moving.damage
        if before is not None and found == before and known is not None and not reread:
            stored = known.pieces
        else:
            stored = tuple(pieces.put_each(in_pieces(found.to_bytes())))
        if isinstance(found, LedgerBackup):
            return SnapshotLedger(directory.name, found.kind, stored, fingerprint, found.size_bytes, taken_at_ms)
        return SnapshotPartition(
            directory.name, stored, fingerprint, found.size_bytes, found.log_start_offset, found.next_offset,
            taken_at_ms,
        )

    def _moving(
        self, directory: Path, before: PartitionBackup | LedgerBackup | None = None, *, reread: bool = False
    ) -> MovingPartition | MovingLedger:
        """`before` counts if it is of the same kind."""
        if has_ledgers(directory):
            return MovingLedger(directory, before if isinstance(before, LedgerBackup) else None, reread=reread)
        of_partition = before if isinstance(before, PartitionBackup) else None
        return MovingPartition(directory, self._lines, of_partition, reread=reread)

    def _as_stored(
        self, known: SnapshotPartition | SnapshotLedger | None, pieces: PieceStore
    ) -> PartitionBackup | LedgerBackup | None:
        """What the last snapshot has of a partition, queue or ledger, and the store has still; None if the list is
        damaged: then all is read again."""
        if known is None:
            return None
        try:
            if isinstance(known, SnapshotLedger):
                return self._objects.without_missing(self.repository.ledger(known, pieces), pieces)
            return self._objects.without_missing(self.repository.partition(known, pieces), pieces)
        except CorruptBackupError:
            return None

    def _copied(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        if self._progress is not None:
            self._done_bytes += size_bytes
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)

    def _log_dir_files(self, pieces: PieceStore) -> tuple[BackedFile, ...]:
        """Last, so that no producer id that a partition has is given out again."""
        found = []
        for name in LOG_DIR_FILES:
            path = self.source / name
            try:
                raw, status = read_file(path), os.stat(path)
            except FileNotFoundError:
                continue
            inline = raw if len(raw) <= INLINE_BYTES else None
            stored = tuple(pieces.put_each(in_pieces(raw))) if inline is None else ()
            mode = status.st_mode & 0o666
            found.append(BackedFile(name, len(raw), status.st_mtime_ns, status.st_ino, mode, stored, inline))
        return tuple(found)


def _says_the_same(one: Snapshot, other: Snapshot) -> bool:
    def contents(snapshot: Snapshot) -> object:
        return [(part.name, part.pieces) for part in snapshot.parts], snapshot.files, dict(snapshot.left_out)

    return contents(one) == contents(other)


def _directories(source: Path) -> list[Path]:
    """The partition directories of a source, in the order in which they are copied, then the queues and ledgers. Raises
    NotALogError, StorageError."""
    if not os.path.lexists(source):
        raise missing(source)
    with refusals("list", source):
        refuse_mixed(source)
        if has_ledgers(source) or names.has_segments(source):
            return [source]
        found, of_ledgers = [], []
        for name in os.listdir(source):
            parsed = names.parse_partition_dir(name)
            if has_ledgers(source / name):
                of_ledgers.append(source / name)
            elif parsed is not None and not parsed.mark and names.may_have_segments(source / name):
                found.append((_rank(parsed.topic), parsed.topic, parsed.partition, source / name))
    if not found and not of_ledgers:
        raise NotALogError(
            "no segment (<20 digits>.log) in the directory or in those directly below it", file=source,
            hint=_hint_of(source),
        )
    return [path for *_, path in sorted(found)] + sorted(of_ledgers)


def _hint_of(source: Path) -> str:
    """What to pass instead of a directory that has no partition: perhaps a log dir in it, `1/data` of a broker `1`."""
    for name in sorted(os.listdir(source)):
        with suppress(OSError):
            if any(
                names.parse_partition_dir(below) is not None and names.may_have_segments(source / name / below)
                for below in sorted(os.listdir(source / name))
            ):
                return f"pass the log dir in it, {source / name}"
    return "pass a partition directory (orders-0), a queue or a managed ledger, or the directory above"


def _rank(topic: str) -> int:
    return _FIRST.index(topic) if topic in _FIRST else len(_FIRST)


def _size_bytes(directory: Path) -> int:
    """The bytes of its logs, for a progress bar: 0 if it cannot be listed."""
    try:
        if has_ledgers(directory):
            return sum(path.stat().st_size for path in directory.rglob("*.log"))
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if names.is_log_file(entry.name))
    except OSError:
        return 0


def _check_apart(source: Path, repository: Repository) -> None:
    """Raise InvalidArgumentError if the store is in the source, or the source in the store."""
    if not isinstance(repository.store, LocalStore):
        return
    store, source = Path(os.path.realpath(repository.path)), Path(os.path.realpath(source))
    if store == source or store in source.parents or source in store.parents:
        raise InvalidArgumentError(
            "the store and the source are in each other", file=store, hint="keep backups elsewhere, on another disk"
        )
