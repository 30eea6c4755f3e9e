"""Readers beside a writer: what they see, what wakes them, and what a cut, a roll, a deletion and a kill do to them."""
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seglog
from seglog._kernels.crc import crc32c
from seglog.errors import (
    IdleTimeoutError,
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.live_ends import FILE_BYTES, FILE_NAME, TRUNCATIONS_MAX, LiveEnds, latest_of, slot_position
from seglog.fs.live_file import BOOT_ID
from seglog.reading import follower as follower_module
from seglog.reading.follower import Follower
from seglog.reading.listing import settled_log_files
from seglog.segment.segment import Segment
from seglog.upkeep.cleaner import clean
from support.golden import unpack
from support.waiting import line_of, wait_for

CONFIG = {"segment.bytes": 2000, "index.interval.bytes": 200}
SHORT = settings(
    max_examples=1000 if os.environ.get("SEGLOG_TORTURE") else 50, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def values(records):
    return [record.value for record in records]


def told(log):
    """Have the ends published now, not within some milliseconds."""
    log._tail.tell_growth()


def die(log):
    """As kill -9 leaves it: nothing is said, the lock is gone."""
    log._tail.live._is_off = True
    log._tail.let_go(clean=False)
    log._is_over()


@pytest.fixture
def path(in_memory):
    return in_memory / "orders-0"


# --- what is seen ----------------------------------------------------------------------------------------


@given(st.data())
@SHORT
def test_a_follower_sees_what_a_model_says(in_memory, data):
    path = in_memory / "model-0"
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(in_memory, ignore_errors=True)
    fsync = data.draw(st.sampled_from(["batch", "never"]), label="fsync")

    def opened():
        return seglog.open(path, config=CONFIG, fsync=fsync)

    log, model, start, count = opened(), [], 0, 0
    follower = seglog.follow(path)
    following = follower.follow("start", timeout=60, on_out_of_range="earliest")
    position = 0
    try:
        for step in data.draw(st.lists(st.sampled_from(
            ["append", "append", "append", "roll", "cut", "delete", "reopen", "die", "torn", "follow", "follow"]
        ), min_size=5, max_size=25), label="steps"):
            if step == "append":
                new = [b"%d %s" % (count + n, b"x" * data.draw(st.sampled_from([1, 300]))) for n in range(
                    data.draw(st.integers(1, 6)))]
                count += len(new)
                model += new
                for value in new[:-1]:
                    log.append(value, wait=False)
                log.append(new[-1])
            elif step == "roll":
                log.roll()
            elif step == "cut":
                log.truncate_to(data.draw(st.integers(start, len(model))))
                del model[log.log_end_offset:]
                position = min(position, len(model))
            elif step == "delete":
                start = log.delete_records(data.draw(st.integers(start, len(model))))
            elif step == "reopen":
                log.close()
                log = opened()
            elif step in ("die", "torn"):
                log.flush()
                die(log)
                if step == "torn":
                    with open(max(path.glob("*.log")), "ab") as file:
                        file.write(struct.pack(">qi", len(model), 500) + b"torn" * 20)
                assert values(follower.read()) == model[start:]
                log = opened()
            told(log)
            assert (follower.log_start_offset, follower.log_end_offset) == (start, len(model))
            assert values(follower.read()) == model[start:]
            if step == "follow":
                position = max(position, start)
                assert [next(following).value for _ in model[position:]] == model[position:]
                position = len(model)
        assert follower.last_stable_offset == len(model)
        with pytest.raises(IdleTimeoutError):
            next(follower.follow("end", timeout=0))
    finally:
        follower.close()
        log.close()


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_what_is_visible_is_what_fsync_says_and_who_asks_sees_what_is_durable(path, fsync):
    with seglog.open(path, config={"flush.ms": 3_600_000}, fsync=fsync) as log:
        log.append(b"one")
        log.flush()
        with seglog.follow(path) as follower, seglog.follow(path, durable=True) as durable:
            log.append(b"two", wait=False)
            told(log)
            assert follower.log_end_offset == log.log_end_offset == (1 if fsync == "batch" else 2)
            assert values(durable.read()) == [b"one"]
            log.flush()
            told(log)
            assert values(durable.read()) == values(follower.read()) == [b"one", b"two"]


def test_aborted_transactions_are_left_out_as_in_the_writers_process(path):
    from seglog.format.batch import end_marker

    with seglog.open(path) as log, seglog.follow(path) as follower:
        producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
        for sequence, commits in enumerate([True, False, True]):
            log.append_batch(seglog.build_batch([(b"k", b"%d" % sequence)], base_sequence=sequence, **producer))
            told(log)
            assert follower.last_stable_offset == log.last_stable_offset == 2 * sequence
            log.append_batch(seglog.build_batch([end_marker(commits, 0)], control=True, **producer))
            told(log)
        assert values(follower.read(isolation="read_committed")) == [b"0", b"2"]
        following = follower.follow("start", isolation="read_committed", timeout=0)
        assert [next(following).value, next(following).value] == [b"0", b"2"]


def test_a_read_goes_on_over_compaction_rolls_and_cuts(path):
    config = CONFIG | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1.0}
    with seglog.open(path, config=config) as log, seglog.follow(path) as follower:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 100, key=b"%d" % (n % 7))
        told(log)
        reading, following = follower.read(), follower.follow("start", timeout=60)
        first, followed = [next(reading) for _ in range(3)], [next(following) for _ in range(3)]
        clean(log, log.config)
        left = [record.offset for record in log.read()]
        assert len(left) < 40
        assert [record.offset for record in follower.read()] == left
        for records, begun in ((reading, first), (following, followed)):
            offsets = [record.offset for record in begun]
            while offsets[-1] < 59:
                offsets.append(next(records).offset)
            assert offsets == sorted(set(offsets))
            assert {offset for offset in left if offset >= 3} <= set(offsets)
        assert next(iter(reading), None) is None
        log.truncate_to(50)
        assert follower.log_end_offset == log.log_end_offset == 50
        with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 50\)"):
            follower.read(51)


