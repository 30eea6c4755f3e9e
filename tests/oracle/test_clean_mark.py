"""A broker after us: it trusts a log dir only where every writer of ours closed cleanly."""
import gzip
import json
import subprocess
import sys

import pytest

import seglog
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK
from seglog.state.partition_hold import PartitionHold
from support.conversion import copied, source_of
from support.golden import golden_cases
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

CASES = {case.name: case for case in golden_cases()}
KILLED, CLOSED = "v2-none-ct-k411", "v2-lz4-ct-k411"
TORN = b"half of a batch"

WRITER = """
import sys
from seglog.fs.files import OsFileSystem
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK
from seglog.state.partition_hold import PartitionHold
fs = OsFileSystem()
hold = PartitionHold(fs, sys.argv[1])
hold.before_first_write()
with fs.open_write(sys.argv[2]) as log:
    log.append(sys.argv[3].encode())
print("written", flush=True)
sys.stdin.read()
"""


def records(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_one_writer_killed_and_another_closed_cleanly_kafka_recovers(kafka_oracle, tmp_path):
    log_dir = tmp_path / "data"
    dirs = {name: copied(source_of(CASES[name]), log_dir / f"{name}-0") for name in (KILLED, CLOSED)}
    (log_dir / names.CLEAN_SHUTDOWN).write_bytes(b'{"version":0,"brokerEpoch":1}')
    last = names.log_files(dirs[KILLED])[-1]
    command = [sys.executable, "-c", WRITER, dirs[KILLED], last, TORN.decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout.readline() == "written\n"
        closed = PartitionHold(OsFileSystem(), dirs[CLOSED])
        assert closed.clean
        closed.before_first_write()
        killed.kill()
    closed.close(clean=True)
    assert last.read_bytes().endswith(TORN)
    marked = (log_dir / names.CLEAN_SHUTDOWN).exists()
    assert not marked

    boot = kafka_oracle("4.1.1").boot(dirs.values(), tmp_path / "broker", clean=marked)
    assert boot.summary["consume_errors"] == 0
    for name, directory in dirs.items():
        expected = [(row["offset"], row.get("value")) for row in records(CASES[name])]
        assert [(row["offset"], row.get("value")) for row in boot.records[directory.name]] == expected
    assert not boot.partitions[dirs[KILLED].name]["log_bytes_unchanged"]        # the tail was cut
    assert boot.partitions[dirs[CLOSED].name]["log_bytes_unchanged"]


@pytest.mark.parametrize("version", ["2.8.2", *VERSIONS])
def test_who_loads_a_partition_removes_our_clean_mark_and_leaves_the_dirty_one(kafka_oracle, tmp_path, version):
    partition = tmp_path / "data/orders-0"
    for number in range(2):     # nobody ever said that they are clean
        (tmp_path / f"data/orders-{number}").mkdir(parents=True)
    with seglog.open(partition) as log:
        log.append(b"x")
    assert (partition / CLEAN_MARK).exists()
    (partition / PARTITION_MARK).write_bytes(b"of another period, perhaps")
    kafka_oracle(version).open_and_close(partition, tmp_path / "left")
    assert not (tmp_path / "left" / CLEAN_MARK).exists()
    assert (tmp_path / "left" / PARTITION_MARK).exists()
    assert (tmp_path / "left" / names.file_name(0, names.LOG_SUFFIX)).stat().st_size
