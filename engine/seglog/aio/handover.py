"""What a thread opens for a task: `async with opening as log:`, or `log = await opening`."""
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from seglog.loop.home import HomeLoop


class Closing(Protocol):
    """What `async with` ends."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Opened = TypeVar("Opened", bound=Closing)


def close(opened: Any) -> None:
    """Close what was opened for nobody."""
    opened.close()


class Opening(Generic[Opened]):
    """`async with opening as log:`, or `log = await opening` and close it afterwards."""

    def __init__(
        self, home: Callable[[], HomeLoop], work: Callable[[], Any], kind: Callable[[Any], Opened],
        release: Callable[[Any], None] = close,
    ) -> None:
        """`work` opens it in a thread, `kind` makes of that what the task gets; `release`: called with what was opened
        if the task was interrupted meanwhile."""
        self._home = home
        self._work = work
        self._kind = kind
        self._release = release
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
            await self._opened.__aexit__(kind, error, trace)

    async def _open(self) -> Opened:
        return self._kind(await open_by_thread(self._home(), self._work, self._release))


async def open_by_thread(home: HomeLoop, work: Callable[[], Any], release: Callable[[Any], None] = close) -> Any:
    """What `work` opens in a thread. If the task is interrupted meanwhile, `release` is called with what was opened."""
    handover = _Handover(work, release)
    try:
        return await home.by_thread(handover.open)
    except BaseException:       # cancelled; or interrupted while the pool starts a thread, which may work all the same
        opened = handover.give_up()
        if opened is not None:
            home.by_thread(release, opened)
        raise


class _Handover:
    """Passes what a thread opened to the loop, whose task may have been interrupted."""

    def __init__(self, work: Callable[[], Any], release: Callable[[Any], None]) -> None:
        self._work = work
        self._release = release
        self._lock = threading.Lock()       # guards both
        self._opened: Any = None
        self._is_given_up = False

    def open(self) -> Any:
        opened = self._work()
        with self._lock:
            if not self._is_given_up:
                self._opened = opened
                return opened
        self._release(opened)
        return None

    def give_up(self) -> Any:
        """Return what is open already; if nothing is, the thread will release it."""
        with self._lock:
            self._is_given_up = True
            return self._opened
