"""Recovers a partition directory on request: shows what would be lost, then does it, to a copy or in place.

It does what opening a log does after a crash (loading.loader), from the first batch on and whatever the checkpoints
say. The copy is built in a staging directory and gets its name when it is complete. In place, the log dir and the
partition are locked as by an open log, and Kafka's clean-shutdown file is absent until all files are consistent again.
"""
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from seglog.clock import Clock, checked_clock
from seglog.config import LogConfig
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.format.dialect import KAFKA
from seglog.fs.aside import copy_file, have_same_bytes, make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import lock_log_dir, lock_partition
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.partition_locks import lock_beside
from seglog.fs.refusals import hint_of_log_dir
from seglog.fs.staging import Staging, remove_leftovers
from seglog.loading.loader import LoadPlan, PlannedSegment, Repair, plan_load
from seglog.reading.arguments import checked_path
from seglog.segment.positions import LostRange
from seglog.state.checkpoints import TopicPartition, read_offset_checkpoint
from seglog.state.directory_dialect import DIALECT_SETTING, directory_dialect
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import refuse_file_in_the_way
from seglog.state.quarantine import DIRECTORY as QUARANTINE
from seglog.upkeep.refill import FilledRange, Refill

AnyPath = str | os.PathLike[str]

MODES = ("truncate", "quarantine")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery removed from a log, or would remove. Files are named as in `source`.

    `target`: the recovered directory: the copy, the source, or None for a dry run. `mode`: what was done with damage.
    `log_start_offset`, `log_end_offset`, `segments`: of the recovered log. `lost`: the ranges that were removed.
    `repairs`: other repairs, which cost no record; indexes, producers and epochs are not listed. `backups`: the files
    with the former contents. `filled`: what was taken from replicas; `unfilled`: why a replica did not fill all that is
    missing.
    """

    source: Path
    target: Path | None
    mode: str
    log_start_offset: int
    log_end_offset: int
    segments: int
    lost: tuple[LostRange, ...]
    repairs: tuple[Repair, ...]
    backups: tuple[Path, ...] = ()
    filled: tuple[FilledRange, ...] = ()
    unfilled: Mapping[Path, str] = field(default_factory=dict)

    @property
    def lost_bytes(self) -> int:
        """The number of bytes that all lost ranges had together."""
        return sum(lost.size_bytes for lost in self.lost)


def recover(
    src: AnyPath,
    out: AnyPath | None = None,
    *,
    mode: str,
    apply: bool = False,
    backup: AnyPath | None = None,
    sources: Sequence[AnyPath] = (),
    config: Mapping[str, object] | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Recovery:
    """Recover the partition directory `src`: into a copy `out`, in place with `apply`, or, without either, show what
    would be lost.

    `mode`: "truncate" ends the log at the first damage, as Kafka does; "quarantine" removes only the damage, keeps its
    bytes in `quarantine/`, and keeps every later batch with its offsets. `backup`: with `apply`, keep each .log that is
    changed or removed in this directory, below the name of the partition: on the same file system, but outside the log
    dir, where a broker would refuse it. `sources`: directories of replicas, from which damaged stretches, gaps and a
    lost end are filled first, as far as they are copies of this log; with "quarantine" only. `config`: the topic's
    `index.interval.bytes` and others, which a directory does not contain.

    Raises NotALogError; InvalidArgumentError for a target or a backup that exists; LogLockedError if a broker or
    another writer holds the log dir that is written to; StorageError; InvalidConfigError.
    """
    if mode not in MODES:
        raise InvalidArgumentError(f"unknown recovery mode {mode!r}", hint=f"choose {' or '.join(MODES)}")
    if out is not None and apply:
        raise InvalidArgumentError("out and apply exclude each other")
    if backup is not None and not apply:
        raise InvalidArgumentError("a backup needs apply: without it the source does not change")
    if sources and mode != "quarantine":
        raise InvalidArgumentError("to fill a log from replicas takes the mode quarantine: the other one ends the log")
    fs = checked_fs(fs)
    replicas = [Path(os.path.abspath(checked_path(other))) for other in sources]
    now_ms = checked_clock(clock).now_ms()
    source = Path(os.path.abspath(checked_path(src)))
    if source.is_dir() and not names.has_segments(source):
        raise NotALogError(
            "no segment file (<20 digits>.log) in the directory", file=source, hint=hint_of_log_dir(source)
        )
    dialect = directory_dialect(source).dialect if source.is_dir() else KAFKA
    settings = LogConfig.of({**(config or {}), "seglog.recovery.mode": mode, DIALECT_SETTING: dialect.name})
    if apply:
        backups_in = None if backup is None else _checked_backup(source, Path(os.path.abspath(checked_path(backup))))
        with ExitStack() as locks:
            for lock in lock_beside(fs, source):
                locks.enter_context(lock)
            log_dir = locks.enter_context(LogDirState(fs, os.path.realpath(source.parent)))
            locks.enter_context(lock_partition(fs, source))
            refill = _refill(locks, source, source, replicas, settings)
            plan = _plan(source, source, settings)
            backups = () if backups_in is None else _back_up(fs, plan, refill, backups_in)
            directory = log_dir.path / source.name
            log_dir.make_dirty({directory: {}})
            if refill is not None:
                refill.apply(fs)
                plan = _plan(source, source, settings)
            done = _done(plan, fs, now_ms, source, source, mode, backups, refill)
            if (where := names.parse_partition_dir(source.name)) is not None and not where.mark:
                _put_end(log_dir, (where.topic, where.partition), done.log_end_offset)
            log_dir.make_clean(directory)
            return done
    if out is None:
        with ExitStack() as opened:
            refill = _refill(opened, source, source, replicas, settings)
            return _told(_plan(source, source, settings), source, None, mode, (), refill)
    target = _checked_target(source, Path(os.path.abspath(checked_path(out))))
    make_directories(fs, target.parent)
    with lock_log_dir(fs, os.path.realpath(target.parent)):
        remove_leftovers(fs, target.parent)
        with Staging.of_partition(fs, target) as staging:
            _copy(fs, source, staging)
            with ExitStack() as opened:
                refill = _refill(opened, staging.path, source, replicas, settings)
                if refill is not None:
                    refill.apply(fs)
                done = _done(_plan(staging.path, source, settings), fs, now_ms, source, target, mode, (), refill)
            staging.publish()
            return done


def _refill(
    opened: ExitStack, directory: Path, source: Path, replicas: Sequence[Path], config: LogConfig
) -> Refill | None:
    """What the replicas can fill; None without any."""
    return opened.enter_context(Refill(directory, source, replicas, config)) if replicas else None


def _plan(directory: Path, source: Path, config: LogConfig) -> LoadPlan:
    return plan_load(directory, config, clean=False, log_start_offset=_log_start_offset(source))


def _log_start_offset(source: Path) -> int:
    """Return what the log dir's checkpoint says, 0 if it says nothing."""
    parsed = names.parse_partition_dir(source.name)
    try:
        starts = read_offset_checkpoint(source.parent / names.LOG_START_OFFSET_CHECKPOINT)
    except (FileNotFoundError, CorruptCheckpointError):
        return 0
    return 0 if parsed is None else max(0, starts.get((parsed.topic, parsed.partition), 0))


