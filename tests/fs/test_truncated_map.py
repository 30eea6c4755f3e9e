"""A file that another program shortens while it is mapped: StorageError, where the process ended with SIGBUS.

Each case of support/hostile/truncated_reads.py runs in a process of its own.
"""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.truncated_reads import CASES

PROGRAM = Path(__file__).parent.parent / "support/hostile/truncated_reads.py"
WORDS = "the file became shorter while it was read"
# Faults and signals that are not ours end the process as ever.
OTHERS = {"other_fault", "other_fault_with_faulthandler", "other_fault_with_faulthandler_between", "killed"}
# They need no bytes that are gone.
UNHARMED = {"verified"}


def run(case, **variables):
    return subprocess.run(
        [sys.executable, PROGRAM, case], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | variables)


@pytest.mark.parametrize("case", sorted(set(CASES) - OTHERS))
@pytest.mark.long
def test_a_shortened_file_is_an_error(case):
    done = run(case)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Fatal Python error" not in done.stderr
    if case in UNHARMED:
        assert done.stdout == ""
        return
    if case == "dumped":        # the command tells it by itself
        assert WORDS in done.stderr
        return
    name, words = json.loads(done.stdout)
    assert (name, WORDS in words) == ("StorageError", True), words


@pytest.mark.parametrize("case", sorted(OTHERS))
def test_any_other_fault_ends_the_process_as_without_a_handler(case):
    done = run(case)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == ("faulthandler" in case)


def test_the_handler_can_be_switched_off():
    assert run("torn_window", SEGLOG_SIGBUS="off").returncode == -signal.SIGBUS
