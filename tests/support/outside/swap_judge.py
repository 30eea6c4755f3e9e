"""Reads a log whose compaction a power cut ended, by every door that only reads, and then as the next writer leaves it.

It reads a JSON object a line from stdin, {"path", "name"}, and answers each by the facts: what a writer finds that
opens a copy, and what each door showed, or the name of its error, if segments had yet to be put in place.
"""
import os
import shutil
import time
from pathlib import Path

import seglog
from seglog.errors import UnfinishedChangeError
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.reading.follower import Follower
from support.command import seglog as command
from support.command import seglog_json
from support.outside.judging import answer_all
from support.outside.swap_worker import CONFIG, number_of


def opened(path, _):
    with seglog.open_partition(path) as partition:
        return [record.offset for record in partition.read()]


def followed(path, _):
    with Follower(path) as log:
        return [record.offset for record in log.read()]


def scanned(path, _):
    return seglog.scan(path).to_arrow()["offset"].to_pylist()


def mirrored(path, scratch):
    with seglog.open_partition(path) as source, seglog.open(scratch / "mirrored" / "orders-0", fsync="never") as copy:
        mirror(source, copy)
        return [record.offset for record in copy.read()]


def dumped(path, _):
    return [line["offset"] for line in _lines("dump", path)]


def in_table(path, scratch):
    import pyarrow.parquet as parquet

    seglog.write_table(path, scratch / "table", isolation="read_uncommitted")
    return sorted(parquet.read_table(scratch / "table", columns=["offset"])["offset"].to_pylist())


def counted(path, _):
    return next(line["records"] for line in _lines("stats", path) if "records" in line)


def listed(path, _):
    return [[line["base_offset"], line["next_offset"]] for line in _lines("ls", path) if line["type"] == "segment"]


def _lines(*arguments):
    """Of a command that may end with the status of an UnfinishedChangeError."""
    result = command(*arguments, "--json", status=None)
    if result.exit_code:
        if "seglog recover" in result.output:
            raise UnfinishedChangeError(result.output)
        raise AssertionError(f"status {result.exit_code}: {result.output}")
    return seglog_json(*arguments)


DOORS = {
    "open_partition": opened, "follow": followed, "scan": scanned, "mirror": mirrored, "dump": dumped,
    "write_table": in_table, "stats": counted, "ls": listed,
}


def judge(task, note, number):
    path, scratch = Path(task["path"]), Path(f"{task['path']}.scratch")
    facts = {"doors": {}, "wrong": []}
    if not path.is_dir():
        return facts | {"completed": []}
    copy = shutil.copytree(path.parent, scratch / "copy") / path.name
    with Log(copy, config=CONFIG, fsync="never") as log:        # without a cleaner, which would go on at once
        found = list(log.read())
    facts["completed"] = [[int(bytes(record.key)), number_of(record.value)] for record in found]
    if any(name.endswith(".swap") for name in os.listdir(path)):
        long_ago = time.time() - 60
        os.utime(path, (long_ago, long_ago))        # readers wait for a writer that may be alive
        before = _files(path)
        facts["offsets"] = [record.offset for record in found]
        facts["segments"] = listed(copy, None)
        facts["records"] = counted(copy, None)
        for name, door in DOORS.items():
            try:
                facts["doors"][name] = door(path, scratch)
            except UnfinishedChangeError:
                facts["doors"][name] = "UnfinishedChangeError"
            except Exception as error:
                facts["wrong"].append(f"{name}: {type(error).__name__}: {error}")
        if _files(path) != before:
            facts["wrong"].append("whoever only reads has changed a file")
    shutil.rmtree(scratch)
    return facts


def _files(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def main():
    answer_all(judge)
