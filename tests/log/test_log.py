"""A log that is opened, appended to, read, cut and closed, and opened again."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    ForkedHandleError,
    InvalidArgumentError,
    InvalidConfigError,
    LogClosedError,
    LogLockedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
)
from seglog.segment.segment import Segment
from seglog.state.clean_marks import PARTITION_MARK, PartitionMark, PartitionState
from support.faultfs import SlowSync
from support.lookups import offset_at

NOW = 1_700_000_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "orders-0"


@pytest.fixture
def clock():
    return ManualClock(NOW)


def values(log, *args, **more):
    return [record.value for record in log.read(*args, **more)]


def segment_bases(path):
    return sorted(int(name[:20]) for name in os.listdir(path) if name.endswith(".log"))


def epochs_of(log):
    return [(entry.epoch, entry.start_offset) for entry in log.leader_epochs]


# --- opening and closing ---------------------------------------------------------------------------


def test_the_first_opening_makes_the_directory_and_those_above_it(path):
    with seglog.open(path) as log:
        assert (log.log_start_offset, log.log_end_offset, log.durable_offset) == (0, 0, 0)
        assert (log.topic, log.partition) == ("orders", 0)
        assert list(log.read()) == []
    assert path.is_dir()


def test_what_was_appended_is_there_after_closing_and_opening(path, clock):
    with seglog.open(path, clock=clock) as log:
        log.append(b"one", key=b"k", headers=[("src", b"web")])
        log.append_many([(b"k1", b"two"), (b"k2", None)])
    with seglog.open(path) as log:
        assert log.recovery.lost == ()
        found = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in log.read(start=0)]
        assert found == [
            (0, NOW, b"k", b"one", (("src", b"web"),)),
            (1, NOW, b"k1", b"two", ()),
            (2, NOW, b"k2", None, ()),
        ]
        assert log.append(b"three") == 3
    with seglog.open(path) as log:
        assert log.log_end_offset == 4


def test_closing_twice_is_fine_and_then_nothing_else_is(path):
    log = seglog.open(path)
    record_of = log.append(b"x")
    record = log[record_of]
    log.close()
    log.close()
    assert log.closed
    assert record.value == b"x"
    for use in (
        lambda: log.append(b"y"), lambda: log.append_many([(None, b"y")]), log.flush, log.roll,
        lambda: log.truncate_to(0), lambda: log.delete_records(0), log.read, lambda: log[0], lambda: log.log_end_offset,
    ):
        with pytest.raises(LogClosedError):
            use()


def test_one_process_opens_a_log_once(path):
    with seglog.open(path), pytest.raises(LogLockedError):
        seglog.open(path)
    seglog.open(path).close()


def test_a_log_that_was_not_closed_says_so_and_lets_go(path):
    log = seglog.open(path)
    log.append(b"x")
    with pytest.warns(ResourceWarning, match="orders-0"):
        del log
    with seglog.open(path) as log:
        assert values(log) == [b"x"]


def test_a_log_that_failed_to_open_can_be_opened(path, tmp_path):
    path.mkdir(parents=True)
    (path / "00000000000000000000.log").mkdir()
    with pytest.raises(StorageError):
        seglog.open(path)
    (path / "00000000000000000000.log").rmdir()
    seglog.open(path).close()


def test_a_forked_child_is_refused_and_harms_nothing(path):
    with seglog.open(path) as log:
        log.append(b"parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # of a fork beside threads, where other tests left some
            child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    log.append(b"child")
                except ForkedHandleError:
                    log.close()
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert log.append(b"parent") == 1
        with pytest.raises(LogLockedError):
            seglog.open(path)


def test_a_forked_child_is_refused_while_a_thread_of_its_parent_is_busy(path):
    fs = SlowSync()
    with seglog.open(path, fs=fs) as log:
        log.append(b"x")
        fs.armed = True
        cutting = threading.Thread(target=log.truncate_to, args=(0,))      # has every lock that there is
        cutting.start()
        assert fs.begun.wait(20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            refused = 0
            try:
                signal.alarm(20)        # of a child that waits for a lock
                for change in (lambda: log.append(b"x"), lambda: log.truncate_to(0), lambda: log.snapshot(path)):
                    try:
                        change()
                    except ForkedHandleError:
                        refused += 1
                log.close()
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        fs.go.set()
        cutting.join(20)
        assert log.log_end_offset == 0


@pytest.mark.parametrize("name", ["orders", "orders-", "a b-0", "orders-0.aabbccdd-delete", "or/ders-x"])
def test_a_directory_is_named_after_topic_and_partition(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="name"):
        seglog.open(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(path):
    path.mkdir(parents=True)
    path.chmod(0o500)
    with pytest.raises(StorageError, match="permission"):
        seglog.open(path)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"config": ["segment.bytes"]}, InvalidArgumentError, "list"),
        ({"fsync": "sometimes"}, InvalidArgumentError, "sometimes"),
        ({"leader_epoch": -1}, InvalidArgumentError, "-1"),
        ({"leader_epoch": "1"}, InvalidArgumentError, "'1'"),
        ({"config": {"linger.ms": 5}}, InvalidConfigError, "linger.ms"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_made(path, arguments, error, words):
    with pytest.raises(error, match=words):
        seglog.open(path, **arguments)
    assert not path.parent.exists()


def test_a_path_is_text_or_a_path():
    with pytest.raises(InvalidArgumentError, match="int"):
        seglog.open(7)


# --- rolling ---------------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_another(path, clock):
    with seglog.open(path, clock=clock, config={"segment.bytes": 300}) as log:
        for _ in range(7):
            log.append(b"x" * 50)
        assert [s.base_offset for s in log.segments] == segment_bases(path) == [0, 2, 4, 6]
        assert [r.offset for r in log.read()] == list(range(7))
        assert log.recovery_point == 6
        assert [r.offset for r in log.read(start=3, stop=5)] == [3, 4]


def test_rolling_by_hand_begins_a_segment_at_the_end(path):
    with seglog.open(path) as log:
        log.append(b"x")
        assert log.roll() == 1
        assert log.roll() == 1      # it is empty
        assert log.durable_offset == log.recovery_point == 1
        log.append(b"y")
        assert segment_bases(path) == [0, 1]
        assert values(log) == [b"x", b"y"]


def test_a_segment_is_left_when_its_first_record_is_too_old(path, clock):
    with seglog.open(path, clock=clock, config={"segment.ms": 1000}) as log:
        log.append(b"x")
        clock.advance(1000)
        log.append(b"y")
        clock.advance(1)
        log.append(b"z")
        assert segment_bases(path) == [0, 2]


def test_an_append_of_more_batches_than_the_index_has_room_for_begins_a_segment(path):
    """As a follower gets them: bare messages of v1, each of which may ask for an entry."""
    config = {"segment.index.bytes": 64, "index.interval.bytes": 1}
    with seglog.open(path, config=config) as log:
        def follow(count):
            raw = seglog.build_batch([(None, b"v" * 100)] * count, magic=1, base_offset=log.log_end_offset)
            return log.append_batch(raw, assign_offsets=False).first_offset

        assert (follow(6), follow(6)) == (0, 6)
        assert segment_bases(path) == [0, 6]
        with pytest.raises(InvalidArgumentError, match="full"):
            follow(20)
        assert (follow(1), log.log_end_offset) == (12, 13)


def test_batches_that_lie_too_far_apart_for_a_segment_are_refused_together_and_taken_one_by_one(path):
    offsets = [5, 2**31 + 4, 2**32 + 4]
    one, two, three = (seglog.build_batch([(None, b"v")], base_offset=o, leader_epoch=9) for o in offsets)
    with seglog.open(path) as log:
        with pytest.raises(InvalidArgumentError, match="one segment cannot hold batches from offset 5 to 4294967300"):
            log.append_batch(one + two + three, assign_offsets=False)
        assert (log.log_end_offset, segment_bases(path), epochs_of(log)) == (0, [0], [])
        log.append_batch(one + two, assign_offsets=False)
        log.append_batch(three, assign_offsets=False)
        assert [record.offset for record in log.read()] == offsets
        assert segment_bases(path) == [0, 5, 2**32 + 4]


# --- cutting ---------------------------------------------------------------------------------------


@pytest.fixture
def five(path, clock):
    """Five records in segments from 0, 2 and 4."""
    with seglog.open(path, clock=clock, config={"segment.bytes": 300}) as log:
        for n in range(5):
            log.append(b"%d" % n * 50)
        yield log


def test_truncating_takes_records_back_and_the_next_append_takes_their_offsets(five, path):
    assert five.truncate_to(3) == 3
    assert (five.log_end_offset, five.durable_offset, five.recovery_point) == (3, 3, 3)
    assert segment_bases(path) == [0, 2]
    assert five.append(b"again") == 3
    assert values(five)[3:] == [b"again"]
    five.close()
    with seglog.open(path) as log:
        assert values(log)[2:] == [b"2" * 50, b"again"]


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_truncating_at_any_record_leaves_those_before_it(five, path, offset):
    assert five.truncate_to(offset) == offset
    assert [r.offset for r in five.read()] == list(range(offset))
    five.close()
    with seglog.open(path) as log:
        assert [r.offset for r in log.read()] == list(range(offset))
        assert log.recovery.lost == ()


def test_truncating_behind_the_end_changes_nothing(five):
    assert five.truncate_to(5) == five.truncate_to(99) == 5


def test_truncating_inside_of_a_batch_takes_the_whole_batch(path):
    with seglog.open(path) as log:
        log.append(b"x")
        log.append_many([(None, b"a"), (None, b"b"), (None, b"c")])
        assert log.truncate_to(2) == 1
        assert values(log) == [b"x"]


def test_truncating_never_ends_below_the_log_start(path):
    """Where the start lies inside of a batch, which goes as a whole."""
    with seglog.open(path) as log:
        log.append(b"x")
        log.append_many([(None, b"a"), (None, b"b"), (None, b"c")])
        log.delete_records(2)
        assert log.truncate_to(3) == log.log_start_offset == log.log_end_offset == 2
        assert segment_bases(path) == [2]
        assert values(log) == []
    with seglog.open(path) as log:
        assert log.recovery.lost == ()
        assert log.append(b"y") == 2
        assert values(log) == [b"y"]


def test_a_reader_goes_on_in_what_was_truncated(five):
    reader = five.read()
    next(reader)
    five.truncate_to(1)
    assert next(reader).offset == 1     # of the batch table that it has
    with pytest.raises(OffsetOutOfRangeError):
        five.read(start=3)


def test_deleting_records_moves_the_start_and_removes_whole_segments(five, path):
    assert five.delete_records(3) == 3
    assert five.log_start_offset == 3
    assert segment_bases(path) == [2, 4]
    assert [r.offset for r in five.read()] == [3, 4]
    with pytest.raises(OffsetOutOfRangeError, match=r"\[3, 5\)"):
        five.read(start=2)
    assert [r.offset for r in five.read(start=2, on_out_of_range="earliest")] == [3, 4]
    five.close()
    with seglog.open(path) as log:
        assert (log.log_start_offset, log.log_end_offset) == (3, 5)


def test_a_segment_that_is_removed_between_its_log_and_its_indexes_is_read_to_its_end(path, clock):
    with seglog.open(path, clock=clock, config={"index.interval.bytes": 1}) as log:
        for n in range(4):
            log.append(b"%d" % n)
        log.roll()
        log.append(b"behind")
        removed = log.segments[0]
        unseen = Segment(removed.path, is_last=False, owned=True)
        removed.files()                 # its .log is open
        log.delete_records(4)
        assert removed.get(2).value == b"2"
        assert removed.find_timestamp(NOW).offset == 0
        assert [b.base_offset for b in removed.batches()] == [0, 1, 2, 3]
        with pytest.raises(OffsetOutOfRangeError):
            removed.transaction_index   # noqa: B018
        unseen._retire()
        with pytest.raises(OffsetOutOfRangeError):
            unseen.get(2)


def test_deleting_all_records_keeps_the_end(five, path):
    assert five.delete_records(5) == 5
    assert list(five.read()) == []
    five.close()
    with seglog.open(path) as log:
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        assert log.append(b"x") == 5


def test_deleting_below_the_start_changes_nothing(five):
    five.delete_records(3)
    assert five.delete_records(1) == 3


def test_offsets_outside_of_the_log_are_refused_with_the_valid_range(five):
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 5\]"):
        five.delete_records(6)
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 5\]"):
        five.delete_records(-1)     # Kafka's protocol calls the high watermark so
    five.delete_records(3)
    with pytest.raises(OffsetOutOfRangeError, match="3"):
        five.truncate_to(2)
    for call in (five.truncate_to, five.delete_records):
        with pytest.raises(InvalidArgumentError, match="str"):
            call("3")


def test_headers_may_come_from_anybodys_code(path):
    """It runs before the lock is taken, and what it gives is read as often as need be."""
    with seglog.open(path, config={"max.message.bytes": 1000}) as log:

        def headers(size=1):
            log.append(b"meanwhile")
            yield "name", b"v" * size

        assert log.append(b"x", headers=headers()) == 1
        assert log[1].headers == (("name", b"v"),)
        with pytest.raises(RecordTooLargeError):
            log.append(b"x", headers=headers(size=1000))
        assert values(log) == [b"meanwhile", b"x", b"meanwhile"]


# --- leader epochs ---------------------------------------------------------------------------------


def test_appended_batches_carry_the_logs_leader_epoch(path):
    with seglog.open(path, leader_epoch=4) as log:
        log.append(b"x")
        assert [batch.leader_epoch for batch in log.batches()] == [4]
        assert epochs_of(log) == [(4, 0)]
    with seglog.open(path) as log:      # a log does not go back to an earlier epoch
        log.append(b"y")
        assert [batch.leader_epoch for batch in log.batches()] == [4, 4]
    with seglog.open(path, leader_epoch=5) as log:
        log.append(b"z")
        assert epochs_of(log) == [(4, 0), (5, 2)]


def test_truncating_takes_epochs_back_too(path):
    with seglog.open(path, leader_epoch=1) as log:
        log.append(b"x")
    with seglog.open(path, leader_epoch=2) as log:
        log.append(b"y")
        log.truncate_to(1)
        assert epochs_of(log) == [(1, 0)]
        log.append(b"z")
        assert epochs_of(log) == [(1, 0), (2, 1)]


# --- what a crash may leave ------------------------------------------------------------------------


def mark_of(path):
    return PartitionMark.read(path / PARTITION_MARK).state


def test_appends_that_are_synced_one_by_one_leave_no_hole_and_no_mark_of_one(path):
    with seglog.open(path) as log:
        for n in range(3):
            log.append(b"%d" % n)
        log.append_many([(None, b"a"), (None, b"b")])
        assert mark_of(path) is PartitionState.DIRTY


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_before_a_second_batch_is_written_unsynced_the_directory_says_so(path, fsync):
    with seglog.open(path, fsync=fsync) as log:
        log.append(b"x")
        assert mark_of(path) is PartitionState.DIRTY
        log.flush()
        log.append(b"x")
        assert mark_of(path) is PartitionState.DIRTY
        log.append(b"y")
        assert mark_of(path) is PartitionState.UNORDERED
    assert not (path / PARTITION_MARK).exists()


def test_so_it_does_where_one_append_is_of_several_batches(path):
    with seglog.open(path) as log:
        raw = b"".join(seglog.build_batch([(None, b"v")], base_offset=n) for n in range(2))
        log.append_batch(raw, assign_offsets=False)
        assert mark_of(path) is PartitionState.UNORDERED


def test_the_recovery_point_is_past_what_was_recovered_before_more_is_written(path):
    log = seglog.open(path)
    for n in range(3):
        log.append(b"%d" % n)
    crashed = shutil.copytree(path.parent, path.parent.with_name("crashed"))
    log.close()
    checkpoint = crashed / "recovery-point-offset-checkpoint"
    with seglog.open(crashed / "orders-0") as log:
        assert not checkpoint.exists()
        log.append(b"more")
        assert b"orders 0 3" in checkpoint.read_bytes()


# --- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_threads_append_read_and_roll_at_once(path, fsync):
    """Each record has an offset of its own, and every reader sees a prefix."""
    with seglog.open(path, fsync=fsync, config={"segment.bytes": 4096}) as log:
        found = {}
        done = threading.Event()
        errors = []

        def append(name):
            try:
                for n in range(60):
                    value = b"%d-%d" % (name, n)
                    found[log.append(value)] = value
            except Exception as error:
                errors.append(error)

        def read():
            try:
                while not done.is_set():
                    offsets = [r.offset for r in log.read()]
                    assert offsets == list(range(len(offsets)))
            except Exception as error:
                errors.append(error)

        writers = [threading.Thread(target=append, args=(name,)) for name in range(4)]
        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in writers + readers:
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        for thread in readers:
            thread.join()
        assert errors == []
        assert {r.offset: r.value for r in log.read()} == found
        assert sorted(found) == list(range(240))


# --- times --------------------------------------------------------------------------------------------


def test_times_may_be_numpys(path, clock):
    np = pytest.importorskip("numpy", reason="numpy is not installed: it is no dependency")
    with seglog.open(path, clock=clock) as log:
        log.append(b"x", timestamp=np.int64(NOW - 5))
        assert log[0].timestamp == NOW - 5
        assert (offset_at(log, np.int64(NOW - 5)), offset_at(log, np.int64(NOW))) == (0, None)


def test_times_ago_are_counted_from_the_clock_of_the_log(path, clock):
    with seglog.open(path, clock=clock) as log:
        for hours in (3, 2, 1):
            log.append(b"%d" % hours, timestamp=f"-{hours}h")
        assert [r.timestamp for r in log.read()] == [NOW - hours * 3_600_000 for hours in (3, 2, 1)]
        assert values(log, since="-2h") == [b"2", b"1"]
        assert values(log, until="-2h") == [b"3"]
        assert (offset_at(log, "-90m"), offset_at(log, "-59m"), offset_at(log, "-4h")) == (2, None, 0)
        clock.advance(3_600_000)
        assert values(log, since="-2h") == [b"1"]


# --- words on the way -------------------------------------------------------------------------------


def test_where_nobody_listens_nothing_is_said(path):
    """A library's logger has a NullHandler: else Python prints warnings to stderr by itself."""
    seglog.open(path).close()
    (path.parent / "recovery-point-offset-checkpoint").write_bytes(b"damaged")
    code = "import sys, seglog; seglog.open(sys.argv[1]).close()"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_last_stable_offset_is_not_below_the_start(path):
    with seglog.open(path) as log:
        begun = seglog.build_batch(
            [(None, b"undecided")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append_batch(begun)
        log.append_many([(None, b"x"), (None, b"y")])
        assert (log.last_stable_offset, log.log_end_offset) == (0, 3)
        log.delete_records(2)
        assert log.last_stable_offset == 2
        assert values(log, isolation="read_committed") == []
        assert values(log) == [b"y"]
