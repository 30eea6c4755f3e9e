"""Producer snapshots on disk: taken at rolls and the end, loaded with what follows replayed, never of another log."""
import pytest

from seglog.fs.files import OsFileSystem
from seglog.reading.partition import Partition
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_snapshots import ProducerSnapshots, rebuild
from seglog.state.producer_state import Duplicate, ProducerState
from support.faultfs import RecordingFs
from support.golden import golden_cases
from support.producers import batch

DAY_MS = 86_400_000
WITH_SNAPSHOTS = [
    pytest.param(case, id=case.name)
    for case in golden_cases()
    if not case.name.startswith("compact-") and list((case / f"{case.name}-0").glob("*.snapshot"))
]


@pytest.fixture
def snapshots(tmp_path):
    return ProducerSnapshots(OsFileSystem(), tmp_path)


def state_of(*batches):
    state = ProducerState()
    for one in batches:
        state.add(one)
    return state


def files(directory):
    return sorted(int(path.stem) for path in directory.glob("*.snapshot"))


def load(snapshots, start, end, now_ms=1000):
    return snapshots.load(start, end, now_ms, DAY_MS)


def test_a_snapshot_is_found_again(snapshots, tmp_path):
    state = state_of(batch(0), batch(2, producer_id=8, transactional=True))
    assert snapshots.take(state, 4) == tmp_path / "00000000000000000004.snapshot"
    again, offset = load(ProducerSnapshots(OsFileSystem(), tmp_path), 0, 10)
    assert (again.entries(), offset) == (state.entries(), 4)
    assert again.last_stable_offset(10) == 2


def test_nothing_is_taken_where_nothing_was_added(snapshots, tmp_path):
    assert snapshots.take(ProducerState(), 0) is None
    assert snapshots.take(ProducerState(), 5)
    assert snapshots.take(ProducerState(), 5) is None
    assert files(tmp_path) == [5]


def test_none_is_taken_at_the_start_of_the_log(snapshots, tmp_path):
    load(snapshots, 30, 30)
    assert snapshots.take(ProducerState(), 30) is None
    assert snapshots.take(ProducerState(), 31)
    assert files(tmp_path) == [31]


def test_the_newest_snapshot_within_the_log_counts_and_those_outside_go(snapshots, tmp_path):
    for end in (10, 20, 30, 40):
        snapshots.take(state_of(batch(end - 2, sequence=end - 2)), end)
    state, offset = load(snapshots, 10, 35)
    assert (offset, state.entries()[0].last_offset) == (30, 29)
    assert files(tmp_path) == [20, 30] == list(snapshots.offsets)
    # The log may grow again over an offset where one was.
    assert snapshots.take(state, 40)


def test_a_damaged_snapshot_goes_and_an_older_one_counts(snapshots, tmp_path):
    for end in (10, 20):
        snapshots.take(state_of(batch(end - 2)), end)
    path = tmp_path / "00000000000000000020.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    state, offset = load(snapshots, 0, 30)
    assert (offset, state.entries()[0].last_offset) == (10, 9)
    assert files(tmp_path) == [10]


def test_expired_producers_are_not_loaded(snapshots):
    snapshots.take(state_of(batch(0, timestamp=0), batch(2, producer_id=8, timestamp=5)), 4)
    state, _ = load(snapshots, 0, 4, now_ms=DAY_MS + 1)
    assert [e.producer_id for e in state.entries()] == [8]


def test_snapshots_go_with_their_segments(snapshots, tmp_path):
    for end in (10, 20, 30, 35):
        snapshots.take(ProducerState(), end)
    snapshots.delete_before(20)
    snapshots.delete(30)
    snapshots.delete(31)
    assert files(tmp_path) == [20, 35]


@pytest.mark.parametrize(
    ("bases", "kept"),
    [([0, 20], [20, 35]), ([0, 10, 20, 30, 35], [10, 20, 30, 35]), ([0, 50], []), ([0], [35]), ([], [])],
)
def test_snapshots_without_a_segment_go_but_for_that_of_the_end(snapshots, tmp_path, bases, kept):
    for end in (10, 20, 30, 35):
        snapshots.take(ProducerState(), end)
    snapshots.remove_strays(bases)
    assert files(tmp_path) == kept


