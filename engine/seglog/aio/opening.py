"""Opening logs in an event loop: `seglog.aio.open`, `open_partition` and `follow`.

Opening may recover a log, which takes time, so a thread of the loop's pool does it. If the waiting task is cancelled,
the log is closed as soon as it is open.
"""
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from seglog.aio.handover import Opening
from seglog.aio.log import AsyncLog
from seglog.aio.readers import AsyncFollower, AsyncPartition, AsyncReader
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.fs.files import FileSystem
from seglog.late_import import late
from seglog.log.log import Log
from seglog.loop.home import HomeLoop
from seglog.opening import open as open_log
from seglog.reading.arguments import checked_path
from seglog.reading.follower import Follower
from seglog.reading.partition import Partition

Opened = TypeVar("Opened", bound=AsyncReader[Any])


def open(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
    attach: bool = False,
) -> Opening[AsyncLog]:
    """Open a partition directory to append to it. The arguments are those of `seglog.open`."""
    return _opening(
        path,
        partial(
            open_log, path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs, create=create,
            attach=attach,
        ),
        _log_of,
    )


def _log_of(log: Log) -> AsyncLog:
    shared = sys.modules.get("seglog.attach.shared_log")
    if shared is None or not isinstance(log, shared.SharedLog):
        return AsyncLog(log)
    late("seglog.aio.shared_log")
    from seglog.aio.shared_log import AsyncSharedLog

    return AsyncSharedLog(log)


def open_partition(
    path: str | os.PathLike[str], *, config: Mapping[str, object] | LogConfig | None = None
) -> Opening[AsyncPartition]:
    """Open a partition directory to read it as it is now, as `seglog.open_partition` does."""
    return _opening(path, partial(Partition, os.fspath(path), config=config), AsyncPartition)


def follow(
    path: str | os.PathLike[str], *, durable: bool = False, config: Mapping[str, object] | LogConfig | None = None
) -> Opening[AsyncFollower]:
    """Open a partition directory to read it while another process appends, as `seglog.follow` does."""
    return _opening(path, partial(Follower, os.fspath(path), durable=durable, config=config), AsyncFollower)


def _opening(
    path: str | os.PathLike[str], work: Callable[[], Any], kind: Callable[[Any], Opened]
) -> Opening[Opened]:
    return Opening(lambda: HomeLoop(checked_path(path)), work, kind)
