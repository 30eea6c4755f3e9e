"""How a queue treats its jobs, and checks of what callers pass."""
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from seglog.errors import InvalidArgumentError
from seglog.reading.times import to_timestamp_ms

NS = 1_000_000_000
# A hundred years: longer is taken for a mistake, such as ms for seconds.
_LONGEST_NS = 100 * 366 * 86_400 * NS
# The last ms of the year 9999: Python's datetime ends there.
_LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """`chance`: a number from 0 to 1, for the jitter."""

    lease_ns: int
    max_attempts: int | None
    retry_delay_ns: int
    max_retry_delay_ns: int
    retry_jitter: float
    reraise: bool = False
    chance: Callable[[], float] = random.random

    def retry_after_ns(self, attempt: int) -> int:
        """How long a job waits that failed at this attempt: twice as long each time, up to a limit, and a random part
        more, so that jobs that failed together do not come back together."""
        doubled = self.retry_delay_ns << min(attempt - 1, 64)
        limited = min(doubled, self.max_retry_delay_ns)
        return limited + int(limited * self.retry_jitter * self.chance())


def duration_ns(what: str, value: timedelta | float) -> int:
    """Seconds or a timedelta in ns. Raises InvalidArgumentError, naming `what`."""
    try:
        if isinstance(value, timedelta):
            found = value // timedelta(microseconds=1) * 1000
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = round(value * NS)
        else:
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{what} must be seconds or a timedelta, not {repr(value)[:80]}",
            hint="for example 10, or timedelta(seconds=10)",
        ) from None
    if not 0 <= found <= _LONGEST_NS:
        raise InvalidArgumentError(f"{what} must be from 0 seconds to a hundred years, not {repr(value)[:80]}")
    return found


def time_ms(what: str, value: datetime | str, now_ms: int) -> int:
    """A datetime with a time zone, or text (seglog.reading.times), in ms since 1970, rounded up. Raises
    InvalidArgumentError, naming `what`."""
    if isinstance(value, str):
        found_ms = to_timestamp_ms(value, now_ms=now_ms)
        if found_ms < 0:
            raise InvalidArgumentError(f"{what} must be in 1970 or later, not {value[:80]}")
        if found_ms > _LATEST_MS:
            raise InvalidArgumentError(f"{what} must be before the year 10000, not {value[:80]}")
        return found_ms
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidArgumentError(
            f"{what} must be a datetime with a time zone, or text, not {repr(value)[:80]}",
            hint='for example datetime.now(UTC) + timedelta(hours=1), "2026-11-01T12:00:00Z", or "+1h"',
        )
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta(0):
        raise InvalidArgumentError(f"{what} must be in 1970 or later, not {value}")
    # (datetime.max would be rounded to the year 10000, which no datetime holds.)
    return min(-(since // timedelta(milliseconds=-1)), _LATEST_MS)


def checked_options(
    lease: timedelta | float, max_attempts: int | None, retry_delay: timedelta | float,
    max_retry_delay: timedelta | float, retry_jitter: float, reraise: bool, chance: Callable[[], float],
) -> QueueOptions:
    """The options of a queue. Raises InvalidArgumentError."""
    lease_ns = duration_ns("lease", lease)
    if not lease_ns:
        raise InvalidArgumentError("lease must be longer than 0 seconds")
    if max_attempts is not None and (type(max_attempts) is not int or not 1 <= max_attempts < 2**31):
        raise InvalidArgumentError(f"max_attempts must be an int of 1 or more, or None, not {max_attempts!r}")
    if isinstance(retry_jitter, bool) or not isinstance(retry_jitter, int | float) or not 0 <= retry_jitter <= 1:
        raise InvalidArgumentError(f"retry_jitter must be from 0 to 1, not {retry_jitter!r}")
    if type(reraise) is not bool:
        raise InvalidArgumentError(f"reraise must be True or False, not {reraise!r}")
    if not callable(chance):
        raise InvalidArgumentError(
            f"chance must be a function, not {repr(chance)[:80]}", hint="for example lambda: 0.5; random.random is used"
        )
    return QueueOptions(
        lease_ns, max_attempts, duration_ns("retry_delay", retry_delay),
        duration_ns("max_retry_delay", max_retry_delay), retry_jitter, reraise, chance,
    )
