"""Opening a directory: closed cleanly, with something missing, with a start behind its end, or not there yet."""
import shutil
import struct
from contextlib import closing

import pytest

import seglog
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, NotALogError
from seglog.format.batch import build_batch
from seglog.fs.files import OsFileSystem
from seglog.loading.loader import ENDS_BELOW_START, load, plan_load
from seglog.reading.partition import Partition
from seglog.segment import recovery
from seglog.segment.appender import SegmentAppender
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from support.golden import golden_cases, unpack
from support.lookups import offset_at

INTERVAL = 256      # of the golden cases


def files(directory):
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir()) if p.is_file()}


def without_snapshots(found):
    return {name: raw for name, raw in found.items() if not name.endswith(".snapshot")}


def opened(directory, mode="fail", *, clean=True, **more):
    config = LogConfig.of({"index.interval.bytes": INTERVAL, "seglog.recovery.mode": mode})
    return load(OsFileSystem(), directory, config, now_ms=0, **({"clean": clean} | more))


@pytest.fixture
def copy_of(tmp_path):
    def copy(name, kind="cases"):
        return shutil.copytree(unpack("kafka") / kind / name / f"{name}-0", tmp_path / "orders-0")

    return copy


@pytest.fixture
def no_check(monkeypatch):
    """Lets every check of a log's batches fail."""

    def refuse(*_):
        raise AssertionError("the log was read")

    # The loader imports both where it needs them.
    monkeypatch.setattr(recovery, "check_segment", refuse)
    monkeypatch.setattr(recovery, "check_segments", refuse)


# --- a clean open ------------------------------------------------------------------------------

# But not those whose active segment Kafka 2.8.2 left without an .index, which both of us then make; nor what its
# cleaner wrote, with one index decision a write: there an .index is empty where another Kafka would have had entries.
CLOSED = [
    case.name for case in golden_cases()
    if "crash" not in case.name and not ("pass2" in case.name and case.name.endswith("k282"))
    and {p.stem for p in (case / f"{case.name}-0").glob("*.log")}
    == {p.stem for p in (case / f"{case.name}-0").glob("*.index")}
]


@pytest.mark.parametrize("name", CLOSED)
def test_a_log_that_kafka_closed_opens_without_being_read_and_stays_as_it_is(copy_of, no_check, name):
    directory = copy_of(name)
    before = files(directory)
    loaded = opened(directory)
    with Partition(directory) as partition:
        assert loaded.next_offset == partition.log_end_offset
        assert [s.base_offset for s in loaded.segments] == [s.base_offset for s in partition.segments]
        assert [s.size_bytes for s in loaded.segments] == [s.size_bytes for s in partition.segments]
    assert loaded.recovery_point == loaded.next_offset
    assert (loaded.lost, loaded.repairs) == ((), ())
    # Snapshots that stand beside no segment go, and a log without any gets them: as Kafka's loader does.
    assert without_snapshots(files(directory)) == without_snapshots(before)


@pytest.mark.parametrize("name", [case.name for case in golden_cases() if "crash" in case.name])
def test_preallocated_indexes_of_a_dead_broker_are_trimmed_even_under_a_clean_shutdown_file(copy_of, name):
    directory = copy_of(name)
    loaded = opened(directory)
    again = files(directory)
    opened(directory, clean=False)
    assert {n: raw for n, raw in files(directory).items() if n.endswith("index")} == {
        n: raw for n, raw in again.items() if n.endswith("index")}
    assert all(raw[-8:] != bytes(8) for n, raw in again.items() if n.endswith("index") and raw)
    with Partition(directory) as partition:
        assert loaded.next_offset == partition.log_end_offset


@pytest.mark.parametrize("kind", [
    "index-bad-last", "index-empty", "index-empty-active", "index-larger-than-max", "index-missing", "index-odd-size",
    "index-zero-tail", "index-zero-tail-inactive", "timeindex-empty", "timeindex-missing", "timeindex-odd-size",
])
def test_a_clean_open_rebuilds_indexes_that_cannot_be_right(copy_of, kind):
    directory = copy_of(f"v1-none-ct-k391--{kind}", "corrupt")
    loaded = opened(directory)
    assert (loaded.next_offset, loaded.lost) == (136, ())
    whole = unpack("kafka") / "corrupt" / f"v1-none-ct-k391--{kind}" / "recovered-3.9.1"
    assert {n: raw for n, raw in files(directory).items() if n.endswith("index")} == {
        n: raw for n, raw in files(whole).items() if n.endswith("index")}


