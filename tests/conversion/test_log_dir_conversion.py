"""A log dir converted, partition by partition: what fails is left out, what is done is not done again."""
import os
import shutil
import subprocess
import sys

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir, convert_log_dir_in_place
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import PROOF_FILE
from seglog.errors import InvalidArgumentError, LogLockedError, NotALogError
from seglog.fs.lock import lock_log_dir
from seglog.reading.partition import Partition
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from support.conversion import UnsyncedFs, converted, log_files, source_of, tree
from support.faultfs import FailingFs
from support.golden import golden_cases

CASES = {case.name: case for case in golden_cases()}
PARTITIONS = {
    "orders-0": "v1-none-ct-k391", "orders-1": "mixed-formats-k282", "orders-10": "v0-gzip-ct-k391",
    "payments-0": "txn-v2-k391",
}


@pytest.fixture
def logs(tmp_path):
    """A log dir as a broker left it after a clean stop."""
    logs = tmp_path / "logs"
    for name, case in PARTITIONS.items():
        shutil.copytree(source_of(CASES[case]), logs / name)
    (logs / "old-0.0123456789abcdef0123456789abcdef-delete").mkdir()
    (logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    (logs / ".kafka_cleanshutdown").touch()
    checkpoint(logs, "log-start-offset-checkpoint", {("orders", 0): 7})
    checkpoint(logs, "replication-offset-checkpoint", {("orders", 0): 50, ("payments", 0): 82})
    return logs


def checkpoint(logs, name, offsets):
    (logs / name).write_bytes(format_offset_checkpoint(offsets))


def run(logs, target, options=None, **more):
    rows = list(convert_log_dir(logs, target, options or Options(), fs=UnsyncedFs(), **more))
    return {row.partition: row for row in rows}


def statuses(rows):
    return {name: row.status for name, row in rows.items()}


def damage(partition):
    log = min(partition.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)


def test_each_partition_is_what_it_is_by_itself(logs, tmp_path):
    before = tree(logs)
    rows = run(logs, tmp_path / "made/logs")
    assert list(rows) == list(PARTITIONS)
    assert set(statuses(rows).values()) == {"converted"}
    for name, row in rows.items():
        alone = converted(logs / name, tmp_path / "alone" / name)
        target = tmp_path / "made/logs" / name
        assert log_files(target) == log_files(alone.target)
        assert (row.digest, row.records, row.bytes_out) == (
            alone.proof.sha256, alone.proof.records, sum(p.stat().st_size for p in target.glob("*.log"))
        )
    assert tree(logs) == before


def test_a_broker_finds_its_offsets_and_a_clean_stop(logs, tmp_path):
    target = tmp_path / "made"
    run(logs, target)
    assert (target / "meta.properties").read_bytes() == (logs / "meta.properties").read_bytes()
    assert (target / ".kafka_cleanshutdown").exists()
    assert read_offset_checkpoint(target / "log-start-offset-checkpoint") == {("orders", 0): 7}
    assert read_offset_checkpoint(target / "replication-offset-checkpoint") == {("orders", 0): 50, ("payments", 0): 82}
    ends = {}
    for name in PARTITIONS:
        with Partition(target / name) as partition:
            ends[partition.topic, partition.partition] = partition.log_end_offset
    assert read_offset_checkpoint(target / "recovery-point-offset-checkpoint") == ends
    known = {"meta.properties", ".kafka_cleanshutdown", ".lock"}
    assert {p.name for p in target.iterdir() if not p.name.startswith(".seglog") and "checkpoint" not in p.name} == {
        *known, *PARTITIONS
    }


def test_no_offset_lies_behind_an_end_that_fell(logs, tmp_path):
    target = tmp_path / "made"
    options = Options(to=1, codec="none", allow_lossy=LOSS_KINDS, aborted="drop")
    rows = run(logs, target, options, topics=["payments"])
    assert rows["payments-0"].losses.control_batches
    with Partition(target / "payments-0") as partition:
        end = partition.log_end_offset
    assert end < 82
    assert read_offset_checkpoint(target / "replication-offset-checkpoint") == {("payments", 0): end}


def test_the_checkpoints_of_the_target_are_written_once_for_many_partitions(logs, tmp_path):
    fs = FailingFs(UnsyncedFs())
    list(convert_log_dir(logs, tmp_path / "made", Options(), fs=fs))
    renamed = [call for call in fs.calls if call.startswith("replace") and "offset-checkpoint" in call]
    assert len(renamed) == len(list((tmp_path / "made").glob("*-offset-checkpoint"))) == 3


def test_one_that_fails_is_left_out_and_the_others_go_on(logs, tmp_path):
    damage(logs / "orders-1")
    target = tmp_path / "made"
    rows = run(logs, target)
    assert statuses(rows) == {**dict.fromkeys(PARTITIONS, "converted"), "orders-1": "failed"}
    assert rows["orders-1"].error == "corrupt_record"
    assert "orders-1" in rows["orders-1"].what
    assert not (target / "orders-1").exists()
    assert (target / ".kafka_cleanshutdown").exists()       # what is there is whole


def test_a_loss_without_leave_stops_that_partition_only(logs, tmp_path):
    rows = run(logs, tmp_path / "made", Options(to=1))
    assert statuses(rows) == {
        "orders-0": "converted", "orders-1": "failed", "orders-10": "converted", "payments-0": "failed"
    }


def test_topics_are_chosen_by_globs(logs, tmp_path):
    assert list(run(logs, None, topics=["pay*", "o*"])) == list(PARTITIONS)
    assert list(run(logs, tmp_path / "made", topics=["p?yments"])) == ["payments-0"]
    assert not (tmp_path / "made/orders-0").exists()
    with pytest.raises(InvalidArgumentError, match="no topic matches 'order'"):
        run(logs, tmp_path / "other", topics=["orders", "order"])
    assert not (tmp_path / "other").exists()


def test_a_dry_run_forecasts_and_writes_nothing(logs, tmp_path):
    before = tree(tmp_path)
    rows = run(logs, None)
    assert set(statuses(rows).values()) == {"planned"}
    made = run(logs, tmp_path / "made", Options())
    assert {n: r.bytes_out for n, r in rows.items() if n == "orders-0"} == {"orders-0": made["orders-0"].bytes_out}
    shutil.rmtree(tmp_path / "made")
    assert tree(tmp_path) == before


# --- going on --------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(logs, tmp_path):
    target = tmp_path / "made"
    damage(logs / "orders-1")
    first = run(logs, target)
    before = tree(target)
    shutil.rmtree(logs / "orders-1")
    shutil.copytree(source_of(CASES["mixed-formats-k282"]), logs / "orders-1")
    second = run(logs, target, resume=True)
    assert statuses(second) == {**dict.fromkeys(PARTITIONS, "skipped"), "orders-1": "converted"}
    for name in set(PARTITIONS) - {"orders-1"}:
        assert (second[name].digest, second[name].bytes_out, second[name].records, second[name].segments) == (
            first[name].digest, first[name].bytes_out, first[name].records, first[name].segments
        )
    assert {path: what for path, what in tree(target).items() if path in before and "checkpoint" not in path} == {
        path: what for path, what in before.items() if "checkpoint" not in path
    }
    assert set(statuses(run(logs, target, resume=True)).values()) == {"skipped"}


def test_a_source_that_changed_is_converted_anew_in_the_place_of_the_old_result(logs, tmp_path):
    target = tmp_path / "made"
    run(logs, target)
    shutil.rmtree(logs / "orders-0")
    shutil.copytree(source_of(CASES["v2-zstd-ct-k391"]), logs / "orders-0")
    rows = run(logs, target, resume=True)
    assert statuses(rows) == {**dict.fromkeys(PARTITIONS, "skipped"), "orders-0": "converted"}
    alone = converted(logs / "orders-0", tmp_path / "alone/orders-0")
    assert log_files(target / "orders-0") == log_files(alone.target)
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".seglog-staging", "-delete"))
                and path.parent != logs]


