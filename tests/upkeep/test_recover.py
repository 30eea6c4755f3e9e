"""`seglog.recover`: locks, crashes, and what it refuses."""
import os
import shutil

import pytest

import seglog
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.state.checkpoints import read_offset_checkpoint
from seglog.upkeep.recover import recover
from support.faultfs import RecordingFs
from support.golden import unpack

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
STATES = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
KIND = "txn-v2-k391--flip-earlier-seg"


@pytest.fixture
def damaged(tmp_path):
    (tmp_path / "disk").mkdir()
    return shutil.copytree(unpack("kafka") / "corrupt" / KIND / f"{KIND}-0", tmp_path / "disk/logs/orders-0")


def files(directory):
    """By their names; without locks and marks of ours."""
    found = {str(p.relative_to(directory)): p for p in sorted(directory.rglob("*")) if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not path.name.startswith(".seglog")}


def test_it_is_a_public_door():
    assert seglog.recover is recover


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_a_crash_in_place_leaves_a_log_that_recovers_to_the_same_and_the_backup_whole(damaged, mode):
    before = files(damaged)
    record = RecordingFs(damaged.parents[1])
    kept = damaged.parents[1] / "kept"
    recover(damaged, mode=mode, apply=True, backup=kept, fs=record)
    whole, backups = files(damaged), set(files(kept / "orders-0"))
    assert backups
    for state in record.crash_states(limit=STATES, seed=7):
        with state.materialise() as disk:
            recover(disk / "logs/orders-0", mode=mode, apply=True, backup=disk / "kept")
            assert files(disk / "logs/orders-0") == whole, state.story()
            # A .log that was gone before the run began has its backup by then.
            after = files(disk / "kept/orders-0")
            assert all(after[name] == before[name] for name in backups), state.story()


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_after_a_crash_it_runs_again_on_a_copy_in_which_hard_links_became_files(damaged, mode, tmp_path):
    before = files(damaged)
    record = RecordingFs(damaged.parents[1])
    kept = damaged.parents[1] / "kept"
    recover(damaged, mode=mode, apply=True, backup=kept, fs=record)
    whole, backups = files(damaged), set(files(kept / "orders-0"))
    for n, state in enumerate(record.crash_states(limit=STATES, seed=11)):
        with state.materialise() as disk:
            copy = shutil.copytree(disk, tmp_path / "copies" / str(n))
        recover(copy / "logs/orders-0", mode=mode, apply=True, backup=copy / "kept")
        assert files(copy / "logs/orders-0") == whole, state.story()
        after = files(copy / "kept/orders-0")
        assert all(after[name] == before[name] for name in backups), state.story()


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_a_crash_in_place_leaves_kafkas_clean_shutdown_file_only_where_all_files_fit_each_other(damaged, mode):
    (damaged.parent / names.CLEAN_SHUTDOWN).write_bytes(b'{"version":0,"brokerEpoch":31}')
    before = files(damaged)
    record = RecordingFs(damaged.parent)
    done = recover(damaged, mode=mode, apply=True, fs=record)
    whole = files(damaged)
    assert (damaged.parent / names.CLEAN_SHUTDOWN).read_bytes() == b'{"version":0,"brokerEpoch":31}'
    points = read_offset_checkpoint(damaged.parent / names.RECOVERY_POINT_CHECKPOINT)
    assert points == {("orders", 0): done.log_end_offset}
    for state in record.crash_states(limit=STATES, seed=9):
        with state.materialise() as disk:
            if (disk / names.CLEAN_SHUTDOWN).exists():
                assert files(disk / "orders-0") in (before, whole), state.story()


def test_a_crash_of_a_copy_leaves_a_whole_one_or_none(damaged):
    record = RecordingFs(damaged.parents[1])
    recover(damaged, damaged.with_name("copy-0"), mode="quarantine", fs=record)
    whole, source = files(damaged.with_name("copy-0")), files(damaged)
    for state in record.crash_states(limit=STATES, seed=8):
        with state.materialise() as disk:
            assert files(disk / "logs/orders-0") == source
            target = disk / "logs/copy-0"
            if target.exists():
                assert files(target) == whole, state.story()
            else:
                recover(disk / "logs/orders-0", target, mode="quarantine")
            assert not [n for n in os.listdir(disk) if "staging" in n], state.story()


def test_a_log_dir_in_use_is_not_written_to(damaged):
    before = files(damaged)
    with lock_log_dir(OsFileSystem(), damaged.parent):
        for target in ({"apply": True}, {"out": damaged.with_name("copy-0")}):
            with pytest.raises(LogLockedError):
                recover(damaged, mode="truncate", **target)
        assert recover(damaged, mode="truncate").target is None
    assert files(damaged) == before


def test_a_partition_that_is_open_is_not_recovered_in_place_and_its_neighbour_is(damaged):
    with seglog.open(damaged.with_name("orders-1")) as log:
        log.append(b"x")
        with pytest.raises(LogLockedError):
            recover(log.path, mode="truncate", apply=True)
        assert recover(damaged, mode="quarantine", apply=True).lost


def test_a_partition_that_starts_behind_its_damage_is_looked_at_from_its_first_segment(damaged):
    (damaged.parent / "log-start-offset-checkpoint").write_text("0\n1\norders 0 76\n")
    done = recover(damaged, mode="quarantine")
    assert (done.log_start_offset, done.log_end_offset) == (76, 82)


@pytest.mark.parametrize("arguments", [
    {"mode": "fail"}, {"mode": "truncate", "backup": "kept"}, {"mode": "truncate", "apply": True, "out": "x-0"},
])
def test_what_cannot_be_meant_is_refused(damaged, arguments):
    with pytest.raises(InvalidArgumentError):
        recover(damaged, **arguments)
