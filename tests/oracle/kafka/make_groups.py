"""Let a real broker write groups and transactional ids: make_groups.py DIRECTORY. tests/golden/groups is what it made.

Copies of the partitions of __consumer_offsets and __transaction_state that hold records, and what the broker's own
clients say of them (expected.json).
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.kafka_oracle import KafkaOracle

PROGRAM = [line.strip() for line in """
    commit-in writer simple topic-0 1 commit
    consume-in readers topic 6
    consume-in statics topic 6 instance-1
    commit plain topic-0 7 some-metadata
    commit plain topic-1 8
    commit plain missing-0 9
    uncommit plain topic-1
    commit gone topic-0 1
    delete-group gone
    commit-in writer simple topic-0 11 commit
    commit-in writer simple topic-0 12 abort
    commit-in other simple topic-1 13 commit
    commit-in hanging open topic-0 14 open
""".strip().splitlines()]


def main() -> None:
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as work, KafkaOracle("3.9.1").serving(Path(work)) as broker:
        broker.start()
        broker.create("topic", {}, partitions=2)
        broker.create("missing", {})
        broker.produce("topic-0", 0, 12, 1_700_000_000_000)
        for command in PROGRAM:
            broker.of_groups(command)
        expected = broker.groups()
        # A broker that stops writes its logs out; members and the open transaction stay as they are.
        broker.stop()
        out.mkdir(parents=True)
        for directory in sorted(broker.log_dir.iterdir()):
            log = directory / "00000000000000000000.log"
            if directory.name.startswith("__") and not directory.name.startswith("__cluster") and log.stat().st_size:
                shutil.copytree(directory, out / directory.name)
        (out / "expected.json").write_text(json.dumps({"program": PROGRAM, "groups": expected}, indent=1) + "\n")


if __name__ == "__main__":
    main()