@pytest.mark.parametrize("kind", ["garbage-tail", "tail-cut7", "tail-cut-header", "zero-tail"])
def test_a_tail_that_a_clean_close_does_not_leave_is_cut_all_the_same(copy_of, kind):
    directory = copy_of(f"v1-none-ct-k391--{kind}", "corrupt")
    loaded = opened(directory)
    assert loaded.next_offset == (136 if kind in ("garbage-tail", "zero-tail") else 135)
    assert len(loaded.lost) == 1


def test_an_index_is_rebuilt_beside_damage_that_lies_below_the_recovery_point(copy_of):
    directory = copy_of("v1-none-ct-k391--flip-earlier-seg", "corrupt")
    (directory / "00000000000000000000.index").unlink()
    log = (directory / "00000000000000000000.log").read_bytes()
    loaded = opened(directory)
    assert (loaded.next_offset, loaded.lost) == (136, ())
    assert "not changed" in loaded.repairs[0].what
    assert (directory / "00000000000000000000.log").read_bytes() == log


# --- from the recovery point on ----------------------------------------------------------------


def test_the_minute_index_of_a_checked_segment_is_made_anew_where_it_is_configured(copy_of):
    directory = copy_of("v1-none-ct-k391--tail-cut7", "corrupt")
    config = LogConfig.of({"index.interval.bytes": INTERVAL, "seglog.time.index.minute.enabled": True})
    logs = sorted(directory.glob("*.log"))
    for log in logs:
        log.with_suffix(".time.index").write_bytes(bytes(24))
    load(OsFileSystem(), directory, config, now_ms=0, clean=False)
    for log in logs:
        with closing(Segment(log)) as segment:
            assert log.with_suffix(".time.index").read_bytes() == index_bytes(segment, config).minute_index
    assert logs[0].with_suffix(".time.index").stat().st_size > 12


@pytest.mark.parametrize("raw", [None, bytes(13)], ids=["missing", "no entries"])
def test_a_clean_open_makes_a_minute_index_that_is_configured_and_cannot_be_used(copy_of, raw):
    directory = copy_of("txn-v2-k391")
    config = LogConfig.of({"index.interval.bytes": INTERVAL, "seglog.time.index.minute.enabled": True})
    logs = sorted(directory.glob("*.log"))
    for log in logs if raw is not None else ():
        log.with_suffix(".time.index").write_bytes(raw)
    load(OsFileSystem(), directory, config, clean=True, now_ms=0)
    for log in logs:
        with closing(Segment(log)) as segment:
            assert log.with_suffix(".time.index").read_bytes() == index_bytes(segment, config).minute_index


@pytest.mark.parametrize("left", [[0, 5], [0, 2, 4, 7], [0, 7]], ids=["a shorter one", "its end is left", "two"])
def test_a_clean_open_makes_a_minute_index_anew_beside_a_segment_that_kafka_rewrote(tmp_path, left):
    """The cleaner replaces the .log and its indexes, and knows nothing of a minute index."""
    directory = tmp_path / "orders-0"
    config = LogConfig.of({"index.interval.bytes": 100, "seglog.time.index.minute.enabled": True})

    def write(base, minutes):
        raw = b"".join(
            build_batch([(b"k", b"v" * 100)], base_offset=base + n, timestamp=minute * 60_000)
            for n, minute in enumerate(minutes)
        )
        log = directory / f"{base:020d}.log"
        log.write_bytes(raw)
        with closing(Segment(log)) as segment:
            right = index_bytes(segment, config)
            for suffix, content in right.files(config):
                log.with_suffix(suffix).write_bytes(content)
        return log.with_suffix(".time.index"), right.minute_index

    directory.mkdir()
    write(10, [9, 10])
    path, stale = write(0, range(8))
    path, right = write(0, left)
    assert stale != right
    path.write_bytes(stale)
    load(OsFileSystem(), directory, config, clean=True, now_ms=0)
    assert path.read_bytes() == right
    before = files(directory)
    load(OsFileSystem(), directory, config, clean=True, now_ms=0)
    assert files(directory) == before


