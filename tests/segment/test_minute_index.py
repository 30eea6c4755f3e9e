"""The minute index: an entry a minute at most, a lower bound for every search, made anew where the log is another."""
import json
import shutil
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.segment.index_file import MinuteIndex, minute_index_path
from seglog.segment.indexes import index_bytes, index_bytes_of
from seglog.segment.segment import Segment
from seglog.upkeep.index_rebuild import rebuild_indexes
from support.golden import golden_cases

BASE = 5_000_000_000
NOW = 1_700_000_000_000
MINUTE = 60_000
CONFIG = LogConfig.of({"index.interval.bytes": 150, "seglog.time.index.minute.enabled": True})


def batch(offset, timestamp, value_size=20):
    builder = BatchBuilder(offset)
    builder.append(offset, timestamp, None, bytes(value_size))
    return bytes(builder.finish())


def log_of(rows):
    return b"".join(batch(BASE + n, timestamp, size) for n, (timestamp, size) in enumerate(rows))


def built(raw, interval):
    config = LogConfig.of({"index.interval.bytes": interval})
    return index_bytes_of([scan(Window(raw))], BASE, config)


def plain_minute_index(raw, interval):
    """The rule, said again: KIP-33 with Kafka's decision of when an offset entry is due."""
    entries, since, largest, holder = [], 0, -1, -1
    for found in scan(Window(raw)):
        if found.max_timestamp > largest:
            largest, holder = found.max_timestamp, found.last_offset
        if since > interval:
            if largest >= 0 and (not entries or largest // MINUTE > entries[-1][0] // MINUTE):
                entries.append((largest, holder))
            since = 0
        since += found.size_bytes
    return entries


rows = st.lists(
    st.tuples(
        st.one_of(
            st.integers(-1, 3 * MINUTE), st.integers(NOW, NOW + 30 * MINUTE),
            st.sampled_from([NOW - NOW % MINUTE, NOW - NOW % MINUTE - 1]),
        ),
        st.integers(0, 200),
    ),
    max_size=40,
)


@given(rows, st.sampled_from([0, 100, 300]))
def test_entries_are_those_of_the_rule(rows, interval):
    raw = log_of(rows)
    right = built(raw, interval)
    entries = list(MinuteIndex(right.minute_index, BASE))
    assert entries == plain_minute_index(raw, interval)
    times = set(struct.iter_unpack(">qi", right.time_index))
    assert {(timestamp, offset - BASE) for timestamp, offset in entries} <= times


@given(rows, st.integers(-1, NOW + 31 * MINUTE))
def test_no_record_before_an_entry_is_later(rows, target):
    index = MinuteIndex(built(log_of(rows), 100).minute_index, BASE)
    timestamp, offset = index.lookup(target)
    assert timestamp <= target
    assert all(time <= target for time, _ in rows[: offset + 1 - BASE]) or timestamp < 0


@given(rows, st.integers(0, 40), st.sampled_from([0, 100, 300]))
def test_a_builder_that_goes_on_makes_what_one_makes_that_saw_all(rows, cut, interval):
    raw = log_of(rows)
    table = scan(Window(raw))
    cut = min(cut, len(table))
    whole = IndexBuilder(BASE, interval)
    for slot in range(cut):
        whole.add_one(table[slot].last_offset, table[slot].max_timestamp, table[slot].size_bytes)
    offsets, times, minutes = (
        list(struct.iter_unpack(shape, raw))
        for shape, raw in (
            (">ii", whole.take_offset_entries()), (">qi", whole.take_time_entries()),
            (">qi", whole.take_minute_entries()),
        )
    )
    resumed = IndexBuilder(BASE, interval)
    relative, position = offsets[-1] if offsets else (0, 0)
    timestamp, holder = times[-1] if times else (-1, -1 - BASE)
    resumed.resume(
        len(offsets), (BASE + relative, position), len(times), (timestamp, BASE + holder),
        len(minutes), minutes[-1][0] if minutes else -1,
    )
    begin = next((slot for slot in range(len(table)) if table[slot].position == position), 0)
    resumed.add(table, begin, len(table), position)
    whole.add(table, cut, len(table), table[cut].position if cut < len(table) else 0)
    for builder in whole, resumed:
        builder.finish()
    assert (
        (resumed.offset_entries, resumed.time_entries, resumed.minute_entries)
        == (whole.offset_entries, whole.time_entries, whole.minute_entries)
    )
    assert resumed.max_timestamp == whole.max_timestamp
    assert resumed.take_offset_entries() == whole.take_offset_entries()
    assert resumed.take_time_entries() == whole.take_time_entries()
    assert resumed.take_minute_entries() == whole.take_minute_entries()


def test_entries_of_golden_logs_are_entries_that_kafka_wrote():
    seen = 0
    for case in golden_cases():
        if not case.name.endswith(("k391", "k411")) or case.name.startswith(("crash", "compact", "mixed")):
            continue
        interval = int(json.loads((case / "case.json").read_text())["config"]["index.interval.bytes"])
        for log in sorted((case / f"{case.name}-0").glob("*.log")):
            right = index_bytes(Segment(log), LogConfig.of({"index.interval.bytes": interval}))
            theirs = set(struct.iter_unpack(">qi", log.with_suffix(".timeindex").read_bytes()))
            ours = list(struct.iter_unpack(">qi", right.minute_index))
            assert theirs.issuperset(ours), log
            seen += len(ours)
    assert seen > 100


# --- a closed segment --------------------------------------------------------------------------


@pytest.fixture
def segment(tmp_path):
    path = tmp_path / "t-0" / f"{BASE:020d}.log"
    path.parent.mkdir()
    path.write_bytes(log_of([(NOW + n * 9_000, 40) for n in range(60)]))
    segment = Segment(path)
    right = index_bytes(segment, CONFIG)
    path.with_suffix(".index").write_bytes(right.offset_index)
    path.with_suffix(".timeindex").write_bytes(right.time_index)
    yield segment
    segment.close()


def test_index_rebuild_makes_it_where_it_is_configured_or_there(segment, tmp_path):
    directory = segment.path.parent
    without = list(rebuild_indexes(directory, config={"index.interval.bytes": 150}))
    assert len(without) == 2
    list(rebuild_indexes(directory, config=CONFIG))
    path = minute_index_path(segment.path)
    right = path.read_bytes()
    assert right == index_bytes(segment, CONFIG).minute_index
    path.write_bytes(b"x" * 12)
    assert len(list(rebuild_indexes(directory, config={"index.interval.bytes": 150}))) == 3
    assert path.read_bytes() == right
    shutil.rmtree(directory)