def test_other_files_are_let_alone(tmp_path):
    for name in ("00000000000000000020.snapshot.deleted", "00000000000000000030.log", "x.snapshot"):
        (tmp_path / name).touch()
    snapshots = ProducerSnapshots(OsFileSystem(), tmp_path)
    snapshots.remove_strays([])
    assert snapshots.offsets == ()
    assert len(list(tmp_path.iterdir())) == 3


# --- a log that is opened or cut -----------------------------------------------------------------


def tables_of(partition):
    def tables_from(offset):
        for segment in partition.segments:
            if segment.next_offset > offset:
                found = segment.find_offset(offset)
                yield from segment.tables(found.position if found else 0)

    return tables_from


def rebuilt(partition, snapshots, end, **given):
    return rebuild(
        snapshots, [s.base_offset for s in partition.segments], tables_of(partition),
        log_start_offset=partition.log_start_offset, log_end_offset=end, now_ms=0, expiration_ms=DAY_MS, **given,
    )


@pytest.mark.parametrize("case", WITH_SNAPSHOTS)
def test_a_replay_gives_what_the_broker_wrote(case, tmp_path):
    with Partition(case / f"{case.name}-0") as partition:
        theirs = {int(p.stem): p for p in partition.path.glob("*.snapshot")}
        end = max(theirs)
        whole = rebuilt(partition, ProducerSnapshots(OsFileSystem(), tmp_path), end)
        expected = {*(s.base_offset for s in partition.segments[-2:]), end} - {partition.log_start_offset}
        assert files(tmp_path) == sorted(expected)
        for offset in expected:
            ours = ProducerSnapshot.read(tmp_path / f"{offset:020d}.snapshot").producers
            assert ours == tuple(sorted(ProducerSnapshot.read(theirs[offset]).producers, key=lambda e: e.producer_id))
        # From the second last snapshot on it comes to the same.
        (tmp_path / f"{end:020d}.snapshot").unlink()
        again = rebuilt(partition, ProducerSnapshots(OsFileSystem(), tmp_path), end)
        assert (again.entries(), again.last_stable_offset(end)) == (whole.entries(), whole.last_stable_offset(end))
        assert files(tmp_path) == sorted(expected)


def test_an_old_log_that_was_closed_cleanly_is_not_replayed(tmp_path):
    def never(offset):
        raise AssertionError(f"read from {offset}")

    given = {"log_start_offset": 0, "log_end_offset": 90, "now_ms": 0, "expiration_ms": DAY_MS}
    state = rebuild(ProducerSnapshots(OsFileSystem(), tmp_path), [0, 30, 60], never, clean=True, **given)
    assert (len(state), files(tmp_path)) == (0, [30, 60, 90])
    # And with a snapshot at its end there is nothing to replay, clean or not.
    rebuild(ProducerSnapshots(OsFileSystem(), tmp_path), [0, 30, 60], never, **given)


def test_after_a_crash_a_snapshot_of_what_was_cut_is_never_taken_for_one_of_the_log(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    old, new = batch(2, sequence=2, records=3), batch(2, sequence=2, records=5)
    before = ProducerSnapshots(OsFileSystem(), root)
    before.take(state_of(batch(0)), 2)
    before.take(state_of(batch(0), old), 5)
    fs = RecordingFs(root)
    snapshots = ProducerSnapshots(fs, root)
    state, _ = load(snapshots, 0, 2)
    fs.mark("cut")
    state.add(new)
    snapshots.take(state, 7)
    fs.mark("closed")
    count = 0
    for crash in fs.crash_states(limit=500):
        with crash.materialise() as disk:
            if not crash.marks:
                continue        # the log was not written to yet
            found, offset = load(ProducerSnapshots(OsFileSystem(), disk), 0, 7)
            assert offset == 7 or (offset == 2 and "closed" not in crash.marks), crash.story()
            if offset == 7:
                assert found.prepare([new]) == Duplicate(2, 6, 1004), crash.story()
            count += 1
    assert count > 5
