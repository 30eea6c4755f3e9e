"""Index search: the kernel against the obvious bisect, and what zeros and broken entries do to it."""
import bisect
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.index_search import OffsetIndexSearch, TimeIndexSearch, count_entries
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError

OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
WARM_OFFSET_ENTRIES = 8192 // OFFSET_ENTRY.size
BASE = 5_000_000_000


def packed(entry, rows):
    return b"".join(entry.pack(*row) for row in rows)


def offset_index(rows, base=BASE):
    return OffsetIndexSearch(Window(packed(OFFSET_ENTRY, rows)), base, len(rows))


def time_index(rows, base=BASE):
    return TimeIndexSearch(Window(packed(TIME_ENTRY, rows)), base, len(rows))


def by_bisect(rows, base, offset):
    slot = bisect.bisect_right(rows, offset - base, key=lambda row: row[0]) - 1
    return (base, 0) if slot < 0 else (base + rows[slot][0], rows[slot][1])


def spaced(n):
    return [(10 * i + 5, 100 * i + 1) for i in range(n)]


SIZES = [1, 2, 3, 7, WARM_OFFSET_ENTRIES - 1, WARM_OFFSET_ENTRIES, WARM_OFFSET_ENTRIES + 1, 3 * WARM_OFFSET_ENTRIES + 5]