@pytest.mark.parametrize("how", ["read", "follow", "find_offset"])
def test_a_change_that_begins_right_behind_another_hides_no_records(path, monkeypatch, how):
    """A reader that met the first change must not take the picture from before it for the current one."""
    config = CONFIG | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1.0, "file.delete.delay.ms": 0}
    with seglog.open(path, config=config) as log, seglog.follow(path) as follower:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 100, key=b"%d" % (n % 50))
        told(log)
        live, look, timers = log._tail.live, Follower._live, []

        def end_soon():
            timers.append(threading.Timer(0.1, live.end, (log._tail.shown, log.last_stable_offset)))
            timers[-1].start()

        def then_begin_again(self):
            ends = look(self)
            if len(timers) == 1 and ends.epoch % 2 == 0:
                live.begin()
                end_soon()
            return ends

        reading = follower.read() if how == "read" else follower.follow("start", timeout=60)
        offsets = [] if how == "find_offset" else [next(reading).offset]
        with monkeypatch.context() as patch:    # the segments are exchanged, and nobody says that this is over
            patch.setattr(live, "end", lambda *_, **__: None)
            clean(log, log.config)
        monkeypatch.setattr(Follower, "_live", then_begin_again)
        end_soon()
        if how == "find_offset":
            assert follower.find_offset(30) is not None
        else:
            while offsets[-1] < 59:
                offsets.append(next(reading).offset)
            assert {record.offset for record in log.read()} <= {0, *offsets}
        for timer in timers:
            timer.join()
        assert len(timers) == 2