def test_a_touched_file_and_another_option_count_as_changes(logs, tmp_path):
    target = tmp_path / "made"
    run(logs, target)
    log = min((logs / "orders-0").glob("*.log"))
    os.utime(log, ns=(0, log.stat().st_mtime_ns + 1))
    assert [n for n, s in statuses(run(logs, target, resume=True)).items() if s != "skipped"] == ["orders-0"]
    rows = run(logs, target, Options(codec="none"), resume=True)
    assert set(statuses(rows).values()) == {"converted"}


def test_what_no_conversion_made_is_not_replaced(logs, tmp_path):
    target = tmp_path / "made"
    (target / "orders-0").mkdir(parents=True)
    (target / "orders-0/precious").touch()
    for resume in (False, True):
        rows = run(logs, target, resume=resume, topics=["orders"])
        assert rows["orders-0"].error == "invalid_argument"
    assert [p.name for p in (target / "orders-0").iterdir()] == ["precious"]
    assert rows["orders-1"].status == "skipped"


def test_without_resume_a_result_is_not_replaced(logs, tmp_path):
    run(logs, tmp_path / "made")
    rows = run(logs, tmp_path / "made")
    assert {row.error for row in rows.values()} == {"invalid_argument"}
    assert (tmp_path / "made/orders-0" / PROOF_FILE).exists()


