"""Backups on disks that fail, are full or lose what was not synced, and runs that are killed: what a finished run said
it had is there."""
import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from support.backed_log import CONFIG, NOW, files, fill
from support.failed_restores import restores_that_fail
from support.faultfs import FailingFs, RecordingFs

# `make torture` sets SEGLOG_TORTURE: the full counts.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES, KILLS = (2000, 2000) if FULL else (30, 10)
TESTS = Path(__file__).parents[1]


@pytest.fixture
def data(in_memory):
    with seglog.open(in_memory / "data/orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        fill(log)
        log.cursor("billing").commit(3)
    put(in_memory / "data", 20)
    (in_memory / "data/meta.properties").write_text("version=1\n")
    return in_memory / "data"


def append(data, count=3):
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        fill(log, count)
    put(data, count)


def put(data, count):
    """Jobs, some of them done, in two priorities."""
    with seglog.Queue(data / "jobs", clock=ManualClock(NOW)) as queue:
        queue.put_many([b"job %d" % n * 100 for n in range(count)])
        queue.put(b"urgent", priority=1)
        queue.get(timeout=0).ack()


def check_restored(store, data, back):
    """The last snapshot has the log and the queue as they are."""
    seglog.restore(store, back)
    assert logs(back / "orders-0") == logs(data / "orders-0")
    assert files(back / "jobs") == files(data / "jobs")
    shutil.rmtree(back)


def logs(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".snapshot")}


def visible(store):
    """The ids of the snapshots in a store, each of which is whole."""
    backups = seglog.BackupStore(store)
    if not (store / "seglog-backup.json").exists():
        return []
    check = backups.check(read_data=True)
    needed = [finding for finding in check.findings if finding.snapshots]
    assert needed == []
    return [snapshot.id for snapshot in backups.snapshots()]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_step_costs_a_run_and_no_snapshot(data, in_memory, number):
    store = in_memory / "store"
    seglog.backup(data, store)
    before = visible(store)
    append(data)
    probe = FailingFs(OsFileSystem())
    shutil.copytree(store, in_memory / "probe")
    seglog.backup(data, in_memory / "probe", fs=probe)
    for step in range(0, len(probe.calls), 1 if FULL else 3):
        place = in_memory / "broken"
        shutil.copytree(store, place)
        failing = FailingFs(OsFileSystem(), fail_at=step, error=number, short=True)
        with contextlib.suppress(StorageError):
            seglog.backup(data, place, fs=failing)
            assert not failing.failed
        assert visible(place)[: len(before)] == before
        run = seglog.backup(data, place)        # the disk is well again
        assert visible(place)[-1] == run.snapshot.id
        assert [part.name for part in run.snapshot.parts] == ["orders-0", "jobs"]
        check_restored(place, data, in_memory / "back")
        assert seglog.BackupStore(place).prune().leftovers <= 4     # as many as are written at a time
        assert not list(place.rglob("*.tmp"))
        shutil.rmtree(place)


def test_a_disk_that_becomes_full_keeps_no_part_of_an_object(data, in_memory):
    """It was as large as a piece, 16 MiB, and stayed until `prune`."""
    probe = FailingFs(OsFileSystem())
    seglog.backup(data, in_memory / "probe", fs=probe)
    for step in range(0, len(probe.calls), 1 if FULL else 17):
        store = in_memory / f"store-{step}"
        failing = FailingFs(OsFileSystem(), fail_at=step, error=errno.ENOSPC, short=True, once=True)
        with contextlib.suppress(StorageError):
            seglog.backup(data, store, fs=failing)
        assert not list(store.rglob("*.tmp")), failing.calls[step]


def test_a_first_run_that_fails_is_run_again(data, in_memory):
    probe = FailingFs(OsFileSystem())
    seglog.backup(data, in_memory / "probe", fs=probe)
    for step in range(0, len(probe.calls), 1 if FULL else 97):
        store = in_memory / f"store-{step}"
        failing = FailingFs(OsFileSystem(), fail_at=step, error=errno.ENOSPC)
        with contextlib.suppress(StorageError):
            seglog.backup(data, store, fs=failing)
            assert not failing.failed
        run = seglog.backup(data, store)
        assert visible(store)[-1] == run.snapshot.id
        check_restored(store, data, in_memory / "back")


def test_a_disk_that_fails_at_any_step_of_forget_and_prune_costs_no_snapshot_that_stays(data, in_memory):
    store = in_memory / "store"
    for _ in range(3):
        last = seglog.backup(data, store).snapshot.id
        append(data)

    def thin(place, fs):
        backups = seglog.BackupStore(place, fs=fs)
        backups.forget(keep_last=1)
        backups.prune()

    probe = FailingFs(OsFileSystem())
    shutil.copytree(store, in_memory / "probe")
    thin(in_memory / "probe", probe)
    assert len(probe.calls) > 10
    for step in range(0, len(probe.calls), 1 if FULL else 4):
        place = shutil.copytree(store, in_memory / "broken")
        with pytest.raises(StorageError):
            thin(place, FailingFs(OsFileSystem(), fail_at=step, error=errno.EIO, short=True))
        assert last in visible(place)
        thin(place, OsFileSystem())
        assert visible(place) == [last]
        assert seglog.BackupStore(place).check().unused == 0
        shutil.rmtree(place)


