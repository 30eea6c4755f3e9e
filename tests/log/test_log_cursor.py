"""Named readers: positions that stay in the partition, and who may read by a name."""
import json
import os
import subprocess
import sys
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptCheckpointError,
    ForkedHandleError,
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.state.reader_cursor import ReaderCursor, cursor_files, cursor_path
from support.faultfs import FailingFs, RecordingFs

NOW = 1_790_000_000_000
# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
STATES = 1200 if os.environ.get("SEGLOG_TORTURE") else 60


@pytest.fixture
def path(in_memory):
    return in_memory / "orders-0"


@pytest.fixture
def log(path):
    with seglog.open(path, fsync="never", clock=ManualClock(NOW)) as opened:
        opened.append_many([(b"k", b"%d" % n) for n in range(10)])
        yield opened


def values(records):
    return [int(record.value) for record in records]


def test_a_reader_goes_on_where_it_committed(log, path):
    with log.cursor("mailer") as cursor:
        assert (cursor.position, cursor.lag, values(cursor.read())) == (0, 10, list(range(10)))
        for record in cursor.read():
            if record.offset == 3:
                cursor.commit(record)
        assert (cursor.position, cursor.lag) == (4, 6)
        cursor.commit(6)
        assert values(cursor.read()) == [6, 7, 8, 9]
    log.close()
    with seglog.open(path) as log, log.cursor("mailer") as cursor, log.cursor("other") as other:
        assert (cursor.position, other.position) == (6, 0)
    with seglog.open_partition(path) as partition, partition.cursor("mailer") as cursor:
        cursor.commit(10)
        assert (cursor.lag, values(cursor.read())) == (0, [])
    assert ReaderCursor.read(path, "mailer").offset == 10


def test_a_commit_may_go_back_and_stays_within_the_log(log):
    with log.cursor("mailer") as cursor:
        cursor.commit(8)
        cursor.commit(2)
        assert cursor.position == 2
        for offset in (-1, 11):
            with pytest.raises(OffsetOutOfRangeError):
                cursor.commit(offset)
        with pytest.raises(InvalidArgumentError):
            cursor.commit("2")
        log.delete_records(5)
        with pytest.raises(OffsetOutOfRangeError):
            next(cursor.read())
        assert (cursor.lag, values(cursor.read(on_out_of_range="earliest"))) == (5, [5, 6, 7, 8, 9])
        with pytest.raises(OffsetOutOfRangeError):
            cursor.commit(4)


def test_committed_data_alone_is_read_if_asked(log):
    with log.cursor("mailer") as cursor, log.producer(7) as producer:
        producer.begin()
        producer.append(b"99")
        producer.abort()
        cursor.commit(8)
        assert values(cursor.read(isolation="read_committed")) == [8, 9]
        assert values(cursor.read()) == [8, 9, 99]


# --- who may read by a name ---------------------------------------------------------------------------