def test_in_place_what_would_come_out_as_it_is_is_left_alone(logs, tmp_path):
    shutil.copytree(source_of(CASES["v2-none-ct-k411"]), logs / "new-0")
    before = tree(logs / "new-0")

    def rows(options):
        found = convert_log_dir_in_place(logs, tmp_path / "backups", options, topics=["new", "orders"], fs=UnsyncedFs())
        return {row.partition: row.status for row in found}

    statuses = {"new-0": "skipped", "orders-0": "converted", "orders-1": "converted", "orders-10": "converted"}
    assert rows(Options()) == statuses
    assert tree(logs / "new-0") == before
    assert not (tmp_path / "backups/new-0").exists()
    assert rows(Options(codec="gzip"))["new-0"] == "converted"


# --- kills -----------------------------------------------------------------------------------------

CONVERT = """
import os, signal, sys
from pathlib import Path
from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir, convert_log_dir_in_place
calls = 0
def watch(phase, partition):
    def progress(done, total):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    return progress
disk = Path(sys.argv[1])
convert = convert_log_dir if sys.argv[3] == "made" else convert_log_dir_in_place
print([row.status for row in convert(disk / "logs", disk / sys.argv[3], Options(), resume=True, watch=watch)])
"""


@pytest.mark.parametrize("where", ["made", "backups"], ids=["into a new log dir", "in place"])
def test_kill_9_again_and_again_and_in_the_end_all_is_there(logs, tmp_path, where):
    shutil.rmtree(logs / "payments-0")      # v2: in place there is nothing to do
    partitions = {name: case for name, case in PARTITIONS.items() if name != "payments-0"}
    alone = {name: converted(logs / name, tmp_path / "alone" / name).target for name in partitions}
    kills, status = 0, -9
    while status:
        # Each run comes further than the one before, which was killed.
        done = subprocess.run(
            [sys.executable, "-c", CONVERT, str(tmp_path), str(3 + 5 * kills), where], capture_output=True, check=False
        )
        status = done.returncode
        assert status in (0, -9), done.stderr
        for name, case in partitions.items():
            found = tmp_path / (where if where == "made" else "logs") / name
            assert found.is_dir() or where == "made"
            if (found / PROOF_FILE).exists():
                assert log_files(found) == log_files(alone[name])
            elif where == "backups":
                assert log_files(found) == log_files(source_of(CASES[case]))
        kills += 1
    assert kills > 3
    target = tmp_path / ("made" if where == "made" else "logs")
    assert all((target / name / PROOF_FILE).exists() for name in partitions)
    assert not list(tmp_path.rglob("*.seglog-staging"))


# --- what cannot be meant --------------------------------------------------------------------------


def test_log_dirs_must_be_apart(logs):
    for target in (logs, logs / "inside", logs.parent):
        with pytest.raises(InvalidArgumentError):
            run(logs, target)


def test_a_directory_without_partitions_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogError):
        run(tmp_path / "empty", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_log_dir_that_another_holds_stops_it_all(logs, tmp_path):
    with lock_log_dir(UnsyncedFs(), logs), pytest.raises(LogLockedError):
        run(logs, tmp_path / "made")


@pytest.mark.parametrize("name", [b"caf\xe9-0", b"a\nb-0"])
def test_a_partition_with_a_name_that_no_checkpoint_can_hold_is_left_out(logs, tmp_path, name):
    shutil.copytree(logs / "orders-0", logs / os.fsdecode(name))
    rows = run(logs, tmp_path / "new")
    row = rows.pop(os.fsdecode(name))
    assert (row.status, row.error) == ("failed", "invalid_argument")
    assert "not a valid name for a partition directory" in row.what
    assert set(statuses(rows).values()) == {"converted"}
    read = read_offset_checkpoint(tmp_path / "new/recovery-point-offset-checkpoint")
    assert {f"{topic}-{partition}" for topic, partition in read} == set(PARTITIONS)
