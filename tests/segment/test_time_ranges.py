"""Lookups with time ranges beside the log are lookups without them, over logs of every format and order of times."""
import random
import shutil
import struct
import threading
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog._kernels.crc import crc32c
from seglog._kernels.point_read import PointReader
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, SeglogError, UnsupportedVersionError
from seglog.format import names
from seglog.fs.aside import shorten
from seglog.fs.files import OsFileSystem
from seglog.segment import open_files
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeRanges, read_time_ranges, time_ranges_path
from seglog.upkeep.index_rebuild import RefusedSegment, rebuild_indexes
from support.golden import golden_cases
from support.lookups import offset_at
from support.old_directories import client_cases, directory_of, partitions

NOW = 1_700_000_000_000
SMALLEST, LARGEST = 2**63 - 1, -(2**63)


def put(log, run_bytes=300):
    """Time ranges of many runs, groups among them."""
    with closing(Segment(log)) as segment:
        time_ranges_path(log).write_bytes(time_ranges_bytes(segment, run_bytes=run_bytes))


def targets_of(times):
    """Each time that a record has, up to 60 of them, and those beside it."""
    known = sorted(set(times))
    some = random.Random(3).sample(known, min(len(known), 60))
    return sorted({0, 2**62, *(t + d for t in some for d in (-1, 0, 1) if t + d >= 0)})


def answers(directory, targets, starts):
    """What lookups by time tell, or which error they raise."""
    with seglog.open_partition(directory) as partition:
        for target in (*targets, -3):
            try:
                yield target, partition.offset_for_time(target)
            except SeglogError as error:
                yield target, type(error)
        for segment in partition.segments:
            for start in starts:
                for target in targets[::7]:
                    try:
                        yield segment.seek(target, start)
                    except SeglogError as error:
                        yield target, type(error)
            try:
                yield segment.largest_timestamp
            except SeglogError as error:
                yield type(error)


# Clients of old brokers also wrote wrappers whose time lies below their messages', and v1 messages in v0 wrappers.
DIRECTORIES = [
    *map(directory_of, golden_cases()), *(directory_of(case.values[0]) for case in client_cases()),
    *(case.values[1] for case in partitions("logs", ("0.8.2.2", "0.10.0.1", "2.4.1"))),
]


