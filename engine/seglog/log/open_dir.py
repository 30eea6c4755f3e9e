"""A log dir: several logs by topic and partition, as Kafka's LogManager keeps them.

    with seglog.open_dir("data") as log_dir:
        orders = log_dir.log("orders", 0)
        orders.append(b"...")
        log_dir.partitions()            # [("orders", 0)]

Opening holds the log dir against brokers, and makes it where it is not there. Each partition is locked when its
log is opened: others may stay with other processes.
"""
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import InvalidArgumentError, LogClosedError, NotALogError
from seglog.format import names
from seglog.fs import lock
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.handles import OpenHandle
from seglog.fs.staging import remove_partition
from seglog.log.aging import Retention, keep_all
from seglog.log.arguments import checked_config, checked_path
from seglog.log.keeper import Keeper
from seglog.log.log import Log
from seglog.state.checkpoints import TopicPartition
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import refuse_file_in_the_way

_LOGS_BEFORE_A_LOOK = 64


class LogDir(OpenHandle):
    """`seglog.open_dir(path)`. Use it as a context manager, or close it: that closes its logs. Threads may share it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | LogConfig | None = None,
        fsync: Fsync = "batch",
        leader_epoch: int = 0,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        retention: Retention = keep_all,
        keeper: Keeper | None = None,
    ) -> None:
        """The arguments are those of `seglog.open`, for every log. Raises NotALogError (a file, or a partition
        directory), LogLockedError, InvalidConfigError, InvalidArgumentError, StorageError. `retention`, `keeper`: what
        logs delete by themselves, and who looks after all of them (log.keeper)."""
        self.path = Path(os.path.abspath(checked_path(path)))
        refuse_file_in_the_way(self.path)
        checked = checked_config(config, fsync, leader_epoch)
        # As it was given: each log then knows what was, also what equals the default, or what seglog does not go by.
        self._config = dict(config) if isinstance(config, Mapping) else checked
        self._fsync = fsync
        self._leader_epoch = leader_epoch
        self._clock = clock
        self._fs = fs or OsFileSystem()
        make_directories(self._fs, self.path)
        self._retention = retention
        self.cleaner = keeper
        self._state = LogDirState(self._fs, self.path, gathers=True)
        self._logs: dict[TopicPartition, Log] = {}
        self._logs_most = _LOGS_BEFORE_A_LOOK       # closed ones among so many are forgotten
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
        """(topic, partition) of every partition directory, in order, opened or not."""
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
        """The log of a partition; the same object while it is open. It may be closed on its own.

        `config` instead of the log dir's; only for one that is opened by this call. Raises what `seglog.open` raises.
        """
        where = _checked(topic, partition)
        self._check()       # in a child of a fork the lock may be held by a thread that is not there
        with self._lock:
            self._check()
            log = self._logs.get(where)
            if log is not None and not log.closed:
                if config is not None:
                    raise InvalidArgumentError(
                        "the log is open, with a configuration", file=log.path, hint="close it, or use it as it is")
                return log
            self._forget_closed()
            log = self._logs[where] = Log(
                self.path / names.partition_dir(*where), config=self._config if config is None else config,
                fsync=self._fsync, leader_epoch=self._leader_epoch, clock=self._clock, fs=self._fs, create=create,
                log_dir=self._state,
                retention=self._retention, keeper_of=lambda config: self.cleaner,
            )
            return log

    def delete(self, topic: str, partition: int = 0) -> None:
        """Remove a partition: its directory, and its lines in the log dir's checkpoint files.

        It is gone in one step, a rename to the name of a deleted partition; what a crash leaves of it after that a
        broker removes at start, and so does `seglog convert`. Raises NotALogError if there is none,
        LogLockedError where another process has it open.
        """
        where = _checked(topic, partition)
        directory = self.path / names.partition_dir(*where)
        with self._lock:
            self._check()
            log = self._logs.pop(where, None)
            if log is not None:
                log.close()
            if not directory.is_dir():
                raise NotALogError("no such partition directory", file=directory)
            with lock.lock_partition(self._fs, directory):
                remove_partition(self._fs, directory)
                # Until they are written nobody heeds them: who makes a partition of the same name removes them first.
                self._state.gather_offsets(where, dict.fromkeys(names.OFFSET_CHECKPOINTS), gone=True)

    def close(self) -> None:
        """Close every log, and let go of the log dir. Twice is fine. Raises what the first of the logs raises."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            errors = []
            for log in self._logs.values():
                try:
                    log.close()
                except Exception as error:
                    errors.append(error)
            if self.cleaner is not None:
                self.cleaner.end()
            try:
                self._state.close()
            except Exception as error:
                errors.append(error)
            if errors:
                raise errors[0]

    def _forget_closed(self) -> None:
        """With the lock: keep no logs that were closed, but look for them only when there are twice as many logs."""
        if len(self._logs) >= self._logs_most:
            self._logs = {where: log for where, log in self._logs.items() if not log.closed}
            self._logs_most = max(2 * len(self._logs), _LOGS_BEFORE_A_LOOK)

    def _check(self) -> None:
        if self._closed:
            raise LogClosedError("the log dir was closed", file=self.path)
        self._state.check()


def _checked(topic: str, partition: int) -> TopicPartition:
    if not isinstance(topic, str):
        raise InvalidArgumentError(f"a topic is text, not {type(topic).__name__}")
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= names.MAX_PARTITION:
        raise InvalidArgumentError(f"a partition is an int from 0 to {names.MAX_PARTITION}, not {partition!r}")
    return names.validate_topic(topic), partition
