"""`seglog restore`: partitions, queues and ledgers of a snapshot, or all of it, as a log dir.

    journal ── partition: staged, checked, indexed, renamed ── ... ── the log dir's own files ── journal removed

Each appears as a whole. meta.properties comes last, so a broker does not start on half a restore. A run that
finds the journal of its snapshot goes on where the one before was killed.
"""
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from seglog.archive.living_clusters import adapt, as_created, check_created, has_records, refuse_strays, topic_id_of
from seglog.archive.restore_journal import JOURNAL_FILE, BegunRestore, RestoreJournal
from seglog.archive.restored_files import RestoredFiles, RestoreEnd
from seglog.archive.restored_ledgers import RestoredLedger, restore_ledger
from seglog.backups.manifest import BackedFile, PartitionBackup, Snapshot, SnapshotLedger, SnapshotPartition
from seglog.backups.pieces import PieceStore
from seglog.backups.repository import Repository, file_content
from seglog.config import LogConfig
from seglog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    InvalidArgumentError,
    LogLockedError,
    StorageError,
)
from seglog.format import names
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import lock_log_dir, lock_partition
from seglog.fs.mapping import read_file
from seglog.fs.staging import Staging, remove_beside_leftovers, remove_leftovers
from seglog.reading.arguments import checked_config
from seglog.reading.settings import LogSettings
from seglog.reading.times import Time, to_time_bound_ms
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from seglog.state.checkpoints import TopicPartition
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import named_partition, refuse_file_in_the_way
from seglog.stores.open_store import AnyPath

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A partition that was restored. `damaged`: its segments that the source had damaged; they have no indexes.
    `is_emptied`: none of the records that the snapshot has is before the end that was asked for."""

    name: str
    path: Path
    log_start_offset: int
    next_offset: int
    size_bytes: int
    damaged: tuple[str, ...] = ()
    is_emptied: bool = False


@dataclass(slots=True)
class RestoreRun:
    """What `restore` did: the snapshot, the partitions, queues and ledgers that were restored, and in `found_whole` the
    names of those that a killed run had restored. `left_out`: {partition, queue or ledger: why}; it is not in the
    snapshot, which `snapshot.left_out` tells, too, or it has no state of the time or offset up to which the others were
    restored."""

    snapshot: Snapshot
    partitions: list[RestoredPartition] = field(default_factory=list)
    ledgers: list[RestoredLedger] = field(default_factory=list)
    found_whole: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def restore(
    store: AnyPath, dst: str | os.PathLike[str], *, snapshot: str = "latest", topics: Collection[str] = (),
    partitions: Collection[str] = (), until: "Time | None" = None, until_offset: int | None = None,
    rename: Mapping[str, str] | None = None, adopt: bool = False, config: Mapping[str, object] | None = None,
    options: Mapping[str, str] | None = None, dry_run: bool = False, progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> RestoreRun:
    """Restore what a snapshot has into the log dir `dst`, which is created if need be; nothing there is replaced.

    `snapshot`: its id, or the beginning of it. `topics`: names or globs such as `orders-*`, of topics, queues and
    managed ledgers; `partitions`: names such as `orders-0`; all of the snapshot if neither is given. Each partition is
    as of its moment: records, offsets, producers, leader epochs, cursors. So is each queue, with all its priorities:
    jobs, acknowledgements, attempts, delays, dead jobs; jobs that were in flight are delivered again. Indexes are built
    again, and every checksum is checked: a batch that was damaged in the source stays as it was, and is named.

    `until`: a time, as for `Log.read`; each partition ends before its first batch that has a later record.
    `until_offset`: a partition ends before the batch that holds this offset; name partitions or topics. A queue or
    ledger is restored as of its moment only: with an end before that, it is left out, and named in `left_out`. If
    nothing else is chosen, that is refused. `rename`: {topic: its new name}; a renamed partition has no topic id.
    `adopt`: `dst` is the log dir of a broker of a cluster that goes on, and has created the topics: fill their empty
    partitions, which keep the topic ids of that cluster. Every batch gets leader epoch 0. Without it, a restore
    into the log dir of a KRaft broker is refused if its cluster does not know the topic by the id that the backup has.
    `config`: settings that the indexes depend on and the logs do not keep, index.interval.bytes and
    segment.index.bytes; Kafka's defaults otherwise.

    Raises InvalidArgumentError if one of them exists already or the snapshot has none of that name, CorruptBackupError,
    LogLockedError if a broker or another restore is at work on `dst`, StorageError. What is restored by then stays;
    another run goes on with it.
    """
    target = Path(os.path.abspath(dst))
    fs = checked_fs(fs)
    checked = checked_config(config, "never", 0)
    end = _until(until, until_offset, is_chosen=bool(topics or partitions))
    repository = Repository(store, options, fs)
    found = repository.snapshot(snapshot)
    chosen = _renamed(_chosen(found, topics, partitions), rename or {})
    run = RestoreRun(found, left_out=_not_in(found, topics, partitions) | _left_out(found, chosen, topics, end))
    chosen = {name: part for name, part in chosen.items() if name not in run.left_out}
    ledgers = {name: part for name, part in chosen.items() if isinstance(part, SnapshotLedger)}
    is_whole = not topics and not partitions
    if ledgers and adopt:
        raise InvalidArgumentError(
            f"no broker has created the {next(iter(ledgers.values())).kind.value} {next(iter(ledgers))}",
            hint="choose topics of Kafka's: --topic",
        )
    pieces = repository.pieces()
    if not adopt and not (is_whole and any(file.name == names.META_PROPERTIES for file in found.files)):
        refuse_strays(target, [name for name in chosen if name not in ledgers], lambda name: _id_of(
            name, chosen[name], repository, pieces))
    refuse_file_in_the_way(target)
    files = found.files if is_whole else ()
    renamed = {name: part.name for name, part in chosen.items() if part.name != name}

    def check_target() -> RestoreJournal:
        journal = RestoreJournal(fs, target, BegunRestore(found.id, frozenset(chosen), end, renamed, adopt))
        _check_free(target, [name for name in chosen if name not in journal.done], adopt=adopt)
        _check_files(target, files, pieces)
        return journal

    journal = check_target()        # before anything is made: a run that is refused leaves nothing behind
    if dry_run:
        run.found_whole = sorted(journal.done & chosen.keys())
        run.partitions = [
            RestoredPartition(name, target / name, part.log_start_offset, part.next_offset, part.size_bytes)
            for name, part in chosen.items() if isinstance(part, SnapshotPartition) and name not in journal.done
        ]
        run.ledgers = [
            RestoredLedger(name, one.kind.value, target / name, one.size_bytes)
            for name, one in ledgers.items() if name not in journal.done
        ]
        return run
    make_directories(fs, target)
    with suppress(LogLockedError), lock_log_dir(fs, target):        # with a writer beside us they stay
        remove_leftovers(fs, target)
        for name in ledgers:
            remove_beside_leftovers(fs, target / name)
    with LogDirState(fs, target, gathers=True) as log_dir:
        log_dir.claim("restore")        # two would overwrite each other's journal
        journal = check_target()
        journal.put()
        told = _Told(progress, sum(part.size_bytes for part in chosen.values()))
        for name, part in chosen.items():
            if name in journal.done:
                run.found_whole.append(name)
                told.add(part.size_bytes)
            elif isinstance(part, SnapshotLedger):
                run.ledgers.append(restore_ledger(fs, target / name, repository.ledger(part, pieces), pieces, told.add))
            else:
                backed = repository.partition(part, pieces)
                run.partitions.append(
                    _restore(fs, log_dir, target / name, backed, pieces, checked, end, told, journal if adopt else None)
                )
        for file in sorted(files, key=lambda file: file.name == names.META_PROPERTIES):
            path = target / file.name
            if not path.exists():
                write_atomically(fs, path, file_content(file, pieces))
                fs.set_mode(path, file.mode)
        fs.sync_directory(target)
        fs.unlink(target / JOURNAL_FILE)        # if a crash brings it back, the next run finds nothing to do
    return run


class _Told:
    """How far a run is."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


