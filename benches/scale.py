"""The cost of converting 10 TB to 1 PB, computed from unit costs: the table of docs/scale.md.

    python -m benches.scale                     # the table, from the unit costs in this file
    python -m benches.scale --measure           # measures the driver's unit costs on this machine: several minutes
    python -m benches.scale --rate "gzip to zstd=40"    # with your own rate, in MB of source per CPU second

No petabyte was converted for this. Measured: the rates (python -m benches.spark), the driver's processor time and
memory per partition and segment (`--measure`), and our client's requests to an object store, counted in small
conversions.
Assumed: tasks do not slow each other down, as measured for two, and the disks or the store keep up with the executors.
"""
import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from seglog.stores.remote_store import PIECE_BYTES

MB, GB, TB = 10**6, 10**9, 10**12
# MB of source per CPU second, including proofs and syncs: python -m benches.spark (benches/README.md).
RATES = {"none to none": 205, "lz4 to lz4": 96, "gzip to zstd": 35}
TASK_CPU_S = 0.025          # what Spark 4.3 and Python spend on a task besides its work
EXECUTOR_CORES = 4
SEGMENT_BYTES = 1 << 30
SIZES = (
    (10 * TB, 1_000), (10 * TB, 10_000), (100 * TB, 10_000), (100 * TB, 100_000), (1000 * TB, 10_000),
    (1000 * TB, 100_000),
)
# (partitions, segments in each): the differences give the cost of one.
MEASURED = ((200, 1), (200, 40), (2000, 1))


@dataclass(frozen=True)
class Driver:
    """The driver's costs: processor time in ms, the memory of its Python in bytes."""

    partition_ms: float
    segment_ms: float
    partition_bytes: float
    segment_bytes: float
    alone_bytes: float


# The larger of two memory measurements; the other gave 2.1 KB and 0.1 KB, because a peak is only exact to a page.
DRIVER = Driver(partition_ms=0.34, segment_ms=0.07, partition_bytes=5_000, segment_bytes=600, alone_bytes=134 * MB)


# Our client's requests to an object store: (reads, heads and lists; writes). The segment's own bytes come in addition,
# in pieces of PIECE_BYTES both ways. Counted in conversions of (4, 1), (4, 11) and (24, 1) partitions and segments.
PARTITION_REQUESTS, SEGMENT_REQUESTS = (15, 5), (12, 5)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benches.scale", description=__doc__.splitlines()[0])
    arguments.add_argument("--measure", action="store_true")
    arguments.add_argument("--rate", action="append", default=[], metavar="CASE=MB")
    arguments.add_argument("--cores", type=int, default=400, help="of all executors")
    arguments.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one:
        print(json.dumps(spent_on(*given.one)))
    elif given.measure:
        print(measured())
    else:
        rates = RATES | {case: float(mb) for case, _, mb in (one.partition("=") for one in given.rate)}
        table(rates, given.cores)


def table(rates: dict[str, float], cores: int) -> None:
    print(f"{cores} cores, {cores // EXECUTOR_CORES} executors of {EXECUTOR_CORES}; segments of 1 GiB, a task each")
    hours = " | ".join(f"{case}, hours" for case in rates)
    print(
        f"| source | partitions | segments | {hours} | driver, CPU minutes | driver, its Python's memory "
        "| store, million reads | store, million writes |"
    )
    print("|---" * (7 + len(rates)) + "|")
    for size_bytes, partitions in SIZES:
        print("| " + " | ".join(row(size_bytes, partitions, rates, cores)) + " |")


def row(size_bytes: int, partitions: int, rates: dict[str, float], cores: int) -> list[str]:
    segments = max(partitions, math.ceil(size_bytes / SEGMENT_BYTES))
    overhead_s = segments * TASK_CPU_S
    spent = [(size_bytes / MB / rate + overhead_s) / cores / 3600 for rate in rates.values()]
    minutes = (partitions * DRIVER.partition_ms + segments * DRIVER.segment_ms) / 60_000
    memory = DRIVER.alone_bytes + partitions * DRIVER.partition_bytes + segments * DRIVER.segment_bytes
    pieces = math.ceil(size_bytes / PIECE_BYTES)
    reads, writes = (
        partitions * a_partition + segments * a_segment + pieces
        for a_partition, a_segment in zip(PARTITION_REQUESTS, SEGMENT_REQUESTS, strict=True)
    )
    return [
        f"{size_bytes // TB} TB", f"{partitions:,}", f"{segments:,}", *(f"{each:.2g}" for each in spent),
        f"{minutes:.1f}", f"{memory / GB:.2f} GB", f"{reads / 10**6:.1f}", f"{writes / 10**6:.1f}",
    ]


def measured() -> Driver:
    alone, many_segments, many_partitions = (
        json.loads(subprocess.check_output([sys.executable, "-m", "benches.scale", "--one", *map(str, case)]))
        for case in MEASURED
    )
    (few, one), (_, more), (many, _) = MEASURED
    segments, partitions = few * (more - one), many - few

    def of_segment(what: str) -> float:
        return (many_segments[what] - alone[what]) / segments

    def of_partition(what: str) -> float:
        """The cost of a partition without its one segment."""
        return (many_partitions[what] - alone[what]) / partitions - of_segment(what)

    return Driver(
        of_partition("ms"), of_segment("ms"), of_partition("bytes"), of_segment("bytes"),
        alone["bytes"] - few * (of_partition("bytes") + of_segment("bytes")),
    )


def spent_on(partitions: int, segments: int) -> dict[str, float]:
    """The costs of this process, which is the driver except for its JVM."""
    import seglog
    from seglog.spark import convert_topics
    from seglog.spark.session import session

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as work:
        old = Path(work) / "old"
        with seglog.open(old / "orders-0", fsync="never", config={"message.format.version": "1"}) as log:
            for n in range(segments):
                log.append(b"%d" % n * 20, timestamp=1_700_000_000_000 + n)
                if n < segments - 1:
                    log.roll()
        for n in range(1, partitions):
            directory = old / f"orders-{n}"
            directory.mkdir()
            for file in (old / "orders-0").iterdir():
                if not file.name.startswith("."):
                    os.link(file, directory / file.name)
        with session("local[2]") as spark:
            convert_topics(spark, old, Path(work) / "warm", to="v2", partitions=["orders-0"])
            began = time.process_time()
            report = convert_topics(spark, old, Path(work) / "new", to="v2")
            assert len(report.rows) == partitions
            return {
                "ms": (time.process_time() - began) * 1000,
                "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }


if __name__ == "__main__":
    main()
