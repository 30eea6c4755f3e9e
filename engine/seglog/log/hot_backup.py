"""A hot backup: a partition directory with everything that a log held at one moment, made while the log is in use.

Sealed segments never change, so they are hard links, or copies if links are impossible. Before seglog writes to a file
that has other names, it gives the directory a copy of its own (fs.aside.unshare). The active segment is copied up to
its end at that moment, and the copy is opened as after a crash: its checksums are checked, its indexes built.

The directory is made under another name and renamed in one step. The lines of the checkpoint files are written before
that: without the directory they mean nothing, and without them deleted records would come back.
"""
import errno
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError, StorageError
from seglog.format import names
from seglog.format.dialect import segment_files
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.fs.staging import Staging
from seglog.loading.loader import load
from seglog.log.snapshot_barrier import change_settled
from seglog.log.tail import LogTail
from seglog.state.checkpoints import TopicPartition
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import named_partition, refuse_file_in_the_way
from seglog.state.reader_cursor import cursor_files

# A hard link is impossible: another file system, one without links, a file with the most links it may have, a file of
# another user (fs.protected_hardlinks).
_NO_LINK = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a log at one moment. The caller ensures that its files stay until the backup is complete.

    `logs`: its .log files; of the last one, the bytes before `end_position`. `producer_snapshots`: the offsets of the
    snapshots up to the last segment's first offset. All of that is on the disk.
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
    """Make the partition directory `target`, an absolute path, durably and as a whole. Returns its log end offset.

    The caller holds the log's files_lock. Raises what Log.snapshot raises.
    """
    moment = change_settled(tail, _moment, tail)
    _write(tail.fs, moment, target, tail.now_ms())
    return moment.next_offset


def _moment(tail: LogTail) -> Moment:
    """With the lock: sync the log, and return its state."""
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
        raise InvalidArgumentError("the target is inside the log's directory", file=target, hint="choose another one")
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
    # Producers as of the active segment's first offset; the copy of that segment tells the rest.
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
    """Make links; from the first file on that cannot be linked, copies."""
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
    """Open the copy as after a crash in the active segment; this must not lose any record."""
    active = moment.logs[-1]
    config = moment.config.replace(recovery_mode="fail")
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