def held(path, *more):
    """Another process that reads by the name, or what it was told."""
    code = (
        "import seglog, sys\n"
        "try:\n"
        "    with seglog.open_partition(sys.argv[1]) as p, p.cursor('mailer', shared=bool(sys.argv[2:])) as cursor:\n"
        "        cursor.commit(cursor.position + 1); print(cursor.position)\n"
        "except seglog.SeglogError as error: print(error.code)"
    )
    found = subprocess.run([sys.executable, "-c", code, path, *more], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_one_process_at_a_time_has_a_name(log, path):
    with log.cursor("mailer"):
        with pytest.raises(LogLockedError, match="the reader name 'mailer' is in use") as refused:
            log.cursor("mailer")
        assert "shared=True" in refused.value.hint
        assert held(path) == "locked"
        assert held(path, "shared") == "locked"
    assert held(path) == "1"
    with log.cursor("mailer") as cursor:
        assert cursor.position == 1


def test_any_number_may_share_a_name_and_none_takes_a_commit_back(log, path):
    with log.cursor("mailer", shared=True) as cursor, log.cursor("mailer", shared=True) as other:
        cursor.commit(5)
        assert held(path) == "locked"
        assert held(path, "shared") == "6"
        assert (cursor.position, other.position) == (6, 6)
        other.commit(3)
        assert cursor.position == 6
        threads = [
            threading.Thread(target=lambda n=n, c=c: c.commit(n))
            for n, c in zip((7, 9, 8, 10), (cursor, other) * 2, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert other.position == 10


def test_a_cursor_is_closed_and_not_the_log(log):
    cursor = log.cursor("mailer")
    cursor.close()
    cursor.close()
    for call in (lambda: cursor.position, lambda: cursor.commit(1), cursor.read):
        with pytest.raises(LogClosedError, match="the cursor 'mailer' was closed"):     # not "the lock was released"
            call()
    assert "closed" in repr(cursor)
    again = log.cursor("mailer")
    log.close()
    with pytest.raises(LogClosedError):
        again.commit(1)
    with pytest.raises(LogClosedError):
        log.cursor("other")
    again.close()


def test_a_forked_child_commits_nothing(log):
    with log.cursor("mailer") as cursor:
        cursor.commit(1)
        child = os.fork()
        if child == 0:
            try:
                cursor.position     # noqa: B018
            except ForkedHandleError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        cursor.commit(2)


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "a b", "ä", "x" * 101, "mailer.tmp", "mailer.lock", None, 5, "a\0b", "../x"]
)
def test_a_name_is_part_of_a_file_name(log, name):
    if name == "..":
        log.cursor(name).close()        # ".seglog.cursor-.." is a file like others
        return
    with pytest.raises(InvalidArgumentError, match="not a valid name of a reader"):
        log.cursor(name)


# --- the file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["flipped", "torn", "empty", "renamed", "negative", "text"])
def test_a_file_that_nobody_can_read_is_refused_and_told_how_to_mend(log, path, what):
    with log.cursor("mailer") as cursor:
        cursor.commit(5)
    file = cursor_path(path, "mailer")
    raw = file.read_bytes()
    made = {"name": "mailer", "offset": 5, "committed_at_ms": NOW}
    file.write_bytes({
        "flipped": raw.replace(b"5", b"4", 1), "torn": raw[:40], "empty": b"",
        "renamed": format_json("seglog-reader-cursor", 1, **made | {"name": "other"}),
        "negative": format_json("seglog-reader-cursor", 1, **made | {"offset": -1}),
        "text": format_json("seglog-reader-cursor", 1, **made | {"offset": "5"}),
    }[what])
    with pytest.raises(CorruptCheckpointError) as refused:
        log.cursor("mailer")
    assert "seglog cursors reset" in refused.value.hint
    file.unlink()
    log.cursor("mailer").close()        # the lock was let go of


def test_a_newer_version_is_refused(log, path):
    cursor_path(path, "mailer").write_bytes(
        format_json("seglog-reader-cursor", 2, name="mailer", offset=5, committed_at_ms=NOW)
    )
    with pytest.raises(UnsupportedVersionError):
        log.cursor("mailer")


def test_a_commit_that_fails_leaves_the_one_before(log, path):
    with log.cursor("mailer") as cursor:
        cursor.commit(3)
    for number in range(8):
        failing = FailingFs(log.fs, number, 28)
        with seglog.open_partition(path) as partition, partition.cursor("mailer") as cursor:
            cursor._fs = failing
            try:
                cursor.commit(4)
                break
            except StorageError:
                assert cursor.position in (3, 4)
                failing.heal()
    else:
        pytest.fail("no commit went through")
    assert number > 2
    assert ReaderCursor.read(path, "mailer").offset == 4


def test_backups_and_conversions_take_cursors_along(log, path, in_memory):
    with log.cursor("mailer") as cursor:
        cursor.commit(5)
        log.snapshot(in_memory / "backup" / "orders-0")
    log.close()
    (in_memory / "converted").mkdir()
    seglog.convert(path, in_memory / "converted" / "orders-0", to=1).run()
    for directory in (in_memory / "backup" / "orders-0", in_memory / "converted" / "orders-0"):
        assert [json.loads(file.read_bytes())["offset"] for file in cursor_files(directory)] == [5]
        with seglog.open(directory) as log, log.cursor("mailer") as cursor:
            assert values(cursor.read()) == [5, 6, 7, 8, 9]
    assert seglog.verify(path).findings == []


# --- crashes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_a_crash_leaves_a_position_that_was_committed(in_memory, shared):
    root = in_memory / "data"
    root.mkdir()
    record = RecordingFs(root)
    log = seglog.open(root / "orders-0", fs=record, clock=ManualClock(NOW))
    log.append_many([(b"k", b"v")] * 40)
    record.mark(0)
    for offset in range(1, 30):
        with log.cursor("mailer", shared=shared) as cursor:
            cursor.commit(offset)
        record.mark(offset)
    log.close()
    seen = 0
    for state in record.crash_states(limit=STATES, seed=3, shuffled=True):
        if not state.marks:
            continue
        seen += 1
        with state.materialise() as disk, seglog.open(disk / "orders-0") as log, log.cursor("mailer") as cursor:
            assert state.marks[-1] <= cursor.position <= state.marks[-1] + 1, state.story()
            cursor.commit(40)
            assert not list(cursor.read())
    assert seen > STATES // 3


def test_a_killed_reader_lets_go_of_its_name(log, path):
    code = (
        "import seglog, sys, os, signal; p = seglog.open_partition(sys.argv[1]); c = p.cursor('mailer'); c.commit(4); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    with log.cursor("mailer") as cursor:
        assert cursor.position == 4