def _done(
    plan: LoadPlan, fs: FileSystem, now_ms: int, source: Path, target: Path, mode: str, backups: tuple[Path, ...],
    refill: Refill | None,
) -> Recovery:
    plan.apply(fs, now_ms)
    return _told(plan, source, target, mode, backups, refill)


def _put_end(log_dir: LogDirState, where: TopicPartition, end: int) -> None:
    """The recovery point is the end now, and the high watermark is not above it, as a broker leaves both."""
    lines: dict[str, int | None] = {names.RECOVERY_POINT_CHECKPOINT: end}
    if (log_dir.offset(names.REPLICATION_CHECKPOINT, where) or 0) > end:
        lines[names.REPLICATION_CHECKPOINT] = end
    log_dir.put_offsets(where, lines)


def _told(
    plan: LoadPlan, source: Path, target: Path | None, mode: str, backups: tuple[Path, ...], refill: Refill | None
) -> Recovery:
    """`plan`: of the filled log; in a dry run, of the log as it is."""
    filled = () if refill is None else refill.filled()
    lost, end = tuple(plan.lost), plan.next_offset
    if refill is not None and target is None:
        lost, end = refill.still_lost(lost), max(end, refill.log_end_offset)
    files = {segment.files.log.name for segment in plan.segments} | {Path(one.file).name for one in filled}
    return Recovery(
        source, target, mode, plan.log_start_offset, end, max(len(files), 1),
        tuple(one._replace(file=str(source / Path(one.file).name)) for one in lost),
        tuple(repair._replace(file=str(source / Path(repair.file).name)) for repair in plan.repairs),
        backups, filled, {} if refill is None else refill.reasons,
    )


