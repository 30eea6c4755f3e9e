"""A log that is open deletes by itself what retention lets go: no test here starts anything by hand."""
import json
import os
import shutil
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.format.dialect import segment_files
from support.golden import unpack
from support.lookups import offset_at
from support.waiting import wait_for

GOLDEN = unpack("kafka") / "pairs/retention"
CASES = sorted(GOLDEN.glob("*.json"))
NOW = 1_700_000_000_000


def put_start(log_dir, where, offset):
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_text(f"0\n1\n{where} {offset}\n")


def golden_copy(case, log_dir):
    """The directory of a case with its file times, and, where it has one, its log start offset."""
    directory = log_dir / case["dir"].rpartition("/")[2]
    shutil.copytree(GOLDEN / case["dir"], directory)
    for key, mtime in case["options"].items():
        kind, _, base = key.partition(".")
        if kind == "mtime":
            for path in segment_files(directory / names.file_name(int(base), ".log")):
                os.utime(path, ns=(int(mtime) * 10**6,) * 2)
    if "log.start.offset" in case["options"]:
        topic, _, partition = directory.name.rpartition("-")
        put_start(log_dir, f"{topic} {partition}", case["options"]["log.start.offset"])
    (log_dir / names.CLEAN_SHUTDOWN).touch()
    return directory


@pytest.mark.parametrize("path", [case for case in CASES if case.stem.endswith("compacted")], ids=lambda one: one.stem)
def test_a_compacted_log_is_not_rewritten_before_its_first_retention(path, tmp_path):
    """Its cleaner merged segments that were to go, and what is merged is young again."""
    case = json.loads(path.read_text())
    directory = golden_copy(case, tmp_path)
    config = {**case["config"], "segment.bytes": 1000}
    bases = [segment["base_offset"] for segment in case["results"]["3.9.1"]["segments_after"]]
    with seglog.open(directory, config=config, clock=ManualClock(case["now"])) as log:
        wait_for(lambda: [segment.base_offset for segment in log.segments] == bases)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_log_that_is_opened_ends_as_kafka_leaves_it(path, tmp_path):
    case = json.loads(path.read_text())
    if "hw" in case["options"]:
        pytest.skip("a log here has no replicas: its high watermark is its end (tests/upkeep/test_retention.py has it)")
    real = case["results"]["3.9.1"]
    directory = golden_copy(case, tmp_path)
    config = {**case["config"], "segment.bytes": 1000}
    with seglog.open(directory, config=config, clock=ManualClock(case["now"])) as log:
        if "roll" in case["options"]:
            log.roll()
        bases = [segment["base_offset"] for segment in real["segments_after"]]
        log.delete_old_segments()
        assert [segment.base_offset for segment in log.segments] == bases
        assert (log.log_start_offset, log.log_end_offset) == (real["log_start_offset_after"], real["log_end_offset"])
        waiting = {file.name for file in directory.glob("*.deleted") if not file.name.endswith("snapshot.deleted")}
        assert waiting - {".seglog.clean.deleted"} == {
            name for name in real["renamed_to_deleted"] if not name.endswith("snapshot.deleted")
        }
    assert {int(file.stem) for file in directory.glob("*.log")} == set(bases)
    assert not [file for file in directory.glob("*.deleted") if file.name[0].isdigit()]


def filled(log, segments, per_segment=5, value=b"v" * 100, timestamp=None):
    """So many sealed segments, and an empty one."""
    for _ in range(segments):
        for _ in range(per_segment):
            log.append(value, timestamp=timestamp)
        log.roll()


def test_a_log_opened_alone_deletes_by_size_as_it_grows(tmp_path):
    with seglog.open(tmp_path / "orders-0", config={"retention.bytes": 2000, "file.delete.delay.ms": 0}) as log:
        filled(log, 10)
        wait_for(lambda: log.stats().log_bytes < 2000 + 5 * 200)
        assert log.log_start_offset == log.segments[0].base_offset > 0
        assert [record.offset for record in log.read()] == list(range(log.log_start_offset, 50))
    assert sum(path.stat().st_size for path in (tmp_path / "orders-0").iterdir() if path.suffix == ".log") < 3000


@pytest.mark.parametrize("granularity", ["segment", "batch"])
def test_an_idle_log_that_never_rolled_honours_its_retention(tmp_path, granularity):
    config = {"retention.ms": 300, "seglog.retention.granularity": granularity}
    with seglog.open(tmp_path / "orders-0", config=config) as log:
        for n in range(5):
            log.append(b"%d" % n)
        wait_for(lambda: log.log_start_offset == 5)
        assert list(log.read()) == []
        assert log.append(b"5") == 5


