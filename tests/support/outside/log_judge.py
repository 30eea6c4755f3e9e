"""Opens logs that a power cut left, and tells what is in them. A process of its own, as a user's next one is.

It reads a JSON object a line from stdin, {"path", "name", "fsync", "backups": paths}, and answers each by the facts.
What it finds and appends it also notes as log_worker does: it runs under the recorder itself, so the power may be cut
again.
"""
import os
import struct

import seglog
from support.outside.judging import answer_all, is_turn
from support.outside.log_worker import CONFIG, number_of, value_of


def judge(task, note, number):
    """Open, look, append, close, look again, open once more. In `make test` a state is either verified and read as a
    Partition, or opened once more."""
    path, fsync = task["path"], task["fsync"]
    trusted = faults_under_a_clean_shutdown_file(os.path.dirname(path))
    with seglog.open(path, config=CONFIG, fsync=fsync) as log:
        facts = {
            "start": log.log_start_offset, "end": log.log_end_offset, "durable_offset": log.durable_offset,
            "records": [(r.offset, number_of(r.value)) for r in log.read()],
            "lost": [str(lost) for lost in log.recovery.lost],
        }
        wrong = facts["wrong"] = trusted
        note("has", facts["start"], facts["end"], [n for _, n in facts["records"]])
        note("durable", log.durable_offset)
        more = []
        for n in (number, number + 1):
            note("give", [n])
            offset = log.append(value_of(n))
            note("took", [n], offset)
            more.append((offset, n))
        if [offset for offset, _ in more] != [facts["end"], facts["end"] + 1]:
            wrong.append(f"appended at {more}, and the end was {facts['end']}")
        note("close")
    note("closed")
    expected = facts["records"] + more
    if is_turn(number, 2, 1):
        with seglog.open_partition(path, config=CONFIG) as partition:
            if [(r.offset, number_of(r.value)) for r in partition.read(facts["start"])] != expected:
                wrong.append("a Partition reads something else than the log")
        report = seglog.verify(path, config=CONFIG)
        wrong += [f"verify: {finding}" for finding in report.findings]
    wrong += index_faults(path)
    if is_turn(number, 2, 0):
        with seglog.open(path, config=CONFIG, fsync=fsync) as log:
            if [(r.offset, number_of(r.value)) for r in log.read()] != expected:
                wrong.append("opened a second time it has other records")
            if log.recovery.lost:
                wrong.append(f"opened a second time it lost {log.recovery.lost}")
    facts["backups"] = {}
    for name in task["backups"]:
        if os.path.exists(name):
            with seglog.open(name, config=CONFIG, create=False) as log:
                found = log.log_start_offset, [(r.offset, number_of(r.value)) for r in log.read()]
            facts["backups"][os.path.basename(name)] = found
    return facts


def faults_under_a_clean_shutdown_file(log_dir):
    """Where Kafka's clean-shutdown file stands a broker looks at nothing: each partition is whole, and no line lies
    behind its end."""
    if not os.path.exists(os.path.join(log_dir, ".kafka_cleanshutdown")):
        return []
    faults = []
    lines = {}
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        if os.path.exists(os.path.join(log_dir, name)):
            with open(os.path.join(log_dir, name)) as file:
                for topic, number, offset in map(str.split, file.read().splitlines()[2:]):
                    lines.setdefault(f"{topic}-{number}", []).append((name, int(offset)))
    for partition in sorted(os.listdir(log_dir)):
        path = os.path.join(log_dir, partition)
        if not os.path.isdir(path) or not partition.rpartition("-")[2].isdigit():
            continue        # a file, or marked as deleted
        end = 0
        if any(name.endswith(".log") for name in os.listdir(path)):     # else a new log to a broker
            # What a delete marked and could not remove is removed by the next opening, a broker's too: durability.md,
            # "Deleting old segments".
            faults += [
                f"clean, but {finding}" for finding in seglog.verify(path, config=CONFIG).findings
                if finding.code != "leftover" or not str(finding.file).endswith(".deleted")
            ]
            with seglog.open_partition(path, config=CONFIG) as opened:
                end = opened.log_end_offset
        said = lines.get(partition, ())
        faults += [f"{partition} ends at {end}, and {name} says {at}" for name, at in said if at > end]
    return faults


def index_faults(path):
    """Indexes that are not what the log makes, by a twin of the rule: docs/formats/offset_index.md, time_index.md.

    An entry before each batch that comes more than index.interval.bytes behind the last one's; the time index has
    one of the latest time so far, if that is later than the last one's, and one more at the end of a closed segment.
    """
    faults = []
    for name in sorted(name for name in os.listdir(path) if name.endswith(".log")):
        base = int(name.removesuffix(".log"))
        offsets, times, minutes = [], [], []
        since, latest, holder = 0, -1, 0

        def note_time(times=times):
            if latest > (times[-1][0] if times else -1):  # noqa: B023
                times.append((latest, holder - base))  # noqa: B023

        for position, last, timestamp, size in plain_batches(os.path.join(path, name)):
            if timestamp > latest:
                latest, holder = timestamp, last
            if since > CONFIG["index.interval.bytes"]:
                offsets.append((last - base, position))
                note_time()
                if latest // 60_000 > (minutes[-1][0] // 60_000 if minutes else -1):
                    minutes.append((latest, holder - base))
                since = 0
            since += size
        note_time()
        files = (".index", ">II", offsets), (".timeindex", ">qI", times), (".time.index", ">qI", minutes)
        for suffix, form, right in files:
            found = _entries(os.path.join(path, name.removesuffix(".log") + suffix), form)
            if found != right:
                faults.append(f"{name.removesuffix('.log') + suffix} holds {found}, and the log makes {right}")
    return faults


def plain_batches(path):
    """(position, last offset, largest timestamp, bytes) of each v2 batch: docs/formats/record_batch.md."""
    with open(path, "rb") as file:
        raw = file.read()
    at = 0
    while at < len(raw):
        base, size = struct.unpack_from(">qi", raw, at)
        last_delta, _, timestamp = struct.unpack_from(">iqq", raw, at + 23)
        yield at, base + last_delta, timestamp, 12 + size
        at += 12 + size


def _entries(path, form):
    """The entries of an index file; None if it is missing."""
    try:
        with open(path, "rb") as file:
            return list(struct.iter_unpack(form, file.read()))
    except FileNotFoundError:
        return None


def main():
    answer_all(judge)
