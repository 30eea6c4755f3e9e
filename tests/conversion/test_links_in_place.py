"""Doors that change a partition directory that is a link: all of them lock what a broker and a writer lock."""
import subprocess
import sys
from contextlib import contextmanager

import pytest

import seglog
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from support.command import seglog as command
from support.conversion import copied, source_of, tree
from support.golden import golden_cases
from support.waiting import line_of

CASES = {case.name: case for case in golden_cases()}

NEIGHBOUR = """
import sys, seglog
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
for who in iter(sys.stdin.readline, ""):
    path = sys.stdin.readline().rstrip()
    if who == "writer\\n":
        with seglog.open(path) as log:
            print(log.append(b"acknowledged"), flush=True)
            sys.stdin.readline()
    else:
        with lock_log_dir(OsFileSystem(), path):
            print("held", flush=True)
            sys.stdin.readline()
    print("left", flush=True)
"""


class Neighbour:
    """Another process, which works on one path after the other."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _tell(self, text):
        self._process.stdin.write(text)
        self._process.stdin.flush()
        answer = line_of(self._process)
        assert answer
        return answer

    @contextmanager
    def at(self, path, who):
        """It is a "writer" of the partition, or a "broker" of the log dir, until the block ends; gives what it said."""
        yield self._tell(f"{who}\n{path}\n")
        assert self._tell("leave\n") == "left\n"

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def neighbour():
    neighbour = Neighbour()
    yield neighbour
    neighbour.end()


@pytest.fixture
def linked(tmp_path):
    """(the link in a log dir, the directory of an old format elsewhere)"""
    real = copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / "big/orders-0")
    (tmp_path / "kafka").mkdir()
    link = tmp_path / "kafka/orders-0"
    link.symlink_to(real)
    return link, real


def doors(path, work):
    """Each command that changes the partition at `path`."""
    return {
        "convert in place": ("convert", path, "--in-place", "--apply", "--backup", work / "backup"),
        "index rebuild": ("index", "rebuild", "--apply", path),
        "recover": ("recover", path, "--mode", "truncate", "--apply"),
    }


@pytest.mark.parametrize("door", ["convert in place", "index rebuild", "recover"])
# A directory does not tell who links to it: from there the log dir of a link is not found, only a writer's own lock.
@pytest.mark.parametrize(("given", "held"), [("link", "link"), ("link", "directory"), ("directory", "directory")])
def test_no_door_opens_beside_a_broker_by_whatever_name(neighbour, linked, tmp_path, door, given, held):
    link, real = linked
    path = {"link": link, "directory": real}
    before = tree(real)
    with neighbour.at(path[held].parent, "broker"):
        result = command(*doors(path[given], tmp_path)[door], status=5)
    assert "[locked]" in result.stderr
    assert {name: data for name, data in tree(real).items() if ".lock" not in str(name)} == before


@pytest.mark.parametrize("door", ["convert in place", "index rebuild", "recover"])
@pytest.mark.parametrize("given", ["link", "directory"])
@pytest.mark.parametrize("opened", ["link", "directory"])
def test_no_door_opens_beside_a_writer_and_what_it_acknowledged_stays(neighbour, linked, tmp_path, door, given, opened):
    link, real = linked
    path = {"link": link, "directory": real}
    with neighbour.at(path[opened], "writer") as said:
        result = command(*doors(path[given], tmp_path)[door], status=5)
        assert "[locked]" in result.stderr
    offset = int(said)
    with seglog.open_partition(link) as partition:
        assert partition[offset].value == b"acknowledged"


def test_a_conversion_by_a_link_goes_there_and_back(linked, tmp_path):
    link, real = linked
    before = tree(real)
    command("convert", link, "--in-place", "--apply", "--backup", tmp_path / "backup")
    assert link.is_symlink()
    with seglog.open_partition(link) as partition:
        assert {batch.magic for batch in partition.batches()} == {2}
    command("convert", link, "--rollback", "--backup", tmp_path / "backup")
    assert {name: data for name, data in tree(real).items() if ".lock" not in str(name)} == before
    assert link.is_symlink()


def test_a_link_is_no_backup_to_go_back_to(tmp_path):
    partition = copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / "logs/orders-0")
    command("convert", partition, "--in-place", "--apply", "--backup", tmp_path / "backup")
    (tmp_path / "backup/orders-0").rename(tmp_path / "moved")
    (tmp_path / "backup/orders-0").symlink_to(tmp_path / "moved")
    before = tree(partition)
    result = command("convert", partition, "--rollback", "--backup", tmp_path / "backup", status=2)
    assert "symbolic link" in result.stderr
    assert not partition.is_symlink()
    assert tree(partition) == before
    assert tree(tmp_path / "moved")


def test_what_failed_is_told_without_commands_for_the_terminal(tmp_path):
    """A bad segment in a directory whose name clears the screen: the line of `failed:` shows the escape."""
    name = "a\x1b[2Jb-0"
    partition = copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / f"logs/{name}")
    log = min(partition.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    result = command("convert", tmp_path / "logs", status=7)
    assert "failed:" in result.output
    assert "\x1b" not in result.output
    assert "\\x1b[2J" in result.output


def test_the_log_dir_of_a_source_by_a_link_is_looked_at(linked, tmp_path):
    link, _ = linked
    (tmp_path / "new").mkdir()
    with lock_log_dir(OsFileSystem(), link.parent), pytest.raises(LogLockedError):
        seglog.plan_conversion(link, tmp_path / "new/orders-0")
    with pytest.raises(InvalidArgumentError):
        seglog.plan_conversion(link, link)
