"""A directory that becomes its target as a whole or not at all, and the places where it may stand meanwhile."""
import dis
import errno
import os
import re
import signal
import subprocess
import sys

import pytest

from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs import staging as staging_module
from seglog.fs.files import OsFileSystem
from seglog.fs.staging import Staging, leftovers, remove_leftovers

FS = OsFileSystem()
# Kafka: LocalLog.DeleteDirPattern, and what parseTopicPartitionName takes a deleted partition's name apart by.
KAFKA_DELETED = re.compile(r"^(\S+)-(\S+)\.(\S+)-delete$")


class Recorded(OsFileSystem):
    """Remembers renames and syncs."""

    def __init__(self):
        self.calls = []

    def rename(self, source, target):
        super().rename(source, target)
        self.calls.append(("rename", os.path.basename(target)))

    def sync_file(self, path):
        super().sync_file(path)
        self.calls.append(("sync", os.path.basename(path)))

    def sync_directory(self, path):
        super().sync_directory(path)
        self.calls.append(("sync", os.path.basename(path)))


class OtherFileSystemAbove(OsFileSystem):
    """The directory above the log dir is on another file system."""

    def rename(self, source, target):
        if os.path.dirname(source) != os.path.dirname(target):
            raise StorageError("cannot rename", file=source, errno=errno.EXDEV)
        super().rename(source, target)


@pytest.fixture
def log_dir(tmp_path):
    path = tmp_path / "kafka"
    path.mkdir()
    return path


@pytest.fixture
def target(log_dir):
    return log_dir / "orders-0"


def tree(path):
    return sorted(os.path.relpath(os.path.join(d, name), path) for d, ds, fs in os.walk(path) for name in ds + fs)


def test_what_was_built_becomes_the_target(target, tmp_path):
    with Staging.of_partition(FS, target) as staging:
        staging.write_file("00000000000000000000.log", b"some", b"bytes")
        with staging.create("00000000000000000000.index") as file:
            file.append(b"entries")
            file.sync()
        assert not target.exists()
        staging.publish()
    assert tree(tmp_path) == [
        "kafka",
        "kafka/orders-0",
        "kafka/orders-0/00000000000000000000.index",
        "kafka/orders-0/00000000000000000000.log",
    ]
    assert (target / "00000000000000000000.log").read_bytes() == b"somebytes"


def test_it_stands_beside_the_log_dir(target, log_dir, tmp_path):
    with Staging.of_partition(FS, target) as staging:
        assert staging.path.parent == tmp_path
        assert re.fullmatch(r"kafka\+orders-0\.7365676c6f67[0-9a-f]{20}\.seglog-staging", staging.path.name)
        assert os.listdir(log_dir) == []


def test_on_another_file_system_it_stands_inside_as_a_deleted_partition(target, log_dir, tmp_path):
    with Staging.of_partition(OtherFileSystemAbove(), target) as staging:
        assert staging.path.parent == log_dir
        assert re.fullmatch(r"orders-0\.[0-9a-f]{32}-delete", staging.path.name)
        assert KAFKA_DELETED.match(staging.path.name).groups()[:2] == ("orders", "0")
        assert os.listdir(tmp_path) == ["kafka"]
        staging.write_file("x", b"x")
        staging.publish()
    assert tree(tmp_path) == ["kafka", "kafka/orders-0", "kafka/orders-0/x"]


@pytest.mark.parametrize("mark", ["meta.properties", "recovery-point-offset-checkpoint"])
def test_beside_is_no_place_where_the_directory_above_is_a_log_dir_itself(target, tmp_path, mark):
    (tmp_path / mark).touch()
    with Staging.of_partition(FS, target) as staging:
        assert staging.path.name.endswith("-delete")


def test_a_topic_name_of_the_greatest_length_fits(log_dir):
    topic = "t" * 249
    with Staging.of_partition(FS, log_dir / f"{topic}-7") as staging:
        assert len(staging.path.name) == 255
        assert re.fullmatch(r"t+-7\.[0-9a-f]{32}-delete", staging.path.name)
        assert leftovers(log_dir) == [staging.path]


def test_a_relative_target_is_in_this_directory(log_dir, monkeypatch):
    monkeypatch.chdir(log_dir)
    with Staging.of_partition(FS, "orders-0") as staging:
        staging.publish()
    assert os.listdir(log_dir) == ["orders-0"]


