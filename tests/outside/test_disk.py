"""The recorder sees what a process does, and the disk model allows what docs/durability.md allows, and nothing else."""
import itertools

import pytest

from support.outside.cuts import PowerCuts
from support.outside.disk import Disk
from support.outside.logs import record_log
from support.outside.recording import Event, Fault, Recording

SEEDS = range(300)


class Story:
    """A disk and what happens to it, in few words. Files are inodes of their own."""

    def __init__(self, **files):
        self.inodes = {"": 1} | {name: 100 + n for n, name in enumerate(files)}
        self.disk = Disk(files, self.inodes)
        self.syncs = itertools.count(1)
        self.new = itertools.count(1000)

    def event(self, op, path="", other="", position=0, data=b"", result=0):
        self.disk.replay(Event(op, 1, result, path, other, self.inodes.get(path, 0), False, position, data))

    def create(self, name, op="C"):
        self.inodes[name] = next(self.new)
        self.event(op, name)

    def write(self, name, position, data):
        self.event("W", name, position=position, data=data)

    def begin_sync(self, name=""):
        number = next(self.syncs)
        self.event("S", name, position=number)
        return lambda result=0: self.event("E", name, position=number, result=result)

    def sync(self, name="", result=0):
        self.begin_sync(name)(result)

    def rename(self, old, new, flags=0):
        self.event("R", old, new, position=flags)
        if flags == 2:
            self.inodes[old], self.inodes[new] = self.inodes[new], self.inodes[old]
        else:
            self.inodes[new] = self.inodes.pop(old)

    def states(self):
        return [self.disk.state(seed) for seed in SEEDS]

    def contents(self, name):
        return {state.get(name, "absent") for state in self.states()}


def test_1_what_a_sync_covered_is_there():
    story = Story(log=b"")
    story.write("log", 0, b"one")
    story.sync("log")
    story.write("log", 3, b"two")
    assert story.contents("log") == {b"one", b"onetwo", b"one\0\0\0"}


def test_1_a_sync_covers_what_was_written_before_it_began():
    story = Story(log=b"")
    story.write("log", 0, b"one")
    end = story.begin_sync("log")
    story.write("log", 3, b"two")
    assert b"" in story.contents("log")
    end()
    assert story.contents("log") == {b"one", b"onetwo", b"one\0\0\0"}


def test_2_a_failed_sync_loses_its_pages_though_the_next_succeeds():
    story = Story(log=b"")
    story.write("log", 0, b"a" * 512)
    story.sync("log", result=5)
    story.write("log", 512, b"b" * 512)
    story.sync("log")
    assert story.contents("log") == {bytes(512) + b"b" * 512, b"a" * 512 + b"b" * 512}


def test_2_bytes_that_are_written_again_after_a_failed_sync_are_safe():
    story = Story(log=b"")
    story.write("log", 0, b"a" * 512)
    story.sync("log", result=5)
    story.write("log", 0, b"a" * 512)
    story.sync("log")
    assert story.contents("log") == {b"a" * 512}


def test_3_a_name_needs_a_sync_of_its_directory():
    story = Story()
    story.create("log")
    story.write("log", 0, b"one")
    story.sync("log")
    assert story.contents("log") == {"absent", b"one"}
    story.sync()
    assert story.contents("log") == {b"one"}


def test_3_names_in_a_directory_whose_own_name_is_lost_are_lost():
    story = Story()
    story.create("dir", "M")
    story.create("dir/log")
    story.write("dir/log", 0, b"one")
    story.sync("dir/log")
    story.sync("dir")
    assert {frozenset(state) for state in story.states()} == {frozenset(), frozenset({"dir", "dir/log"})}


def test_4_a_rename_over_a_file_leaves_one_of_the_two():
    story = Story(log=b"old")
    story.create("tmp")
    story.write("tmp", 0, b"new")
    story.sync("tmp")
    story.rename("tmp", "log")
    found = {(state.get("log"), state.get("tmp")) for state in story.states()}
    assert found == {(b"old", None), (b"old", b"new"), (b"new", None)}
    story.sync()
    assert story.contents("log") == {b"new"}


def test_4_a_rename_before_the_bytes_were_synced_may_leave_none_of_them():
    story = Story(log=b"old")
    story.create("tmp")
    story.write("tmp", 0, b"new")
    story.rename("tmp", "log")
    story.sync()
    assert story.contents("log") == {b"", b"\0\0\0", b"new"}


def test_4_an_exchange_is_one_step():
    story = Story(one=b"1", two=b"2")
    story.rename("one", "two", flags=2)
    found = {(state["one"], state["two"]) for state in story.states()}
    assert found == {(b"1", b"2"), (b"2", b"1")}


