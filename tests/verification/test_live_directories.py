"""`verify` and `stats` beside a process that appends, rolls and deletes: no finding that is none."""
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from seglog.tools.cli import cli
from support.pulse import Look
from support.waiting import line_of

SUPPORT = Path(__file__).parents[1] / "support/crash"
SETTINGS = ("--config", "index.interval.bytes=256")
LOOK_SECONDS = 20 if os.environ.get("SEGLOG_TORTURE") else 0.2  # and at least once by each command at both places


@contextmanager
def beside(script, directory, *arguments):
    """A process that changes the directory until the block ends; it must have ended well, and done something."""
    directory.parent.mkdir(exist_ok=True)
    directory.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, SUPPORT / script, directory, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    with process:
        try:
            assert line_of(process) == "ready\n"
            yield process
        finally:
            process.stdin.close()
            done = line_of(process)
            process.stdout.read()
    assert process.returncode == 0
    assert int(done) > 20


WRITERS = [
    pytest.param("busy_broker.py", ("lock",), id="broker"),
    pytest.param("busy_broker.py", (), id="broker-whose-lock-is-not-seen"),     # in another container, over NFS
    pytest.param("busy_writer.py", (), id="writer-of-ours"),
]
COMMANDS = [("verify",), ("verify", "--level", "deep"), ("verify", "--indexes"), ("stats",)]


@pytest.mark.parametrize(("script", "arguments"), WRITERS)
def test_nothing_is_found_that_is_none(tmp_path, script, arguments):
    """By each command in turn, of the partition and of its log dir."""
    directory = tmp_path / "data" / "orders-0"
    is_seen = arguments != () or script != "busy_broker.py"
    # Beside a lock a command looks again after 0.1 s; without one it takes a directory for quiet after 0.02 s.
    waits_s = 0.1 if is_seen else 0.015
    with beside(script, directory, *arguments):
        end, looks = time.monotonic() + LOOK_SECONDS, 0
        while time.monotonic() < end or looks < 2 * len(COMMANDS):
            command = COMMANDS[looks // 2 % len(COMMANDS)]
            settings = SETTINGS if script == "busy_broker.py" else (*SETTINGS, "--config", "segment.index.bytes=4096")
            look, before = Look(tmp_path / "pulse", waits_s), sizes(directory)
            target = (directory, directory.parent)[looks % 2]
            result = CliRunner().invoke(cli, [*command, str(target), *settings, "--json"])
            if not is_seen and sizes(directory) == before:
                continue        # a process that got no time changes nothing, and without a lock it leaves no sign
            if result.exit_code == 1 and look.has_waited():
                continue        # it got none in the middle of a step, which all of the look then saw as it was
            assert result.exit_code == 0, result.output
            assert '"type":"finding"' not in result.stdout, result.stdout
            looks += 1


def sizes(directory):
    return {name: size_of(directory / name) for name in os.listdir(directory)}


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