def test_a_disk_that_is_full_now_and_then_delays_one_that_follows(data, in_memory):
    store, failing = in_memory / "store", FailingFs(OsFileSystem())
    backups, stop = seglog.BackupStore(store, fs=failing), threading.Event()
    errors, runs = [], []

    def on_run(run):
        runs.append(run)
        visible(store)
        append(data, 1)
        failing.fail(len(failing.calls) + len(runs) * 2, errno.ENOSPC, once=True)
        if len(runs) > (60 if FULL else 8):
            stop.set()

    def on_error(error):
        assert isinstance(error, StorageError)
        errors.append(error)

    backups.follow(data, every_s=0.001, stop=stop, on_run=on_run, on_error=on_error)
    assert len(errors) > 3
    failing.heal()
    backups.create(data)
    check_restored(store, data, in_memory / "back")


def test_a_restore_that_fails_at_any_step_is_run_again(data, in_memory):
    store = in_memory / "store"
    seglog.backup(data, store)

    def check(back):
        assert logs(back / "orders-0") == logs(data / "orders-0")

    for back in restores_that_fail(store, in_memory, "orders-0", check, every=1 if FULL else 4):
        assert (back / "meta.properties").read_text() == "version=1\n"


def test_a_crash_leaves_every_finished_snapshot(data, in_memory):
    """Runs, forgetting and pruning in turn, on a disk that loses what was not synced."""
    root = in_memory / "disk"
    root.mkdir()
    record = RecordingFs(root)
    backups = seglog.BackupStore(root / "store", fs=record)
    for keep in (0, 0, 1, 0, 2):
        record.mark(("has", backups.create(data).snapshot.id))
        append(data)
        if keep:
            gone = [snapshot.id for snapshot in backups.forget(keep_last=keep, dry_run=True).forgotten]
            record.mark(("may lose", *gone))
            backups.forget(keep_last=keep)
            backups.prune()
    _check_states(record)


def test_objects_that_a_failed_run_left_are_made_durable_by_the_next_one(data, in_memory):
    root = in_memory / "disk"
    failures = 0
    for at in range(4, 16, 1 if FULL else 4):
        root.mkdir()
        failing = FailingFs(OsFileSystem())
        record = RecordingFs(root, failing)
        record.mark(("has", seglog.backup(data, root / "store", fs=record).snapshot.id))
        append(data)
        failing.fail(len(failing.calls) + at, errno.EIO)
        with contextlib.suppress(StorageError):
            seglog.backup(data, root / "store", fs=record)
        failures += failing.failed
        failing.heal()
        after = record.steps
        record.mark(("has", seglog.backup(data, root / "store", fs=record).snapshot.id))
        _check_states(record, after=after, limit=STATES // 4)
        shutil.rmtree(root)
    assert failures >= 2


def _check_states(record, limit=STATES, after=0):
    seen = 0
    for state in record.crash_states(limit=limit, seed=3, shuffled=True, after=after):
        with state.materialise() as disk:
            found = visible(disk / "store")
            has = [mark[1] for mark in state.marks if mark[0] == "has"]
            lost = {one for mark in state.marks if mark[0] == "may lose" for one in mark[1:]}
            missing = [one for one in has if one not in found and one not in lost]
            assert not missing, state.story()
            seen += 1
    assert seen


def test_a_crash_during_a_restore_leaves_whole_partitions(data, in_memory):
    store, root = in_memory / "store", in_memory / "disk"
    seglog.backup(data, store)
    root.mkdir()
    record = RecordingFs(root)
    seglog.restore(store, root / "back", fs=record)
    record.mark("done")
    for state in record.crash_states(limit=STATES, seed=5, shuffled=True):
        with state.materialise() as disk:
            back = disk / "back"
            if state.marks:
                assert (back / "orders-0").exists(), state.story()
                assert (back / "meta.properties").exists(), state.story()
            else:
                seglog.restore(store, back)
            assert logs(back / "orders-0") == logs(data / "orders-0"), state.story()


@pytest.mark.long
def test_runs_that_are_killed_at_any_moment(tmp_path):
    """Appends, runs, forgetting, pruning and restoring, killed -9 after some milliseconds, again and again."""
    done = subprocess.run(
        [sys.executable, "-m", "support.killed_backup", tmp_path, str(KILLS), "7"],
        env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=3600 if FULL else 120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{KILLS} kills")
