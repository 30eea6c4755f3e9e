"""What does the background work of logs, as they see it: the code that opens a log passes it in."""
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from seglog.config import LogConfig
from seglog.log.retaining import LogRetainer


class MaintainedLog(Protocol):
    """A log, as its maintainer sees it."""

    path: Path
    config: LogConfig

    def _maintain(self) -> None:
        """Do what is due by the clock: the sync of fsync="interval", the roll of an idle segment."""


class Maintainer(Protocol):
    """Maintains logs, and cleans them, in a thread of its own that does not keep logs alive."""

    def add(self, log: MaintainedLog, retainer: LogRetainer, period_ms: int | None) -> None:
        """Begin to work on a log. `retainer` deletes what is old; `_maintain` is due every `period_ms`, or never if
        that is None."""

    def remove(self, log: MaintainedLog) -> None:
        """Stop working on a log; when it returns, the maintainer no longer uses it."""

    def wake(self, log: MaintainedLog) -> None:
        """The log has rolled, or has no space left: look at it soon. Takes no lock."""

    def reason(self, log: MaintainedLog) -> str | None:
        """Why the last attempt to clean the log failed, or None if it succeeded."""

    def pause(self) -> None:
        """Stop cleaning until `resume`; syncs and rolls by the clock continue. Returns when the current step is over.
        """

    def resume(self) -> None:
        """Continue cleaning."""

    def end(self) -> None:
        """End the thread: all logs were removed, and no other will be added."""


MaintainerOf = Callable[[LogConfig], Maintainer | None]
"""Returns the maintainer for a log with this configuration, or None if the log does its own background work."""
