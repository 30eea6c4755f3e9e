"""Opens topics that a power cut left, and tells what is in them; see log_judge.py.

reads {"path", "name", "fsync", "now", "delayed"} and answers with the facts that topic_witness.py asks for.
"""
from pathlib import Path

from seglog.clock import ManualClock
from seglog.pulsar import DelayedDelivery, ManagedLedger
from seglog.verification.ledger_check import check_managed_ledger
from support.outside.judging import answer_all, is_turn
from support.outside.topic_worker import CONFIG, cancelled_copies, config_of, contents, entry_of

END_OF_TIME_MS = 4_000_000_000_000


def judge(task, note, number):
    """Open, look, deliver what is due now and at the end of time, add, close, look again; the last in every other state
    in `make test`."""
    path, clock, wrong = task["path"], ManualClock(task["now"]), []
    note("now", task["now"])
    # Nothing is trimmed, so that what is there can be compared afterwards.
    config = CONFIG | {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}
    with ManagedLedger(path, config=config, fsync=task["fsync"], clock=clock) as topic:
        stored = list(topic)
        entries, cursors = contents(topic, stored)
        note("has", entries, cursors)
        for name, cursor in topic.cursors.items():
            if name in cursors and cursor.backlog != len(entries) - len(cursors[name]):
                done = len(cursors[name])
                wrong.append(f"{name} has a backlog of {cursor.backlog}, of {len(entries)} entries {done} are done")
        indexes = [entry.index for entry in stored]
        if indexes != sorted(set(indexes)) or (indexes and topic.last_index < indexes[-1]):
            wrong.append(f"message indexes {indexes}, the last one is {topic.last_index}")
        is_delayed = task["delayed"] and "one" in topic.cursors
        settled = cancelled_copies(topic, topic.cursors["one"]) if is_delayed else ()
        delivered = deliver(topic, clock, task["delayed"], number) if is_delayed else None
        more = []
        for n in (number, number + 1):
            note("give", [n], [0])
            position = topic.add_entry(entry_of(n, 0))
            note("took", [n], [position])
            more.append([*position, n])
        if entries and more[0] <= entries[-1]:
            wrong.append(f"added at {more}, and the last entry was {entries[-1]}")
        note("close")
    note("closed")
    # What `seglog ledger verify` prints. Entries that no cursor names are removed by the next opening.
    report = check_managed_ledger(Path(path))
    wrong += [f"ledger verify: {finding}" for finding in report.findings if finding.code != "relocated_stray"]
    if is_turn(number, 2, 0):
        with ManagedLedger(path, config=config, fsync=task["fsync"], clock=clock) as topic:
            again, _ = contents(topic, list(topic))
            expected = [entry for entry in entries if tuple(entry[:2]) not in settled] + more
            if again != expected:
                wrong.append(f"opened a second time it has other entries: {len(again)}, not {len(expected)}")
            if topic.lost is not None:
                wrong.append(f"opened a second time it lost {topic.lost}")
    return {"entries": entries, "cursors": cursors, "delivered": delivered, "wrong": wrong}


def deliver(topic, clock, kind, number):
    """Positions that are given now, and at the end of time."""
    with (
        DelayedDelivery(topic, config_of(kind, number), clock=clock) as delayed,
        delayed.dispatcher(topic.cursors["one"]) as dispatcher,
    ):
        now = read_all(dispatcher)
        clock.set(END_OF_TIME_MS)
        return now, read_all(dispatcher)


def read_all(dispatcher):
    positions = []
    while entries := dispatcher.read(100, timeout=0):
        positions += [entry.position for entry in entries]
    return positions


def main():
    answer_all(judge)
