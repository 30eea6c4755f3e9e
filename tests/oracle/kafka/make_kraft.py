"""Let real KRaft brokers write log dirs with groups, transactions and settings: make_kraft.py DIRECTORY.

tests/golden/kraft.tar.gz is what it made: a log dir of each version, as a kill left it, what the broker's own clients
said before (expected.json), and what kafka-dump-log says of the internal topics (internal.json).
"""
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.kafka_oracle import INTERNAL, VERSIONS, KafkaOracle

NOW_MS = 1_700_000_000_000
GROUPS = """
    consume-in readers orders 6
    consume-in statics orders 6 instance-1
    commit plain orders-0 7 some-metadata
    commit plain gone-0 2
    commit-in writer simple orders-0 11 commit
    commit-in writer simple orders-1 12 abort
    commit-in hanging open orders-0 14 open
    commit removed orders-0 1
    delete-group removed
""".strip().splitlines()


def main() -> None:
    out = Path(sys.argv[1])
    for version in VERSIONS:
        make(version, out / "kraft" / version)
    with tarfile.open(out / "kraft.tar.gz", "w:gz") as archive:
        archive.add(out / "kraft", "kraft")


def make(version: str, out: Path) -> None:
    # Snapshots of the metadata log after a few records, so that there are some, with a tail behind the last.
    settings = {"metadata.log.max.record.bytes.between.snapshots": 1500, "metadata.log.max.snapshot.interval.ms": 0,
                "transaction.state.log.num.partitions": 2, "log.index.size.max.bytes": 4096}
    if version == "3.9.1":      # a preview there
        settings["group.coordinator.rebalance.protocols"] = "classic,consumer"
    with tempfile.TemporaryDirectory() as work:
        with KafkaOracle(version).serving(Path(work), settings) as broker:
            broker.start()
            broker.create("orders", {"cleanup.policy": "delete", "retention.ms": 3_600_000}, partitions=2)
            broker.create("table", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1})
            broker.create("gone", {})
            broker.configure("broker", "default", {"log.retention.ms": 86_400_000, "message.max.bytes": 3_000_000})
            broker.configure("broker", "1", {"log.segment.bytes": 1_048_576})
            broker.configure("topic", "table", {"segment.bytes": 2_097_152})
            broker.produce("orders-0", 0, 20, NOW_MS)
            broker.produce("orders-1", 0, 4, NOW_MS)
            broker.produce("table-0", 0, 30, NOW_MS, codec="lz4")
            for command in GROUPS:
                broker.of_groups(command.strip())
            broker.of_groups("join modern orders 6")
            broker.delete_topic("gone")
            broker.configure("topic", "orders", {"max.message.bytes": 1_000_000})
            expected = {"groups": broker.groups(), "topics": broker.topics()}
        shutil.copytree(Path(work) / "data", out / "data")
    for index in (out / "data/__cluster_metadata-0").glob("*index"):
        os.truncate(index, 0)       # 10 MB of zeros each: no setting makes them smaller
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (out / "internal.json").write_text(json.dumps(internal(version, out / "data"), indent=1) + "\n")


def internal(version: str, log_dir: Path) -> dict[str, dict[int, tuple[str | None, str | None]]]:
    """What kafka-dump-log says of each file; that of 4.1.1 for 3.9.1, whose answers about transactions are no JSON."""
    oracle = KafkaOracle("4.4.0" if version == "4.4.0" else "4.1.1")
    found = {}
    for topic in INTERNAL:
        files = sorted(file for pattern in ("*.log", "*.checkpoint") for file in log_dir.glob(f"{topic}-*/{pattern}"))
        if files:
            answers = oracle.internal(topic, files)
            found |= {str(file.relative_to(log_dir)): rows for file, rows in answers.items() if rows}
    return found


if __name__ == "__main__":
    main()
