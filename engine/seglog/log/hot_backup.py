"""A hot backup: a partition directory with all that a log was at one moment, while the log goes on.

Sealed segments never change, so they are hard links, or copies where there can be none; who opens a directory and
writes into a file that has other names gives it a file of its own first (fs.aside.unshare). The active segment is
copied up to its end as of then, and the copy is opened as after a crash: its checksums are checked, its indexes made.

All of it is made aside and gets its name in one step. The lines of the checkpoint files come before that: without
their directory they mean nothing, and without them deleted records would come back.
"""
import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError, StorageError
from seglog.format import names
from seglog.format.dialect import segment_files
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.fs.staging import Staging
from seglog.log.loader import load
from seglog.log.settled import change_settled
from seglog.log.tail import LogTail
from seglog.state.checkpoints import TopicPartition
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import named_partition, refuse_file_in_the_way
from seglog.state.reader_cursor import cursor_files

# Where a second name cannot be had: another file system, one without links, a file that has as many as it may, links
# to files of others (fs.protected_hardlinks).
_NO_LINK = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a log was at one moment. Its files stay for as long as the backup takes: the caller holds them.

    `logs`: its .log files; of the last one the bytes before `end_position`. `producer_snapshots`: the offsets of those
    up to its first offset. All of that is on the disk.
    """

    path: Path
    config: LogConfig
    logs: tuple[Path, ...]
    end_position: int
    log_start_offset: int
    next_offset: int
    leader_epochs: LeaderEpochs
    producer_snapshots: tuple[int, ...]


def back_up(tail: LogTail, target: Path) -> int:
    """Make the partition directory `target`, an absolute path, durably and as a whole; its log end offset.

    The caller holds the log's files_lock. Raises as Log.snapshot does.
    """
    moment = change_settled(tail, _moment, tail)
    _write(tail.fs, moment, target, tail.now_ms())
    return moment.next_offset


def _moment(tail: LogTail) -> Moment:
    """With the lock: what the log is now, all of it on the disk."""
    tail.write_lingering()
    tail.alone_within(tail.sync_all)
    tail.snapshots.settle()
    extent = tail.current()
    snapshots = tuple(o for o in tail.snapshots.offsets if o <= tail.active.base_offset)
    return Moment(
        tail.path, tail.config, tuple(segment.path for segment in extent.segments), tail.active.end.position,
        extent.log_start_offset, tail.next_offset, tail.epoch_cache.epochs, snapshots,
    )


def _write(fs: FileSystem, moment: Moment, target: Path, now_ms: int) -> None:
    where = named_partition(target)
    source, log_dir_path = moment.path.resolve(), target.parent.resolve()
    if source == log_dir_path or source in log_dir_path.parents:
        raise InvalidArgumentError("the target is inside the log", file=target, hint="choose another directory")
    refuse_file_in_the_way(target.parent)
    make_directories(fs, target.parent)
    with LogDirState(fs, target.parent) as log_dir, Staging.of_partition(fs, target) as staging:
        _fill(fs, staging, moment, keeps_topic_id=where[0] == named_partition(moment.path)[0])
        _check(fs, staging, moment, now_ms)
        has_own_start = moment.log_start_offset > names.parse_base_offset(moment.logs[0].name)
        try:
            _put_lines(log_dir, where, moment.next_offset, moment.log_start_offset if has_own_start else None)
            staging.publish()
        except BaseException:
            if not target.exists():
                _put_lines(log_dir, where, None, None)
            raise


def _fill(fs: FileSystem, staging: Staging, moment: Moment, *, keeps_topic_id: bool) -> None:
    *sealed, active = moment.logs
    # Producers as of the active segment's first offset; how they went on from there, the copy tells.
    snapshots = [moment.path / names.file_name(offset, names.SNAPSHOT_SUFFIX) for offset in moment.producer_snapshots]
    _link(staging, (*snapshots, *(path for log in sealed for path in segment_files(log))))
    staging.copy(active.name, active, moment.end_position)
    if len(moment.leader_epochs):
        staging.write_file(names.LEADER_EPOCH_CHECKPOINT, moment.leader_epochs.to_bytes())
    settings = moment.path / SETTINGS_FILE
    if settings.exists():
        staging.copy(settings.name, settings)
    for cursor in cursor_files(moment.path):
        staging.copy(cursor.name, cursor)
    metadata = moment.path / names.PARTITION_METADATA
    if keeps_topic_id and metadata.exists():
        staging.copy(metadata.name, metadata)
    fs.sync_directory(staging.path)


def _link(staging: Staging, paths: Iterable[Path]) -> None:
    """Links, or copies from the first one on that can be none."""
    links = True
    for path in paths:
        if links:
            try:
                staging.link(path.name, path)
                continue
            except StorageError as error:
                if error.errno not in _NO_LINK:
                    raise
                links = False
        staging.copy(path.name, path)


def _check(fs: FileSystem, staging: Staging, moment: Moment, now_ms: int) -> None:
    """Open the copy as after a crash in the active segment; nothing of it may be lost by that."""
    active = moment.logs[-1]
    config = replace(moment.config, recovery_mode="fail")
    try:
        loaded = load(
            fs, staging.path, config, clean=False, recovery_point=names.parse_base_offset(active.name),
            log_start_offset=moment.log_start_offset, now_ms=now_ms,
        )
    except CorruptRecordError as error:
        error.file = str(active)
        raise
    for lost in loaded.lost:
        raise CorruptRecordError(lost.reason, file=active, position=lost.position, offset=lost.first_offset)


def _put_lines(log_dir: LogDirState, where: TopicPartition, end: int | None, start: int | None) -> None:
    log_dir.put_offset(names.LOG_START_OFFSET_CHECKPOINT, where, start)
    log_dir.put_offset(names.REPLICATION_CHECKPOINT, where, end)
    log_dir.put_offset(names.RECOVERY_POINT_CHECKPOINT, where, end)
