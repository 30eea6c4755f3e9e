"""What makes a run of all tests quick and changes nothing that a test sees: kept bytecode, directories in memory."""
import os
import sys
from pathlib import Path

SHM = Path("/dev/shm")
NEEDED_BYTES = 4 << 30      # the largest test takes under one; two and more run at once
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
    """Have pytest make `tmp_path` in memory: syncs cost nothing there. At full size tests stay on the disk."""
    if os.environ.get("SEGLOG_TORTURE") or not _has_room():
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHM))


def _has_room():
    try:
        room = os.statvfs(SHM)
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available_bytes = int(memory["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):     # not Linux
        return False
    return os.access(SHM, os.W_OK | os.X_OK) and min(room.f_bavail * room.f_frsize, available_bytes) > NEEDED_BYTES