@pytest.mark.parametrize("n", SIZES)
def test_a_lookup_answers_the_largest_entry_at_or_below_the_offset(n):
    rows = spaced(n)
    index = offset_index(rows)
    edges = {0, 1, n // 2, n - 2, n - 1, n - WARM_OFFSET_ENTRIES, n - WARM_OFFSET_ENTRIES - 1}
    for slot in edges & set(range(n)):
        for near in (-1, 0, 1, 9, 10):
            offset = BASE + rows[slot][0] + near
            assert index.lookup(offset) == by_bisect(rows, BASE, offset), (slot, near)
    assert len(index) == n


def test_an_offset_below_every_entry_starts_at_the_base():
    index = offset_index([(4, 313), (11, 776)])
    assert index.lookup(BASE + 3) == (BASE, 0)
    assert index.lookup(BASE) == (BASE, 0)
    assert index.lookup(-(1 << 63)) == (BASE, 0)
    assert index.slot(BASE + 3) == -1
    assert offset_index([]).lookup(BASE) == (BASE, 0)


def test_an_offset_beyond_int32_finds_the_last_entry():
    index = offset_index([(4, 313), (2**31 - 1, 776)])
    assert index.lookup(BASE + 2**31 + 7) == (BASE + 2**31 - 1, 776)
    assert index.lookup(2**63 - 1) == (BASE + 2**31 - 1, 776)
    assert index.slot(BASE + 4) == 0


def test_a_time_lookup_answers_the_largest_timestamp_at_or_below():
    index = time_index([(1000, 4), (1010, 9)])
    assert index.lookup(999) == (-1, BASE)
    assert index.lookup(1000) == index.lookup(1009) == (1000, BASE + 4)
    assert index.lookup(2**63 - 1) == (1010, BASE + 9)
    assert time_index([]).lookup(5) == (-1, BASE)
    assert index.base_offset == BASE


def test_entries_can_be_read_by_slot():
    index = offset_index([(4, 313), (11, 776)])
    assert [index.entry(i) for i in range(len(index))] == [(BASE + 4, 313), (BASE + 11, 776)]
    assert time_index([(1000, 4)]).entry(0) == (1000, BASE + 4)
    for slot in (-1, 2):
        with pytest.raises(IndexError):
            index.entry(slot)


sorted_rows = st.lists(st.integers(0, 2**31 - 1), max_size=60, unique=True).map(
    lambda keys: [(key, 7 * i + 3) for i, key in enumerate(sorted(keys))]
)
targets_near = st.lists(st.integers(-5, 2**31 + 5), max_size=70)


@given(sorted_rows, targets_near, st.booleans())
def test_many_lookups_answer_what_single_ones_do(rows, relative, sort):
    targets = [BASE + r for r in (sorted(relative) if sort else relative)]
    expected = [by_bisect(rows, BASE, t) for t in targets]
    out = array("q", [-7]) * len(targets)
    offset_index(rows).lookup_many(array("q", targets), out)
    assert list(out) == [position for _, position in expected]

    times = time_index([(key * 1000, value) for key, value in rows])
    targets = array("q", [t * 500 for t in (sorted(relative) if sort else relative)])
    times.lookup_many(targets, out)
    assert list(out) == [times.lookup(t)[1] for t in targets]


@pytest.mark.parametrize("step", [1, 3, 10, 997, -13])
def test_many_rising_or_falling_targets_over_a_large_index(step):
    rows = spaced(5 * WARM_OFFSET_ENTRIES)
    index = offset_index(rows)
    first = BASE if step > 0 else BASE + 10 * len(rows)
    targets = array("q", (first + step * i for i in range(5000)))
    out = array("q", bytes(8 * len(targets)))
    index.lookup_many(targets, out)
    assert list(out) == [index.lookup(t)[1] for t in targets]


def test_many_lookups_in_an_empty_index():
    out = array("q", [9] * 11)
    offset_index([]).lookup_many(array("q", range(11)), out)
    assert list(out) == [0] * 11
    time_index([]).lookup_many(array("q", range(11)), out)
    assert list(out) == [BASE] * 11
    offset_index([]).lookup_many(array("q"), array("q"))


def test_the_order_of_entries_can_be_checked():
    assert offset_index(spaced(9)).first_disorder() == -1
    assert offset_index([(1, 5), (1, 6)]).first_disorder() == 1
    assert offset_index([(1, 5), (2, 6), (3, 6)]).first_disorder() == 2
    assert time_index([(1, 5), (2, 5), (3, 6)]).first_disorder() == -1
    assert time_index([(1, 5), (1, 6)]).first_disorder() == 1
    assert time_index([(1, 5), (2, 4)]).first_disorder() == 1


@given(st.binary(max_size=400), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(0, 2**63 - 1))
def test_any_bytes_are_searched_without_leaving_them(data, targets, base):
    targets = array("q", targets)
    for search in (
        OffsetIndexSearch(Window(data), base, len(data) // 8),
        TimeIndexSearch(Window(data), base, len(data) // 12),
    ):
        for target in targets:
            assert -1 <= search.slot(target) < len(search)
            search.lookup(target)
        for each in (targets, array("q", sorted(targets))):
            search.lookup_many(each, array("q", bytes(8 * len(targets))))
        search.first_disorder()


# --- preallocated zero tails ----------------------------------------------------------------


def entries_before_zeros(data, entry_size):
    return count_entries(Window(data), entry_size)


def test_zeros_behind_the_last_entry_are_no_entries():
    rows = spaced(5)
    for zeros in (0, 1, 7, 8, 2048):
        assert entries_before_zeros(packed(OFFSET_ENTRY, rows) + bytes(zeros), OFFSET_ENTRY.size) == 5
    assert entries_before_zeros(packed(TIME_ENTRY, [(1 << 8, 0)]) + bytes(12), TIME_ENTRY.size) == 1


def test_an_entry_that_ends_in_zero_bytes_is_whole():
    assert entries_before_zeros(packed(OFFSET_ENTRY, [(1, 1 << 24)]) + bytes(80), OFFSET_ENTRY.size) == 1


def test_a_file_of_zeros_has_no_entries():
    assert entries_before_zeros(bytes(80), OFFSET_ENTRY.size) == 0
    assert entries_before_zeros(bytes(24), TIME_ENTRY.size) == 0
    assert entries_before_zeros(b"", TIME_ENTRY.size) == 0


def test_the_first_entry_may_be_zero():
    # A log whose only timestamp is 0, at its first offset: one entry, trimmed at close.
    assert entries_before_zeros(bytes(12), TIME_ENTRY.size) == 1
    assert entries_before_zeros(packed(TIME_ENTRY, [(0, 0), (5, 9)]), TIME_ENTRY.size) == 2


def test_bytes_of_half_an_entry_at_the_end_do_not_count():
    assert entries_before_zeros(packed(OFFSET_ENTRY, spaced(2)) + b"\1\2\3", OFFSET_ENTRY.size) == 2


def test_zero_tails_of_a_dead_broker(golden_kafka):
    seen = {}
    for case in sorted((golden_kafka / "cases").glob("crash-*")):
        for suffix, entry in (("index", OFFSET_ENTRY), ("timeindex", TIME_ENTRY)):
            [path] = case.glob(f"*-0/*.{suffix}")
            data = path.read_bytes()
            real = [row for row in entry.iter_unpack(data[: len(data) // entry.size * entry.size]) if row != (0, 0)]
            seen[case.name, suffix] = entries_before_zeros(data, entry.size)
            assert seen[case.name, suffix] == len(real)
    assert seen["crash-v1-k391", "index"] == 6
    assert seen["crash-v0-k391", "timeindex"] == 0
    assert len(seen) == 14


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [-1, 3, 2**62])
@pytest.mark.parametrize(("search", "entry"), [(OffsetIndexSearch, OFFSET_ENTRY), (TimeIndexSearch, TIME_ENTRY)])
def test_more_entries_than_the_window_holds_are_refused(search, entry, entries):
    with pytest.raises(InvalidArgumentError, match="which has 2"):
        search(Window(packed(entry, [(1, 2), (3, 4)]) + b"\0"), 0, entries)


def test_too_little_room_for_the_answers_is_refused():
    with pytest.raises(InvalidArgumentError, match="room for 1 answers, but there are 2"):
        offset_index(spaced(2)).lookup_many(array("q", [1, 2]), array("q", [0]))
    with pytest.raises(InvalidArgumentError, match="room for 1 answers, but there are 2"):
        time_index(spaced(2)).lookup_many(array("q", [1, 2]), array("q", [0]))


def test_an_entry_size_that_cannot_be_is_refused():
    with pytest.raises(InvalidArgumentError):
        count_entries(Window(b""), 0)


def test_a_search_keeps_its_bytes_alive():
    data = bytearray(packed(OFFSET_ENTRY, spaced(3)))
    index = OffsetIndexSearch(Window(data), 0, 3)
    with pytest.raises(BufferError):
        data.clear()
    assert index.lookup(25) == (25, 201)
    del index
    data.clear()