@pytest.mark.parametrize("part", [">q", ">i"], ids=["another time", "another batch"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["last segment", "sealed segment"])
@pytest.mark.parametrize("entry", [0, 2, -1])
def test_a_clean_open_makes_the_last_minute_index_anew_where_its_end_is_wrong(tmp_path, entry, is_sealed, part):
    """It reads no other one, however many there are. Whatever they hold, searches by time are right."""
    path = tmp_path / "orders-0"
    config = {"index.interval.bytes": 100, "seglog.time.index.minute.enabled": True, "seglog.timestamp.check": False}
    with seglog.open(path, config=config) as log:
        log.append_many([(b"k", b"v" * 100, (), 1)])
        for minute in range(6):
            log.append(b"v" * 100, timestamp=minute * 60_000)
        if is_sealed:
            log.roll()
    index = path / f"{0:020d}.time.index"
    right = index.read_bytes()
    stale = bytearray(right)
    at = range(0, len(right), 12)[entry] + (8 if part == ">i" else 0)
    struct.pack_into(part, stale, at, struct.unpack_from(part, stale, at)[0] + 1)
    index.write_bytes(stale)
    with seglog.open(path, config=config) as log:
        assert index.read_bytes() == (right if entry == -1 and not is_sealed else stale)
        assert [offset_at(log, minute * 60_000) for minute in range(7)] == [0, 2, 3, 4, 5, 6, None]


@pytest.mark.parametrize("size", ["an entry too many", "part of an entry", "empty"])
def test_a_clean_open_makes_a_minute_index_anew_whose_size_is_impossible(tmp_path, size):
    path = tmp_path / "orders-0"
    config = {"index.interval.bytes": 100, "seglog.time.index.minute.enabled": True, "seglog.timestamp.check": False}
    with seglog.open(path, config=config) as log:
        for minute in range(6):
            log.append(b"v" * 100, timestamp=minute * 60_000)
        log.roll()
    index = path / f"{0:020d}.time.index"
    right, times = index.read_bytes(), index.with_suffix("").with_suffix(".timeindex").read_bytes()
    index.write_bytes({"an entry too many": times + times[-12:], "part of an entry": right[:-1], "empty": b""}[size])
    seglog.open(path, config=config).close()
    assert index.read_bytes() == right


@pytest.mark.parametrize(("recovery_point", "is_found"), [(0, True), (69, True), (70, False), (136, False)])
def test_what_lies_below_the_segment_of_the_recovery_point_is_not_read(copy_of, recovery_point, is_found):
    directory = copy_of("v1-none-ct-k391--flip-earlier-seg", "corrupt")
    if is_found:
        with pytest.raises(CorruptRecordError):
            opened(directory, clean=False, recovery_point=recovery_point)
    else:
        assert opened(directory, clean=False, recovery_point=recovery_point).next_offset == 136


def test_the_active_segment_is_checked_even_if_the_recovery_point_lies_behind_the_end(copy_of):
    directory = copy_of("v1-none-ct-k391--tail-cut7", "corrupt")
    loaded = opened(directory, clean=False, recovery_point=10**9)
    assert (loaded.next_offset, loaded.recovery_point) == (135, 135)


# --- whoever appends next ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "v2-none-ct-k411--tail-cut7", "txn-v2-k391--zero-tail", "v1-none-ct-k391--garbage-tail",
])
def test_the_appender_opens_what_was_recovered_and_changes_nothing(copy_of, name):
    directory = copy_of(name, "corrupt")
    loaded = opened(directory, clean=False)
    before = files(directory)
    config = LogConfig.of({"index.interval.bytes": INTERVAL})
    last = loaded.segments[-1]
    appender = SegmentAppender.open(
        OsFileSystem(), directory, last.base_offset, config, last.size_bytes, loaded.next_offset, 0)
    appender.close()
    assert files(directory) == before


# --- both ends ---------------------------------------------------------------------------------


def test_a_new_directory_gets_an_empty_segment(tmp_path):
    directory = tmp_path / "orders-0"
    directory.mkdir()
    for clean in (True, False):
        loaded = opened(directory, clean=clean)
        assert [(s.base_offset, s.size_bytes) for s in loaded.segments] == [(0, 0)]
        assert (loaded.next_offset, loaded.log_start_offset, loaded.recovery_point) == (0, 0, 0)
    assert files(directory) == {f"{0:020d}{suffix}": b"" for suffix in (".index", ".log", ".timeindex")}


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_below_its_start_starts_empty_there(copy_of, clean):
    directory = copy_of("txn-v2-k391")
    loaded = opened(directory, clean=clean, log_start_offset=1000)
    assert [(s.base_offset, s.size_bytes) for s in loaded.segments] == [(1000, 0)]
    assert (loaded.next_offset, loaded.log_start_offset) == (1000, 1000)
    assert {lost.reason for lost in loaded.lost} == {ENDS_BELOW_START}
    assert len(loaded.producer_state) == 0
    assert sorted(n for n in files(directory) if n.endswith(".log")) == [f"{1000:020d}.log"]
    assert len(loaded.leader_epochs) == 0


