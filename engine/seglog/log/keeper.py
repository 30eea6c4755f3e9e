"""The interface of the background keeper of logs: the code that opens a log passes the keeper in."""
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from seglog.config import LogConfig
from seglog.log.retaining import LogRetainer


class KeptLog(Protocol):
    """A log, as its keeper sees it."""

    path: Path
    config: LogConfig

    def _keep_house(self) -> None:
        """Do what is due by the clock: the sync of fsync="interval", the roll of an idle segment."""


class Keeper(Protocol):
    """Keeps house for logs, and cleans them, in a thread of its own that does not keep logs alive."""

    def add(self, log: KeptLog, retainer: LogRetainer, period_ms: int | None) -> None:
        """Begin to work on a log. `retainer` deletes what is old; `_keep_house` is due every `period_ms`, or never if
        that is None."""

    def remove(self, log: KeptLog) -> None:
        """Stop working on a log; when it returns, the keeper no longer uses it."""

    def wake(self, log: KeptLog) -> None:
        """The log has rolled, or has no space left: look at it soon. Takes no lock."""

    def reason(self, log: KeptLog) -> str | None:
        """Why the last attempt to clean the log failed, or None if it succeeded."""

    def pause(self) -> None:
        """Stop cleaning until `resume`; syncs and rolls by the clock continue. Returns when the current step is over.
        """

    def resume(self) -> None:
        """Continue cleaning."""

    def end(self) -> None:
        """End the thread: all logs were removed, and no other will be added."""


KeeperOf = Callable[[LogConfig], Keeper | None]
"""Returns the keeper for a log with this configuration, or None if the log does its own background work."""
