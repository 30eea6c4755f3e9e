"""Background work on a log. It runs in the maintainer that was passed in, or in the log's own thread."""
import functools
import weakref
from typing import Protocol

from seglog._kernels.shield import shielded
from seglog.config import Fsync, LogConfig
from seglog.log.append import LogAppender
from seglog.log.maintainer import MaintainedLog, Maintainer, MaintainerOf
from seglog.log.retaining import LogRetainer
from seglog.threads.maintenance import MaintenanceThread

# How often an idle log checks whether its segment is due to roll.
_IDLE_LOOK_MS = 10_000


class LingeringLog(MaintainedLog, Protocol):
    """What this module needs of a log."""

    fsync: Fsync

    def _write_lingering(self) -> None: ...

    def _stop_lingering(self) -> None: ...


class LogMaintenance:
    """The background work on one log, which begins and ends it. Does not keep the log alive."""

    def __init__(self, maintainer_of: MaintainerOf) -> None:
        self._maintainer_of = maintainer_of
        self._maintainer: Maintainer | None = None
        self._thread: MaintenanceThread | None = None

    def begin(self, log: LingeringLog, retainer: LogRetainer, appender: LogAppender) -> None:
        """Begin the background work that the log's configuration asks for, usually none."""
        config = log.config
        self._thread = None
        periods_ms = []
        if log.fsync == "interval":
            periods_ms.append(max(config.flush_ms, 1))
        if config.segment_idle_roll:
            periods_ms.append(min(config.segment_ms, _IDLE_LOOK_MS))
        period_ms = min(periods_ms, default=None)
        self._maintainer = self._maintainer_of(config)
        if self._maintainer is not None or period_ms is not None or config.linger_ms:
            shielded(self._begin, log, retainer, period_ms)
        appender.use_thread(self._thread)

    def _begin(self, log: LingeringLog, retainer: LogRetainer, period_ms: int | None) -> None:
        """Begin it in the maintainer's thread, or in one of the log's own."""
        maintainer, linger_ms = self._maintainer, log.config.linger_ms
        if maintainer is not None:
            maintainer.add(log, retainer, period_ms)
            retainer.on_growth(functools.partial(_wake, maintainer, weakref.ref(log)))
            period_ms = None
        if period_ms is not None or linger_ms:
            self._thread = MaintenanceThread(
                log, period_s=None if period_ms is None else period_ms / 1000, linger_s=linger_ms / 1000
            )

    def release(self, log: MaintainedLog) -> None:
        """End the maintainer's work on the log."""
        if self._maintainer is not None:
            self._maintainer.remove(log)

    def stop(self) -> None:
        """End the log's own thread. Do not call with the log's lock held."""
        if self._thread is not None:
            self._thread.stop()

    def reason(self, log: MaintainedLog) -> str | None:
        """Why the last attempt to clean the log failed, or None if it succeeded or the log is never cleaned."""
        return None if self._maintainer is None else self._maintainer.reason(log)


def is_other_maintenance(config: LogConfig, before: LogConfig) -> bool:
    """Whether the background work, or its timing, is different."""
    return _periods(config) != _periods(before)


def _periods(config: LogConfig) -> tuple[int | bool, ...]:
    return (
        config.flush_ms, config.segment_idle_roll, config.segment_ms, config.linger_ms,
        config.has_retention, config.retention_ms, config.is_compacted,
    )


def _wake(maintainer: Maintainer, log: "weakref.ref[MaintainedLog]") -> None:
    found = log()
    if found is not None:
        maintainer.wake(found)