def test_a_segment_that_is_removed_behind_the_listing_is_no_error(path, monkeypatch):
    """As a writer does that cuts the log and is gone before the follower looks into the last segment."""
    with seglog.open(path, config=CONFIG) as log:
        for n in range(30):
            log.append(b"%03d" % n + b"x" * 100)
    left = []

    def listed(directory):
        found = settled_log_files(directory)
        if not left:
            with seglog.open(path) as log:
                left.append(log.truncate_to(log.segments[-1].base_offset - 1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(follower_module, "settled_log_files", listed)
        with seglog.follow(path) as follower:
            assert follower.log_end_offset == left[0]
            assert [record.offset for record in follower.read()] == list(range(left[0]))


def test_a_last_segment_behind_a_broken_link_is_named(path):
    with seglog.open(path, config=CONFIG) as log:
        log.append(b"v")
    last = path / "00000000000000000000.log"
    last.unlink()
    last.symlink_to("nowhere")
    with pytest.raises(StorageError, match=last.name):
        seglog.follow(path)


@pytest.mark.parametrize("left", [2, 4, 6])
def test_a_read_ends_where_the_log_was_cut_meanwhile(path, left):
    """Else it would find its place in a batch that came later, and give offsets twice."""
    with seglog.open(path, config={"index.interval.bytes": 200}) as log, seglog.follow(path) as follower:
        for n in range(8):      # a read takes about 1 MB at once
            log.append(b"%d" % n + b"x" * 600_000)
        told(log)
        reading = follower.read()
        offsets = [next(reading).offset for _ in range(3)]
        log.truncate_to(left)
        for _ in range(2):
            log.append_many([(None, b"other" * 60_000)] * 3)
        told(log)
        assert offsets + [record.offset for record in reading] == list(range(max(left, 4)))
        assert follower.log_end_offset == left + 6


def test_an_offset_that_was_deleted_is_out_of_range_or_goes_on_where_asked(path):
    with seglog.open(path, config=CONFIG) as log, seglog.follow(path) as follower:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 100)
        told(log)
        strict, lenient = follower.follow(0), follower.follow(0, on_out_of_range="earliest")
        assert next(strict).offset == next(lenient).offset == 0
        log.delete_records(45)
        with pytest.raises(OffsetOutOfRangeError, match=r"\[45, 60\)"):
            for _ in strict:
                pass
        wait_for(lambda: next(lenient).offset >= 45)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", ["compaction", "deletion", "cut"])
def test_a_batch_that_is_found_is_in_the_log_although_segments_change_meanwhile(path, monkeypatch, change, when):
    """Otherwise its position is one in a file that is gone, or in which another batch lies there."""
    find_offset, due = Segment.find_offset, [True]

    def changing(segment, target):
        if not due:
            return find_offset(segment, target)
        due.clear()
        found = find_offset(segment, target) if when == "after" else None
        changes[change](log)
        told(log)
        return found if when == "after" else find_offset(segment, target)

    def cut(log):
        log.truncate_to(20)
        log.append(b"other" * 50, key=b"other")
        for n in range(30):
            log.append(b"%d" % n, key=b"other")

    changes = {
        "compaction": lambda log: clean(log, log.config), "deletion": lambda log: log.delete_records(45), "cut": cut,
    }

    with seglog.open(path, config=CONFIG | {"cleanup.policy": "compact"}) as log:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 100, key=b"%d" % (n % 7))
        told(log)
        with seglog.follow(path) as follower:
            first = follower.find_offset(30)
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "find_offset", changing)
                found = follower.find_offset(30)
            with seglog.open_partition(path) as now:
                expected = now.find_offset(30)
            assert not due
            if expected is None:
                assert found is None
            else:
                assert found != first
                assert (found[0].path, found[1]) == (expected[0].path, expected[1])


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("change", ["compaction", "deletion", "cut"])
def test_the_last_records_are_those_of_one_moment_although_segments_change_meanwhile(path, monkeypatch, change, nth):
    """Otherwise a cut would take away records that were counted, and fewer than asked for would be given."""
    changes = {
        "compaction": lambda log: clean(log, log.config), "deletion": lambda log: log.delete_records(45),
        "cut": lambda log: log.truncate_to(20),
    }
    tables, due = Segment.tables, [*range(nth)]

    def changing(segment, *args, **options):
        for n, table in enumerate(tables(segment, *args, **options)):
            if due and n == 0 and options.get("check_crc") is False:
                due.pop()
                if not due:
                    changes[change](log)
                    told(log)
            yield table

    with seglog.open(path, config=CONFIG | {"cleanup.policy": "compact"}) as log, seglog.follow(path) as follower:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 100, key=b"%d" % (n % 7))
        told(log)
        assert values(follower.tail(3)) == values(log.read(57))
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "tables", changing)
            tail = values(follower.tail(18))
        assert not due
        assert tail == values(log.read())[-18:]


def test_a_directory_of_kafka_ends_with_the_last_whole_batch(in_memory):
    found = unpack("kafka") / "cases/v2-none-ct-k411/v2-none-ct-k411-0"
    path = in_memory / "orders-0"
    shutil.copytree(found, path)
    with seglog.open_partition(path) as partition, seglog.follow(path) as follower:
        expected = [(r.offset, r.value) for r in partition.read()]
        assert [(r.offset, r.value) for r in follower.read()] == expected
        last = max(path.glob("*.log"))
        size, end = last.stat().st_size, follower.log_end_offset
        batch = seglog.build_batch([(b"k", b"v" * 200)])
        following = follower.follow("end", timeout=60)
        whole = struct.pack(">q", end) + batch[8:]

        def broker():
            with open(last, "ab", buffering=0) as file:
                for piece in (whole[:50], whole[50:-1], whole[-1:]):
                    time.sleep(0.05)
                    file.write(piece)

        thread = threading.Thread(target=broker)
        thread.start()
        record = next(following)
        assert (record.offset, len(record.value), last.stat().st_size) == (end, 200, size + len(batch))
        thread.join()
        assert follower.last_stable_offset == end + 1


# --- waking ----------------------------------------------------------------------------------------------


