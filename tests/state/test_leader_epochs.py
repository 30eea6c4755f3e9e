"""Leader epochs while a log grows and is cut at both ends, and their file."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import CorruptCheckpointError, InvalidArgumentError
from seglog.fs.files import OsFileSystem
from seglog.state.leader_epochs import EpochEnd, EpochStart, LeaderEpochFileCache, LeaderEpochs
from support.faultfs import RecordingFs


def epochs(*pairs):
    return LeaderEpochs([EpochStart(*pair) for pair in pairs])


THREE = epochs((0, 0), (3, 9), (6, 20))


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"),
    [
        (7, 30, epochs((0, 0), (3, 9), (6, 20), (7, 30))),
        (6, 25, THREE),
        (6, 20, THREE),
        (6, 15, epochs((0, 0), (3, 9), (6, 15))),      # it began earlier than was known
        (7, 20, epochs((0, 0), (3, 9), (7, 20))),      # nothing was written in epoch 6
        (5, 30, epochs((0, 0), (3, 9), (5, 30))),      # an older one: the later ones were not of this log
        (9, 0, epochs((9, 0))),
    ],
)
def test_a_new_epoch_displaces_what_contradicts_it(epoch, offset, expected):
    assert THREE.assign(epoch, offset) == expected


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_no_epoch_is_assigned_without_one(epoch, offset):
    with pytest.raises(InvalidArgumentError):
        THREE.assign(epoch, offset)


def test_an_epoch_that_begins_where_the_log_is_cut_goes():
    assert THREE.truncate_from_end(21) is THREE
    assert THREE.truncate_from_end(20) == epochs((0, 0), (3, 9))
    assert THREE.truncate_from_end(0) == LeaderEpochs()


def test_the_epoch_of_the_new_start_begins_there():
    assert THREE.truncate_from_start(0) is THREE
    assert THREE.truncate_from_start(5) == epochs((0, 5), (3, 9), (6, 20))
    assert THREE.truncate_from_start(9) == epochs((3, 9), (6, 20))
    assert THREE.truncate_from_start(99) == epochs((6, 99))
    later = epochs((4, 50))
    assert later.truncate_from_start(40) is later


@pytest.mark.parametrize(
    ("epoch", "end"),
    [(6, EpochEnd(6, 31)), (5, EpochEnd(3, 20)), (3, EpochEnd(3, 20)), (2, EpochEnd(0, 9)), (7, None), (-1, None)],
)
def test_an_epoch_ends_where_the_next_begins(epoch, end):
    assert THREE.end_offset_for(epoch, 31) == end


def test_an_epoch_before_all_that_are_known_ends_where_they_begin():
    assert epochs((4, 50)).end_offset_for(2, 99) == EpochEnd(2, 50)
    assert LeaderEpochs().end_offset_for(0, 99) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=12))
def test_whatever_is_assigned_the_epochs_rise(assigned):
    grown = LeaderEpochs()
    for epoch, offset in assigned:
        grown = grown.assign(epoch, offset)
        assert grown.latest == epoch
        assert grown.epoch_for_offset(max(offset, grown[-1].start_offset)) == epoch
        # The file can hold them: reading checks the order.
        assert LeaderEpochs.parse(grown.to_bytes()) == grown


# --- the file -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leader-epoch-checkpoint"


def test_a_log_without_epochs_gets_no_file(path):
    cache = LeaderEpochFileCache(OsFileSystem(), path)
    cache.truncate_from_end(0)
    cache.truncate_from_start(9)
    assert (cache.latest, path.exists()) == (None, False)


def test_each_change_is_in_the_file(path):
    cache = LeaderEpochFileCache(OsFileSystem(), path)
    cache.assign(0, 0)
    assert path.read_bytes() == b"0\n1\n0 0\n"
    cache.assign(2, 10)
    cache.truncate_from_start(4)
    assert path.read_bytes() == b"0\n2\n0 4\n2 10\n"
    cache.truncate_from_end(10)
    assert path.read_bytes() == b"0\n1\n0 4\n"
    assert LeaderEpochFileCache(OsFileSystem(), path).epochs == cache.epochs == epochs((0, 4))
    cache.truncate_from_end(4)
    assert path.read_bytes() == b"0\n0\n"


def test_what_is_known_already_costs_no_write(tmp_path, path):
    fs = RecordingFs(tmp_path)
    cache = LeaderEpochFileCache(fs, path)
    cache.assign(1, 0)
    before = len(fs.operations)
    cache.assign(1, 500)
    cache.truncate_from_end(500)
    cache.truncate_from_start(0)
    assert len(fs.operations) == before > 0


def test_a_torn_file_is_refused(path):
    path.write_bytes(b"0\n2\n0 0\n")
    with pytest.raises(CorruptCheckpointError):
        LeaderEpochFileCache(OsFileSystem(), path)
    # Recovery finds the epochs in the batches, and puts them in its place.
    cache = LeaderEpochFileCache(OsFileSystem(), path, epochs((0, 0)))
    cache.assign(1, 5)
    assert LeaderEpochs.read(path) == epochs((0, 0), (1, 5))