def test_epochs_are_cut_at_both_ends_of_the_log(copy_of):
    directory = copy_of("epochs-v2-k411")
    whole = opened(directory).leader_epochs
    assert len(whole) > 2
    start = whole[1].start_offset + 1
    loaded = opened(directory, log_start_offset=start)
    assert [(e.epoch, e.start_offset) for e in loaded.leader_epochs] == [
        (whole[1].epoch, start), *((e.epoch, e.start_offset) for e in whole[2:])
    ]
    assert LeaderEpochs.read(directory / "leader-epoch-checkpoint") == loaded.leader_epochs


def test_an_empty_log_has_no_epochs_however_often_it_is_recovered(copy_of):
    """Those of batches below its start came back with the second recovery."""
    directory = copy_of("epochs-v2-k411")
    end = opened(directory).next_offset
    for _ in range(2):
        loaded = opened(directory, clean=False, log_start_offset=end)
        assert loaded.log_start_offset == loaded.next_offset == end
        assert len(loaded.leader_epochs) == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("raw", [None, b"0\n1\n"], ids=["missing", "torn"])
def test_epochs_without_a_good_checkpoint_are_those_of_the_batches(copy_of, clean, raw):
    directory = copy_of("epochs-v2-k411")
    checkpoint = directory / "leader-epoch-checkpoint"
    before = LeaderEpochs.read(checkpoint)
    checkpoint.unlink()
    if raw is not None:
        checkpoint.write_bytes(raw)
    assert opened(directory, clean=clean).leader_epochs == before
    assert LeaderEpochs.read(checkpoint) == before


# --- leftovers ---------------------------------------------------------------------------------


def test_leftovers_are_removed_and_told(copy_of):
    directory = copy_of("v1-none-ct-k391")
    before = files(directory)
    names = [
        "00000000000000000000.log.deleted", "00000000000000000000.index.cleaned", "00000000000000000070.log.tmp",
        "leader-epoch-checkpoint.tmp", "00000000000000000999.index", "00000000000000000998.time.index",
    ]
    for name in names:
        (directory / name).write_bytes(b"x" * 12)
    plan = plan_load(directory, LogConfig.of({"index.interval.bytes": INTERVAL}), clean=True)
    assert sorted(r.file for r in plan.repairs) == sorted(str(directory / n) for n in names)
    assert files(directory).keys() == {*before, *names}
    opened(directory)
    assert {n: raw for n, raw in files(directory).items() if n in before} == before
    assert not files(directory).keys() & set(names)


def test_what_is_not_ours_or_kafka_s_stays(copy_of):
    directory = copy_of("v1-none-ct-k391")
    strange = ["notes.txt", "00000000000000000000.log.bak", "00000000000000000070.checkpoint.deleted", "x.tmp"]
    for name in strange:
        (directory / name).write_bytes(b"x")
    (directory / "00000000000000000000.log.swap").mkdir()
    opened(directory, clean=False)
    assert set(strange) <= files(directory).keys()


def test_a_swap_takes_the_place_of_the_segments_that_it_was_made_from(copy_of):
    directory = copy_of("v1-none-ct-k391")
    first, second = (p.read_bytes() for p in sorted(directory.glob("*.log")))
    for name in ("00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"):
        (directory / f"{name}.swap").write_bytes(first + second if name.endswith("log") else b"")
    loaded = opened(directory, clean=False)
    assert [(s.base_offset, s.size_bytes) for s in loaded.segments] == [(0, len(first) + len(second))]
    assert loaded.next_offset == 136
    assert "00000000000000000070.index" not in files(directory)


def test_half_of_a_split_goes_with_the_cleaned_files_that_mark_it(copy_of):
    directory = copy_of("v1-none-ct-k391")
    before = files(directory)
    (directory / "00000000000000000035.log.swap").write_bytes(b"second half")
    (directory / "00000000000000000000.log.cleaned").write_bytes(b"first half")
    opened(directory, clean=False)
    assert {n: raw for n, raw in files(directory).items() if n in before} == before
    assert not [n for n in files(directory) if n.endswith((".swap", ".cleaned"))]


def test_an_index_swap_without_its_log_is_put_in_place(copy_of):
    directory = copy_of("v1-none-ct-k391")
    before = files(directory)
    (directory / "00000000000000000000.index").rename(directory / "00000000000000000000.index.swap")
    opened(directory)
    assert {n: raw for n, raw in files(directory).items() if n in before} == before


def test_a_file_is_no_partition(tmp_path):
    (tmp_path / "orders-0").write_bytes(b"")
    with pytest.raises(NotALogError):
        opened(tmp_path / "orders-0")


# --- several batches at a time, and a crash ---------------------------------------------------------


