"""seglog.time.index.ranges.enabled: a log gives each segment that it seals its time ranges, and keeps no stale ones."""
import errno
import os
import random
import threading
import time

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.format import names
from seglog.fs.refusals import storage_error
from seglog.log import ranges_writer
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path
from seglog.upkeep.compact import compact
from seglog.upkeep.index_rebuild import rebuild_indexes
from support.faultfs import RecordingFs
from support.lookups import offset_at
from support.waiting import wait_for

NOW = 1_700_000_000_000
STATES = 80
CONFIG = {"seglog.time.index.ranges.enabled": True, "segment.ms": 2**40}


def fill(log, records=40, seed=1):
    rng = random.Random(seed)
    times = [NOW + rng.randrange(5000) for _ in range(records)]
    for timestamp in times:
        log.append(b"x" * 50, timestamp=timestamp)
    return times


def ranges(directory):
    return sorted(int(path.name[:20]) for path in directory.glob("*.ranges.index"))


def has_right_ones(directory):
    """The base offsets of the segments with time ranges, each of which is what its log makes."""
    for base in ranges(directory):
        log = directory / names.file_name(base, names.LOG_SUFFIX)
        segment = Segment(log)
        assert time_ranges_path(log).read_bytes() == time_ranges_bytes(segment)
        segment.close()
    return ranges(directory)


