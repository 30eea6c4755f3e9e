"""Opens queues that a power cut left, and tells what is in them; see log_judge.py.

reads {"path", "name", "fsync", "now", "keys"} and answers with the facts that queue_witness.py asks for.
"""
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from seglog.queue import journaled_ledger
from seglog.verification.ledger_check import check_managed_ledger
from support.outside.judging import answer_all, is_turn
from support.outside.queue_worker import CHECKPOINT_BYTES, CONFIG, number_of, value_of

LONG_S, END_MS = 10**9, 1_800_000_000_000


def judge(task, note, number):
    """Open, look, take what is due now and at the end of time, put, acknowledge, close, and look again; the last in
    every other state in `make test`."""
    journaled_ledger.CHECKPOINT_BYTES = CHECKPOINT_BYTES
    path, clock, wrong = task["path"], ManualClock(task["now"]), []
    note("now", task["now"])
    options = {"fsync": task["fsync"], "config": CONFIG, "max_attempts": None, "lease": LONG_S}
    with seglog.Queue(path, clock=clock, **options) as jobs:
        dead = [number_of(job) for job in jobs.dead]
        note("opened", dead)
        is_paused, stats = jobs.is_paused, jobs.stats()
        note("pause", False)
        jobs.resume()
        note("paused", False)
        for key, id_ in task["keys"].items():
            if (found := jobs.put(b"-1.", key=key, unique_for=LONG_S)) != id_:
                wrong.append(f"{key} has the job {found}, not {id_}")
        note("get")
        now = taken(jobs)
        note("got", *((number_of(job), job.attempt) for job in now))
        clock.set(END_MS)
        note("get")
        later = taken(jobs)
        note("got later", *((number_of(job), job.attempt) for job in later))
        left = [(number_of(job), job.attempt) for job in now + later]
        if (stats.backlog, stats.dead) != (len(left), len(dead)):
            wrong.append(f"counted {stats}, and there are {len(left)} and {len(dead)}")
        note("put", [number], 0, [""])
        jobs.put(value_of(number))
        note("took", [number])
        half = (now + later)[::2]
        note("ack", [number_of(job) for job in half])
        jobs.ack(half)
        note("acked", [number_of(job) for job in half])
        note("close")
    note("closed")
    for directory in (Path(path), *Path(path).glob("priority/*")):
        report = check_managed_ledger(directory)
        wrong += [f"ledger verify: {each}" for each in report.findings if each.code != "relocated_stray"]
    if is_turn(number, 2, 0):
        clock = ManualClock(END_MS)
        with seglog.Queue(path, clock=clock, **options) as jobs:
            again = [(number_of(job), job.attempt) for job in taken(jobs)]
            expected = [(one, attempt + 1) for one, attempt in [(number_of(j), j.attempt) for j in (now + later)[1::2]]]
            if sorted(again) != sorted([*expected, (number, 1)]):
                wrong.append(f"opened a second time it has {sorted(again)}, not {sorted(expected)} and {number}")
            if [number_of(job) for job in jobs.dead] != dead:
                wrong.append("opened a second time it has other dead jobs")
    return {
        "now": [number_of(job) for job in now], "left": left, "dead": dead, "paused": is_paused,
        "wrong": wrong,
    }


def taken(jobs):
    found = []
    while more := jobs.get_many(100, timeout=0):
        found += more
    return found


def main():
    answer_all(judge)