def written(tmp_path, sizes):
    """An unclean log of a batch of each size; the positions where they begin, and the end."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    positions, raw = [0], b""
    for offset, size in enumerate(sizes):
        raw += build_batch([(None, b"v" * size)], base_offset=offset, timestamp=1000)
        positions.append(len(raw))
    (directory / "00000000000000000000.log").write_bytes(raw)
    return directory, positions


def overwrite(directory, begin, raw):
    log = directory / "00000000000000000000.log"
    whole = bytearray(log.read_bytes())
    whole[begin : begin + len(raw)] = raw
    log.write_bytes(whole)


def test_a_hole_that_never_arrived_is_cut_where_several_batches_were_not_synced(tmp_path):
    """No sync covered it, nor anything behind it: what follows was acknowledged to nobody."""
    directory, at = written(tmp_path, [300] * 5)
    overwrite(directory, at[2], bytes(at[3] - at[2]))
    with pytest.raises(CorruptRecordError, match="whole batches follow"):
        opened(directory, clean=False)
    loaded = opened(directory, clean=False, unordered=True)
    assert loaded.next_offset == 2
    assert [(lost.position, lost.first_offset, lost.last_offset) for lost in loaded.lost] == [(at[2], 2, 4)]


@pytest.mark.parametrize("head", range(1, 8))
def test_a_hole_may_run_on_into_the_zeros_that_the_next_batch_begins_with(tmp_path, head):
    """The sector that did not arrive ends `head` bytes into the batch behind the hole, whose offset is small."""
    directory, at = written(tmp_path, [300, 584 - head, 300, 300])
    assert at[2] == 1024 - head
    overwrite(directory, 512, bytes(512))
    loaded = opened(directory, clean=False, unordered=True)
    assert loaded.next_offset == 1
    assert [(lost.position, lost.last_offset) for lost in loaded.lost] == [(at[1], 3)]


def test_a_hole_below_the_recovery_point_is_a_bad_middle_all_the_same(tmp_path):
    directory, at = written(tmp_path, [300] * 5)
    overwrite(directory, at[2], bytes(at[3] - at[2]))
    with pytest.raises(CorruptRecordError, match="whole batches follow"):
        opened(directory, clean=False, unordered=True, recovery_point=3)


def test_a_flipped_bit_is_a_bad_middle_all_the_same(tmp_path):
    directory, at = written(tmp_path, [300] * 5)
    overwrite(directory, at[2] + 200, b"V")
    with pytest.raises(CorruptRecordError, match="whole batches follow"):
        opened(directory, clean=False, unordered=True)


def test_a_hole_before_a_later_segment_is_a_bad_middle_all_the_same(tmp_path):
    """A segment is synced before the next one begins."""
    directory, at = written(tmp_path, [300] * 5)
    overwrite(directory, at[2], bytes(at[3] - at[2]))
    (directory / "00000000000000000005.log").write_bytes(b"")
    with pytest.raises(CorruptRecordError, match="whole batches follow"):
        opened(directory, clean=False, unordered=True)


@pytest.mark.parametrize("mode", ["fail", "truncate", "quarantine"])
def test_a_last_batch_whose_offset_did_not_arrive_is_a_torn_tail(tmp_path, mode):
    """Its offset ends where a sector does, and no checksum covers it: what arrived is whole, and says offset 0."""
    directory, at = written(tmp_path, [434, 5])
    assert at[1] == 504
    overwrite(directory, at[1], bytes(8))
    loaded = opened(directory, mode, clean=False)
    assert loaded.next_offset == 1
    assert [lost.position for lost in loaded.lost] == [504]


def test_a_last_batch_with_another_offset_is_none(tmp_path):
    directory, at = written(tmp_path, [400, 5])
    overwrite(directory, at[1], bytes(8))
    with pytest.raises(CorruptRecordError, match="goes back"):
        opened(directory, clean=False)


def test_a_repeated_batch_is_known_after_a_crash_and_a_truncation_far_back(tmp_path):
    """The snapshots before the last two segments were gone after the recovery, and so were their producers."""
    first = build_batch([(b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0)
    with seglog.open(tmp_path / "a/orders-0") as log:
        log.append_batch(first)
        for value in (b"1", b"2", b"3", b"4", b"5"):
            log.append(value)
            log.roll()
        shutil.copytree(log.path, tmp_path / "b/orders-0")
    with seglog.open(tmp_path / "b/orders-0") as log:
        assert len(list(log.path.glob("*.snapshot"))) == 5
        log.delete_records(1)
        log.truncate_to(2)
        assert log.append_batch(first) == (0, 0, True)
