"""Let real Kafka write and recover killed logs: make_killed_logs.py DIRECTORY. tests/golden/killed_logs.tar.gz is that.

A case: `before/NAME-0` as Kafka 4.1.1 wrote it and a kill left it, `case.json` with the kill, `after/NAME-0` as Kafka
3.9.1 recovered it. 2.8.2, 4.1.1 and 4.4.0 left files with the same meaning.
"""
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.kafka_oracle import KafkaOracle
from support.killed_logs import Kill, meanings, program

SEEDS = range(16)


def main() -> None:
    out = Path(sys.argv[1])
    before = {out / f"kill{seed:02d}/before/kill{seed:02d}-0": seed for seed in SEEDS}
    with tempfile.TemporaryDirectory() as work:
        KafkaOracle("4.1.1").run({directory: program(random.Random(seed)) for directory, seed in before.items()})
        kills = {directory: Kill.of(random.Random(1000 + seed), directory) for directory, seed in before.items()}
        meant = []
        for version in ("2.8.2", "4.1.1", "4.4.0", "3.9.1"):
            left = {directory: Path(work, version, directory.name) for directory in before}
            for directory, target in left.items():
                shutil.copytree(directory, target)
            found = KafkaOracle(version).recover_in_place({left[d]: kill for d, kill in kills.items()}, Path(work))
            meant.append({d: (found[target], meanings(target)) for d, target in left.items()})
        assert all(meaning == meant[-1] for meaning in meant)
        for directory, kill in kills.items():
            case = directory.parents[1]
            directory.with_suffix(".program").unlink()
            shutil.copytree(left[directory], case / "after" / directory.name)
            told = asdict(kill) | {"recovered": found[left[directory]]}
            del told["settings"]
            (case / "case.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
