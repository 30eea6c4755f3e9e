"""Idle logs give their descriptors back: what they keep, when they must not, and what they check before they go on."""
import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import seglog
from seglog.errors import LogFailedError, StorageError
from seglog.fs.files import OsFile
from seglog.segment.growing_files import GROWING_FILES, GrowingFiles, segments_allowed
from seglog.verification.verify import verify
from support.descriptors import descriptors_of, rest, rest_while_syncs_fail
from support.interrupts import interrupted_at_each_opcode

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
LOGS, DESCRIPTORS = (10_000, 1024) if FULL else (120, 64)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")

MANY_LOGS = """
import os, resource, sys
path, logs, descriptors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
import seglog
values = [b"first", b"second", b"third"]
with seglog.open_dir(path, config={"index.interval.bytes": 1}) as log_dir:
    opened = [log_dir.log("orders", number) for number in range(logs)]
    for value in values:
        for log in opened:
            log.append(value)
    for log in opened[::7]:
        assert [record.value for record in log.read()] == values
    print(len(os.listdir("/proc/self/fd")))
with seglog.open_dir(path) as log_dir:
    for number in range(0, logs, 7):
        log = log_dir.log("orders", number)
        assert log.recovery.lost == () and [record.value for record in log.read()] == values
"""


def test_more_logs_than_descriptors_are_open_and_appended_to(in_memory):
    done = subprocess.run(
        [sys.executable, "-c", MANY_LOGS, in_memory, str(LOGS), str(DESCRIPTORS)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < DESCRIPTORS


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "orders-0", config={"index.interval.bytes": 1}) as log:
        for n in range(5):
            log.append(b"%d" % n)
        yield log


def files_held(log):
    """How many descriptors it has of its segments' files. (The thread of notices may have .seglog.live open, too.)"""
    return descriptors_of(f"{log.path}/0")


def values(log):
    return [record.value for record in log.read()]


def test_a_log_has_four_and_an_idle_one_none(log):
    assert files_held(log) == 4
    rest()
    assert files_held(log) == 0
    assert log.append(b"5") == 5
    assert files_held(log) == 4
    assert values(log) == [b"%d" % n for n in range(6)]


def test_appends_are_quiet_again(log):
    rest()
    active = log._tail.active
    assert active.quiet_bytes == -1
    log.append(b"v")
    assert active.quiet_bytes > 0


def test_what_is_not_durable_is_synced_by_the_descriptor_that_wrote_it(in_memory, monkeypatch):
    synced = []
    for name in ("sync", "sync_data"):
        real = getattr(OsFile, name)
        monkeypatch.setattr(OsFile, name, lambda file, real=real: synced.append(Path(file.path).suffix) or real(file))
    with seglog.open(in_memory / "orders-0", fsync="never", config={"index.interval.bytes": 1}) as log:
        log.append_many([(None, b"v" * 100)] * 3)
        log.append(b"w")
        synced.clear()
        rest()
        assert set(synced) == {".log", ".index", ".timeindex"}
        assert files_held(log) == 0
        assert log.durable_offset == log.log_end_offset == 4
        synced.clear()
        rest()
        log.flush()
        assert synced == []
        assert files_held(log) == 0


DEEDS = {
    "append_many": lambda log: log.append_many([(None, b"a"), (None, b"b")]),
    "columns": lambda log: log.append_columns(values=[b"a", b"b"]),
    "ready": lambda log: log.append_batch(seglog.build_batch([(None, b"a")])),
    "does not wait": lambda log: log.append(b"a", wait=False),
    "roll": lambda log: log.roll(),
    "truncate": lambda log: log.truncate_to(3),
    "delete": lambda log: log.delete_records(2),
    "flush": lambda log: log.flush(),
    "configure": lambda log: log.configure({"segment.bytes": 5000}),
    "backup": lambda log: log.snapshot(log.path.parent / "copy/orders-0"),
    "abort": lambda log: _abort(log),
    "close": lambda log: log.close(),
}


def _abort(log):
    with log.producer(7) as producer:
        producer.begin()
        producer.append(b"gone")
        rest()
        producer.abort()


@pytest.mark.parametrize("deed", DEEDS)
def test_every_change_takes_them_again(log, deed):
    other = log.path.parent / "other/orders-0"
    expected = seglog.open(other, config={"index.interval.bytes": 1})
    for record in log.read():
        expected.append(record.value, timestamp=record.timestamp)
    for one in (log, expected):
        if one is log:
            rest()
            assert files_held(log) == 0
        DEEDS[deed](one)
    if deed != "close":
        assert values(log) == values(expected)
        log.append(b"last")
        log.close()
    expected.close()
    assert not verify(log.path).findings


# --- when they must stay -------------------------------------------------------------------------


def test_a_log_in_use_keeps_them_and_nobody_waits(log):
    entered, leave = threading.Event(), threading.Event()

    def busy():
        entered.set()
        assert leave.wait(30)

    thread = threading.Thread(target=log._tail.change, args=(busy,))
    thread.start()
    assert entered.wait(30)
    rest()
    assert files_held(log) == 4
    leave.set()
    thread.join()
    syncing = threading.Thread(target=log._tail.alone, args=(busy,))
    entered.clear()
    leave.clear()
    syncing.start()
    assert entered.wait(30)
    rest()
    assert files_held(log) == 4
    leave.set()
    syncing.join()
    rest()
    assert files_held(log) == 0


def test_a_sync_that_fails_then_leaves_the_log_read_only_and_another_s_append_unharmed(in_memory, monkeypatch):
    """fsyncgate: another descriptor would not hear of it."""
    victim = seglog.open(in_memory / "victims-0", fsync="never")
    victim.append(b"v")
    real = OsFile.sync_data

    def sync_data(file):
        if "victims" in file.path:
            file._refuse_sync(errno.EIO)
        real(file)

    monkeypatch.setattr(OsFile, "sync_data", sync_data)
    monkeypatch.setattr(GROWING_FILES, "limit", lambda: 0)
    with seglog.open(in_memory / "third-0") as third:
        assert third.append(b"fine") == 0
    monkeypatch.undo()
    assert files_held(victim) > 0
    rest()
    assert files_held(victim) > 0
    with pytest.raises(LogFailedError, match="input/output error"):
        victim.append(b"w")
    victim.close()
    with seglog.open(in_memory / "victims-0") as again:
        assert values(again) == [b"v"]


def test_a_log_that_finds_the_disk_full_then_has_retention_called(in_memory, monkeypatch):
    victim = seglog.open(in_memory / "victims-0", fsync="never", config={"retention.bytes": 1000})
    victim.append(b"v")
    called = []
    monkeypatch.setattr(victim._tail, "on_full", lambda: called.append(victim))
    rest_while_syncs_fail(monkeypatch, errno.ENOSPC)
    assert called == [victim]
    with pytest.raises(LogFailedError, match="no space is left"):
        victim.close()


def test_closing_a_log_whose_sync_failed_in_another_s_append_tells(in_memory, log, monkeypatch):
    victim = seglog.open(in_memory / "victims-0", fsync="never")
    victim.append(b"v")
    log.close()
    rest_while_syncs_fail(monkeypatch)
    with pytest.raises(LogFailedError, match="input/output error"):
        victim.close()


def test_a_failed_file_is_not_given_back(tmp_path):
    file = seglog.fs.files.OsFileSystem().create(tmp_path / "file")
    file.append(b"v")
    assert not file.give_back()
    file.sync()
    with pytest.raises(StorageError):
        file._refuse_write(errno.EIO)
    assert not file.give_back()
    file.close()
    assert not file.give_back()


# --- what is checked before they go on -----------------------------------------------------------


@pytest.mark.parametrize("change", ["removed", "replaced", "longer", "shorter", "link"])
def test_another_file_in_its_place_is_not_appended_to(log, change):
    rest()
    path = log.segments[-1].path
    whole = path.read_bytes()
    if change in ("removed", "link", "replaced"):
        path.rename(path.with_suffix(".away"))
    if change == "replaced":
        shutil.copy(path.with_suffix(".away"), path)
    elif change == "link":
        path.symlink_to(path.with_suffix(".away"))
    elif change != "removed":
        path.write_bytes(whole + b"x" if change == "longer" else whole[:-1])
    words = {"removed": "no such file", "link": "symbolic link"}.get(change, "was replaced or changed")
    for _ in range(2):
        with pytest.raises(StorageError, match=words):
            log.append(b"v")
    assert not isinstance(log._tail.failure, StorageError)
    assert files_held(log) == 0
    if change == "replaced":
        with pytest.raises(LogFailedError, match=words):
            log.close()
        with seglog.open(log.path) as again:
            assert len(values(again)) == 5
        return
    # The file that it was, as it was: so the log goes on.
    if change in ("removed", "link"):
        path.unlink(missing_ok=True)
        path.with_suffix(".away").rename(path)
    else:
        path.write_bytes(whole)
    assert log.append(b"v") == 5


def test_out_of_descriptors_others_give_theirs_back(in_memory, log, monkeypatch):
    others = [seglog.open(in_memory / f"others-{n}") for n in range(4)]
    held = sum(map(files_held, others))
    rest()
    for other in others:
        other.append(b"v")
    real, refused = os.open, []

    def refuse_once(path, *args, **kwargs):
        if str(path).endswith(".log") and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse_once)
    assert log.append(b"v") == 5
    assert refused
    assert 0 < sum(map(files_held, others)) < held
    for other in others:
        other.close()


