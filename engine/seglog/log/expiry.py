"""Inputs and results of retention. The rule itself is not part of `log/`.

Retention is a function of these values, the configuration and the clock (`Retention`). The code that opens a log passes
it in; the log calls it, and deletes what it names.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from seglog.config import LogConfig

Reason = Literal["start", "size", "time", "total"]


class AgingSegment(Protocol):
    """A segment as retention sees it. The times may cost a walk over its headers: they are read only if needed."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """The size of its .log."""

    @property
    def largest_timestamp(self) -> int:
        """-1 or less if no record has a timestamp."""

    @property
    def file_time_ms(self) -> int:
        """When its .log was last written to."""

    def first_batch_since(self, timestamp: int) -> int | None:
        """The first offset of the first batch with a record at or after this time; None if there is none."""


@dataclass(frozen=True, slots=True)
class LogAge:
    """A log at one moment: its segments in order, where it begins, up to where it may be deleted, and its end."""

    segments: Sequence[AgingSegment]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment to delete. `reason`: it lies before the log start offset ("start"); the log ("size"), or all logs of
    the log dir ("total"), are too large; it is too old ("time"). `next_offset`: where the log begins without it.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to delete now: the first segments of the log. `rolls`: all segments, so an empty one must be added first.

    `log_start_offset`: where the log begins then; inside its first segment if some batches of that are too old.
    """

    expired: tuple[Expired, ...]
    log_start_offset: int
    rolls: bool = False


class Retention(Protocol):
    """A retention rule: Kafka's, or another one."""

    def __call__(self, log: LogAge, config: LogConfig, now_ms: int, /) -> Verdict: ...