# --- the copy ----------------------------------------------------------------------------------


def _checked_target(source: Path, target: Path) -> Path:
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source or real_source in real_target.parents:
        raise InvalidArgumentError("the target is inside the source", file=target, hint="choose another directory")
    refuse_file_in_the_way(target.parent)
    return target


def _copy(fs: FileSystem, source: Path, staging: Staging) -> None:
    """Copy the log's files, its settings, and an existing quarantine. Locks and marks are not copied."""
    for path in sorted(source.iterdir()):
        if path.is_file() and (path.name == SETTINGS_FILE or not path.name.startswith(".")):
            copy_file(fs, path, staging.path / path.name)
    quarantine = source / QUARANTINE
    if quarantine.is_dir():
        fs.mkdir(staging.path / QUARANTINE)
        for path in sorted(quarantine.iterdir()):
            if path.is_file():
                copy_file(fs, path, staging.path / QUARANTINE / path.name)


# --- the backup --------------------------------------------------------------------------------


def _checked_backup(source: Path, directory: Path) -> Path:
    """Return where the backups of a partition go."""
    log_dir, place = Path(os.path.realpath(source.parent)), Path(os.path.realpath(directory))
    if log_dir in (place, *place.parents):
        raise InvalidArgumentError(
            "the backup would be in the log dir, where a broker refuses it", file=directory,
            hint="choose a directory outside, on the same file system",
        )
    return directory / source.name


def _back_up(fs: FileSystem, plan: LoadPlan, refill: Refill | None, directory: Path) -> tuple[Path, ...]:
    """Give each .log that will be changed or removed a second name. The other files can be rebuilt from it."""
    grown = set() if refill is None else {Path(one.file).name for one in refill.filled()}
    changed = {s.files.log.path: s for s in plan.segments if s.is_changed or s.files.log.name in grown}
    going = [*(s.files.log for s in changed.values()), *(files.log for files in plan.removed)]
    backups = tuple(directory / log.name for log in going)
    if backups:
        make_directories(fs, directory)
    for log, backup in zip(going, backups, strict=True):
        if not os.path.lexists(backup):
            fs.link(log.path, backup)
        elif not (
            # A killed run made it; the directory may have been copied since, without its links. Or that run was killed
            # between its two changes of the log: it was filled, and still has the damage that no replica could fill.
            os.path.samefile(log.path, backup) or have_same_bytes(log.path, backup)
            or _has_what_goes(backup, changed.get(log.path))
        ):
            raise InvalidArgumentError(
                "a backup already exists", file=backup, hint="move it away: it may be the only whole copy"
            )
    if backups:
        fs.sync_directory(directory)
    return backups


def _has_what_goes(backup: Path, changed: PlannedSegment | None) -> bool:
    """Whether a backup has all bytes that a change will remove from a .log; False if it removes none."""
    if changed is None or changed.runs is None or changed.foreign_magics:
        return False
    ends = [0, *(run.stop for run in changed.runs)]
    starts = [*(run.start for run in changed.runs), changed.files.log.size_bytes]
    going = [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
    with FileMapping(changed.files.log.path) as log, FileMapping(backup) as kept:
        raw, kept_raw = memoryview(log), bytes(memoryview(kept))
        return bool(going) and all(bytes(raw[end:start]) in kept_raw for end, start in going)
