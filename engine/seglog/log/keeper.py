"""Who looks after logs in the background, as logs see it: handed in by whoever opens them."""
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from seglog.config import LogConfig
from seglog.log.retaining import LogRetainer


class Kept(Protocol):
    """A log, as its keeper sees it."""

    path: Path
    config: LogConfig

    def keep_house(self) -> None:
        """What is due by the clock: the sync of fsync="interval", the roll of an idle segment."""


class Keeper(Protocol):
    """Keeps house for logs, and cleans them, in a thread of its own that keeps no log alive."""

    def add(self, log: Kept, retainer: LogRetainer, period_ms: int | None) -> None:
        """From now on. `retainer`: deletes what is old; `period_ms`: how often `keep_house` is due; None: never."""

    def remove(self, log: Kept) -> None:
        """No more; when it returns, nothing of the keeper's works on the log."""

    def wake(self, log: Kept) -> None:
        """The log has rolled, or has no space left: look at it soon. Takes no lock."""

    def reason(self, log: Kept) -> str | None:
        """Why the log could not be cleaned when that was last tried; None: it could."""

    def pause(self) -> None:
        """Clean nothing until `resume`; syncs and rolls by the clock go on. Returns when the step of now is over."""

    def resume(self) -> None:
        """Go on cleaning."""

    def end(self) -> None:
        """All logs were removed, and there will be no other: its thread ends."""


KeeperOf = Callable[[LogConfig], Keeper | None]
"""Who is to look after a log with this configuration; None: the log does what little is due by a thread of its own."""
