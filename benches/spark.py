"""What Spark costs: the processor time of a conversion with it and without it, and what a second core brings.

    python -m benches.spark --bytes 4g      # in a directory of --work; minutes, and twice the space

Processor time is that of the driver, its JVM and all Python workers, behind the start of the session and a warm-up.
Wall time is printed beside it, and is what the second core is measured by: run it on a machine that is idle.
"""
import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benches import data
from benches.runner import Bench
from seglog.config import parse_bytes
from seglog.spark import convert_topics
from seglog.spark.session import session
from seglog.upkeep.directory_conversion import Options
from seglog.upkeep.log_dir_conversion import convert_log_dir

BATCH_BYTES = 16384
SEGMENT_RECORDS = {"none": 1_000_000, "lz4": 1_000_000, "gzip": 400_000}
CASES = {"v1 none to v2": ("none", None), "v1 lz4 to v2": ("lz4", None), "v1 gzip to v2 zstd": ("gzip", "zstd")}
JOB_AT_MOST, SECOND_CORE_AT_LEAST, RESUME_AT_MOST_S = 1.3, 1.7, 2.0


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benches.spark", description=__doc__.splitlines()[0])
    arguments.add_argument("--bytes", type=parse_bytes, default=4 << 30, help="of source for each case")
    arguments.add_argument("--only", default="", help="cases with this in their name")
    arguments.add_argument("--work", type=Path, help="a directory on the disk to measure")
    given = arguments.parse_args()
    bench = Bench(1, given.only)
    with tempfile.TemporaryDirectory(dir=given.work) as work:
        for case, (codec, to_codec) in CASES.items():
            if bench.wanted(case):
                run(bench, case, Path(work), codec, to_codec, given.bytes)


def run(bench: Bench, case: str, work: Path, codec: str, to_codec: str | None, size_bytes: int) -> None:
    old = work / "old"
    total = write_log_dir(old, codec, size_bytes)
    print(f"\n{case}: {total / 1e9:.2f} GB in {len(list(old.iterdir()))} segments")
    alone = measured("without Spark", lambda: alone_of(old, work / "alone", to_codec))
    by_cores = {}
    for cores in (1, 2):
        with session(f"local[{cores}]") as spark:
            spark.sparkContext.setLogLevel("ERROR")
            new, warm = work / f"new{cores}", work / "warm"
            # Workers started, their imports done, the JVM warm.
            convert_topics(spark, old, warm, topics=["t-0"], codec=to_codec)
            job = partial(convert_topics, spark, old, new, codec=to_codec)
            by_cores[cores] = measured(f"local[{cores}]", job)
            again = measured("once more, all done", job)
            assert len(list(new.glob("*/seglog-conversion.json"))) == len(list(old.iterdir()))
            for path in (new, warm):
                shutil.rmtree(path)
                shutil.rmtree(f"{path}.seglog-spark")
    bench.limit(case, "x CPU", "job on one core", by_cores[1][0] / alone[0], JOB_AT_MOST)
    bench.limit(case, "s", "resume of a finished job", again[1], RESUME_AT_MOST_S)
    if codec == "none":
        bench.at_least(case, "x wall", "two cores by one", by_cores[1][1] / by_cores[2][1], 1.0)
    else:
        bench.at_least(case, "x wall", "two cores by one", by_cores[1][1] / by_cores[2][1], SECOND_CORE_AT_LEAST)
    shutil.rmtree(old)


def write_log_dir(log_dir: Path, codec: str, size_bytes: int) -> int:
    """As many partitions of one segment as `size_bytes` takes; all of them one file on the disk."""
    segment = data.segment(1, codec, BATCH_BYTES, SEGMENT_RECORDS[codec])
    first = None
    for n in range(max(2, -(-size_bytes // len(segment)))):
        directory = log_dir / f"t-{n}-0"
        directory.mkdir(parents=True)
        path = directory / "00000000000000000000.log"
        if first is None:
            path.write_bytes(segment)
            first = path
        else:
            os.link(first, path)
    return len(segment) * (n + 1)


def alone_of(old: Path, new: Path, codec: str | None) -> None:
    for row in convert_log_dir(old, new, Options(codec=codec)):
        assert row.status == "converted", row
    shutil.rmtree(new)


def measured(name: str, work: Callable[[], object]) -> tuple[float, float]:
    """(processor seconds, wall seconds) of `work`."""
    cpu, wall = cpu_of_tree_s(), time.perf_counter()
    work()
    cpu, wall = cpu_of_tree_s() - cpu, time.perf_counter() - wall
    print(f"  {name:22} {cpu:8.1f} CPU s {wall:8.1f} s", flush=True)
    return cpu, wall


def cpu_of_tree_s() -> float:
    """Of this process and all below it, those that have ended among them."""
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields[int(stat.parent.name)] = (int(after[1]), sum(map(int, after[11:15])))
    ours, ticks = {os.getpid()}, fields[os.getpid()][1]
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in fields.items() if parent in ours} - ours
        ticks += sum(fields[pid][1] for pid in more)
        ours |= more
        grown = bool(more)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
