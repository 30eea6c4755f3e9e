"""A log of many segments costs what is met of it: counted in calls and in what the system is asked for, not in time."""
import pytest

import seglog
from seglog.format import names
from seglog.loading.loader import LOOKED_AT
from seglog.reading.extent import Extent
from seglog.segment.open_settings import SegmentOpenSettings
from seglog.segment.segment import Segment
from support.counting import counts_of
from support.lookups import offset_at
from support.many_segments import log_of

FEW, MANY = LOOKED_AT + 40, LOOKED_AT + 140
LATE = 2**62


@pytest.fixture
def paths(in_memory):
    return [log_of(in_memory / str(size) / "orders-0", size) for size in (FEW, MANY)]


def a_segment(few, many):
    """What each segment more costs: Python calls, and calls of the system by name."""
    more = MANY - FEW
    return (many.calls - few.calls) / more, {
        name: count / more for name in many.system if (count := many.system[name] - few.system[name])
    }


def of_logs(paths, action):
    """Of an action with a log that was just opened."""
    found = []
    for path in paths:
        with seglog.open(path, fsync="never") as log:
            found.append(counts_of(lambda log=log: action(log)))
    return a_segment(*found)


def test_an_opening_lists_the_directory_and_looks_at_no_segment(paths):
    opened = []
    found = [counts_of(lambda path=path: opened.append(seglog.open(path))) for path in paths]
    calls, system = a_segment(*found)
    for log in opened:
        log.close()
    assert system == {}
    assert calls <= 9


def test_the_first_lookup_by_time_reads_each_segment_once_and_opens_none_for_good(paths):
    calls, system = of_logs(paths, lambda log: offset_at(log, LATE))
    assert system == {"lstat": 1, "open": 1, "fstat": 1, "read": 1, "close": 1}
    assert calls <= 16


def test_the_next_lookup_by_time_looks_at_none_of_those_before(paths):

    def action(log):
        offset_at(log, LATE)
        return counts_of(lambda: offset_at(log, LATE))

    costs = []
    for path in paths:
        with seglog.open(path, fsync="never") as log:
            costs.append(action(log))
    assert a_segment(*costs) == (0, {})


def test_a_roll_costs_the_same_beside_any_number(paths):

    def action(log):
        log.append(b"x")
        log.roll()

    assert of_logs(paths, action) == (0, {})


def test_a_deletion_asks_the_system_to_rename_and_remove_each_file(paths):
    calls, system = of_logs(paths, lambda log: log.delete_records(log.log_end_offset - 1))
    assert system == {"lstat": 7, "replace": 4, "unlink": 5}     # a look for each kind of file
    assert calls <= 32


def test_the_older_indexes_of_a_clean_log_are_looked_at_when_somebody_comes_to_them(paths):
    """A missing one is made at the opening: its listing tells. One that misleads costs a walk, and no answer."""
    path = paths[0]
    gone, wrong = (path / names.file_name(offset, names.OFFSET_INDEX_SUFFIX) for offset in (1, 2))
    gone.unlink()
    wrong.write_bytes(bytes(8 * 5))
    with seglog.open(path) as log:
        assert gone.read_bytes() == b""
        assert wrong.read_bytes() == bytes(8 * 5)
        assert [r.offset for r in log.read()] == list(range(FEW))
        assert log[2].value == b"x"
        assert offset_at(log, LATE) is None


# --- the extent --------------------------------------------------------------------------------------

ACCESS = SegmentOpenSettings(None, None)


def sealed(tmp_path, *bases):
    return [Segment.sealed(tmp_path, base, ACCESS) for base in bases]


def test_an_extent_of_before_stays_as_it_was(tmp_path):
    a, b, c, d, e = sealed(tmp_path, 0, 10, 20, 30, 40)
    first = Extent([a, b], 0)
    rolled = first.followed_by(c)
    again = rolled.followed_by(d)
    assert [tuple(x.segments) for x in (first, rolled, again)] == [(a, b), (a, b, c), (a, b, c, d)]
    assert again.segments.cells is first.segments.cells     # a roll copies nothing
    assert (first.segments[-1], rolled.segments[-1], again.segments[-1]) == (b, c, d)
    # Not at the end of the lists that they share, as after a cut.
    other = rolled.followed_by(e)
    assert tuple(other.segments) == (a, b, c, e)
    assert tuple(again.segments) == (a, b, c, d)
    begun = again.behind(2, 25)
    assert tuple(begun.segments) == (c, d)
    assert begun.log_start_offset == 25
    assert (a.end_offset, b.end_offset) == (10, 20)
    assert [again.slot_of(offset) for offset in (-1, 0, 9, 10, 35, 99)] == [0, 0, 0, 1, 3, 3]
    assert [rolled.slot_of(offset) for offset in (29, 30, 99)] == [2, 2, 2]
    assert list(again.segments_from(25)) == [c, d]
    assert again.segments[1:3] == (b, c)
    assert again.segments[::-2] == (d, b)
    with pytest.raises(IndexError):
        rolled.segments[3]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_exchange_binds_the_neighbours_alone(tmp_path, count):
    a, b, c, d = sealed(tmp_path, 0, 10, 20, 30)
    before = Extent([a, b, c, d], 0)
    new = sealed(tmp_path, 12, 15)[:count]
    after = before.exchanged(1, 3, new)
    assert tuple(after.segments) == (a, *new, d)
    assert tuple(before.segments) == (a, b, c, d)
    bases = [segment.base_offset for segment in after.segments]
    assert [segment.end_offset for segment in after.segments[:-1]] == bases[1:]
    assert (b.end_offset, c.end_offset) == (20, 30)


def test_an_exchange_costs_no_call_for_the_other_segments(tmp_path):
    costs = []
    for size in (100, 1000):
        extent = Extent(sealed(tmp_path, *range(0, 10 * size, 10)), 0)
        new = sealed(tmp_path, 15)
        costs.append(counts_of(lambda extent=extent, new=new: extent.exchanged(1, 3, new)).calls)
    assert costs[0] == costs[1] <= 12
