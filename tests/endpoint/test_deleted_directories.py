"""A deleted partition is renamed before it is removed: a crash in between leaves `<partition>.<32 hex>-delete`, which a
start removes, as LogManager does after its own."""
import shutil
import subprocess
import sys

import pytest

import seglog
from seglog.endpoint import server as server_module
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.staging import Staging
from support.waiting import wait_for

KAFKAS = "0123456789abcdef0123456789abcdef"
# What Kafka's loader keeps: a partition being moved, a stray one; and a name that neither of us gives.
KEPT = (f"orders-0.{KAFKAS}-future", f"orders-1.{KAFKAS}-stray", "orders-2.mine-delete")


def left(directory):
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


@pytest.fixture
def crashed(in_memory, monkeypatch):
    """A log dir in which a crash interrupted the removal of one of our partitions, and a broker left two."""
    with seglog.open_dir(in_memory) as log_dir:
        log_dir.log("orders", 0).append(b"one")
        log_dir.log("gone", 0).append(b"one")
        monkeypatch.setattr(OsFileSystem, "rmdir", refused)
        with pytest.raises(StorageError):
            log_dir.delete("gone", 0)
        monkeypatch.undo()
    assert [(name[:7], name[-7:]) for name in left(in_memory)] == [("gone-0.", "-delete"), ("orders-", "rders-0")]
    for name in (f"old-0.{KAFKAS}-delete", f"{'long' * 50}-11.{KAFKAS}-delete", *KEPT):
        shutil.copytree(in_memory / "orders-0", in_memory / name)
    return in_memory


def refused(fs, path, within=None):
    raise StorageError("permission denied", file=path)


def test_a_start_removes_deleted_partitions_of_ours_and_of_a_broker(crashed):
    with seglog.serve(crashed) as server:
        wait_for(lambda: left(crashed) == sorted(["orders-0", *KEPT]))
        assert server.log("orders").log_end_offset == 1


def test_a_server_removes_none_while_another_process_uses_the_log_dir(crashed):
    """It may be about to remove them, or about to publish a staging: those have the same names."""
    before = left(crashed)
    code = "import seglog, sys; log_dir = seglog.open_dir(sys.argv[1]); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, crashed], **pipes) as other:
        other.stdout.readline()
        with seglog.serve(crashed):
            other.communicate(b"\n")
        assert left(crashed) == before
    with seglog.serve(crashed):
        wait_for(lambda: left(crashed) == sorted(["orders-0", *KEPT]))


def test_what_comes_after_the_start_stays(crashed, monkeypatch):
    """A backup into this log dir may begin meanwhile, and works in a directory with such a name."""
    opened = server_module.ListeningSocket

    def listener(*address):
        staging = Staging.of_partition(OsFileSystem(), crashed / "backup-0")
        staging._places = staging._places[:1]       # the parent directory is another file system, say
        staging.__enter__()
        return opened(*address)

    monkeypatch.setattr(server_module, "ListeningSocket", listener)
    with seglog.serve(crashed):
        wait_for(lambda: len(left(crashed)) == 2 + len(KEPT))
    assert [name.partition(".")[0] for name in left(crashed) if name.endswith("-delete")] == ["backup-0", "orders-2"]


def test_a_server_serves_although_it_cannot_remove_them(crashed, monkeypatch, caplog):
    before = left(crashed)
    monkeypatch.setattr(OsFileSystem, "rmdir", refused)
    with seglog.serve(crashed) as server:
        wait_for(lambda: caplog.text.count("a deleted partition is left: ") == 3)
        assert server.log("orders").log_end_offset == 1
    assert left(crashed) == before