def test_nothing_goes_unasked(tmp_path):
    with seglog.open(tmp_path / "orders-0", clock=ManualClock(10**15)) as log:
        filled(log, 3, timestamp=1)
        assert log.delete_old_segments().expired == ()
        assert log.log_start_offset == 0


def test_a_deleted_segment_stays_as_deleted_for_a_while_and_goes_when_the_log_is_closed(tmp_path):
    clock = ManualClock(NOW)
    config = {"retention.bytes": 600, "file.delete.delay.ms": 5000}
    with seglog.open(tmp_path / "orders-0", config=config, clock=clock) as log:
        filled(log, 3)

        def deleted():
            return sorted(path.name for path in (tmp_path / "orders-0").glob("0*.log.deleted"))

        wait_for(lambda: deleted() == [f"{n:020}.log.deleted" for n in (0, 5)])
        log.delete_old_segments()       # and the thread is behind it
        clock.advance(5000)
        log.delete_old_segments()
        assert deleted() == []
        filled(log, 1)
        wait_for(deleted)
    assert deleted() == []


def test_a_reader_that_holds_a_segment_finishes_reading_it(tmp_path):
    with seglog.open(tmp_path / "orders-0", config={"retention.bytes": 0, "file.delete.delay.ms": 0}) as log:
        for n in range(50):
            log.append(b"%d" % n)
        reading = log.read()
        first = next(reading)
        wait_for(lambda: log.roll() and log.log_start_offset == 50)
        assert [first.value, *(record.value for record in reading)] == [b"%d" % n for n in range(50)]


def test_a_copied_directory_expires_at_the_same_clock_but_for_v0_which_is_as_old_as_its_files(tmp_path):
    """Of `plain` (v2) the timestamps count, of `magic0` the times of the files."""
    for name, age_ms, goes in [("plain", 1_000_001, True), ("magic0", 1_000_001, False)]:
        case = json.loads(next(GOLDEN.glob(f"*-{name}.json")).read_text())
        copy = tmp_path / case["dir"].rpartition("/")[2]
        shutil.copytree(GOLDEN / case["dir"], copy, copy_function=shutil.copyfile)      # with new file times
        largest = case["results"]["3.9.1"]["segments_before"][-1]["mtime"]
        with seglog.open(copy, config={"retention.ms": 1_000_000}, clock=ManualClock(largest + age_ms)) as log:
            log.delete_old_segments()
            assert (log.log_start_offset == log.log_end_offset) is goes


def young_from(log):
    """What is left, by the values."""
    return [int(record.value) for record in log.read()]


def test_by_batches_old_ones_go_at_once_and_the_file_is_rewritten_under_its_name(tmp_path):
    clock = ManualClock(NOW)
    config = {
        "retention.ms": 1000, "seglog.retention.granularity": "batch", "file.delete.delay.ms": 0,
        "message.timestamp.before.max.ms": 2**62, "index.interval.bytes": 100,
    }
    path = tmp_path / "orders-0"
    with seglog.open(path, config=config, clock=clock) as log:
        for n in range(10):
            log.append(b"%d" % n, timestamp=NOW + 100 * n)
        size_bytes = log.stats().log_bytes
        backup = tmp_path / "kept-0"
        log.roll()
        log.snapshot(backup)
        clock.set(NOW + 1000 + 301)
        log.delete_old_segments()
        assert (log.log_start_offset, young_from(log)) == (4, list(range(4, 10)))
        assert log.stats().log_bytes == size_bytes, "less than half of it is dead"
        clock.set(NOW + 1000 + 600)
        log.delete_old_segments()
        assert (log.log_start_offset, young_from(log)) == (6, list(range(6, 10)))
        assert log.stats().log_bytes == size_bytes * 4 // 10
        assert [segment.base_offset for segment in log.segments] == [0, 10]
        assert offset_at(log, NOW + 750) == 8
        assert log[9].value == b"9"
        assert not list(path.glob("*.cleaned")) + list(path.glob("*.swap"))
    with seglog.open_partition(backup) as kept:
        assert young_from(kept) == list(range(10)), "a hot backup has links to the files of before"
    with seglog.open(path, clock=clock) as log:
        assert (log.log_start_offset, young_from(log), log.recovery.repairs) == (6, list(range(6, 10)), ())
    assert seglog.verify(path).findings == []


