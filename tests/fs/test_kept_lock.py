"""Locks of partitions that need no descriptor: what keeps them, what must end them, and where a descriptor stays."""
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from seglog.errors import LogLockedError, StorageError
from seglog.fs import kept_lock
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_partition, writer_of
from support.descriptors import descriptors_of
from support.waiting import line_of

FS = OsFileSystem()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks that a map keeps")

LOCK = """
import os, sys
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_partition
lock = lock_partition(OsFileSystem(), sys.argv[1])
"""
# As seglog did until it had such locks: a record lock of the whole file, its note in it.
OLD_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + "/.seglog.lock", os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
WAIT = "print('ok', flush=True); sys.stdin.read()\n"


def run(code, path, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kwargs
    )


def ends_with(code, path):
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else "ok"


def test_a_lock_is_held_without_a_descriptor(tmp_path):
    with lock_partition(FS, tmp_path) as lock:
        assert descriptors_of(tmp_path) == 0
        lock.check_file()
        answer = ends_with(LOCK, tmp_path)
        assert f"locked by process {os.getpid()} on {socket.gethostname()} " in answer
        with pytest.raises(LogLockedError, match="this process"):
            lock_partition(FS, tmp_path)
    assert ends_with(LOCK, tmp_path) == "ok"


def test_an_older_seglog_is_refused_and_refuses_us(tmp_path):
    with lock_partition(FS, tmp_path):
        assert "BlockingIOError" in ends_with(OLD_LOCK, tmp_path)
    old = run(OLD_LOCK + WAIT, tmp_path)
    assert line_of(old) == "ok\n"
    with pytest.raises(LogLockedError, match=f"locked by process {old.pid}"):
        lock_partition(FS, tmp_path)
    assert writer_of(tmp_path).pid == old.pid
    old.communicate()
    lock_partition(FS, tmp_path).release()


def test_opening_and_closing_the_lock_file_drops_nothing(tmp_path):
    with lock_partition(FS, tmp_path):
        (tmp_path / ".seglog.lock").read_bytes()        # which drops a record lock
        assert "LogLockedError" in ends_with(LOCK, tmp_path)


def test_the_lock_ends_with_its_owner_though_a_child_lives(tmp_path):
    forks = LOCK + "if os.fork() == 0:\n    sys.stdin.read()\n    os._exit(0)\n" + WAIT
    owner = run(forks, tmp_path)
    assert line_of(owner) == "ok\n"
    with pytest.raises(LogLockedError):
        lock_partition(FS, tmp_path)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    lock_partition(FS, tmp_path).release()
    owner.stdin.close()
    owner.stdout.close()


def test_a_child_that_lets_go_ends_nothing_of_its_parent(tmp_path):
    with lock_partition(FS, tmp_path) as lock:
        pid = os.fork()
        if pid == 0:
            lock.release()
            os._exit(0)
        os.waitpid(pid, 0)
        assert "LogLockedError" in ends_with(LOCK, tmp_path)


def test_a_lock_that_a_dead_process_has_for_another_moment_is_waited_for(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    file = tmp_path / ".seglog.lock"
    file.write_text(f"{dead.pid} {socket.gethostname()}\n")
    fd = os.open(file, os.O_RDWR)
    kept_lock.flock(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
    threading.Timer(0.05, os.close, [fd]).start()
    lock_partition(FS, tmp_path).release()


# --- where a descriptor must stay ----------------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch):
    """A file system whose locks go with the descriptor, whatever is mapped: overlayfs."""
    monkeypatch.setattr(kept_lock, "_forgetful", devices := set())
    monkeypatch.setattr(kept_lock, "LockMap", lambda fd: type("NoMap", (), {"close": lambda self: None})())
    return devices


def test_a_file_system_that_drops_the_lock_is_noticed_and_the_descriptor_stays(tmp_path, forgetful):
    for _ in range(2):
        with lock_partition(FS, tmp_path) as lock:
            assert forgetful == {os.stat(tmp_path).st_dev}
            assert descriptors_of(tmp_path) == 1
            assert "LogLockedError" in ends_with(LOCK, tmp_path)
        note = lock.note
    with lock_partition(FS, tmp_path) as again:
        assert again.found_note == note


def test_what_the_last_holder_left_is_known_when_the_lock_is_taken_twice(tmp_path, forgetful):
    (tmp_path / ".seglog.lock").write_bytes(b"1 elsewhere\nabc\n".ljust(128))
    with lock_partition(FS, tmp_path) as lock:
        assert descriptors_of(tmp_path) == 1
        assert lock.found_note.startswith(b"1 elsewhere\nabc\n")


def test_who_comes_between_has_the_lock(tmp_path, forgetful, monkeypatch):
    theirs = []
    real = kept_lock.KeptLock.settle

    def settle(lock):
        kept = real(lock)
        theirs.append(other := run(LOCK + WAIT, tmp_path))
        assert line_of(other) == "ok\n"
        return kept

    monkeypatch.setattr(kept_lock.KeptLock, "settle", settle)
    with pytest.raises(LogLockedError, match=r"locked by process \d+ on"):
        lock_partition(FS, tmp_path)
    theirs[0].communicate()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENODEV, errno.ENOMEM])
def test_a_system_that_cannot_gives_a_record_lock(tmp_path, monkeypatch, number):
    def refuse(fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(kept_lock, "LockMap", refuse)
    with lock_partition(FS, tmp_path):
        assert descriptors_of(tmp_path) == 1
        assert "LogLockedError" in ends_with(LOCK, tmp_path)


def test_a_file_system_without_any_locks_says_so(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(kept_lock, "flock", refuse)
    with pytest.raises(StorageError, match="ENOLCK"):
        lock_partition(FS, tmp_path)
    monkeypatch.undo()
    lock_partition(FS, tmp_path).release()


@pytest.mark.parametrize("pid", [b"9" * 10, b"9" * 100, b"4294967296"])
def test_a_note_with_a_number_that_no_process_has_says_nothing(tmp_path, pid):
    """It was an OverflowError of whoever met the lock."""
    path = tmp_path / ".seglog.lock"
    path.write_bytes((pid + b" " + socket.gethostname().encode() + b"\n").ljust(kept_lock.NOTE_BYTES))
    with open(path, "rb+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = ends_with(LOCK, tmp_path)
        assert "LogLockedError" in answer
        assert pid.decode() not in answer
