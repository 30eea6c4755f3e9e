"""An index is a function of its log: what IndexBuilder makes is what Kafka wrote beside the log."""
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError

OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
BASE = 5_000_000_000
# The live index of these differs from a rebuilt one, for the reason given.
REOPENED = {"mixed-formats-k391"}  # Kafka starts its byte counter anew when it opens a log


def table_of(data):
    return scan(Window(bytes(data)))


def batch(offset, timestamp, value_size=0, last_offset=None):
    builder = BatchBuilder(offset)
    builder.append(offset, timestamp, None, bytes(value_size))
    return builder.finish(last_offset=last_offset)


def built(builder):
    return (
        list(OFFSET_ENTRY.iter_unpack(builder.take_offset_entries())),
        list(TIME_ENTRY.iter_unpack(builder.take_time_entries())),
    )


def build(data, base=BASE, interval=0, **options):
    builder = IndexBuilder(base, interval, **options)
    table = table_of(data)
    builder.add(table, 0, len(table), 0)
    builder.finish()
    return built(builder)


def segments_of(golden_kafka, *writers):
    for case in sorted((golden_kafka / "cases").iterdir()):
        if case.name.endswith(writers):
            config = json.loads((case / "case.json").read_text())["config"]
            for log in sorted(case.glob("*-0/*.log")):
                yield case.name, log, int(config["index.interval.bytes"])


def rebuilt_bytes(log: Path, interval):
    builder = IndexBuilder(int(log.stem), interval)
    table = table_of(log.read_bytes())
    builder.add(table, 0, len(table), 0)
    builder.finish()
    return builder.take_offset_entries(), builder.take_time_entries()


def test_rebuilding_gives_the_bytes_that_kafka_39_and_41_wrote(golden_kafka):
    compared = 0
    for case, log, interval in segments_of(golden_kafka, "k391", "k411"):
        if case in REOPENED or case.startswith("crash-"):
            continue
        offset_index, time_index = rebuilt_bytes(log, interval)
        assert offset_index == log.with_suffix(".index").read_bytes(), log
        assert time_index == log.with_suffix(".timeindex").read_bytes(), log
        compared += 1
    assert compared >= 150


def test_a_crashed_brokers_indexes_are_the_rebuilt_ones_without_the_closing_entry_and_with_zeros(golden_kafka):
    for case, log, interval in segments_of(golden_kafka, "k391", "k411"):
        if not case.startswith("crash-"):
            continue
        offset_index, time_index = rebuilt_bytes(log, interval)
        live = log.with_suffix(".index").read_bytes()
        assert live == offset_index + bytes(len(live) - len(offset_index)), log
        live = log.with_suffix(".timeindex").read_bytes().rstrip(b"\0")
        entries = -(-len(live) // TIME_ENTRY.size) * TIME_ENTRY.size
        assert time_index[:entries].rstrip(b"\0") == live, log
        assert len(time_index) - entries in (0, TIME_ENTRY.size), log


def test_a_reopened_log_has_other_entries_but_the_same_answers(golden_kafka):
    differing = 0
    for _, log, interval in segments_of(golden_kafka, *REOPENED):
        offset_index, time_index = rebuilt_bytes(log, interval)
        live = log.with_suffix(".index").read_bytes()
        differing += live != offset_index
        ends = {row.last_offset: row.position for row in table_of(log.read_bytes())}
        for relative, position in OFFSET_ENTRY.iter_unpack(offset_index):
            assert ends[int(log.stem) + relative] == position
        assert time_index[-TIME_ENTRY.size :] == log.with_suffix(".timeindex").read_bytes()[-TIME_ENTRY.size :]
    assert differing == 1


def test_v0_has_an_empty_time_index(golden_kafka):
    for case, log, interval in segments_of(golden_kafka, "v0-none-ct-k391"):
        offset_index, time_index = rebuilt_bytes(log, interval)
        assert offset_index, case
        assert time_index == b"", case


# --- the rule, step by step -----------------------------------------------------------------


def test_the_first_batch_never_gets_an_entry():
    assert build(batch(BASE, 1000, 10_000)) == ([], [(1000, 0)])


def test_an_entry_needs_more_than_the_interval_behind_it():
    first, second = batch(BASE, 1000), batch(BASE + 1, 1001)
    assert build(first + second, interval=len(first))[0] == []
    assert build(first + second, interval=len(first) - 1)[0] == [(1, len(first))]


def test_an_entry_names_the_last_offset_of_its_batch():
    first = batch(BASE, 1000)
    assert build(first + batch(BASE + 1, 1001, last_offset=BASE + 9))[0] == [(9, len(first))]


def test_the_time_entry_names_the_first_batch_that_had_the_largest_timestamp():
    data = batch(BASE, 1000) + batch(BASE + 1, 2000) + batch(BASE + 2, 1500) + batch(BASE + 3, 2000)
    offsets, times = build(data)
    assert [relative for relative, _ in offsets] == [1, 2, 3]
    assert times == [(2000, 1)]


def test_the_largest_timestamp_before_the_first_entry_is_not_forgotten():
    data = batch(BASE, 3000) + batch(BASE + 1, 2000)
    assert build(data)[1] == [(3000, 0)]


def test_closing_adds_the_largest_timestamp_once():
    builder = IndexBuilder(BASE, 1 << 20)
    table = table_of(batch(BASE, 1000) + batch(BASE + 1, 2000))
    builder.add(table, 0, 2, 0)
    assert built(builder) == ([], [])
    assert (builder.max_timestamp, builder.offset_of_max_timestamp) == (2000, BASE + 1)
    builder.finish()
    builder.finish()
    assert built(builder) == ([], [(2000, 1)])
    assert (builder.offset_entries, builder.time_entries) == (0, 1)


def test_batches_without_time_make_no_time_entries():
    messages = MessageSetBuilder(0)
    for i in range(5):
        messages.append(BASE + i, -1, None, b"v")
    offsets, times = build(messages.payload())
    assert len(offsets) == 4
    assert times == []


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 50), st.integers(0, 90)), max_size=30),
    st.integers(0, 400),
    st.integers(0, 30),
)
def test_the_kernel_follows_the_rule_as_python_states_it(rows, interval, cut):
    data, offset, expected_offsets, expected_times = b"", BASE, [], []
    largest = last_time = (-1, -1)
    indexed = 0
    for step, timestamp, size in rows:
        position, last = len(data), offset + step - 1
        data += batch(offset, timestamp, size, last_offset=last)
        if timestamp > largest[0]:
            largest = (timestamp, last - BASE)
        if position - indexed > interval:
            expected_offsets.append((last - BASE, position))
            indexed = position
            if largest[0] > last_time[0]:
                last_time = largest
                expected_times.append(largest)
        offset = last + 1
    if largest[0] > last_time[0]:
        expected_times.append(largest)
    # In two parts, the second from a window of its own: positions are the caller's.
    builder, table = IndexBuilder(BASE, interval), table_of(data)
    cut = min(cut, len(table))
    middle = table[cut].position if cut < len(table) else len(data)
    builder.add(table, 0, cut, 0)
    offsets, times = built(builder)
    rest = table_of(data[middle:])
    builder.add(rest, 0, len(rest), middle)
    assert builder.bytes_since_last_entry == len(data) - indexed
    builder.finish()
    more_offsets, more_times = built(builder)
    assert offsets + more_offsets == expected_offsets
    assert times + more_times == expected_times


