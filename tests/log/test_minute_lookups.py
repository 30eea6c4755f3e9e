"""With time.index.minute.enabled a lookup by time begins with the minute index, and answers exactly all the same."""
import struct
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.segment.segment import Segment

MINUTE = 60_000
NOW = 1_700_000_000_000
CONFIG = {"index.interval.bytes": 100, "time.index.minute.enabled": True}

# Minutes apart, in any order, some in one minute.
moments = st.lists(st.integers(0, 40).map(lambda n: NOW + n * 20_011), min_size=1, max_size=40)


def fill(log, timestamps, segments=1):
    for number, timestamp in enumerate(timestamps):
        if number and number * segments // len(timestamps) != (number - 1) * segments // len(timestamps):
            log.roll()
        log.append(b"x" * 60, timestamp=timestamp)


def first_at(timestamps, target):
    return next((offset for offset, timestamp in enumerate(timestamps) if timestamp >= target), None)


def check(log, timestamps):
    for target in [0, *timestamps, *(t + 1 for t in timestamps), *(t - MINUTE for t in timestamps)]:
        assert log.offset_at(target) == first_at(timestamps, target)


@settings(max_examples=30)
@given(timestamps=moments, segments=st.integers(1, 3))
def test_the_first_record_at_or_after_a_time_is_found_whatever_the_order(timestamps, segments):
    with tempfile.TemporaryDirectory() as directory:
        with seglog.open(Path(directory, "orders-0"), fsync="never", config=CONFIG) as log:
            fill(log, timestamps, segments)
            check(log, timestamps)
        with seglog.open(Path(directory, "orders-0"), config=CONFIG) as log:
            check(log, timestamps)


def test_what_is_appended_later_is_found_by_the_same_log(tmp_path):
    timestamps = [NOW + n * 31_000 for n in range(40)]
    with seglog.open(tmp_path / "orders-0", fsync="never", config=CONFIG) as log:
        for n, timestamp in enumerate(timestamps):
            log.append(b"x" * 60, timestamp=timestamp)
            check(log, timestamps[: n + 1])


entries = st.lists(st.tuples(st.integers(-5, 60).map(lambda n: NOW + n * 20_011), st.integers(-2, 50)), max_size=12)


@settings(max_examples=30)
@given(timestamps=moments, minutes=entries)
def test_no_minute_index_misleads_a_lookup(timestamps, minutes):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "orders-0")
        with seglog.open(path, fsync="never", config=CONFIG) as log:
            fill(log, timestamps)
        index = path / f"{0:020d}.time.index"
        index.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in minutes))
        with closing(Segment(path / f"{0:020d}.log", owned=True, by_minute=True)) as segment:
            for target in [0, *timestamps, *(t + 1 for t in timestamps)]:
                offset = segment.seek(target, 0)[1]
                assert (None if offset < 0 else offset) == first_at(timestamps, target)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("by_minute", [True, False])
def test_the_time_index_is_in_memory_only_where_it_is_used(tmp_path, by_minute):
    def maps(suffix):
        name = f"{tmp_path.name}/orders-0/{0:020d}{suffix}\n"
        with open("/proc/self/maps") as lines:
            return sum(line.endswith(name) for line in lines)

    config = CONFIG | {"time.index.minute.enabled": by_minute}
    with seglog.open(tmp_path / "orders-0", fsync="never", config=config) as log:
        fill(log, [NOW + n * MINUTE for n in range(20)])
        log.flush()
        assert log.offset_at(NOW + 5 * MINUTE) == 5
        assert (maps(".time.index"), maps(".timeindex")) == (int(by_minute), int(not by_minute))
