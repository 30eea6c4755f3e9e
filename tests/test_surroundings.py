"""Directories in memory: only where there is room, and what killed runs left there may be removed."""
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from support import surroundings

GB = 1 << 30


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A /dev/shm of 24 GB on a machine with as much memory."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 67108864 kB\nMemAvailable: 25165824 kB\n")
    monkeypatch.setattr(surroundings, "SHM", tmp_path / "shm")
    monkeypatch.setattr(surroundings, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.delenv("SEGLOG_TORTURE", raising=False)
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(surroundings.tempfile, "tempdir", None)
    has(monkeypatch, 24 * GB)
    yield tmp_path / "shm"
    for name in ("PYTEST_DEBUG_TEMPROOT", "TMPDIR"):        # which work_in_memory() set; monkeypatch puts ours back
        os.environ.pop(name, None)


def has(monkeypatch, room_bytes, flags=0):
    room = SimpleNamespace(f_bavail=room_bytes // 4096, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(surroundings.os, "statvfs", lambda path: room)


def chosen():
    surroundings.work_in_memory()
    return os.environ.get("PYTEST_DEBUG_TEMPROOT")


def test_directories_are_in_memory_where_there_is_room(shm):
    assert chosen() == str(shm)
    assert surroundings.tempfile.gettempdir() == str(shm)


def test_a_directory_for_temporary_files_that_somebody_chose_stays(shm, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert chosen() == str(shm)
    assert surroundings.tempfile.gettempdir() == str(tmp_path)


def test_directories_stay_on_the_disk_without_room_in_memory(shm, monkeypatch):
    has(monkeypatch, 64 << 20)
    assert chosen() is None
    has(monkeypatch, 24 * GB, os.ST_NOEXEC)
    assert chosen() is None
    has(monkeypatch, 24 * GB)
    surroundings.MEMINFO.write_text("MemAvailable: 2097152 kB\n")
    assert chosen() is None
    surroundings.MEMINFO.unlink()
    assert chosen() is None


def test_a_place_in_memory_has_room_for_what_is_asked_for(shm, monkeypatch):
    assert surroundings.place_in_memory() == str(shm)
    has(monkeypatch, 64 << 20)      # as in a container
    assert surroundings.place_in_memory() is None

    def gone(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(surroundings.os, "statvfs", gone)
    assert surroundings.place_in_memory() is None


def test_the_place_that_the_user_names_is_kept(shm, monkeypatch):
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", "/elsewhere")
    assert chosen() == "/elsewhere"


def test_what_a_killed_run_left_may_be_removed_by_the_next(shm):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    locks = {}
    for n, text in enumerate((str(process.pid), str(os.getpid()), "", "?")):
        locks[text] = shm / f"pytest-of-me/pytest-{n}/.lock"
        locks[text].parent.mkdir(parents=True)
        locks[text].write_text(text)
    assert chosen() == str(shm)
    assert [text for text, lock in locks.items() if not lock.exists()] == [str(process.pid)]
