"""Finds a partition whose conversion in place a power cut ended, and goes on as an operator would; see log_judge.py."""
import hashlib
import os

import seglog
from support.command import seglog as command
from support.outside.judging import answer_all


def look(partition):
    """Digest of the records and the formats of the batches of a directory that nobody writes."""
    with seglog.open_partition(partition) as log:
        records, magics = hashlib.blake2b(digest_size=16), set()
        for batch in log.batches():
            magics.add(batch.magic)
        for r in log.read(log.log_start_offset):
            records.update(repr((r.offset, r.timestamp, r.key, r.value, r.headers)).encode())
    return {"records": records.hexdigest(), "magics": sorted(magics)}


def judge(task, note, number):
    """Look; convert (again); back; open for appending."""
    partition, backup = f"{task['path']}/logs/orders-0", f"{task['path']}/backups"
    facts = {"wrong": [], "found": look(partition)}
    for name, flags in (("converted", ("--in-place", "--apply", "--resume")), ("restored", ("--rollback",))):
        done = command("convert", partition, *flags, "--backup", backup, status=None)
        if done.exit_code:
            facts["wrong"].append(f"{flags} ended with {done.exit_code}: {done.output[-300:]}")
        facts[name] = look(partition)
    known = {"orders-0", ".lock", ".seglog.lock"}
    strange = {
        name for name in os.listdir(f"{task['path']}/logs")
        if name not in known and not name.endswith("-delete") and "checkpoint" not in name and "clean" not in name
    }
    if strange:
        facts["wrong"].append(f"a broker would not start beside {strange}")
    with seglog.open(partition) as log:
        end = log.log_end_offset
        if log.append(b"more", key=b"key") != end:
            facts["wrong"].append("an append went elsewhere than to the end")
        log.truncate_to(end)
    facts["appended"] = look(partition)
    return facts


def main():
    answer_all(judge)
