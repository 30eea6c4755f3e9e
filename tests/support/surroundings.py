"""Makes a run of all tests quicker without changing what a test sees: bytecode is kept, directories are in memory."""
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
NEEDED_BYTES = 4 << 30      # the largest test takes under one; two and more run at once
FEW_BYTES = 512 << 20       # what tests take together that ask for a place in memory, on every core
BYTECODE = Path(__file__).parents[2] / "build/pycache"


def keep_bytecode():
    """Keep bytecode in build/, where the environment wants none beside the sources (PYTHONDONTWRITEBYTECODE).

    Hundreds of tests start Python; without bytecode each of them compiles the engine again, and pytest rewrites the
    assertions of all tests in each worker of each run.
    """
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BYTECODE)
        sys.dont_write_bytecode = False


def work_in_memory():
    """Have `tmp_path` and `tempfile` in memory: syncs cost nothing there. At full size tests stay on the disk."""
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or os.environ.get("SEGLOG_TORTURE") or not _has_room():
        return
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(SHM)
    os.environ.setdefault("TMPDIR", str(SHM))
    tempfile.tempdir = None     # which may be known already
    _unlock_killed_runs()


def place_in_memory():
    """A directory in memory, for files of some MB, whose syncs cost nothing. None if there is no room for them: the
    64 MB that a container gives are none."""
    try:
        room = os.statvfs(SHM)
    except OSError:
        return None
    has_room = room.f_bavail * room.f_frsize > FEW_BYTES and os.access(SHM, os.W_OK | os.X_OK)
    return str(SHM) if has_room else None


def _unlock_killed_runs():
    """Remove the locks of runs that were killed: pytest lets the directory of such a run take memory for three days."""
    for lock in SHM.glob("pytest-of-*/pytest-*/.lock"):
        with suppress(OSError, ValueError):     # another user's, or gone meanwhile
            if not _is_alive(int(lock.read_text())):
                lock.unlink()


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _has_room():
    """Whether the largest tests have room in SHM, and may run there what they build (containers forbid that)."""
    try:
        room = os.statvfs(SHM)
        memory = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        available_bytes = int(memory["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):     # not Linux
        return False
    if room.f_flag & os.ST_NOEXEC or not os.access(SHM, os.W_OK | os.X_OK):
        return False
    return min(room.f_bavail * room.f_frsize, available_bytes) > NEEDED_BYTES