# --- full indexes ---------------------------------------------------------------------------


def test_an_offset_index_is_full_at_its_last_entry():
    builder = IndexBuilder(BASE, 0, max_index_bytes=2 * OFFSET_ENTRY.size + 100 * TIME_ENTRY.size)
    assert not builder.is_full
    builder = IndexBuilder(BASE, 0, max_index_bytes=5 * OFFSET_ENTRY.size + 7)
    table = table_of(b"".join(batch(BASE + i, -1) for i in range(7)))
    builder.add(table, 0, 6, 0)
    assert builder.is_full
    before = builder.offset_entries, builder.bytes_since_last_entry, builder.max_timestamp
    with pytest.raises(InvalidArgumentError, match="full at 5 offset entries") as refused:
        builder.add(table, 6, 7, table[6].position)
    assert refused.value.position == table[6].position
    assert (builder.offset_entries, builder.bytes_since_last_entry, builder.max_timestamp) == before


def test_a_time_index_keeps_its_last_slot_for_the_closing_entry():
    builder = IndexBuilder(BASE, 0, max_index_bytes=3 * TIME_ENTRY.size)  # and 4 offset entries
    table = table_of(b"".join(batch(BASE + i, 1000 + i) for i in range(5)))
    builder.add(table, 0, 3, 0)
    assert builder.is_full
    assert builder.time_entries == 2
    builder.finish()
    assert builder.time_entries == 2
    with pytest.raises(InvalidArgumentError, match="3 time entries"):
        builder.add(table, 3, 4, table[3].position)


# --- what is refused ------------------------------------------------------------------------


def refused_at(data, base=BASE, position=0, interval=0):
    builder, table = IndexBuilder(base, interval), table_of(data)
    with pytest.raises(CorruptRecordError) as refused:
        builder.add(table, 0, len(table), position)
    assert built(builder) == ([], [])
    assert builder.bytes_since_last_entry == 0
    return refused.value


def test_an_offset_below_the_segment_is_refused():
    assert refused_at(batch(BASE - 1, 1)).offset == BASE - 1


def test_an_offset_more_than_31_bits_above_the_segment_is_refused():
    error = refused_at(batch(BASE, 1) + batch(BASE + 2**31, 1))
    assert error.offset == BASE + 2**31
    assert error.position == len(batch(BASE, 1))


def test_a_position_beyond_31_bits_is_refused():
    assert refused_at(batch(BASE, 1), position=2**31).position == 2**31


def test_an_indexed_offset_that_falls_back_is_refused():
    error = refused_at(batch(BASE, 1) + batch(BASE + 9, 1) + batch(BASE + 5, 1))
    assert error.offset == BASE + 5


@pytest.mark.parametrize(("first", "last", "position"), [(-1, 1, 0), (0, 2, 0), (1, 0, 0), (0, 1, -1)])
def test_rows_outside_the_table_are_refused(first, last, position):
    with pytest.raises(InvalidArgumentError):
        IndexBuilder(BASE).add(table_of(batch(BASE, 1)), first, last, position)


@pytest.mark.parametrize(("base", "interval"), [(-1, 4096), (0, -1)])
def test_negative_bases_and_intervals_are_refused(base, interval):
    with pytest.raises(InvalidArgumentError):
        IndexBuilder(base, interval)
