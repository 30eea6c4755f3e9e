"""Calls that fail under a log, by the recorder; then it is closed and opened again, and some time the power is cut."""
import os
import random

import pytest

from support.outside.logs import KINDS, MODES, failing_calls, record_log
from support.outside.recording import Fault, Recording

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 25 if FULL else 6
EACH = 2 if FULL else 1         # faults of a kind and call
# One kind a mode in `make test`, and one fault of it.
PAIRS = [(kind, fsync) for kind in KINDS for fsync in MODES] if FULL else list(zip(KINDS, MODES, strict=True))


@pytest.mark.parametrize(("kind", "fsync"), PAIRS)
def test_a_call_that_fails_costs_nothing_that_was_promised(record, power_cuts, holds, kind, fsync):
    chance = random.Random(f"{kind} {fsync}")
    faults = list(failing_calls(record(record_log, kind, 3, fsync), chance, EACH))
    faults = [fault for fault in faults if fault.call != "sync" or fault.span == "on"]
    wanted = []
    for number, fault in enumerate(faults if FULL else chance.sample(faults, 1)):
        wanted.append((record(record_log, kind, 3, fsync, faults=[fault]), STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)


@pytest.mark.parametrize(("kind", "fsync"), PAIRS)
def test_a_sync_that_failed_once_is_not_made_good_by_the_next(record, power_cuts, holds, kind, fsync):
    """Its pages are lost though a later sync of the file succeeds (fsyncgate); the log is closed and opened between."""
    syncs = [event.path for event in record(record_log, kind, 3, fsync).events if event.op == "E"]
    of_logs = [number for number, path in enumerate(syncs, 1) if path.endswith(".log")]
    chance = random.Random(f"{kind} {fsync}")
    wanted = []
    for number in range(12 if FULL else 1):
        nth = chance.choice(of_logs) if number % 2 == 0 else chance.randint(1, len(syncs))
        case = record(record_log, kind, 3, fsync, faults=[Fault("sync", nth)])
        wanted.append((case, STATES * 2 if FULL else STATES, number))
    power_cuts.judge_all(wanted)
    holds(len(wanted) * STATES // 2)


APPENDS_AND_CLOSES = """
import sys, time, seglog
from seglog.errors import LogFailedError
log = seglog.open(sys.argv[1], fsync="interval", config={"flush.ms": 20})
log.append(b"x")
while log.stats().failure is None:
    time.sleep(0.01)
try:
    log.close()
    print("close() was quiet")
except LogFailedError as error:
    print("close() says", error.errno)
seglog.open(sys.argv[1]).close()
"""


def test_a_sync_that_failed_in_the_background_is_told_at_closing(in_memory, recorder):
    recording = Recording.begin(in_memory / "recording", recorder)
    log = recording.disk / "orders-0"
    done = recording.run_script(APPENDS_AND_CLOSES, log, faults=[Fault("sync", 1, pattern="*.log")])
    assert done.stdout == "close() says 5\n"