@pytest.mark.parametrize("name", ["orders", "orders-", "orders-x", "-0", "a+b-0", "orders-0.deadbeef-delete"])
def test_a_name_that_is_no_partition_s_is_refused(log_dir, name):
    with pytest.raises(InvalidArgumentError, match="is not a valid name for a partition directory"):
        Staging.of_partition(FS, log_dir / name)
    assert os.listdir(log_dir) == []


def test_an_existing_target_is_refused_at_once(target):
    target.mkdir()
    with pytest.raises(InvalidArgumentError, match="exists already") as refusal:
        Staging.of_partition(FS, target)
    assert refusal.value.exit_status == 2


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_a_target_that_came_meanwhile_is_left_alone(target, tmp_path, kind):
    with Staging.of_partition(FS, target) as staging:
        staging.write_file("x", b"x")
        if kind == "file":
            target.write_bytes(b"of another")
        elif kind == "directory":
            target.mkdir()
        else:
            target.symlink_to("nowhere")
        with pytest.raises(InvalidArgumentError, match="exists already"):
            staging.publish()
    assert tree(tmp_path) == ["kafka", "kafka/orders-0"]


def test_a_log_dir_that_is_missing_is_named(tmp_path):
    with pytest.raises(StorageError, match="no such file or directory"):
        Staging.of_partition(FS, tmp_path / "gone" / "orders-0").__enter__()


# --- what is synced, and when ------------------------------------------------------------


def test_everything_is_synced_before_the_rename_and_both_directories_after(target):
    fs = Recorded()
    with Staging.of_partition(fs, target) as staging:
        staging.write_file("synced", b"x")
        with staging.create("forgotten") as file:
            file.append(b"x")
        staging.create("open").append(b"x")
        fs.mkdir(staging.path / "quarantine")
        with fs.create(staging.path / "quarantine/foreign") as file:
            file.append(b"x")
        del fs.calls[:]
        staging.publish()
    here = staging.path.name
    assert fs.calls == [
        ("sync", "foreign"), ("sync", "quarantine"), ("sync", "forgotten"), ("sync", here),
        ("rename", "orders-0"), ("sync", "kafka"), ("sync", target.parent.parent.name),
    ]


def test_a_failing_sync_publishes_nothing(target, tmp_path, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, "Input/output error")

    with Staging.of_partition(FS, target) as staging:
        staging.create("x").append(b"x")
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="cannot sync"):
            staging.publish()
    assert tree(tmp_path) == ["kafka"]


# --- nothing stays behind ----------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("fs", [FS, OtherFileSystemAbove()])
def test_an_error_or_interrupt_leaves_nothing_behind(target, tmp_path, error, fs):
    def build():
        with Staging.of_partition(fs, target) as staging:
            staging.create("open").append(b"x")
            fs.mkdir(staging.path / "sub")
            raise error

    with pytest.raises(error):
        build()
    assert tree(tmp_path) == ["kafka"]


def test_leaving_without_publishing_leaves_nothing_behind(target, tmp_path):
    with Staging.of_partition(FS, target) as staging:
        staging.write_file("x", b"x")
    staging.discard()
    assert tree(tmp_path) == ["kafka"]


def test_what_cannot_be_removed_is_named_beside_the_first_error(target):
    class Dead(OsFileSystem):
        def unlink(self, path, within=None):
            raise StorageError("cannot remove: dead", file=path)

    def build(fail):
        with Staging.of_partition(Dead(), target) as staging:
            staging.write_file("x", b"x")
            if fail:
                raise ValueError("first")

    with pytest.raises(ValueError, match="first") as error:
        build(fail=True)
    [left] = leftovers(target.parent)
    assert error.value.__notes__ == [f"{left} is left over: cannot remove: dead"]
    with pytest.raises(StorageError, match="dead"):
        build(fail=False)


