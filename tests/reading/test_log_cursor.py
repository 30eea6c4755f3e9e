"""Named readers: positions that stay in the partition, and who may read by a name."""
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptCheckpointError,
    ForkedHandleError,
    InvalidArgumentError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.log import truncation
from seglog.reading.follower import Follower
from seglog.reading.live_ends import LiveWriter
from seglog.state.reader_cursor import SLOT_BYTES, ReaderCursor, committed_cursors, cursor_path
from support.faultfs import FailingFs, RecordingFs
from support.waiting import line_of

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


@pytest.fixture
def singles(path):
    """Ten records, each in a batch of its own: it can be cut anywhere."""
    with seglog.open(path, fsync="never", clock=ManualClock(NOW)) as opened:
        for n in range(10):
            opened.append(b"%d" % n)
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
        format_json("seglog-reader-cursor", 3, name="mailer", offset=5, committed_at_ms=NOW)
    )
    with pytest.raises(UnsupportedVersionError):
        log.cursor("mailer")


def test_a_commit_that_fails_leaves_the_one_before(log, path):
    with log.cursor("mailer") as cursor:
        cursor.commit(3)
    for number in range(8):
        failing = FailingFs(log._fs, number, 28)
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


# --- the two slots of its file --------------------------------------------------------------------------


def test_a_commit_takes_one_sync_and_none_if_the_log_takes_none(in_memory):
    for fsync, expected in (("batch", ["sync"]), ("interval", ["sync"]), ("never", [])):
        asked = FailingFs(OsFileSystem())
        with seglog.open(in_memory / f"{fsync}-0", fsync=fsync, fs=asked) as log, log.cursor("mailer") as cursor:
            log.append_many([(b"k", b"v")] * 40)
            cursor.commit(1)        # makes the file
            begun = len(asked.calls)
            cursor.commit(2)
            assert [word.split()[0] for word in asked.calls[begun:] if "sync" in word] == expected
            assert cursor.position == 2


def committed(path, offsets):
    """The bytes of a cursor's file after these commits."""
    with seglog.open_partition(path) as partition, partition.cursor("mailer") as cursor:
        for offset in offsets:
            cursor.commit(offset)
    return bytearray(cursor_path(path, "mailer").read_bytes())


def test_a_file_holds_the_last_two_commits_and_the_later_one_counts(log, path):
    for count in range(1, 6):
        raw = committed(path, [count])
        assert len(raw) == 2 * SLOT_BYTES
        found = [json.loads(slot) for slot in (raw[:SLOT_BYTES], raw[SLOT_BYTES:]) if slot.strip()]
        assert sorted(slot["offset"] for slot in found) == [*range(max(1, count - 1), count + 1)]
        assert ReaderCursor.read(path, "mailer").offset == count


def test_half_a_commit_is_not_the_position_and_the_next_one_takes_its_place(log, path):
    raw = committed(path, [3, 4])
    raw[SLOT_BYTES + 40 :] = bytes(SLOT_BYTES - 40)
    cursor_path(path, "mailer").write_bytes(raw)
    assert ReaderCursor.read(path, "mailer").offset == 3
    assert len(committed(path, [7])) == 2 * SLOT_BYTES
    assert ReaderCursor.read(path, "mailer").offset == 7