_Part = SnapshotPartition | SnapshotLedger


def _hint_of(kind: str, name: str, partitions: Collection[str]) -> str:
    if kind == "topic" and name in partitions:
        return f'for one partition, partitions=["{name}"]'
    return "`seglog backup ls STORE --snapshot ...` lists what it has"


def _topic_of(part: _Part) -> str:
    """That of a partition; a queue or ledger is named as a whole."""
    return part.name if isinstance(part, SnapshotLedger) else part.name.rpartition("-")[0]


def _chosen(snapshot: Snapshot, topics: Collection[str], partitions: Collection[str]) -> list[_Part]:
    if isinstance(topics, str) or isinstance(partitions, str):
        raise InvalidArgumentError("topics and partitions are lists of names", hint="pass a list, even for one name")
    parts = {part.name: part for part in snapshot.partitions}
    of_topic = {_topic_of(part) for part in snapshot.parts}
    for kind, wanted, known in (("topic", topics, of_topic), ("partition", partitions, parts)):
        for name in wanted:
            if not (any(fnmatchcase(topic, name) for topic in known) if kind == "topic" else name in known):
                left_out = _not_in(snapshot, [name], [name])
                raise InvalidArgumentError(
                    f"the snapshot {snapshot.id} has no {kind} {name!r}" + "".join(
                        f"; {one} was left out: {why}" for one, why in left_out.items()),
                    hint=_hint_of(kind, name, parts),
                )
    if not topics and not partitions:
        return list(snapshot.parts)
    return [
        part for part in snapshot.parts
        if any(fnmatchcase(_topic_of(part), glob) for glob in topics)
        or (part.name in partitions and part.name in parts)
    ]