def test_by_batches_an_active_segment_is_sealed_to_be_rewritten(tmp_path):
    clock = ManualClock(NOW)
    config = {"retention.ms": 1000, "seglog.retention.granularity": "batch", "file.delete.delay.ms": 0}
    with seglog.open(tmp_path / "orders-0", config=config, clock=clock) as log:
        for n in range(10):
            log.append(b"%d" % n, timestamp=NOW + 100 * n)
        clock.set(NOW + 1000 + 700)
        log.delete_old_segments()
        assert (log.log_start_offset, young_from(log)) == (7, [7, 8, 9])
        assert [segment.base_offset for segment in log.segments] == [0, 10]
        assert log.append(b"10") == 10


def test_the_rewritten_segment_keeps_its_aborted_transactions(tmp_path):
    """Of the golden log with transactions, cut by time at each of its batches."""
    directory = next(unpack("kafka").glob("cases/*txn*k391"))
    source = next(path for path in directory.iterdir() if path.is_dir())
    with seglog.open_partition(source) as real:
        batches = list(real.batches())
        committed = [(r.offset, r.value and bytes(r.value)) for r in real.read(isolation="read_committed")]
    for n, batch in enumerate(batches[1:]):
        copy = tmp_path / f"{n}" / source.name
        shutil.copytree(source, copy)
        (copy.parent / names.CLEAN_SHUTDOWN).touch()
        config = {"seglog.retention.granularity": "batch", "seglog.retention.head.rewrite.ratio": 0, "retention.ms": 0}
        with seglog.open(copy, config=config, clock=ManualClock(batch.max_timestamp)) as log:
            log.delete_old_segments()
            start = log.log_start_offset
            assert start <= batch.base_offset
            left = [(r.offset, r.value and bytes(r.value)) for r in log.read(isolation="read_committed")]
            assert left == [row for row in committed if row[0] >= start]


# --- all logs of a log dir ------------------------------------------------------------------------


def threads(before=()):
    """The names of those of seglog, without those that were there `before`."""
    return sorted(
        thread.name for thread in threading.enumerate() if thread.name.startswith("seglog") and thread not in before
    )


def test_one_thread_keeps_house_and_cleans_for_all_logs_of_a_log_dir(tmp_path):
    config = {"retention.bytes": 600, "seglog.segment.idle.roll": True, "segment.ms": 200, "file.delete.delay.ms": 0}
    config |= {"flush.ms": 50}
    clock = ManualClock(NOW)
    before = threading.enumerate()
    with seglog.open_dir(tmp_path, config=config, fsync="interval", clock=clock) as log_dir:
        logs = [log_dir.log("orders", n) for n in range(3)]
        for log in logs:
            filled(log, 4)
            log.append(b"last")
        assert threads(before) == ["seglog cleaner"]
        clock.advance(300)      # no segment is rolled while it is filled
        for log in logs:
            wait_for(lambda log=log: log.log_start_offset == 15)
            wait_for(lambda log=log: log.durable_offset == 21)
            wait_for(lambda log=log: log.segments[-1].base_offset == 21)
    assert threads(before) == []


def test_the_oldest_segments_of_all_logs_go_when_the_log_dir_is_too_large(tmp_path):
    clock = ManualClock(NOW)
    config = {"file.delete.delay.ms": 0}
    cleaner = {"seglog.retention.total.bytes": 4000}
    with seglog.open_dir(tmp_path, config=config, clock=clock, cleaner=cleaner) as log_dir:
        logs = [log_dir.log("orders", n) for n in range(3)]
        for n in range(4):
            for log in logs:
                filled(log, 1, timestamp=NOW + n)
        # Each segment has 850 bytes or so: four stay, the last of each log and one more.
        wait_for(lambda: sum(log.stats().log_bytes for log in logs) <= 4000)
        assert sorted(log.log_start_offset for log in logs) == [10, 15, 15]