@settings(max_examples=200)
@given(at=st.integers(0, 2 * SLOT_BYTES - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_never_makes_a_position_that_nobody_committed(at, bit):
    made = ReaderCursor("mailer", 3, NOW)
    with tempfile.TemporaryDirectory() as name:
        directory, fs = Path(name), OsFileSystem()
        made.put(fs, directory)
        made._replace(offset=4).commit(fs, directory, durably=False)
        path = cursor_path(directory, "mailer")
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1 << bit
        path.write_bytes(raw)
        assert ReaderCursor.read(directory, "mailer").offset in (3, 4)
        raw[SLOT_BYTES // 4] ^= 0x55
        raw[SLOT_BYTES + SLOT_BYTES // 4] ^= 0x55
        path.write_bytes(raw)
        with contextlib.suppress(CorruptCheckpointError):
            assert ReaderCursor.read(directory, "mailer").offset in (3, 4)


def test_a_file_of_version_1_is_read_and_replaced_by_the_next_commit(log, path):
    cursor_path(path, "mailer").write_bytes(
        format_json("seglog-reader-cursor", 1, name="mailer", offset=5, committed_at_ms=NOW)
    )
    with log.cursor("mailer") as cursor:
        assert cursor.position == 5
        cursor.commit(6)
        assert cursor.position == 6
    assert cursor_path(path, "mailer").stat().st_size == 2 * SLOT_BYTES


def test_a_reader_beside_commits_sees_them_in_order(log, path):
    log.append_many([(b"k", b"v")] * 2000)
    ended = threading.Event()

    def commits():
        with seglog.open_partition(path) as partition, partition.cursor("mailer") as cursor:
            cursor._is_durable = False
            for offset in range(2000):
                cursor.commit(offset)
        ended.set()

    thread = threading.Thread(target=commits)
    thread.start()
    seen = [0]
    while not ended.is_set():
        found = ReaderCursor.read(path, "mailer")
        seen.append(0 if found is None else found.offset)
    thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


def test_backups_and_conversions_take_cursors_along(log, path, in_memory):
    with log.cursor("mailer") as cursor:
        cursor.commit(5)
        log.snapshot(in_memory / "backup" / "orders-0")
    log.close()
    (in_memory / "converted").mkdir()
    seglog.convert(path, in_memory / "converted" / "orders-0", to=1)
    for directory in (in_memory / "backup" / "orders-0", in_memory / "converted" / "orders-0"):
        assert [cursor.offset for cursor in committed_cursors(directory)] == [5]
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
    assert seen > STATES // 5


def test_a_killed_reader_lets_go_of_its_name(log, path):
    code = (
        "import seglog, sys, os, signal; p = seglog.open_partition(sys.argv[1]); c = p.cursor('mailer'); c.commit(4); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    with log.cursor("mailer") as cursor:
        assert cursor.position == 4


# --- a log that is cut ----------------------------------------------------------------------------------


def wait_for(reader, end):
    deadline = time.monotonic() + 20
    while reader.log_end_offset != end:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_cut_moves_readers_back_who_would_pass_over_what_comes(singles, path, caplog):
    with singles.cursor("early") as early, singles.cursor("late") as late:
        early.commit(3)
        late.commit(8)
    with singles.cursor("held") as held, singles.cursor("shared", shared=True) as shared, singles.cursor("new") as new:
        held.commit(10)
        shared.commit(6)
        singles.truncate_to(5)
        assert [found.offset for found in map(ReaderCursor.read, [path] * 4, ["early", "late", "held", "shared"])] == [
            3, 5, 5, 5]
        assert "moved reader 'late' back to offset 5, where the log was truncated; it had committed 8" in caplog.text
        singles.append_many([(None, b"%d" % n) for n in range(100, 110)])
        assert values(held.read()) == values(shared.read()) == list(range(100, 110))
        assert (held.position, held.lag, new.position) == (5, 10, 0)
        held.commit(12)
    singles.truncate_to(2)
    with singles.cursor("early") as early, singles.cursor("held") as held:
        assert (early.position, held.position) == (2, 2)


@pytest.mark.parametrize("kind", ["own", "follower", "picture", "shared"])
def test_a_record_that_was_cut_meanwhile_is_not_committed(singles, path, kind):
    """At its offset stands another one now, and before it others: with the commit, nobody would read these."""
    match kind:
        case "follower":
            reader = seglog.follow(path)
        case "picture":
            reader = seglog.open_partition(path)
        case _:
            reader = singles
    with reader.cursor("mailer", shared=kind == "shared") as cursor:
        wait_for(reader, 10)
        before = list(cursor.read())
        cursor.commit(before[1])
        singles.truncate_to(5)
        singles.append_many([(None, b"%d" % n) for n in range(100, 110)])
        wait_for(reader, 10 if kind == "picture" else 15)
        cursor.commit(before[4])        # the last one that still stands
        with pytest.raises(OffsetOutOfRangeError, match="the log was truncated to offset 5 since") as refused:
            cursor.commit(before[7])
        assert "cursor.position" in refused.value.hint
        assert cursor.position == 5
        if kind == "picture":
            reader.refresh()
        wait_for(reader, 15)
        after = list(cursor.read())
        assert values(after) == list(range(100, 110))
        cursor.commit(after[3])
        assert cursor.position == 9
    if reader is not singles:
        reader.close()


def test_a_position_committed_during_a_cut_is_lowered_before_readers_see_the_cut(singles, path, monkeypatch):
    """A reader that took the position first would pass over what came later, and its commits would be accepted."""
    asked, appended, found = threading.Event(), threading.Event(), []
    truncate_segment, end = truncation.truncate_segment, LiveWriter.end
    with seglog.follow(path) as follower, follower.cursor("mailer") as cursor:
        wait_for(follower, 10)
        done = list(cursor.read())

        def cut_and_commit(*arguments):
            cursor.commit(done[-1])
            truncate_segment(*arguments)

        def end_and_read(*arguments, **named):
            end(*arguments, **named)
            thread.start()
            assert asked.wait(60)

        def read_late(*arguments, **named):
            asked.set()
            assert appended.wait(60)
            return Follower.read(follower, *arguments, **named)

        thread = threading.Thread(target=lambda: found.extend(cursor.read()))
        monkeypatch.setattr(truncation, "truncate_segment", cut_and_commit)
        monkeypatch.setattr(LiveWriter, "end", end_and_read)
        monkeypatch.setattr(follower, "read", read_late)
        singles.truncate_to(5)
        monkeypatch.undo()
        singles.append_many([(None, b"%d" % n) for n in range(100, 110)])
        wait_for(follower, 15)
        appended.set()
        thread.join(60)
        assert (values(found), cursor.position) == (list(range(100, 110)), 5)


@pytest.mark.parametrize("opened", [seglog.follow, seglog.open_partition])
def test_a_reader_from_before_the_first_writer_is_told_of_a_cut(path, opened):
    """Nobody had published an epoch when it read: the directory came from a broker or a backup."""
    with seglog.open(path, fsync="never", clock=ManualClock(NOW)) as log:
        for n in range(10):
            log.append(b"%d" % n)
    (path / ".seglog.live").unlink()
    with opened(path) as reader, reader.cursor("mailer") as cursor:
        before = list(cursor.read())
        with seglog.open(path, fsync="never", clock=ManualClock(NOW)) as log:
            log.truncate_to(5)
            log.append_many([(None, b"%d" % n) for n in range(100, 110)])
            wait_for(reader, 10 if opened is seglog.open_partition else 15)
            with pytest.raises(OffsetOutOfRangeError, match="the log was truncated to offset 5 since"):
                cursor.commit(before[7])
            cursor.commit(before[4])
            assert cursor.position == 5


def test_a_picture_of_before_a_cut_commits_nothing_behind_it_whenever_its_cursor_was_opened(singles, path):
    with seglog.open_partition(path) as picture:
        assert len(list(picture.read())) == 10
        singles.truncate_to(5)
        singles.append_many([(None, b"%d" % n) for n in range(100, 110)])
        with picture.cursor("mailer") as cursor, pytest.raises(OffsetOutOfRangeError, match="truncated to offset 5"):
            cursor.commit(8)


def test_a_writer_that_comes_back_does_not_disturb_readers(path):
    """It cut nothing: closed in peace, killed, or interrupted in an append, all of which take the log up again."""
    writer = (
        "import seglog, sys, os, signal\n"
        "log = seglog.open(sys.argv[1], fsync='never')\n"
        "log.append_many([(None, b'x')] * 10)\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()"
    )
    seglog.open(path).close()
    with seglog.follow(path) as follower, follower.cursor("mailer") as cursor:
        list(cursor.read())
        for end in range(10, 60, 10):
            child = subprocess.Popen(
                [sys.executable, "-c", writer, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert line_of(child) == "open\n"
            wait_for(follower, end)
            cursor.commit(end)
            if end % 20:
                child.send_signal(signal.SIGKILL)
            child.communicate(timeout=60)
        assert cursor.position == 50


def test_what_cannot_be_lowered_leaves_the_log_uncut(path, in_memory):
    number, failed = 0, True
    while failed:
        directory = in_memory / str(number) / "orders-0"
        with contextlib.suppress(LogFailedError), seglog.open(directory, clock=ManualClock(NOW)) as log:
            for n in range(10):
                log.append(b"%d" % n)
            for name in ("a", "b"):
                with log.cursor(name) as cursor:
                    cursor.commit(9)
            log._tail.fs = failing = FailingFs(log._fs, number, 28)
            try:
                log.truncate_to(5)
                failed = False
            except StorageError:
                failing.heal()
                # Lowered without a cut: what was done is read again.
                assert {ReaderCursor.read(directory, name).offset for name in ("a", "b")} <= {5, 9}
            end = log.log_end_offset if log.stats().failure is None else None
        with seglog.open(directory, fsync="never") as log:
            found = log.log_end_offset
            assert end in (None, found)
            assert max(ReaderCursor.read(directory, name).offset for name in ("a", "b")) <= found
        number += 1
    assert number > 10
    assert found == 5


def test_a_cursor_that_nobody_can_read_stops_no_cut_and_no_opening(singles, path, caplog):
    cursor_path(path, "broken").write_bytes(b"{}")
    cursor_path(path, "newer").write_bytes(
        format_json("seglog-reader-cursor", 3, name="newer", offset=9, committed_at_ms=NOW)
    )
    with singles.cursor("mailer") as cursor:
        cursor.commit(9)
    singles.truncate_to(5)
    singles.close()
    with seglog.open(path) as log:
        assert log.log_end_offset == 5
    assert ReaderCursor.read(path, "mailer").offset == 5
    assert caplog.text.count("cannot tell whether a reader's position is beyond the log end offset") >= 4


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_a_crash_around_a_cut_leaves_no_reader_behind_the_end(in_memory, fsync):
    """Also without our opening: a broker that takes the directory over lowers nobody."""
    root = in_memory / "data"
    root.mkdir()
    record = RecordingFs(root)
    log = seglog.open(root / "orders-0", fs=record, fsync=fsync, clock=ManualClock(NOW), config={"segment.bytes": 500})
    value = 0
    record.mark(0)
    for end, cut in ((30, 12), (40, 5), (20, 19), (60, 0)):
        while log.log_end_offset < end:
            value += 1
            log.append(b"%d" % value)
        for name in ("a", "b"):
            with log.cursor(name) as cursor:
                cursor._is_durable = True       # as that of a reader in another process
                cursor.commit(end)
        record.mark(end)
        log.truncate_to(cut)
        record.mark(cut)
    log.close()
    seen = lowered = 0
    for state in record.crash_states(limit=STATES, seed=4, shuffled=True):
        if not state.marks:
            continue
        seen += 1
        with state.materialise() as disk:
            path = disk / "orders-0"
            if fsync == "batch":
                with seglog.open_partition(path) as found:
                    ends = [found.log_end_offset]
                assert max((c.offset for c in committed_cursors(path)), default=0) <= ends[0], state.story()
            before = {cursor.name: cursor.offset for cursor in committed_cursors(path)}
            with seglog.open(path, clock=ManualClock(NOW)) as log:
                end = log.log_end_offset
                lowered += max(before.values(), default=0) > end
                log.append_many([(None, b"new")] * 70)
                for name in ("a", "b"):
                    with log.cursor(name) as cursor:
                        assert cursor.position == min(before.get(name, 0), end), state.story()
                        assert sum(r.value == b"new" for r in cursor.read(on_out_of_range="earliest")) == 70
    assert seen > STATES // 3
    assert fsync == "batch" or lowered       # what was not synced is gone, and the position was durable


READER = """
import json, sys, time
from pathlib import Path
import seglog

path, name, kind, stop, out = sys.argv[1:]
done, told = [], 0
with seglog.follow(path) as log:
    with log.cursor(name, shared=kind == "shared") as cursor:
        print("open", flush=True)
        is_last = False
        while not is_last:
            is_last = Path(stop).exists()
            try:
                for record in cursor.read(on_out_of_range="earliest"):
                    done.append((record.offset, int(record.value)))
                    if record.offset % 3 == 0:
                        cursor.commit(record)
            except seglog.errors.OffsetOutOfRangeError:
                told += 1
                is_last = False
                Path(out).touch()
Path(out).write_text(json.dumps([done, told]))
"""


def test_readers_in_other_processes_pass_over_nothing_while_the_log_is_cut(in_memory):
    """Each record that stands in the end was done by each reader, whatever was cut between reading and committing."""
    path, stop = in_memory / "orders-0", in_memory / "stop"
    seconds = 60 if os.environ.get("SEGLOG_TORTURE") else 2
    chance = random.Random(18)
    value = 0
    kinds = ["alone", "shared"]
    with seglog.open(path, fsync="never", config={"segment.bytes": 20_000}) as log:
        log.append(b"0")
        children = [
            subprocess.Popen(
                [sys.executable, "-c", READER, path, kind, kind, stop, in_memory / kind], stdout=subprocess.PIPE
            )
            for kind in kinds
        ]
        try:
            assert [line_of(child) for child in children] == [b"open\n"] * len(kinds)
            ends, cuts = time.monotonic() + seconds, 0
            # (On a slow machine it takes longer until a cut comes between reading and committing.)
            while time.monotonic() < ends or cuts < 20 or not any((in_memory / kind).exists() for kind in kinds):
                assert time.monotonic() < ends + 120, "no reader was told of a cut"
                for _ in range(chance.randrange(60)):
                    value += 1
                    log.append(b"%d" % value)
                time.sleep(chance.choice([0, 0.001, 0.02]))
                if chance.random() < 0.5:
                    back = chance.randrange(1, 80)
                    log.truncate_to(max(log.log_end_offset - back, 0))
                    cuts += 1
                    for _ in range(back + 10):      # past where readers were
                        value += 1
                        log.append(b"%d" % value)
            standing = {(record.offset, int(record.value)) for record in log.read()}
            with seglog.follow(path) as follower:
                wait_for(follower, log.log_end_offset)      # appends are published a few milliseconds later
            stop.touch()
            assert [child.wait(60) for child in children] == [0] * len(kinds)
        finally:
            for child in children:
                child.kill()
                child.communicate()
    told = 0
    for kind in kinds:
        done, refused = json.loads((in_memory / kind).read_text())
        assert standing <= set(map(tuple, done)), kind
        told += refused
    assert told
