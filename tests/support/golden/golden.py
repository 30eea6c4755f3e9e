"""The golden archives, unpacked: bytes that the real systems wrote, and their own answers."""
import fcntl
import os
import shutil
import tarfile
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"


def unpack(name: str) -> Path:
    """The unpacked golden archive `name`; unpacked once, by one of several test processes, again when it changed."""
    archive = GOLDEN / f"{name}.tar.gz"
    target = GOLDEN / "unpacked" / name
    stamp = GOLDEN / "unpacked" / f"{name}.stamp"
    identity = f"{archive.stat().st_size} {archive.stat().st_mtime_ns}"
    if stamp.exists() and stamp.read_text() == identity:
        return target
    target.parent.mkdir(exist_ok=True)
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != identity:
            shutil.rmtree(target, ignore_errors=True)       # of an archive before this one
            with tarfile.open(archive) as tar:
                tar.extractall(target.parent, filter="data")
            assert target.is_dir(), target
            scratch = stamp.with_name(f"{stamp.name}.{os.getpid()}")
            scratch.write_text(identity)
            scratch.rename(stamp)
    return target


def golden_cases() -> list[Path]:
    """The 129 directories of `cases/`; each holds <name>-0/ and Kafka's answers beside it."""
    return sorted((unpack("kafka") / "cases").iterdir())
