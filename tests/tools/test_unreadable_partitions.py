"""One partition that cannot be read stops neither `verify` (also --indexes) nor `stats` of a log dir: status 7."""
import os
import re
import shutil

import pytest

from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from support.command import partition_of, seglog, seglog_json

COMMANDS = [("verify",), ("verify", "--indexes"), ("stats",)]


def loop(path):
    path.symlink_to(path)


def dangling_link(path):
    path.symlink_to(path.with_name("unmounted"))


def directory_for_log(path):
    path.mkdir()
    (path / "00000000000000000000.log").mkdir()


def pipe_for_log(path):
    path.mkdir()
    os.mkfifo(path / "00000000000000000000.log")


def loop_for_log(path):
    path.mkdir()
    loop(path / "00000000000000000000.log")


# What root cannot read either.
UNREADABLE = [loop, dangling_link, directory_for_log, pipe_for_log, loop_for_log]


@pytest.fixture
def log_dir(golden_kafka, tmp_path):
    """Of two whole partitions; a third may come in between."""
    for name in ("orders-0", "orders-2"):
        shutil.copytree(partition_of(golden_kafka / "cases/v2-none-ct-k411"), tmp_path / "data" / name)
    return tmp_path / "data"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
def test_the_others_are_read_and_the_status_is_7(log_dir, make, command):
    make(log_dir / "orders-1")
    lines = seglog_json(*command, log_dir, status=7)
    assert {line["partition"] for line in lines if line["type"] in ("partition", "index", "stats")} >= {
        "orders-0", "orders-2"
    }
    unread = [line for line in lines if line["type"] == "error" or line.get("code") == "unreadable"]
    assert [str(log_dir / "orders-1") in line["file"] for line in unread] == [True]
    text = seglog(*command, log_dir, status=7)
    assert "orders-2" in text.stdout
    assert "orders-1" in text.stdout + text.stderr


@pytest.mark.parametrize("name", [
    "00000000000000000000.index", "00000000000000000000.timeindex", "00000000000000000000.txnindex",
    "00000000000000000100.snapshot", "leader-epoch-checkpoint", "partition.metadata",
])
def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_is_checked(log_dir, name):
    file = log_dir / "orders-0" / name
    file.unlink(missing_ok=True)
    file.mkdir()
    lines = seglog_json("verify", log_dir / "orders-0", status=7)
    assert [(line["code"], line["file"]) for line in lines if line["type"] == "finding"] == [("unreadable", str(file))]
    assert lines[-1]["records"] > 0


def test_findings_elsewhere_do_not_hide_that_something_was_not_read(log_dir):
    loop(log_dir / "orders-1")
    (log_dir / "orders-0" / "00000000000000000000.index").unlink()
    assert seglog_json("verify", log_dir, status=7)[-1]["warnings"] == 1
    (log_dir / "orders-1").unlink()
    seglog("verify", log_dir, status=1)


def test_a_single_partition_that_cannot_be_listed_is_an_error_as_before(log_dir):
    loop(log_dir / "orders-1")
    seglog("verify", log_dir / "orders-1", status=3)


def test_a_wrong_setting_is_said_once(log_dir):
    result = seglog("verify", log_dir, "--config", "index.intervall.bytes=1", status=2)
    assert result.stderr.count("no such key") == 1


LISTS = [("ls",), ("seek", "--offset", "5"), ("index", "rebuild"), ("index", "stats"), ("prune",)]


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_link_that_leads_nowhere_is_named_by_commands_that_list(log_dir, command):
    """Such as a disk that is not mounted: passed over in silence, the partition seems to be gone."""
    (log_dir / "orders-1").symlink_to(log_dir.parent / "unmounted/orders-1")
    result = seglog(*command, log_dir, status=7)
    assert re.search(r"error: .*no such file or directory \[storage\]\n  at: .*(data|unmounted)/(orders-1|.lock)\n",
                     result.stderr)
    assert "orders-2" in result.stdout
    error, = (line for line in seglog_json(*command, log_dir, status=7) if line["type"] == "error")
    assert error["file"] in (str(log_dir / "orders-1"), str(log_dir.parent / "unmounted/.lock"))
    seglog(*command, log_dir / "orders-1", status=3)


@pytest.mark.parametrize("command", [("convert",), ("erase", "--key", "k")], ids=" ".join)
def test_a_link_that_leads_nowhere_is_a_partition_that_failed(log_dir, command, tmp_path):
    (log_dir / "orders-1").symlink_to(log_dir.parent / "unmounted/orders-1")
    where = [tmp_path / "new"] if command == ("convert",) else ["--backup", tmp_path / "backups"]
    for arguments in ((*command, log_dir), (*command, log_dir, *where)):
        rows = [line for line in seglog_json(*arguments, status=7) if line["type"] == "partition"]
        assert [row["partition"] for row in rows] == ["orders-0", "orders-1", "orders-2"]
        assert [row["status"] == "failed" for row in rows] == [False, True, False]
        assert "no such file or directory" in rows[1]["what"]


def test_a_lock_still_ends_the_command_for_all(log_dir):
    with lock_log_dir(OsFileSystem(), log_dir):
        assert seglog("index", "rebuild", "--apply", log_dir, status=5).stderr.count("error:") == 1


@pytest.mark.parametrize("command", [("recover", "--mode", "quarantine"), ("prune",)], ids=" ".join)
def test_a_dry_run_does_not_say_that_nothing_is_to_do_where_it_could_not_look(log_dir, command):
    """Red: "nothing to do", and status 7."""
    loop(log_dir / "orders-1")
    settings = ("--config", "cleanup.policy=delete", "--config", "retention.ms=-1")
    last = seglog(*command, log_dir, *settings, status=7).stdout.splitlines()[-1]
    assert last == "dry run: nothing to do, but 1 partition could not be read"
