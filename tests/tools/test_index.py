"""`seglog index`: what it says, and how it ends."""
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import partition_of, seglog, seglog_json
from support.waiting import line_of

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def partition(golden_kafka, tmp_path):
    return Path(shutil.copytree(partition_of(golden_kafka / "cases/v2-lz4-ct-k391"), tmp_path / "orders-0"))


def test_check_tells_each_file_and_ends_clean(partition):
    *files, summary = seglog_json("verify", "--indexes", partition)
    assert {f["type"] for f in files} == {"index"}
    names = {p.name for p in partition.iterdir() if p.suffix in (".index", ".timeindex", ".txnindex")}
    assert {Path(f["file"]).name for f in files} == names
    assert summary == {
        "type": "summary", "schema": 1, "ok": True, "indexes": len(names), "clean": len(names), "findings": 0,
        "unread": 0, "suggest": [],
    }
    assert seglog("verify", "--indexes", partition).stdout.splitlines()[-1] == (
        f"{len(names)} index files, {len(names)} clean, 0 findings"
    )


def test_check_finds_a_wrong_index_and_is_status_1(partition):
    index = partition / "00000000000000000000.index"
    data = bytearray(index.read_bytes())
    data[7] ^= 1        # the position of the first entry
    index.write_bytes(data)
    lines = seglog_json("verify", "--indexes", partition, status=1)
    wrong, = (line for line in lines if line["type"] == "index" and not line["ok"])
    assert wrong["file"] == str(index)
    finding = next(line for line in lines if line["type"] == "finding")
    assert finding["code"] in wrong["codes"]
    text = seglog("verify", "--indexes", partition, status=1).stdout
    assert f"  try: seglog index rebuild --apply {partition}" in text.splitlines()


def test_check_leaves_damage_of_the_log_to_verify(partition):
    log = partition / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    seglog("verify", "--indexes", partition)
    seglog("verify", partition, status=1)


def test_a_dry_run_of_rebuild_tells_the_same_and_changes_nothing(partition):
    before = {p.name: p.read_bytes() for p in partition.iterdir()}
    interval = "--config", "index.interval.bytes=100"
    planned = seglog_json("index", "rebuild", partition, *interval, status=1)
    assert {p.name: p.read_bytes() for p in partition.iterdir()} == before
    text = seglog("index", "rebuild", partition, *interval, status=1).stdout
    assert text.splitlines()[-1].endswith(f"To do it: seglog index rebuild {partition} {' '.join(interval)} --apply")
    assert seglog_json("index", "rebuild", "--apply", partition, *interval)[:-1] == planned[:-1]
    assert seglog("index", "rebuild", partition, *interval).stdout.splitlines()[-1] == "dry run: nothing to do"
    seglog("index", "stats", partition, "--dry-run", status=1)
    assert not list(partition.glob("*.stats.index"))


def test_rebuild_tells_each_file_and_sums_up(partition):
    *files, summary = seglog_json(
        "index", "rebuild", "--apply", "--keep-replaced", partition, "--config", "index.interval.bytes=100"
    )
    assert {f["type"] for f in files} == {"rebuilt_index"}
    assert len(files) == 2 * len(list(partition.glob("*.log")))
    assert summary == {
        "type": "summary", "schema": 1, "dry_run": False, "apply": None, "rebuilt": sum(f["changed"] for f in files),
        "unchanged": sum(not f["changed"] for f in files), "refused_segments": 0,
    }
    assert summary["rebuilt"] > 0
    for f in files:
        assert (f["backup"] is not None) == f["changed"]
        assert f["backup"] is None or Path(f["backup"]).is_file()
    text = seglog("index", "rebuild", "--apply", partition, "--config", "index.interval.bytes=100").stdout
    assert text.splitlines()[-1] == f"0 files written, {len(files)} already correct"


def test_rebuild_of_one_log_leaves_the_others(partition):
    log = sorted(partition.glob("*.log"))[0]
    *files, _ = seglog_json("index", "rebuild", "--apply", log)
    assert [Path(f["file"]).name for f in files] == [f"{log.stem}.index", f"{log.stem}.timeindex"]


def test_rebuild_past_damage_is_status_7(partition):
    log = sorted(partition.glob("*.log"))[0]
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    lines = seglog_json("index", "rebuild", "--apply", partition, status=7)
    refused, = (line for line in lines if line["type"] == "refused_segment")
    assert (refused["file"], refused["code"]) == (str(log), "corrupt_record")
    assert "skipped the indexes" in seglog("index", "rebuild", "--apply", partition, status=7).stderr


def test_rebuild_beside_a_broker_is_status_5_and_changes_nothing(partition):
    before = {p.name: p.read_bytes() for p in partition.iterdir()}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(partition.parent / ".lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    with holder:
        assert line_of(holder) == "held\n"
        result = seglog("index", "rebuild", "--apply", partition, "--config", "index.interval.bytes=100", status=5)
        assert "[locked]" in result.stderr
        assert len(result.stderr.splitlines()) == 3
        # Reading needs no lock.
        seglog("dump", partition)
        seglog("ls", partition.parent)
        holder.stdin.close()
    assert {p.name: p.read_bytes() for p in partition.iterdir()} == before


def test_rebuild_holds_the_lock_that_a_broker_takes(partition):
    seglog("index", "rebuild", "--apply", partition)
    with open(partition.parent / ".lock", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)       # and gives it back


@pytest.mark.parametrize("setting", ["index.interval.bytes", "=1", "index.intervall.bytes=1", "segment.bytes=x"])
def test_a_setting_that_cannot_be_meant_is_status_2(partition, setting):
    result = seglog("index", "rebuild", "--apply", partition, "--config", setting, status=2)
    assert len(result.stderr.splitlines()) == 3


def test_notes_alone_are_clean_as_for_verify(partition):
    """An emptied index of a directory whose interval is not told: nobody can say that it is wrong."""
    for index in partition.glob("*.index"):
        index.write_bytes(b"")
    lines = seglog_json("verify", "--indexes", partition, "--config", "index.interval.bytes=1MiB", status=0)
    assert [line["code"] for line in lines if line["type"] == "finding"] == []
    *lines, summary = seglog_json("verify", "--indexes", partition, status=0)
    findings = [line for line in lines if line["type"] == "finding"]
    assert {line["severity"] for line in findings} == {"note"}
    assert (summary["ok"], summary["findings"], summary["clean"]) == (True, len(findings), summary["indexes"])
    seglog("verify", partition, status=0)