def test_a_log_that_cannot_be_cleaned_says_why_and_the_others_go_on(tmp_path):
    config = {"retention.bytes": 600, "file.delete.delay.ms": 0}
    # No second look before a log rolls: it would find nothing left to delete, and forget the reason.
    cleaner = {"log.cleaner.backoff.ms": 3_600_000, "log.retention.check.interval.ms": 3_600_000}
    with seglog.open_dir(tmp_path, config=config, cleaner=cleaner) as log_dir:
        bad, good = log_dir.log("bad"), log_dir.log("good")
        log_dir.cleaner.pause()
        filled(bad, 3)
        filled(good, 3)
        away = tmp_path / "away"
        moved = bad.segments[0].path
        bad.segments[0]._let_go()
        moved.rename(away)
        moved.mkdir()       # a directory in the place of the file: it cannot be taken away
        (moved.parent / (moved.name + ".deleted")).mkdir()
        (moved.parent / (moved.name + ".deleted") / "x").touch()
        log_dir.cleaner.resume()
        wait_for(lambda: good.log_start_offset == 10)
        wait_for(lambda: bad.stats().uncleanable)
        assert moved.name in bad.stats().uncleanable
        assert list(log_dir.cleaner.uncleanable) == [str(bad.path)]
        shutil.rmtree(moved.parent / (moved.name + ".deleted"))
        moved.rmdir()
        away.rename(moved)
        filled(bad, 1)
        wait_for(lambda: not bad.stats().uncleanable)
        assert good.stats().uncleanable is None


def test_a_paused_cleaner_syncs_and_deletes_nothing(tmp_path):
    config = {"retention.bytes": 0, "flush.ms": 20}
    with seglog.open_dir(tmp_path, config=config, fsync="interval") as log_dir:
        log = log_dir.log("orders")
        log_dir.cleaner.pause()
        log.append(b"1")
        log.roll()
        log.append(b"2")
        wait_for(lambda: log.durable_offset == 2)
        assert log.log_start_offset == 0
        log_dir.cleaner.resume()
        wait_for(lambda: log.log_start_offset == 2)


RESPECT = {"seglog.retention.respect.cursors": True, "segment.bytes": 500, "file.delete.delay.ms": 0}


def read_by_two(log):
    """One reader has come to offset 14, in the segment whose base this gives; the other to 30."""
    for n in range(40):
        log.append(b"v" * 100, timestamp=NOW + n)
    with log.cursor("mailer") as cursor, log.cursor("later") as later:
        cursor.commit(14)
        later.commit(30)
    return next(segment.base_offset for segment in reversed(log.segments) if segment.base_offset <= 14)


@pytest.mark.parametrize("how", [
    {"retention.bytes": 600}, {"retention.ms": 1000}, {"retention.ms": 1000, "seglog.retention.granularity": "batch"},
], ids=["size", "time", "batches"])
def test_what_a_named_reader_has_still_to_read_stays_if_that_is_wanted(how, tmp_path):
    clock = ManualClock(NOW + 100)
    with seglog.open(tmp_path / "named-0", config=RESPECT | {"retention.bytes": -1}, clock=clock) as log:
        base = read_by_two(log)
        clock.advance(10_000)
        log.configure(how)
        log.delete_old_segments()
        assert log.segments[0].base_offset == base > 0
        assert log.log_start_offset == (14 if "seglog.retention.granularity" in how else base)
        with log.cursor("mailer") as cursor:
            assert next(cursor.read()).offset == 14
            cursor.commit(30)
        log.delete_old_segments()
        assert base < log.segments[0].base_offset <= 30
        log.configure({"seglog.retention.respect.cursors": False})     # as Kafka
        log.delete_old_segments()
        assert log.log_start_offset > 30


def test_the_total_of_a_log_dir_leaves_what_named_readers_have_still_to_read(tmp_path):
    cleaner = {"seglog.retention.total.bytes": 600, "log.retention.check.interval.ms": 50}
    with seglog.open_dir(tmp_path, config=RESPECT | {"seglog.retention.respect.cursors": False}) as log_dir:
        read_by_two(log_dir.log("kept"))
        read_by_two(log_dir.log("lost"))
    with seglog.open_dir(tmp_path, cleaner=cleaner) as log_dir:
        kept = log_dir.log("kept", config={"seglog.retention.respect.cursors": True})
        lost = log_dir.log("lost")
        wait_for(lambda: len(lost.segments) == 1)
        wait_for(lambda: 0 < kept.log_start_offset <= 14)
        assert len(kept.segments) > 1


def test_a_cursor_that_cannot_be_read_lets_nothing_go_and_is_named(tmp_path):
    with seglog.open(tmp_path / "named-0", config=RESPECT | {"retention.bytes": 600}, clock=ManualClock(NOW)) as log:
        log.configure({"retention.bytes": -1})
        read_by_two(log)
        start, cursor = log.log_start_offset, log.path / ".seglog.cursor-mailer"
        cursor.write_bytes(cursor.read_bytes()[:-9])
        log.configure({"retention.bytes": 600})
        with pytest.raises(CorruptCheckpointError, match="mailer"):
            log.delete_old_segments()
        assert log.log_start_offset == start
