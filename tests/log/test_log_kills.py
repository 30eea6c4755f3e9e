"""Writers that are killed while they change a log, and a second process, this one, that heard what they were told."""
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seglog
from seglog.errors import LogLockedError
from support.killed_writer import CONFIG, value_of
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
KILLS = 200 if os.environ.get("SEGLOG_TORTURE") else 10
LIVES = 5       # writers of one log, one after the other
TESTS = Path(__file__).parents[1]


class Witness:
    """What the writers of one log said, all of them together."""

    def __init__(self):
        self.given = set()
        self.taken = {}         # offset -> number
        self.start = 0
        self.cut = None         # of a call that may be under way
        self.start_after = None

    def hear(self, line):
        word, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        match word:
            case "open":
                pass
            case "give":
                self.given.add(numbers[0])
            case "took":
                self.taken[numbers[1]] = numbers[0]
            case "cut":
                self.cut = numbers[0]
            case "ends":
                self.taken = {offset: number for offset, number in self.taken.items() if offset < numbers[0]}
                self.cut = None
            case "delete":
                self.start_after = numbers[0]
            case "starts":
                self.start, self.start_after = numbers[0], None

    def check(self, log):
        """Opening has recovered `log`: what was taken is there, and nothing else than what was given."""
        assert log.log_start_offset in (self.start, self.start_after)
        found = {r.offset: r.value for r in log.read()}
        assert list(found) == list(range(log.log_start_offset, log.log_end_offset))
        numbers = {offset: int(value.split(b".")[0]) for offset, value in found.items()}
        assert all(value == value_of(numbers[offset]) for offset, value in found.items())
        assert set(numbers.values()) <= self.given
        assert len(set(numbers.values())) == len(numbers)
        missing = {o: n for o, n in self.taken.items() if o >= log.log_start_offset and numbers.get(o) != n}
        if self.cut is not None:
            # Whole batches from some place on: the one that holds `cut`, and those behind it.
            missing = {o: n for o, n in missing.items() if o < min(self.cut - 2, log.log_end_offset)}
        assert missing == {}
        self.taken, self.start, self.cut, self.start_after = numbers, log.log_start_offset, None, None


def live(path, seed, fsync, threads, witness, rng):
    """Let a writer work for a while, kill it, and hear all that it said."""
    command = [sys.executable, "-m", "support.killed_writer", path, str(seed), fsync, str(threads)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        for _ in range(rng.randint(1, 400)):
            witness.hear(writer.stdout.readline())
        time.sleep(rng.random() * 0.005)
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:
            if line.endswith("\n"):
                witness.hear(line)
    assert writer.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", range(KILLS // LIVES))
def test_a_killed_writer_loses_nothing_that_it_was_told(in_memory, number):
    rng = random.Random(number)
    witness = Witness()
    path = in_memory / "data" / "orders-0"
    for life in range(LIVES):
        fsync = rng.choice(["batch", "batch", "interval", "never"])
        live(path, number * LIVES + life, fsync, rng.choice([1, 1, 4]), witness, rng)
        with seglog.open(path, config=CONFIG) as log:
            assert log.recovery.lost == () or all(lost.size_bytes < 5000 for lost in log.recovery.lost)
            witness.check(log)
            offset = log.append(value_of(-life - 1))
            witness.given.add(-life - 1)
            witness.taken[offset] = -life - 1


def test_a_second_process_is_refused_and_harms_nothing(tmp_path):
    path = tmp_path / "data" / "orders-0"
    # With two threads, it never closes the log in between.
    command = [sys.executable, "-m", "support.killed_writer", path, "1", "batch", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(TESTS)}) as writer:
        assert line_of(writer).startswith(b"open")
        with pytest.raises(LogLockedError):
            seglog.open(path)
        writer.kill()
    seglog.open(path).close()
