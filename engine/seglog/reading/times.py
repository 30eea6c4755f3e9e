"""Points in time as people give them: milliseconds, datetimes, ISO 8601, `-2h`."""
import datetime as dt
import re
import time
from operator import index
from typing import SupportsIndex

from seglog.errors import InvalidArgumentError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-([0-9]{1,19})(ms|s|m|h|d|w)")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Time = SupportsIndex | dt.datetime | str


def to_timestamp_ms(when: Time, *, now_ms: int | None = None) -> int:
    """Milliseconds since the epoch (UTC).

    `when` is an int of milliseconds, a datetime with a time zone, or a string: milliseconds
    ("1700000000000"), ISO 8601 ("2026-11-01", "2026-11-01T12:00:00Z"; no zone means UTC), or a
    time before now ("-2h"; units ms, s, m, h, d, w). Raises InvalidArgumentError.
    """
    if isinstance(when, bool):
        raise InvalidArgumentError(f"not a time: {when!r}", hint="pass milliseconds, ISO 8601, or -2h")
    if isinstance(when, float):
        raise InvalidArgumentError(f"not a time: {when!r}", hint="pass whole milliseconds: time.time_ns() // 1_000_000")
    if isinstance(when, SupportsIndex):     # an int, or one of numpy's
        return _checked(index(when), when)
    if isinstance(when, dt.datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError(
                f"the datetime has no time zone: {when!r}", hint="pass one: datetime(..., tzinfo=UTC)"
            )
        return (when - _EPOCH) // dt.timedelta(milliseconds=1)
    if not isinstance(when, str):
        raise InvalidArgumentError(f"not a time: {when!r}", hint="pass milliseconds, a datetime, ISO 8601, or -2h")
    text = when.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return _checked(int(text), when)
    if ago := _AGO.fullmatch(text):
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return _checked(now - int(ago[1]) * _UNITS_MS[ago[2]], when)
    try:
        parsed = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(
            f"not a time: {when!r}", hint="pass milliseconds since 1970, ISO 8601 (2026-11-01T12:00:00Z), or -2h"
        ) from None
    return to_timestamp_ms(parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC))


def _checked(timestamp_ms: int, when: object) -> int:
    if not -(1 << 63) <= timestamp_ms < 1 << 63:
        raise InvalidArgumentError(f"not a time: {when!r}", hint="a timestamp has 64 bits: milliseconds since 1970")
    return timestamp_ms
