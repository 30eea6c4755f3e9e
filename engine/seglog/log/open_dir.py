"""A log dir: several logs by topic and partition, as Kafka's LogManager keeps them.

    with seglog.open_dir("data") as log_dir:
        orders = log_dir.log("orders", 0)
        orders.append(b"...")
        log_dir.partitions()            # [("orders", 0)]

Opening locks the log dir against brokers, and creates it if it does not exist. Each partition is locked when its log is
opened: other processes may use other partitions.
"""
import contextlib
import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import InvalidArgumentError, LogClosedError, LogLockedError, NotALogError, StorageError
from seglog.format import names
from seglog.fs import lock
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.handles import OpenHandle
from seglog.fs.staging import remove_deleted_partition, remove_partition, rename_deleted
from seglog.late_import import late
from seglog.log.log import Log
from seglog.log.maintainer import Maintainer
from seglog.log.retaining import keep_all
from seglog.reading.arguments import checked_config, checked_path
from seglog.reading.cluster_settings import ClusterSettings
from seglog.state.checkpoints import TopicPartition
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import refuse_file_in_the_way

if TYPE_CHECKING:
    from seglog.log.expiry import Retention

_LOGS_BEFORE_A_LOOK = 64
# So many new partitions are synced together.
_SYNCED_TOGETHER = 64
# With 8 threads, 300 logs with a record each closed in a third of the time; with 32 it took no less.
_CLOSING_THREADS = 8
_LOGS_OF_A_THREAD = 8