def test_every_golden_log_answers_the_same_with_and_without(tmp_path):
    """Of v0, v1 and v2, wrappers whose time lies below their messages', delete horizons, LogAppendTime, compaction."""
    seen, kinds = 0, set()
    for n, source in enumerate(DIRECTORIES):
        directory = tmp_path / f"t{n}-0"
        shutil.copytree(source, directory)
        times, offsets = [], [0]
        for log in names.log_files(directory):
            with closing(Segment(log)) as segment:
                try:
                    raw = time_ranges_bytes(segment, run_bytes=300)
                except SeglogError:
                    continue        # damaged: it has none
                ranges = TimeRanges(Window(raw))
                for run, records in zip(ranges, runs_of(segment, ranges), strict=True):
                    assert run.smallest == min((r.timestamp for r in records), default=SMALLEST), (source, run)
                    assert run.largest == max((r.timestamp for r in records), default=LARGEST), (source, run)
                    assert all(run.start_offset <= r.offset < run.stop_offset for r in records)
                    times += [r.timestamp for r in records]
                kinds |= {(b.magic, b.codec > 0, b.timestamp_type) for b in segment.batches()}
                seen += len(ranges)
                offsets += [ranges.base_offset, (ranges.base_offset + ranges.next_offset) // 2, ranges.next_offset - 1]
        targets, starts = targets_of(times), sorted(set(offsets))
        right = list(answers(directory, targets, starts))
        for log in names.log_files(directory):
            with closing(Segment(log)) as segment:
                try:
                    raw = time_ranges_bytes(segment, run_bytes=300)
                except SeglogError:
                    continue
                time_ranges_path(log).write_bytes(raw)
            assert believes(log), log
        assert list(answers(directory, targets, starts)) == right, source
        shutil.rmtree(directory)
    assert seen > 2000
    assert {magic for magic, _, _ in kinds} == {0, 1, 2}
    assert len(kinds) >= 9


def runs_of(segment, ranges):
    """The records of each run."""
    batches = list(segment.batches())
    for run in ranges:
        yield [r for b in batches if run.position <= b.position < run.end_position for r in b]


# --- any order of times ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disordered(tmp_path_factory):
    """(directory, timestamps): 3 segments of 1 500 records in no order; runs of 300 bytes in the sealed ones."""
    path = tmp_path_factory.mktemp("disordered") / "orders-0"
    rng = random.Random(11)
    times = [NOW + rng.randrange(10_000) for _ in range(4500)]
    with seglog.open(path, fsync="never", config={"segment.ms": 2**40}) as log:
        for n in range(0, 4500, 5):
            if n in (1500, 3000):
                log.roll()
            log.append_many([(None, b"x" * 20, (), t) for t in times[n : n + 5]])
    for log in names.log_files(path)[:2]:
        put(log)
    return path, times


def first_at(times, target, start=0):
    return next((n for n in range(start, len(times)) if times[n] >= target), None)


@given(st.data())
def test_the_first_record_at_or_after_a_time_is_found(disordered, data):
    path, times = disordered
    with seglog.open_partition(path) as partition:
        for target in data.draw(st.lists(st.integers(NOW - 1, NOW + 10_001), max_size=20)):
            assert offset_at(partition, target) == first_at(times, target)
        segment = partition.segments[0]
        for target, start in data.draw(st.lists(st.tuples(st.integers(NOW, NOW + 10_001), st.integers(0, 1600)))):
            found = segment.seek(target, start)[1]
            assert (None if found < 0 else found) == first_at(times[:1500], target, start)
        assert segment._walk.position == 0      # no header was walked


@given(st.integers(NOW - 5, NOW + 10_005), st.integers(-5, 10_005), st.integers(0, 1600), st.integers(-100, 1600))
def test_spans_leave_nothing_out_and_nothing_twice(disordered, smallest, width, start, length):
    path, times = disordered
    log = names.log_files(path)[0]
    ranges = read_time_ranges(log)
    largest, stop = smallest + width, start + length
    spans = list(ranges.spans(smallest, largest, start_offset=start, stop_offset=stop))
    for n in range(start, min(stop, 1500)):
        if smallest <= times[n] <= largest:
            assert sum(s.start_offset <= n < s.stop_offset for s in spans) == 1
    runs = {(run.start_offset, run.position): run for run in ranges}
    ends = {(run.stop_offset, run.end_position) for run in ranges}
    for span in spans:
        assert (span.start_offset, span.position) in runs
        assert (span.stop_offset, span.end_position) in ends
        assert span.stop_offset > start
        assert span.start_offset < stop
    assert all(a.stop_offset < b.start_offset for a, b in pairwise(spans))


def test_columns_are_buffers_of_int64(disordered):
    ranges = read_time_ranges(names.log_files(disordered[0])[0])
    columns = ranges.columns()
    assert [memoryview(column).format for column in columns] == ["q"] * 4
    assert list(zip(*columns, strict=True)) == [(r.start_offset, r.position, r.smallest, r.largest) for r in ranges]
    assert ranges.columns(3, 5).offsets.tolist() == [ranges[3].start_offset, ranges[4].start_offset]
    assert len(ranges.columns(len(ranges)).offsets) == 0
    assert ranges[-1] == list(ranges)[-1]


# --- files that are not believed -------------------------------------------------------------------


@pytest.fixture
def one(tmp_path):
    """(path of the .log, timestamps): a closed segment of 200 records, with time ranges."""
    rng = random.Random(5)
    times = [NOW + rng.randrange(1000) for _ in range(200)]
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        for t in times:
            log.append(b"value", timestamp=t)
    [path] = names.log_files(tmp_path / "orders-0")
    put(path)
    return path, times


def believes(log):
    with closing(Segment(log)) as segment:
        segment.seek(0, 0)
        return segment.files().walked_reader.ranges is not None


def resealed(raw):
    return raw[:8] + struct.pack(">I", crc32c(raw[12:])) + raw[12:]


UNTRUE = {
    "a flipped bit": lambda raw: raw[:90] + bytes([raw[90] ^ 4]) + raw[91:],
    "a torn file": lambda raw: raw[:100],
    "an empty file": lambda _: b"",
    "a newer version": lambda raw: raw[:4] + struct.pack(">I", 2) + raw[8:],
    "another base offset": lambda raw: resealed(raw[:24] + struct.pack(">q", 1) + raw[32:]),
    "another last batch": lambda raw: resealed(raw[:20] + bytes(4) + raw[24:]),
    "hidden runs and a checksum that does not fit": lambda raw: raw[:64] + bytes(len(raw) - 64),
}


@pytest.mark.parametrize("damage", UNTRUE)
def test_an_untrue_file_is_no_wrong_answer(one, damage):
    log, times = one
    assert believes(log)
    path = time_ranges_path(log)
    path.write_bytes(UNTRUE[damage](path.read_bytes()))
    assert not believes(log)
    with seglog.open_partition(log.parent) as partition:
        for t in sorted(set(times)):
            assert offset_at(partition, t) == first_at(times, t)


def test_a_file_of_another_log_is_not_believed(one):
    """Cut, grown, replaced by one of the same size."""
    log, times = one
    whole = log.read_bytes()
    with closing(Segment(log)) as segment:
        cut = [b.position for b in segment.batches()][150]
    shorten(OsFileSystem(), log, cut)
    assert not believes(log)
    with seglog.open_partition(log.parent) as partition:
        assert [offset_at(partition, t) for t in times] == [first_at(times[:150], t) for t in times]
    log.write_bytes(whole + whole[-30:])
    assert not believes(log)
    log.write_bytes(whole)
    assert believes(log)
    other = log.parent.with_name("other-0")
    with seglog.open(other, fsync="never") as written:
        for t in times:
            written.append(b"value", timestamp=t - 1)
    shutil.copy(other / log.name, log)
    assert log.stat().st_size == len(whole)
    assert not believes(log)


def test_two_threads_that_open_the_files_at_once_both_go_by_the_ranges(one, monkeypatch):
    """The second one has seen no reader either, and puts its own in place when the first one has got its reader."""
    log, times = one
    is_making, may_finish, has_finished = threading.Event(), threading.Event(), threading.Event()
    open_reader = open_files.SegmentFiles.open_reader
    answers = {}

    def make(*args):
        reader = PointReader(*args)
        if threading.current_thread() is second:
            is_making.set()
            may_finish.wait(60)
        return reader

    def opened(files, *args):
        reader = open_reader(files, *args)
        if threading.current_thread() is second:
            has_finished.set()
        elif not has_finished.is_set():
            may_finish.set()
            has_finished.wait(60)
        return reader

    monkeypatch.setattr(open_files, "PointReader", make)
    monkeypatch.setattr(open_files.SegmentFiles, "open_reader", opened)
    with closing(Segment(log)) as segment:
        second = threading.Thread(target=lambda: answers.update(second=segment._largest_passed))
        segment.files()
        second.start()
        assert is_making.wait(60)
        answers["first"] = segment._largest_passed
        second.join()
    assert has_finished.is_set()
    assert answers == {"first": max(times), "second": max(times)}


def test_the_active_segment_is_never_looked_up_by_ranges(one):
    log, times = one
    with seglog.open(log.parent, fsync="never") as opened:
        assert offset_at(opened, max(times)) == times.index(max(times))
        opened.append(b"later", timestamp=NOW + 5000)
        assert offset_at(opened, NOW + 5000) == 200
        assert offset_at(opened, NOW + 5001) is None
    with seglog.open_partition(log.parent) as partition:
        assert offset_at(partition, NOW + 5000) == 200


def test_reading_the_file_itself_says_what_is_wrong(one):
    log, _ = one
    path = time_ranges_path(log)
    raw = path.read_bytes()
    path.write_bytes(UNTRUE["a newer version"](raw))
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        read_time_ranges(log)
    path.write_bytes(raw[:-1])
    with pytest.raises(CorruptIndexError, match="checksum") as refusal:
        read_time_ranges(log)
    assert refusal.value.file == str(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_time_ranges(log)
    with closing(Segment(log)) as segment:
        assert segment.time_ranges is None


# --- index rebuild -----------------------------------------------------------------------------------


def rebuilt(log, **options):
    return {step.file: step for step in rebuild_indexes(log.parent, **options)}


def test_rebuild_makes_them_where_they_are_asked_for_or_there(one):
    log, _ = one
    path = time_ranges_path(log)
    path.unlink()
    assert str(path) not in rebuilt(log)
    step = rebuilt(log, time_ranges=True)[str(path)]
    assert (step.changed, step.entries, step.size_bytes) == (True, 1, path.stat().st_size)
    right = path.read_bytes()
    path.write_bytes(right[:-1])
    step = rebuilt(log, keep_replaced=True)[str(path)]
    assert (step.changed, step.backup) == (True, f"{path}.bak")
    assert path.read_bytes() == right
    assert not rebuilt(log)[str(path)].changed


def test_rebuild_replaces_a_newer_version_only_if_asked(one):
    log, _ = one
    path = time_ranges_path(log)
    newer = UNTRUE["a newer version"](path.read_bytes())
    path.write_bytes(newer)
    refused = [step for step in rebuild_indexes(log.parent) if isinstance(step, RefusedSegment)]
    assert [(step.file, type(step.error)) for step in refused] == [(str(path), UnsupportedVersionError)]
    assert path.read_bytes() == newer
    assert rebuilt(log, time_ranges=True)[str(path)].changed
    assert believes(log)


def test_rebuild_makes_none_of_a_log_that_ends_with_part_of_a_batch(one):
    log, _ = one
    time_ranges_path(log).unlink()
    with open(log, "r+b") as file:
        file.truncate(log.stat().st_size - 3)
    [refused] = [s for s in rebuild_indexes(log.parent, time_ranges=True) if isinstance(s, RefusedSegment)]
    assert "part of a batch" in refused.error.what
    assert not time_ranges_path(log).exists()
