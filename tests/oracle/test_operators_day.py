"""The operator's day: a broker dies, its disk is damaged, and examples/broker_disk.py brings back all of it."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from support.kafka_oracle import SCRIPTS, fetch_tools
from support.written_logs import NOW

pytestmark = pytest.mark.oracle

EXAMPLE = Path(__file__).parents[2] / "examples/broker_disk.py"
# A broker that is up for a minute, on a slow machine, would abort the open transaction, by one more marker.
ABORTS_NOTHING = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 86_400_000}
PARTITIONS = "orders-0", "orders-1", "paid-0", "table-0"


def read_all(broker):
    return {
        (name, isolation): broker.consume(name, isolation)
        for name in PARTITIONS for isolation in ("read_uncommitted", "read_committed")
    }


@pytest.fixture
def dead(kafka_oracle, tmp_path):
    """The log dir of a broker that was killed, what a consumer had read from it, and what it said of groups."""
    settings = {"transaction.state.log.num.partitions": 2, **ABORTS_NOTHING}
    with kafka_oracle("4.1.1").serving(tmp_path / "dead", settings) as broker:
        broker.start()
        broker.create("orders", {"cleanup.policy": "delete", "retention.ms": -1}, partitions=2)
        broker.create("paid", {})
        broker.create("table", {"cleanup.policy": "compact"})
        for codec in ("none", "lz4", "zstd", "gzip", "snappy"):
            broker.produce("orders-0", 0, 60, NOW, codec=codec)
            broker.produce("orders-1", 0, 20, NOW, codec=codec)
        broker.produce("table-0", 0, 40, NOW, codec="lz4")
        for end in ("commit", "abort", "commit", "open"):
            broker.produce("paid-0", 0, 15, NOW, transaction=("payer", end))
        broker.of_groups("commit readers orders-0 77")
        broker.of_groups("commit readers orders-1 5")
        said = read_all(broker), broker.groups()
    assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
    return broker.log_dir, *said


def damage(log_dir, partition, fraction):
    """Flip a bit in the payload of the batch at that part of the log."""
    with seglog.open_partition(log_dir / partition) as log:
        batches = list(log.batches())
        position = batches[int(len(batches) * fraction)].position
    path = log_dir / partition / "00000000000000000000.log"
    raw = bytearray(path.read_bytes())
    raw[position + 70] ^= 1
    path.write_bytes(raw)


def test_a_real_broker_serves_from_the_repaired_disk_what_was_read_from_the_one_that_died(
    kafka_oracle, dead, tmp_path
):
    fetch_tools("4.1.1")
    log_dir, before, groups = dead
    # Its disk as the kill left it, and after a bad day; beside it a replica.
    broken = shutil.copytree(log_dir, tmp_path / "broken")
    replica = shutil.copytree(log_dir, tmp_path / "replica")
    for partition in ("orders-0", "paid-0", "table-0"):
        damage(broken, partition, 0.4)
    torn = broken / "orders-1/00000000000000000000.log"
    torn.write_bytes(torn.read_bytes()[:-10])
    (tmp_path / "back").mkdir()
    done = subprocess.run(
        [sys.executable, EXAMPLE, broken, tmp_path / "back/data", "--replica", replica, "--kafka", SCRIPTS / "home"],
        capture_output=True, text=True, timeout=900, check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    # The torn end; and that the log was longer, if the broker had told its checkpoint so before it was killed.
    knows_end = "orders 1 100" in (broken / "replication-offset-checkpoint").read_text().splitlines()
    assert re.fullmatch(rf"\d+ partitions, 3 errors, {1 + knows_end} warnings", printed[0])
    assert len([line for line in printed if "a broker would lose" in line]) == 4
    for where, (offset, _) in groups["readers"]["offsets"].items():
        assert any(line.startswith(f"group readers: {where} at {offset}, lag ") for line in printed)
    assert "left: 0 errors" in printed
    reads = [line for line in printed if "the consumer reads" in line]
    assert len(reads) == len(PARTITIONS)
    assert all(line.endswith("records, as seglog does") for line in reads)
    # Every record and every offset, by the consumer that had read them from the broker that died.
    with kafka_oracle("4.1.1").serving(tmp_path / "back", ABORTS_NOTHING) as broker:
        broker.start()
        assert read_all(broker) == before
        broker.stop()