class LogDir(OpenHandle):
    """A log dir, from `seglog.open_dir(path)`. Use it as a context manager, or close it: that closes its logs. Threads
    may share it. `path`: its directory. `cleaner`: the thread that cleans its logs, which can be told to do it now."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | LogConfig | None = None,
        fsync: Fsync = "batch",
        leader_epoch: int = 0,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        retention: "Retention" = keep_all,
        maintainer: Maintainer | None = None,
    ) -> None:
        """The arguments are those of `seglog.open`, for every log. `retention`: the rule for what logs delete by
        themselves; `maintainer`: does the background work of all of them (log.maintainer). Raises NotALogError (a file,
        or a partition directory), LogLockedError, InvalidConfigError, InvalidArgumentError, StorageError."""
        self.path = Path(os.path.abspath(checked_path(path)))
        refuse_file_in_the_way(self.path)
        checked = checked_config(config, fsync, leader_epoch)
        # As given, so that each log knows which settings were given, even defaults and those that seglog does not use.
        self._config = dict(config) if isinstance(config, Mapping) else checked
        self._fsync = fsync
        self._leader_epoch = leader_epoch
        self._clock = clock
        self._fs = checked_fs(fs)
        make_directories(self._fs, self.path)
        self._retention = retention
        self.cleaner = maintainer
        self._cluster_settings = ClusterSettings(self.path)
        self._state = LogDirState(self._fs, self.path, gathers=True)
        self._logs: dict[TopicPartition, Log] = {}
        self._logs_most = _LOGS_BEFORE_A_LOOK       # at this number, closed logs are dropped
        # Guards _logs, _logs_most and _closed; held while a log opens, so that two threads get the same one.
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<LogDir {self.path}: {len(self._logs)} logs opened>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def partitions(self) -> list[TopicPartition]:
        """(topic, partition) of every partition directory, in order, whether it is open or not."""
        self._check()
        return self._state.partitions()

    def log(
        self,
        topic: str,
        partition: int = 0,
        *,
        config: Mapping[str, object] | LogConfig | None = None,
        create: bool = True,
    ) -> Log:
        """Open or create the log of a partition; returns the same object while it is open. It may be closed separately.

        `config`: used instead of the log dir's; refused if the log is open already. `create=False` refuses if the
        partition does not exist. Raises what `seglog.open` raises.
        """
        where = _checked(topic, partition)
        self._check()       # in a forked child, a thread that does not exist there may hold the lock
        with self._lock:
            self._check()
            log = self._logs.get(where)
            if log is not None and not log.closed:
                if config is not None:
                    raise InvalidArgumentError(
                        "the log is open already: config cannot change it", file=log.path,
                        hint="leave config out, call log.configure, or close the log first")
                return log
            self._forget_closed()
            log = self._logs[where] = Log(
                self.path / names.partition_dir(*where), config=self._config if config is None else config,
                fsync=self._fsync, leader_epoch=self._leader_epoch, clock=self._clock, fs=self._fs, create=create,
                log_dir=self._state,
                retention=self._retention, maintainer_of=lambda config: self.cleaner,
                told=partial(self._cluster_settings.of_log, is_for_all=config is None),
            )
            return log

    def _begin_appends(self, logs: Sequence[Log]) -> None:
        """Put on the disk, with a few syncs, what has to be there before the first append to each of these new logs.
        Nobody else may have them yet. Raises StorageError."""
        self._check()
        late("seglog.log.first_appends")
        from seglog.log.first_appends import begin_together

        shielded(begin_together, self._state, [log._tail for log in logs])

    def _create_partitions(self, files: Mapping[TopicPartition, Mapping[str, bytes]]) -> None:
        """Make the directories of partitions with these files in them, and open no log. A directory that is there gets
        the files that it lacks.

        The names of the directories are durable then, by one sync; `_sync_partitions` makes the files durable. Raises
        StorageError, and leaves what it made.
        """
        self._check()
        # Text: for thousands of partitions, objects of pathlib take longer than the directories.
        paths = {where: os.path.join(self.path, names.partition_dir(*_checked(*where))) for where in files}
        made = [where for where, path in paths.items() if not os.path.isdir(path)]
        marks = self._state.begin({where: Path(paths[where]) for where in made})
        for where in made:
            self._fs.mkdir(paths[where])
        new = set(made)
        for where, contents in files.items():
            is_new = where in new
            for name, content in {**contents, **marks}.items() if is_new else contents.items():
                path = f"{paths[where]}{os.sep}{name}"
                if is_new or not os.path.lexists(path):
                    with self._fs.create(path) as file:
                        file.append(content)
        self._fs.sync_directory(self.path)

    def _sync_partitions(self, files: Mapping[TopicPartition, Iterable[str]]) -> Iterator[None]:
        """Make these files in partitions durable, some partitions at each step. What was deleted meanwhile is left out.
        Raises StorageError."""
        left = [(self.path / names.partition_dir(*where), file_names) for where, file_names in files.items()]
        for at in range(0, len(left), _SYNCED_TOGETHER):
            some = dict(left[at : at + _SYNCED_TOGETHER])
            if not self._are_synced(some):
                for directory, file_names in some.items():
                    self._are_synced({directory: file_names})
            yield

    def _are_synced(self, files: Mapping[Path, Iterable[str]]) -> bool:
        """Sync these files of directories, and their names; False if one of them is not there."""
        try:
            self._fs.sync_files([directory / name for directory, file_names in files.items() for name in file_names])
            self._fs.sync_directories(list(files))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def _delete_partitions(self, partitions: Sequence[TopicPartition], left: list[Callable[[], None]]) -> None:
        """As `delete`, for several partitions, with one sync. `left` gets functions that remove the files of each, now,
        later, or at the next start. If an error ends it, the first ones are deleted."""
        before = len(left)
        try:
            # Shielded as a whole: there are a dozen shielded calls a partition, each with two switches of threads.
            shielded(self._rename_deleted, partitions, left)
        finally:
            if len(left) > before:
                self._fs.sync_directory(self.path)

    def _check_deletable(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise LogLockedError if somebody else has one of these open, as `delete` would."""
        for where in partitions:
            log = self._logs.get(where)
            if log is None or log.closed:
                file = os.path.join(self.path, names.partition_dir(*where), lock.PARTITION_LOCK)
                # Most have never been opened, and have no lock file: asking who holds it costs much more.
                who = lock.writer_of(os.path.dirname(file)) if os.path.lexists(file) else None
                if who is not None:
                    raise LogLockedError(f"locked by {who}", file=file, hint=who.hint)

    def _rename_deleted(self, partitions: Sequence[TopicPartition], left: list[Callable[[], None]]) -> None:
        for where in partitions:
            with self._lock:
                self._check()
                directory = self._released(where, discards=True)
                with lock.lock_partition(self._fs, directory):
                    left.append(rename_deleted(self._fs, directory))
                    self._state.gather_offsets(where, dict.fromkeys(names.OFFSET_CHECKPOINTS), gone=True)

    def delete(self, topic: str, partition: int = 0) -> None:
        """Remove a partition: its directory, and its lines in the log dir's checkpoint files.

        It disappears in one step, a rename to the name of a deleted partition. If a crash comes after that, a broker
        removes the rest when it starts, and so do `seglog serve` and `seglog convert`. Raises NotALogError if there is
        no such partition, LogLockedError if another process has it open.
        """
        where = _checked(topic, partition)
        with self._lock:
            self._check()
            directory = self._released(where)
            with lock.lock_partition(self._fs, directory):
                remove_partition(self._fs, directory)
                # The old lines do no harm until then: creating a partition of the same name removes them first.
                self._state.gather_offsets(where, dict.fromkeys(names.OFFSET_CHECKPOINTS), gone=True)

    def _released(self, where: TopicPartition, *, discards: bool = False) -> Path:
        """With the lock: the directory of a partition, whose log is closed. Raises NotALogError if there is none."""
        directory = self.path / names.partition_dir(*where)
        log = self._logs.pop(where, None)
        if log is not None:
            log._close(discards=discards)
        if not directory.is_dir():
            raise NotALogError("no such partition directory", file=directory)
        return directory

    def _removals_left(self) -> list[Callable[[], None]]:
        """Functions that each remove one directory that a deletion has left behind, ours or a broker's. Call them
        before close(). The list is empty if another process had this log dir open, which may be removing them. Each
        function raises StorageError."""
        return [partial(remove_deleted_partition, self._fs, path) for path in self._state.abandoned]

    def close(self) -> None:
        """Close every log, and release the log dir. Idempotent. If logs raise errors, raises the first one."""
        shielded(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            errors = _closed(list(self._logs.values()))
            if self.cleaner is not None:
                self.cleaner.end()
            try:
                self._state.close()
            except Exception as error:
                errors.append(error)
            if errors:
                raise errors[0]

    def _forget_closed(self) -> None:
        """With the lock: drop closed logs, but look for them only when the number of logs has doubled."""
        if len(self._logs) >= self._logs_most:
            self._logs = {where: log for where, log in self._logs.items() if not log.closed}
            self._logs_most = max(2 * len(self._logs), _LOGS_BEFORE_A_LOOK)

    def _check(self) -> None:
        if self._closed:
            raise LogClosedError("the log dir was closed", file=self.path)
        self._state.check()


def _closed(logs: Sequence[Log]) -> list[Exception]:
    """Close logs, many of them in several threads: each waits for the disk several times. The errors, in the order of
    the logs."""
    errors: dict[int, Exception] = {}
    left = deque(enumerate(logs))

    def close_those_left() -> None:
        with contextlib.suppress(IndexError):       # none is left
            while True:
                number, log = left.popleft()
                try:
                    log.close()
                except Exception as error:
                    errors[number] = error

    threads = []
    # While the interpreter ends, no other thread runs.
    for _ in range(min(_CLOSING_THREADS, len(logs) // _LOGS_OF_A_THREAD) if not sys.is_finalizing() else 0):
        thread = threading.Thread(target=close_those_left, name="seglog-close", daemon=True)
        try:
            thread.start()
        except RuntimeError:        # there is no room for a thread, or the interpreter begins to end
            break
        threads.append(thread)
    close_those_left()
    for thread in threads:
        thread.join()
    return [error for _, error in sorted(errors.items())]


def _checked(topic: str, partition: int) -> TopicPartition:
    if not isinstance(topic, str):
        raise InvalidArgumentError(f"a topic must be text, not {type(topic).__name__}")
    number = names.validate_partition(partition)
    return names.validate_topic(topic), number