def test_an_append_of_a_broker_while_its_log_is_first_looked_at_takes_nothing_away(path, monkeypatch):
    """Its index may then lead to a batch that was not in the .log a moment ago."""
    with seglog.open(path, config={"index.interval.bytes": 1}) as log:
        for n in range(9):
            log.append(b"%d" % n)
        log.flush()
        before = {file: file.read_bytes() for file in path.iterdir() if file.name.startswith("0")}
        log.append(b"9")
    after = {file: file.read_bytes() for file in path.iterdir() if file.name.startswith("0")}
    for file, raw in before.items():
        file.write_bytes(raw)
    indexed_end = follower_module._indexed_end

    def append_meanwhile(*arguments):
        for file, raw in after.items():
            file.write_bytes(raw)
        return indexed_end(*arguments)

    monkeypatch.setattr(follower_module, "_indexed_end", append_meanwhile)
    with seglog.follow(path) as follower:
        assert follower._picture_now.log_end_offset == 10       # of the first look; each call looks again
        assert values(follower.read()) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("without", [None, "inotify"])
def test_a_follower_wakes_soon_after_an_append(path, monkeypatch, without):
    if without:
        monkeypatch.setattr("seglog.reading.follower.FILE_WATCHES.watch", lambda *_, **__: None)
    with seglog.open(path) as log, seglog.follow(path) as follower:
        log.append(b"0")
        following, late = follower.follow("start", timeout=60), []

        def follow():
            for record in following:
                late.append(time.monotonic() - float(record.value))

        thread = threading.Thread(target=follow)
        thread.start()
        for count in range(1, 21):
            wait_for(lambda count=count: len(late) == count)
            time.sleep(0.03)        # so that it waits again
            log.append(b"%r" % time.monotonic())
        wait_for(lambda: len(late) == 21)
        follower.close()
        thread.join(60)
        assert not thread.is_alive()
        # A reader that nothing wakes looks after a second. The median, because a busy machine may be late itself.
        assert sorted(late[1:])[10] < follower_module._IDLE_S / 2


def test_follow_ends_at_once_when_the_log_is_closed_in_another_thread(path):
    for kind in ("log", "follower"):
        log = seglog.open(path)
        log.append(b"value")
        told(log)
        followed = log if kind == "log" else seglog.follow(path)
        seen = []
        thread = threading.Thread(target=lambda f=followed, s=seen: s.extend(f.follow("start")))
        thread.start()
        wait_for(lambda s=seen: s)
        followed.close()
        thread.join(60)
        assert not thread.is_alive()
        with pytest.raises(LogClosedError):
            followed.follow()
        log.close()


def test_control_c_ends_the_wait(path):
    seglog.open(path).close()
    code = (
        "import seglog, sys\n"
        "follower = seglog.{}\n"
        "try:\n    print('up', flush=True)\n    next(follower.follow())\n"
        "except KeyboardInterrupt:\n    print('stopped', flush=True)\n"
    )
    for door in (f"follow({str(path)!r})", f"open({str(path)!r})"):
        process = subprocess.Popen([sys.executable, "-c", code.format(door)], stdout=subprocess.PIPE, text=True)
        assert line_of(process) == "up\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "stopped\n"


def test_an_idle_timeout_is_a_timeout_error_and_names_where_to_go_on(path):
    with seglog.open(path) as log:
        log.append(b"value")
        following = log.follow("start", timeout=0.05)
        assert next(following).offset == 0
        with pytest.raises(TimeoutError) as stopped:
            next(following)
        assert stopped.value.offset == 1
        for bad in ({"timeout": -1}, {"timeout": "1"}, {"on_out_of_range": "here"}, {"isolation": "none"}):
            with pytest.raises(InvalidArgumentError):
                log.follow(**bad)
        for bad in (5, -1):
            with pytest.raises(OffsetOutOfRangeError):
                log.follow(bad)


def test_a_log_is_followed_over_rolls_and_cuts_in_its_own_process(path):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        following = log.follow(timeout=60)
        for n in range(40):
            log.append(b"%d" % n + b"x" * 100)
        assert [next(following).offset for _ in range(40)] == list(range(40))
        log.truncate_to(20)
        log.append(b"again")
        record = next(following)
        assert (record.offset, record.value) == (20, b"again")
        assert next(log.follow("1970-01-01T00:00:00Z")).offset == 0
        log.delete_records(21)
        with pytest.raises(OffsetOutOfRangeError):
            next(log.follow(0))


# --- the file --------------------------------------------------------------------------------------------

