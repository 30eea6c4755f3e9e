"""A disk without room for a copy of the last segment: a torn tail is cut off in place, and readers beside it go on."""
import errno
import os
import shutil

import pytest

import seglog
from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.mapping import Mapping
from support.faultfs import NoRoom, RecordingFs

CONFIG = {"segment.bytes": 1 << 20, "index.interval.bytes": 256}
VALUES = [b"%d" % n * 500 for n in range(40)]
# A batch whose end was never written. More than a page, so that some of the pages that readers have mapped are gone.
TORN_BYTES = 3 * 4096


@pytest.fixture
def torn(in_memory):
    """The directory of a log that was killed in the middle of an append."""
    path = in_memory / "disk" / "orders-0"
    with seglog.open(in_memory / "written" / "orders-0", config=CONFIG) as log:
        for value in VALUES:
            log.append(value)
        killed_at = log_file_of(log.path).stat().st_size
        log.append_many([(None, b"y" * 5000) for _ in range(8)])
        shutil.copytree(in_memory / "written", path.parent)     # as by kill -9
    os.truncate(log_file_of(path), killed_at + TORN_BYTES)
    return path


def log_file_of(path):
    return path / names.file_name(0, names.LOG_SUFFIX)


def test_a_torn_tail_is_cut_off_in_place_if_a_copy_finds_no_room(torn):
    before = log_file_of(torn).stat()
    with seglog.open(torn, config=CONFIG, fs=NoRoom()) as log:
        after = log_file_of(torn).stat()
        assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size - TORN_BYTES)
        [lost] = log.recovery.lost
        assert (lost.size_bytes, lost.first_offset) == (TORN_BYTES, len(VALUES))
        log.append(b"after")
        assert [record.value for record in log.read()] == [*VALUES, b"after"]


def test_with_room_readers_keep_the_file_that_they_mapped(torn):
    inode = log_file_of(torn).stat().st_ino
    seglog.open(torn, config=CONFIG).close()
    assert log_file_of(torn).stat().st_ino != inode


def test_a_crash_at_any_point_of_it_ends_in_the_same_bytes(torn):
    record = RecordingFs(torn.parent, NoRoom())
    with seglog.open(torn, config=CONFIG, fs=record):
        whole = log_file_of(torn).read_bytes()
    sizes = set()
    for state in record.crash_states(limit=100, seed=1):
        with state.materialise() as disk:
            sizes.add(log_file_of(disk / "orders-0").stat().st_size)
            with seglog.open(disk / "orders-0", config=CONFIG, fs=NoRoom()) as again:
                assert log_file_of(disk / "orders-0").read_bytes()[: len(whole)] == whole, state.story()
                assert [record.value for record in again.read()] == VALUES, state.story()
    assert sizes == {len(whole), len(whole) + TORN_BYTES}


def test_another_name_of_the_file_keeps_its_bytes_and_the_error_says_how_many_to_free(torn, in_memory):
    """A hot backup has hard links: what they show must not change."""
    log_file = log_file_of(torn)
    whole = log_file.read_bytes()
    os.link(log_file, in_memory / "backup")
    with pytest.raises(StorageError, match="other names") as caught:
        seglog.open(torn, config=CONFIG, fs=NoRoom())
    assert caught.value.errno == errno.ENOSPC
    assert "free at least 65536 bytes" in caught.value.hint     # also for the small files that follow
    assert (in_memory / "backup").read_bytes() == log_file.read_bytes() == whole
    (in_memory / "backup").unlink()
    with seglog.open(torn, config=CONFIG, fs=NoRoom()) as log:
        assert log.log_end_offset == len(VALUES)


def test_records_that_readers_may_hold_are_never_cut_off_in_place(torn):
    """Who truncates a log has readers with views of what goes."""
    log = seglog.open(torn, config=CONFIG)
    log.close()
    log = seglog.open(torn, config=CONFIG, fs=NoRoom())
    held = list(log.read())
    with pytest.raises(StorageError, match=r"after byte [1-9]\d+: there is no room .* because readers may hold"):
        log.truncate_to(30)
    assert [record.value for record in held] == VALUES
    log.close()


def test_readers_go_on_beside_it(torn):
    """Those who mapped the torn tail, and looked at it, read on in what is appended in its place."""
    closed = seglog.open_partition(torn)
    before = list(closed.read())
    raw = Mapping(log_file_of(torn))
    with seglog.follow(torn) as follower:
        following = follower.follow("start", timeout=20)
        assert [next(following).value for _ in VALUES] == VALUES
        with seglog.open(torn, config=CONFIG, fs=NoRoom()) as log:
            # Whoever looks now finds zeros in place of the pages that are gone, and knows.
            assert bytes(raw)[-TORN_BYTES + 4096 :] == bytes(TORN_BYTES - 4096)
            assert raw.is_torn
            more = [b"%d" % n * 900 for n in range(20)]
            for value in more:
                log.append(value)
            assert [next(following).value for _ in more] == more
            assert [record.value for record in follower.read()] == VALUES + more
        raw.close()
        assert [record.value for record in before] == VALUES
        # What has been appended since lies where it mapped the torn tail.
        assert [record.value for record in closed.read()][: len(VALUES)] == VALUES
    closed.close()
