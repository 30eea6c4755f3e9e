"""Recordings of what workers do (log_worker.py, topic_worker.py and others), as cases for power cuts."""
import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from support.outside.convert_judge import look
from support.outside.convert_witness import ConvertWitness
from support.outside.cuts import Witnesses, case_of
from support.outside.disk import read_tree
from support.outside.log_witness import LogWitness
from support.outside.queue_witness import QueueWitness
from support.outside.recording import Fault, Recording
from support.outside.subscriptions_witness import SubscriptionsWitness
from support.outside.swap_witness import SwapWitness
from support.outside.topic_witness import TopicWitness

KINDS = ("appends", "cuts", "backups")
TOPIC_KINDS = ("entries", "cursors", "delayed")
QUEUE_KINDS = ("jobs", "keys")
SUBSCRIPTION_KINDS = ("subscriptions", "producers")
MODES = ("batch", "interval", "never")
# Of a sync and of a write, where threads share syncs: as long as a quick drive takes, and so that writes land while
# others sync. In the kind "beside", nearly every sync begins during a write.
DELAYS_US, DELAYS_BESIDE_US = (300, 150), (300, 2000)


def record_log(scratch, server, kind, seed, fsync, threads=1, steps=60, faults=(), lives=1):
    """A log that one process after the other changes. All but the last one are killed by the last of `faults`."""
    witnesses = Witnesses(LogWitness, (fsync, _go_on(faults), kind))
    run = _Run(kind, seed, fsync, threads, steps)
    return _record(scratch, server, "log", "data/orders-0", witnesses, faults, lives, run)


def record_swap(scratch, server, seed, steps=60):
    """A log that is compacted. The power is cut while new segments take the place of the old ones."""
    run = _Run("swap", seed, "batch", 1, steps)
    case = _record(scratch, server, "swap", "data/orders-0", Witnesses(SwapWitness), (), 1, run)
    return replace(case, while_there=".swap")


def record_topic(scratch, server, kind, seed, fsync, threads=1, steps=60, faults=(), lives=1):
    """The same of a managed ledger, its cursors, or its delayed messages."""
    rate = seed % 2
    witnesses = Witnesses(TopicWitness, (fsync, rate, _go_on(faults), kind))
    run = _Run(kind, seed, fsync, threads, steps)
    return _record(scratch, server, "topic", "topic", witnesses, faults, lives, run, rate=rate)


def record_queue(scratch, server, kind, seed, fsync, threads=1, steps=100, faults=(), lives=1):
    """The same of a queue of jobs."""
    witnesses = Witnesses(QueueWitness, (fsync, _go_on(faults), kind))
    run = _Run(kind, seed, fsync, threads, steps)
    return _record(scratch, server, "queue", "jobs", witnesses, faults, lives, run)


def record_subscriptions(scratch, server, kind, seed, fsync, threads=1, steps=100, faults=(), lives=1):
    """The same of a topic with subscriptions."""
    witnesses = Witnesses(SubscriptionsWitness, (fsync, _go_on(faults), kind))
    run = _Run(kind, seed, fsync, threads, steps)
    return _record(scratch, server, "subscriptions", "topic", witnesses, faults, lives, run)


class _Run(NamedTuple):
    """What a worker shall do (worker.py)."""

    kind: str
    seed: int
    fsync: str
    threads: int
    steps: int


def _record(scratch, server, of, path, witnesses, faults, lives, run, **more):
    recording = Recording.begin(scratch / "recording", server)
    for life in range(lives):
        is_last = life == lives - 1
        seed = run.seed * 10 + life
        arguments = {"path": str(recording.disk / path)} | run._replace(seed=seed)._asdict() | more
        recording.run(
            f"support.outside.{of}_worker", json.dumps(arguments), faults=faults if not is_last or lives == 1 else (),
            delays_us=DELAYS_BESIDE_US if run.kind == "beside" else DELAYS_US if run.threads > 1 else (0, 0),
            check=is_last,
        )
    name = f"{run.kind}, {run.fsync}, {run.threads} threads, seed {run.seed}" + "".join(f", {each}" for each in faults)
    case = case_of(name, recording, witnesses, f"support.outside.{of}_judge")
    shutil.rmtree(recording.directory)
    return case


def _go_on(faults):
    return any(fault.span == "on" for fault in faults)


def record_conversion(scratch, server, golden, rounds, faults=()):
    """A golden partition that is converted in place and back."""
    start = read_tree(golden / f"{golden.name}-0")
    start = {"logs": None, "logs/orders-0": None} | {f"logs/orders-0/{path}": data for path, data in start.items()}
    recording = Recording.begin(scratch / "recording", server, start)
    before = look(recording.disk / "logs" / "orders-0")
    arguments = json.dumps({"root": str(recording.disk), "rounds": rounds})
    recording.run("support.outside.convert_worker", arguments, faults=faults)
    name = f"conversion of {golden.name}" + "".join(f", {fault}" for fault in faults)
    witnesses = Witnesses(ConvertWitness, (before["records"], before["magics"]))
    case = case_of(name, recording, witnesses, "support.outside.convert_judge")
    shutil.rmtree(recording.directory)
    return case


EVENTS_OF = {
    "write": "W", "sync": "E", "create": "C", "rename": "R", "unlink": "U", "truncate": "T", "mkdir": "M", "link": "L",
}


def failing_calls(case, chance, each=1):
    """Faults that hit `case` when it is recorded again: of each call some, at any moment of it."""
    counts = Counter(event.op for event in case.events)
    for call, op in EVENTS_OF.items():
        for action, errno, span in FAILURES[call]:
            for _ in range(each if counts[op] else 0):
                yield Fault(call, chance.randint(1, counts[op]), action, errno, span)


EIO, ENOSPC = 5, 28
_REFUSED = (("fail", EIO, "once"), ("fail", ENOSPC, "on"))
FAILURES = dict.fromkeys(EVENTS_OF, _REFUSED) | {
    "write": (*_REFUSED, ("half", ENOSPC, "once"), ("short", EIO, "once")),
    "sync": (("fail", EIO, "once"), ("fail", EIO, "on")),
}