def test_with_none_left_an_append_is_refused_and_the_log_goes_on(log, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    rest()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="too many open files"):
        log.append(b"v")
    monkeypatch.undo()
    assert log.append(b"v") == 5


# --- which ones ----------------------------------------------------------------------------------


def test_the_log_that_nobody_appended_to_goes_first(in_memory, monkeypatch):
    logs = [seglog.open(in_memory / f"orders-{n}") for n in range(4)]
    ring = GrowingFiles(lambda: 4)
    for log in logs:
        ring.opened(log._tail)
    logs[0].append(b"v")
    ring.leave(3)
    assert [files_held(log) > 0 for log in logs] == [True, False, True, True]
    ring.opened(logs[3]._tail)      # twice is once
    logs[2].close()
    ring.leave(2)
    assert [files_held(log) > 0 for log in logs] == [True, False, False, True]
    for log in logs:
        log.close()
    ring.leave(0)
    assert not ring._slots
    assert not ring._ring


def test_whoever_is_interrupted_while_others_rest_leaves_no_open_log_out(in_memory):
    """A log that has descriptors and is nowhere in the ring never gave them back."""
    logs = [seglog.open(in_memory / f"orders-{n}", fsync="never") for n in range(2)]

    def prepare():
        for log in logs:
            log.append(b"v")

    def check(_, where):
        for log in logs:
            log.append(b"w")
            assert files_held(log) == 4
            assert GROWING_FILES._slots[id(log._tail)] in GROWING_FILES._ring, where

    interrupted_at_each_opcode(prepare, lambda _: rest(), check, step=1 if FULL else 29)
    rest()
    assert sum(map(files_held, logs)) == 0
    for log in logs:
        log.close()


def test_half_of_what_the_process_is_allowed():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert segments_allowed() == 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_of_a_fork_has_none_to_give_back(log):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not GROWING_FILES._slots and not GROWING_FILES._ring else 1)
    assert os.waitpid(pid, 0)[1] == 0
    rest()
    assert files_held(log) == 0