def _not_in(snapshot: Snapshot, topics: Collection[str], partitions: Collection[str]) -> dict[str, str]:
    """What was left out of the snapshot, and why; of what is chosen, if something is."""
    return {
        name: why for name, why in snapshot.left_out.items()
        if not (topics or partitions) or name in partitions
        or any(fnmatchcase(one, glob) for one in (name, name.rpartition("-")[0]) for glob in topics)
    }


def _renamed(parts: Collection[_Part], rename: Mapping[str, str]) -> dict[str, _Part]:
    """The partitions, queues and ledgers by the names that they get."""
    if not isinstance(rename, Mapping):
        raise InvalidArgumentError(f"rename must be a mapping of topics to names, not {type(rename).__name__}")
    for new in rename.values():
        names.validate_topic(new)
    found: dict[str, _Part] = {}
    used = set()
    for part in parts:
        topic = _topic_of(part)
        used.add(topic)
        name = rename.get(topic, topic) + part.name[len(topic) :]
        if name in found:
            raise InvalidArgumentError(f"{part.name} and {found[name].name} would both become {name}")
        found[name] = part
    for topic in rename:
        if topic not in used:
            raise InvalidArgumentError(f"no topic {topic!r} is restored that could be renamed")
    return found


def _left_out(
    snapshot: Snapshot, chosen: Mapping[str, _Part], topics: Collection[str], end: RestoreEnd | None
) -> dict[str, str]:
    """{queue or ledger that has no state of that end: why}. Raises InvalidArgumentError if that is all that one of the
    `topics` has, or all of the snapshot."""
    if end is None or (end.time_ms is not None and snapshot.ended_at_ms <= end.time_ms):
        return {}
    left_out = {}
    for name, part in chosen.items():
        if isinstance(part, SnapshotLedger):
            moment = datetime.fromtimestamp(part.taken_at_ms // 1000, UTC)
            what = "an offset" if end.time_ms is None else "an earlier time"
            left_out[name] = (
                f"a {part.kind.value} is restored as of its moment, {moment:%Y-%m-%dT%H:%M:%SZ}, not of {what}"
            )
    for glob in topics or ["*"]:
        of_glob = [name for name, part in chosen.items() if fnmatchcase(_topic_of(part), glob)]
        if of_glob and left_out.keys() >= set(of_glob):
            raise InvalidArgumentError(
                f"{of_glob[0]}: {left_out[of_glob[0]]}",
                hint="leave out the end, and choose a snapshot from before it: `seglog backup ls STORE` lists them",
            )
    return left_out


def _until(until: "Time | None", until_offset: int | None, *, is_chosen: bool) -> RestoreEnd | None:
    if until_offset is not None:
        if until is not None:
            raise InvalidArgumentError("until and until_offset exclude each other")
        if type(until_offset) is not int or until_offset < 0:
            raise InvalidArgumentError(f"until_offset must be an offset, not {until_offset!r}")
        if not is_chosen:
            raise InvalidArgumentError(
                "an offset is one of a partition", hint="say which one: --partition, or several by --topic"
            )
        return RestoreEnd(None, until_offset)
    return None if until is None else RestoreEnd(to_time_bound_ms(until), None)


def _id_of(name: str, part: _Part, repository: Repository, pieces: PieceStore) -> str | None:
    """The topic id of a partition that gets this name."""
    if not isinstance(part, SnapshotPartition) or part.name != name:
        return None
    return topic_id_of(repository.partition(part, pieces), lambda file: file_content(file, pieces))


def _check_free(target: Path, parts: list[str], *, adopt: bool) -> None:
    if adopt:
        check_created(target, parts)
        return
    for name in parts:
        if os.path.lexists(target / name):
            raise InvalidArgumentError(
                "it exists already; nothing was changed", file=target / name,
                hint="choose another target, or move it away",
            )


def _check_files(target: Path, files: Collection[BackedFile], pieces: PieceStore) -> None:
    """A file of the log dir may be there only with the same content: of a killed run."""
    for file in files:
        path = target / file.name
        if os.path.lexists(path) and read_file(path) != file_content(file, pieces):
            raise InvalidArgumentError(
                "the log dir has this file already, with other content", file=path,
                hint="restore into an empty directory, or only some topics: --topic",
            )


# --- one partition -------------------------------------------------------------------------------


def _restore(
    fs: FileSystem, log_dir: LogDirState, path: Path, backed: PartitionBackup, pieces: PieceStore, config: LogConfig,
    until: RestoreEnd | None, told: _Told, journal: RestoreJournal | None,
) -> RestoredPartition:
    """`journal`: fill the partition that a broker has created."""
    if journal is None:
        return _publish(fs, log_dir, path, backed, pieces, config, until, told, None)
    with lock_partition(fs, path):      # its writer would go on in the directory that is replaced
        check_created(path.parent, [path.name])
        return _publish(fs, log_dir, path, as_created(backed, path), pieces, config, until, told, journal)


def _publish(
    fs: FileSystem, log_dir: LogDirState, path: Path, backed: PartitionBackup, pieces: PieceStore, config: LogConfig,
    until: RestoreEnd | None, told: _Told, journal: RestoreJournal | None,
) -> RestoredPartition:
    where = named_partition(path)
    is_of_log_dir = where[0] != names.METADATA_TOPIC        # its log is no log of Kafka's LogManager
    if journal is None and path.name != backed.name:
        files = tuple(file for file in backed.files if file.name != names.PARTITION_METADATA)
        backed = replace(backed, files=files)
    with Staging.of_partition(fs, path, replace=journal is not None) as staging:
        write = RestoredFiles(fs, staging, backed, pieces, told.add)
        restored = write.whole() if until is None or not is_of_log_dir else write.until(until)
        if journal is not None:
            adapt(fs, staging, restored)
        damaged = _build_indexes(fs, staging, restored, config)
        has_lines = False
        try:
            if is_of_log_dir:
                has_lines = True
                _put_lines(log_dir, where, restored)
            if journal is not None:
                journal.will_publish(path.name, staging.path)
            staging.publish()
        except BaseException:
            if has_lines and not (path.exists() if journal is None else has_records(path)):
                with suppress(StorageError):
                    log_dir.forget(where)
            raise
    return RestoredPartition(
        path.name, path, restored.log_start_offset, restored.next_offset, restored.size_bytes, tuple(damaged),
        restored.next_offset <= restored.log_start_offset and backed.next_offset > backed.log_start_offset,
    )


def _build_indexes(fs: FileSystem, staging: Staging, backed: PartitionBackup, given: LogConfig) -> list[str]:
    """Write the index files that are functions of the log. Returns the segments that are damaged."""
    config = LogSettings(staging.path, given, given).config
    config = config.replace(time_index_minute_enabled=backed.has_minute_indexes)
    modes = {file.name: file.mode for file in backed.files if names.is_log_file(file.name)}
    damaged = []
    for name in names.of_one_dialect(list(modes)):
        segment = Segment(staging.path / name, is_last=False)
        try:
            built = index_bytes(segment, config)
        except (CorruptRecordError, CorruptIndexError):
            damaged.append(name)
        else:
            for suffix, raw in built.files(config, segment.dialect):
                staging.write_file(name[:20] + suffix, raw)
                fs.set_mode(staging.path / (name[:20] + suffix), modes[name])
        finally:
            segment.close()
    return damaged


def _put_lines(log_dir: LogDirState, where: TopicPartition, backed: PartitionBackup) -> None:
    bases = [names.parse_base_offset(file.name) for file in backed.files if names.is_log_file(file.name)]
    has_own_start = bool(bases) and backed.log_start_offset > min(bases)
    end = backed.next_offset
    log_dir.put_offsets(where, {
        names.LOG_START_OFFSET_CHECKPOINT: backed.log_start_offset if has_own_start else None,
        names.REPLICATION_CHECKPOINT: end if backed.high_watermark is None else backed.high_watermark,
        names.RECOVERY_POINT_CHECKPOINT: end,
        names.CLEANER_CHECKPOINT: backed.cleaner_offset,
    })