def test_links_in_a_staging_are_removed_and_not_followed(target, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    with Staging.of_partition(FS, target) as staging:
        (staging.path / "link").symlink_to(tmp_path / "precious")
    assert tree(tmp_path) == ["kafka", "precious", "precious/file"]


# --- what a killed run leaves ------------------------------------------------------------

KILLED = """
import os, signal, sys
from seglog.fs.files import OsFileSystem
from seglog.fs.staging import Staging
staging = Staging.of_partition(OsFileSystem(), sys.argv[1]).__enter__()
staging.create("00000000000000000000.log").append(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_a_staging_that_is_found_and_removed(target, log_dir, tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(target)]).returncode == -signal.SIGKILL
    assert not target.exists()
    [left] = leftovers(log_dir)
    assert left.parent == tmp_path
    assert remove_leftovers(FS, log_dir) == [left]
    assert tree(tmp_path) == ["kafka"]
    assert remove_leftovers(FS, log_dir) == []


def test_only_what_is_ours_and_of_this_log_dir_is_taken_for_a_leftover(log_dir, tmp_path):
    token = "7365676c6f67" + "0" * 20
    foreign = "0123456789abcdef" * 2
    ours = [log_dir / f"orders-0.{token}-delete", tmp_path / f"kafka+orders-0.{token}.seglog-staging"]
    others = [
        log_dir / f"orders-0.{foreign}-delete",                        # a topic that a broker deleted
        log_dir / f"orders-0.{token}-stray",
        log_dir / "orders-1",
        tmp_path / f"kafka+orders-0.{foreign}.seglog-staging",
        tmp_path / f"kafka+2+orders-0.{token}.seglog-staging",          # of the log dir "kafka+2"
        tmp_path / f"other+orders-0.{token}.seglog-staging",
        tmp_path / f"kafka.{token}.seglog-staging",                     # of a whole log dir
    ]
    for path in ours + others:
        path.mkdir()
    assert remove_leftovers(FS, log_dir) == sorted(ours)
    assert all(path.is_dir() for path in others)


def test_a_link_that_is_named_as_a_leftover_is_removed_and_not_followed(log_dir, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (log_dir / f"orders-0.7365676c6f67{'0' * 20}-delete").symlink_to(tmp_path / "precious")
    remove_leftovers(FS, log_dir)
    assert tree(tmp_path) == ["kafka", "precious", "precious/file"]


def test_nothing_but_a_staging_is_ever_removed(log_dir):
    with pytest.raises(ValueError, match="is not a staging directory"):
        staging_module._remove_tree(FS, log_dir)


def test_leftovers_of_a_missing_log_dir_is_an_error_of_storage(tmp_path):
    with pytest.raises(StorageError, match="no such file"):
        leftovers(tmp_path / "gone")


# --- stagings of other things ------------------------------------------------------------


def test_a_copy_of_anything_is_built_beside_it(tmp_path):
    with Staging.beside(FS, tmp_path / "snapshot") as staging:
        assert staging.path.parent == tmp_path
        staging.write_file("x", b"x")
        staging.publish()
    assert tree(tmp_path) == ["snapshot", "snapshot/x"]
    with pytest.raises(InvalidArgumentError, match="exists already"):
        Staging.beside(FS, tmp_path / "snapshot")


# --- an interrupt at any moment ------------------------------------------------------------


UNINTERRUPTED = (dis.opmap["NOP"], dis.opmap["RETURN_VALUE"])


@pytest.mark.parametrize("kind", ["of a partition", "beside"])
def test_an_interrupt_while_it_is_made_leaves_nothing_wherever_it_comes(log_dir, target, kind):
    """At each bytecode that the interpreter runs from `with` to the first line of the block, but for two kinds at which
    it looks for no signals."""
    entered, count, stop_at = False, 0, None

    def make():
        nonlocal entered
        entered = False
        with Staging.of_partition(FS, target) if kind == "of a partition" else Staging.beside(FS, target):
            entered = True
            raise KeyboardInterrupt

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_code.co_filename.endswith(("/fs/staging.py", "/test_staging.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not entered and frame.f_code.co_code[frame.f_lasti] not in UNINTERRUPTED:
            count += 1
            if count == stop_at:
                raise KeyboardInterrupt
        return trace

    def run(at):
        nonlocal count, stop_at
        count, stop_at = 0, at
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                make()
        finally:
            sys.settrace(before)
        return count

    bytecodes = run(None)
    assert bytecodes > 50
    for at in range(1, bytecodes + 1, 1 if os.environ.get("SEGLOG_TORTURE") else 7):
        run(at)
        assert (leftovers(log_dir), os.listdir(log_dir)) == ([], []), at
