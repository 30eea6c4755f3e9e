"""Errors that an operator meets say what an operator can do: stop a process, free space, run the command again."""
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

import seglog
from seglog.errors import LogLockedError
from support.command import seglog as command
from support.command import seglog_json
from support.golden import unpack

STOP_IT = "stop the broker, and run the same command again"

HOLDS = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/proc/self/comm", "w").write(sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by(name, lock):
    """Another process of this name holds the lock."""
    with subprocess.Popen([sys.executable, "-c", HOLDS, lock, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.stdin.close()


@pytest.fixture
def logs(tmp_path):
    case = "mixed-formats-k282"
    shutil.copytree(unpack("kafka") / "cases" / case / f"{case}-0", tmp_path / "logs/orders-0")
    return tmp_path / "logs"


def last_line(*arguments, status):
    return command(*arguments, status=status).stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [
    ("convert", "orders-0", "--in-place", "--apply", "--backup", "../backups"),
    ("convert", "orders-0", "../new-0"),
    ("erase", "orders-0", "--key", "k", "--apply", "--backup", "../backups"),
    ("recover", "orders-0", "--mode", "truncate", "--apply"),
    ("compact", "orders-0", "--apply"),
    ("index", "rebuild", "--apply", "orders-0"),
    ("mirror", "../copy-0", "orders-1"),
], ids=lambda words: " ".join(words[:2]))
def test_a_broker_that_runs_has_to_be_stopped(logs, monkeypatch, arguments):
    shutil.copytree(logs / "orders-0", logs.parent / "copy-0")
    monkeypatch.chdir(logs)
    with held_by("java", logs / ".lock") as broker:
        result = command(*arguments, status=5)
        assert f"locked by process {broker.pid} (java)" in result.stderr
        assert f"  try: {STOP_IT}; what only reads works beside it" in result.stderr
        assert seglog_json(*arguments, status=5)[-1]["fix"].startswith(STOP_IT)
    with held_by("writer", logs / ".lock"):
        # Red: and what a program may do, attach=True.
        assert last_line(*arguments, status=5) == "  try: stop that process, and run the same command again"


def test_a_program_is_told_to_stop_the_broker_too(logs):
    with held_by("java", logs / ".lock"):
        for call in (seglog.open, lambda path: seglog.plan_conversion(path, logs / "new-0")):
            with pytest.raises(LogLockedError) as e:
                call(logs / "orders-0")
            assert e.value.hint.startswith(STOP_IT)
    with held_by("writer", logs / ".lock"), pytest.raises(LogLockedError) as e:
        seglog.open(logs / "orders-0")
    assert "pass attach=True" in e.value.hint


FILLED = """
import os, subprocess, sys
volume, source, program = sys.argv[1:4]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", volume], check=True)
os.environ["PYTHONPYCACHEPREFIX"] = os.devnull
commands = [["mirror", source, f"{volume}/logs/orders-0"], ["convert", source, f"{volume}/new-0"],
            ["recover", source, "--mode", "truncate", "--out", f"{volume}/copy-0"],
            ["convert", os.path.dirname(source), f"{volume}/new"]]
with open(f"{volume}/junk", "wb", 0) as junk:
    junk.write(bytes(400_000))
for command in commands:
    done = subprocess.run([sys.executable, "-m", "seglog.tools", *command], capture_output=True, text=True)
    print(command[0], done.returncode, ((done.stderr or done.stdout).splitlines() or [""])[-1])
os.unlink(f"{volume}/junk")
done = subprocess.run([sys.executable, "-m", "seglog.tools", *commands[0]], capture_output=True, text=True)
print("again", done.returncode, done.stdout.strip())
"""


@pytest.mark.long
def test_on_a_full_disk_free_space_and_run_the_same_command_again(tmp_path):
    try:
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", tmp_path], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small volume to be had: this system gives no mount namespace ({error})")
    source, volume = tmp_path / "logs/orders-0", tmp_path / "volume"
    volume.mkdir()
    with seglog.open(source, fsync="never", config={"segment.bytes": 100_000}) as log:
        for n in range(80):
            log.append(b"%d" % n * 4000)
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FILLED, volume, source, "seglog"], capture_output=True, text=True,
        timeout=120,
    )
    *full, again = done.stdout.splitlines()
    assert len(full) == 4, done.stderr
    for line in full:
        assert re.search(r"free (space|at least [\d,]+ bytes) on that file system, and run the same command", line)
        assert line.split()[1] in ("3", "7")
    assert again.startswith("again 0 ")
    assert again.endswith(f"next offset of the source {80}, of the target {80}")
