"""Backups that follow a log: what was acknowledged some seconds before the disk is lost is in the store."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from support.waiting import line_of, wait_for


@pytest.fixture
def log(in_memory):
    with seglog.open(in_memory / "data/orders-0", config={"segment.bytes": 4000}) as opened:
        opened.append(b"first")
        yield opened


@pytest.fixture
def backups(in_memory):
    return seglog.BackupStore(in_memory / "store")


def followed(backups, data, **more):
    """(the event that ends it, its runs, its errors, the thread)"""
    stop, runs, errors = threading.Event(), [], []
    thread = threading.Thread(target=backups.follow, args=(data,), kwargs={
        "every_s": 0.02, "stop": stop, "on_run": runs.append, "on_error": errors.append} | more)
    thread.start()
    return stop, runs, errors, thread


def create(backups, data):
    """A snapshot of somebody else, as soon as the follower does not hold the store."""
    while True:
        try:
            return backups.create(data).snapshot
        except LogLockedError:
            time.sleep(0.001)


def test_a_record_is_in_the_store_within_the_time_and_one_run(log, backups, in_memory):
    stop, runs, errors, thread = followed(backups, in_memory / "data")
    try:
        wait_for(lambda: runs)
        acknowledged, slowest = [], 0.0
        began = stood_still = time.monotonic()
        # It ends a while after the machine last stood still: nobody made a backup then.
        while (now := time.monotonic()) < began + 2 or (now < stood_still + 1.5 and now < began + 60):
            for _ in range(20):
                acknowledged.append((time.monotonic(), log.append(b"%d" % len(acknowledged))))
            time.sleep(0.01)
            if (later := time.monotonic()) - now > 0.3:
                stood_still = later
        lost_at = time.monotonic()
        count = len(runs)
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert count > 2
    took = sorted(run.snapshot.ended_at_ms - run.snapshot.began_at_ms for run in runs)[-1] / 1000
    last = runs[count - 1].snapshot.partitions[0].next_offset       # of the last run that had ended by then
    slowest = max([lost_at - at for at, offset in acknowledged if offset >= last], default=0)
    assert slowest <= 0.02 + 3 * took + 1.0, (slowest, took)


def test_nothing_is_made_if_nothing_has_changed_and_the_last_of_an_hour_stays(log, backups, in_memory):
    own = backups.create(in_memory / "data").snapshot      # not the follower's: it stays
    log.append(b"more")
    stop, runs, _, thread = followed(backups, in_memory / "data")
    try:
        wait_for(lambda: len(runs) > 3)
        assert len({run.snapshot.id for run in runs}) == 1
        assert len(backups.snapshots()) == 2
        other = create(backups, in_memory / "data").id      # this one, too
        for n in range(3):
            before = len(runs)
            log.append(b"%d" % n)
            wait_for(lambda before=before: len(runs) > before + 1)
    finally:
        stop.set()
        thread.join()
    found = [snapshot.id for snapshot in backups.snapshots()]
    assert {own.id, other} <= set(found)
    assert found[-1] == runs[-1].snapshot.id
    assert len(found) <= 4      # one more if an hour ended meanwhile
    backups.prune()
    assert backups.check(read_data=True).ok


def test_a_run_that_fails_is_told_and_the_next_one_follows(log, backups, in_memory):
    stop, runs, errors, thread = followed(backups, in_memory / "data")
    try:
        wait_for(lambda: runs)
        with lock_log_dir(OsFileSystem(), in_memory / "store"):
            wait_for(lambda: errors)
        assert isinstance(errors[0], LogLockedError)
        before = len(runs)
        wait_for(lambda: len(runs) > before)
    finally:
        stop.set()
        thread.join()
    with pytest.raises(StorageError):
        backups.follow(in_memory / "nothing")
    for every_s in (0, -1, "x"):
        with pytest.raises(InvalidArgumentError, match="every_s"):
            backups.follow(in_memory / "data", every_s=every_s)


def test_the_command_runs_until_it_is_ended(log, in_memory):
    command = [sys.executable, "-m", "seglog.tools", "backup", "create", in_memory / "data", in_memory / "store",
               "--every", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) as child:
        assert '"type":"backup"' in line_of(child)
        log.append(b"more")
        assert '"type":"backup"' in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
    seglog.restore(in_memory / "store", in_memory / "back")
    with seglog.open(in_memory / "back/orders-0", clock=ManualClock()) as restored:
        assert restored.log_end_offset == 2
