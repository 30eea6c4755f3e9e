"""Records as people give them: times in another unit, text for bytes, headers in a dict, datetimes."""
import datetime as dt
import re

import numpy as np
import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, InvalidTimestampError, SeglogError

NOW_MS = 1_790_000_000_000
FIRST_SANE_MS, LAST_SANE_MS = 10**11, 10**14
FUTURE = {"message.timestamp.after.max.ms": 2**63 - 1}
WAYS = {
    "append": lambda log, at: log.append(b"v", timestamp=at),
    "append_many": lambda log, at: log.append_many([(b"k", b"v", None, NOW_MS), (b"k", b"v", (), at)]),
    "append_many in pieces": lambda log, at: log.append_many([(b"k", b"v", (), at)], atomic=False),
    "append_columns": lambda log, at: log.append_columns(
        values=(np.array([0, 1], "i4"), b"v"), timestamps=np.array([at], "i8")
    ),
}


@pytest.fixture(params=WAYS)
def append(request):
    return WAYS[request.param]


def opened(path, config=None, *, now_ms=NOW_MS, fsync="never"):
    return seglog.open(path / "orders-0", config={**FUTURE, **(config or {})}, clock=ManualClock(now_ms), fsync=fsync)


@pytest.mark.parametrize(
    ("at", "unit"),
    [
        (NOW_MS // 1000, "looks like seconds: multiply by 1000"),
        (FIRST_SANE_MS // 1000, "seconds"),
        (NOW_MS * 1000, "looks like microseconds: divide by 1000"),
        (NOW_MS * 10**6, "looks like nanoseconds: divide by 1_000_000"),
        (2**63 - 1, "nanoseconds"),
        (LAST_SANE_MS + 1, "microseconds"),
        (FIRST_SANE_MS - 1, "seconds"),
        (0, "time.time_ns() // 1_000_000"),
    ],
)
def test_a_time_in_another_unit_is_refused_with_the_unit(in_memory, append, at, unit):
    with opened(in_memory) as log:
        with pytest.raises(InvalidTimestampError, match=f"timestamp {at}, which cannot be milliseconds") as refused:
            append(log, at)
        assert unit in refused.value.hint
        assert "seglog.timestamp.check=false" in refused.value.hint
        assert log.log_end_offset == 0


@pytest.mark.parametrize("at", [FIRST_SANE_MS, LAST_SANE_MS, -1])
def test_the_first_and_the_last_time_and_none_are_taken(in_memory, append, at):
    with opened(in_memory) as log:
        last = append(log, at)
        assert log[last].timestamp == at


def test_without_the_check_any_time_is_taken(in_memory, append):
    with opened(in_memory, {"seglog.timestamp.check": False}) as log:
        assert log[append(log, 5)].timestamp == 5


def test_a_clock_that_stands_in_1970_judges_no_time(in_memory, append):
    with opened(in_memory, now_ms=5000) as log:
        assert log[append(log, 4000)].timestamp == 4000


def test_a_time_that_is_not_stored_is_not_asked(in_memory, append):
    with opened(in_memory, {"message.timestamp.type": "LogAppendTime"}) as log:
        assert log[append(log, 5)].timestamp == NOW_MS


@pytest.mark.parametrize("version", [0, 1])
def test_a_log_of_an_old_format_asks_too(in_memory, append, version):
    with opened(in_memory, {"message.format.version": version}) as log, pytest.raises(InvalidTimestampError):
        append(log, NOW_MS // 1000)


def test_what_lingers_is_asked_when_it_comes(in_memory):
    with opened(in_memory, {"linger.ms": 1000}) as log:
        with pytest.raises(InvalidTimestampError, match="milliseconds"):
            log.append(b"v", timestamp=NOW_MS // 1000)
        assert log.append(b"v", timestamp=NOW_MS - 1) == 0


def test_encoded_batches_and_mirrors_are_not_asked(in_memory):
    raw = seglog.build_batch([(b"k", b"v", (), 5)])
    with opened(in_memory / "a") as log, opened(in_memory / "b", {"compression.type": "zstd"}) as other:
        log.append_batch(raw)
        other.append_batch(raw)     # built again: another codec
        log.append_batch(seglog.build_batch([(b"k", b"v", (), 5)], base_offset=1), assign_offsets=False)
        seglog.mirror(log, other, preserve_offsets=False)
        assert [record.timestamp for record in other.read()] == [5, 5, 5]


@pytest.mark.parametrize("way", ["append", "append_many", "append_many in pieces"])
@pytest.mark.parametrize(
    "at",
    [
        dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC),
        dt.datetime.fromtimestamp(NOW_MS / 1000, dt.timezone(dt.timedelta(hours=5))),
        np.int64(NOW_MS), "-0s", str(NOW_MS),
    ],
    ids=["utc", "zone", "numpy", "ago", "digits"],
)
def test_all_take_the_same_kinds_of_time(in_memory, way, at):
    with opened(in_memory) as log:
        assert log[WAYS[way](log, at)].timestamp == NOW_MS


@pytest.mark.parametrize("way", ["append", "append_many", "append_many in pieces"])
@pytest.mark.parametrize(
    ("at", "hint"),
    [
        (dt.datetime(2026, 11, 1), "pass one: datetime"), (1.5e9, "time.time_ns"), ("soon", "ISO 8601"),
        ([], "datetime"),
    ],
)
def test_what_is_no_time_gets_the_hint_that_mends_it(in_memory, way, at, hint):
    with opened(in_memory) as log, pytest.raises(InvalidArgumentError) as refused:
        WAYS[way](log, at)
    assert hint in refused.value.hint


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ({"value": "text"}, "value.encode()"),
        ({"value": b"", "key": 5}, "str(key).encode()"),
        ({"value": 5}, "str(value).encode()"),
        ({"value": {"a": 1}}, "json.dumps(value).encode()"),
        ({"value": b"", "headers": {}}, "list(headers.items())"),
        ({"value": b"", "headers": {"name": b"value"}}, "list(headers.items())"),
        ({"value": b"", "headers": [("name", "value")]}, "value.encode()"),
        ({"value": b"", "headers": [(b"name", b"value")]}, "key.decode()"),
    ],
)
def test_a_field_of_another_type_gets_the_hint_that_mends_it(in_memory, record, hint, lingers):
    many = record.get("key", b"k"), record["value"], record.get("headers", ())
    with opened(in_memory, {"linger.ms": 1000} if lingers else {}) as log:
        for append in (
            lambda: log.append(**record),
            lambda: log.append_many([(b"k", b"v"), many]),
            lambda: log.append_many([(b"k", b"v"), many], atomic=False),
        ):
            with pytest.raises(InvalidArgumentError) as refused:
                append()
            assert hint in refused.value.hint
            assert refused.value.__suppress_context__       # a traceback says it once
        assert log.append(b"good") == 0


def test_a_key_by_position_is_told_its_name(in_memory):
    with opened(in_memory) as log:
        with pytest.raises(InvalidArgumentError, match="one positional argument, the value, but got 2") as refused:
            log.append(b"k", b"v")
        assert "append(value, key=key" in refused.value.hint
        assert log.log_end_offset == 0


def test_records_of_another_log_are_appended_as_they_were_read(in_memory):
    with opened(in_memory / "a") as log, opened(in_memory / "b", {"message.format.version": 1}) as old:
        log.append(b"v", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp=NOW_MS - 5)
        log.append(None, key=b"")
        for atomic in (True, False):
            log.append_many(log.read(stop=2), atomic=atomic)
        old.append_many([next(iter(log.read(1)))])
        assert [r.timestamp for r in old.read()] == [NOW_MS]
        found = [(r.key, r.value, r.headers, r.timestamp) for r in log.read()]
    assert found == found[:2] * 3


def test_messages_may_be_caught_by_the_base_class(in_memory):
    with opened(in_memory) as log, pytest.raises(SeglogError, match=re.escape("the value must be bytes-like or None")):
        log.append("text")
