"""Ten thousand segments, and no more files open than there may be."""
import contextlib
import gc
import os
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import LogClosedError, OffsetOutOfRangeError, StorageError
from seglog.format import names
from seglog.fs.aside import shorten
from seglog.fs.files import OsFile, OsFileSystem
from seglog.log.log import Log
from seglog.reading.extent import Extent
from seglog.segment.open_files import OPEN_SEGMENTS, OpenSegments
from seglog.segment.segment import Segment
from seglog.upkeep.cleaner import clean
from support.growing_log import GrowingLog
from support.lookups import offset_at

MANY = 10_000
MAPS_A_SEGMENT = 3
FILES_OF_A_LOG = 12     # of the active segment, and locks


def maps_of(directory, of=""):
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc/self/maps on this system")
    with open("/proc/self/maps") as maps:
        return sum(str(directory) in line and of in line for line in maps)


def deleted_maps_of(directory):
    return maps_of(directory, "(deleted)")


def test_ten_thousand_segments_are_read_with_few_of_them_open(tmp_path):
    with GrowingLog(tmp_path / "growing-0") as log:
        for n in range(MANY):
            log.append([b"%d" % n], timestamp=1000 + n)
            if n < MANY - 1:
                log.roll()
        descriptors = len(os.listdir("/dev/fd"))
        kept = [r.value_view for r in log.read()][:: MANY // 10]
        assert len(log.segments) == MANY
        for n in range(0, MANY, 97):
            assert log[n].value == b"%d" % n
            assert offset_at(log, 1000 + n) == n
            assert log.find_offset(n)[0].base_offset == n
        gc.collect()
        assert maps_of(tmp_path) <= (OPEN_SEGMENTS.limit + len(kept)) * MAPS_A_SEGMENT
        assert len(os.listdir("/dev/fd")) <= descriptors
        assert [bytes(view) for view in kept] == [b"%d" % n for n in range(0, MANY, MANY // 10)]


def test_a_log_of_ten_thousand_segments_has_few_of_them_open(in_memory):
    """Appending, reading in between, closing and opening again. `make test` makes a tenth of them."""
    count = MANY if os.environ.get("SEGLOG_TORTURE") else MANY // 10
    path = in_memory / "data" / "orders-0"
    clock = ManualClock(1000)
    descriptors = len(os.listdir("/dev/fd"))
    with seglog.open(path, fsync="never", config={"segment.bytes": 200}, clock=clock) as log:
        for n in range(count):
            clock.advance(1)
            log.append(b"v" * 100)
            if n % 100 == 0:
                assert log[n // 2].offset == n // 2
        assert len(log.segments) == count
        assert sum(1 for _ in log.read()) == count
        check_open(path, descriptors)
    with seglog.open(path) as log:
        assert len(log.segments) == count
        for n in range(0, count, 97):
            assert log[n].offset == offset_at(log, 1001 + n) == n
        assert sum(1 for _ in log.read()) == count
        check_open(path, descriptors)
    gc.collect()
    assert maps_of(path) == 0
    assert len(os.listdir("/dev/fd")) <= descriptors


def test_the_sizes_of_segments_are_known_without_opening_them(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never", config={"segment.bytes": 200}) as log:
        for _ in range(20):
            log.append(b"v" * 100)
    files = sorted((tmp_path / "orders-0").glob("*.log"))
    with seglog.open_partition(tmp_path / "orders-0") as partition:
        segments = partition.segments
        before = maps_of(tmp_path)
        assert [segment.size_bytes for segment in segments[:-1]] == [file.stat().st_size for file in files[:-1]]
        assert maps_of(tmp_path) == before
        other = tmp_path / "other"
        other.write_bytes(b"another file of that name")     # while the first one exists: its inode is not used again
        files[1].unlink()
        with pytest.raises(StorageError, match=files[1].name):
            _ = segments[1].size_bytes
        other.rename(files[1])
        with pytest.raises(OffsetOutOfRangeError):
            _ = segments[1].size_bytes
    with pytest.raises(LogClosedError):
        _ = segments[0].size_bytes


def check_open(path, descriptors):
    gc.collect()
    assert maps_of(path) <= (OPEN_SEGMENTS.limit + 1) * MAPS_A_SEGMENT
    assert len(os.listdir("/dev/fd")) <= descriptors + FILES_OF_A_LOG


class Held:
    def __init__(self):
        self._recently_used, self.is_open = True, False

    def _let_go(self):
        self.is_open = False


def test_what_was_used_since_the_last_round_stays_open():
    ring = OpenSegments(limit=4)
    held = [Held() for _ in range(6)]
    for one in held[:4]:
        one.is_open = True
        ring.opened(one)
        one._recently_used = False
    held[0]._recently_used = True
    for one in held[4:]:
        one.is_open = True
        ring.opened(one)
    assert [one.is_open for one in held] == [True, False, False, True, True, True]


def test_where_all_were_used_the_oldest_goes():
    ring = OpenSegments(limit=2)
    held = [Held() for _ in range(5)]
    for one in held:
        one.is_open = True
        ring.opened(one)
    assert sum(one.is_open for one in held) == 2
    assert held[-1].is_open


def test_readers_whose_segments_are_let_go_under_them_do_not_notice(tmp_path):
    with GrowingLog(tmp_path / "growing-0") as log:
        for n in range(50):
            log.append([b"%d" % (10 * n + i) for i in range(10)], timestamp=n)
            log.roll()
        failures = []
        done = threading.Event()

        def let_go():
            while not done.is_set():
                for segment in log.segments:
                    segment._let_go()

        def read():
            try:
                for _ in range(20):
                    assert [r.value for r in log] == [b"%d" % n for n in range(500)]
                    assert all(log[n].value == b"%d" % n for n in range(500))
                    assert all(offset_at(log, n) == 10 * n for n in range(50))
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=read) for _ in range(3)] + [threading.Thread(target=let_go)]
        for thread in threads:
            thread.start()
        for thread in threads[:-1]:
            thread.join()
        done.set()
        threads[-1].join()
        assert failures == []


@pytest.mark.parametrize("leave", [
    lambda log: log.delete_records(150), lambda log: log.truncate_to(20), clean,
], ids=["deleted", "cut", "compacted"])
def test_a_segment_that_left_its_log_gives_its_space_back_when_its_last_reader_lets_go(leave, tmp_path):
    """At once: no other segment must be opened for it, and no cycle be collected."""
    config = {"segment.bytes": 2000, "file.delete.delay.ms": 0}
    gc.disable()
    try:
        with Log(tmp_path / "left-0", config=config, fsync="never") as log:
            for n in range(200):
                log.append(b"v" * 50, key=b"%d" % (n % 7))
            assert len(list(log.read())) == 200
            assert offset_at(log, 0) == 0
            reader = log.read(23)       # behind the cut, too
            assert next(reader).offset == 23
            leave(log)
            assert deleted_maps_of(tmp_path) > 0
            del reader
            assert deleted_maps_of(tmp_path) == 0
    finally:
        gc.enable()


def test_a_write_that_failed_holds_no_maps(tmp_path):
    """By its traceback: the shorter copy of a file could not be written, and the file has gone since."""
    path = tmp_path / "file"
    path.write_bytes(b"v" * 5000)
    gc.disable()
    try:
        with contextlib.suppress(StorageError):
            shorten(FullFs(), path, 4000)
        path.unlink()
        assert deleted_maps_of(tmp_path) == 0
    finally:
        gc.enable()


class FullFs(OsFileSystem):
    """Every file is /dev/full."""

    def create(self, path, within=None, mode=0o666):
        return OsFile(path, os.open("/dev/full", os.O_WRONLY), 0)

    def unlink(self, path, within=None):
        pass


def test_a_retired_segment_is_not_opened_by_its_name_again(tmp_path):
    """Another file may have the name by then."""
    with GrowingLog(tmp_path / "growing-0") as log:
        log.append([b"a"])
        published = log.segments[0].published
        segment = Segment(log.segments[0].path, published=published, owned=True)
        opened = Segment(log.segments[0].path, published=published, owned=True)
        assert opened.get(0).value == b"a"
        for one in (segment, opened):
            one._retire()
        assert opened.get(0).value == b"a"
        with pytest.raises(IndexError):
            segment.get(0)


def test_a_file_shorter_than_what_was_published_is_not_mapped(tmp_path):
    with GrowingLog(tmp_path / "growing-0") as log:
        log.append([b"a"])
        path = log.segments[0].path
        shorter = tmp_path / path.name
        shorter.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(IndexError, match="truncated"):
            Segment(shorter, published=log.segments[0].published).get(0)


def test_an_extent_finds_the_segment_of_an_offset(tmp_path):
    bases = [5, 10, 300]
    extent = Extent([Segment(tmp_path / names.file_name(base, names.LOG_SUFFIX)) for base in bases], 7)
    assert [extent.slot_of(o) for o in (-1, 4, 5, 9, 10, 299, 300, 2**70)] == [0, 0, 0, 0, 1, 1, 2, 2]
