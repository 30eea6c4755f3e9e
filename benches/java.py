"""Times Kafka's own classes in a separate JVM with the optimizing compiler: thread CPU time, best of several runs.

The garbage collector's thread does not count, which flatters Java. Has the same requirements as the oracle tests.
"""
import json
import subprocess
import tempfile
from pathlib import Path

JAVA = Path(__file__).parent.parent / "tests/oracle/kafka/java.sh"
RUNS = 6


def down_convert(segment: bytes, to: int) -> tuple[float, float]:
    """Best CPU and wall seconds of Kafka 3.9.1 (MemoryRecords.downConvert) for a segment in memory; checks no CRC."""
    with tempfile.TemporaryDirectory() as directory:
        partition = Path(directory) / "orders-0"
        partition.mkdir()
        (partition / f"{0:020}.log").write_bytes(segment)
        done = subprocess.run(
            [JAVA, "3.9.1", "-XX:TieredStopAtLevel=4", "Big", "bench", partition, str(RUNS)],
            capture_output=True, text=True, check=True,
        )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"op"')]
    row, = (row for row in rows if row["op"].startswith("down-convert") and f"-> v{to} " in row["op"])
    return row["best_cpu_s"], row["best_wall_s"]