def answers(log, times):
    for target in range(NOW, NOW + 5001, 97):
        assert offset_at(log, target) == next((n for n, t in enumerate(times) if t >= target), None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders-0"


def test_a_roll_makes_them_and_lookups_of_the_open_log_use_them(path):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        times = fill(log)
        answers(log, times)
        log.roll()
        times += fill(log, seed=2)
        log.roll()
        wait_for(lambda: ranges(path) == [0, 40])
        times += fill(log, seed=3)
        answers(log, times)
        for segment in log.segments[:2]:
            wait_for(lambda segment=segment: segment.seek(NOW, 0) and segment.files().walked_reader.ranges)
        assert log.segments[2].seek(NOW, 0)
        assert log.segments[2].files().walked_reader.ranges is None
    assert has_right_ones(path) == [0, 40]
    assert seglog.verify(path, level="deep").findings == []
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        answers(log, times)


def test_close_waits_for_those_that_are_due(path, monkeypatch):
    def slowly(segment):
        time.sleep(0.2)
        return time_ranges_bytes(segment)

    monkeypatch.setattr(ranges_writer, "time_ranges_bytes", slowly)
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        fill(log)
        log.roll()
    assert has_right_ones(path) == [0]


def test_without_the_key_there_are_none(path):
    with seglog.open(path, fsync="never") as log:
        fill(log)
        log.roll()
    assert ranges(path) == []


def test_a_log_can_be_told_while_it_is_open(path):
    with seglog.open(path, fsync="never") as log:
        fill(log)
        log.roll()
        log.configure({"seglog.time.index.ranges.enabled": True})
        fill(log)
        log.roll()
    assert ranges(path) == [40]


def test_truncation_leaves_no_stale_ones(path):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        times = fill(log)
        log.roll()
        fill(log)
        log.roll()
        wait_for(lambda: ranges(path) == [0, 40])
        log.truncate_to(30)
        assert ranges(path) == []
        answers(log, times[:30])
        times[30:] = fill(log, seed=9)
        answers(log, times)
        log.roll()
    assert has_right_ones(path) == [0]
    assert seglog.verify(path, level="deep").findings == []


def test_a_segment_that_is_appended_to_again_loses_those_that_it_had(path):
    with seglog.open(path, fsync="never") as log:
        times = fill(log)
    list(rebuild_indexes(path, time_ranges=True))
    assert ranges(path) == [0]
    with seglog.open(path, fsync="never") as log:
        answers(log, times)
    assert ranges(path) == [0]      # nothing was appended
    with seglog.open(path, fsync="never") as log:
        times += fill(log, 3)
        answers(log, times)
    assert ranges(path) == []
    assert seglog.verify(path).findings == []


def test_retention_takes_them_along(path):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        fill(log)
        log.roll()
        fill(log)
        log.roll()
        wait_for(lambda: ranges(path) == [0, 40])
        log.delete_records(45)
        assert ranges(path) == [40]


def test_a_head_without_its_first_batches_has_its_own(path):
    config = CONFIG | {"seglog.retention.granularity": "batch", "retention.ms": 2500, "file.delete.delay.ms": 0}
    with seglog.open(path, config=config, fsync="never", clock=ManualClock(NOW + 5000)) as log:
        for n in range(40):
            log.append(b"x" * 500, timestamp=NOW + n * 125)
        log.roll()
        log.append(b"later", timestamp=NOW + 5000)
        log.delete_old_segments()
        assert log.log_start_offset > 10
    assert has_right_ones(path) == [0]


def test_compaction_makes_them_for_what_it_leaves(path):
    config = CONFIG | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    with seglog.open(path, config=config, fsync="never") as log:
        for n in range(60):
            log.append(b"x" * 50, key=b"%d" % (n % 7), timestamp=NOW + n * 31 % 600)
        log.roll()
        log.append(b"x", key=b"k", timestamp=NOW)
    compact(path, config=config)
    assert has_right_ones(path) == [0]
    assert seglog.verify(path, level="deep").findings == []


def test_a_hot_backup_carries_them(path, tmp_path):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        times = fill(log)
        log.roll()
        wait_for(lambda: ranges(path) == [0])
        log.append(b"last", timestamp=NOW + 6000)
        log.snapshot(tmp_path / "copy-0")
    assert has_right_ones(tmp_path / "copy-0") == [0]
    with seglog.open(tmp_path / "copy-0", fsync="never") as copy:
        answers(copy, times)


@pytest.mark.parametrize("to", [1, 2])
def test_a_conversion_leaves_them_behind_and_says_so(path, tmp_path, to):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        fill(log)
        log.roll()
    config = {"seglog.time.index.ranges.enabled": True}
    plan = seglog.plan_conversion(path, tmp_path / "converted-0", to=to, config=config)
    assert [name for name in plan.left_behind if name.endswith(".ranges.index")] == [f"{0:020}.ranges.index"]
    plan.run()
    assert ranges(tmp_path / "converted-0") == []


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_recovery_of_a_damaged_segment_takes_away_what_was_made_of_another_log(path, mode):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        times = fill(log)
        log.roll()
    (path.parent / names.RECOVERY_POINT_CHECKPOINT).unlink()
    (path.parent / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    first = path / names.file_name(0, names.LOG_SUFFIX)
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 2] ^= 1
    first.write_bytes(raw)
    seglog.recover(path, mode=mode, apply=True)
    assert ranges(path) == []
    with seglog.open(path, fsync="never") as log:
        known = [(r.offset, r.timestamp) for r in log.read()]
        assert len(known) in range(15, len(times))
        for target in range(NOW, NOW + 5001, 97):
            assert offset_at(log, target) == next((n for n, t in known if t >= target), None)


# --- what goes wrong ---------------------------------------------------------------------------------


class HeldFs(RecordingFs):
    """Lets time ranges wait until `go` is set; then writes them, or fails with `error`."""

    def __init__(self, root):
        super().__init__(root)
        self.go, self.came, self.error = threading.Event(), threading.Event(), None

    def create(self, path, within=None, mode=0o666):
        if str(path).endswith(names.TIME_RANGES_SUFFIX + ".tmp"):
            self.came.set()
            assert self.go.wait(60)
            if self.error:
                raise storage_error(OSError(self.error, os.strerror(self.error)), "create", path)
        return super().create(path, within, mode)


def test_nobody_who_appends_waits_for_them_and_a_failure_is_nobodys(in_memory, caplog):
    held = HeldFs(in_memory)
    held.error = errno.ENOSPC
    path = in_memory / "data/orders-0"
    with seglog.open(path, config=CONFIG, fs=held) as log:
        times = fill(log)
        log.roll()
        assert held.came.wait(60)
        times += fill(log, 5, seed=4)       # while they are being written
        answers(log, times)
        held.go.set()
        log.append(b"x", timestamp=NOW)
    assert ranges(path) == []
    assert "gets no time ranges" in caplog.text


def test_those_of_a_segment_that_was_cut_meanwhile_are_not_put(path, monkeypatch):
    made, go = threading.Event(), threading.Event()

    def slowly(segment):
        raw = time_ranges_bytes(segment)
        made.set()
        assert go.wait(60)
        return raw

    monkeypatch.setattr(ranges_writer, "time_ranges_bytes", slowly)
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        times = fill(log)
        log.roll()
        assert made.wait(60)
        log.truncate_to(20)
        go.set()
        wait_for(lambda: not log._tail.ranges.is_busy)
        assert ranges(path) == []
        answers(log, times[:20])


def test_every_crash_around_a_roll_leaves_a_log_that_answers(in_memory):
    fs = RecordingFs(in_memory)
    path = in_memory / "data/orders-0"
    with seglog.open(path, config=CONFIG, fs=fs, clock=ManualClock(NOW)) as log:
        times = fill(log, 4)
        fs.mark(len(times))
        log.roll()
        times += fill(log, 3, seed=2)
        fs.mark(len(times))
        log._tail.ranges.wait()
        log.truncate_to(2)
        del times[2:]
        times += fill(log, 3, seed=3)
        log.roll()
    whole = 0
    for state in fs.crash_states(limit=STATES, seed=5, shuffled=True):
        with state.materialise() as root:
            directory = root / "data/orders-0"
            if not directory.is_dir():
                continue
            with seglog.open(directory, clock=ManualClock(NOW), fsync="never") as log:
                known = [r.timestamp for r in log.read()]
                for target in range(NOW, NOW + 5001, 331):
                    expected = next((n for n, t in enumerate(known) if t >= target), None)
                    assert offset_at(log, target) == expected, state.story()
            assert not {f.code for f in seglog.verify(directory, level="deep").findings} & {
                "timeranges_corrupt", "timeranges_mislead", "orphan_index"}, state.story()
            whole += bool(ranges(directory))
    assert whole > 5