ENDS = LiveEnds(
    boot_id=BOOT_ID, is_open=True, shows_durable=True, epoch=4, log_start_offset=1, last_stable_offset=2,
    base_offset=0, written=(1, 2, 3, 4, 5), durable=(1, 2, 3, 4, 5),
)


@given(cuts=st.lists(st.integers(0, 1000), max_size=300), seen=st.integers(0, 700))
@SHORT
def test_cuts_that_became_one_say_no_less(cuts, seen):
    ends = ENDS
    for n, offset in enumerate(cuts):
        ends = ends.with_truncation(2 * n + 2, offset)
    exact = min((offset for n, offset in enumerate(cuts) if 2 * n + 2 > seen), default=None)
    found = ends.truncation_since(seen)
    assert found is None if exact is None else found <= exact
    if len(set(cuts)) < TRUNCATIONS_MAX:
        assert found == exact
    raw = ends.to_slot(7)
    assert latest_of(bytes(slot_position(7)) + raw, "file") == ends._replace(sequence=7)


@given(torn=st.integers(0, FILE_BYTES - 1), bit=st.integers(0, 7))
@SHORT
def test_a_torn_or_flipped_slot_leaves_the_other(torn, bit):
    raw = bytearray(ENDS.to_slot(6) + ENDS.to_slot(7))
    raw[torn] ^= 1 << bit
    assert latest_of(raw, "file").sequence == (7 if torn < FILE_BYTES // 2 else 6)
    assert latest_of(raw[: FILE_BYTES // 2 - 1], "file") is None


def test_a_newer_version_is_refused_by_readers_and_written_anew_by_a_writer(path):
    with seglog.open(path) as log:
        log.append(b"value")
    raw = bytearray(ENDS.to_slot(6) + ENDS.to_slot(7))
    raw[8:12] = struct.pack(">I", 2)
    raw[12:16] = struct.pack(">I", crc32c(raw[:12] + raw[16:2048]))
    (path / FILE_NAME).write_bytes(raw)
    with pytest.raises(UnsupportedVersionError):
        seglog.follow(path)
    with seglog.open(path), seglog.follow(path) as follower:
        assert follower.log_end_offset == 1


@pytest.mark.parametrize("left", ["nothing", "zeros", "another start of the system", "a fifo"])
def test_a_file_that_says_nothing_is_passed_by(path, left):
    with seglog.open(path) as log:
        log.append(b"value")
    (path / FILE_NAME).unlink()
    match left:
        case "zeros":
            (path / FILE_NAME).write_bytes(bytes(FILE_BYTES))
        case "another start of the system":
            other = ENDS._replace(boot_id=b"x" * 16)
            (path / FILE_NAME).write_bytes(other.to_slot(0) + other.to_slot(1))
    with seglog.follow(path) as follower:
        assert values(follower.read()) == [b"value"]


def test_a_file_that_cannot_be_written_harms_no_append(path, caplog):
    (path / FILE_NAME).mkdir(parents=True)
    with seglog.open(path) as log:
        log.append(b"value")
        told(log)
        (path / FILE_NAME).rmdir()
        with seglog.follow(path) as follower:
            assert values(follower.read()) == [b"value"]
            log.append(b"more")
            assert values(follower.read()) == [b"value", b"more"]
    assert "cannot write" in caplog.text


# --- pictures, and who is told what to do ----------------------------------------------------------------


def test_a_partition_is_a_picture_until_it_is_refreshed(path):
    with seglog.open(path, config=CONFIG) as log:
        log.append(b"one")
        with seglog.open_partition(path) as partition:
            assert partition.log_end_offset == 1
            for n in range(30):
                log.append(b"%d" % n + b"x" * 100)
            assert values(partition.read()) == [b"one"]
            assert partition.log_end_offset == 1
            partition.refresh()
            assert partition.log_end_offset == 31
            sealed = partition.segments[0]
            list(partition.read())
            log.append(b"last")
            partition.refresh()
            assert partition.segments[0] is sealed
            assert partition[31].value == b"last"
            log.delete_records(20)
            partition.refresh()
            assert partition.log_start_offset >= 18
    with seglog.open_partition(path) as partition:
        for log in path.glob("*.log"):
            log.unlink()
        with pytest.raises(NotALogError):
            partition.refresh()


def test_a_second_writer_hears_what_to_do_instead(path):
    with seglog.open(path):
        code = (
            f"import seglog\ntry:\n    seglog.open({str(path)!r})\n"
            "except seglog.errors.LogLockedError as error:\n    print(error, error.hint)\n"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert str(os.getpid()) in out
        assert "follow" in out
        assert "need no lock" in out
        with pytest.raises(LogLockedError):
            seglog.open(path)
