"""Points in time as people give them: milliseconds, datetimes, ISO 8601, `-2h`, `+10m`; and durations: `10m`."""
import re
import time
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from seglog.config import duration_ms
from seglog.errors import InvalidArgumentError
from seglog.late_import import late

if TYPE_CHECKING:
    import datetime as dt

# As seconds, times from 1973 to 5138; as milliseconds, days of 1970 to 1973. A new record is refused with such a time,
# too (SANE_TIME_MIN of format.batch): what has one was written by a producer that took seconds for milliseconds.
SECONDS_FROM, SECONDS_UNTIL = 10**8, 10**11

Time: TypeAlias = "SupportsIndex | dt.datetime | str"


def to_timestamp_ms(when: Time, *, now_ms: int | None = None) -> int:
    """Milliseconds since the epoch (UTC).

    `when` is an int of milliseconds, a datetime with a time zone, or a string: milliseconds
    ("1700000000000"), ISO 8601 ("2026-11-01", "2026-11-01T12:00:00Z"; no zone means UTC), or a
    time before or after now ("-2h", "-2d1h", "+10m"; units ms, s, m, h, d, w). Raises InvalidArgumentError.
    """
    if isinstance(when, bool):
        raise InvalidArgumentError(f"not a time: {when!r}", hint="pass milliseconds, ISO 8601, -2h or +10m")
    if isinstance(when, float):
        raise InvalidArgumentError(f"not a time: {when!r}", hint="pass whole milliseconds: time.time_ns() // 1_000_000")
    if isinstance(when, SupportsIndex):     # an int, or one of numpy's
        return _checked(index(when), when)
    late("datetime")        # most programs pass numbers, or no time at all
    import datetime as dt

    if isinstance(when, dt.datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError(
                f"the datetime has no time zone: {when!r}", hint="pass one: datetime(..., tzinfo=UTC)"
            )
        return (when - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if not isinstance(when, str):
        raise InvalidArgumentError(f"not a time: {when!r}", hint=_hint_of(when))
    text = when.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return _checked(int(text), when)
    if text[:1] in ("-", "+") and (distance_ms := duration_ms(text[1:])) is not None:
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return _checked(now - distance_ms if text[0] == "-" else now + distance_ms, when)
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"not a time: {when!r}", hint=_hint_of(text)) from None
    return to_timestamp_ms(parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC))


def to_time_bound_ms(when: Time, *, now_ms: int | None = None) -> int:
    """As `to_timestamp_ms`, of a time to search by: the first millisecond that is not before it. Raises
    InvalidArgumentError, also for a number that must be of seconds: as milliseconds it would match all records, or
    none."""
    timestamp_ms = to_timestamp_ms(when, now_ms=now_ms)
    is_number = isinstance(when, SupportsIndex) or (isinstance(when, str) and when.strip().isdecimal())
    if is_number and SECONDS_FROM <= timestamp_ms < SECONDS_UNTIL:
        shown = time.strftime("%Y-%m-%d", time.gmtime(timestamp_ms // 1000))
        raise InvalidArgumentError(
            f"a time is a number of milliseconds since 1970, and {when} would be {shown}",
            hint=f'if it is in seconds, pass {timestamp_ms}000; if you mean that day, pass "{shown}"',
        )
    return timestamp_ms + (not is_number and _is_between_ms(when))


def _hint_of(when: object) -> str:
    """What to pass instead of something that is not a time."""
    late("datetime")
    import datetime as dt

    if isinstance(when, dt.timedelta):
        return 'that is a duration: for a time before now, pass datetime.now(UTC) - it, or text such as "-2h"'
    if isinstance(when, dt.date):
        return f'pass "{when}", which is its midnight in UTC, or a datetime with a time zone'
    if isinstance(when, str) and duration_ms(when) is not None:
        return f'that is a duration: for a time before now, pass "-{when}"; for one after it, "+{when}"'
    a_datetime = "" if isinstance(when, str) else "a datetime, "       # (Text may be a command's.)
    return f"pass milliseconds since 1970, {a_datetime}ISO 8601 (2026-11-01T12:00:00Z), -2h, or +10m"


def _is_between_ms(when: Time) -> bool:
    late("datetime")
    import datetime as dt

    if isinstance(when, str):
        try:
            when = dt.datetime.fromisoformat(when.strip())
        except ValueError:
            return False        # a number, or a time from now
    return isinstance(when, dt.datetime) and when.microsecond % 1000 != 0


def _checked(timestamp_ms: int, when: object) -> int:
    if not -(1 << 63) <= timestamp_ms < 1 << 63:
        raise InvalidArgumentError(f"not a time: {when!r}", hint="a timestamp has 64 bits: milliseconds since 1970")
    return timestamp_ms