def test_4_what_follows_from_a_rename_brings_it_along():
    """The name that is removed for good was made by the rename: so the old one is not there either."""
    story = Story()
    story.create("a", "M")
    story.create("b", "M")
    story.create("a/log")
    for name in ("a", "b", ""):
        story.sync(name)
    story.rename("a/log", "b/log")
    story.event("U", "b/log")
    found = {frozenset(state) for state in story.states()}
    assert found == {frozenset({"a", "b", "a/log"}), frozenset({"a", "b", "b/log"}), frozenset({"a", "b"})}
    story.sync("b")
    assert frozenset({"a", "b"}) in {frozenset(state) for state in story.states()}


def test_5_changes_of_names_come_in_any_order():
    story = Story()
    story.create("one")
    story.create("two")
    assert {frozenset(state) for state in story.states()} == {
        frozenset(), frozenset({"one"}), frozenset({"two"}), frozenset({"one", "two"}),
    }


def test_7_writes_tear_at_sectors():
    story = Story(log=b"x" * 1024)
    story.write("log", 0, b"y" * 1024)
    whole = {b"x" * 1024, b"y" * 1024, b"x" * 512 + b"y" * 512, b"y" * 512 + b"x" * 512}
    assert story.contents("log") == whole


def test_7_a_sector_brings_its_earlier_writes_with_it():
    story = Story(log=b"x" * 100)
    story.write("log", 0, b"1")
    story.write("log", 10, b"2")
    marks = {(content[0:1], content[10:11]) for content in story.contents("log")}
    assert marks == {(b"x", b"x"), (b"1", b"x"), (b"1", b"2")}


PROGRAM = """
import ctypes, os, sys
os.chdir(sys.argv[1])
os.mkdir("dir")
fd = os.open("dir/file", os.O_RDWR | os.O_CREAT)
os.write(fd, b"first")
os.pwrite(fd, b"second", 100)
os.pwritev(fd, [b"a", b"bc"], 50)
os.posix_fallocate(fd, 0, 5000)
os.ftruncate(fd, 4000)
os.fdatasync(fd)
os.close(fd)
with open("dir/other", "wb") as file:
    file.write(b"x" * 100_000)
os.link("dir/other", "linked")
os.rename("dir/other", "moved")
ctypes.CDLL(None).renameat2(-100, b"moved", -100, b"dir/file", 2)
os.mkdir("gone")
os.rmdir("gone")
handle = os.open("dir", os.O_RDONLY)
os.fsync(handle)
os.unlink("linked")
os.unlink("file", dir_fd=handle)
"""


def test_the_recorder_sees_every_change(tmp_path, recorder):
    recording = Recording.begin(tmp_path / "recording", recorder)
    recording.run_script(PROGRAM, recording.disk)
    disk = Disk(recording.start, recording.inodes)
    for event in recording.events:
        disk.replay(event)
    found = {str(p.relative_to(recording.disk)): p for p in recording.disk.rglob("*")}
    tree = disk.in_memory()
    assert tree.keys() == found.keys() == {"dir", "moved"}
    assert tree["moved"] == found["moved"].read_bytes()
    assert len(tree["moved"]) == 4000
    assert "".join(event.op for event in recording.events) == "PMCWWWTTSECWLRRMUSEUU"


@pytest.mark.parametrize(("call", "message"), [("write", "5"), ("sync", "28"), ("create", "5"), ("rename", "5")])
def test_calls_fail_as_they_are_told(tmp_path, recorder, call, message):
    program = """
import os, sys
os.chdir(sys.argv[1])
def turn():
    fd = os.open("file", os.O_WRONLY | os.O_CREAT | os.O_EXCL); os.write(fd, b"data"); os.fsync(fd); os.close(fd)
    os.rename("file", "other"); os.unlink("other")
for n in range(3):
    try:
        turn()
        print("done")
    except OSError as error:
        print(error.errno)
        if os.path.exists("file"): os.unlink("file")
"""
    recording = Recording.begin(tmp_path / "recording", recorder)
    done = recording.run_script(program, recording.disk, faults=[Fault(call, 2, "fail", int(message))])
    assert done.stdout.split() == ["done", message, "done"]
    assert [event.result for event in recording.events if event.result] == [int(message)]


def test_syncs_that_do_nothing_are_found(in_memory, recorder, power_cuts):
    """The harness itself can fail: a log whose syncs are swallowed on the way loses what it acknowledged."""
    case = record_log(in_memory, recorder, "appends", 1, "batch", faults=[Fault("sync", 1, "ignore", 0, "on", "*.log")])
    assert isinstance(power_cuts, PowerCuts)
    power_cuts.judge(case, 30, 1)
    wrong = [what for _, all_wrong in power_cuts.verdicts.violations for what in all_wrong]
    assert any(what.startswith("lost although durable") for what in wrong)


def test_directories_whose_syncs_do_nothing_are_found(in_memory, recorder, power_cuts):
    faults = [Fault("sync", 1, "ignore", 0, "on", "data"), Fault("sync", 1, "ignore", 0, "on", "data/orders-0")]
    case = record_log(in_memory, recorder, "appends", 1, "batch", faults=faults)
    power_cuts.judge(case, 15, 1)
    assert power_cuts.verdicts.violations
