"""A JVM and we keep each other out of a log dir, as a broker and we must."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seglog import open as seglog_open
from seglog import open_dir
from seglog.errors import LogLockedError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import EXCLUSIVE, SHARED, holder, is_locked, lock_log_dir
from seglog.tools import report
from support.command import partition_of, seglog
from support.serve_process import ServeProcess

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(shutil.which("java") is None, reason="no java on this machine"),
]

FS = OsFileSystem()
HOLD_LOCK = Path(__file__).parent / "locks/HoldLock.java"


class Jvm:
    """A JVM that takes and drops locks on command, as Kafka's FileLock does."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", str(HOLD_LOCK)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def __call__(self, *command):
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def jvm():
    jvm = Jvm()
    yield jvm
    jvm.close()


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE])
def test_a_log_dir_that_a_jvm_holds_is_refused(tmp_path, jvm, mode):
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    try:
        with pytest.raises(LogLockedError, match=f"locked by process {jvm.process.pid} ") as refusal:
            lock_log_dir(FS, tmp_path, mode)
        assert refusal.value.exit_status == 5
        assert holder(tmp_path).pid == jvm.process.pid
    finally:
        assert jvm("release") == "released"
    assert not is_locked(tmp_path)
    lock_log_dir(FS, tmp_path, mode).release()


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE])
def test_a_jvm_s_try_lock_is_refused_while_we_hold(tmp_path, jvm, mode):
    with lock_log_dir(FS, tmp_path, mode):
        assert jvm("tryLock", tmp_path / ".lock") == "refused"
        assert is_locked(tmp_path)                  # looking drops nothing
        assert jvm("tryLock", tmp_path / ".lock") == "refused"
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    assert jvm("release") == "released"


def test_a_jvm_is_refused_until_the_last_of_our_shares_is_gone(tmp_path, jvm):
    one, two = lock_log_dir(FS, tmp_path, SHARED), lock_log_dir(FS, tmp_path, SHARED)
    one.release()
    assert jvm("tryLock", tmp_path / ".lock") == "refused"
    two.release()
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    assert jvm("release") == "released"


def test_a_jvm_that_is_killed_holds_nothing(tmp_path):
    jvm = Jvm()
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    assert is_locked(tmp_path)
    jvm.process.kill()
    jvm.process.wait()
    jvm.close()
    lock_log_dir(FS, tmp_path).release()


def test_a_jvm_is_refused_while_a_log_is_open_and_a_log_while_a_jvm_holds(tmp_path, jvm):
    path = tmp_path / "orders-0"
    with seglog_open(path) as log:
        log.append(b"x")
        assert jvm("tryLock", tmp_path / ".lock") == "refused"
        with open_dir(tmp_path) as logs:
            assert logs.partitions() == [("orders", 0)]
        assert jvm("tryLock", tmp_path / ".lock") == "refused"      # closing one handle of the file dropped nothing
        log.append(b"y")
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    before = contents(tmp_path)
    for refused in (lambda: seglog_open(path), lambda: seglog_open(tmp_path / "new-0"), lambda: open_dir(tmp_path)):
        with pytest.raises(LogLockedError, match=f"locked by process {jvm.process.pid} "):
            refused()
    assert contents(tmp_path) == before
    assert not (tmp_path / "new-0").exists()
    assert jvm("release") == "released"
    with seglog_open(path) as log:
        assert [record.value for record in log.read()] == [b"x", b"y"]


def test_a_server_and_a_jvm_keep_each_other_out(tmp_path, jvm):
    with ServeProcess(tmp_path, "--listen", "127.0.0.1:0"):
        assert jvm("tryLock", tmp_path / ".lock") == "refused"
    assert jvm("tryLock", tmp_path / ".lock") == "locked"
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools", "serve", tmp_path, "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"locked by process {jvm.process.pid} " in done.stderr) == (5, True)
    assert jvm("release") == "released"


# --- the command line ----------------------------------------------------------------------


@pytest.fixture
def log_dirs(golden_kafka, tmp_path):
    """Two log dirs; in the first one a partition."""
    case = golden_kafka / "cases/mixed-formats-k282"
    shutil.copytree(partition_of(case), tmp_path / "one/orders-0")
    (tmp_path / "other").mkdir()
    return tmp_path / "one", tmp_path / "other"


def contents(log_dir):
    return {p: p.read_bytes() for p in log_dir.rglob("*") if p.is_file() and p.name != ".lock"}


def test_every_writing_command_ends_with_status_5_beside_a_jvm_and_changes_nothing(log_dirs, jvm):
    one, other = log_dirs
    source = one / "orders-0"
    away, within = ("convert", source, other / "orders-0"), ("convert", source, one / "new-0")
    for held, commands in ((one, [("index", "rebuild", "--apply", source), away, within]), (other, [away])):
        assert jvm("tryLock", held / ".lock") == "locked"
        before = contents(one) | contents(other)
        try:
            for command in commands:
                assert "[locked]" in seglog(*command, status=5).stderr
        finally:
            assert jvm("release") == "released"
        assert contents(one) | contents(other) == before


def test_every_reading_command_works_beside_a_jvm(log_dirs, jvm):
    one, _ = log_dirs
    assert jvm("tryLock", one / ".lock") == "locked"
    try:
        for command in (["ls"], ["dump"], ["verify"], ["seek", "--offset", 3], ["stats"], ["verify", "--indexes"]):
            seglog(*command, one / "orders-0")
        assert is_locked(one)       # none of them dropped it
    finally:
        assert jvm("release") == "released"


def test_a_jvm_is_refused_while_a_command_writes(log_dirs, jvm):
    one, other = log_dirs
    answers = []

    class Asking(report.Progress):
        def __call__(self, done, total):
            if not self.label.startswith("reading"):
                answers.append(jvm("tryLock", other / ".lock"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report, "Progress", Asking)
        seglog("convert", one / "orders-0", other / "orders-0")
        seglog("index", "rebuild", "--apply", other / "orders-0")
    assert len(answers) > 2
    assert set(answers) == {"refused"}
    assert jvm("tryLock", other / ".lock") == "locked"
    assert jvm("release") == "released"
