"""A partition converted where it lies: the old one or the new one at every moment, and the way back."""
import collections
import errno
import os
import shutil

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.exchange_journal import ExchangeJournal, ExchangeState
from seglog.conversion.in_place import RolledBack, has_traces, is_converted, plan_in_place, roll_back
from seglog.conversion.log_dir import partitions_in
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import PROOF_FILE
from seglog.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    LogLockedError,
    NotALogError,
    StorageError,
    UnfinishedChangeError,
)
from seglog.fs.lock import lock_log_dir
from seglog.reading.partition import Partition
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from support.conversion import UnsyncedFs, converted, copied, log_files, source_of, tree
from support.faultfs import FailingFs, RecordingFs
from support.golden import golden_cases

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 6_000 if FULL else 300

CASES = {case.name: case for case in golden_cases()}
JOURNAL = "orders-0.seglog-exchange"


@pytest.fixture
def disk(tmp_path):
    copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / "disk/logs/orders-0")
    return tmp_path / "disk"


def in_place(disk, fs=None, options=None):
    return plan_in_place(disk / "logs/orders-0", disk / "backups", options or Options(), fs=fs or UnsyncedFs()).run()


def back(disk, fs=None):
    roll_back(disk / "logs/orders-0", disk / "backups", fs=fs or UnsyncedFs())


def settled(disk):
    return is_converted(disk / "logs/orders-0", disk / "backups", fs=UnsyncedFs())


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.is_dir() else None


def kafkas(files):
    """Without the proof, in which paths stand."""
    return {name: data for name, data in files.items() if name != PROOF_FILE}


def test_the_result_takes_the_place_and_what_was_there_is_the_backup(disk, tmp_path):
    before = tree(disk / "logs/orders-0")
    result = in_place(disk)
    assert result.proof.holds
    assert tree(disk / "backups/orders-0") == before
    alone = converted(disk / "backups/orders-0", tmp_path / "alone/orders-0")
    assert log_files(disk / "logs/orders-0") == log_files(alone.target)
    assert {p.name for p in (disk / "backups").iterdir()} == {"orders-0", JOURNAL, ".lock"}
    assert {p.name for p in (disk / "logs").iterdir()} == {"orders-0", ".lock"}
    assert {p.name for p in disk.iterdir()} == {"logs", "backups"}
    assert settled(disk)


def test_back_is_back(disk):
    before = tree(disk / "logs/orders-0")
    in_place(disk)
    back(disk)
    assert tree(disk / "logs/orders-0") == before
    assert [p.name for p in (disk / "backups").iterdir()] == [".lock"]
    assert not settled(disk)
    in_place(disk)      # and there again
    assert settled(disk)


