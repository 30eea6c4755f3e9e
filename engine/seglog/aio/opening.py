"""Opening logs in an event loop: `seglog.aio.open`, `open_partition` and `follow`.

Opening may recover a log, which takes time, so a thread of the loop's pool does it. If the waiting task is cancelled,
the log is closed as soon as it is open.
"""
import asyncio
import os
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from seglog.aio.log import AsyncLog
from seglog.aio.readers import AsyncFollower, AsyncPartition, AsyncReader
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.fs.files import FileSystem
from seglog.loop.home import HomeLoop
from seglog.opening import open as open_log
from seglog.reading.arguments import checked_path
from seglog.reading.follower import Follower
from seglog.reading.partition import Partition

Opened = TypeVar("Opened", bound=AsyncReader[Any])


class Opening(Generic[Opened]):
    """`async with opening as log:`, or `log = await opening` and close it afterwards."""

    def __init__(self, path: str | os.PathLike[str], work: Callable[[], Any], kind: Callable[[Any], Opened]) -> None:
        self._path = path
        self._work = work
        self._kind = kind
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def _open(self) -> Opened:
        home = HomeLoop(checked_path(self._path))
        handover = _Handover(self._work)
        try:
            blocking = await home.by_thread(handover.open)
        except asyncio.CancelledError:
            opened = handover.give_up()
            if opened is not None:
                home.by_thread(opened.close)
            raise
        return self._kind(blocking)


class _Handover:
    """Passes what a thread opened to the loop, whose task may have been cancelled."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._lock = threading.Lock()       # guards both
        self._opened: Any = None
        self._is_given_up = False

    def open(self) -> Any:
        opened = self._work()
        with self._lock:
            if not self._is_given_up:
                self._opened = opened
                return opened
        opened.close()
        return None

    def give_up(self) -> Any:
        """Return what is open already; if nothing is, the thread will close it."""
        with self._lock:
            self._is_given_up = True
            return self._opened


def open(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
) -> Opening[AsyncLog]:
    """Open a partition directory to append to it. The arguments are those of `seglog.open`."""
    return Opening(
        path,
        partial(
            open_log, path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs, create=create
        ),
        AsyncLog,
    )


def open_partition(
    path: str | os.PathLike[str], *, config: Mapping[str, object] | LogConfig | None = None
) -> Opening[AsyncPartition]:
    """Open a partition directory to read it as it is now, as `seglog.open_partition` does."""
    return Opening(path, partial(Partition, os.fspath(path), config=config), AsyncPartition)


def follow(
    path: str | os.PathLike[str], *, durable: bool = False, config: Mapping[str, object] | LogConfig | None = None
) -> Opening[AsyncFollower]:
    """Open a partition directory to read it while another process appends, as `seglog.follow` does."""
    return Opening(path, partial(Follower, os.fspath(path), durable=durable, config=config), AsyncFollower)
