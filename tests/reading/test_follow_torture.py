"""One writer with four appending threads, killed with -9 and started again every few moments, which cuts, rolls and
deletes; reader processes beside it: no torn record, no SIGBUS, no gap, no record twice, and in the end the same log."""
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest

import seglog
from support.followed_writer import value_of
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: ten minutes and eight readers; otherwise a few seconds and four.
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
SECONDS = float(os.environ.get("SEGLOG_TORTURE_SECONDS", 300)) if TORTURE else 2
LIVES_MIN = 3       # on a machine that has other work
READERS = ["follow", "follow", "read"] + (["follow"] * 3 + ["read"] * 2 if TORTURE else [])
TESTS = Path(__file__).parents[1]


def started(module, *args):
    return subprocess.Popen(
        [sys.executable, "-m", f"support.{module}", *map(str, args)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if module == "followed_reader" else None,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )


@pytest.mark.long
@pytest.mark.parametrize("fsync", ["batch", "never"] if TORTURE else ["batch"])
def test_readers_beside_a_writer_that_is_killed(in_memory, fsync):
    path, stop = in_memory / "orders-0", in_memory / "stop"
    seglog.open(path).close()
    readers = [started("followed_reader", path, stop, kind, n) for n, kind in enumerate(READERS)]
    chance, ends = random.Random(18), time.monotonic() + SECONDS
    life = 0
    writer = None
    try:
        while life < LIVES_MIN or time.monotonic() < ends:
            writer = started("followed_writer", path, fsync, life, chance.randrange(2**31))
            assert line_of(writer) == "open\n"
            time.sleep(chance.uniform(0.3, 4 if TORTURE else 1))
            assert writer.poll() is None
            ended = [reader.communicate() for reader in readers if reader.poll() is not None]
            assert not ended, "".join(chain.from_iterable(ended))
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
            life += 1
        with seglog.open(path) as log:      # else nothing tells the readers of a cut just before the last kill
            log.append(value_of(life, 0, 0))
        stop.touch()
        said = [reader.communicate(timeout=600) for reader in readers]
    finally:
        for process in (writer, *readers):
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.communicate()
    assert [reader.returncode for reader in readers] == [0] * len(readers), said
    for out, _ in said:
        print(out, end="")
    assert all(" 0 records" not in out for out, _ in said)