def test_what_was_written_since_is_not_lost_by_going_back(disk):
    in_place(disk)
    log = max((disk / "logs/orders-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + b"more")
    after = tree(disk)
    with pytest.raises(InvalidArgumentError, match="written to after"):
        back(disk)
    assert tree(disk) == after


def test_a_second_backup_does_not_take_the_place_of_the_first(disk):
    in_place(disk)
    after = tree(disk)
    with pytest.raises(InvalidArgumentError, match="a backup of this partition already exists"):
        in_place(disk)
    assert tree(disk) == after


def test_who_removes_the_backup_is_done_with_it(disk):
    in_place(disk)
    for path in (disk / "backups/orders-0").iterdir():
        path.unlink()
    (disk / "backups/orders-0").rmdir()
    in_place(disk, options=Options(codec="gzip"))
    assert settled(disk)


def test_checkpoints_follow_an_end_that_falls(disk):
    copied(source_of(CASES["txn-v2-k391"]), disk / "logs/txn-0")
    checkpoint = disk / "logs/replication-offset-checkpoint"
    checkpoint.write_bytes(format_offset_checkpoint({("orders", 0): 5, ("txn", 0): 82}))
    options = Options(to=1, codec="none", allow_lossy=LOSS_KINDS, aborted="drop")
    plan_in_place(disk / "logs/txn-0", disk / "backups", options, fs=UnsyncedFs()).run()
    with Partition(disk / "logs/txn-0") as partition:
        end = partition.log_end_offset
    assert end < 82
    assert read_offset_checkpoint(checkpoint) == {("orders", 0): 5, ("txn", 0): end}


# --- what cannot be meant --------------------------------------------------------------------------


@pytest.mark.parametrize("backups", ["logs", "logs/backups", "logs/orders-0/backups"])
def test_a_backup_in_the_log_dir_is_refused(disk, backups):
    before = tree(disk)
    with pytest.raises(InvalidArgumentError, match="log dir"):
        plan_in_place(disk / "logs/orders-0", disk / backups, Options())
    assert tree(disk) == before


def test_another_log_dir_is_no_place_for_a_backup(disk):
    (disk / "other").mkdir()
    (disk / "other/meta.properties").touch()
    with pytest.raises(InvalidArgumentError, match="would be in a log dir"):
        plan_in_place(disk / "logs/orders-0", disk / "other", Options())


def test_backups_of_one_log_dir_are_not_those_of_another(disk):
    in_place(disk)
    copied(source_of(CASES["v0-none-ct-k391"]), disk / "second/orders-0")
    with pytest.raises(InvalidArgumentError, match="has the backups of"):
        plan_in_place(disk / "second/orders-0", disk / "backups", Options(), fs=UnsyncedFs())


def test_a_directory_of_another_name_and_a_missing_backup_are_refused(disk):
    with pytest.raises(NotALogError):
        plan_in_place(disk / "logs", disk / "backups", Options())
    with pytest.raises(InvalidArgumentError, match="no conversion in place to roll back"):
        back(disk)


def test_krafts_metadata_log_is_left_alone(disk):
    copied(source_of(CASES["v2-none-ct-k411"]), disk / "logs/__cluster_metadata-0")
    with pytest.raises(InvalidArgumentError, match="KRaft metadata log"):
        plan_in_place(disk / "logs/__cluster_metadata-0", disk / "backups", Options(), fs=UnsyncedFs())
    assert [path.name for path in partitions_in(disk / "logs")] == ["orders-0"]


def test_another_user_s_partition_is_left_to_that_user(disk, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InvalidArgumentError, match="belongs to user"):
        in_place(disk)


def test_a_broker_holds_it(disk):
    with lock_log_dir(UnsyncedFs(), disk / "logs"), pytest.raises(LogLockedError):
        in_place(disk)


def test_a_link_to_a_partition_stays_a_link(disk):
    (disk / "link").symlink_to(disk / "logs/orders-0")
    plan_in_place(disk / "link", disk / "backups", Options(), fs=UnsyncedFs()).run()
    assert (disk / "link").is_symlink()
    assert (disk / "logs/orders-0" / PROOF_FILE).exists()


class NoExchange(UnsyncedFs):
    """A file system without RENAME_EXCHANGE."""

    def exchange(self, one, other):
        raise StorageError("cannot exchange: invalid argument", file=one, errno=errno.EINVAL)


def test_a_file_system_that_cannot_exchange_is_refused_before_the_work(disk):
    before = tree(disk / "logs/orders-0")
    with pytest.raises(StorageError, match="names cannot be exchanged") as e:
        in_place(disk, NoExchange())
    assert "convert into a new directory" in e.value.hint
    assert tree(disk / "logs/orders-0") == before
    assert [p.name for p in (disk / "backups").iterdir()] == [".lock"]
    assert {p.name for p in (disk / "logs").iterdir()} == {"orders-0", ".lock"}


def test_a_journal_that_fits_nothing_stops_it(disk):
    in_place(disk)
    journal = ExchangeJournal.read(disk / "backups" / JOURNAL)
    journal.put(UnsyncedFs(), disk / "backups" / JOURNAL, ExchangeState.EXCHANGING)
    (disk / "logs/orders-0" / PROOF_FILE).unlink()
    after = tree(disk)
    with pytest.raises(UnfinishedChangeError):
        settled(disk)
    assert tree(disk) == after
    (disk / "backups" / JOURNAL).write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError):
        settled(disk)


# --- crashes ---------------------------------------------------------------------------------------


def check_settled(disk, old, new):
    """Puts in order what a crash left, and looks; whether the conversion stands."""
    if settled(disk):
        assert kafkas(contents(disk / "logs/orders-0")) == new
        assert contents(disk / "backups/orders-0") == old
        assert {p.name for p in (disk / "backups").iterdir()} == {"orders-0", JOURNAL, ".lock"}
        return True
    assert contents(disk / "logs/orders-0") == old
    return False


def crash(recording, old, new, *, seed):
    """Whatever a crash left: the old partition or the new one; then what a next run makes of it. How often which."""
    seen = {True: 0, False: 0}
    for state in recording.crash_states(limit=STATES, seed=seed):
        found = {n.rpartition("/")[2]: data for n, data in state.files.items() if n.startswith("logs/orders-0/")}
        assert found == old or kafkas(found) == new, state.story()
        for directory in state.directories:
            parent, _, name = directory.rpartition("/")
            # A probe that a broker removes, and nothing else.
            assert parent != "logs" or name == "orders-0" or name.endswith("-delete"), state.story()
        with state.materialise() as disk:
            stands = check_settled(disk, old, new)
            seen[stands] += 1
            if not stands:
                in_place(disk)      # nothing is in the way of a next one, and nothing is left of this one
                assert check_settled(disk, old, new)
            assert {p.name for p in (disk / "backups").iterdir()} == {"orders-0", JOURNAL, ".lock"}, state.story()
            assert stands or not state.marks, state.story()
    return seen


def test_after_a_crash_on_the_way_there_the_next_run_completes_or_undoes(disk):
    old = contents(disk / "logs/orders-0")
    recording = RecordingFs(disk, UnsyncedFs())
    in_place(disk, recording)
    recording.mark("returned")
    seen = crash(recording, old, kafkas(contents(disk / "logs/orders-0")), seed=1)
    assert min(seen.values()) > 2


def test_after_a_crash_on_the_way_back_the_next_run_completes_or_undoes(disk):
    old = contents(disk / "logs/orders-0")
    in_place(disk)
    new = kafkas(contents(disk / "logs/orders-0"))
    recording = RecordingFs(disk, UnsyncedFs())
    back(disk, recording)
    seen = crash(recording, old, new, seed=2)
    assert min(seen.values()) > 2


def rolled_back(disk, old, story):
    """Rolls back what a crash left; afterwards the old partition is there, and nothing else. What it says."""
    outcome = roll_back(disk / "logs/orders-0", disk / "backups", fs=UnsyncedFs())
    assert contents(disk / "logs/orders-0") == old, story
    assert [path.name for path in (disk / "backups").iterdir()] == [".lock"], story
    assert {path.name for path in (disk / "logs").iterdir()} <= {"orders-0", ".lock"}, story
    return outcome


def test_after_a_crash_on_the_way_there_a_rollback_leaves_nothing_of_it(disk):
    old = contents(disk / "logs/orders-0")
    recording = RecordingFs(disk, UnsyncedFs())
    in_place(disk, recording)
    seen = collections.Counter()
    for state in recording.crash_states(limit=STATES, seed=5):
        with state.materialise() as other:
            if has_traces(other / "logs/orders-0", other / "backups"):
                seen[rolled_back(other, old, state.story())] += 1
    assert seen[RolledBack.NOTHING_CONVERTED] > 50
    assert seen[RolledBack.RESTORED] > 2


def test_a_rollback_that_crashed_is_completed_by_the_same_call(disk):
    old = contents(disk / "logs/orders-0")
    in_place(disk)
    recording = RecordingFs(disk, UnsyncedFs())
    back(disk, recording)
    count = 0
    for state in recording.crash_states(limit=STATES, seed=6):
        with state.materialise() as other:
            if has_traces(other / "logs/orders-0", other / "backups"):
                assert rolled_back(other, old, state.story()) is RolledBack.RESTORED, state.story()
                count += 1
    assert count > 20


def test_without_its_backup_a_conversion_cannot_be_rolled_back(disk):
    in_place(disk)
    after = contents(disk / "logs/orders-0")
    shutil.rmtree(disk / "backups/orders-0")
    with pytest.raises(InvalidArgumentError, match="the backup of this partition was removed"):
        back(disk)
    assert contents(disk / "logs/orders-0") == after


def test_a_crash_while_putting_in_order_is_one_more_crash(disk):
    old = contents(disk / "logs/orders-0")
    recording = RecordingFs(disk, UnsyncedFs())
    in_place(disk, recording)
    new = kafkas(contents(disk / "logs/orders-0"))
    count = 0
    states = [s for s in recording.crash_states(limit=STATES, seed=3) if f"backups/{JOURNAL}" in s.files]
    for state in states[:: max(1, len(states) // 12)]:
        with state.materialise() as other:
            again = RecordingFs(other, UnsyncedFs())
            is_converted(other / "logs/orders-0", other / "backups", fs=again)
            for inner in again.crash_states(limit=STATES // 10, seed=4):
                with inner.materialise() as third:
                    check_settled(third, old, new)
                    count += 1
    assert count > 20


@pytest.mark.parametrize("once", [True, False], ids=["one error", "a disk that stays broken"])
def test_an_error_at_any_change_leaves_the_old_or_the_new(tmp_path, once):
    source = copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / "source/orders-0")
    old = contents(source)
    count = FailingFs(UnsyncedFs())
    copied(source, tmp_path / "whole/logs/orders-0")
    in_place(tmp_path / "whole", count)
    new = kafkas(contents(tmp_path / "whole/logs/orders-0"))
    for k in range(len(count.calls)):
        disk = tmp_path / str(k)
        copied(source, disk / "logs/orders-0")
        fs = FailingFs(UnsyncedFs(), fail_at=k, error=errno.EIO, once=once, short=True)
        try:
            in_place(disk, fs)
        except StorageError:
            stands = check_settled(disk, old, new)
            if not stands and once and (disk / "backups").exists():
                assert {p.name for p in (disk / "backups").iterdir()} <= {".lock"}, fs.calls[k]
            if not stands:
                in_place(disk)
                assert check_settled(disk, old, new), fs.calls[k]
        else:
            assert check_settled(disk, old, new), fs.calls[k]
