"""With seglog.time.index.minute.enabled a lookup by time begins with the minute index, and answers just as without."""
import struct
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.segment.segment import Segment
from support.lookups import offset_at

MINUTE = 60_000
NOW = 1_700_000_000_000
CONFIG = {"index.interval.bytes": 100, "seglog.time.index.minute.enabled": True}

# In any order: minutes apart, some in one minute, or nearly all.
moments = st.sampled_from([20_011, 1511]).flatmap(
    lambda step: st.lists(st.integers(0, 40).map(lambda n: NOW + n * step), min_size=1, max_size=40)
)


def fill(log, timestamps, segments=1):
    for number, timestamp in enumerate(timestamps):
        if number and number * segments // len(timestamps) != (number - 1) * segments // len(timestamps):
            log.roll()
        log.append(b"x" * 60, timestamp=timestamp)


def first_at(timestamps, target):
    return next((offset for offset, timestamp in enumerate(timestamps) if timestamp >= target), None)


def check(log, timestamps, first=0):
    """`timestamps`: of the records from offset `first` on; those before are all earlier."""
    for target in [*timestamps, *(t + 1 for t in timestamps)] + [0, *(t - MINUTE for t in timestamps)] * (not first):
        found = first_at(timestamps, target)
        assert offset_at(log, target) == (None if found is None else first + found)


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


def is_mapped(directory, suffix):
    """Is that index of the first segment in this process's memory?"""
    name = f"{directory.parent.name}/{directory.name}/{0:020d}{suffix}\n"
    with open("/proc/self/maps") as lines:
        return any(line.endswith(name) for line in lines)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("by_minute", [True, False])
def test_the_time_index_is_in_memory_only_where_it_is_used(tmp_path, by_minute):
    config = CONFIG | {"seglog.time.index.minute.enabled": by_minute}
    with seglog.open(tmp_path / "orders-0", fsync="never", config=config) as log:
        fill(log, [NOW + n * MINUTE for n in range(20)])
        log.flush()
        assert offset_at(log, NOW + 5 * MINUTE) == 5
        found = is_mapped(tmp_path / "orders-0", ".time.index"), is_mapped(tmp_path / "orders-0", ".timeindex")
        assert found == (by_minute, not by_minute)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_burst_within_a_minute_is_searched_by_the_time_index(tmp_path):
    minutes = [NOW + n * MINUTE for n in range(20)]
    burst = [minutes[-1] + n for n in range(1, 2000)]
    with seglog.open(tmp_path / "orders-0", fsync="never", config=CONFIG) as log:
        fill(log, minutes + burst)
        assert [offset_at(log, at) for at in minutes] == list(range(20))
        assert not is_mapped(tmp_path / "orders-0", ".timeindex")
        for target in burst[::97]:      # walking to one would pass half of the burst
            assert offset_at(log, target) == 20 + burst.index(target)
            assert is_mapped(tmp_path / "orders-0", ".timeindex")
        later = [burst[-1] + n * MINUTE for n in range(1, 30)]
        fill(log, later)
        check(log, (minutes + burst + later)[-50:], first=len(minutes + burst + later) - 50)


def test_threads_find_what_is_appended_in_bursts(tmp_path):
    timestamps = [NOW + n // 100 * MINUTE + n % 100 for n in range(2000)]
    wrong = []

    def look(log):
        while (end := log.log_end_offset) < len(timestamps):
            for offset in {0, end // 3, end - 1} if end else ():
                if offset_at(log, timestamps[offset]) != offset:
                    wrong.append(offset)

    with seglog.open(tmp_path / "orders-0", fsync="never", config=CONFIG) as log:
        threads = [threading.Thread(target=look, args=(log,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        fill(log, timestamps, segments=3)
        for thread in threads:
            thread.join()
    assert wrong == []
